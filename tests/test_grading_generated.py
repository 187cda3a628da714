"""Generated answers: each equals itself, its LaTeX and what SymPy prints, and differs where a letter, sign, base or unit does."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest
import sympy

from pettingllms.evaluation.scores import majority
from pettingllms.grading import grade, same

LETTERS = sympy.symbols("x y a b c k m n q r s t theta x_1 alpha")
ATOMS = [*LETTERS, *LETTERS, sympy.pi, sympy.E, sympy.I, sympy.sqrt(2), sympy.Rational(3, 7)]
FUNCTIONS = [sympy.sin, sympy.cos, sympy.exp, sympy.log, sympy.sqrt, sympy.atan, sympy.Abs]


def expression(rng, depth):
    """A random expression of SymPy."""
    if depth == 0:
        return rng.choice([rng.choice(ATOMS), sympy.Integer(rng.randint(-12, 12))])
    left, right = expression(rng, depth - 1), expression(rng, depth - 1)
    return rng.choice([
        left + right, left * right, left / (right + rng.choice(LETTERS)), left - right, left**rng.choice([2, 3, -1]) if left else right,
        rng.choice(FUNCTIONS)(left + rng.choice(LETTERS)), rng.choice(LETTERS) ** right,
    ])  # fmt: skip


def changed(rng, made):
    """Expressions that differ from `made` by a sign or a letter, in value as well."""
    names = sorted(made.free_symbols, key=str)
    point = {name: 2.1 + n / 7 for n, name in enumerate(names)} | {sympy.Symbol("w"): 3.3}
    letter = rng.choice(names or LETTERS)
    for other in (-made, made.subs(letter, sympy.Symbol("w"))):
        if abs((other - made).subs(point).evalf()) > 1e-6:
            yield other


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_an_expression_is_what_sympy_prints_and_no_other(seed):
    rng = random.Random(seed)
    for turn in range(65):
        made = expression(rng, rng.choice([1, 2]))
        forms = (sympy.latex(made), str(made))
        gold, answer = forms if turn % 2 else forms[::-1]
        assert same(gold, gold)
        assert same(gold, answer), (gold, answer)
        for other in changed(rng, made):
            assert not same(gold, str(other)), (gold, other)


def constant(rng):
    """A real number in closed form."""
    root = rng.randint(1, 9) * sympy.sqrt(rng.choice([2, 3, 5, 7]))
    whole, fraction = sympy.Integer(rng.randint(-30, 30)), sympy.Rational(rng.randint(-20, 20), 7)
    return rng.choice([whole, fraction, root, whole + root, rng.randint(1, 9) * sympy.pi])


COMPOUNDS = [
    sympy.Tuple, sympy.FiniteSet, sympy.Interval, sympy.Interval.open, sympy.Interval.Lopen,
    lambda one, two: sympy.Matrix([[one, two], [two + 1, 7]]), lambda one, two: sympy.Matrix([one, two, 3]),
    lambda one, two: sympy.Union(sympy.Interval.open(-sympy.oo, one), sympy.Interval(two, sympy.oo)),
    lambda one, two: sympy.Tuple(one * LETTERS[0], two + LETTERS[0], 1),
]  # fmt: skip


@pytest.mark.parametrize("make", COMPOUNDS)
def test_several_values_in_one_are_what_sympy_prints_and_no_others(make):
    rng = random.Random(5)
    for turn in range(10):
        low = constant(rng)
        high = low + rng.randint(1, 40) + sympy.sqrt(rng.choice([2, 3]))
        made, other = make(low, high), make(low, high + 1)
        forms = (sympy.latex(made), str(made))
        gold, answer = forms if turn % 2 else forms[::-1]
        assert same(gold, answer), (gold, answer)
        assert not same(gold, str(other)), (gold, other)


PUBLISHED = Path(__file__).with_name("published_answers.txt")


def published():
    """Few-shot answers of math-verify, and answers in the notation of GSM8K and MATH."""
    return [line for line in PUBLISHED.read_text().splitlines() if line and line[0] != "#"]


@pytest.mark.parametrize("gold", published())
def test_an_answer_of_a_published_set_is_itself_in_every_dress_and_nothing_else(gold):
    for answer in (f"${gold}$", rf"\boxed{{{gold}}}", f" {gold} ", f"{gold}.", rf"\({gold}\)"):
        assert same(gold, answer), answer
    digits = list(re.finditer(r"(?<![a-z_{])[2-8]|(?<=_)[2-8]|(?<=_\{)[2-8]", gold))
    letters = list(re.finditer(r"(?<![a-zA-Z\\])[b-hk-z](?![a-zA-Z])", gold))
    for match in (*digits[:2], *letters[:1]):
        other = chr(ord(match[0]) + 1)
        wrong = gold[: match.start()] + other + gold[match.end() :]
        if other not in gold:
            assert not same(gold, wrong), wrong
    if gold[0].isdigit() and "," not in gold:
        assert not same(gold, f"-{gold}")


UNITS = ["cm", "km", "kg", "minutes", "hours", "dollars", "apples", "square feet", "m/s", "degrees"]


def number(rng):
    """A random number in a random notation, and its value as a program prints it."""
    up, down = rng.randint(-9999, 9999), rng.choice([1, 1, 2, 4, 5, 8])
    value = sympy.Rational(up, down)
    sign, up, down = "-" if value < 0 else "", abs(value.p), value.q
    forms = [rf"{sign}\frac{{{up}}}{{{down}}}", f"{sign}{up}/{down}", f"{float(value)}", f"${sign}{up}/{down}$", rf"\boxed{{{float(value)}}}"]  # fmt: skip
    return rng.choice(forms), value


@pytest.mark.parametrize("seed", range(3))
def test_a_number_is_its_value_and_differs_with_its_base_unit_and_sign(seed):
    rng = random.Random(seed)
    for _ in range(50):
        text, value = number(rng)
        assert same(text, str(value))
        assert not same(text, str(value + 1))
        assert not value or not same(text, str(-value))
        unit, other = rng.sample(UNITS, 2)
        assert same(f"{value} {unit}", rf"{value}\text{{ {unit}}}")
        assert not value or not same(f"{value} {unit}", f"{value} {other}")
        letter, other_letter = rng.sample("abcdfghkmnpqrstuvwxyz", 2)
        assert same(f"{abs(value.p)}{letter}", f"{abs(value.p)}*{letter}")
        assert not value or not same(f"{abs(value.p)}{letter}", f"{abs(value.p)}{other_letter}")
        assert not same(f"{abs(value.p)}{letter}{other_letter}", str(abs(value.p))) or not value
        base, digits = rng.randint(3, 9), f"{rng.randint(1, 2)}{rng.randint(0, 2)}"
        assert same(f"{digits}_{base}", f"{digits}_{{{base}}}")
        assert not same(f"{digits}_{base}", f"{digits}_{base + 1 if base < 9 else 2}")
        assert not same(f"{digits}_{base}", digits)


CLASSES = [
    ["9%", "0.09", "9/100", r"9\%"], ["9", "9.0", "18/2"], ["0.9", "9/10", "90%"], ["5 km", "5000 m"], ["5", "x = 5", "y = 5", "5 = x"], ["5 m", "500 cm"],
    ["2516_8", "2516 base 8"], ["2516_9"], ["2 pm", "2:00 PM"], ["2 am"], ["1, 2", r"\{2, 1\}"], ["(1, 2)"], ["(2, 1)"], ["[1, 2]"],
    ["x+1", "1 + x", r"\frac{2x+2}{2}"], ["x-1"], [r"\sqrt{8}", "2*sqrt(2)"], ["2 apples"], ["2 pears"], ["2"], ["1/3"], ["0.3"],
    [r"\sqrt{2}", "1.4142135623731"], ["1.414214"], ["1.4142136"], ["2x", "y = 2x", "f(x) = 2x"], ["y - 2x = 0"], ["x=1, y=2"], ["x=2, y=1"],
    ["x>2", "2<x", r"\{x|x>2\}"], ["y>2"], ["(2,oo)", r"]2,\infty["], ["2 m", "200 cm"], ["45°", "45 deg"], [r"\frac{\pi}{4}", "pi/4"], ["inf", "oo", r"\infty"],
    [r"\log 7", r"\log(7)", r"\log{7}"], [r"\ln 7", "log(7)", r"\log{\left(7 \right)}"], [r"\log_{10} 7", r"\lg 7", "log10(7)"], ["f(7)"], ["7f", "7*f"], ["a(7)"],
    ["twenty-one", "21", r"\sum_{i=1}^{6} i", "Sum(i, (i, 1, 6))"], [r"\int x dx", r"\int x \, dx"], [r"\frac{x^2}{2}", "x**2/2"], ["1,00,000", "100,000", "one hundred thousand"],
]  # fmt: skip


def test_strict_equality_falls_into_classes():
    """It is reflexive, symmetric and transitive, so that no order of votes matters."""
    labeled = [(text, at) for at, alike in enumerate(CLASSES) for text in alike]
    for at, pair in enumerate(itertools.combinations_with_replacement(labeled, 2)):
        (one, here), (other, there) = pair if at % 2 else pair[::-1]
        assert same(one, other, strict=True) == (here == there), (one, other)


def test_the_order_of_votes_does_not_matter():
    for votes in (["9%", "9", "0.09"], ["5 cm", "5", "5 m", "5"], ["(1,2)", "1,2", "2,1"]):
        winners = set()
        for order in itertools.permutations(votes):
            won = order[majority(order, lambda one, two: same(one, two, strict=True))]
            winners.add(frozenset(vote for vote in votes if same(vote, won, strict=True)))
        largest = max(map(len, winners))
        assert largest == 1 or winners == {max(winners, key=len)}


@pytest.mark.parametrize("gold", [[], (), None, 5, [None], ["5", 7], {}])
def test_a_reference_that_is_none_is_never_equal(gold):
    assert not grade(gold, "5").equal
    assert not grade("5", gold).equal
