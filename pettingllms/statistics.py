"""The arithmetic of every comparison: two results on the same tasks, several results of the same kind.

Every surface prints the records made here: the tables of training and evaluation, `--compare`, the
swap matrix, results.json, the model card and the viewer. Tasks are the unit, never episodes.

| question | method |
|---|---|
| a share of tasks | Wilson's score interval with continuity correction |
| the difference of two shares, paired by task | Tango's score interval (Statistics in Medicine 17, 1998) |
| the difference of other scores | percentiles of 2000 bootstrap resamples of tasks |
| is there a difference | the exact sign-flip test; for tasks solved or not it is McNemar's exact test |
| which of the two is higher | decided where that test, corrected, and the interval agree |
| several tests at once | Holm's correction; the primary score of each comparison is a family of its own |
| several seeds over the same tasks | Wilson's or a Student interval for the variance over seeds and tasks |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

RESAMPLES = 2000
"""Of tasks for intervals, and of signs for tests where there are too many to try them all."""
LEVEL = 0.05
"""Corrected p-values below it count as a difference."""
_Z = 1.959963984540054
"""The 97.5th percentile of the normal distribution."""
_FREEDOM = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, 120, math.inf)
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.306, 2.228, 2.131, 2.086, 2.042, 2.0, 1.98, 1.96)  # fmt: skip
"""The 97.5th percentiles of Student's distribution, by degrees of freedom."""
_SHARE = re.compile(
    r"success|overlong|(pass|maj)@\d+|(env|difficulty)/.*/success|draws|win/.*"
    r"|.*/(parse_error|truncated|refused|status/.*|first_passed|first_valid|first_caught)"
)
"""Scores whose values lie between 0 and 1 by their definition."""
_SAME = 1e-9
"""Differences within this tolerance are float noise."""
_Name = TypeVar("_Name")
Interval = tuple[float, float]
"""Its ends."""


class Estimate(NamedTuple):
    """A mean over tasks with its 95 % interval."""

    mean: float
    low: float
    high: float


class Difference(NamedTuple):
    """The second minus the first, over the tasks of both."""

    mean: float
    low: float
    high: float
    tasks: int
    more: int
    """Tasks with a higher score of the second."""
    less: int
    p: float
    """Of the exact test, two-sided."""
    p_holm: float
    """Corrected for the tests that are shown together."""

    @property
    def verdict(self) -> str:
        """`higher` or `lower` where both the interval and the corrected test say so, else `not decided`."""
        if self.p_holm >= LEVEL or self.low <= 0 <= self.high:
            return "not decided"
        return "higher" if self.mean > 0 else "lower"

    @property
    def clear(self) -> bool:
        """True if the second is higher or lower."""
        return self.verdict != "not decided"

    def row(self) -> dict[str, Any]:
        """The record as JSON has it."""
        return self._asdict() | {"verdict": self.verdict}


def primary(names: Iterable[str]) -> str | None:
    """The one score that decides a comparison: success, else the first return, else none."""
    ordered = sorted(names)
    returns = [name for name in ordered if name.split("/")[0] == "return"]
    return "success" if "success" in ordered else returns[0] if returns else None


def is_share(name: str) -> bool:
    """Returns whether a score lies between 0 and 1 by its definition."""
    return _SHARE.fullmatch(name) is not None


def wilson(values: np.ndarray) -> Interval:
    """Wilson's 95 % score interval, with continuity correction, of the mean of shares of tasks.

    Without the correction it covers a share of 0.99 in only 92 of 100 cases (100 tasks).

    A task with several episodes has a fraction, and its episodes may succeed together. The number of
    independent trials is therefore estimated from the spread over tasks, and is at least that of tasks.
    """
    tasks, p = len(values), float(values.mean())
    n = float(tasks)
    if tasks > 1 and (variance := float(values.var(ddof=1))) > 0:
        # The mean of n trials has the variance p (1 - p) / n: here that over tasks, divided by
        # their number.
        n = max(n, tasks * p * (1 - p) / variance)
    return wilson_of(p, n)


def wilson_of(p: float, n: float, z: float = _Z) -> Interval:
    """Wilson's interval of a share `p` of `n` independent trials, which need not be a whole number."""
    # Newcombe 1998 (Statistics in Medicine 17, 857-872), method 4. Below two trials a root may be
    # of a negative number: then the end is that of the range.
    below = z * math.sqrt(max(0.0, z**2 - 2 - 1 / n + 4 * p * (n * (1 - p) + 1)))
    above = z * math.sqrt(max(0.0, z**2 + 2 - 1 / n + 4 * p * (n * (1 - p) - 1)))
    low, high = ((2 * n * p + z**2 + reach) / (2 * (n + z**2)) for reach in (-1 - below, 1 + above))
    # The mean is inside by theory; the limits keep rounding from denying it.
    return max(0.0, min(p, low)), min(1.0, max(p, high))


def bootstrap(values: np.ndarray, seed: int) -> Interval:
    """Percentiles of the mean over resamples of tasks; one value where all tasks agree exactly."""
    # One seed for every score, so that scores over the same tasks share their resamples.
    picks = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def paired_difference(
    first: Sequence[float], second: Sequence[float], *, share: bool, seed: int
) -> Difference:
    """The second minus the first, task by task; its `p_holm` is that of this test alone.

    `share` says that all values lie between 0 and 1 by definition; `seed` is that of resampling.
    """
    gains = np.array(second, dtype=float) - np.array(first, dtype=float)
    gains[np.abs(gains) < _SAME] = 0.0
    low, high = tango(gains) if share else bootstrap(gains, seed)
    more, less, p = int((gains > 0).sum()), int((gains < 0).sum()), p_value(gains, seed)
    return Difference(float(gains.mean()), low, high, len(gains), more, less, p, p)


def tango(gains: np.ndarray) -> Interval:
    """Tango's 95 % score interval of the difference of two paired shares.

    It has a width also where both sides agree on every task. Fractions are treated as in `wilson`.
    """
    n, mean, reach = float(len(gains)), float(gains.mean()), float(np.abs(gains).mean())
    if len(gains) > 1 and (variance := float((gains**2).mean() - mean**2)) > _SAME:
        n *= (reach - mean**2) / variance
    better, worse = n * (reach + mean) / 2, n * (reach - mean) / 2

    def score(gain: float) -> float:
        """How many standard errors the result lies above a true difference."""
        a, c = 2 * n, -worse * gain * (1 - gain)
        b = (2 * n - better + worse) * gain - better - worse
        share = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)  # worse tasks, most likely
        spread = math.sqrt(max(0.0, n * (2 * share + gain * (1 - gain))))
        above = n * (mean - gain)
        return above / spread if spread else math.copysign(math.inf, above) if above else 0.0

    low = _crossing(lambda gain: score(gain) > _Z, -1.0, mean)
    return low, _crossing(lambda gain: score(gain) > -_Z, mean, 1.0)


def _crossing(before: Callable[[float], bool], low: float, high: float) -> float:
    """The place between `low` and `high` from which on `before` no longer holds, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if before(middle) else (low, middle)
    return (low + high) / 2


def p_value(gains: np.ndarray, seed: int = 0) -> float:
    """The chance of a mean as far from 0, were each task's sign a coin flip.

    For gains of -1, 0 and 1 this is McNemar's exact test. Gains of several sizes take random flips.
    """
    sizes = np.abs(gains[gains != 0])
    n = len(sizes)
    if not n:
        return 1.0
    total = abs(float(gains.sum()))
    if np.ptp(sizes) < _SAME:
        most = max(int((gains > 0).sum()), int((gains < 0).sum()))
        return float(min(1.0, 2 * sum(math.comb(n, k) for k in range(most, n + 1)) / 2**n))
    signs = np.random.default_rng(seed).integers(2, size=(RESAMPLES, n), dtype=np.int8)
    far = np.abs(2 * (signs @ sizes) - sizes.sum()) >= total - _SAME
    return float((1 + far.sum()) / (1 + RESAMPLES))


def holm(values: Mapping[_Name, float]) -> dict[_Name, float]:
    """P-values, corrected for how many there are: the chance of any false verdict stays below the level."""
    adjusted, largest = {}, 0.0
    for rank, name in enumerate(sorted(values, key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[name]))
        adjusted[name] = largest
    return adjusted


def corrected(rows: Mapping[_Name, Difference]) -> dict[_Name, Difference]:
    """The rows that are shown together, each with its corrected p-value."""
    p_holm = holm({name: row.p for name, row in rows.items()})
    return {name: row._replace(p_holm=p_holm[name]) for name, row in rows.items()}


def differences(
    first: Mapping[str, Mapping[str, float]], second: Mapping[str, Mapping[str, float]], seed: int
) -> dict[str, Difference]:
    """The second minus the first for every score that both have, paired by task.

    The primary score is tested alone; the others are corrected for each other. Tasks that only one
    of the two has are left out; `seed` is that of resampling.
    """
    pairs = [(first[task], second[task]) for task in first if task in second]
    rows = {}
    for name in sorted({name for one, two in pairs for name in one.keys() & two}):
        both = [(one[name], two[name]) for one, two in pairs if {name} <= one.keys() & two]
        ones, twos = zip(*both, strict=True)
        rows[name] = paired_difference(ones, twos, share=is_share(name), seed=seed)
    main = primary(rows)
    return rows | corrected({name: row for name, row in rows.items() if name != main})


def over_seeds(values: np.ndarray, *, share: bool = True) -> Estimate:
    """The mean with its 95 % interval over seeds and tasks.

    A share has Wilson's interval, for the number of independent trials whose mean would vary as this
    one does over new seeds and new tasks. Resampling seeds and tasks instead covers 0.66 to 0.90
    where two or three seeds disagree, and has no width where all tasks are solved. `values` have the
    shape (seeds, tasks); `share` is as in `paired_difference`.
    """
    seeds, tasks = values.shape
    mean = float(values.mean())
    variance, quantile = variance_over_seeds(values)
    if not share:
        return Estimate(mean, mean - quantile * variance**0.5, mean + quantile * variance**0.5)
    if seeds == 1 or not variance:
        return Estimate(mean, *wilson(values.mean(axis=0)))
    trials = min(mean * (1 - mean) / variance, float(seeds * tasks))
    return Estimate(mean, *wilson_of(mean, trials, quantile))


def variance_over_seeds(values: np.ndarray) -> Interval:
    """The variance of the mean over new seeds and tasks, and Student's quantile that goes with it.

    The variance is that of a crossed design with both effects random; its degrees of freedom are
    Satterthwaite's. One seed says nothing about seeds: then it is over tasks alone.
    """
    seeds, tasks = values.shape
    mean, of_seeds, of_tasks = values.mean(), values.mean(axis=1), values.mean(axis=0)
    between_tasks = seeds * ((of_tasks - mean) ** 2).sum() / max(1, tasks - 1)
    if seeds == 1:
        return float(between_tasks / tasks), _student(max(1, tasks - 1))
    between_seeds = tasks * ((of_seeds - mean) ** 2).sum() / (seeds - 1)
    rest = ((values - of_seeds[:, None] - of_tasks + mean) ** 2).sum()
    rest /= max(1, (seeds - 1) * (tasks - 1))
    # Not below what either effect alone explains, which an estimate of the sum can be.
    total = max(between_seeds + between_tasks - rest, between_seeds, between_tasks)
    parts = between_seeds**2 / (seeds - 1) + between_tasks**2 / max(1, tasks - 1)
    parts += rest**2 / max(1, (seeds - 1) * (tasks - 1))
    freedom = total**2 / parts if parts else 1.0
    return float(total / (seeds * tasks)), _student(max(1.0, float(freedom)))


def _student(freedom: float) -> float:
    inverse = [-1 / degrees for degrees in _FREEDOM]
    return float(np.interp(-1 / freedom, inverse, _QUANTILES))
