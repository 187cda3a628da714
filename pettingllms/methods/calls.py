"""Calls: an episode in which one agent, the caller, has others do parts of the work.

A call is a run of decisions of one other agent between two of the caller's. An environment names its caller in
`metadata["caller"]`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from pettingllms.errors import ConfigError
from pettingllms.types import Group


def caller_of(env: Any) -> str:
    """The agent that calls the others.

    Raises:
        ConfigError: the environment does not name one.
    """
    caller = getattr(env, "metadata", {}).get("caller")
    if caller is None:
        raise ConfigError(f"{env} names no caller in its metadata, so nothing in it is a call")
    return str(caller)


def calls_of(decisions: Sequence[Group], caller: str) -> list[list[Group]]:
    """The calls of an episode, each its decisions, in the order of `decisions`."""
    # `groupby` begins anew at every change, so that two calls of one agent stay apart.
    runs = groupby(decisions, key=lambda group: group.key.agent)
    return [list(run) for agent, run in runs if agent != caller]


def by_episode(groups: Sequence[Group]) -> dict[tuple[str, int], list[Group]]:
    """Task and episode -> its decisions in order, the episodes in the order of `groups`."""
    episodes: dict[tuple[str, int], list[Group]] = defaultdict(list)
    for group in groups:
        episodes[group.key.task, group.key.episode].append(group)
    return {
        key: sorted(decisions, key=lambda group: group.key.parent)
        for key, decisions in episodes.items()
    }
