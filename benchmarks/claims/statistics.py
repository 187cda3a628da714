"""Intervals over seeds and tasks, tests, and their correction for the number of verdicts.

Every seed has tasks of its own, so tasks are nested in seeds: a seed is drawn, then its tasks. Outcomes are 0 or 1, and
differences of two arms, paired by seed and task, -1, 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import permutations
from statistics import NormalDist

import numpy as np

from pettingllms.statistics import Estimate, wilson_of

RESAMPLES = 10_000
LEVEL = 0.05


def interval(values: np.ndarray, level: float = LEVEL) -> Estimate:
    """The mean with its interval by the hierarchical bootstrap: seeds are resampled, then the tasks of each.

    The percentiles are expanded as Student's distribution asks for so few seeds (Hesterberg 2015, "What teachers should
    know about the bootstrap", section 4.3): plain ones cover 0.85 where five seeds disagree. Where all values are
    the same, the interval has the width that as many tasks could hide.

    Args:
        values: of shape (seeds, tasks).
        level: 1 less its coverage.
    """
    seeds, tasks = values.shape
    mean = float(values.mean())
    kinds = np.unique(values)
    if len(kinds) == 1:
        reach = wilson_of(0.0, seeds * tasks)[1]
        return Estimate(mean, max(mean - reach, min(0.0, mean)), min(mean + reach, 1.0))
    if seeds == 1:
        tail = level / 2
    else:
        reach = _quantile(1 - level / 2, seeds - 1) * (seeds / (seeds - 1)) ** 0.5
        tail = NormalDist().cdf(-reach)
    low, high = np.quantile(_means(values, kinds), [tail, 1 - tail])
    return Estimate(mean, float(low), float(high))


def _means(values: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Means of resamples. Tasks are drawn as counts of their values, which is the same and faster."""
    seeds, tasks = values.shape
    rng = np.random.default_rng(0)
    shares = np.stack([(values == kind).mean(axis=1) for kind in kinds], axis=1)
    drawn = rng.integers(seeds, size=(RESAMPLES, seeds))
    counts = rng.multinomial(tasks, shares[drawn])
    means: np.ndarray = (counts @ kinds).mean(axis=1) / tasks
    return means


def p_value(gains: np.ndarray, least: float = 0.0) -> float:
    """Two-sided, for a mean over new seeds and tasks of `least`: Student's test over the means of the seeds.

    These differ by their tasks, too. Five seeds that happen to agree are not taken for certainty: the variance is at
    least that of the tasks.

    Args:
        gains: paired differences of shape (seeds, tasks), of two seeds or more.
        least: what the mean is compared with.
    """
    seeds, tasks = gains.shape
    means = gains.mean(axis=1)
    variance = max(means.var(ddof=1) / seeds, gains.var(axis=1).mean() / (seeds * tasks))
    if variance == 0:
        return 1.0 if means.mean() == least else 0.0
    return 2 * _tail(abs(means.mean() - least) / variance**0.5, seeds - 1)


def _tail(t: float, freedom: int) -> float:
    """The chance that Student's t is above `t`: with t = sqrt(freedom) tan(angle), angles have density cos^(freedom - 1)."""
    angles = np.linspace(np.arctan(t / freedom**0.5), np.pi / 2, 4_001)
    every = np.linspace(-np.pi / 2, np.pi / 2, 8_001)
    above, all_of_it = (
        np.trapezoid(np.cos(grid) ** (freedom - 1), grid) for grid in (angles, every)
    )
    return float(above / all_of_it)


@cache
def _quantile(share: float, freedom: int) -> float:
    """Where Student's distribution has `share` below; by bisection."""
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _tail(middle, freedom) < 1 - share else (middle, high)
    return low


def rank_correlation(one: Sequence[float], two: Sequence[float], level: float = LEVEL) -> Estimate:
    """Spearman's correlation with the interval of Bonett and Wright 2000, which few pairs make wide; 0 without variation."""
    mean = float(_rank_products(_ranks(one), _ranks(two)[None])[0])
    reach = NormalDist().inv_cdf(1 - level / 2) * ((1 + mean**2 / 2) / (len(one) - 3)) ** 0.5
    center = np.arctanh(np.clip(mean, -1 + 1e-12, 1 - 1e-12))
    return Estimate(mean, float(np.tanh(center - reach)), float(np.tanh(center + reach)))


def rank_p_value(one: Sequence[float], two: Sequence[float]) -> float:
    """Two-sided and exact: the share of all orders of `two` whose correlation of ranks is at least as far from 0."""
    ranks = _ranks(two)
    orders = np.array(list(permutations(range(len(two)))))
    permuted = np.abs(_rank_products(_ranks(one), ranks[orders]))
    observed = np.abs(_rank_products(_ranks(one), ranks[None]))[0]
    return float((permuted >= observed - 1e-9).mean())


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks from 0; equal values share the mean of theirs."""
    numbers = np.asarray(values)
    below = (numbers[:, None] > numbers).sum(axis=1)
    return np.asarray(below + ((numbers[:, None] == numbers).sum(axis=1) - 1) / 2)


def _rank_products(one: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """The correlation of `one` with each row of `orders`."""
    first, rows = one - one.mean(), orders - orders.mean(axis=1, keepdims=True)
    scale = np.sqrt((first**2).sum() * (rows**2).sum(axis=1))
    return np.divide(rows @ first, scale, out=np.zeros(len(rows)), where=scale > 0)


def digits(rows: Sequence[str]) -> np.ndarray:
    """Strings of 0 and 1, one a seed, as an array of shape (seeds, tasks)."""
    return np.array([[float(digit) for digit in row] for row in rows])
