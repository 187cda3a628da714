"""FreeText holds whatever a model may write, and costs next to nothing."""

from __future__ import annotations

import copy
import pickle
import string
from typing import Any

import pytest
from gymnasium.spaces import Dict, Space, Text
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.envs.base import SAMPLE_LENGTH, FreeText
from pettingllms.errors import ConfigError

# Hypothesis leaves surrogates out unless they are asked for.
any_text = st.text(st.characters(exclude_categories=()), max_size=50)


@given(any_text)
def test_any_text_is_a_member(text):
    assert text in FreeText()


def test_length_is_the_only_bound():
    space = FreeText(3)
    assert "" in space
    assert "abc" in space
    assert "abcd" not in space
    assert "\ud800\0\U0010ffff" in space


@pytest.mark.parametrize("value", [None, 3, b"bytes", ["a"], 1.5])
def test_only_str_is_a_member(value):
    assert value not in FreeText()


def test_default_bound_is_a_million():
    assert "x" * 1_000_000 in FreeText()
    assert "x" * 1_000_001 not in FreeText()


def test_samples_are_short_printable_members():
    space = FreeText(seed=1)
    samples = [space.sample() for _ in range(200)]
    assert all(sample in space for sample in samples)
    assert {len(sample) for sample in samples} == set(range(SAMPLE_LENGTH + 1))
    assert set("".join(samples)) == set(string.printable)


def test_samples_respect_a_small_bound():
    space = FreeText(2, seed=1)
    assert {len(space.sample()) for _ in range(50)} == {0, 1, 2}


def test_samples_follow_the_seed():
    first, second, other = FreeText(seed=5), FreeText(), FreeText(seed=6)
    second.seed(5)
    drawn = [first.sample() for _ in range(5)]
    assert [second.sample() for _ in range(5)] == drawn
    assert [other.sample() for _ in range(5)] != drawn


def test_masks_are_refused():
    with pytest.raises(ConfigError, match="omit them"):
        FreeText().sample(mask=(1, None))
    with pytest.raises(ConfigError, match="omit them"):
        FreeText().sample(probability=(1, None))


def test_a_bound_below_one_is_refused():
    with pytest.raises(ConfigError, match="at least 1 character, got 0"):
        FreeText(0)


def test_equality_is_that_of_the_bounds():
    assert FreeText(5) == FreeText(5, seed=3)
    assert hash(FreeText(5)) == hash(FreeText(5))
    assert FreeText(5) != FreeText(6)
    assert FreeText(5) != Text(5)
    assert repr(FreeText(5)) == "FreeText(5)"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda space: pickle.loads(pickle.dumps(space))])
def test_copies_draw_on_independently(copied):
    space = FreeText(7, seed=2)
    space.sample()
    twin = copied(space)
    assert twin == space
    ahead = [twin.sample() for _ in range(5)]
    assert [space.sample() for _ in range(5)] == ahead


def test_a_pickle_does_not_carry_the_character_tables():
    assert len(pickle.dumps(FreeText())) < 300


def test_it_fits_in_a_dict_space():
    space: Space[Any] = Dict({"text": FreeText(4)})
    space.seed(3)
    assert space.sample() in space
    assert {"text": "12345"} not in space


def test_it_has_no_array_form():
    assert FreeText().is_np_flattenable is False
    with pytest.raises(ConfigError, match="cannot be flattened"):
        FreeText().character_index("a")
