"""Games in progress: which tasks a step plays, whose move it is, and what a reply earns.

The environment may be anybody's PettingZoo AEC environment with text (`pettingllms.envs.foreign`).
"""

from __future__ import annotations

import math
import random
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pettingzoo import AECEnv

from pettingllms.envs.foreign import (
    branch_env,
    clone_env,
    next_agent,
    observe_text,
    role_of,
    step_scores,
)
from pettingllms.errors import NonFiniteError
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
    """Play each reply on a copy of its own. Equal texts share one copy: they earn the same.

    Raises:
        NonFiniteError: the environment paid a reward that is not a finite number.
        SandboxUnavailable: the sandbox failed; that is nobody's reward.
    """
    agent = episode.agent or ""
    texts = list(dict.fromkeys(reply.text for reply in replies))
    played: dict[str, Scored] = {}
    for text, env in zip(texts, branch_env(episode.env, texts), strict=True):
        team, local, reward, info = step_scores(env, agent)
        if not math.isfinite(reward):
            raise NonFiniteError(
                f"{env} paid {agent!r} a reward of {reward} in task {episode.task.id}, for the "
                f"reply {text[:80]!r}; rewards must be finite numbers"
            )
        played[text] = Scored(replies[0], env, team, local, reward, info)
    return [played[reply.text]._replace(reply=reply) for reply in replies]


def tasks_of_step(env: AnyEnv, name: str, step: int, count: int, seed: int) -> list[Task]:
    """Fresh tasks of a generator, or the rows of a data set, in a new order every epoch.

    An environment over a data set says how many rows it has in `num_tasks`. The ids of its tasks
    end with the epoch, because a row may be played twice in one step.
    """
    numbers = range(step * count, (step + 1) * count)
    rows = getattr(env.unwrapped, "num_tasks", None)
    if rows is None:
        # Runs with different seeds never share a task: the upper bits are the run's.
        seeds = [(seed << 32) + number for number in numbers]
        return [Task(f"{name}:{task}", task) for task in seeds]
    tasks, orders = [], dict[int, list[int]]()
    for epoch, place in (divmod(number, rows) for number in numbers):
        if epoch not in orders:
            orders[epoch] = random.Random(f"{seed} epoch {epoch}").sample(range(rows), rows)
        row = orders[epoch][place]
        tasks.append(Task(f"{name}:{row}:{epoch}", row))
    return tasks
