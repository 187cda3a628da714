"""The records that cross a package border, one per stage, in the order in which data flows.

    Task -> observation -> Reply -> Candidate -> Group -> Sample -> loss

All are frozen: a later stage reads the record of an earlier one and never writes back. Token
ids and log-probabilities are those of sampling; text exists for the environment only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pettingllms.errors import GroupError


class Task(NamedTuple):
    """One problem instance: what `env.reset(seed=...)` turns into an episode."""

    id: str
    """Unique within a run, e.g. `coding:train:17`."""
    seed: int
    """Handed to `reset`; decides the instance completely."""


class GroupKey(NamedTuple):
    """Where in a rollout a decision was made. Estimators group by some of these fields."""

    task: str
    episode: int
    """0 in a tree rollout; the index of the parallel episode otherwise."""
    role: str
    turn: int
    parent: int
    """Decisions taken before this one in its episode: the depth of the node it hangs from."""
    state_hash: str
    """Digest of the prompt tokens, equal exactly where the role saw the same thing."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt for one policy."""

    policy: str
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a policy answered: the tokens it sampled and their log-probabilities."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """Sampled ids, the end-of-turn token included when `finished`."""
    logprobs: tuple[float, ...]
    """Natural log, one per token id, under the distribution that was sampled from."""
    text: str
    """Decoded reply without special tokens: what the environment is given."""
    finished: bool
    """False where the reply was cut at the token limit."""
    version: int
    """Version of the policy's weights that sampled it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reply and what it earned on its own copy of the environment."""

    reply: Reply
    reward: float
    """alpha * team_reward + local_reward."""
    team_reward: float
    local_reward: float
    chosen: bool
    """True for the candidate that was executed so that the episode goes on."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The environment's info of this step (success, parse_error, ...)."""


@dataclass(frozen=True, slots=True)
class Group:
    """The candidates that answered one prompt at one node, born with key and prompt.

    Raises:
        GroupError: the candidates do not all carry exactly `prompt_ids`, or were sampled from
            different versions of the policy, or there is none.
    """

    key: GroupKey
    policy: str
    prompt_ids: tuple[int, ...]
    candidates: tuple[Candidate, ...]

    def __post_init__(self) -> None:
        if not self.candidates:
            raise GroupError(f"group {self.key} has no candidates; sample at least one")
        for index, candidate in enumerate(self.candidates):
            if candidate.reply.prompt_ids != self.prompt_ids:
                raise GroupError(
                    f"candidate {index} of group {self.key} answered another prompt "
                    f"({len(candidate.reply.prompt_ids)} tokens, the group's has "
                    f"{len(self.prompt_ids)}); only replies to identical prompt tokens may share "
                    "a group"
                )
        versions = {candidate.reply.version for candidate in self.candidates}
        if len(versions) > 1:
            raise GroupError(
                f"group {self.key} mixes versions {sorted(versions)} of policy {self.policy!r}; "
                "publish new weights only between rollouts"
            )


@dataclass(frozen=True, slots=True)
class Sample:
    """What one policy is trained on: a reply, its advantage, and how often it was drawn."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    count: int = 1
    """Identical replies of a group have identical rewards; they are computed once."""
