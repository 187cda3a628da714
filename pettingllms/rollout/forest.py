"""Forests: who used a reply of an episode that forks, and what flows back from there."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from pettingllms.rollout.trajectory import Origin, Trajectory
from pettingllms.types import Group

Place = tuple[str, int, int, int]
"""Task, episode, depth, and index of a candidate."""


def place_of(group: Group, k: int) -> Place:
    """Names candidate `k` of a decision."""
    return group.key.task, group.key.episode, group.key.parent, k


def used_by(trajectories: Sequence[Trajectory]) -> dict[Hashable, list[Place]]:
    """Maps each reply to the replies that used it, which may be none."""
    forks = {
        (fork.task.id, fork.came_from): fork for fork in trajectories if fork.came_from is not None
    }
    uses: dict[Hashable, list[Place]] = {}
    for trajectory in trajectories:
        for at, group in enumerate(trajectory.groups):
            # The first chosen candidate is continued in this record, the other chosen ones in forks
            # of it.
            first = next(k for k, c in enumerate(group.candidates) if c.chosen)
            for k, candidate in enumerate(group.candidates):
                origin = Origin(trajectory.episode, group.key.parent, k)
                following = trajectory.groups[at + 1 : at + 2] if k == first else ()
                if k != first and candidate.chosen and (trajectory.task.id, origin) in forks:
                    following = forks[trajectory.task.id, origin].groups[:1]
                uses[place_of(group, k)] = [
                    place_of(users, n) for users in following for n in range(len(users.candidates))
                ]
    return uses


def flowing(
    users: Mapping[Hashable, Sequence[Hashable]], outcomes: Mapping[Hashable, float]
) -> dict[Hashable, float]:
    """S of every reply.

    Args:
        users: reply -> the replies that used it.
        outcomes: of the replies that nobody used.
    """
    shares = dict(outcomes)
    waiting = [place for place in users if place not in shares]
    while waiting:
        # Users come later in an episode: with the latest first, few rounds are needed.
        ready = [p for p in reversed(waiting) if all(user in shares for user in users[p])]
        for place in ready:
            shares[place] = sum(shares[user] for user in users[place]) / len(users[place])
        waiting = [place for place in waiting if place not in shares]
    return shares
