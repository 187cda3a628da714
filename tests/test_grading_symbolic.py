"""SymPy in its own process: killed in time, replaced, agreeing with the exact path."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pettingllms.grading import Grade, grade, same, symbolic
from pettingllms.grading.notation import plain
from tests.cpu_time import at_most

# Pairs that a computer algebra system does not finish, or only with much memory.
SLOW = [
    ("(x+y+z+1)^{60} = 3", "(x+y+z+2)^{61} = 4"),
    (r"(\sqrt{x+\sqrt{x}}+x)^{40}<3", "x<2"),
]


def ask(gold, answer):
    """The verdict of SymPy without what it cost."""
    checked = symbolic.symbolic_equal(gold, answer, 6)
    return Grade(checked.equal, checked.by, checked.note)


@pytest.fixture
def fresh(monkeypatch):
    """A grader with no process yet, whose process ends with the test."""
    grader = symbolic._Grader()
    monkeypatch.setattr(symbolic, "_GRADER", grader)
    symbolic.symbolic_equal.cache_clear()
    yield grader
    grader.end()
    symbolic.symbolic_equal.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(("gold", "answer"), SLOW)
def test_a_pair_that_takes_long_is_ended_and_is_unequal(fresh, gold, answer):
    started = time.monotonic()
    verdict = ask(gold, answer)
    assert verdict == Grade(False, "undecided", symbolic.TOO_LONG)
    assert time.monotonic() - started < 30
    assert ask("x+1", "1+x") == Grade(True, "sympy")


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_asked_again(fresh):
    """An answer is not wrong because something else has ended the grader's process."""
    assert ask("x+1", "1+x")[0]
    first = fresh.process
    first.kill()
    assert ask("x+2", "2+x") == Grade(True, "sympy")
    assert first.returncode is not None
    assert fresh.process.pid != first.pid


@pytest.mark.slow
def test_a_pair_that_takes_long_is_asked_once(fresh):
    assert ask("x+1", "1+x")[0]
    first = fresh.process
    assert ask(*SLOW[0])[2] == symbolic.TOO_LONG
    assert first.returncode == -signal.SIGPROF
    assert fresh.process is None


def test_equal_questions_are_asked_once(fresh):
    assert ask("x+1", "1+x")[0]
    fresh.process.kill()
    assert ask("x+1", "1+x")[0]


def test_a_question_that_is_interrupted_leaves_no_reply_for_the_next(fresh):
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)  # while SymPy is imported
    try:
        with pytest.raises(KeyboardInterrupt):
            ask("x+1", "1+x")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert ask("x+2", "3+x") == Grade(False, "sympy")


def test_many_threads_get_their_own_verdicts(fresh):
    verdicts = {}

    def judge(n):
        verdicts[n] = ask(f"x+{n}", f"{n if n % 2 else n + 1}+x")[0]

    threads = [threading.Thread(target=judge, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {n: bool(n % 2) for n in range(20)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_its_own_worker(fresh):
    assert ask("x+1", "1+x")[0]
    before = fresh.process.pid
    child = os.fork()
    if child == 0:
        mine = ask("x+4", "4+x")[0] and fresh.process.pid != before
        fresh.end()
        os._exit(0 if mine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ask("x+5", "5+x")[0]
    assert fresh.process.pid == before


def test_without_sympy_the_exact_path_decides_alone_and_says_so_once(
    fresh, monkeypatch, tmp_path, caplog
):
    worker = tmp_path / "worker.py"
    source = Path(symbolic.__file__).with_name("worker.py").read_text()
    source = source.replace("import sympy\n", "raise ImportError\n", 1)
    assert "raise ImportError" in source
    worker.write_text(source)
    monkeypatch.setattr(symbolic, "__file__", str(worker))
    with caplog.at_level(logging.WARNING):
        for gold, answer in (("x+1", "1+x"), ("x+2", "2+x")):
            assert grade(gold, answer) == Grade(False, "undecided", symbolic.MISSING)
    assert same("1/2", "0.5")
    (record,) = caplog.records
    assert "pettingllms[math]" in record.getMessage()


# Agreement


def written(rng, value):
    """A way to write a fraction."""
    up, down = value.numerator, value.denominator
    ways = [f"{up}/{down}", rf"\frac{{{up}}}{{{down}}}", rf"\dfrac{{{3 * up}}}{{{3 * down}}}"]
    if down == 1:
        ways += [
            str(up),
            f"{up}.0",
            f"{up:,}",
            f"{up:,}".replace(",", "{,}"),
            f"0{up}" if up >= 0 else str(up),
        ]
    decimal = Fraction(round(value * 1000), 1000)
    if decimal == value:
        ways += [str(float(value)), f"{float(value):.3f}", rf"{float(value * 100):g}\%"]
    return rng.choice(ways)


@pytest.mark.slow
def test_the_exact_path_and_sympy_agree(fresh):
    rng = random.Random(5)
    verdicts = []
    for _ in range(300):
        value = Fraction(rng.randint(-3000, 3000), rng.choice((1, 1, 2, 4, 5, 8, 10, 3, 7)))
        step = Fraction(rng.choice((-9, -1, 1, 2)), rng.choice((1, 2, 3, 10, 100)))
        other = value if rng.random() < 0.5 else value + step
        gold, answer = plain(written(rng, value)), plain(written(rng, other))
        ours, theirs = grade(gold, answer), ask(gold, answer)
        assert ours.by == "exact"
        assert (ours.equal, "sympy") == theirs[:2], (gold, answer)
        verdicts.append(ours.equal)
    assert 90 < sum(verdicts) < 210


@pytest.mark.slow
def test_a_list_of_slow_items_takes_no_longer_than_one(fresh):
    slow = "(x+y+z+1)^{6%d} = 3"
    verdict = grade(
        tuple(f"(x+y+z+2)^{{7{n}}} = 4" for n in range(6)), ", ".join(slow % n for n in range(6))
    )
    assert (verdict.equal, verdict.by) == (False, "undecided")
    assert symbolic.symbolic_equal.cache_info().misses == 1


@pytest.mark.slow
def test_the_time_for_all_items_together_is_bounded(fresh, monkeypatch):
    monkeypatch.setattr("pettingllms.grading.answers.CPU_S", 0.1)
    items = [f"(x+y+z+1)^{{{n}}}(x-1)" for n in range(90, 122)]
    expanded = [f"(x+y+z+1)^{{{n}}}x-(x+y+z+1)^{{{n}}}" for n in range(90, 122)]
    verdict = grade(f"({','.join(items)})", f"({','.join(expanded)})")
    assert (verdict.equal, verdict.by) == (False, "undecided")
    assert 1 <= symbolic.symbolic_equal.cache_info().misses < 32


def test_sets_of_sets_are_compared_in_bounded_time():
    numbers = [str(n) for n in range(1, 16)]
    gold = ",".join(rf"\{{{','.join([*numbers, str(100 + a)])}\}}" for a in range(16))
    answer = ",".join(rf"\{{{','.join([*numbers[::-1], str(200 + a)])}\}}" for a in range(16))
    with at_most(2):
        verdict = grade(f"\\{{{gold}\\}}", f"\\{{{answer}\\}}")
        assert (verdict.equal, verdict.by) == (False, "undecided")


ALGEBRA = st.lists(
    st.sampled_from(
        [*"xyi19()+-=<,^{}", r"\frac{1}{", r"\sqrt{", "}", r"\sin", "!", r"\cdot", r"\pm", r"\le", "**", r"\infty", r"\cup",
         r"\begin{pmatrix}", r"\end{pmatrix}", r"\\", "&", r"\{", r"\}", "7=", r"\log_2 ", r"\sum_{n=1}^9", r"\lim_{x\to 0}", " "]
    ),
    max_size=12,
).map("".join)  # fmt: skip


@given(ALGEBRA, ALGEBRA)
@settings(max_examples=100, deadline=None)
def test_any_pair_has_a_verdict_and_costs_this_process_little(gold, answer):
    with at_most(1, (gold, answer)):
        verdict = grade(gold, answer)
        assert verdict == grade(gold, answer)
        assert verdict.by in ("exact", "sympy", "undecided")


@given(ALGEBRA, st.sampled_from(["1=0", "0=0", "7=5", "x=x", "1<2", "5=5=5"]))
@settings(max_examples=60, deadline=None)
def test_a_statement_about_nothing_is_no_answer_but_its_own_value(gold, statement):
    value = statement[-1] if statement in ("0=0", "5=5=5") else None
    if grade(gold, statement).equal and plain(gold).replace(" ", "") != statement:
        assert value is not None
        assert grade(gold, value).equal


def test_decimals_count_to_six_places_in_all_forms():
    assert grade(r"(\frac{3}{5},\frac{8}{3}]", "(0.6,2.666667]").equal
    assert not grade(r"(\frac{3}{5},\frac{8}{3}]", "(0.6,2.6667]").equal
    assert not grade(r"\sqrt{2}", "1.414").equal
