"""Splits share no task in any guise: not by another order, other words, or as a wrong program."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import zlib
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.data import arithmetic, coding
from pettingllms.data.arithmetic import Step, Story
from pettingllms.data.math import question_split
from pettingllms.data.splits import SPLITS, split_of

DOMAINS = ("arithmetic", "coding", "plan_path", "reasoning_gym", "sokoban", "sudoku")


def multiset(story):
    """What is left of a story without its order, names, things and phrases."""
    return tuple(sorted([("+", story.start), *story.steps]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"depth": (2, 2), "largest": 10}], ids=["default", "small"]
)
def test_no_story_is_in_two_splits_in_whatever_order_its_steps_are(options):
    # With ten numbers and two steps a third of all stories is drawn, so that shared ones are met.
    by_split = {
        split: {multiset(arithmetic.generate(seed, split, **options)) for seed in range(2500)}
        for split in SPLITS
    }
    assert all(len(stories) > 60 for stories in by_split.values())
    for one, other in itertools.combinations(SPLITS, 2):
        assert not by_split[one] & by_split[other]


@pytest.mark.slow
def test_no_held_out_computation_can_have_been_a_demonstration_of_the_base_model():
    for split in ("val", "test"):
        for seed in range(1000):
            computation = arithmetic.generate(seed, split).computation
            assert zlib.crc32(computation.encode()) % 10 < 3  # priming drew from 3 to 9


@given(
    st.integers(1, 120),
    st.lists(st.builds(Step, st.sampled_from("+-*"), st.integers(1, 120)), max_size=8),
    st.randoms(use_true_random=False),
)
def test_the_split_of_a_story_does_not_depend_on_the_order_of_its_steps(start, steps, rng):
    shuffled = rng.sample(steps, len(steps))
    split = Story(start, tuple(steps), "").split
    assert Story(start, tuple(shuffled), "").split == split
    if gained := [n for n, step in enumerate(steps) if step.sign == "+"]:
        swapped = list(steps)
        swapped[gained[0]] = Step("+", start)
        assert Story(steps[gained[0]].number, tuple(swapped), "").split == split


@given(st.lists(st.sampled_from([*"+-*()", "3", "12", "Ann", "has"])), st.randoms())
def test_the_split_of_a_question_does_not_depend_on_the_order_of_its_words(words, rng):
    shuffled = rng.sample(words, len(words))
    assert question_split(" ".join(words)) == question_split("  ".join(shuffled).upper())


@pytest.mark.parametrize("split", SPLITS)
def test_no_known_wrong_program_solves_a_task_of_a_split_held_out_from_its_own(split):
    programs: dict[str, set[str]] = defaultdict(set)
    for other in SPLITS:
        for composition in coding.COMPOSITIONS[other]:
            for function in (False, True):
                programs[other].add(composition.program(function=function))
    held_out = {text for o in SPLITS if o not in ("train", split) for text in programs[o]}
    wrong = [text for seed in range(1500) for text in coding.generate(seed, split).mutants]
    assert len(wrong) > 8000
    assert not held_out & {*wrong}


@pytest.mark.parametrize("family", coding.FAMILIES, ids=[f.name for f in coding.FAMILIES])
def test_no_known_wrong_program_behaves_like_a_held_out_one(family):
    rng = random.Random("other inputs than those that the splits are made with")
    inputs = [coding.random_values(rng, family, 1 + n % 6) for n in range(100)]

    def behavior(composition):
        return repr([composition.run(values) for values in inputs])

    held_out = {
        behavior(composition)
        for split in ("val", "test")
        for composition in coding.COMPOSITIONS[split]
        if composition.family is family
    }
    for composition in coding.COMPOSITIONS["train"][::5]:
        if composition.family is family:
            shown = [other for other in composition.neighbours() if other.split == "train"]
            assert len(shown) >= 4
            assert not held_out & {behavior(other) for other in shown}


@pytest.mark.parametrize("domain", DOMAINS)
def test_seven_tenths_are_train_one_val_two_test(domain):
    counts = Counter(split_of(f"key {n}", domain=domain) for n in range(20_000))
    shares = [counts[split] / 20_000 for split in SPLITS]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.015)


def test_domains_are_split_independently_of_each_other():
    for one, other in itertools.combinations({*DOMAINS} - {"sokoban"}, 2):
        agree = sum(
            split_of(str(n), domain=one) == split_of(str(n), domain=other) for n in range(5000)
        )
        assert agree / 5000 == pytest.approx(0.7**2 + 0.1**2 + 0.2**2, abs=0.03)


@given(st.text(st.characters(exclude_categories=[]), max_size=50), st.sampled_from(DOMAINS))
def test_any_key_has_a_split(key, domain):
    assert split_of(key, domain=domain) in SPLITS


def test_assignments_are_the_published_ones():
    # A change of these moves training tasks into test: the embedded base would have seen them.
    keys = [str(n) for n in range(12)]
    splits = {domain: [split_of(key, domain=domain) for key in keys] for domain in DOMAINS}
    script = (
        "import json; from pettingllms.data.splits import split_of;"
        f"print(json.dumps({{d: [split_of(k, domain=d) for k in {keys!r}] for d in {DOMAINS!r}}}))"
    )
    again = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert json.loads(again) == splits
    tests = {domain: [n for n in range(12) if splits[domain][n] == "test"] for domain in DOMAINS}
    assert tests == {
        "arithmetic": [5, 7],
        "coding": [3, 6, 8, 10],
        "plan_path": [0, 8, 11],
        "reasoning_gym": [0, 1, 3, 8],
        "sokoban": [0, 8, 11],
        "sudoku": [7],
    }
