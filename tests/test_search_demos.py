"""Demonstrations of the search team are right, show single look-ups only, and fit the environment."""

from __future__ import annotations

import random
import re

import pytest

from benchmarks.priming import search as search_demos
from benchmarks.priming.prime import UNITS
from pettingllms.data import facts
from pettingllms.envs import search_v0
from pettingllms.envs.search_text import Reply, parse_reply


@pytest.fixture(scope="module")
def drawn():
    """Demonstrations by role: the lines of the prompt after it, and the reply."""
    rng = random.Random("search demos")
    found = [search_demos.demo(rng, 0.5) for _ in range(1500)]
    return [(*demo.prompt.split("\n "), demo.reply) for demo in found]


def test_replies_can_be_read_and_are_right(drawn):
    said = set()
    for role, question, *lines, reply in drawn:
        read = parse_reply(role, reply, compact=True)
        assert isinstance(read, Reply)
        relation, start = question.split(" of ")
        held = [line for line in lines if line.startswith(f"{start} {relation} ")]
        assert len(held) <= 1
        right = {
            "search": f"{start} {relation}",
            "verify": "yes" if held else "no",
            "answer": held[0].split()[-1] if held else None,
        }
        assert read.said == right[read.kind]
        said.add((role, read.kind, bool(held)))
    assert said == {
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


def test_no_question_takes_more_than_one_look_up(drawn):
    assert all(question.count(" of ") == 1 for _, question, *_ in drawn)


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
        for part in (0, 1):
            assert {r.split()[part] for r in other.relations} <= {
                r.split()[part] for r in train.relations
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
