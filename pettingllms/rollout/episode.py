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
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pettingzoo import AECEnv

from pettingllms.envs.aec import ForeignEnv
from pettingllms.envs.base import TextEnv, next_agent
from pettingllms.envs.several import SeveralEnvs
from pettingllms.errors import NonFiniteError
from pettingllms.names import role_of
from pettingllms.rollout.trajectory import (
    Origin,
    Overlong,
    Trajectory,
    Without,
    outcome_of,
    returns_of,
)
from pettingllms.samplers.base import Memory
from pettingllms.types import Candidate, Completion, Group, GroupKey, Later, Task, Unplayed

AnyEnv = AECEnv[Any, Any, Any]
PlayedEnv = TextEnv | ForeignEnv
"""An environment that supports cloning, batched steps, and per-agent text."""
Rewards = Mapping[str, float]
"""Rewards by agent at one decision."""
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
        if task.size:
            template = getattr(template.unwrapped, "drawn_sizes")[task.size]  # noqa: B009
        env = template if isinstance(template, TextEnv) else ForeignEnv(template)
        self.env: PlayedEnv = env.clone()
        self.task, self.index = task, index
        options = {} if task.options is None else {"options": dict(task.options)}
        self.env.reset(seed=reset_seed(self.env, task.seed), **options)
        self.groups: list[Group] = []
        self._turns: dict[str, int] = defaultdict(int)
        self._latest: dict[str, int] = {}
        """Agent -> index of its latest decision."""
        self.early: dict[str, float] = {}
        self.others: list[Rewards] = []
        """What each decision paid the agents that did not take it."""
        self.cooperative = False
        self._overlong: Overlong | None = None
        self.unplayed: dict[str, Unplayed] = {}
        """Agent -> what would have come next in its chain, if that was cut."""
        self.path: tuple[int, ...] = ()
        """Depth and candidate of each decision at which it left another episode."""
        self.probe = False
        """True for look-ahead probes, which are not recorded."""
        self.blanked: tuple[str, ...] = ()
        """Agents whose replies are blank, in a copy that is not recorded either."""
        self._copies: list[Episode] = []
        self._left_at = 0
        """Decisions that a copy shares with the episode that it left."""
        self.branching = Branching(self)
        self.memories = defaultdict[str, Memory](Memory)
        """Agent -> what the sampler keeps of its conversation."""

    @property
    def depth(self) -> int:
        """Decisions taken so far."""
        # A fork has the decisions after its origin only; `path` ends with the origin's depth and
        # candidate.
        return len(self.groups) + (self.path[-2] + 1 if self.path else 0)

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
        decision = (self.task.id, self.index, self.depth, *self.path)
        place = "/".join(map(str, (*purpose, *decision)))
        # Below 2**62, the bound of `Request.seed`.
        return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest()) >> 2

    def prompt(self) -> str:
        """The observation of the agent to act."""
        return self.env.text_for(self.agent or "")

    def privileged(self) -> str:
        """What the environment knows of the task and does not tell the agent to act."""
        tell = getattr(self.env, "privileged_for", None)
        return "" if tell is None else str(tell(self.agent or ""))

    def demonstration(self) -> str:
        """What the environment's solver would reply in place of the agent to act."""
        return str(getattr(self.env, "demonstration_for")(self.agent or ""))  # noqa: B009 - of no protocol

    def leaving(self, branch: Branch, k: int) -> Episode:
        """Returns an episode that continues from candidate `k` of the pending decision."""
        # Equal texts were stepped on one copy, and each continuation needs its own.
        other = self._copied(branch.env.clone())
        other.path = (*self.path, self.depth, k)
        other._turns[self.agent or ""] += 1
        # In the new record the other agents have no decision yet that this could be a late reward
        # of.
        other.groups, other._latest, other.early = [], {}, dict(branch.result.others)
        other.others, other.branching.origin = [], branch.result.others
        return other

    def without(self) -> Episode:
        """Returns a copy in which all replies of the agent to act are blank.

        Its decisions have the seeds of the episode's, so a difference is due to the agent alone.
        """
        other = self._copied(self.env.clone())
        other.blanked = (*self.blanked, self.agent or "")
        other._left_at = len(self.groups)
        self._copies.append(other)
        return other

    def _copied(self, env: PlayedEnv) -> Episode:
        """Returns a copy that continues in `env` and starts without copies and probes."""
        other = copy.copy(self)
        # A shallow copy shares its containers, so those that change are replaced.
        other.env, other.groups, other.others = env, [*self.groups], [*self.others]
        other._turns, other._latest = defaultdict(int, self._turns), {**self._latest}
        other.early, other.unplayed = {**self.early}, {}
        other.branching, other._copies = Branching(other), []
        # Copies remember the same prompts, and part with their next ones.
        memories = {agent: copy.copy(memory) for agent, memory in self.memories.items()}
        other.memories = defaultdict(Memory, memories)
        return other

    def _ends_without(self) -> Iterator[Without]:
        for copied in self._copies:
            last = copied.groups[-1].chosen
            tokens = [len(g.chosen.completion.token_ids) for g in copied.groups[copied._left_at :]]
            outcome = 0.0 if copied._overlong else outcome_of(last)
            yield Without(copied.blanked, outcome, sum(tokens))
            yield from copied._ends_without()

    def advance(self, group: Group, branch: Branch) -> None:
        """Records a decision and continues from `branch`, its chosen candidate."""
        agent = group.key.agent
        self._turns[agent] += 1
        self._latest[agent] = len(self.groups)
        self.groups.append(group)
        self.others.append(branch.result.others)
        # A late reward belongs to the decision that its agent took last. Before its first there is
        # none, but the return must have it.
        self.cooperative |= branch.result.cooperative
        for other, reward in branch.result.others.items():
            if other in self._latest:
                place = self._latest[other]
                late = self.groups[place].late_reward + reward
                self.groups[place] = replace(self.groups[place], late_reward=late)
            else:
                self.early[other] = self.early.get(other, 0.0) + reward
        self.env = branch.env

    def cut(self) -> dict[str, str]:
        """Agent -> the prompt that it would have answered next, if the limit on turns has just cut its chain.

        Where agents share one return, the next agent's alone. To be called before `agent`, which
        steps the agents out of a finished episode.
        """
        env, following = self.env, self.env.agent_selection
        ended = [following] if self.cooperative else list(env.agents)
        return {
            str(agent): env.text_for(agent)
            for agent in ended
            if env.truncations.get(agent, False) and not env.terminations.get(agent, False)
        }

    def end_overlong(self, tokens: int, longest: int) -> None:
        """Ends the episode: its next prompt has `tokens` tokens, and `longest` are possible."""
        self._overlong = Overlong(self.agent or "", tokens, longest)

    def trajectory(self, number: int | None = None, came_from: Origin | None = None) -> Trajectory:
        """The record of the decisions so far.

        Args:
            number: in place of `index`: a fork has a number of its own.
            came_from: the candidate that a fork continued from.
        """
        # Every agent has a return, also one that never acted nor was paid.
        agents = {} if self.cooperative else dict.fromkeys(map(str, self.env.possible_agents), 0.0)
        early = defaultdict(float, agents | self.early)
        for agent, reward in self.branching.before.items():
            early[agent] += reward
        groups = self.branching.compared()
        number = self.index if number is None else number
        if number != self.index:
            groups = [replace(g, key=g.key._replace(episode=number)) for g in groups]
        return Trajectory.of(
            self.task,
            number,
            groups,
            # An agent with a decision has a return from it, so that a 0 here would say nothing.
            early={a: paid for a, paid in early.items() if a not in self._latest or paid},
            cooperative=self.cooperative,
            overlong=self._overlong,
            came_from=came_from,
            unplayed=self.unplayed,
            without=self._ends_without(),
        )


def records(episodes: Sequence[Episode]) -> list[Trajectory]:
    """The records of finished episodes and their forks, each fork after the episode that it left.

    Forks are numbered after the task's other episodes. A candidate that ended its episode has
    no record beside that of its decision.
    """
    trajectories: list[Trajectory] = []
    numbers: dict[str, int] = {}
    for episode in episodes:
        numbers[episode.task.id] = max(numbers.get(episode.task.id, 0), episode.index + 1)

    def add(episode: Episode, number: int, came_from: Origin | None) -> None:
        trajectories.append(episode.trajectory(number, came_from))
        for depth, candidate, fork in episode.branching.in_order():
            if fork.groups:
                fork_number = numbers[fork.task.id]
                numbers[fork.task.id] += 1
                add(fork, fork_number, Origin(number, depth, candidate))

    for episode in episodes:
        add(episode, episode.index, None)
    return trajectories


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
    entries: dict[str, Any] = json.loads(json.dumps(plain(kept), default=_as_json))
    return entries


def plain(value: Any) -> Any:
    """Replaces numbers that JSON does not know (NaN, infinity), nor statistics (integers of 400 digits), in `value` by None."""
    if isinstance(value, float) or (isinstance(value, int) and abs(value) > sys.float_info.max):
        return value if abs(value) <= sys.float_info.max else None
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(entry) for entry in value]
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
    end with the epoch, because a row may occur twice in one step. `name` heads the ids; of several
    environments, each name heads those of its own tasks.
    """
    if isinstance(several := env.unwrapped, SeveralEnvs):
        parts = several.parts.items()
        by_name = {key: tasks_of_step(one, key, step, count, seed) for key, one in parts}
        drawn = several.drawn(step, count, seed)
        return [by_name[key][place]._replace(size=key) for place, key in enumerate(drawn)]
    # What is sampled follows from the ids, so that the folder of an environment of one's own must not be in them.
    name = re.sub(r"[^:]*/", "", name)
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


# ----------------------------------------------------------------------------------- branching
# Probes look ahead, and forks continue from other candidates.


@dataclass(eq=False)
class Branching:
    """The probes and forks that left an episode, and what its candidates led to."""

    episode: Episode
    before: dict[str, float] = field(default_factory=dict)
    """Agent -> rewards on the way to where the episode itself left another one."""
    origin: Rewards = field(default_factory=dict)
    """What the decision at which it left another one paid the agents that did not take it."""
    _compares: bool = False
    """Whether the record says what each candidate led to."""
    _probes: dict[tuple[int, str], Episode] = field(default_factory=dict)
    """Index of a decision, and text of a candidate that was not continued from -> its probe."""
    _forks: dict[tuple[int, int], Episode] = field(default_factory=dict)
    """Index of a decision, and of its candidate -> the episode that continues from it."""

    def look_ahead(self, branches: Sequence[Branch], chosen: int) -> list[Episode]:
        """Starts a probe from each other text among the candidates of the pending decision."""
        self._compares = True
        at = len(self.episode.groups)
        for k, branch in enumerate(branches):
            place = at, branch.completion.text
            # Equal texts lead to equal states.
            if branch.completion.text != branches[chosen].completion.text and (
                place not in self._probes
            ):
                self._probes[place] = self.episode.leaving(branch, k)
                self._probes[place].probe = True
        return [probe for (index, _), probe in self._probes.items() if index == at]

    def fork(self, branches: Sequence[Branch], chosen: int) -> list[Episode]:
        """Starts an episode from each other candidate of the pending decision.

        Equal texts are continued from as often as they were sampled.
        """
        self._compares = True
        episode, agent = self.episode, self.episode.agent or ""
        earlier = returns_of(episode.groups, episode.early)
        forks = {k: episode.leaving(b, k) for k, b in enumerate(branches) if k != chosen}
        for k, fork in forks.items():
            # The fork's record begins after the candidate that it leaves from, but its return
            # includes the rewards up to there.
            before = defaultdict(float, earlier)
            for name, reward in self.before.items():
                before[name] += reward
            before[agent] += branches[k].result.reward
            fork.branching.before = before
            fork.cooperative |= branches[k].result.cooperative
            self._forks[len(episode.groups), k] = fork
        return list(forks.values())

    def in_order(self) -> list[tuple[int, int, Episode]]:
        """Depth, candidate, and episode of the forks, in that order."""
        start = self.episode.depth - len(self.episode.groups)
        return [(start + at, k, fork) for (at, k), fork in sorted(self._forks.items())]

    def compared(self) -> list[Group]:
        """The episode's decisions, annotated with what each candidate led to if that was played."""
        return self._following()[0] if self._compares else self.episode.groups

    def _following(self) -> tuple[list[Group], list[Rewards]]:
        """Returns the decisions annotated with candidate returns, and the rewards per decision."""
        episode = self.episode
        groups: list[Group] = []
        ahead: list[Rewards] = []  # from the next decision on
        # From the end, because what a decision led to is a mean over what its candidates led to.
        for at, group in reversed(list(enumerate(episode.groups))):
            paid, later = [], []
            for k, candidate in enumerate(group.candidates):
                left = self._forks.get((at, k)) or self._probes.get((at, candidate.completion.text))
                later.append(ahead if left is None else left.branching._following()[1])
                # Others are paid by the candidate, too: what the chosen one paid them is one of K values.
                others = episode.others[at] if left is None else left.branching.origin
                paid.append([{group.key.agent: candidate.reward, **others}])
            groups.append(replace(group, candidates=self._with_later(at, group, later)))
            ahead = [*_mean(paid), *_mean(later)]
        return groups[::-1], ahead

    def _with_later(
        self, at: int, group: Group, later: Sequence[Sequence[Rewards]]
    ) -> tuple[Candidate, ...]:
        spent: dict[str, int] = {}
        for (index, text), probe in self._probes.items():
            if index == at:
                spent[text] = sum(
                    len(c.completion.token_ids) for g in probe.groups for c in g.candidates
                )
        agent, shared = group.key.agent, self.episode.cooperative
        return tuple(
            replace(
                candidate,
                later=Later(
                    tuple(sum(r.values()) if shared else r.get(agent, 0.0) for r in rewards),
                    # Equal texts share one probe, whose tokens count once: `pop` leaves 0 to the
                    # others.
                    spent.pop(candidate.completion.text, 0),
                ),
            )
            for candidate, rewards in zip(group.candidates, later, strict=True)
        )


def _mean(several: Sequence[Sequence[Rewards]]) -> list[Rewards]:
    """The mean by decision and agent; episodes that ended before the others count 0."""
    means: list[Rewards] = []
    for decision in itertools.zip_longest(*several, fillvalue={}):
        names = dict.fromkeys(name for rewards in decision for name in rewards)
        means.append({n: sum(r.get(n, 0.0) for r in decision) / len(decision) for n in names})
    return means
