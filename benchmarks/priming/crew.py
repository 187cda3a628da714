"""Make a base whose workers look up and whose conductor knows forms: `python -m benchmarks.priming.crew`.

Demonstrations have the prompts of `crew`, with the names of all splits. Workers answer what they are asked. Of the conductor's replies a
share, which is larger in the second phase, is what the question takes; the others are drawn: mostly a call of any worker about any person of the prompt, else an answer
that the prompt names. The base therefore asks too much and the wrong workers, and sometimes stops too early.

Tokenizer and model are the base's own: every word is a token, and the model has two of the embedded model's five layers.
"""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.environments.crew_v0 import CONDUCTOR, JOBS, CrewState, raw_env
from benchmarks.priming.example import Demo
from benchmarks.priming.prime import (
    Phase,
    build_model,
    build_tokenizer,
    run_phase,
    save,
    small_command,
)
from pettingllms.data.splits import SPLITS

OUT = Path(__file__).parents[1] / "out" / "crew" / "base"
CALLS = 0.8
"""Share of calls among the conductor's demonstrations that are not right."""
MOST_ERRANDS = 3
PHASES = (
    Phase("form", steps=1000, habit=None, muon_lr=0.02, adamw_lr=3e-3),
    Phase("skill", steps=700, habit=None, muon_lr=0.015, adamw_lr=2e-3),
)
GOOD = (0.5, 0.75)
"""Share of the conductor's demonstrations that are right, in each phase."""


class Demos:
    """Demonstrations of the conductor, of which so many are right, and of its workers."""

    def __init__(self, good: float) -> None:
        self.good = good
        self.envs = [raw_env(prompt="compact", split=split) for split in SPLITS]

    def draw(self, rng: random.Random, habit: float | None = None) -> Demo:
        """A demonstration for the conductor or, as often, for a worker."""
        del habit  # what is wrong is drawn, not a habit
        env = rng.choice(self.envs)
        env.reset(seed=rng.randrange(2**40))
        state = env._state
        for _ in range(rng.randrange(MOST_ERRANDS + 1)):
            call = right_call(state) if rng.random() < 0.5 else None
            role, person = call or any_call(state, rng)
            env.step(f"{role} {person}")
            if rng.random() < 0.5 and env._state.errands[-1].report is None:
                break
            env.step(fact_text(env._state, (role, person)))
            state = env._state
        return self.reply(env, rng)

    def reply(self, env: raw_env, rng: random.Random) -> Demo:
        """The demonstration for the agent that is next."""
        agent, state = env.agent_selection, env._state
        prompt = env.observe(agent)["text"]
        if agent != CONDUCTOR:
            return Demo(prompt, fact_text(state, state.fact(state.errands[-1])))
        call = right_call(state)
        answer = state.value(state.chain[-1])
        if rng.random() > self.good:
            call = any_call(state, rng) if rng.random() < CALLS else None
            answer = rng.choice(prompt.split()[2:])
        return Demo(prompt, f"{call[0]} {call[1]}" if call else f"answer {answer}")


def right_call(state: CrewState) -> tuple[str, str] | None:
    """The fact that the conductor needs next; None where it knows the answer."""
    return next((fact for fact in state.chain if state.needs(fact)), None)


def any_call(state: CrewState, rng: random.Random) -> tuple[str, str]:
    """A call of any worker about a person that the conductor has read of."""
    seen = [state.chain[0][1], *(person for _, person in state.notes)]
    return rng.choice([*state.facts]), rng.choice(seen)


def fact_text(state: CrewState, fact: tuple[str, str]) -> str:
    """A worker's report."""
    return f"{JOBS[fact[0]].word} {fact[1]} {state.value(fact)}"


def units() -> list[str]:
    """Words that are one token each."""
    values = {word for job in JOBS.values() for words in job.values.values() for word in words}
    return [*sorted(values), *JOBS, *(job.word for job in JOBS.values()), "conductor", "answer"]


def prime(out: Path, seed: int = 0) -> None:
    """Primes a base and writes it as an ordinary Hugging Face checkpoint."""
    tokenizer = build_tokenizer(seed, Demos(GOOD[0]).draw, units())
    model = build_model(len(tokenizer), seed, num_hidden_layers=2)
    for good, phase in zip(GOOD, PHASES, strict=False):
        run_phase(model, tokenizer, phase, seed, Demos(good).draw)
        model.half().float()  # what is stored
    save(model, tokenizer, out)


def main(argv: list[str] | None = None) -> None:
    """Primes the base."""
    small_command(argv, __doc__, OUT, prime)


if __name__ == "__main__":
    main()
