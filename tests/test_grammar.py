from __future__ import annotations

import random
import subprocess
import sys
from itertools import cycle

import pytest

from pettingllms.data import coding
from pettingllms.data.asserts import Test as Pair
from pettingllms.data.coding import COMPOSITIONS, FAMILIES, composed
from pettingllms.data.splits import SPLITS
from pettingllms.envs import coding_judge
from pettingllms.sandbox import Case, Limits, open_sandbox

ALL = [composition for split in SPLITS for composition in COMPOSITIONS[split]]
families = pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
forms = pytest.mark.parametrize("function", [True, False], ids=["function", "stdin"])


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


def fresh_values(family, count, longest=6):
    """Inputs that the probes behind the splits do not know, the shortest possible among them."""
    rng = random.Random("fresh values")
    return [coding.random_values(rng, family, n % longest + 1) for n in range(count)]


def covering(family):
    """A few compositions with every part of the family in one of them."""
    longest = max(map(len, family.stages))
    chosen = [cycle(stage) for stage in family.stages]
    return [composed(family, tuple(map(next, chosen))) for _ in range(longest)]


@families
@forms
def test_every_part_computes_what_its_code_computes(family, function, sandbox):
    compositions, inputs = covering(family), fresh_values(family, 12)
    assert {part for c in compositions for part in c.parts} == {p for s in family.stages for p in s}
    texts = [
        coding.input_text(compositions[0].family, values, function=function) for values in inputs
    ]
    cases = [Case(function="solve", args=t) if function else Case(stdin=t) for t in texts]
    programs = [composition.program(function=function) for composition in compositions]
    results = sandbox.run(programs, cases, limits=Limits(cpu_s=5))
    for composition, row in zip(compositions, results, strict=True):
        for values, text, result in zip(inputs, texts, row, strict=True):
            value = composition.run(values)
            expected = Pair(text, coding.output_text(value, function=function))
            assert coding_judge.passes(expected, result, "solve" if function else None), (
                composition.name,
                values,
                result,
            )


def test_every_composition_is_in_exactly_one_split():
    names = [composition.name for composition in ALL]
    assert len(names) == len(set(names))
    sizes = [len(a) * len(b) * len(c) for a, b, c in (family.stages for family in FAMILIES)]
    assert len(names) == sum(sizes)
    for split in SPLITS:
        assert all(composition.split == split for composition in COMPOSITIONS[split])
    shares = [len(COMPOSITIONS[split]) / len(names) for split in SPLITS]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.05)


@families
def test_no_two_splits_have_a_composition_that_computes_the_same(family):
    inputs = fresh_values(family, 150)
    splits_of: dict[str, set[str]] = {}
    for composition in ALL:
        if composition.family is family:
            computed = repr([composition.run(values) for values in inputs])
            splits_of.setdefault(computed, set()).add(composition.split)
    assert len(splits_of) > 50
    assert {len(splits) for splits in splits_of.values()} == {1}


def test_the_parts_of_held_out_compositions_are_known_from_training():
    trained = {
        (c.family.name, place, p.name)
        for c in COMPOSITIONS["train"]
        for place, p in enumerate(c.parts)
    }
    held_out = {
        (c.family.name, place, part.name)
        for split in ("val", "test")
        for c in COMPOSITIONS[split]
        for place, part in enumerate(c.parts)
    }
    assert held_out <= trained


@pytest.mark.slow
def test_thousands_of_questions_are_never_shared_between_splits():
    questions = {
        split: {coding.generate(seed, split).question for seed in range(1500)} for split in SPLITS
    }
    assert all(len(texts) > 1000 for texts in questions.values())
    assert len(set().union(*questions.values())) == sum(map(len, questions.values()))


@forms
def test_a_question_says_every_part_and_the_form_of_the_answer(function):
    for composition in ALL[::23]:
        rng = random.Random(composition.name)
        it = "it" if composition.family.parameters == 2 else "each"
        phrasings = {composition.question(rng, function=function) for _ in range(12)}
        assert len(phrasings) > 3
        for question in phrasings:
            assert question.startswith(composition.family.reads[function])
            assert ("return" in question, "print" in question) == (function, not function)
            assert "{" not in question
            for part in composition.parts:
                assert any(phrase.format(it=it) in question for phrase in part.phrases)


def test_phrases_of_a_stage_are_told_apart():
    for family in FAMILIES:
        for stage in family.stages:
            phrases = [phrase for part in stage for phrase in part.phrases]
            assert len(phrases) == len(set(phrases))
            assert len({part.name for part in stage}) == len({part.code for part in stage})


def test_neighbours_differ_in_exactly_one_part():
    for composition in ALL[::97]:
        neighbours = composition.neighbours()
        assert len(neighbours) == sum(len(stage) - 1 for stage in composition.family.stages)
        for other in neighbours:
            pairs = zip(composition.parts, other.parts, strict=True)
            assert sum(left is not right for left, right in pairs) == 1


@pytest.mark.slow
def test_tasks_and_splits_are_the_same_in_every_process():
    script = (
        "import zlib; from pettingllms.data import coding;"
        "tasks = [coding.generate(seed, split) for seed in range(20) for split in coding.SPLITS];"
        "names = [[c.name for c in coding.COMPOSITIONS[split]] for split in coding.SPLITS];"
        "print(zlib.crc32(repr((tasks, names)).encode()))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
