"""Demonstrations of the search team are right for one look-up, drawn by lot for several, and fit the environment."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from benchmarks.priming import search as search_demos
from benchmarks.priming.prime import UNITS
from pettingllms.data import facts
from pettingllms.envs import search_v0
from pettingllms.envs.search_text import SearchReply, parse_reply


@pytest.fixture(scope="module")
def drawn():
    """Demonstrations: the role, the other lines of the prompt, and the reply."""
    rng = random.Random("search demos")
    sampled = [search_demos.demo(rng, 0.5) for _ in range(3000)]
    return [(*demo.prompt.split("\n "), demo.reply) for demo in sampled]


@pytest.fixture(scope="module")
def single(drawn):
    """Those whose question takes one look-up."""
    return [lines for lines in drawn if lines[1].count(" of ") == 1]


@pytest.fixture(scope="module")
def several(drawn):
    """Those whose question takes more."""
    return [lines for lines in drawn if lines[1].count(" of ") > 1]


def test_replies_can_be_read_and_are_right(single):
    shown = set()
    for role, question, *lines, reply in single:
        read = parse_reply(role, reply, "compact")
        assert isinstance(read, SearchReply)
        relation, start = question.split(" of ")
        held = [line for line in lines if line.startswith(f"{start} {relation} ")]
        assert len(held) <= 1
        right = {
            "search": f"{start} {relation}",
            "verify": "yes" if held else "no",
            "answer": held[0].split()[-1] if held else None,
        }
        assert read.said == right[read.kind]
        shown.add((role, read.kind, bool(held)))
    assert shown == {
        ("verifier", "verify", True),
        ("verifier", "verify", False),
        ("searcher", "search", False),
        ("answerer", "answer", True),
        ("answerer", "verify", False),
        ("solver", "answer", True),
        ("solver", "search", False),
    }


def test_an_answerer_says_no_only_where_it_may(drawn):
    passed = [
        lines[-1] for role, _, *lines, reply in drawn if (role, reply[-2:]) == ("answerer", "no")
    ]
    assert passed
    assert set(passed) == {"no"}


def test_of_several_look_ups_every_part_is_shown_and_none_is_preferred(several):
    """A query names any relation of the question as often as any other, and often an entity of the question."""
    assert len(several) > 900
    places: Counter[float] = Counter()
    starts, words = [], []
    for role, question, *lines, reply in several:
        *relations, start = question.split(" of ")
        read = parse_reply(role, reply, "compact")
        assert isinstance(read, SearchReply)
        if read.kind == "search":
            entity, relation = read.said.split(" ", 1)
            assert entity in question or any(entity in line for line in lines)
            if len({*relations}) == len(relations):
                places[relations.index(relation) / (len(relations) - 1)] += 1
            starts.append(entity == start)
        elif read.kind == "verify" and role == "verifier":
            words.append(read.said == "yes")
    assert abs(places[0.0] - places[1.0]) < 0.25 * places[1.0]
    assert 0.25 < sum(starts) / len(starts) < 0.75
    assert 0.4 < sum(words) / len(words) < 0.6


def test_only_entities_and_relations_of_the_training_split_are_shown(drawn):
    train = facts.world("train")
    for _, question, *lines, reply in drawn:
        text = "\n".join([question, *lines, reply])
        assert {*re.findall(r"[a-z]+\d+", text)} <= {*train.entities}
        pairs = {
            pair
            for pair in re.findall(r"([a-z]+ [a-z]+)\b(?!\d)", text)
            if pair.split()[1] in facts.BONDS
        }
        assert pairs <= {*train.relations}


def test_every_word_of_the_other_splits_is_shown_in_training():
    train = facts.world("train")
    for split in ("val", "test"):
        other = facts.world(split)
        assert {re.sub(r"\d", "", e) for e in other.entities} <= {
            re.sub(r"\d", "", e) for e in train.entities
        }
        for place in (0, 1):
            assert {r.split()[place] for r in other.relations} <= {
                r.split()[place] for r in train.relations
            }


def test_prompts_are_those_of_the_environment(drawn):
    shown = {role: "\n ".join((role, question, *lines)) for role, question, *lines, _ in drawn}
    for topology in ("router", "chain", "single"):
        env = search_v0.env(topology=topology, prompt="compact", hops=(1, 1))
        env.reset(seed=0)
        for agent in env.possible_agents:
            role = agent.removesuffix("_0")
            role_line, question, *rest = env.observe(agent)["text"].split("\n ")
            assert role_line == role
            assert re.fullmatch(r"[a-z]+ [a-z]+ of [a-z]+\d+", question)
            assert rest == (["no"] if (topology, role) == ("chain", "answerer") else [])
            assert shown[role].startswith(f"{role}\n")


def test_demonstrations_are_short_and_of_few_words(drawn):
    words = set()
    for lines in drawn:
        units = re.findall(UNITS, "\n".join(lines))
        assert len(units) < 80
        words |= {unit.strip() for unit in units}
    spelled = {word for word in words if re.fullmatch("[A-Za-z_]+", word)}
    assert spelled <= {*search_demos.units()}
    assert {word for word in words if word.isdigit()} <= {*search_demos.units()}


def test_demonstrations_follow_from_the_seed():
    def draw(seed):
        rng = random.Random(seed)
        return [search_demos.demo(rng, 0.0) for _ in range(20)]

    assert draw(1) == draw(1) != draw(2)
