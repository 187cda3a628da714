"""Scores of episodes: means of each task, their 95 % intervals, pass@k.

Scores are computed from `Trajectory` alone, in memory or read back from trajectories.jsonl, and
from the candidate of every decision that the episode continued from.

Tasks are the unit of the statistics, never episodes: the episodes of one task are not independent
of each other. `pettingllms.statistics` has the intervals.

pass@k is the unbiased estimate of Chen et al. (arXiv 2107.03374, section 2.1): the chance that at
least one of k episodes, drawn without replacement from the n of the task, succeeds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pettingllms.errors import ConfigError
from pettingllms.grading import same
from pettingllms.rollout.files import verdict
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.statistics import Estimate, bootstrap, is_share, primary, wilson
from pettingllms.types import Group

TaskScores = Mapping[str, float]
"""Score -> its mean over the episodes of one task."""
FEWEST_VOTES = 3
"""Of two votes the first always wins."""
_SAME = 1e-9
"""Returns within this tolerance count as equal (float noise)."""
_COMMON = frozenset({"success", "parse_error", "difficulty"})
"""Entries of an info that have scores of their own."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scores of one line-up over a set of tasks; `pettingllms.evaluation` defines each."""

    roles: tuple[str, ...]
    tasks: int
    samples: int
    greedy: bool
    scores: Mapping[str, Estimate]
    values: TaskScores = field(default_factory=dict)
    """Task -> its primary score, for comparisons."""

    def __repr__(self) -> str:
        # One line in a notebook.
        scores = {
            name: self.scores[name].mean for name in ("success", "return") if name in self.scores
        }
        shown = "".join(f", {name} {mean:.2f}" for name, mean in scores.items())
        return f"Evaluation({self.tasks} tasks, {'greedy' if self.greedy else 'sampled'}{shown})"

    def row(self) -> dict[str, Any]:
        """One flat record: `eval/<score>`, `.../low`, `.../high`, and of what."""
        row: dict[str, Any] = {
            "roles": list(self.roles),
            "tasks": self.tasks,
            "samples": self.samples,
            "greedy": self.greedy,
            "values": dict(self.values),
        }
        for name, (mean, low, high) in self.scores.items():
            row |= {f"eval/{name}": mean, f"eval/{name}/low": low, f"eval/{name}/high": high}
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Evaluation:
        """The inverse of `row`; other entries are ignored."""
        names = [
            key.removesuffix("/low").removeprefix("eval/")
            for key in row
            if key.startswith("eval/") and key.endswith("/low")
        ]
        scores = {
            name: Estimate(*(row[f"eval/{name}{end}"] for end in ("", "/low", "/high")))
            for name in names
        }
        sizes = (row["tasks"], row["samples"], row["greedy"])
        # Runs of earlier versions have no values.
        return cls(tuple(row["roles"]), *sizes, scores, row.get("values", {}))


def summarise(
    episodes: Sequence[Trajectory], roles: Sequence[str], *, samples: int, greedy: bool, seed: int
) -> Evaluation:
    """The scores of episodes, with intervals over their tasks; `seed` is the bootstrap's."""
    by_task = scores_by_task(episodes)
    scores = intervals(list(by_task.values()), seed)
    main = primary(scores)
    values = {
        task: scores_of_task[main]
        for task, scores_of_task in by_task.items()
        if main in scores_of_task
    }
    return Evaluation(tuple(roles), len(by_task), samples, greedy, scores, values)


# -------------------------------------------------------------------------------------- statistics


def pass_at_k(episodes: int, successes: int, k: int) -> float:
    """The unbiased chance that one of `k` episodes succeeds, where `successes` of `episodes` did.

    Raises:
        ConfigError: not 1 <= k <= episodes, or not 0 <= successes <= episodes.
    """
    if not 1 <= k <= episodes or not 0 <= successes <= episodes:
        raise ConfigError(
            f"pass@{k} does not follow from {successes} successes in {episodes} episodes; roll "
            f"out at least {k}"
        )
    # `comb` is 0 where fewer than k episodes failed: then every choice of k has a success.
    return 1.0 - math.comb(episodes - successes, k) / math.comb(episodes, k)


def pass_at(episodes: int) -> list[int]:
    """Returns each k for which pass@k is reported: powers of two, and all episodes.

    pass@1 is the success.
    """
    powers = [1 << n for n in range(1, episodes.bit_length()) if 1 << n < episodes]
    return [*powers, episodes] if episodes > 1 else []


def intervals(tasks: Sequence[TaskScores], seed: int) -> dict[str, Estimate]:
    """Mean and 95 % interval of every score; tasks without a score are left out of it.

    `seed` is that of the bootstrap.
    """
    scores = {}
    for name in sorted({name for task in tasks for name in task}):
        values = np.array([task[name] for task in tasks if name in task])
        interval = wilson(values) if is_share(name) else bootstrap(values, seed)
        scores[name] = Estimate(float(values.mean()), *interval)
    return scores


# -------------------------------------------------------------------------------- scores of a task


def scores_by_task(episodes: Sequence[Trajectory]) -> dict[str, dict[str, float]]:
    """Returns the scores of each task: the means over its episodes.

    `pettingllms.evaluation` says what each score is.
    """
    # From all episodes, so that every task has the same scores and a mean is over all of them.
    facts = _Facts(
        reported=_reported(episodes),
        statuses=_statuses(episodes),
        contest=_is_contest(episodes),
        cooperative=any(episode.cooperative for episode in episodes),
        success=any(episode.success is not None for episode in episodes),
        overlong=any(episode.overlong is not None for episode in episodes),
        refused=bool(refusals(episodes)),
        answers=any(answer_of(episode) is not None for episode in episodes),
    )
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    for episode in episodes:
        by_task[episode.task.id].append(episode)
    return {task: _task_scores(its, facts) for task, its in by_task.items()}


def refusals(episodes: Iterable[Trajectory]) -> Counter[str]:
    """Role -> answers that a model behind an API refused, or that had no text."""
    groups = (group for episode in episodes for group in episode.groups)
    return Counter(group.key.role for group in groups if group.chosen.completion.refused)


class _Facts(NamedTuple):
    """Facts known from all episodes together, which decide the scores that each of them has."""

    reported: Mapping[str, Sequence[str]]
    """Role -> numbers that the environment reports of its first completions."""
    statuses: Mapping[str, Sequence[str]]
    """Role -> statuses with which programs in its completions ended."""
    contest: bool
    cooperative: bool
    success: bool
    """Whether the environment reports success."""
    overlong: bool
    """Whether a prompt without room ended any episode."""
    refused: bool
    """Whether a model behind an API refused any answer, or answered without a text."""
    answers: bool
    """Whether any episode ended with an answer that can be voted on."""


def _reported(episodes: Iterable[Trajectory]) -> dict[str, list[str]]:
    """Lists for each role the numbers that the environment reports of its first completions."""
    names: dict[str, set[str]] = defaultdict(set)
    for group in (group for episode in episodes for group in episode.groups if not group.key.turn):
        info = group.chosen.info
        names[group.key.role] |= {
            name for name in info.keys() - _COMMON if _number(info, name) is not None
        }
    return {role: sorted(role_keys) for role, role_keys in names.items()}


def _number(info: Mapping[str, Any], name: str) -> float | None:
    value = info.get(name)
    return float(value) if isinstance(value, int | float) else None


def _ended(info: Mapping[str, Any]) -> list[str]:
    """Returns the statuses with which the programs of a completion ended, if any ran."""
    statuses = info.get("statuses")
    return [str(status) for status in statuses] if isinstance(statuses, list) else []


def _statuses(episodes: Iterable[Trajectory]) -> dict[str, list[str]]:
    """Lists for each role the statuses with which programs in its completions ended."""
    names: dict[str, set[str]] = defaultdict(set)
    for group in (group for episode in episodes for group in episode.groups):
        names[group.key.role] |= set(_ended(group.chosen.info))
    return {role: sorted(words) for role, words in names.items()}


def _task_scores(episodes: Sequence[Trajectory], facts: _Facts) -> dict[str, float]:
    """Means over the episodes of one task."""
    values: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        _add_team_scores(values, episode, facts)
        _add_returns(values, episode, facts)
        for group in episode.groups:
            role = group.key.role
            _add_completion_scores(values, group, facts)
        for role, number in Counter(group.key.role for group in episode.groups).items():
            values[f"{role}/turns"].append(number)
    verdicts = values.get("success", [])
    # Only where every episode has a verdict, because k are drawn from all of them.
    for k in pass_at(len(episodes)) if len(verdicts) == len(episodes) else ():
        values[f"pass@{k}"] = [pass_at_k(len(episodes), int(sum(verdicts)), k)]
    if facts.answers and len(episodes) >= FEWEST_VOTES:
        values[f"maj@{len(episodes)}"] = [voted(episodes)]
    return {name: sum(numbers) / len(numbers) for name, numbers in sorted(values.items())}


def _add_team_scores(values: Mapping[str, list[float]], episode: Trajectory, facts: _Facts) -> None:
    groups = episode.groups
    values["decisions"].append(len(groups))
    values["turns"].append(max((group.key.turn + 1 for group in groups), default=0))
    chosen = [group.chosen for group in groups]
    tokens = [c.info.get("gate_tokens", len(c.completion.token_ids)) for c in chosen]
    values["tokens"].append(sum(tokens))
    if facts.overlong:
        values["overlong"].append(episode.overlong is not None)
    success = episode.success
    if episode.overlong is not None:
        success = verdict(success, facts.success)
    if success is not None:
        values["success"].append(success)
        if episode.task.size:
            values[f"env/{episode.task.size}/success"].append(success)
        if episode.difficulty is not None:
            values[f"difficulty/{episode.difficulty}/success"].append(success)


def _is_contest(episodes: Sequence[Trajectory]) -> bool:
    """Returns whether agents play against each other: what one gains, the others lose."""
    if any(episode.cooperative for episode in episodes):
        return False
    # An episode that ended early has not paid all that it would have.
    whole = [episode for episode in episodes if episode.overlong is None]
    totals = [sum(episode.returns.values()) for episode in whole]
    unequal = any(len(set(episode.returns.values())) > 1 for episode in episodes)
    return unequal and bool(totals) and max(totals) - min(totals) < _SAME


def _add_returns(values: Mapping[str, list[float]], episode: Trajectory, facts: _Facts) -> None:
    returns = episode.returns
    # An episode without any decision cannot say whether its agents share a return.
    if episode.cooperative or (facts.cooperative and not episode.groups):
        values["return"].append(sum(returns.values()))
        return
    for agent, value in returns.items():
        values[f"return/{agent}"].append(value)
    if facts.contest and returns and episode.overlong is None:
        best = max(returns.values())
        first = [agent for agent, value in returns.items() if value > best - _SAME]
        for agent in returns:
            values[f"win/{agent}"].append(first == [agent])
        values["draws"].append(len(first) > 1)


def _add_completion_scores(
    values: Mapping[str, list[float]],
    group: Group,
    facts: _Facts,
) -> None:
    role, chosen = group.key.role, group.chosen
    info, completion = chosen.info, chosen.completion
    values[f"{role}/reward"].append(chosen.reward)
    values[f"{role}/team_reward"].append(chosen.team_reward)
    values[f"{role}/local_reward"].append(chosen.local_reward)
    values[f"{role}/parse_error"].append(info.get("parse_error") is not None)
    if completion.token_ids:  # what a model behind an API wrote has none
        values[f"{role}/tokens"].append(len(completion.token_ids))
    values[f"{role}/truncated"].append(completion.truncated)
    if facts.refused:
        values[f"{role}/refused"].append(completion.refused)
    if ended := _ended(info):
        for status in facts.statuses[role]:
            values[f"{role}/status/{status}"].append(ended.count(status) / len(ended))
    if group.key.turn == 0:
        values[f"{role}/first_local_reward"].append(chosen.local_reward)
        for name in facts.reported[role]:
            # A completion that cannot be parsed reports nothing, and must not raise the mean by its
            # absence.
            values[f"{role}/first_{name}"].append(_number(info, name) or 0.0)


# ---------------------------------------------------------------------------------------- majority
# MALT (https://arxiv.org/abs/2412.01928, section 5) plays a task three times and takes the answer that most
# episodes end with, MV@3. A tie goes to the answer that was given first.


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
    answer = episode.groups[-1].chosen.info.get("answer") if episode.groups else None
    return None if answer is None else str(answer)


def voted(episodes: Sequence[Trajectory]) -> bool:
    """Returns whether the answer of most episodes of a task is right; False where none has any.

    Equal answers are found as a strict grader finds them, so that their order does not count, without a look at the reference.
    """
    voting = [
        (answer, episode) for episode in episodes if (answer := answer_of(episode)) is not None
    ]
    if not voting:
        return False
    answers = [answer for answer, _ in voting]
    # One of the class stands for it: equal answers are right or wrong together.
    chosen = majority(answers, lambda one, two: one == two or same(one, two, strict=True))
    return bool(voting[chosen][1].success)
