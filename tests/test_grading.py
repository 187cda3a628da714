"""Answers are compared as a person would; the exact part needs nothing but Python and little time."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pettingllms.grading import boxed, grade, same
from pettingllms.grading.notation import plain, read_number, split_list
from tests.cpu_time import at_most
from tests.judged_answers import (
    EQUAL,
    NOTATION_EQUAL,
    NOTATION_UNEQUAL,
    SYMBOLIC_EQUAL,
    SYMBOLIC_UNEQUAL,
    UNEQUAL,
)


def short(text):
    return text if isinstance(text, bool) else ascii(text[:24])


def test_the_table_is_large():
    assert len({*EQUAL, *UNEQUAL, *SYMBOLIC_EQUAL, *SYMBOLIC_UNEQUAL}) >= 150
    assert not {*EQUAL} & {*UNEQUAL}


@pytest.mark.parametrize(("gold", "answer"), EQUAL, ids=short)
def test_equal_answers_are_equal_both_ways_and_exactly(gold, answer):
    for verdict in (grade(gold, answer), grade(answer, gold)):
        assert (verdict.equal, verdict.by) == (True, "exact")


@pytest.mark.parametrize(("gold", "answer"), UNEQUAL, ids=short)
def test_unequal_answers_are_unequal_both_ways(gold, answer):
    with at_most(1):
        assert not grade(gold, answer).equal
        assert not grade(answer, gold).equal


@pytest.mark.parametrize(("gold", "answer"), SYMBOLIC_EQUAL, ids=short)
def test_what_algebra_shows_to_be_equal_is_equal(gold, answer):
    verdict = grade(gold, answer)
    assert verdict.equal, verdict


@pytest.mark.parametrize(("gold", "answer"), SYMBOLIC_UNEQUAL, ids=short)
def test_what_algebra_shows_to_differ_differs(gold, answer):
    assert not grade(gold, answer).equal


@pytest.mark.slow
@pytest.mark.parametrize(("gold", "answer"), NOTATION_EQUAL, ids=short)
def test_one_answer_in_two_notations_is_equal_both_ways(gold, answer):
    assert grade(gold, answer).equal
    assert grade(answer, gold).equal


@pytest.mark.parametrize(("gold", "answer"), NOTATION_UNEQUAL, ids=short)
def test_answers_that_look_alike_differ_both_ways(gold, answer):
    assert not grade(gold, answer).equal
    assert not grade(answer, gold).equal


# Several answers


@pytest.mark.parametrize("answer", ["1, 2", "2, 1", r"\{2,1\}", "2.0 and 1", "(1, 2)", "[1, 2]"])
def test_all_of_several_answers_are_asked_for_in_any_order(answer):
    assert same(("1", "2"), answer)


@pytest.mark.parametrize("answer", ["1", "1, 1", "1, 2, 3", "", "1 2", "x" * 5000])
def test_some_of_several_answers_are_not_enough(answer):
    assert not same(("1", "2"), answer)


def test_one_answer_in_a_sequence_is_that_answer():
    assert same(("0.5",), "1/2")


def test_several_answers_may_be_pairs_or_long_numbers():
    assert same(("(1,2)", "1,234"), "1234, (1, 2)")
    assert not same(("(1,2)", "3"), "3, (2, 1)")


# \boxed


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{5}", "5"),
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{a \boxed{b} c}", r"a \boxed{b} c"),
        (r"\boxed {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\}}", r"\}"),
        (r"\boxed{\text{a {b} c}}", r"\text{a {b} c}"),
        (r"\boxed{}", ""),
        (r"{ \boxed{5}", "5"),
        (r"} \boxed{5}", "5"),
        (r"\boxed{5", None),
        (r"\boxed{1} \boxed{2", "1"),
        (r"boxed{5}", None),
        (r"\boxedd{5}", None),
        (r"\boxed 5", None),
        ("5", None),
        ("", None),
    ],
)
def test_the_last_box_that_closes_is_the_answer(text, content):
    assert boxed(text) == content


@given(st.text(alphabet="ab{}\\ $,"))
def test_a_box_around_balanced_text_is_found(inner):
    balanced = inner.replace("\\", "").replace("{", "{{}").replace("}", "}")
    depth = 0
    for mark in balanced:
        depth += (mark == "{") - (mark == "}")
        if depth < 0:
            return
    if depth == 0:
        assert boxed(rf"}}}} {{ text \boxed{{{balanced}}} more") == balanced


@pytest.mark.slow
def test_boxes_are_found_in_linear_time():
    with at_most(10):
        for text in (r"\boxed{" * 140_000, "{" * 1_000_000, "}" * 1_000_000, "\\" * 1_000_000):
            assert boxed(text) is None
        assert boxed(r"\boxed{" * 70_000 + "}" * 70_000) is not None
        assert boxed(r"\boxed" + " " * 1_000_000) is None


# Any text

ANSWERLIKE = st.text(alphabet="0123456789.,/%^*+-=!() {}[]\\$abxπ√ \n", max_size=40)
PIECES = st.sampled_from(
    [
        r"\frac{", "}", "{", r"\sqrt{", r"\sqrt", "^", "9", "12", ",", r"\pi", "(", ")", "[", r"\left", "%", "e5", "!", "-", r"\text{",
        " and ", r"\pm", "=", "x", ".", "/", "**", r"\{", r"\}", r"\circ", " ", "99999", "1,234", r"\boxed{", "cm", r"\cdot", "\u00b0",
    ]
)  # fmt: skip


def test_a_sign_that_unicode_does_not_assign_is_no_answer():
    assert not grade("5", "\u03a2").equal  # it lies between Rho and Sigma


@pytest.mark.slow
@given(st.one_of(st.text(), ANSWERLIKE, st.lists(PIECES, max_size=30).map("".join)))
@settings(max_examples=250, deadline=None)
def test_any_text_is_read_without_exception_and_in_bounded_time(text):
    with at_most(1, text):
        boxed(text)
        read_number(text)
        split_list(plain(text))
        assert read_number(plain(text)) is None or not grade("not this", text).equal
        assert grade(text, text).equal == bool(text.strip())


@pytest.mark.slow
@given(st.lists(PIECES, min_size=1, max_size=8), st.integers(1, 300))
@settings(max_examples=150, deadline=None)
def test_repeated_pieces_take_bounded_time(pieces, times):
    text = "".join(pieces) * times
    with at_most(1, text):
        boxed(text)
        assert not grade("no such thing", text).equal
        read_number(plain(text)) if len(text) < 3000 else None


def cpu_seconds(text):
    started = time.thread_time()
    plain.__wrapped__(text)
    return time.thread_time() - started


@pytest.mark.parametrize("piece", ["%", r"\percent ", "a ", "{%"])
def test_reading_takes_time_in_proportion_to_the_text(piece):
    """Eight times the text took 64 times as long where each sign became a place to look from."""
    short, long = piece * (400 // len(piece)), piece * (3200 // len(piece))
    assert min(cpu_seconds(long) for _ in range(3)) < 24 * min(cpu_seconds(short) for _ in range(5))


@given(st.fractions(max_denominator=10**6), st.sampled_from(["{0}", "${0}$", "x = {0}", "{0} cm"]))
def test_a_fraction_is_read_in_all_its_forms(value, dress):
    up, down = value.numerator, value.denominator
    for form in (f"{up}/{down}", rf"\frac{{{up}}}{{{down}}}", rf"\dfrac{{{2 * up}}}{{{2 * down}}}"):
        assert same(str(value), dress.format(form))
    assert not same(str(value), f"{up + 1}/{down}")


@given(st.integers(-(10**12), 10**12))
def test_an_integer_is_read_in_all_its_forms(value):
    forms = [
        f"{value:,}",
        f"{value}.0",
        f"{value}.",
        f"${value}$",
        f"0{value}" if value >= 0 else "" or str(value),
    ]
    forms += [
        f"{value:,}".replace(",", "{,}"),
        f"{value} apples",
        f"x={value}",
        rf"\text{{{value}}}",
    ]
    for form in forms:
        assert same(str(value), form), form
        assert not same(str(value + 1), form), form


@given(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000, places=3)
)
def test_what_python_prints_for_a_float_is_the_decimal(value):
    assert same(str(value), repr(float(value)))
    assert same(str(value), repr(float(value) * 3 / 3))
    assert not same(str(value), repr(float(value) + 0.001))


def test_reading_is_the_same_every_time():
    rng = random.Random(5)
    texts = ["".join(rng.choices("0123456789.,/%{}\\ ", k=9)) for _ in range(200)]
    first = [grade("7", text) for text in texts]
    assert first == [grade("7", text) for text in texts]


def test_grading_imports_no_computer_algebra():
    code = (
        "import sys\nfrom pettingllms.grading import grade\nassert grade('1/2', '0.5').equal\n"
        "sys.exit('sympy' in sys.modules or 'math_verify' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
