"""`Trajectory`: the record of an episode, and its line of `trajectories.jsonl`.

`pettingllms.rollout.files` describes the line. What is computed here from a record is the same
whether the episode was just played or read back, except for log-probabilities.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from pettingllms.errors import ConfigError
from pettingllms.rollout.files import FORMAT, CandidateRow, DecisionRow
from pettingllms.types import (
    Advantage,
    Candidate,
    Completion,
    Group,
    GroupKey,
    Later,
    Task,
    Unplayed,
)


class Overlong(NamedTuple):
    """A prompt that left no room for a completion in the model's context."""

    agent: str
    prompt_tokens: int
    longest: int
    """Largest number of tokens that a prompt may have."""


class Origin(NamedTuple):
    """The candidate that a fork continued from."""

    episode: int
    """Episode of the same task."""
    depth: int
    candidate: int


class Without(NamedTuple):
    """The end of a copy of the episode in which all replies of some agents were blank."""

    blanked: tuple[str, ...]
    """Agents, in the order in which they were first blanked. Their copy left that of all but the last."""
    outcome: float
    """`Trajectory.outcome` of the copy."""
    tokens: int
    """Tokens generated in the copy, in addition to those of the record."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode: the decisions along it, each with its candidates."""

    task: Task
    episode: int
    groups: tuple[Group, ...]
    """Decisions in order; `Group.episode_return` is set."""
    cooperative: bool = False
    """Whether the agents share one return, as in every environment with a team reward."""
    early: Mapping[str, float] = field(default_factory=dict)
    """Agent -> its rewards before its first decision."""
    overlong: Overlong | None = None
    """The prompt that ended the episode before the environment did."""
    came_from: Origin | None = None
    """Origin of a fork in another episode; `early` then has the rewards before it."""
    without: tuple[Without, ...] = ()
    """Ends of copies with blanked agents, each after the copy that it left."""

    @classmethod
    def of(
        cls,
        task: Task,
        episode: int,
        groups: Iterable[Group],
        *,
        early: Mapping[str, float],
        cooperative: bool,
        overlong: Overlong | None = None,
        came_from: Origin | None = None,
        unplayed: Mapping[str, Unplayed] = MappingProxyType({}),
        without: Iterable[Without] = (),
    ) -> Self:
        """Makes the record of an episode, with its return in every decision.

        `unplayed` has the next prompt of each agent if the limit on turns ended the episode. It goes to the
        last decision of the team, or of each agent with a return of its own.
        """
        drafts = _with_unplayed(list(groups), unplayed, cooperative=cooperative)
        returns = returns_of(drafts, early)
        shared = sum(returns.values()) if cooperative else 0.0
        before: dict[str, float] = defaultdict(float, early)
        done = []
        for group in drafts:
            agent = group.key.agent
            done.append(
                replace(
                    group,
                    earlier=sum(before.values()) if cooperative else before[agent],
                    episode_return=shared if cooperative else returns[agent],
                    cooperative=cooperative,
                )
            )
            before[agent] += group.chosen.reward + group.late_reward
        ends = tuple(without)
        return cls(task, episode, tuple(done), cooperative, dict(early), overlong, came_from, ends)

    @property
    def success(self) -> bool | None:
        """True if the team had succeeded at the end; None if the environment does not report it.

        False if the episode ended at a prompt without room.
        """
        success = self.groups[-1].chosen.info.get("success") if self.groups else None
        return None if success is None else bool(success) and self.overlong is None

    @property
    def outcome(self) -> float:
        """Outcome of the last decision (`outcome_of`); 0 after a prompt without room."""
        ended = self.groups and self.overlong is None
        return outcome_of(self.groups[-1].chosen) if ended else 0.0

    @property
    def difficulty(self) -> str | None:
        """`difficulty` in the info of the first completion, where the environment gives one."""
        difficulty = self.groups[0].chosen.info.get("difficulty") if self.groups else None
        return None if difficulty is None else str(difficulty)

    @property
    def returns(self) -> dict[str, float]:
        """Agent -> the rewards that it was paid in the episode, at any agent's step."""
        return returns_of(self.groups, self.early)

    def row(self, **labels: Any) -> dict[str, Any]:
        """The record as a line of JSON has it, headed by `labels`."""
        row = {
            "format": FORMAT,
            **labels,
            "task": self.task.id,
            "seed": self.task.seed,
            "episode": self.episode,
            "success": self.success,
            "cooperative": self.cooperative,
            "returns": self.returns,
        }
        rare = {
            "size": self.task.size,
            "early": dict(self.early),
            "overlong": self.overlong and self.overlong._asdict(),
            "came_from": self.came_from and self.came_from._asdict(),
            "without": [w._asdict() for w in self.without],
        }
        row |= {name: value for name, value in rare.items() if value}
        return row | {"decisions": [_decision(group) for group in self.groups]}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """The inverse of `row`, except for log-probabilities, which are not written.

        Raises:
            KeyError, TypeError: not a row of a trajectory.
            ValueError: the row has another format.
        """
        if row["format"] != FORMAT:
            raise ValueError(f"format {row['format']}, this version reads {FORMAT}")
        task = Task(row["task"], row["seed"], size=row.get("size", ""))
        groups = [_group(task, row["episode"], decision) for decision in row["decisions"]]
        return cls.of(
            task,
            row["episode"],
            groups,
            early=row.get("early", {}),
            cooperative=row["cooperative"],
            overlong=Overlong(**row["overlong"]) if "overlong" in row else None,
            came_from=Origin(**row["came_from"]) if "came_from" in row else None,
            without=[
                Without(tuple(w["blanked"]), w["outcome"], w["tokens"])
                for w in row.get("without", ())
            ],
        )


def outcome_of(candidate: Candidate) -> float:
    """The outcome of an episode that ended with this reply: F1 where answers have one, else success."""
    info = candidate.info
    return float(info["f1"]) if "f1" in info else float(bool(info.get("success")))


def _with_unplayed(
    groups: list[Group], unplayed: Mapping[str, Unplayed], *, cooperative: bool
) -> list[Group]:
    # A later decision overwrites an earlier one of its chain, so that the last one stays.
    chains = {"" if cooperative else group.key.agent: at for at, group in enumerate(groups)}
    for agent, prompt in unplayed.items():
        at = chains.get("" if cooperative else agent)
        if at is not None:
            groups[at] = replace(groups[at], unplayed=prompt)
    return groups


def in_order(trajectories: Sequence[Trajectory]) -> list[Group]:
    """All decisions, by depth: the first of every episode, then the second of every one."""
    groups = [group for trajectory in trajectories for group in trajectory.groups]
    return sorted(groups, key=lambda group: group.key.parent)


def with_advantages(
    trajectories: Sequence[Trajectory],
    groups: Sequence[Group],
    values: Sequence[Advantage],
) -> list[Trajectory]:
    """The records with `values` as the advantages of the candidates of `groups`, in order.

    Rewards stay as they were paid; what `groups` have instead is what a candidate was credited with.
    """
    # Values come in the order of `groups`, which may have left decisions out and is sorted by
    # depth.
    following = iter(values)
    credits = {g.key: [(next(following), c.reward) for c in g.candidates] for g in groups}

    def credited(group: Group) -> Group:
        if group.key not in credits:
            return group
        pairs = zip(group.candidates, credits[group.key], strict=True)
        candidates = [
            replace(c, advantage=value, credited=None if reward == c.reward else reward)
            for c, (value, reward) in pairs
        ]
        return replace(group, candidates=tuple(candidates))

    return [replace(record, groups=tuple(map(credited, record.groups))) for record in trajectories]


def success_rate(trajectories: Sequence[Trajectory]) -> float | None:
    """Share of episodes at whose end the team has succeeded; None where none of them says.

    Where the best of K is executed at every step, this is above what single completions reach:
    `mean_success` and the validations say that.
    """
    outcomes = [trajectory.success for trajectory in trajectories if trajectory.success is not None]
    return sum(outcomes) / len(outcomes) if outcomes else None


def success_of_each(trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    """Success by `Task.size`, as `success_rate` has it, of several environments."""
    by_size = defaultdict[str, list[Trajectory]](list)
    for trajectory in trajectories:
        by_size[trajectory.task.size].append(trajectory)
    return {f"env/{name}/success": success_rate(by_size[name]) for name in sorted(by_size) if name}


def mean_success(trajectories: Sequence[Trajectory]) -> float | None:
    """Share of the last decision's candidates that succeed, a mean over episodes; None as above."""
    outcomes = [
        [bool(c.info.get("success")) for c in trajectory.groups[-1].candidates]
        for trajectory in trajectories
        if trajectory.success is not None and trajectory.groups
    ]
    return sum(sum(flags) / len(flags) for flags in outcomes) / len(outcomes) if outcomes else None


def outcome_is_late(trajectories: Sequence[Trajectory]) -> bool:
    """Returns whether nothing but the last decisions of episodes earned anything.

    A comparison of what candidates earn right away then says nothing about earlier decisions.
    """
    early = [g for trajectory in trajectories for g in trajectory.groups[:-1]]
    last = [g for trajectory in trajectories for g in trajectory.groups[-1:]]
    paid = [any(c.reward > 0 for c in group.candidates) for group in early]
    return bool(early) and not any(paid) and any(c.reward > 0 for g in last for c in g.candidates)


def returns_of(groups: Sequence[Group], early: Mapping[str, float]) -> dict[str, float]:
    """Agent -> the rewards of decisions that were continued from, and what it was paid before them."""
    returns: dict[str, float] = defaultdict(float, early)
    # Only the chosen candidates happened; the others were played on copies.
    for group in groups:
        returns[group.key.agent] += group.chosen.reward + group.late_reward
    return dict(returns)


def _decision(group: Group) -> DecisionRow:
    key = group.key
    row: DecisionRow = {
        "agent": key.agent,
        "role": key.role,
        "policy": group.policy,
        "version": group.candidates[0].completion.version,
        "turn": key.turn,
        "depth": key.parent,
        "state_hash": key.state_hash,
        "prompt": group.prompt,
        "prompt_ids": list(group.prompt_ids),
        "late_reward": group.late_reward,
        "candidates": [_candidate(candidate) for candidate in group.candidates],
    }
    if group.unplayed is not None:
        policy, prompt_ids = group.unplayed
        row["unplayed"] = {"policy": policy, "prompt_ids": list(prompt_ids)}
    return row


def _candidate(candidate: Candidate) -> CandidateRow:
    completion = candidate.completion
    row: CandidateRow = {
        "completion": completion.text,
        "token_ids": list(completion.token_ids),
        "truncated": completion.truncated,
        "logprob": sum(completion.logprobs) if completion.logprobs else None,
        "reward": candidate.reward,
        "team_reward": candidate.team_reward,
        "local_reward": candidate.local_reward,
        "advantage": candidate.advantage,
        "chosen": candidate.chosen,
        "info": dict(candidate.info),
    }
    if completion.refused:
        row["refused"] = True
    if candidate.credited is not None:
        row["credited"] = candidate.credited
    if candidate.later is not None:
        later = candidate.later
        row["later"] = {
            "reward": later.reward,
            "tokens": later.tokens,
            "rewards": list(later.rewards),
        }
    return row


def _group(task: Task, episode: int, row: DecisionRow) -> Group:
    prompt_ids = tuple(row["prompt_ids"])
    key = GroupKey(
        task=task.id,
        episode=episode,
        agent=row["agent"],
        role=row["role"],
        turn=row["turn"],
        parent=row["depth"],
        state_hash=row["state_hash"],
    )
    candidates = tuple(
        Candidate(
            completion=Completion(
                prompt_ids=prompt_ids,
                token_ids=tuple(candidate["token_ids"]),
                logprobs=(),
                text=candidate["completion"],
                truncated=candidate["truncated"],
                version=row["version"],
                refused=candidate.get("refused", False),
            ),
            reward=candidate["reward"],
            team_reward=candidate["team_reward"],
            local_reward=candidate["local_reward"],
            chosen=candidate["chosen"],
            info=candidate["info"],
            advantage=_advantage(candidate["advantage"]),
            later=_later(candidate["later"]) if "later" in candidate else None,
            credited=candidate.get("credited"),
        )
        for candidate in row["candidates"]
    )
    cut = row.get("unplayed")
    return Group(
        key,
        row["policy"],
        row["prompt"],
        prompt_ids,
        candidates,
        late_reward=row["late_reward"],
        unplayed=None if cut is None else Unplayed(cut["policy"], tuple(cut["prompt_ids"])),
    )


def _later(row: Mapping[str, Any]) -> Later:
    # Earlier versions wrote the sum alone.
    return Later(tuple(row.get("rewards", [row["reward"]])), row["tokens"])


def _advantage(value: Any) -> Advantage | None:
    return tuple(value) if isinstance(value, list) else value


def check_room(episodes: Sequence[Trajectory], max_new_tokens: int) -> None:
    """Refuses to score episodes of which none could begin.

    Raises:
        ConfigError: every first prompt leaves too little room in the model's context.
    """
    if episodes and all(record.overlong is not None and not record.groups for record in episodes):
        raise ConfigError(f"there is nothing to score: {overlong_note(episodes, max_new_tokens)}")


def overlong_note(episodes: Sequence[Trajectory], max_new_tokens: int) -> str:
    """States which episodes a prompt without room ended, and what to do; empty where there are none."""
    cut = [record for record in episodes if record.overlong is not None]
    prompts = [record.overlong for record in cut if record.overlong is not None]
    if not prompts:
        return ""
    agent, tokens, longest = prompts[0]
    context = longest + max_new_tokens
    room = context - max(prompt.prompt_tokens for prompt in prompts)
    lower = f"lower --max-completion-length to {room} or less, " if room > 0 else ""
    return (
        f"{len(cut)} of {len(episodes)} episodes ended early, as no success, because a prompt and "
        f"a completion of up to {max_new_tokens} tokens exceed the model's context of {context}: "
        f"the first is task {cut[0].task.id}, where {agent} is asked with {tokens} tokens; "
        f"{lower}choose a --model with a longer context, or arguments of the environment with which "
        "its prompts are shorter"
    )
