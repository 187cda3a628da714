"""The records of an episode, how its seed stream runs, and what a snapshot of it holds.

Used by `TextEnv` (base.py), where the contract is explained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pettingllms.errors import CloneError

SNAPSHOT_VERSION = 1

_VALUES = (
    "agent_selection",
    "task_seed",
    "transcript",
    "turn",
    "_skip_agent_selection",
    "_state",
    "_stream",
)
_CONTAINERS = ("agents", "rewards", "terminations", "truncations", "_cumulative_rewards")

SET_BY_RESET = frozenset({*_VALUES, *_CONTAINERS, "infos", "num_agents"} - {"_stream"})
"""Attributes of a `TextEnv` that do not exist before its first `reset`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one reply led to: the next state and its scores."""

    state: Any
    team: float
    """What the reply earned for the team; weighed with `alpha`."""
    local: float
    """What the reply earned its author alone."""
    success: bool
    """Whether the task now stands solved. Says nothing about the end of the episode."""
    done: bool = False
    """True where the environment ends the episode by itself (e.g. by agreement)."""
    parse_error: str | None = None
    """Why the reply could not be read; None where it could."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """More entries for `infos[agent]`; values must not be changed later."""


class Record(NamedTuple):
    """One decision of an episode, as kept in `TextEnv.transcript`."""

    turn: int
    agent: str
    text: str
    """What the agent was shown."""
    reply: str
    team: float
    local: float
    parse_error: str | None


class Snapshot(NamedTuple):
    """Everything that changes during an episode. Opaque and picklable; `TextEnv` reads it."""

    version: int
    env: tuple[Any, ...]
    """Name and configuration of the environment that it fits."""
    fields: dict[str, Any] | None
    """None before the first `reset`."""


def step_info(
    team: float, local: float, success: bool, error: str | None, turn: int
) -> dict[str, Any]:
    """The entries that every `infos[agent]` has."""
    return {
        "team_reward": team,
        "local_reward": local,
        "success": success,
        "parse_error": error,
        "turn": turn,
    }


def stream_seed(seed: int, episode: int) -> int:
    """Task seed of the `episode`-th reset of the stream that `reset(seed=seed)` opened.

    Episode 0 is `seed` itself; later ones are 48-bit digests, equal on every machine, so that
    streams with neighbouring seeds do not play each other's tasks.
    """
    if episode == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{episode}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")


def take(attributes: Mapping[str, Any], env: tuple[Any, ...]) -> Snapshot:
    """A snapshot of an environment's attributes that shares nothing changeable with them."""
    if "_state" not in attributes:
        return Snapshot(SNAPSHOT_VERSION, env, None)
    fields = {name: attributes[name] for name in _VALUES}
    _copy_containers(attributes, fields)
    return Snapshot(SNAPSHOT_VERSION, env, fields)


def put_back(snapshot: Snapshot, attributes: dict[str, Any], env: tuple[Any, ...]) -> None:
    """Makes an environment's attributes what they were when `snapshot` was taken.

    Raises:
        CloneError: the snapshot is of another environment, configuration or version.
    """
    if snapshot.version != SNAPSHOT_VERSION or snapshot.env != env:
        raise CloneError(
            f"a snapshot of {snapshot.env} (format {snapshot.version}) cannot be restored into "
            f"{env} (format {SNAPSHOT_VERSION}); restore it into an environment that was made with "
            "the same arguments"
        )
    if snapshot.fields is None:
        for name in SET_BY_RESET:
            attributes.pop(name, None)
        attributes["_stream"] = None
        return
    attributes.update(snapshot.fields)
    _copy_containers(snapshot.fields, attributes)


def _copy_containers(source: Mapping[str, Any], target: dict[str, Any]) -> None:
    for name in _CONTAINERS:
        target[name] = source[name].copy()
    target["infos"] = {agent: info.copy() for agent, info in source["infos"].items()}
