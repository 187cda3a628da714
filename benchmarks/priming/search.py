"""Demonstrations of the search team that the embedded base model is primed on: the parts of the game, never a whole.

A demonstration is what a role is shown (the environment's own compact prompt) and a good reply; there is no bad habit.
Most questions take a single look-up. A searcher writes the query for the one fact. A verifier and an answerer quote the
fact as far as it is there, and then say whether it is, or what it says.

Questions of two look-ups are shown with a part drawn by lot: a query of any relation of the question and either the
entity of the question or any that a passage ends with, any passage read out, any word of the verifier. So every move has a chance, and none is
preferred: which relation comes first, that the entity of the next query stands in a passage and not in the
question, and when a chain is complete, no demonstration shows. That is left to training. (Without these, the base was sure
of a wrong query for every longer question, and 45 steps of training found no other.) Three look-ups are never shown. Only entities
and relations of the training split are used, and facts are drawn at random: there is nothing to memorize.
"""

from __future__ import annotations

import random

from benchmarks.priming.example import Demo
from pettingllms.data import facts
from pettingllms.data.facts import World, asked, fact
from pettingllms.data.retrieval import Passage
from pettingllms.envs.search_text import Lookup, compact_prompt

ROLES = {"verifier": 0.3, "searcher": 0.3, "answerer": 0.25, "solver": 0.15}
"""How often each role is shown."""
BY_LOT = 0.45
"""How often a question takes several look-ups, and the reply is a part drawn by lot."""
IN_PAIRS = 0.5
"""How often a fact stands beside the one that a search finds along with it."""
PASSES = 0.3
"""How often an answerer may say `no`, as in a chain of searcher and answerer."""


def demo(rng: random.Random, habit: float) -> Demo:
    """A demonstration for a random role. It has no bad habit, so `habit` changes nothing."""
    del habit
    world = facts.world("train")
    role = rng.choices(list(ROLES), list(ROLES.values()))[0]
    if rng.random() < BY_LOT:
        return drawn_by_lot(world, rng, role)
    start, thing = rng.sample(world.entities, 2)
    relation = rng.choice(world.relations)
    may_pass = role == "answerer" and rng.random() < PASSES
    has_fact = role == "answerer" and not may_pass
    if not has_fact and role != "searcher":
        has_fact = rng.random() < 0.5
    passages = beside(world, rng, start, relation, thing)
    if has_fact:
        # Relations are rings: a search that finds the fact finds the one that leads here, too.
        other = fact(another(world, rng, start), relation, start)
        pair = rng.sample([fact(start, relation, thing), other], 2)
        at = rng.randint(0, len(passages))
        passages[at:at] = pair if rng.random() < IN_PAIRS else [fact(start, relation, thing)]
    prompt = compact_prompt(role, asked(start, [relation]), [searched(passages)], may_pass=may_pass)
    query = f"{start} {relation}"
    if role == "searcher":
        return Demo(prompt, f" {query}")
    answer = {"verifier": "yes", "answerer": thing, "solver": f"answer {thing}"}[role]
    if not has_fact:
        answer = f"search {query}" if role == "solver" else "no"
    quoted = fact(start, relation, thing) if has_fact else query
    return Demo(prompt, f" {quoted}\n {answer}")


def drawn_by_lot(world: World, rng: random.Random, role: str) -> Demo:
    """A question of two look-ups, some of them made, and any move that the role could make."""
    relations = rng.choices(world.relations, k=2)
    least = 0 if role in ("verifier", "searcher") else 1
    met = rng.sample(world.entities, len(relations) + 1)
    facts_found: list[str] = []
    for n in range(rng.randint(least, len(relations))):
        before = fact(another(world, rng, met[n]), relations[n], met[n])
        facts_found += rng.sample([fact(met[n], relations[n], met[n + 1]), before], 2)
    may_pass = role == "answerer" and rng.random() < PASSES
    question = asked(met[0], relations)
    prompt = compact_prompt(role, question, [searched(facts_found)], may_pass=may_pass)
    in_sight = {met[0], *(held.split()[-1] for held in facts_found)}
    query = f"{rng.choice(sorted(in_sight))} {rng.choice(relations)}"
    if role == "searcher":
        return Demo(prompt, f" {query}")
    quoted = rng.choice(facts_found) if facts_found else query
    goes_on = rng.random() < 0.5
    if role == "verifier":
        return Demo(prompt, f" {quoted}\n {'no' if goes_on else 'yes'}")
    answer = quoted.split()[-1]
    if role == "solver":
        answer = f"search {query}" if goes_on else f"answer {answer}"
    elif may_pass and goes_on:
        answer = "no"
    return Demo(prompt, f" {quoted}\n {answer}")


def another(world: World, rng: random.Random, entity: str) -> str:
    """Any entity but that one."""
    return next(e for e in rng.sample(world.entities, 2) if e != entity)


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


def searched(passages: list[str]) -> Lookup:
    """Passages as an earlier search found them; a compact prompt does not show its query."""
    return Lookup("", tuple(map(Passage, passages)))


def units() -> list[str]:
    """Words of prompts and replies that should be single tokens."""
    words = ["verifier", "searcher", "answerer", "solver", "search", "answer", "yes", "no", "of"]
    return sorted({*words, *facts.NAMES, *facts.KINDS, *facts.BONDS, *map(str, facts.NUMBERS)})
