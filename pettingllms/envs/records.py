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
    """Reward that the reply earned the team; weighted with `alpha`."""
    local: float
    """Reward that the reply earned its author alone."""
    success: bool
    """Whether the task is solved now. Says nothing about the end of the episode."""
    done: bool = False
    """Whether the environment ends the episode here, e.g. because the agents agree."""
    parse_error: str | None = None
    """Reason why the reply could not be read; None where it could."""
    others: Mapping[str, float] = field(default_factory=dict)
    """Rewards that it earned agents other than its author: they are late rewards of theirs."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """More entries for `infos[agent]`; values must not be changed later."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """For the record of a run alone, and so for people: no agent is shown them, also not by its infos."""


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
    """The environment and the arguments that it must have been made with."""
    fields: dict[str, Any] | None
    """None before the first `reset`."""

    def refusal(self, name: str, identity: tuple[tuple[str, Any], ...]) -> str | None:
        """Says why the environment `name` cannot continue it: the first argument in which it differs.

        None where it can. An argument that one side lacks, as it was added later, counts as None.
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
