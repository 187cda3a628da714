"""Demonstrations that base models are primed on: modules for each environment, and two recipes.

A demonstration is what a role is shown, in its environment's own compact prompt, and a reply to
it: a good one, or, with a given probability, one that shows the role's bad habit. Only tasks
of the training splits are used, in good and in bad replies.

`habits` is the recipe of the embedded base. `parts` shows single steps, pairs of steps and small boards,
without bad replies and without what is trained and tested: see the modules that end in `_parts`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from benchmarks.priming import (
    coding,
    coding_parts,
    copying,
    math,
    plan_path,
    plan_path_parts,
    search,
    sokoban,
    sudoku,
)
from benchmarks.priming.example import Demo

__all__ = ["RECIPES", "SOURCES", "Demo", "Source", "draw", "units"]


class Source(NamedTuple):
    """Where demonstrations of one kind come from."""

    demo: Callable[[random.Random, float], Demo]
    units: Callable[[], Iterable[str]]
    """Words and marks that are to be a single token each."""
    share: float
    """How often it is drawn, relative to the others."""
    habit: float
    """Share of bad replies in the last phase of priming: more where a game gives many chances."""


SOURCES: Mapping[str, Source] = {
    "coding": Source(coding.demo, coding.units, share=0.38, habit=0.7),
    "plan_path": Source(plan_path.demo, plan_path.units, share=0.21, habit=0.95),
    "sokoban": Source(sokoban.demo, sokoban.units, share=0.23, habit=0.95),
    "sudoku": Source(sudoku.demo, sudoku.units, share=0.14, habit=0.9),
    "math": Source(math.demo, math.units, share=0.14, habit=0.85),
}
"""The recipe of the embedded base. A line more makes another base: new environments go to `PARTS`."""

PARTS: Mapping[str, Source] = {
    "coding": Source(coding_parts.demo, coding_parts.units, share=0.5, habit=0.0),
    "plan_path": Source(plan_path_parts.demo, plan_path_parts.units, share=0.2, habit=0.0),
    "search": Source(search.demo, search.units, share=0.3, habit=0.0),
}

SEARCH: Mapping[str, Source] = {
    "search": Source(search.demo, search.units, share=0.55, habit=0.0),
    "copying": Source(copying.demo, copying.units, share=0.45, habit=0.0),
}

RECIPES: Mapping[str, Mapping[str, Source]] = {"habits": SOURCES, "parts": PARTS, "search": SEARCH}


def draw(rng: random.Random, habit: float | None, sources: Mapping[str, Source] = SOURCES) -> Demo:
    """One demonstration of any kind.

    Args:
        rng: where it is drawn from.
        habit: the probability of a bad reply; None for each source's own.
        sources: the kinds; a recipe, or a part of one.
    """
    kinds = list(sources.values())
    (source,) = rng.choices(kinds, [candidate.share for candidate in kinds])
    return source.demo(rng, source.habit if habit is None else habit)


def units(sources: Mapping[str, Source] = SOURCES) -> list[str]:
    """All that is to be a single token each, each once."""
    return sorted({unit for source in sources.values() for unit in source.units()})
