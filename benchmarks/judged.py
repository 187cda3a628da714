"""What is a judge worth as a reward, and is one that can be fooled found out? `judged` on `judged:duet`.

    python -m benchmarks.priming.judged    the base: players without answers, a judge that is right more often than not
    python -m benchmarks.judged            everything that is missing; --minutes 4 ends earlier and keeps what it has
    python -m benchmarks.judged --dry-run  the trainings that are due

A team is right when both of its replies are. Without a judge, `grpo` compares the outcomes of whole episodes. The other arms add verdicts on each
reply by `judged`: of the base's judge, which learns, learns from all tasks instead of those that the method chooses, or is frozen; of a script that knows the answers; and of a script that approves of
short words. Arms generate equally many tokens, verdicts of the base's judge among them, a script's not. The rate of each arm is that of the
grid with the most success on validation tasks with the seed `TUNING`. Teams of the seeds `SEEDS` then play 200 test tasks, whose phrases are those of training.

The blind baseline asks the judge about every reply to every prompt, and again with another prompt in its place. Agreement is balanced, the mean of
the shares of right replies called right and of wrong ones called wrong: 0.5 is chance. A judge that agrees as much when the prompt is another does
not judge what was asked. Writes `results/judged.json`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.cells import Cell, options_on, run_missing
from benchmarks.evidence import Table, gain_over_seeds, shown, solved_digits, spread
from benchmarks.priming.judged import OUT as BASE
from benchmarks.priming.judged import PHRASES, ROLES, WORLD, question
from pettingllms.envs.base import TextEnv
from pettingllms.envs.duet_v0 import phrase, raw_env
from pettingllms.envs.judged import JUDGE, JudgedEnv, verdict_of
from pettingllms.evaluation.chunks import Sampling, chunks
from pettingllms.evaluation.rollouts import held_out, roll_out
from pettingllms.methods.judged import LearnedJudge
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.samplers.api import ApiPartners
from pettingllms.samplers.base import SamplingParams
from pettingllms.statistics import over_seeds
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.types import Completion, Request

RESULTS = Path(__file__).parent / "results" / "judged.json"
TUNING, SEEDS = 100, (0, 1, 2)
RATES = (3e-4, 1e-3, 3e-3)
TOKENS = 40_000
TASKS = 200
ASKED = 8
"""Verdicts on each reply in the blind baseline."""
SCRIPT = "api:script"
SHORT = 4
"""Letters of a word that the script approves of that can be fooled."""
NONE, LEARNED, EVERYWHERE, FROZEN, KNOWS, FOOLED = ARMS = (
    *("none", "learns", "learns from all tasks", "frozen", "knows", "fooled"),
)
SAID: Mapping[str, str] = {
    "verdict": "mean verdict",
    "outcome": "agreement with outcomes",
    "agreement": "with what is right",
    "blind": "the same, shown another prompt",
}
"""What is measured of a judge -> what the table calls it."""
SETTINGS: Mapping[str, Any] = {
    "num_generations": 8,
    "tasks_per_step": 12,
    "max_completion_length": 3,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "temperature": 1.0,
    "max_steps": 100_000,
    "eval_steps": 0,
    "tokens_per_batch": 16_384,
    "gradient_checkpointing": False,
    "scoring_threads": 1,
}


class AllTasks(LearnedJudge):
    """Learns from tasks of any difficulty."""

    reply_shares = verdict_shares = (0.0, 1.0)


class Script(ApiPartners):
    """A partner that gives verdicts by a rule, in place of a server."""

    def __init__(self, approves: Callable[[str, str], bool]) -> None:
        self.roles_to_policies, self.approves = {"judge": SCRIPT}, approves

    def ask(
        self, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> Callable[[], list[list[Completion]]]:
        """The verdict on each request, so many times."""
        del params
        answers = [[self._verdict(request)] * n for request in requests]
        return lambda: answers

    def close(self) -> None:
        """There is no server."""

    def _verdict(self, request: Request) -> Completion:
        right = self.approves(*asked(bytes(request.prompt_ids).decode()))
        return Completion(request.prompt_ids, (), (), "right" if right else "wrong", False, 0)


def asked(text: str) -> tuple[str, str]:
    """Prompt and reply in a question to the judge, of one line each; empty where there is none."""
    quoted = [line.removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
    prompt, reply = quoted if len(quoted) == 2 else ("", "")
    return prompt, reply


def environment(arm: str, split: str) -> TextEnv | JudgedEnv:
    """The environment of an arm."""
    env = raw_env(split=split, prompt="compact", **WORLD)
    return env if arm == NONE else JudgedEnv(env)


def truth() -> dict[tuple[str, str], bool]:
    """Prompt and reply -> whether that is right, of all."""
    env = raw_env(**WORLD)
    return {
        (f"{role} {phrase(number)}", word): env.right[role][number] == answer
        for role in ROLES
        for number in range(PHRASES)
        for answer, word in enumerate(env.answers)
    }


def policies_of(base: Path, arm: str, seed: int) -> PolicySet:
    """A policy for each role, and the script of an arm that has one."""
    right = truth()
    rules: dict[str, Callable[[str, str], bool]] = {
        KNOWS: lambda prompt, reply: right.get((prompt, reply), False),
        FOOLED: lambda _, reply: 0 < len(reply) <= SHORT,
    }
    roles = {role: role for role in ROLES}
    if arm != NONE:
        roles["judge"] = SCRIPT if arm in rules else "judge"
    policies = load_policies(base, roles, lora_r=16, lora_alpha=32, seed=seed)
    if arm in rules:
        policies.partners = Script(rules[arm])
    return policies


def verdicts(policies: PolicySet, questions: Sequence[str], count: int, seed: int) -> np.ndarray:
    """Mean of so many verdicts on each question."""
    policy = policies.policy_for(JUDGE)
    requests = [
        Request(policy, policies.prompt_ids(JUDGE, text), (seed << 32) + count * number)
        for number, text in enumerate(questions)
    ]
    said = policies.sample(requests, count, max_new_tokens=SETTINGS["max_completion_length"])
    return np.array([fmean(verdict_of(one.text) for one in answers) for answers in said])


def agreement(said: np.ndarray, right: np.ndarray) -> float | None:
    """Mean of the shares of right replies called right and of wrong ones called wrong."""
    if right.all() or not right.any():
        return None
    return round(float(0.5 + (said[right].mean() - said[~right].mean()) / 4), 4)


def blind_baseline(policies: PolicySet, seed: int) -> dict[str, float | None]:
    """How a judge's verdicts on all replies agree with what is right, also if it is shown another prompt."""
    pairs = truth()
    right = np.array([*pairs.values()])
    others = [
        question(other, reply)
        for prompt, reply in pairs
        for other in dict.fromkeys(other for other, _ in pairs)
        if other != prompt and other.split()[0] == prompt.split()[0]  # of the same role
    ]
    seeing = verdicts(policies, [question(*pair) for pair in pairs], ASKED, seed)
    blind = verdicts(policies, others, 1, seed).reshape(len(pairs), -1).mean(1)
    return {"agreement": agreement(seeing, right), "blind": agreement(blind, right)}


def played(trainer: ATGRPO, cell: Cell, split: str, tasks: int) -> dict[str, Any]:
    """Success of each task as a digit, and what the judge says; sampled as in training."""
    env, policies = environment(cell.arm, split), trainer.policies
    seats = {agent: policies.policy_for(agent) for agent in env.possible_agents}
    sampling = Sampling(SETTINGS["max_completion_length"], seed=cell.seed, at_once=100)
    episodes = []
    with ThreadPoolExecutor(1) as pool:
        for chunk in chunks(held_out(env, split, tasks), sampling):
            episodes += roll_out(env, policies, seats, pool, chunk, sampling)
    record: dict[str, Any] = {"solved": solved_digits(episodes)}
    if cell.arm == NONE:
        return record
    said = [
        (group.chosen.info["verdict"], bool(episode.success))
        for episode in episodes
        for group in episode.groups
        if group.key.agent == JUDGE
    ]
    values, outcomes = (np.array(column) for column in zip(*said, strict=True))
    record |= {"verdict": round(float(values.mean()), 4), "outcome": agreement(values, outcomes)}
    return record if cell.seed == TUNING else record | blind_baseline(policies, cell.seed)


def trained(base: Path, cell: Cell, tokens: int, tasks: int) -> dict[str, Any]:
    """Trains a cell and plays held-out tasks, before and after."""
    started, env = time.process_time(), environment(cell.arm, "train")
    method = "grpo" if cell.arm == NONE else "judged"
    settings = {**SETTINGS, "learning_rate": cell.rate, "seed": cell.seed}
    policies = policies_of(base, cell.arm, cell.seed)
    roles = ",".join(f"{role}={name}" for role, name in policies.roles_to_policies.items())
    if cell.arm in (FROZEN, KNOWS, FOOLED):
        settings["train_roles"] = ",".join(ROLES)
    config = ATGRPOConfig(env="duet", model=str(base), method=method, policies=roles, **settings)
    trainer = ATGRPO(
        resolve(config, env), env, policies, method=AllTasks if cell.arm == EVERYWHERE else None
    )
    tuning = cell.seed == TUNING
    split = "val" if tuning else "test"
    record = {} if tuning else {"before": played(trainer, cell, split, tasks)}
    while trainer.tokens < tokens:
        trainer.train_step()
    record["after"] = played(trainer, cell, split, tasks)
    policies.close()
    cpu_s = round(time.process_time() - started, 1)
    return {**record, "steps": trainer.step, "tokens": trainer.tokens, "cpu_s": cpu_s}


def rate_of(runs: Mapping[str, Any], arm: str) -> float:
    """The rate with the most success on validation tasks; a judge that learns has one."""
    arm = LEARNED if arm == EVERYWHERE else arm
    return max(RATES, key=lambda r: runs[Cell(arm, r, TUNING).name]["after"]["solved"].count("1"))


def due(runs: Mapping[str, Any]) -> list[Cell]:
    """The trainings that are missing and can be named now."""
    cells = [Cell(arm, rate, TUNING) for rate in RATES for arm in ARMS if arm != EVERYWHERE]
    if all(cell.name in runs for cell in cells):
        cells = [Cell(arm, rate_of(runs, arm), seed) for seed in SEEDS for arm in ARMS]
    return [cell for cell in cells if cell.name not in runs]


def of_seeds(runs: Mapping[str, Any], arm: str) -> list[Any]:
    """The records of the seeds of an arm; empty where one is missing."""
    names = [Cell(arm, rate_of(runs, arm), seed).name for seed in SEEDS]
    return [runs[name] for name in names] if all(name in runs for name in names) else []


def solved(runs: Mapping[str, Any], arm: str, when: str = "after") -> np.ndarray:
    """Success of an arm, of shape (seeds, tasks)."""
    return np.array([[float(d) for d in run[when]["solved"]] for run in of_seeds(runs, arm)])


def gain(runs: Mapping[str, Any], arm: str, over: str) -> str:
    """`+0.10 [+0.02, +0.18]`: what an arm solves more than another."""
    gained = gain_over_seeds(solved(runs, arm) - solved(runs, over))
    return f"{gained.mean:+.2f} [{gained.low:+.2f}, {gained.high:+.2f}]"


def table(result: Mapping[str, Any]) -> Table:
    """Success of each arm, and what its judge says before and after training; ranges are those of the seeds."""
    runs, rows = result["runs"], []
    for arm in ARMS if all(of_seeds(runs, arm) for arm in ARMS) else ():
        ends = [shown(over_seeds(solved(runs, arm, when))) for when in ("before", "after")]
        gains = ["" if arm == over else gain(runs, arm, over) for over in (NONE, FROZEN)]
        said = ["" if arm == NONE else said_by(of_seeds(runs, arm), what) for what in SAID]
        updates = spread([run["steps"] for run in of_seeds(runs, arm)], 0)
        rows.append([arm, f"{rate_of(runs, arm):g}", updates, *ends, *gains, *said])
    compared = ["minus no judge", "minus frozen"]
    return ["judge", "rate", "updates", "success before", "after", *compared, *SAID.values()], rows


def said_by(runs: Sequence[Any], what: str) -> str:
    """A measure of a judge: its mean before training, and after it with the range of the seeds."""
    before, after = (
        [float(run[when][what]) for run in runs if run[when][what] is not None]
        for when in ("before", "after")
    )
    return f"{fmean(before):.2f} to {spread(after)}" if before and after else "-"


def main(argv: Sequence[str] | None = None) -> None:
    """Trains what is missing and writes the results."""
    maker = "benchmarks.priming.judged"
    options = options_on(BASE, maker, __doc__.splitlines()[0], RESULTS, TOKENS, argv)
    settings = {**SETTINGS, **WORLD, "tokens": options.tokens, "rates": RATES, "seeds": SEEDS}

    def measured(cell: Cell) -> dict[str, Any]:
        return trained(options.base, cell, options.tokens, TASKS)

    result = run_missing(options, due, measured, {"settings": settings}, "runs")
    print(*table(result)[1], sep="\n")


if __name__ == "__main__":
    main()
