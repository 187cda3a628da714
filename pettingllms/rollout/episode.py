"""Episodes in progress: the agent to act, the rewards of its completions, the record.

The environment may be any PettingZoo AEC environment with text (`pettingllms.envs.aec`).
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import random
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pettingzoo import AECEnv

from pettingllms.envs.aec import (
    StepResult,
    branch_env,
    clone_env,
    next_agent,
    observe_text,
    role_of,
    step_result,
)
from pettingllms.envs.base import TextEnv
from pettingllms.errors import NonFiniteError
from pettingllms.rollout.trajectory import Overlong, Trajectory
from pettingllms.types import Candidate, Completion, Group, GroupKey, Later, Task

AnyEnv = AECEnv[Any, Any, Any]
_RECORDED = frozenset({"team_reward", "local_reward", "turn"})
"""Entries of an info that the record holds as fields of its own."""


class Branch(NamedTuple):
    """A completion, and the copy of the environment that it stepped."""

    completion: Completion
    env: AnyEnv
    result: StepResult


class Episode:
    """An episode in progress: its copy of the environment, and its record."""

    def __init__(self, template: AnyEnv, task: Task, index: int) -> None:
        self.env, self.task, self.index = clone_env(template), task, index
        given = {} if task.options is None else {"options": dict(task.options)}
        self.env.reset(seed=reset_seed(self.env, task.seed), **given)
        self._groups: list[Group] = []
        self._turns: dict[str, int] = defaultdict(int)
        self._latest: dict[str, int] = {}
        """Agent -> index of its latest decision."""
        self._early: dict[str, float] = {}
        self._cooperative = False
        self._overlong: Overlong | None = None
        self.probe: tuple[int, int] | None = None
        """The decision and the candidate that it continues from, if it only looks ahead."""
        self._ahead = False
        self._probes: dict[tuple[int, str], Episode] = {}
        """Depth and text of a candidate that was not continued from -> what it leads to."""

    @property
    def depth(self) -> int:
        """Decisions taken so far."""
        return len(self._groups) + (0 if self.probe is None else self.probe[0] + 1)

    @property
    def agent(self) -> str | None:
        """The agent to act, or None when the episode is over. Steps terminated agents with None."""
        return next_agent(self.env)

    @property
    def over(self) -> bool:
        """Whether no agent is left to act, or a prompt was too long to go on."""
        return self._overlong is not None or self.agent is None

    @property
    def role(self) -> str:
        """The role of the agent to act."""
        return role_of(self.agent or "")

    def key(self, prompt_ids: tuple[int, ...]) -> GroupKey:
        """Identifies the pending decision, for the record and for estimators."""
        agent = self.agent or ""
        return GroupKey(
            task=self.task.id,
            episode=self.index,
            agent=agent,
            role=role_of(agent),
            turn=self._turns[agent],
            parent=self.depth,
            state_hash=f"{zlib.crc32(repr(prompt_ids).encode()):08x}",
        )

    def seed(self, *purpose: object) -> int:
        """Seed of everything random about the pending decision.

        It depends on `purpose` and on the place of the decision, never on what else is in progress.
        """
        own = (self.task.id, self.index, self.depth, *(self.probe or ()))
        place = "/".join(map(str, (*purpose, *own)))
        # Below 2**62, the bound of `Request.seed`.
        return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest()) >> 2

    def prompt(self) -> str:
        """The observation of the agent to act."""
        return observe_text(self.env, self.agent or "")

    def fork(self, branches: Sequence[Branch], chosen: int) -> list[Episode]:
        """Starts a probe from each other text among the candidates of the pending decision."""
        self._ahead, started = True, []
        for k, branch in enumerate(branches):
            place = self.depth, branch.completion.text
            if branch.completion.text == branches[chosen].completion.text or place in self._probes:
                continue  # equal texts lead to equal states
            probe = copy.copy(self)
            probe.env, probe.probe = clone_env(branch.env), (self.depth, k)
            probe._groups, probe._turns, probe._latest = [], defaultdict(int, self._turns), {}
            probe._early, probe._probes = dict(branch.result.others), {}
            probe._ahead = False
            self._probes[place] = probe
            started.append(probe)
        return started

    def advance(self, group: Group, branch: Branch) -> None:
        """Records a decision and continues from `branch`, its chosen candidate."""
        agent = group.key.agent
        self._turns[agent] += 1
        self._latest[agent] = len(self._groups)
        self._groups.append(group)
        # A late reward belongs to the decision that its agent took last. Before its first there is
        # none, but the return must have it.
        self._cooperative |= branch.result.cooperative
        for other, reward in branch.result.others.items():
            if other in self._latest:
                place = self._latest[other]
                late = self._groups[place].late_reward + reward
                self._groups[place] = replace(self._groups[place], late_reward=late)
            else:
                self._early[other] = self._early.get(other, 0.0) + reward
        self.env = branch.env

    def end_overlong(self, tokens: int, longest: int) -> None:
        """Ends the episode: its next prompt has `tokens` tokens, and `longest` are possible."""
        self._overlong = Overlong(self.agent or "", tokens, longest)

    def trajectory(self) -> Trajectory:
        """The record of the decisions so far."""
        # Every agent has a return, also one that never acted nor was paid.
        agents = {} if self._cooperative else dict.fromkeys(map(str, self.env.possible_agents), 0.0)
        early = {
            agent: paid
            for agent, paid in (agents | self._early).items()
            if agent not in self._latest or paid
        }
        return Trajectory.of(
            self.task,
            self.index,
            self._looking_ahead() if self._ahead else self._groups,
            early=early,
            cooperative=self._cooperative,
            overlong=self._overlong,
        )

    def _looking_ahead(self) -> list[Group]:
        """The decisions, with what each candidate led to (`Candidate.later`)."""
        found: list[Group] = []
        ahead: dict[str, float] = defaultdict(float)  # agent -> rewards from the next node on
        for depth, group in reversed(list(enumerate(self._groups))):
            agent, later = group.key.agent, []
            ahead[agent] += group.late_reward
            for candidate in group.candidates:
                probe = self._probes.get((depth, candidate.completion.text))
                found_out = ahead if probe is None else probe.trajectory().returns
                later.append(defaultdict(float, found_out))
            found.append(replace(group, candidates=self._with_later(depth, group, later)))
            agents = {agent, *(name for each in later for name in each)}
            ahead = defaultdict(
                float, {name: sum(each[name] for each in later) / len(later) for name in agents}
            )
            mean = sum(candidate.reward for candidate in group.candidates) / len(later)
            ahead[agent] += mean
        return found[::-1]

    def _with_later(
        self, depth: int, group: Group, later: Sequence[Mapping[str, float]]
    ) -> tuple[Candidate, ...]:
        spent: dict[str, int] = {}
        for (at, text), probe in self._probes.items():
            if at == depth:
                spent[text] = sum(
                    len(c.completion.token_ids) for g in probe._groups for c in g.candidates
                )
        shared = self._cooperative
        return tuple(
            replace(
                candidate,
                later=Later(
                    sum(each.values()) if shared else each[group.key.agent],
                    spent.pop(candidate.completion.text, 0),
                ),
            )
            for candidate, each in zip(group.candidates, later, strict=True)
        )


def score(episode: Episode, completions: Sequence[Completion]) -> list[Branch]:
    """Steps a copy of the environment with each completion; equal texts share one copy.

    Raises:
        NonFiniteError: the environment paid a reward that is not a finite number.
        SandboxUnavailable: the sandbox failed, which earns no reward.
    """
    agent = episode.agent or ""
    texts = list(dict.fromkeys(completion.text for completion in completions))
    played: dict[str, tuple[AnyEnv, StepResult]] = {}
    for text, env in zip(texts, branch_env(episode.env, texts), strict=True):
        result = step_result(env, agent)
        for paid, reward in ((agent, result.reward), *result.others.items()):
            if not math.isfinite(reward):
                raise NonFiniteError(
                    f"{env} paid {paid!r} a reward of {reward} in task {episode.task.id}, for the "
                    f"reply {text[:80]!r}; rewards must be finite numbers"
                )
        notes = env.unwrapped.notes if isinstance(env.unwrapped, TextEnv) else {}
        played[text] = (env, result._replace(info=plain_info({**result.info, **notes})))
    return [Branch(completion, *played[completion.text]) for completion in completions]


def plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Converts an info to what JSON reads back, without the entries that are fields of the record."""
    kept = {name: value for name, value in info.items() if name not in _RECORDED}
    found: dict[str, Any] = json.loads(json.dumps(plain(kept), default=_as_json))
    return found


def plain(value: Any) -> Any:
    """Replaces numbers that JSON does not know (NaN, infinity) in `value` by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(each) for each in value]
    return value


def _as_json(value: Any) -> Any:
    # NumPy's numbers and arrays become Python's.
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def reset_seed(env: AnyEnv, seed: int) -> int:
    """The seed that plays a task: of 32 bits, as `numpy.random.RandomState` needs it.

    Environments of this package take seeds of any size.
    """
    if isinstance(env.unwrapped, TextEnv) or 0 <= seed < 1 << 32:
        return seed
    return random.Random(seed).getrandbits(32)


def tasks_of_step(env: AnyEnv, name: str, step: int, count: int, seed: int) -> list[Task]:
    """Chooses the tasks of a step: fresh ones, or rows of a data set in a new order every epoch.

    An environment over a data set says how many rows it has in `num_tasks`. The ids of its tasks
    end with the epoch, because a row may occur twice in one step.
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
