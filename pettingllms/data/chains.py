"""Draws problems of the coding grammar, with three or another number of steps.

A chain keeps some values, changes each of them as often as it has steps left, and reports one
result; with two steps it leaves one of these stages out, with one step two. Arithmetic combines two
numbers and changes the result; with one or two steps it may change the first number instead. A chain is
in the split of its computation, so that no chain computes on the split's probes what a problem of another
split computes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pettingllms.data import grammar
from pettingllms.data.grammar import CHANGE, COMBINE, KEEP, REPORT, Composition, Family, Link
from pettingllms.data.splits import Split
from pettingllms.errors import ConfigError

STEPS = (2, 6)
"""Fewest and most steps of a task. Of the chains of one step, some families have none in a held-out split."""
FAMILIES = {"numbers": 5, "words": 2, "arithmetic": 3}
"""What problems are about -> how often, in proportion."""
TRIES = 2000


def draw(rng: random.Random, name: str, steps: int, split: Split) -> Composition:
    """Draws a composition of the family `name`, of that many steps and of that split.

    Raises:
        ConfigError: no chain of `split` in `TRIES` tries.
    """
    family = next(member for member in grammar.FAMILIES if member.name == name)
    for _ in range(TRIES):
        links = tuple(Link(s, rng.choice(family.stages[s])) for s in stages(rng, family, steps))
        chain = Composition(family, links)
        if chain.split == split:
            return chain
    raise ConfigError(
        f"found no problem about {name} of {steps} steps that is of the split {split!r} "
        f"in {TRIES} tries; ask for more steps"
    )


def stages(rng: random.Random, family: Family, steps: int) -> tuple[int, ...]:
    """The stages of a random chain of that many steps, in order."""
    if family.parameters == 2:
        first = rng.choice((COMBINE, CHANGE)) if steps < 3 else COMBINE
        return (first, *[CHANGE] * (steps - 1))
    if steps == 1:
        return (rng.choice((KEEP, CHANGE, REPORT)),)
    if steps == 2:
        return rng.choice(((KEEP, CHANGE), (KEEP, REPORT), (CHANGE, REPORT)))
    return (KEEP, *[CHANGE] * (steps - 2), REPORT)


def problem(
    rng: random.Random, steps: tuple[int, int], families: Sequence[str], split: Split
) -> Composition:
    """Draws what a task computes: a chain of the split, or of three steps a composition of the grammar."""
    # A fixed number draws nothing: its tasks are those of versions that had no range.
    count = rng.randint(*steps) if steps[0] < steps[1] else steps[0]
    name = pick(rng, families)
    # Compositions of three steps are all known, with their splits; other chains are drawn until
    # one fits.
    if count != 3:
        return draw(rng, name, count, split)
    return rng.choice([c for c in grammar.COMPOSITIONS[split] if c.family.name == name])


def pick(rng: random.Random, families: Sequence[str]) -> str:
    """Picks one of `families`, as often as `FAMILIES` says."""
    return rng.choices(families, [FAMILIES[name] for name in families])[0]
