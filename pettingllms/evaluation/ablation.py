"""Who needs whom: the table at the end of every training run with several adapters.

The same held-out tasks are played by the base model alone, by all trained policies, by each trained
policy beside the base, and by policies that are exchanged between the roles. A rise from base to all
says that the team gained; only the other rows say whose learning it was. Differences are paired by task.

Adapters are switched off by setting their second matrix to zero, so nothing is loaded again. Full models
and runs on Ray have no such table; `pettingllms-eval --swap` works for those as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pettingllms.evaluation.chunks import Sampling, chunks
from pettingllms.evaluation.compare import Comparison, paired, together
from pettingllms.evaluation.report import as_markdown, as_text, interval, signed
from pettingllms.evaluation.rollouts import Verdicts, roll_out
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.episode import AnyEnv
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.types import Task

STAR = "* where the interval leaves out 0 and the exact test has p < 0.05 after Holm's correction"
FEWEST = 10
"""Held-out tasks below which such a table decides nothing, and is left out."""
EXCHANGED = "exchanged"
SCORES = ("success", "return")
"""The first that an environment reports is compared."""


class RoleTeam(NamedTuple):
    """A team of the table."""

    title: str
    trained: Collection[str]
    """Policies whose adapters are on."""
    played: Mapping[str, str]
    """Policy -> the one that plays in its place."""


@dataclass(frozen=True, slots=True)
class RoleTable:
    """The comparison of a run's policies."""

    score: str
    policies: Sequence[str]
    rows: Mapping[str, Comparison]
    """Team -> the team of all trained policies against it."""

    def table(self) -> list[list[str]]:
        """Rows of cells, for `as_text` and `as_markdown`."""
        every = all_of(self.policies)
        cells = [["team", "", self.score, f"{every} minus this"]]
        for title, row in self.rows.items():
            gain = "" if title == every else signed(row.differences[self.score])
            cells.append([title, "", interval(row.means[self.score][0]), gain])
        return cells

    def verdict(self) -> str:
        """One sentence about whose learning the team's success needs; for teams of two policies."""
        if len(self.policies) != 2:
            return ""
        first, second = self.policies
        # Without a role's policy the team is that of the other one alone.
        needed = [
            role
            for role, other in ((first, second), (second, first))
            if (short := self.rows[only(other)].differences[self.score]).clear and short.mean > 0
        ]
        if len(needed) == 2:
            return f"The team needs what both learned: without {first} or {second} it does worse."
        if needed:
            [other] = {first, second} - {*needed}
            return f"The team needs what {needed[0]} learned; what {other} learned made no clear difference."
        return "No policy made a clear difference by itself on these tasks."

    def text(self) -> str:
        """The table and the sentence, for a terminal."""
        return f"{as_text(self.table())}\n{self.notes()}"

    def markdown(self) -> str:
        """The same in Markdown."""
        plain = [[row[0], *row[2:]] for row in self.table()]
        return f"{as_markdown(plain)}\n\n{self.notes()}\n"

    def notes(self) -> str:
        """What the table's numbers are of, and the verdict."""
        tasks = self.rows[all_of(self.policies)].tasks
        sizes = f"{tasks} held-out tasks, sampled, paired; {STAR}"
        return "\n".join(filter(None, [sizes, self.verdict()]))

    def record(self) -> dict[str, Any]:
        """The table as JSON has it."""
        every = all_of(self.policies)
        rows = {
            title: {
                "mean": list(row.means[self.score][0]),
                "less": None if title == every else row.differences[self.score].row(),
            }
            for title, row in self.rows.items()
        }
        return {"score": self.score, "tasks": self.rows[every].tasks, "teams": rows}


def compare_roles(
    env: AnyEnv,
    policies: PolicySet,
    trained: Sequence[str],
    *,
    tasks: Sequence[Task],
    sampling: Sampling,
    scoring_threads: int = 16,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> RoleTable | None:
    """Plays the same tasks with every team of `role_teams`; None if the team has no common score.

    Args:
        env: of the tasks' split.
        policies: adapters; they are as before when this returns or raises.
        trained: those that learned; at least two.
        tasks: which every team plays.
        sampling: how completions are drawn.
        scoring_threads: prompts whose completions are scored at the same time.
        on_progress: called with finished and all episodes before every batch; may raise to stop.
    """
    teams = role_teams(trained)
    total, done = len(teams) * len(tasks) * sampling.samples, 0
    episodes: dict[str, list[Trajectory]] = {}
    with ThreadPoolExecutor(scoring_threads) as pool:
        for team in teams:
            players = {str(agent): policies.policy_for(str(agent)) for agent in env.possible_agents}
            seats = {agent: team.played.get(policy, policy) for agent, policy in players.items()}
            trajectories: list[Trajectory] = []

            # Bound as defaults, because the loop gives these names other values later.
            def on_batch(
                over: Verdicts, done: int = done, trajectories: list[Trajectory] = trajectories
            ) -> None:
                on_progress(done + len(trajectories) + len(over), total)

            with switched_off(policies, [name for name in trained if name not in team.trained]):
                for chunk in chunks(tasks, sampling):
                    trajectories += roll_out(env, policies, seats, pool, chunk, sampling, on_batch)
            episodes[team.title] = trajectories
            done += len(trajectories)
    on_progress(total, total)
    every = all_of(trained)
    pairs = {
        title: paired(trajectories, episodes[every], (title, every), sampling.seed)
        for title, trajectories in episodes.items()
    }
    itself = pairs.pop(every)
    # The rows are one family of tests.
    tested = dict(zip(pairs, together(list(pairs.values())), strict=True))
    rows = {title: tested.get(title, itself) for title in episodes}
    common = (s for s in SCORES if all(s in row.differences for row in rows.values()))
    score = next(common, None)
    return None if score is None else RoleTable(score, tuple(trained), rows)


def role_teams(trained: Sequence[str]) -> list[RoleTeam]:
    """The teams of the table: base, each trained policy alone, all, and all exchanged."""
    ring = dict(zip(trained, [*trained[1:], trained[0]], strict=True))
    return [
        RoleTeam("base", (), {}),
        *(RoleTeam(only(name), (name,), {}) for name in trained),
        RoleTeam(all_of(trained), trained, {}),
        RoleTeam(EXCHANGED, trained, ring),
    ]


def only(policy: str) -> str:
    """The title of the team in which one trained policy plays beside the base."""
    return f"only {policy}"


def all_of(policies: Sequence[str]) -> str:
    """The title of the team of all trained policies."""
    return "both" if len(policies) == 2 else "all"


@contextlib.contextmanager
def switched_off(policies: PolicySet, names: Sequence[str]) -> Iterator[None]:
    """Has these adapters answer as the base model does, until the end of the block."""
    states = {name: policies.state(name) for name in names}
    try:
        for name, state in states.items():
            # The product of an adapter's two matrices is what it adds.
            off = {k: torch.zeros_like(t) if "lora_B" in k else t for k, t in state.items()}
            policies.load_state(name, off)
        yield
    finally:
        for name, state in states.items():
            policies.load_state(name, state)
