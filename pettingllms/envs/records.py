"""Records of `TextEnv`: what a reply leads to, a decision as it is kept, and a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# Raised when the fields change, so that an older snapshot is refused instead of misread.
SNAPSHOT_VERSION = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one reply: the next state and its scores."""

    state: Any
    team: float
    """Team reward of the reply; weighted with `alpha`."""
    local: float
    """Reward of the reply for its author only."""
    success: bool
    """Whether the task is solved now. The episode may go on."""
    done: bool = False
    """Whether the episode ends here, for example because the agents agree."""
    parse_error: str | None = None
    """Reason why the reply is unparsable; None if it is not."""
    others: Mapping[str, float] = field(default_factory=dict)
    """Late rewards for agents other than the author."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """More entries for `infos[agent]`; values must not be changed later."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Notes in the record of a run, for people; agents never see them."""


class Record(NamedTuple):
    """One decision of an episode, as kept in `TextEnv.transcript`."""

    turn: int
    agent: str
    text: str
    """The observation that the reply answered."""
    reply: str
    team: float
    local: float
    parse_error: str | None


class Snapshot(NamedTuple):
    """Everything that changes during an episode. Opaque and picklable; `restore` reads it."""

    version: int
    env: tuple[tuple[str, Any], ...]
    """The environment and its arguments."""
    fields: dict[str, Any] | None
    """None before the first `reset`."""

    def refusal(self, name: str, identity: tuple[tuple[str, Any], ...]) -> str | None:
        """Returns why the environment `name` cannot restore it: the first argument that differs.

        None if it can. An argument that is missing on one side counts as None.
        """
        theirs = dict((*self.env, ("format", self.version)))
        ours = dict((*identity, ("format", SNAPSHOT_VERSION)))
        differ = (key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key))
        if (first := next(differ, None)) is None:
            return None
        return (
            f"this snapshot cannot be restored into {name}: {first} was {theirs.get(first)!r:.200} "
            f"there and is {ours.get(first)!r:.200} here; make the environment with the same arguments"
        )
