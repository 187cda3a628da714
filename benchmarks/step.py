"""Does it help to imitate episodes that a solver corrected, and to leave the corrected errors out? (STeP)

    python -m benchmarks.step [--golden N] [--played N] [--updates N] [--tasks N]

Plan-Path from the base `embedded:parts`, on boards as in `benchmarks.airl`. The arm `golden` is the base after SFT on episodes of the solver.
That agent then plays other tasks, where the solver gives the next move after one that earns less than its own would; episodes that end in
success are kept. All other arms are SFT of the base, too, with as many updates of as many replies: on golden and corrected episodes, with the
agent's wrong moves or without them (masked), and, to tell corrections from more tasks, on episodes that the solver plays alone on all of
these tasks. The rate of each arm is the one of `RATES` with which the seed `TUNING` solves most validation tasks. An error is repeated where
an agent makes the wrong move again that it made before on the same cell of the same episode. Writes `results/step.json`; finished seeds are
not repeated. One core, 10 CPU-minutes.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.airl import OneMove, environment, shown_gain
from benchmarks.evidence import Table, revision, shown, solved_digits
from benchmarks.options import Options
from benchmarks.reading import cpu_seconds, share
from pettingllms.evaluation import held_out
from pettingllms.evaluation.chunks import Sampling, chunks
from pettingllms.evaluation.report import as_text
from pettingllms.evaluation.rollouts import roll_out
from pettingllms.evaluation.step import SOLVER, SOLVER_REWARD, Teacher, wrong
from pettingllms.models import PARTS
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.engine import Routed
from pettingllms.rollout.episode import Episode, tasks_of_step
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs import versions
from pettingllms.statistics import over_seeds
from pettingllms.types import Sample, Task

RESULTS = Path(__file__).parent / "results" / "step.json"
GOLDEN, PLAYED, UPDATES = 20, 100, 40
TASKS, VALIDATION_TASKS = 300, 100
TUNING, SEEDS = 50, (51, 52, 53)
RATES = (1e-3, 2e-3, 4e-3, 8e-3)
REPLIES, BATCH_TOKENS = 32, 1024
"""Replies of an update, and tokens of a forward pass."""
ROLES = ("tool", "planner")
COUNTS = ("replies", "wrong", "repeated")
BASE, MASKED = "base", "golden + corrected, mask"
ARMS = ("golden", "golden, all tasks", "golden + corrected, no mask", MASKED)


class Expert(Teacher):
    """The solver plays alone."""

    def route(self, episode: Episode, policy: str) -> Routed:  # noqa: ARG002 - whoever it stands in for
        """Returns its reply."""
        return Routed(SOLVER, {}, episode.demonstration())


class Judge(Teacher):
    """The solver says what it would have earned, and corrects nothing."""

    def route(self, episode: Episode, policy: str) -> Routed:
        """Returns the agent's own policy."""
        return Routed(policy, {SOLVER_REWARD: super().route(episode, policy).notes[SOLVER_REWARD]})


def played(
    policies: PolicySet, tasks: Sequence[Task], split: str, seed: int, teacher: Teacher
) -> list[Trajectory]:
    """An episode of each task."""
    sampling, episodes = (
        Sampling(OneMove.embedded_parts_training["max_completion_length"], seed=seed),
        [],
    )
    with ThreadPoolExecutor(1) as pool:
        for chunk in chunks(tasks, sampling):
            seats = {role: role for role in ROLES}
            env = environment(split)
            episodes += roll_out(env, policies, seats, pool, chunk, sampling, ensemble=teacher)
    return episodes


def imitated(
    policies: PolicySet, episodes: Sequence[Trajectory], mask: bool = True
) -> dict[str, list[Sample]]:
    """Role -> the replies of successful episodes; `mask` leaves wrong ones out."""
    samples = defaultdict[str, list[Sample]](list)
    for group in (group for episode in episodes if episode.success for group in episode.groups):
        if not (mask and wrong(group.chosen)):
            said, chat = group.chosen.completion, policies.chat_for(group.key.role)
            token_ids = said.token_ids or chat.completion_ids(said.text)
            samples[group.key.role].append(Sample(group.prompt_ids, token_ids, (), 0.0))
    return samples


def tune(
    policies: PolicySet, data: Mapping[str, Sequence[Sample]], rate: float, updates: int, seed: int
) -> int:
    """SFT of every role; returns how many tokens it has learned from."""
    tokens = 0
    for role in ROLES:
        rng, order = random.Random(f"{seed} {role}"), list[Sample]()
        optimizer = torch.optim.AdamW(policies.parameters(role), lr=rate, weight_decay=0.0)
        decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, updates)
        for _ in range(updates):
            while len(order) < REPLIES:
                order += rng.sample(data[role], len(data[role]))
            rows, order = order[:REPLIES], order[REPLIES:]
            count = sum(len(sample.token_ids) for sample in rows)
            optimizer.zero_grad()
            for batch in policies.microbatches(role, rows, BATCH_TOKENS):
                logp_BT, _ = policies.logprobs(role, batch)
                weights_BT = batch.mask_BT * batch.counts_B[:, None]
                (-(logp_BT * weights_BT).sum() / count).backward()
            optimizer.step()
            decay.step()
            tokens += count
        policies.publish(role)
    return tokens


def errors(episode: Trajectory) -> dict[str, int]:
    """Replies of an episode, wrong ones, and those that repeat an earlier wrong one on the same cell."""
    marks = [group for group in episode.groups if wrong(group.chosen)]
    # The planner's prompt ends with the proposal, which changes nothing about the board.
    steps = [
        (g.key.role, str(g.prompt).partition(" proposal ")[0], g.chosen.completion.text)
        for g in marks
    ]
    counts = len(episode.groups), len(steps), len(steps) - len(set(steps))
    return dict(zip(COUNTS, counts, strict=True))


def measured(
    seed: int, rates: Mapping[str, Sequence[float]], sizes: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Cells by arm and rate: what was solved and which errors were made on held-out tasks."""
    policies = load_policies(PARTS, {role: role for role in ROLES}, seed=seed)
    fresh = {role: policies.state(role) for role in ROLES}
    tasks = tasks_of_step(
        environment("train"), "plan_path", 0, sizes["golden"] + sizes["played"], seed
    )
    demonstrated, others = tasks[: sizes["golden"]], tasks[sizes["golden"] :]
    golden = played(policies, demonstrated, "train", seed, Expert(SOLVER))
    split, count = (
        ("val", min(sizes["tasks"], VALIDATION_TASKS))
        if seed == TUNING
        else ("test", sizes["tasks"])
    )
    cells, trained = dict[str, dict[str, Any]](), dict[float, Any]()

    def finish(arm: str, rate: float, data: Mapping[str, Sequence[Sample]] | None) -> None:
        for role in ROLES:
            policies.load_state(role, fresh[role])
        started = cpu_seconds()
        tokens = 0 if data is None else tune(policies, data, rate, sizes["updates"], seed)
        spent = cpu_seconds() - started
        if arm == ARMS[0]:
            trained[rate] = {role: policies.state(role) for role in ROLES}
        tasks = held_out(environment(split), split, count)
        episodes = played(policies, tasks, split, seed, Judge(SOLVER))
        counted = [errors(episode) for episode in episodes]
        cells[f"{arm}/{rate:g}/{seed}"] = {
            "tasks": solved_digits(episodes),
            **{name: " ".join(str(counts[name]) for counts in counted) for name in COUNTS},
            "imitated": {} if data is None else {role: len(rows) for role, rows in data.items()},
            "tokens": tokens,
            "training_cpu_s": round(spent, 1),
            "revision": revision(),
        }
        print(arm, f"{rate:g}", seed, share(solved_digits(episodes)), flush=True)

    finish(BASE, 0.0, None)
    for rate in rates[ARMS[0]]:
        finish(ARMS[0], rate, imitated(policies, golden))
    best = trained[best_rate(cells, ARMS[0], rates[ARMS[0]], seed)]
    for role in ROLES:
        policies.load_state(role, best[role])
    corrected = played(policies, others, "train", seed, Teacher(SOLVER))
    data = {
        ARMS[1]: imitated(
            policies, golden + played(policies, others, "train", seed, Expert(SOLVER))
        ),
        ARMS[2]: imitated(policies, golden + corrected, mask=False),
        ARMS[3]: imitated(policies, golden + corrected),
    }
    cells[f"corrected/{seed}"] = corrections(corrected)
    for arm, rows in data.items():
        for rate in rates[arm]:
            finish(arm, rate, rows)
    policies.close()
    return cells


def corrections(episodes: Sequence[Trajectory]) -> dict[str, int]:
    """How often the teacher took a decision over, and in how many episodes the team then succeeded."""
    return {
        "episodes": len(episodes),
        "kept": sum(bool(episode.success) for episode in episodes),
        "corrections": sum(group.policy == SOLVER for e in episodes for group in e.groups),
        "decisions": sum(len(episode.groups) for episode in episodes),
    }


def best_rate(cells: Mapping[str, Any], arm: str, rates: Sequence[float], seed: int) -> float:
    """The rate that solves most; the lowest of several."""
    return max(rates, key=lambda rate: (share(cells[f"{arm}/{rate:g}/{seed}"]["tasks"]), -rate))


def per_reply(counts: np.ndarray, out_of: np.ndarray) -> np.ndarray:
    """A ratio of sums, as values of shape (seeds, tasks) whose mean it is and whose spread is its own (delta method)."""
    ratio = counts.sum() / max(1.0, out_of.sum())
    values: np.ndarray = ratio + (counts - ratio * out_of) / max(1 / out_of.size, out_of.mean())
    return values


def table(results: Mapping[str, Any]) -> Table:
    """Success, how many replies are wrong, and how many wrong ones repeat an error; what masked corrections have more."""
    cells, rates = results["cells"], results["settings"]["rates"]
    values, rows = dict[str, tuple[np.ndarray, ...]](), list[list[str]]()
    for arm in (BASE, *ARMS):
        rate = 0.0 if arm == BASE else best_rate(cells, arm, rates, TUNING)
        runs = [cells[f"{arm}/{rate:g}/{seed}"] for seed in results["settings"]["seeds"]]
        of = {
            name: np.array([[float(count) for count in run[name].split()] for run in runs])
            for name in COUNTS
        }
        solved = np.array([[float(digit) for digit in run["tasks"]] for run in runs])
        shares = per_reply(of["wrong"], of["replies"]), per_reply(of["repeated"], of["wrong"])
        values[arm] = solved, *shares
        imitated = np.mean([sum(run["imitated"].values()) for run in runs])
        rows.append(
            ["untrained" if arm == BASE else arm, f"{rate:g}" if rate else "", f"{imitated:.0f}"]
        )
    for row, (arm, (success, *errors_of)) in zip(rows, values.items(), strict=True):
        row.append(shown(over_seeds(success)))
        row += [shown(over_seeds(ratio, share=False)) for ratio in errors_of]
        gains = [mask - other for mask, other in zip(values[MASKED], values[arm], strict=True)]
        row += ["" if arm == MASKED else shown_gain(gains[at]) for at in (0, 2)]
    header = ["imitated", "rate", "replies", "success", "wrong, of replies", "repeated, of wrong"]
    return [*header, "mask minus this: success", "repeated"], rows


def main() -> None:
    """Measures what is missing, writes it, and prints the table."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--golden", type=int, default=GOLDEN, help="tasks of the golden episodes")
    parser.add_argument("--played", type=int, default=PLAYED, help="tasks of the corrected ones")
    parser.add_argument("--updates", type=int, default=UPDATES, help="of each role in an SFT")
    parser.add_argument("--tasks", type=int, default=TASKS, help="test tasks")
    sizes = vars(parser.parse_args())
    torch.set_num_threads(1)
    settings = {**sizes, "rates": list(RATES), "tuning": TUNING, "seeds": list(SEEDS)}
    settings |= {"replies": REPLIES, "batch_tokens": BATCH_TOKENS}
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if results.get("settings") != settings:
        results = {"versions": versions(), "settings": settings, "cells": {}}
    cells = results["cells"]
    for seed in (TUNING, *SEEDS):
        if f"corrected/{seed}" not in cells:
            best = {arm: [best_rate(cells, arm, RATES, TUNING)] for arm in ARMS if seed != TUNING}
            cells |= measured(seed, best or dict.fromkeys(ARMS, RATES), sizes)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    header, rows = table(results)
    print(as_text([header, *rows]))


if __name__ == "__main__":
    main()
