"""Episodes in progress: the agent to act, the rewards of its completions, the record.

The environment may be any PettingZoo AEC environment with text (`pettingllms.envs.aec`).
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import random
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pettingzoo import AECEnv

from pettingllms.envs.aec import ForeignEnv
from pettingllms.envs.base import TextEnv, next_agent
from pettingllms.errors import NonFiniteError
from pettingllms.rollout.trajectory import Origin, Overlong, Trajectory, returns_of
from pettingllms.types import (
    Candidate,
    Completion,
    Group,
    GroupKey,
    Later,
    Task,
    Unplayed,
    role_of,
)

AnyEnv = AECEnv[Any, Any, Any]
PlayedEnv = TextEnv | ForeignEnv
"""What copies itself, is stepped with several replies at once, and has a text for each agent."""
Paid = Mapping[str, float]
"""Agent -> what it was paid at one decision."""
_RECORDED = frozenset({"team_reward", "local_reward", "turn"})
"""Entries of an info that the record holds as fields of its own."""


class StepResult(NamedTuple):
    """Rewards of a step: of the agent that took it, and of the others."""

    team: float
    local: float
    reward: float
    """`alpha * team + local` in environments of this package."""
    info: dict[str, Any]
    others: dict[str, float]
    """Other agent -> its reward for this step, where that is not 0."""
    cooperative: bool
    """Whether the environment reports a team reward, so that the agents share one return."""


class Branch(NamedTuple):
    """A completion, and the copy of the environment that it stepped."""

    completion: Completion
    env: PlayedEnv
    result: StepResult


class Episode:
    """An episode in progress: its copy of the environment, and its record."""

    def __init__(self, template: AnyEnv, task: Task, index: int) -> None:
        env = template if isinstance(template, TextEnv) else ForeignEnv(template)
        self.env: PlayedEnv = env.clone()
        self.task, self.index = task, index
        given = {} if task.options is None else {"options": dict(task.options)}
        self.env.reset(seed=reset_seed(self.env, task.seed), **given)
        self._groups: list[Group] = []
        self._turns: dict[str, int] = defaultdict(int)
        self._latest: dict[str, int] = {}
        """Agent -> index of its latest decision."""
        self._early: dict[str, float] = {}
        self._before: dict[str, float] = {}
        """Agent -> rewards on the way to where it left another episode."""
        self._cooperative = False
        self._overlong: Overlong | None = None
        self._unplayed: dict[str, Unplayed] = {}
        self.path: tuple[int, ...] = ()
        """Depth and candidate of each decision at which it left another episode."""
        self.probe = False
        """Whether it only looks ahead, and is no part of the record."""
        self._compares = False
        """Whether the record says what each candidate led to."""
        self._probes: dict[tuple[int, str], Episode] = {}
        """Index of a decision, and text of a candidate that was not continued from -> what it leads to."""
        self._forks: dict[tuple[int, int], Episode] = {}
        """Index of a decision, and of its candidate -> the episode that continues from it."""

    @property
    def depth(self) -> int:
        """Decisions taken so far."""
        # A fork has the decisions after its origin only; `path` ends with the origin's depth and
        # candidate.
        return len(self._groups) + (self.path[-2] + 1 if self.path else 0)

    @property
    def agent(self) -> str | None:
        """The agent to act, or None when the episode is over. Steps terminated agents with None."""
        return next_agent(self.env)

    @property
    def over(self) -> bool:
        """True if no agent is left to act, or a prompt was too long to continue."""
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
        own = (self.task.id, self.index, self.depth, *self.path)
        place = "/".join(map(str, (*purpose, *own)))
        # Below 2**62, the bound of `Request.seed`.
        return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest()) >> 2

    def prompt(self) -> str:
        """The observation of the agent to act."""
        return self.env.text_for(self.agent or "")

    def look_ahead(self, branches: Sequence[Branch], chosen: int) -> list[Episode]:
        """Starts a probe from each other text among the candidates of the pending decision."""
        self._compares = True
        for k, branch in enumerate(branches):
            place = len(self._groups), branch.completion.text
            # Equal texts lead to equal states.
            if branch.completion.text != branches[chosen].completion.text and (
                place not in self._probes
            ):
                self._probes[place] = self._leaving(branch, k)
                self._probes[place].probe = True
        return [probe for (at, _), probe in self._probes.items() if at == len(self._groups)]

    def fork(self, branches: Sequence[Branch], chosen: int) -> list[Episode]:
        """Starts an episode from each other candidate of the pending decision.

        Equal texts are continued from as often as they were sampled.
        """
        self._compares = True
        before, agent = returns_of(self._groups, self._early), self.agent or ""
        forks = {k: self._leaving(b, k) for k, b in enumerate(branches) if k != chosen}
        for k, fork in forks.items():
            branch = branches[k]
            # The fork's record begins after the candidate that it leaves from, but its return
            # includes what was paid up to there.
            fork._cooperative |= branch.result.cooperative
            fork._before = defaultdict(float, before)
            for name, paid in self._before.items():
                fork._before[name] += paid
            fork._before[agent] += branch.result.reward
            self._forks[len(self._groups), k] = fork
        return list(forks.values())

    def _leaving(self, branch: Branch, k: int) -> Episode:
        """An episode that continues from candidate `k` of the pending decision."""
        # A shallow copy shares every container with the original, so that all that change are made
        # anew.
        found = copy.copy(self)
        found.path = (*self.path, self.depth, k)
        # Equal texts were stepped on one copy, and each continuation needs its own.
        found.env = branch.env.clone()
        found._turns = defaultdict(int, self._turns)
        found._turns[self.agent or ""] += 1
        found._groups, found._latest, found._probes, found._forks = [], {}, {}, {}
        # In the new record the other agents have no decision yet that this could be a late reward
        # of.
        found._early, found._before = dict(branch.result.others), {}
        found._unplayed = {}
        found._compares = False
        return found

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

    def cut(self) -> dict[str, str]:
        """Agent -> the prompt that it would have answered next, if the limit on turns has just cut its chain.

        Where agents share one return, the next agent's alone. To be called before `agent`, which
        steps the agents out of a finished episode.
        """
        env, following = self.env, self.env.agent_selection
        ended = [following] if self._cooperative else list(env.agents)
        return {
            str(agent): env.text_for(agent)
            for agent in ended
            if env.truncations.get(agent, False) and not env.terminations.get(agent, False)
        }

    def end_cut(self, unplayed: Mapping[str, Unplayed]) -> None:
        """Records what would have come next in the chains that were cut."""
        self._unplayed = dict(unplayed)

    def end_overlong(self, tokens: int, longest: int) -> None:
        """Ends the episode: its next prompt has `tokens` tokens, and `longest` are possible."""
        self._overlong = Overlong(self.agent or "", tokens, longest)

    def decided(self) -> Trajectory:
        """A record of the latest decision alone, before its return and late rewards are known."""
        own = self._groups[-1:]
        return Trajectory.of(self.task, self.index, own, early={}, cooperative=self._cooperative)

    def trajectory(self, number: int | None = None, came_from: Origin | None = None) -> Trajectory:
        """The record of the decisions so far.

        Args:
            number: in place of `index`: a fork has a number of its own.
            came_from: the candidate that a fork continued from.
        """
        # Every agent has a return, also one that never acted nor was paid.
        agents = {} if self._cooperative else dict.fromkeys(map(str, self.env.possible_agents), 0.0)
        early = defaultdict(float, agents | self._early)
        for agent, paid in self._before.items():
            early[agent] += paid
        groups = self._following()[0] if self._compares else self._groups
        number = self.index if number is None else number
        if number != self.index:
            groups = [replace(g, key=g.key._replace(episode=number)) for g in groups]
        return Trajectory.of(
            self.task,
            number,
            groups,
            # An agent with a decision has a return from it, so that a 0 here would say nothing.
            early={a: paid for a, paid in early.items() if a not in self._latest or paid},
            cooperative=self._cooperative,
            overlong=self._overlong,
            came_from=came_from,
            unplayed=self._unplayed,
        )

    def forks(self) -> list[tuple[int, int, Episode]]:
        """Depth, candidate and episode of the forks that left this one, in that order."""
        start = self.depth - len(self._groups)
        return [(start + at, k, fork) for (at, k), fork in sorted(self._forks.items())]

    def _ahead(self) -> list[Paid]:
        """Returns what agents were paid at each decision, on average over its candidates."""
        return _with(self._following()[1], self._early)

    def _following(self) -> tuple[list[Group], list[Paid]]:
        """The decisions, with what each candidate led to, and what all of them were paid."""
        found: list[Group] = []
        ahead: list[Paid] = []  # from the next decision on
        # From the end, because what a decision led to is a mean over what its candidates led to.
        for at, group in reversed(list(enumerate(self._groups))):
            agent, later = group.key.agent, []
            # A late reward was paid after the decision, so that it belongs to what followed.
            ahead = _with(ahead, {agent: group.late_reward})
            for k, candidate in enumerate(group.candidates):
                left = self._forks.get((at, k)) or self._probes.get((at, candidate.completion.text))
                later.append(ahead if left is None else left._ahead())
            found.append(replace(group, candidates=self._with_later(at, group, later)))
            mean = sum(candidate.reward for candidate in group.candidates) / len(later)
            ahead = [{agent: mean}, *_mean(later)]
        return found[::-1], ahead

    def _with_later(
        self, depth: int, group: Group, later: Sequence[Sequence[Paid]]
    ) -> tuple[Candidate, ...]:
        spent: dict[str, int] = {}
        for (at, text), probe in self._probes.items():
            if at == depth:
                spent[text] = sum(
                    len(c.completion.token_ids) for g in probe._groups for c in g.candidates
                )
        agent, shared = group.key.agent, self._cooperative
        return tuple(
            replace(
                candidate,
                later=Later(
                    tuple(sum(p.values()) if shared else p.get(agent, 0.0) for p in each),
                    # Equal texts share one probe, whose tokens count once: `pop` leaves 0 to the
                    # others.
                    spent.pop(candidate.completion.text, 0),
                ),
            )
            for candidate, each in zip(group.candidates, later, strict=True)
        )


def _with(ahead: Sequence[Paid], more: Paid) -> list[Paid]:
    """`ahead` with `more` paid at its first decision."""
    if not any(more.values()):
        return list(ahead)
    first, rest = (ahead[0], ahead[1:]) if ahead else ({}, ())
    names = dict.fromkeys([*first, *more])
    return [{name: first.get(name, 0.0) + more.get(name, 0.0) for name in names}, *rest]


def _mean(several: Sequence[Sequence[Paid]]) -> list[Paid]:
    """The mean by decision and agent; what is over before the others was paid nothing more."""
    found: list[Paid] = []
    for each in itertools.zip_longest(*several, fillvalue={}):
        names = dict.fromkeys(name for paid in each for name in paid)
        found.append({name: sum(p.get(name, 0.0) for p in each) / len(each) for name in names})
    return found


def records(episodes: Sequence[Episode]) -> list[Trajectory]:
    """The records of finished episodes and their forks, each fork after the episode that it left.

    Forks are numbered after the task's other episodes. A candidate that ended its episode has
    no record beside that of its decision.
    """
    found: list[Trajectory] = []
    numbers: dict[str, int] = {}
    for episode in episodes:
        numbers[episode.task.id] = max(numbers.get(episode.task.id, 0), episode.index + 1)

    def add(episode: Episode, number: int, came_from: Origin | None) -> None:
        found.append(episode.trajectory(number, came_from))
        for depth, candidate, fork in episode.forks():
            if fork._groups:
                own = numbers[fork.task.id]
                numbers[fork.task.id] += 1
                add(fork, own, Origin(number, depth, candidate))

    for episode in episodes:
        add(episode, episode.index, None)
    return found


def score(episode: Episode, completions: Sequence[Completion]) -> list[Branch]:
    """Steps a copy of the environment with each completion; equal texts share one copy.

    Raises:
        NonFiniteError: the environment paid a reward that is not a finite number.
        SandboxUnavailable: the sandbox failed, which earns no reward.
    """
    agent = episode.agent or ""
    texts = list(dict.fromkeys(completion.text for completion in completions))
    played: dict[str, tuple[PlayedEnv, StepResult]] = {}
    # All texts in one call, so that an environment can run their programs together.
    ids = {completion.text: completion.token_ids for completion in reversed(completions)}
    twins: Sequence[PlayedEnv] = episode.env.branch(texts, [ids[text] for text in texts])
    for text, env in zip(texts, twins, strict=True):
        result = step_result(env, agent)
        for paid, reward in ((agent, result.reward), *result.others.items()):
            if not math.isfinite(reward):
                raise NonFiniteError(
                    f"{env} paid {paid!r} a reward of {reward} in task {episode.task.id}, for the "
                    f"reply {text[:80]!r}; rewards must be finite numbers"
                )
        notes = env.unwrapped._notes if isinstance(env.unwrapped, TextEnv) else {}
        played[text] = (env, result._replace(info=plain_info({**result.info, **notes})))
    return [Branch(completion, *played[completion.text]) for completion in completions]


def step_result(env: AnyEnv, agent: str) -> StepResult:
    """Reads the rewards of the step that `agent` just took; to be called before the next step.

    The parts come from `infos[agent]` where it has `team_reward` and `local_reward`, as in every
    `TextEnv`. Elsewhere the whole reward is local.
    """
    # Copied: the environment may reuse its dicts in the next step.
    reward, info = float(env.rewards[agent]), dict(env.infos[agent])
    team = float(info.get("team_reward", 0.0))
    local = float(info.get("local_reward", reward))
    others = {
        str(other): float(paid) for other, paid in env.rewards.items() if other != agent and paid
    }
    shared = getattr(env.unwrapped, "share_team_reward", False)
    return StepResult(team, local, reward, info, others, "team_reward" in info and not shared)


def plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Converts an info to what JSON reads back, without the entries that are fields of the record."""
    kept = {name: value for name, value in info.items() if name not in _RECORDED}
    # Through JSON and back, so that a record in memory equals the one that is read from the file.
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
            # By seed and epoch alone, so that a resumed run finds the same order without a state.
            orders[epoch] = random.Random(f"{seed} epoch {epoch}").sample(range(rows), rows)
        row = orders[epoch][place]
        tasks.append(Task(f"{name}:{row}:{epoch}", row))
    return tasks
