"""Which method lets a team agree on what words mean? The signaling game as a test bed of credit assignment.

    python -m benchmarks.priming.protocol      the base: the form of replies, and random words and doors
    python -m benchmarks.protocol              everything that is missing; --minutes 4 ends earlier and keeps what it has

All arms train on the same number of generated tokens, with about as many updates. The learning rate of
each is chosen on the seeds `TUNING`, the results are of the seeds `SEEDS`. Success is played on test tasks; what scout
and mover say to every prompt is read from their probabilities, which gives the mutual information of door and word, and the
success of a scout and a mover that were trained apart. Writes `results/protocol.json` and `docs/signal.png`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.environments.signal_v0 import SignalState
from benchmarks.environments.signal_v0 import raw_env as SignalEnv
from benchmarks.options import Options
from benchmarks.priming.protocol import GOALS, OUT, WORDS_SAID
from benchmarks.protocol_report import controls as controls
from benchmarks.protocol_report import draw
from benchmarks.protocol_report import table as table
from pettingllms.data.rows import digest
from pettingllms.envs import make
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.runs import versions
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.types import Request

RESULTS = Path(__file__).parent / "results" / "protocol.json"
PICTURE = Path(__file__).parents[1] / "docs" / "signal.png"
ROLES = {"scout": "scout", "mover": "mover"}
ARGUMENTS: Mapping[str, Any] = {"goals": GOALS, "words": WORDS_SAID, "prompt": "compact"}
TASKS = 200
"""Test tasks: whole blocks, in which each door is right equally often."""
LENGTH = 4
"""Tokens of a completion; three are needed."""
EVERY = 5
"""Steps between two measurements."""
COMMON: Mapping[str, Any] = {
    "warmup_steps": 0,
    "max_completion_length": LENGTH,
    "tokens_per_batch": 16_384,
    "gradient_checkpointing": False,
    "scoring_threads": 1,
    "max_steps": 1000,
    "max_tokens": 40_000,
    "num_generations": 8,
    "tasks_per_step": 16,
    "lr_scheduler_type": "constant",
    "scale_rewards": "none",
    "beta": 0.1,
}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "at_grpo": {"method": "at_grpo"},
    # Probes are generated, too: fewer tasks make its steps as large as the others'.
    "look_ahead": {"method": "look_ahead", "tasks_per_step": 12},
    # Where every agent acts once, `dr_mas` compares the same returns: number for number the same.
    "grpo": {"method": "grpo"},
    "gigpo": {"method": "gigpo"},
    # Replies in the copies without an agent count as tokens.
    "ccpo": {"method": "ccpo"},
    "sharp": {"method": "sharp"},
    "rae": {"method": "rae", "num_generations": 1, "tasks_per_step": 128},
}
RATES = (3e-3, 6e-3)
TUNING = (100,)
SEEDS = (0, 1, 2, 3, 4)
CONTROLLED = "look_ahead"
"""The arm whose teams are looked at closely: one that learns, and the cheapest to run."""
CONTROLS = ("scout", "mover")
"""Roles of which only one is trained."""


def game(split: str = "train") -> SignalEnv:
    """The game that all arms play."""
    made = make("signal", split=split, **ARGUMENTS)
    assert isinstance(made, SignalEnv)
    return made


@torch.no_grad()
def probabilities(policies: PolicySet, role: str, env: SignalEnv) -> list[list[float]]:
    """The probability of every readable reply, as the base was shown it, to every prompt of a role.

    Returns:
        For a scout a row for each door with its words, for a mover a row for each word with its doors.
    """
    if role == "scout":
        shown, answers = env.doors, env.words
        prompts = [env._text(SignalState(door), "scout_0") for door in shown]
    else:
        shown, answers = env.words, env.doors
        prompts = [env._text(SignalState(answers[0], (word,)), "mover_0") for word in shown]
    chat, rows, places = policies.chat, list[list[int]](), list[int]()
    for first, prompt in zip(shown, prompts, strict=True):
        ids = list(policies.prompt_ids(role, prompt))
        for word in answers:
            reply = chat.tokenizer(f"{first} {word}", add_special_tokens=False)["input_ids"]
            rows.append([*ids, *reply, chat.tokenizer.eos_token_id])
            places.append(len(ids))
    width = max(map(len, rows))
    inputs = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    model = policies.sampling_model(policies.policy_for(role))
    logp = model(inputs).logits.float().log_softmax(-1)
    chances = [
        sum(logp[n, at - 1, row[at]].item() for at in range(places[n], len(row)))
        for n, row in enumerate(rows)
    ]
    table: list[list[float]] = torch.tensor(chances).exp().view(len(shown), len(answers)).tolist()
    return table


def exact(scout: Sequence[Sequence[float]], mover: Sequence[Sequence[float]]) -> float:
    """The success of a scout and a mover over all doors."""
    product = torch.tensor(scout) @ torch.tensor(mover)
    return float(product.diagonal().mean())


def information(scout: Sequence[Sequence[float]]) -> float:
    """The mutual information of door and word in bits, where every door is as likely."""
    joint = torch.tensor(scout, dtype=torch.float64)
    joint = joint / joint.sum().clamp(min=1e-12)
    apart = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    ratio = (joint / apart.clamp(min=1e-12)).clamp(min=1e-12)
    return float((joint * ratio.log2()).sum())


def measured(policies: PolicySet, env: SignalEnv) -> dict[str, Any]:
    """Both roles' tables and what follows from them."""
    scout, mover = (probabilities(policies, role, env) for role in ROLES)
    return {
        "success": exact(scout, mover),
        "information": information(scout),
        "scout": [[round(p, 4) for p in row] for row in scout],
        "mover": [[round(p, 4) for p in row] for row in mover],
    }


def played(policies: PolicySet, *, shuffled: bool = False, greedy: bool = False) -> str:
    """Plays the test tasks; a digit for each, 1 where it was solved.

    Args:
        policies: of both roles.
        shuffled: whether every mover hears what was said in another episode.
        greedy: whether both take the likeliest tokens.
    """
    env = game(split="test")
    spoken = _replies(policies, "scout", env, [()] * TASKS, greedy=greedy)
    messages = []
    for seed, text in enumerate(spoken):
        env.reset(seed=seed)
        env.step(text)
        messages.append(env.infos["scout_0"]["message"])
    if shuffled:
        # At random: a neighbor's door is another one, since a block of seeds has each door once.
        random.Random(0).shuffle(messages)
    heard = [(message,) for message in messages]
    digits = []
    for seed, text in enumerate(_replies(policies, "mover", env, heard, greedy=greedy)):
        env.reset(seed=seed)
        env.step(messages[seed])
        env.step(text)
        digits.append("1" if env.infos["mover_0"]["success"] else "0")
    return "".join(digits)


def _replies(
    policies: PolicySet,
    role: str,
    env: SignalEnv,
    before: Sequence[tuple[str, ...]],
    *,
    greedy: bool,
) -> list[str]:
    """A reply of a role in each test task, after these steps."""
    requests = []
    for seed, steps in enumerate(before):
        env.reset(seed=seed)
        for text in steps:
            env.step(text)
        ids = policies.prompt_ids(role, env.observe(f"{role}_0")["text"])
        requests.append(Request(policies.policy_for(role), ids, seed))
    replies = policies.sample(requests, 1, max_new_tokens=LENGTH, greedy=greedy)
    return [one.text for (one,) in replies]


def train(base: Path, seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Trains a team; returns what it reached, on the way and at the end."""
    env, started = game(), time.process_time()
    policies = load_policies(base, ROLES, seed=seed)
    values = {**COMMON, **settings}
    config = ATGRPOConfig(env="signal", model=str(base), policies="per-role", seed=seed, **values)
    trainer = ATGRPO(config, env, policies)
    curve: list[dict[str, float]] = []

    def note() -> dict[str, Any]:
        scores = measured(policies, env)
        kept = {name: round(scores[name], 4) for name in ("success", "information")}
        curve.append({"tokens": trainer.tokens, **kept})
        return scores

    note()
    while trainer.tokens < values["max_tokens"]:
        trainer.train_step()
        if trainer.step % EVERY == 0:
            note()
    end = note()
    return {
        "steps": trainer.step,
        "tokens": trainer.tokens,
        "curve": curve,
        "final": end,
        "tasks": played(policies),
        "greedy": played(policies, greedy=True),
        "shuffled": played(policies, shuffled=True),
        "cpu_s": round(time.process_time() - started),
    }


def share(run: Mapping[str, Any]) -> float:
    """The success of a run on the test tasks."""
    return float(run["tasks"].count("1")) / len(run["tasks"])


def key(arm: str, rate: float, seed: int, only: str = "") -> str:
    """Names a cell."""
    return "/".join([arm, f"{rate:g}", str(seed), *([f"only {only}"] if only else [])])


def mean(runs: Mapping[str, Any], arm: str, rate: float, seeds: Sequence[int]) -> float:
    """Mean success of an arm, 0 where a cell is missing."""
    records = [runs.get(key(arm, rate, seed)) for seed in seeds]
    return sum(share(run) if run else 0.0 for run in records) / len(seeds)


def chosen_rate(runs: Mapping[str, Any], arm: str) -> float:
    """The rate with the best success on the tuning seeds; the lower one where they are equal."""
    return max(RATES, key=lambda rate: (mean(runs, arm, rate, TUNING), -rate))


def cells(runs: Mapping[str, Any]) -> list[tuple[str, float, int, str]]:
    """All cells that are due now; those of the results follow from those of the tuning."""
    due = [(arm, rate, seed, "") for seed in TUNING for rate in RATES for arm in ARMS]
    if any(key(*cell) not in runs for cell in due):
        return due
    rates = {arm: chosen_rate(runs, arm) for arm in ARMS}
    due += [(arm, rates[arm], seed, "") for seed in SEEDS for arm in ARMS]
    if any(key(*cell) not in runs for cell in due):
        return due
    rate = rates[CONTROLLED]
    return due + [(CONTROLLED, rate, seed, only) for only in CONTROLS for seed in SEEDS]


def main() -> None:
    """Trains what is missing, plays, writes."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument(
        "--base", type=Path, default=OUT, help="what benchmarks.priming.protocol wrote"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no run after so long")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = json.loads(options.out.read_text()) if options.out.exists() else {"runs": {}}
    result |= {"versions": versions(), "base": digest(options.base), "settings": dict(COMMON)}
    result |= {
        "arms": {arm: dict(values) for arm, values in ARMS.items()},
        "arguments": dict(ARGUMENTS),
    }
    runs, until = result["runs"], time.monotonic() + 60 * options.minutes
    while missing := [cell for cell in cells(runs) if key(*cell) not in runs]:
        if time.monotonic() > until:
            print(f"{len(missing)} runs of this part are missing; run again", flush=True)
            break
        arm, rate, seed, only = missing[0]
        settings = {**ARMS[arm], "learning_rate": rate, **({"train_roles": only} if only else {})}
        run = runs[key(*missing[0])] = train(options.base, seed, settings)
        print(key(*missing[0]), share(run), run["final"]["information"], run["cpu_s"], flush=True)
        options.out.write_text(f"{json.dumps(result)}\n", encoding="utf-8")
    result["seeds"], result["controlled"] = SEEDS, CONTROLLED
    result["rates"] = {arm: chosen_rate(runs, arm) for arm in ARMS}
    options.out.write_text(f"{json.dumps(result)}\n", encoding="utf-8")
    if not missing:
        draw(result, PICTURE)


if __name__ == "__main__":
    main()
