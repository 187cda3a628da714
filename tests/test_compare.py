from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.envs.coding_judge import same_output, same_value

# Printed text


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("3", "3\n"),
        ("3", "3  \n\n\n"),
        ("1 2\n3", "1 2 \n3\n"),
        ("1  2", "1 2"),  # blanks between tokens
        ("", "\n \n"),
        ("0.5", "0.5000004"),
        ("0.5", ".5"),
        ("1e6", "1000000"),
        ("1000000.0", "1000000.9"),  # relative
        ("x 0.1 y", "x 0.10000001 y"),
        ("-2.0", "-2"),
    ],
)
def test_outputs_that_are_the_same(expected, actual):
    assert same_output(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("3", "4"),
        ("3", ""),
        ("", "3"),
        ("3", "3.0"),  # integers are exact
        ("3", "3.0000001"),
        ("0.5", "0.50001"),
        ("0.5", "nan"),
        ("0.5", "inf"),
        ("1e999", "1e999x"),
        ("Yes", "yes"),
        ("1 2 3", "3 2 1"),  # nothing is a set
        ("1 2", "1\n2"),
        ("a\nb", "a\n\nb"),
        ("a", "\na"),
        ("1 2", "1 2 3"),
        ("0.5", "0." + "5" * 100),
        ("abc", "abd"),
    ],
)
def test_outputs_that_differ(expected, actual):
    assert not same_output(expected, actual)


@given(st.text())
def test_an_output_is_its_own(text):
    assert same_output(text, text)
    assert same_output(text, text + "\n")


@given(st.text(), st.text())
def test_comparing_texts_never_raises(expected, actual):
    assert same_output(expected, actual) in (True, False)
    assert same_value(expected, actual) in (True, False)


@pytest.mark.parametrize("piece", ["1" * 10, "1.", "1.5 ", " ", "\n", "e5", "+-1"])
def test_a_megabyte_is_compared_at_once(piece):
    text = piece * (1_000_000 // len(piece))
    started = time.process_time()
    assert not same_output(text, text + " 1")
    assert time.process_time() - started < 5


# Returned values

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)


@given(json_values)
def test_a_value_is_its_own(value):
    assert same_value(json.dumps(value), json.dumps(value))


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("1.0", "1"),
        ("[0.1]", "[0.10000000001]"),
        ('{"a": [1, 2]}', '{"a":[1,2]}'),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
        ("null", "null"),
    ],
)
def test_values_that_are_the_same(expected, actual):
    assert same_value(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("1", "1.0"),
        ("1", "true"),
        ("1.0", "true"),
        ("true", "1"),
        ("0", "false"),
        ("null", "0"),
        ("null", None),
        ('"1"', "1"),
        ("[1, 2]", "[2, 1]"),
        ("[1]", "[1, 1]"),
        ('{"a": 1}', '{"a": 1, "b": 1}'),
        ("1.5", "NaN"),
        ("1.5", "Infinity"),
        ("1", "1 2"),
        ("1", ""),
        ("1", "one"),
    ],
)
def test_values_that_differ(expected, actual):
    assert not same_value(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("1.5", "1" + "0" * 400),  # larger than any float
        ("1.5", "9" * 10_000),
        ("[" * 100_000, "[" * 100_000),
        ("[]", "[" * 100_000 + "]" * 100_000),
    ],
)
def test_a_monstrous_value_is_a_wrong_one(expected, actual):
    assert not same_value(expected, actual)
