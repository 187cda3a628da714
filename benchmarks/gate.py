"""ReAd's gate on Sokoban: replies of low advantage are refused, against plain play and a vote.

    python -m benchmarks.gate [--seeds 0 1 2] [--tokens N] [--tasks N]

AT-GRPO trains a team from the embedded base, which then plays training tasks: the returns from which the gate's critic
learns. The team plays the same test tasks plainly; with the gate, whose agents read the refused replies or do not; with a
gate by the length of a reply in place of a critic; and three times at every decision, where the most frequent reply is
played. On plain play the ranks of the critic's A are correlated with those of what followed the reply, its reward, and its
length. Writes `results/gate.json`. One core, four CPU-minutes a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks import warm
from benchmarks.advice import spearman
from benchmarks.evidence import Table, difference, estimate, shown, solved_digits, spread
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.folder import read_trajectories
from pettingllms.evaluation.gate import Gated
from pettingllms.evaluation.rollouts import Lineup
from pettingllms.evaluation.run import plan_of, run_plan
from pettingllms.methods.q_tree import followed
from pettingllms.rollout.trajectory import Trajectory, in_order
from pettingllms.types import Completion, Group, Request

ENV = "sokoban"
OUT = warm.HERE / "out" / "gate"
RESULTS = warm.HERE / "results" / "gate.json"
TOKENS = 100_000
RECORD = 400
"""Training tasks that the critic learns from."""
VOTERS = 3
ARMS = {
    "plain": "plain play",
    "gated": "gate",
    "quiet": "gate without feedback",
    "length": "gate by length, without feedback",
    "vote": "vote of three",
}
QUIET = {"gate_feedback": False}


def main() -> None:
    """Runs what is missing, prints the table, and writes the results."""
    torch.set_num_threads(1)
    warm.command(__doc__.splitlines()[0], RESULTS, one, table, tokens=TOKENS)


def one(seed: int, tokens: int, tasks: int) -> dict[str, Any]:
    """A team: which test tasks it solves in each way, tokens of an episode, and how the critic ranks replies."""
    folder = OUT / f"{tokens}-{seed}"
    run = warm.train(folder / "team", seed, env=ENV, max_tokens=tokens)
    team: dict[str, Any] = {"env": ENV, "adapters": run, "base": False}
    record = folder / "record"
    warm.play(record, seed, **team, split="train", limit=RECORD)
    gates: Mapping[str, Mapping[str, Any]] = {
        "gated": {"gate": record},
        "quiet": {"gate": record, **QUIET},
    }
    played = {
        arm: warm.play(folder / arm, seed, **team, **gate, limit=tasks)
        for arm, gate in gates.items()
    }
    members = ",".join(f"{name}={run}" for name in "abc"[:VOTERS])
    votes = warm.play(
        folder / "vote", seed, env=ENV, members=members, vote=True, base=False, limit=tasks
    )
    episodes = {"plain": played["gated"]["adapters"], "vote": votes["vote"]}
    episodes |= {arm: teams["gated"] for arm, teams in played.items()}
    episodes["length"] = by_length(run, record, seed, tasks)
    result: dict[str, Any] = {
        "seed": seed,
        "solved": {arm: solved_digits(episodes[arm]) for arm in ARMS},
        "tokens": {arm: asked(episodes[arm]) for arm in ARMS},
        "ranks": ranks(run, record, episodes["plain"]),
    }
    # The record has the reply alone that was played; those asked for are as long as in plain play.
    decisions = {arm: sum(len(e.groups) for e in episodes[arm]) for arm in ("plain", "vote")}
    result["tokens"]["vote"] = (
        VOTERS * result["tokens"]["plain"] * decisions["vote"] / decisions["plain"]
    )
    print(result, flush=True)
    return result


class LengthGate(Gated):
    """Refuses replies that are shorter than usual: a control for critics that prefer long ones."""

    def learn(self, policies: Any) -> None:
        """Means of the recorded replies of each policy, in tokens."""
        del policies
        groups = in_order(self._record)
        self.usual = {
            policy: fmean(tokens_of(g) for g in groups if g.policy == policy)
            for policy in {group.policy for group in groups}
        }

    def advantages(
        self, policies: Any, requests: Sequence[Request], replies: Sequence[Completion]
    ) -> list[float]:
        """Tokens of each reply above the mean of its policy's recorded ones."""
        del policies
        return [
            len(reply.token_ids) - self.usual[request.policy]
            for request, reply in zip(requests, replies, strict=True)
        ]


def by_length(run: Path, record: Path, seed: int, tasks: int) -> list[Trajectory]:
    """The episodes of a team that is gated by length."""
    options = EvalConfig.of(
        env=ENV, adapters=str(run), base=False, seed=seed, limit=tasks, gate=str(record), **QUIET
    )
    plan = plan_of(options)
    gate = LengthGate(options, plan.config, read_trajectories(record)["adapters"])
    plan = replace(plan, teams=[Lineup("length", adapters=True, ensemble=gate)])
    return list(run_plan(plan, None).episodes["length"])


def tokens_of(group: Group) -> int:
    """Tokens of all replies that were asked for at a decision."""
    chosen = group.chosen
    return int(chosen.info.get("gate_tokens", len(chosen.completion.token_ids)))


def asked(episodes: Sequence[Trajectory]) -> float:
    """Mean tokens of all replies of an episode."""
    return fmean(sum(map(tokens_of, episode.groups)) for episode in episodes)


def ranks(run: Path, record: Path, episodes: Sequence[Trajectory]) -> dict[str, dict[str, Any]]:
    """Role -> correlation of the ranks of A with those of the return from there on, and of the reward; share of A >= 0."""
    plan = plan_of(EvalConfig.of(env=ENV, adapters=str(run), gate=str(record), base=False))
    gate = plan.teams[-1].ensemble
    assert isinstance(gate, Gated)
    policies, groups = plan.load(adapters=True), in_order(episodes)
    try:
        gate.learn(policies)
        advantages = gate.advantages(
            policies,
            [Request(group.policy, group.prompt_ids, 0) for group in groups],
            [group.chosen.completion for group in groups],
        )
    finally:
        policies.close()
    rewards = [group.chosen.reward for group in groups]
    returns = [
        paid + later for paid, later in zip(rewards, followed(groups, 1.0).tolist(), strict=True)
    ]
    lengths = [float(tokens_of(group)) for group in groups]
    ranked = {}
    for role in dict.fromkeys(group.key.role for group in groups):
        rows = [row for row, group in enumerate(groups) if group.key.role == role]
        a, r, g, n = (
            [values[row] for row in rows] for values in (advantages, rewards, returns, lengths)
        )
        ranked[role] = {
            "return": spearman(a, g),
            "reward": spearman(a, r),
            "length": spearman(a, n),
            "passed": fmean(value >= 0 for value in a),
        }
    return ranked


def table(result: Any) -> Table:
    """Success and tokens of each way to play."""
    runs = result["runs"]
    solved = {
        arm: np.array([[float(d) for d in run["solved"][arm]] for run in runs]) for arm in ARMS
    }
    rows = []
    for arm, title in ARMS.items():
        gains = [
            "" if arm == other else f"{gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"
            for other in ("plain", "quiet", "vote")
            for gain in [difference(solved[arm] - solved[other])]
        ]
        tokens = spread([run["tokens"][arm] for run in runs], 0)
        rows.append([title, shown(estimate(solved[arm])), *gains, tokens])
    over = ["minus plain play", "minus gate without feedback", "minus vote"]
    return ["sokoban", "success", *over, "tokens of an episode"], rows


def ranking(result: Any) -> Table:
    """Correlations of the critic's A by role."""
    rows = []
    for role in result["runs"][0]["ranks"]:
        of_role = [run["ranks"][role] for run in result["runs"]]
        names = ("return", "reward", "length", "passed")
        rows.append([role, *(spread([one[name] or 0.0 for one in of_role]) for name in names)])
    return ["ranks of A with", "the return", "the reward", "the length", "A at least 0"], rows


if __name__ == "__main__":
    main()
