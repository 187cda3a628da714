"""A drill for bases that have to copy names which they have just read: lines of facts, and the same lines again.

A name is two tokens, a word and a number, and the lines share words, numbers and relations. So the second token can
only be had by finding the first one in the prompt. Nothing is asked and nothing is looked up. Without this drill a base
wrote `hen10` for `hen14` nearly always when it took a name from a passage into a query.
"""

from __future__ import annotations

import random

from benchmarks.priming.example import Demo
from pettingllms.data import facts
from pettingllms.data.facts import fact

WORD = "copy"
"""The first line of a drill, where a demonstration of the game has a role."""


def demo(rng: random.Random, habit: float = 0.0) -> Demo:  # noqa: ARG001 - it has none
    """Two to five facts of the training split's names and relations, to be copied."""
    world = facts.world("train")
    entities = rng.sample(world.entities, rng.choice((2, 3, 6)))
    relations = rng.sample(world.relations, rng.choice((1, 2, 3)))
    drawn = (
        fact(rng.choice(entities), rng.choice(relations), rng.choice(entities))
        for _ in range(rng.randint(2, 5))
    )
    lines = [*dict.fromkeys(drawn)]
    return Demo("\n ".join([WORD, *lines]), "\n".join(f" {line}" for line in lines))


def units() -> list[str]:
    """The drill's own word; the names are `search`'s."""
    return [WORD]
