"""Demonstrations of the search team that the embedded base model is primed on: the parts of the game, never a whole.

A demonstration is what a role is shown (the environment's own compact prompt) and a good reply; there is no bad habit.
All questions take a single look-up. A searcher writes the query for the one fact. A verifier and an answerer quote the
fact as far as it is there, and then say whether it is, or what it says. What no demonstration shows is a question of two or
three look-ups: which of its relations comes first, that the entity of the next query stands in a passage
and not in the question, and when a chain is complete. That is left to training. Only entities and
relations of the training split are used, and facts are drawn at random: there is nothing to memorize.
"""

from __future__ import annotations

import random

from benchmarks.priming.example import Demo
from pettingllms.data import facts
from pettingllms.data.facts import World, asked, fact
from pettingllms.data.questions import Passage
from pettingllms.envs.search_text import Search, compact_prompt

ROLES = {"verifier": 0.3, "searcher": 0.3, "answerer": 0.25, "solver": 0.15}
"""How often each role is shown."""
IN_PAIRS = 0.5
"""How often a fact stands beside the one that a search finds along with it."""
PASSES = 0.3
"""How often an answerer may say `no`, as in a chain of searcher and answerer."""


def demo(rng: random.Random, habit: float) -> Demo:
    """A demonstration for a random role. It has no bad habit, so `habit` changes nothing."""
    del habit
    world = facts.world("train")
    role = rng.choices(list(ROLES), list(ROLES.values()))[0]
    start, thing = rng.sample(world.entities, 2)
    relation = rng.choice(world.relations)
    may_pass = role == "answerer" and rng.random() < PASSES
    found = role == "answerer" and not may_pass
    if not found and role != "searcher":
        found = rng.random() < 0.5
    passages = beside(world, rng, start, relation, thing)
    if found:
        # Relations are rings: a search that finds the fact finds the one that leads here, too.
        other = fact(rng.choice(world.entities), relation, start)
        pair = rng.sample([fact(start, relation, thing), other], 2)
        at = rng.randint(0, len(passages))
        passages[at:at] = pair if rng.random() < IN_PAIRS else [fact(start, relation, thing)]
    prompt = compact_prompt(role, asked(start, [relation]), [searched(passages)], may_pass=may_pass)
    query = f"{start} {relation}"
    if role == "searcher":
        return Demo(prompt, f" {query}")
    said = {"verifier": "yes", "answerer": thing, "solver": f"answer {thing}"}[role]
    if not found:
        said = f"search {query}" if role == "solver" else "no"
    quoted = fact(start, relation, thing) if found else query
    return Demo(prompt, f" {quoted}\n {said}")


def beside(world: World, rng: random.Random, start: str, relation: str, thing: str) -> list[str]:
    """Up to five passages that do not hold the fact, made of few parts, so that each has to be read whole."""
    entities = [start, thing, *rng.sample(world.entities, 2)]
    relations = [relation, rng.choice(world.relations)]
    passages: list[str] = []
    for _ in range(rng.choice((0, 0, 1, 1, 2, 2, 3, 4))):
        one, other = rng.sample(entities, 2)
        held = rng.choice(relations)
        if (one, held) != (start, relation):
            passages.append(fact(one, held, other))
    return passages


def searched(passages: list[str]) -> Search:
    """Passages as an earlier search found them; a compact prompt does not show its query."""
    return Search("", tuple(map(Passage, passages)))


def units() -> list[str]:
    """Words of prompts and replies that should be single tokens."""
    words = ["verifier", "searcher", "answerer", "solver", "search", "answer", "yes", "no", "of"]
    return sorted({*words, *facts.NAMES, *facts.KINDS, *facts.BONDS, *map(str, facts.NUMBERS)})
