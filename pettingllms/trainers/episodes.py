"""Games in progress: which tasks a step plays, whose move it is, and what a reply earns.

The environment may be anybody's PettingZoo AEC environment with text (`pettingllms.envs.foreign`).
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pettingzoo import AECEnv

from pettingllms.envs.foreign import clone_env, next_agent, observe_text, role_of, step_scores
from pettingllms.types import GroupKey, Reply, Task

AnyEnv = AECEnv[Any, Any, Any]


class Episode:
    """A game in progress: the copy of the environment that goes on, and how deep it is."""

    def __init__(self, template: AnyEnv, task: Task, index: int) -> None:
        self.env, self.task, self.index = clone_env(template), task, index
        self.env.reset(seed=task.seed)
        self.depth = 0
        self._moves: dict[str, int] = defaultdict(int)

    @property
    def agent(self) -> str | None:
        """Who moves now; None once the episode is over. Passes for agents that are finished."""
        return next_agent(self.env)

    @property
    def role(self) -> str:
        """The role of the agent that moves now."""
        return role_of(self.agent or "")

    def key(self, prompt_ids: tuple[int, ...]) -> GroupKey:
        """Where in the rollout the decision that is due now stands."""
        return GroupKey(
            task=self.task.id,
            episode=self.index,
            role=self.role,
            turn=self._moves[self.agent or ""],
            parent=self.depth,
            state_hash=f"{zlib.crc32(repr(prompt_ids).encode()):08x}",
        )

    def prompt(self) -> str:
        """What the agent that moves now is shown."""
        return observe_text(self.env, self.agent or "")

    def go_on(self, env: AnyEnv) -> None:
        """Continue from `env`, a copy in which the agent to move has moved."""
        self._moves[self.agent or ""] += 1
        self.depth += 1
        self.env = env


class Scored(NamedTuple):
    """A reply, the copy of the environment that it was played on, and what it earned there."""

    reply: Reply
    env: AnyEnv
    team: float
    local: float
    reward: float
    info: Mapping[str, Any]


def score(episode: Episode, replies: Sequence[Reply]) -> list[Scored]:
    """Play each reply on a copy of its own. Equal texts share one copy: they earn the same."""
    agent = episode.agent or ""
    played: dict[str, Scored] = {}
    for reply in replies:
        if reply.text not in played:
            env = clone_env(episode.env)
            env.step(reply.text)
            team, local, reward, info = step_scores(env, agent)
            played[reply.text] = Scored(reply, env, team, local, reward, info)
    return [played[reply.text]._replace(reply=reply) for reply in replies]


def tasks_of_step(env: AnyEnv, name: str, step: int, count: int, seed: int) -> list[Task]:
    """Fresh tasks of a generator, or the rows of a data set, in a new order every epoch.

    An environment over a data set says how many rows it has in `num_tasks`.
    """
    tasks, rows = [], getattr(env.unwrapped, "num_tasks", None)
    for number in range(step * count, (step + 1) * count):
        # Runs with different seeds never share a task: the upper bits are the run's.
        task = (seed << 32) + number
        if rows is not None:
            epoch, place = divmod(number, rows)
            task = random.Random(f"{seed} epoch {epoch}").sample(range(rows), rows)[place]
        tasks.append(Task(f"{name}:{task}", task))
    return tasks
