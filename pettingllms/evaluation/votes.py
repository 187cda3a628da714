"""Majority votes: over the answers of several episodes of a task, or over what policies reply.

MALT (https://arxiv.org/abs/2412.01928, section 5) lets a team play a task three times and takes the answer
that most episodes end with, MV@3. A tie goes to the answer that was given first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pettingllms.grading import same
from pettingllms.rollout.trajectory import Trajectory

LEAST = 3
"""Of two votes the first always wins."""


def majority(votes: Sequence[str], alike: Callable[[str, str], bool]) -> int:
    """The index of the first vote of the largest class.

    Args:
        votes: in the order in which they were given, at least one.
        alike: whether two votes are for the same; compared with the first of each class.
    """
    classes: dict[int, int] = {}
    for at, vote in enumerate(votes):
        first = next((place for place in classes if alike(votes[place], vote)), at)
        classes[first] = classes.get(first, 0) + 1
    return max(classes, key=lambda place: (classes[place], -place))


def answer_of(episode: Trajectory) -> str | None:
    """The team's answer at the end, `answer` in the notes of an environment; None without one."""
    found = episode.groups[-1].chosen.info.get("answer") if episode.groups else None
    return None if found is None else str(found)


def voted(episodes: Sequence[Trajectory]) -> bool:
    """Returns whether the answer of most episodes of a task is right; False where none has any.

    Equal answers are found as a strict grader finds them, so that their order does not count, without a look at the reference.
    """
    voting = [each for each in episodes if answer_of(each) is not None]
    if not voting:
        return False
    answers = [answer_of(each) or "" for each in voting]
    # One of the class stands for it: answers that a grader takes for equal are right or wrong
    # together.
    return bool(
        voting[
            majority(answers, lambda one, two: one == two or same(one, two, strict=True))
        ].success
    )
