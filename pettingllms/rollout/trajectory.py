"""`Trajectory`: the record of an episode, and its line of `trajectories.jsonl`.

Training and evaluation write the same lines, `FORMAT` 1; keys that only one of them has are marked:

    format          1
    step            training: the step, counted from 1
    team            evaluation: the line-up that played
    task, seed      the task's id, and the seed that `reset` was given
    episode         which of the task's parallel episodes
    success         of the team at the end; null where the environment does not say
    cooperative     whether the agents share one return
    returns         agent -> its return, late rewards included
    early           agent -> rewards paid to it before its first decision; absent if none
    overlong        the prompt that ended the episode because it left no room for a completion:
                    agent, prompt_tokens, longest; absent where there was none
    decisions       in order; for each
        agent, role, policy, version    of the policy's weights
        turn            decisions that this agent took before
        depth           decisions that were taken before, by all agents
        state_hash      equal exactly where the prompt tokens are
        prompt          the observation, without the chat template
        prompt_ids      the prompt's tokens, chat template included
        late_reward     paid to the agent at other agents' steps, after this decision
        candidates      the completions that were sampled; for each
            completion      its text
            token_ids       its tokens, the end-of-turn token included
            truncated       whether it was cut at the token limit
            logprob         sum over its tokens, in nats; null in a record that was read back
            reward          alpha * team_reward + local_reward
            team_reward, local_reward
            advantage       training: a number, or one for each token; null where not compared
            chosen          whether the episode continued from it
            info            what else the environment said: success, parse_error, statuses, ...
            later           look-ahead trees: what followed, as reward and tokens generated to find out

Scores of an evaluation are computed from these records alone, so a file that is read back has the
scores that it had when it was played. Log-probabilities token by token are not written: they
would be most of the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from pettingllms.types import Advantage, Candidate, Completion, Group, GroupKey, Later, Task

FORMAT = 1


class Overlong(NamedTuple):
    """A prompt that left no room for a completion in the model's context."""

    agent: str
    prompt_tokens: int
    longest: int
    """Most tokens that a prompt could have had."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode: the decisions along it, each with its candidates."""

    task: Task
    episode: int
    groups: tuple[Group, ...]
    """Decisions in order; `Group.episode_return` is set."""
    cooperative: bool = False
    """Whether the agents share one return, as in every environment that pays a team reward."""
    early: Mapping[str, float] = field(default_factory=dict)
    """Agent -> rewards that it was paid before its first decision."""
    overlong: Overlong | None = None
    """The prompt that ended the episode before the environment did."""

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
    ) -> Self:
        """Completes the record of an episode: every decision learns its episode's return."""
        drafts = tuple(groups)
        own = _returns(drafts, early)
        shared = sum(own.values()) if cooperative else 0.0
        done = tuple(
            replace(
                group,
                episode_return=shared if cooperative else own[group.key.agent],
                cooperative=cooperative,
            )
            for group in drafts
        )
        return cls(task, episode, done, cooperative, dict(early), overlong)

    @property
    def success(self) -> bool | None:
        """Whether the team had succeeded at the end; None where the environment does not say.

        An episode that a prompt without room ended is no success.
        """
        success = self.groups[-1].chosen.info.get("success") if self.groups else None
        return None if success is None else bool(success) and self.overlong is None

    @property
    def difficulty(self) -> str | None:
        """`difficulty` in the info of the first completion, where the environment gives one."""
        found = self.groups[0].chosen.info.get("difficulty") if self.groups else None
        return None if found is None else str(found)

    @property
    def returns(self) -> dict[str, float]:
        """Agent -> the rewards that it was paid in the episode, at any agent's step."""
        return _returns(self.groups, self.early)

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
        early = {"early": dict(self.early)} if self.early else {}
        overlong = {} if self.overlong is None else {"overlong": self.overlong._asdict()}
        return row | early | overlong | {"decisions": [_decision(group) for group in self.groups]}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """The inverse of `row`, except for log-probabilities, which are not written.

        Raises:
            KeyError, TypeError: not a row of a trajectory.
            ValueError: the row has another format.
        """
        if row["format"] != FORMAT:
            raise ValueError(f"format {row['format']}, this version reads {FORMAT}")
        task = Task(row["task"], row["seed"])
        groups = [_group(task, row["episode"], decision) for decision in row["decisions"]]
        return cls.of(
            task,
            row["episode"],
            groups,
            early=row.get("early", {}),
            cooperative=row["cooperative"],
            overlong=Overlong(**row["overlong"]) if "overlong" in row else None,
        )


def in_order(trajectories: Sequence[Trajectory]) -> list[Group]:
    """All decisions, by depth: the first of every episode, then the second of every one."""
    groups = [group for trajectory in trajectories for group in trajectory.groups]
    return sorted(groups, key=lambda group: group.key.parent)


def with_advantages(
    trajectories: Sequence[Trajectory],
    groups: Sequence[Group],
    values: Sequence[Advantage],
) -> list[Trajectory]:
    """The records with `values` as the advantages of the candidates of `groups`, in order."""
    following = iter(values)
    credited = {
        group.key: replace(
            group,
            candidates=tuple(replace(c, advantage=next(following)) for c in group.candidates),
        )
        for group in groups
    }
    return [
        replace(each, groups=tuple(credited.get(group.key, group) for group in each.groups))
        for each in trajectories
    ]


def success_rate(trajectories: Sequence[Trajectory]) -> float | None:
    """Share of episodes at whose end the team has succeeded; None where none of them says.

    Where the best of K is executed at every step, this is above what single completions reach:
    `success/<role>` and the validations say that.
    """
    known = [each.success for each in trajectories if each.success is not None]
    return sum(known) / len(known) if known else None


def outcome_is_late(trajectories: Sequence[Trajectory]) -> bool:
    """Whether nothing but the last decisions of episodes earned anything.

    A comparison of what candidates earn right away then says nothing about earlier decisions.
    """
    early = [g for each in trajectories for g in each.groups[:-1]]
    last = [g for each in trajectories for g in each.groups[-1:]]
    paid = [any(c.reward > 0 for c in group.candidates) for group in early]
    return bool(early) and not any(paid) and any(c.reward > 0 for g in last for c in g.candidates)


def _returns(groups: Sequence[Group], early: Mapping[str, float]) -> dict[str, float]:
    returns: dict[str, float] = defaultdict(float, early)
    # Only the chosen candidates happened; the others were played on copies.
    for group in groups:
        returns[group.key.agent] += group.chosen.reward + group.late_reward
    return dict(returns)


def _decision(group: Group) -> dict[str, Any]:
    key = group.key
    return {
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


def _candidate(candidate: Candidate) -> dict[str, Any]:
    completion = candidate.completion
    return {
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
    } | ({} if candidate.later is None else {"later": candidate.later._asdict()})


def _group(task: Task, episode: int, row: Mapping[str, Any]) -> Group:
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
                token_ids=tuple(each["token_ids"]),
                logprobs=(),
                text=each["completion"],
                truncated=each["truncated"],
                version=row["version"],
            ),
            reward=each["reward"],
            team_reward=each["team_reward"],
            local_reward=each["local_reward"],
            chosen=each["chosen"],
            info=each["info"],
            advantage=_advantage(each["advantage"]),
            later=Later(**each["later"]) if "later" in each else None,
        )
        for each in row["candidates"]
    )
    return Group(
        key, row["policy"], row["prompt"], prompt_ids, candidates, late_reward=row["late_reward"]
    )


def _advantage(value: Any) -> Advantage | None:
    return tuple(value) if isinstance(value, list) else value
