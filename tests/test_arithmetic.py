"""Word problems: their answers follow from their words, their splits share nothing."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pettingllms.data import arithmetic, math
from pettingllms.data.arithmetic import HEADROOM, LARGEST, generate
from pettingllms.data.math import ReasoningGym
from pettingllms.data.splits import SPLITS
from pettingllms.errors import ConfigError
from pettingllms.grading import same


def solved(question):
    """The answer, read from the words alone."""
    first, *sentences, _ = re.split(r"(?<=[.?]) ", question)
    (value,) = map(int, re.findall(r"\d+", first))
    for sentence in sentences:
        (number,) = map(int, re.findall(r"\d+", sentence))
        if "times as many" in sentence:
            value *= number
        elif re.search(r"loses|sells|away|takes", sentence):
            value -= number
        else:
            assert re.search(r"buys|finds|gets|A friend gives", sentence)
            value += number
    return value


sizes = st.tuples(st.integers(2, 12), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair)))


@pytest.mark.slow
@given(st.integers(0, 1 << 48), st.sampled_from(SPLITS), sizes, st.integers(10, 10**6))
@settings(max_examples=150, deadline=None)
def test_every_story_keeps_its_promises(seed, split, depth, largest):
    story = generate(seed, split, depth=depth, largest=largest)
    assert story == generate(seed, split, depth=depth, largest=largest)
    assert story.split == split
    assert depth[0] <= len(story.steps) <= depth[1]
    assert solved(story.question) == story.values[-1]
    assert all(1 <= value <= HEADROOM * largest for value in story.values)
    assert story.values[-1] not in story.values[:-1]
    problem = arithmetic.problem(seed, split, depth=depth, largest=largest)
    assert (problem.question, problem.answers) == (story.question, (str(story.values[-1]),))
    assert problem.difficulty == f"{len(story.steps)} steps"


def test_default_stories_fit_the_embedded_model():
    stories = [generate(seed, "train") for seed in range(400)]
    assert {len(story.steps) for story in stories} == {2, 3}
    assert max(max(story.values) for story in stories) <= HEADROOM * LARGEST == 120
    assert {sign for story in stories for sign, _ in story.steps} == {"+", "-", "*"}
    assert len({story.question for story in stories}) == 400


@pytest.mark.slow
def test_no_computation_is_in_two_splits():
    by_split = {
        split: {generate(seed, split).computation for seed in range(1500)} for split in SPLITS
    }
    assert all(len(computations) > 1000 for computations in by_split.values())
    assert not by_split["train"] & by_split["val"]
    assert not by_split["train"] & by_split["test"]
    assert not by_split["val"] & by_split["test"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"depth": (1, 2)}, r"depth must be .* got \(1, 2\)"),
        ({"depth": (3, 2)}, "depth"),
        ({"depth": (2, 99)}, "depth"),
        ({"largest": 9}, "largest must be .* got 9"),
        ({"largest": 10**10}, "largest"),
    ],
)
def test_an_impossible_size_is_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        generate(0, "train", **options)


# reasoning-gym

NAMES = (
    "chain_sum",
    "basic_arithmetic",
    "products",
    "gcd",
    "lcm",
    "simple_equations",
    "leg_counting",
)
FRACTIONS = ("fraction_simplification", "dice")


@pytest.mark.reasoning
@pytest.mark.parametrize("name", [*NAMES, *FRACTIONS])
def test_problems_of_reasoning_gym_have_a_split_and_follow_from_the_seed(name):
    tasks = ReasoningGym(name)
    by_split = {
        split: {tasks.problem(seed, split).question for seed in range(25)} for split in SPLITS
    }
    assert all(len(questions) > 10 for questions in by_split.values())
    assert not by_split["train"] & by_split["val"]
    assert not (by_split["train"] | by_split["val"]) & by_split["test"]
    assert tasks.problem(7, "test") == ReasoningGym(name).problem(7, "test")


@pytest.mark.reasoning
@pytest.mark.parametrize("name", NAMES)
def test_our_grader_and_reasoning_gyms_scorer_agree(name):
    tasks = ReasoningGym(name)
    for seed in range(40):
        entry = tasks.entry(seed, "test")
        gold = str(entry["answer"])
        value = int(gold)
        for answer in (gold, str(value + 1), str(-value - 1), f"{gold}1", "", "x", "error"):
            theirs = tasks.tasks.score_answer(answer, entry) == 1.0
            assert same(gold, answer) == theirs, (gold, answer)


@pytest.mark.reasoning
@pytest.mark.parametrize("name", FRACTIONS)
def test_a_reference_of_reasoning_gym_is_right_and_its_neighbour_is_not(name):
    tasks = ReasoningGym(name)
    for seed in range(40):
        entry = tasks.entry(seed, "test")
        gold = str(entry["answer"])
        up = re.findall(r"\d+", gold)[0]
        wrong = gold.replace(up, str(int(up) + 1), 1)
        assert same(gold, gold)
        assert tasks.tasks.score_answer(gold, entry) == 1.0
        assert not same(gold, wrong)
        assert tasks.tasks.score_answer(wrong, entry) < 1.0


@pytest.mark.reasoning
def test_a_misspelt_task_of_reasoning_gym_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'chain_sum'"):
        ReasoningGym("chainsum")


def test_without_reasoning_gym_its_absence_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ConfigError, match="pip install reasoning-gym"):
        ReasoningGym("chain_sum")


def test_the_generators_import_no_optional_package():
    code = (
        f"import sys, {arithmetic.__name__}, {math.__name__}\n"
        "sys.exit(bool({'reasoning_gym', 'sympy', 'torch', 'datasets'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
