"""The generated facts: rings of relations, chains of look-ups, splits with nothing in common."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from pettingllms.data import facts
from pettingllms.data.retrieval import Index
from pettingllms.data.splits import SPLITS
from pettingllms.errors import ConfigError


@pytest.mark.parametrize("split", SPLITS)
def test_every_relation_is_one_ring_through_all_entities(split):
    world = facts.world(split)
    for relation in world.relations:
        met = [world.entities[0]]
        while (following := world.objects[met[-1], relation]) != met[0]:
            met.append(following)
        assert sorted(met) == sorted(world.entities)


def test_splits_have_no_entity_and_no_relation_in_common():
    worlds = [facts.world(split) for split in SPLITS]
    for field in ("entities", "relations"):
        counts = Counter(entry for world in worlds for entry in getattr(world, field))
        assert set(counts.values()) == {1}
        assert all(len(getattr(world, field)) >= 6 for world in worlds)


def test_no_word_of_one_split_is_a_number_or_entity_of_another_in_search():
    """An entity is one word of a query, so that `owl7` does not find what is said of `owl17`."""
    index = Index.of(facts.world("train").passages)
    entity = facts.world("train").entities[0]
    passages = index.find(entity, 1000)
    assert passages
    assert all(entity in passage.text.split() for passage in passages)


@pytest.mark.parametrize("hops", [(1, 1), (2, 3), (6, 6)])
def test_a_question_follows_its_facts_to_an_answer_that_is_met_last(hops):
    for seed in range(60):
        asked = facts.question(seed, "test", hops=hops)
        assert hops[0] <= len(asked.gold) <= hops[1]
        assert asked.difficulty == f"{len(asked.gold)} hops"
        *relations, at = asked.text.split(" of ")
        passages = {passage.text for passage in facts.world("test").passages}
        for relation, held in zip(reversed(relations), asked.gold, strict=True):
            assert held in passages
            assert held.startswith(f"{at} {relation} ")
            at = held.rsplit(" ", 1)[1]
        assert asked.answers == (at,)
        assert all(at not in held.split() for held in asked.gold[:-1])


def test_the_entity_and_the_relation_find_the_fact_and_no_part_of_them_does():
    index = Index.of(facts.world("val").passages)
    first = named = related = 0
    for seed in range(200):
        (held,) = facts.question(seed, "val", hops=(1, 1)).gold
        subject, kind, bond, _ = held.split()
        first += held in [p.text for p in index.find(f"{subject} {kind} {bond}", 2)]
        named += held in [p.text for p in index.find(subject, 2)]
        related += held in [p.text for p in index.find(f"{kind} {bond}", 2)]
    assert first == 200
    assert named < 60
    assert related < 20


def test_questions_are_many_and_follow_from_seed_and_split_in_every_process():
    texts = [facts.question(seed, "train").text for seed in range(300)]
    assert len({*texts}) == 300
    assert {facts.question(seed, "train").difficulty for seed in range(50)} == {"2 hops", "3 hops"}
    code = "from pettingllms.data import facts; print(facts.question(7, 'train'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "5", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == str(facts.question(7, "train"))


@pytest.mark.parametrize("hops", [(0, 1), (3, 2), (2, 7), (2,)])
def test_impossible_numbers_of_look_ups_are_refused(hops):
    with pytest.raises(ConfigError, match="hops must be two numbers"):
        facts.question(0, "train", hops=hops)
