"""Paired comparison of two evaluations on the same tasks.

Pairing removes the differences in difficulty between tasks, which are most of the variance: the
interval of the difference is narrower than the two intervals side by side suggest.

Where both have several samples of a task, tasks are also compared by whether at least one of the first k
samples solves them: preserved (both), expansion (only the second), shrinkage (only the first). Where RL
sharpens, the first sample gets better and no task is gained at large k. The counts and their ratio are those
of https://arxiv.org/abs/2510.01571.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.evaluation.folder import read_settings, read_trajectories
from pettingllms.evaluation.scores import Evaluation, intervals, scores_by_task
from pettingllms.rollout.files import verdict
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.statistics import (
    Difference,
    Estimate,
    corrected,
    differences,
    is_share,
    over_seeds,
    paired_difference,
    primary,
    tango,
)

SAME = ("env", "data", "split")
"""Settings that must agree for tasks of the same number to be the same task."""

_SHOWN_OTHERWISE = {"teams", "tasks", "dataset", "adapter_digests", "model_digest"}


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: its settings and the episodes of each of its line-ups."""

    name: str
    settings: Mapping[str, Any]
    episodes: Mapping[str, Sequence[Trajectory]]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which tasks two line-ups solve within k samples."""

    k: int
    preserved: int
    expansion: int
    """Tasks that only the second solves."""
    shrinkage: int
    """Tasks that only the first solves."""
    neither: int
    low: float
    high: float
    """95 % score interval of (expansion - shrinkage) / tasks."""

    @property
    def ratio(self) -> float:
        """Expansion over shrinkage: 0 where both are 0, infinite where only shrinkage is."""
        if not self.shrinkage:
            return math.inf if self.expansion else 0.0
        return self.expansion / self.shrinkage

    def row(self) -> dict[str, Any]:
        """The record as JSON has it."""
        ratio = self.ratio if math.isfinite(self.ratio) else None
        names = ("k", "preserved", "expansion", "shrinkage", "neither", "low", "high")
        return {name: getattr(self, name) for name in names} | {"ratio": ratio}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line-up of each side, on the tasks of both."""

    first: str
    second: str
    roles: tuple[str, ...]
    tasks: int
    alone: int
    """Tasks of only one side; they are left out."""
    means: Mapping[str, tuple[Estimate, Estimate]]
    differences: Mapping[str, Difference]
    """Second minus first, for every score that both have."""
    coverage: tuple[Coverage, ...] = ()
    """Which tasks each side solves within k samples; empty for one sample of each."""

    @property
    def primary(self) -> str | None:
        """The score that decides."""
        return primary(self.differences)

    def row(self) -> dict[str, Any]:
        """The record as JSON has it."""
        scores = {
            name: {
                "first": self.means[name][0]._asdict(),
                "second": self.means[name][1]._asdict(),
                "difference": difference.row(),
            }
            for name, difference in self.differences.items()
        }
        head = {"first": self.first, "second": self.second, "tasks": self.tasks}
        covered = {"coverage": [record.row() for record in self.coverage]} if self.coverage else {}
        more = {"alone": self.alone, "primary": self.primary, "scores": scores}
        return head | more | covered


def paired(
    first: Sequence[Trajectory], second: Sequence[Trajectory], names: tuple[str, str], seed: int
) -> Comparison:
    """Pairs two lists of episodes by their tasks; `seed` is the bootstrap's.

    Raises:
        ConfigError: they have no task in common.
    """
    one, two = scores_by_task(first), scores_by_task(second)
    both = [task for task in one if task in two]
    if not both:
        raise ConfigError(
            f"{names[0]} and {names[1]} have no task in common: the first of the one is "
            f"{next(iter(one), 'none')}, of the other {next(iter(two), 'none')}"
        )
    gains = differences(one, two, seed)
    # Over the tasks of both, so that the two means differ by the difference that is shown.
    ours, theirs = (intervals([side[task] for task in both], seed) for side in (one, two))
    return Comparison(
        first=names[0],
        second=names[1],
        roles=tuple(
            dict.fromkeys(g.key.role for episode in (*first, *second) for g in episode.groups)
        ),
        tasks=len(both),
        alone=len(one) + len(two) - 2 * len(both),
        means={name: (ours[name], theirs[name]) for name in gains},
        differences=gains,
        coverage=coverage(first, second),
    )


def gain_in(
    name: str, first: Sequence[Trajectory], second: Sequence[Trajectory], *, seed: int
) -> Difference | None:
    """The difference in one score, not corrected; None where no task of both has it."""
    one, two = (
        {
            task: {name: scores[name]}
            for task, scores in scores_by_task(side).items()
            if name in scores
        }
        for side in (first, second)
    )
    return differences(one, two, seed).get(name)


def gains_of(before: Sequence[Evaluation], after: Sequence[Evaluation]) -> dict[int, Difference]:
    """Place of a way of decoding -> what the primary score gained, corrected for each other."""
    rows = {}
    # A resumed run may have begun without evaluations, or end without.
    for place, (one, two) in enumerate(zip(before, after, strict=False)):
        name, both = primary(two.scores), [task for task in one.values if task in two.values]
        if before is not after and name and name in one.scores and both:
            ones, twos = ([side.values[task] for task in both] for side in (one, two))
            rows[place] = paired_difference(ones, twos, share=is_share(name), seed=0)
    return corrected(rows)


def together(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Comparisons that are shown together: their primary scores are corrected for each other."""
    rows = {
        n: comparison.differences[comparison.primary]
        for n, comparison in enumerate(comparisons)
        if comparison.primary
    }
    fixed = corrected(rows)
    return [
        replace(comparison, differences={**comparison.differences, comparison.primary: fixed[n]})
        if comparison.primary
        else comparison
        for n, comparison in enumerate(comparisons)
    ]


def read_side(spec: str) -> Side:
    """Reads a finished evaluation: `FOLDER`, or `FOLDER:TEAM` for one of its line-ups.

    Raises:
        RunFolderError: no finished evaluation there.
        UnknownNameError: it has no such team.
    """
    name, colon, team = spec.rpartition(":")
    # A folder's own name may have a colon.
    folder, team = (Path(name), team) if colon and not Path(spec).is_dir() else (Path(spec), "")
    episodes = read_trajectories(folder)
    if team and team not in episodes:
        raise UnknownNameError(f"{folder} has no team {team!r}; {did_you_mean(team, episodes)}")
    chosen = {team: episodes[team]} if team else episodes
    return Side(spec, read_settings(folder), chosen)


def compared(first: Side, second: Side, seed: int) -> list[Comparison]:
    """Compares every line-up that both sides have, or their only ones.

    Raises:
        ConfigError: they have different tasks, or have no line-up in common.
    """
    _check_same(first, second)
    pairs = [(team, team) for team in first.episodes if team in second.episodes]
    if len(first.episodes) == len(second.episodes) == 1:
        # Where each has one line-up, their titles need not agree: base against adapters, for
        # example.
        pairs = [(next(iter(first.episodes)), next(iter(second.episodes)))]
    if not pairs:
        raise ConfigError(
            f"{first.name} has the teams {', '.join(first.episodes)} and {second.name} has "
            f"{', '.join(second.episodes)}: none in common; choose with FOLDER:TEAM"
        )
    comparisons = [
        paired(
            first.episodes[one],
            second.episodes[two],
            (_label(first.name, one), _label(second.name, two)),
            seed,
        )
        for one, two in pairs
    ]
    return together(comparisons)


def _check_same(first: Side, second: Side) -> None:
    for name in SAME:
        one, two = first.settings.get(name), second.settings.get(name)
        if one != two:
            raise ConfigError(
                f"{first.name} and {second.name} have other tasks: {name} is {one!r} and {two!r}"
            )


def combined(sides: Sequence[Side]) -> dict[str, Evaluation]:
    """Line-ups that all sides have -> scores on the tasks of all, with intervals over seeds and tasks.

    Args:
        sides: a method's runs of several seeds; one line-up each, or line-ups of equal titles.

    Raises:
        ConfigError: they have different tasks, or have no line-up in common.
    """
    first, *others = sides
    for other in others:
        _check_same(first, other)
    alone = all(len(side.episodes) == 1 for side in sides)
    titles = [t for t in first.episodes if alone or all(t in side.episodes for side in sides)]
    teams = {}
    for title in titles:
        played = [next(iter(s.episodes.values())) if alone else s.episodes[title] for s in sides]
        scores = [scores_by_task(episodes) for episodes in played]
        both = [task for task in scores[0] if all(task in by_task for by_task in scores)]
        if not both:
            continue
        names = [n for n in scores[0][both[0]] if all(n in o[t] for o in scores for t in both)]
        tables = {
            n: np.array([[by_task[task][n] for task in both] for by_task in scores]) for n in names
        }
        estimates = {n: over_seeds(values, share=is_share(n)) for n, values in tables.items()}
        roles = tuple(
            dict.fromkeys(g.key.role for evaluation in played[0] for g in evaluation.groups)
        )
        settings = first.settings
        sizes = (len(both), settings.get("samples", 1), settings.get("greedy", False))
        teams[title] = Evaluation(roles, *sizes, estimates)
    if not teams:
        raise ConfigError(
            f"{', '.join(side.name for side in sides)} have no team with the same tasks in common; "
            "choose with FOLDER:TEAM"
        )
    return teams


def settings_apart(first: Side, second: Side) -> dict[str, tuple[Any, Any]]:
    """The settings in which two sides differ."""
    names = {**first.settings, **second.settings}.keys() - _SHOWN_OTHERWISE
    pairs = {name: (first.settings.get(name), second.settings.get(name)) for name in sorted(names)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _label(name: str, team: str) -> str:
    return name if name.endswith(f":{team}") else f"{name}:{team}"


# ---------------------------------------------------------------------------------------- coverage


def coverage(first: Sequence[Trajectory], second: Sequence[Trajectory]) -> tuple[Coverage, ...]:
    """The coverage at k = 1, 2, 4, ... up to the samples that every task of both sides has.

    Empty where there is only one sample of a task, or the environment does not say who succeeds.

    Args:
        first: episodes, for example of the base model.
        second: episodes of the same tasks, for example after training.
    """
    one, two = _verdicts(first), _verdicts(second)
    both = [task for task in one if task in two]
    samples = min((min(len(one[task]), len(two[task])) for task in both), default=0)
    if samples < 2:
        return ()
    sizes = [1 << n for n in range(samples.bit_length()) if 1 << n <= samples]
    if sizes[-1] != samples:
        # All samples as well: there it shows best whether a task is solved at all.
        sizes.append(samples)
    return tuple(_at(k, [(one[task][:k], two[task][:k]) for task in both]) for k in sizes)


def _at(k: int, pairs: Sequence[tuple[Sequence[bool], Sequence[bool]]]) -> Coverage:
    base = np.array([any(before) for before, _ in pairs])
    after = np.array([any(solved) for _, solved in pairs])
    low, high = tango(after.astype(float) - base)
    return Coverage(
        k,
        preserved=int((base & after).sum()),
        expansion=int((~base & after).sum()),
        shrinkage=int((base & ~after).sum()),
        neither=int((~base & ~after).sum()),
        low=low,
        high=high,
    )


def _verdicts(episodes: Sequence[Trajectory]) -> Mapping[str, list[bool]]:
    """Task -> whether each of its samples succeeded, in their order."""
    samples: dict[str, list[tuple[int, bool]]] = {}
    said = any(episode.success is not None for episode in episodes)
    for episode in episodes:
        won = episode.success if episode.overlong is None else verdict(episode.success, said)
        if won is not None:
            samples.setdefault(episode.task.id, []).append((episode.episode, won))
    # By the number of the sample, because k takes the first ones.
    return {task: [won for _, won in sorted(pairs)] for task, pairs in samples.items()}
