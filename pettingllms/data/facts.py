"""A seeded knowledge base of short facts, and questions that take several of them.

A fact is a subject, a relation, and an object: `owl7 old friend crab3`. Every relation is one ring through all
entities: each entity has exactly one object and is the object of exactly one other. A query that names
an entity and a relation therefore finds two passages before all others, the fact that is asked for and the one
that leads here, with equal scores; which is which has to be read.

A question is a chain of relations: `old friend of new boss of owl7` takes two look-ups, and the entity that the
first one finds is in no other text. Entities and relations are pairs of words or of a word and a number. The pairs are
divided, so that training, validation and test have neither an entity nor a relation in common, while the words
are known to a model that was primed on the training pairs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from pettingllms.data.retrieval import Passage, Question
from pettingllms.data.splits import Split, split_of
from pettingllms.errors import ConfigError

NAMES = (
    "ant", "bear", "cat", "crab", "crow", "deer", "dog", "eagle", "fox", "frog", "goat", "hare",
    "hen", "horse", "mole", "mouse", "otter", "owl", "rat", "seal", "sheep", "snail", "swan", "wolf",
)  # fmt: skip
NUMBERS = range(20)
KINDS = ("best", "dear", "first", "last", "new", "next", "old", "true")
BONDS = ("boss", "friend", "guest", "heir", "pupil", "rival", "twin", "uncle")
HOPS = (2, 3)
MOST_HOPS = 6


@dataclass(frozen=True, slots=True)
class World:
    """The knowledge base of a split."""

    entities: tuple[str, ...]
    relations: tuple[str, ...]
    objects: Mapping[tuple[str, str], str]
    """(subject, relation) -> object."""

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The facts in the order of their passage numbers."""
        return tuple(Passage(fact(s, r, o)) for (s, r), o in self.objects.items())

    def chain(self, start: str, relations: Sequence[str]) -> tuple[str, ...]:
        """The entities from `start` on, one after each relation; the last one is the answer."""
        met = [start]
        for relation in relations:
            met.append(self.objects[met[-1], relation])
        return tuple(met)


@cache
def world(split: Split) -> World:
    """The knowledge base of `split`: the same in every process and version."""
    rng = random.Random(f"facts {split}")
    entities = tuple(e for e in (f"{n}{k}" for n in NAMES for k in NUMBERS) if _of(e) == split)
    relations = tuple(r for r in (f"{k} {b}" for k in KINDS for b in BONDS) if _of(r) == split)
    objects: dict[tuple[str, str], str] = {}
    for relation in relations:
        ring = rng.sample(entities, len(entities))
        # The first entity's object is the last one, which closes the ring.
        objects |= {(one, relation): ring[n - 1] for n, one in enumerate(ring)}
    # Of passages with equal scores the lower number comes first, and must not tell which one is
    # meant.
    shuffled = rng.sample(sorted(objects), len(objects))
    return World(entities, relations, {pair: objects[pair] for pair in shuffled})


def _of(pair: str) -> Split:
    return split_of(pair, domain="search")


def fact(subject: str, relation: str, thing: str) -> str:
    """The text of a passage."""
    return f"{subject} {relation} {thing}"


def asked(start: str, relations: Sequence[str]) -> str:
    """The question for the end of a chain; the last relation is named first."""
    return " of ".join([*reversed(relations), start])


def check_hops(hops: tuple[int, ...]) -> None:
    """Refuses numbers of look-ups that no question has.

    Raises:
        ConfigError: names the value and its range.
    """
    if len(hops) != 2 or not 1 <= hops[0] <= hops[1] <= MOST_HOPS:
        raise ConfigError(f"hops must be two numbers 1 <= a <= b <= {MOST_HOPS}, got {hops}")


def question(seed: int, split: Split, *, hops: tuple[int, int] = HOPS) -> Question:
    """The question of `seed`: the same in every version.

    Args:
        seed: which question.
        split: whose entities and relations it is about.
        hops: fewest and most look-ups, each number equally likely.

    Raises:
        ConfigError: `hops` out of range.
    """
    check_hops(hops)
    rng, world_of_split = random.Random(f"search {split} {seed}"), world(split)
    while True:
        start = rng.choice(world_of_split.entities)
        relations = rng.choices(world_of_split.relations, k=rng.randint(*hops))
        met = world_of_split.chain(start, relations)
        if len({*met}) == len(met):  # or the answer would be a word of the question, or found early
            facts = tuple(fact(met[n], r, met[n + 1]) for n, r in enumerate(relations))
            text = asked(start, relations)
            return Question(text, (met[-1],), facts, f"{split}-{seed}", f"{len(facts)} hops")
