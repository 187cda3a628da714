"""Threads whose simple programs wait for the same sandbox share processes; each gets its own results, or its own error."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox import Case, Limits, RunResult, open_sandbox, together
from pettingllms.sandbox.together import _GATHERERS, SharedRuns
from pettingllms.sandbox.types import Sandbox
from tests.processes import eventually

LIMITS = Limits(cpu_s=0.5, wall_s=10.0, memory_mib=128, output_kib=64)
CASES = [Case(stdin=text) for text in ("3\n", "4\n")]
LOOP = "while True:\n    pass"


def program(number: int) -> str:
    return f"print({number} * int(input()))"


class Gate:
    """A sandbox that holds its first processes back until enough threads wait for it."""

    def __init__(self, sandbox: Sandbox, held: int) -> None:
        self._sandbox, self.calls, self.failing = sandbox, 0, False
        self._held, self._open = held, threading.Event()

    def run(
        self, programs: Sequence[str], cases: Sequence[Case], **options: Any
    ) -> list[list[RunResult]]:
        self.calls += 1
        if self.calls <= self._held:
            assert self._open.wait(30)
        if self.failing:
            raise SandboxUnavailable("the engine is gone")
        return self._sandbox.run(programs, cases, **options)

    def let_go(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._sandbox.close()


@pytest.fixture
def gate(monkeypatch) -> Any:
    monkeypatch.setattr("pettingllms.sandbox.together.os.cpu_count", lambda: 2)
    with open_sandbox("embedded", workers=1) as opened:
        yield Gate(opened, held=1)


def outputs(sandbox: Sandbox, text: str, limits: Limits = LIMITS) -> list[str]:
    [row] = SharedRuns(sandbox, limits)([text], CASES)
    return [run.stdout if run.status == "ok" else run.status for run in row]


def submitted(
    gate: Gate, texts: Sequence[str], limits: Sequence[Limits]
) -> list[Future[list[str]]]:
    """Runs every text on its own thread: one process waits at the gate, and the others for its end."""
    pool, (first, *others) = ThreadPoolExecutor(len(texts)), zip(texts, limits, strict=True)
    futures = [pool.submit(outputs, gate, *first)]
    assert eventually(lambda: gate.calls == 1)
    futures += [pool.submit(outputs, gate, *other) for other in others]
    assert eventually(lambda: len(_GATHERERS[gate]._waiting) == len(others))
    gate.let_go()
    pool.shutdown()
    return futures


def at_once(gate: Gate, texts: Sequence[str], limits: Sequence[Limits]) -> list[list[str]]:
    return [future.result(60) for future in submitted(gate, texts, limits)]


def test_programs_of_threads_that_wait_share_a_process(gate) -> None:
    printed = at_once(gate, [program(n) for n in range(12)], [LIMITS] * 12)
    assert printed == [[f"{3 * n}\n", f"{4 * n}\n"] for n in range(12)]
    assert gate.calls == 2  # the one that ran while the others came, and theirs


def test_an_endless_loop_takes_no_result_from_those_that_share_its_process(gate) -> None:
    texts = [program(1), program(2), LOOP, program(3), program(4)]
    printed = at_once(gate, texts, [LIMITS] * 5)
    assert printed.pop(2) == ["cpu_limit", "cpu_limit"]
    assert printed == [[f"{3 * n}\n", f"{4 * n}\n"] for n in (1, 2, 3, 4)]


def test_programs_with_other_limits_do_not_share(gate) -> None:
    limits = [Limits(memory_mib=mib) for mib in (96, 128, 128, 160)]
    printed = at_once(gate, [program(n) for n in range(4)], limits)
    assert printed == [[f"{3 * n}\n", f"{4 * n}\n"] for n in range(4)]
    assert gate.calls in (3, 4)  # four where one of the two alike came first of all


def test_a_sandbox_that_fails_tells_every_thread_and_holds_none(gate) -> None:
    gate.failing = True
    with pytest.raises(SandboxUnavailable, match="the engine is gone"):
        at_once(gate, [program(n) for n in range(6)], [LIMITS] * 6)
    gate.failing = False
    assert outputs(gate, program(5)) == ["15\n", "20\n"]


def test_an_interrupt_of_one_thread_leaves_the_others_their_results(gate) -> None:
    first = True
    run = gate.run

    def interrupted(*args: Any, **options: Any) -> Any:
        nonlocal first
        mine, first = first, False
        results = run(*args, **options)
        if mine:
            raise KeyboardInterrupt
        return results

    gate.run = interrupted
    asked = submitted(gate, [program(n) for n in range(6)], [LIMITS] * 6)
    ends = [(future.exception(60), n) for n, future in enumerate(asked)]
    assert [type(error) for error, _ in ends if error] == [KeyboardInterrupt]
    for error, n in ends:
        assert error is not None or asked[n].result() == [f"{3 * n}\n", f"{4 * n}\n"]


def test_a_process_forked_while_a_thread_scores_scores_as_well(gate) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(outputs, gate, program(1))
        assert eventually(lambda: gate.calls == 1)
        with warnings.catch_warnings(action="ignore"):  # since 3.12 there is one for threads
            pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            os._exit(0 if outputs(gate, program(5)) == ["15\n", "20\n"] else 1)
        gate.let_go()
        assert asked.result(60) == ["3\n", "4\n"]
        assert os.waitpid(pid, 0)[1] == 0


class Answering:
    """A sandbox without processes."""

    def run(self, *_: object, **__: object) -> list[list[RunResult]]:
        output = b'[["1", "", "", 0.0], ["2", "", "", 0.0]]\n'
        return [[RunResult("ok", output, b"", 0, 0.0, 0.0, 1.0, "none")]]


@pytest.mark.timeout(30)
def test_an_interrupt_at_any_line_leaves_nothing_locked() -> None:
    sandbox, before = Answering(), sys.gettrace()
    ends: list[list[str] | None] = []

    def interrupt_at(line: int) -> Any:
        def trace(frame: Any, event: str, _: object) -> Any:
            nonlocal line
            if frame.f_code.co_filename != together.__file__:
                return None
            line -= event == "line"
            if event == "line" and line < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        return trace

    while not ends or ends[-1] is None:
        sys.settrace(interrupt_at(len(ends)))
        try:
            printed = outputs(sandbox, program(1))  # type: ignore[arg-type]
        except KeyboardInterrupt:
            printed = None
        finally:
            sys.settrace(before)
        ends.append(printed)
        scored: list[list[str]] = []
        # Where it hangs, it must not hold up the end of the tests.
        thread = threading.Thread(target=lambda: scored.append(outputs(sandbox, "1")), daemon=True)  # type: ignore[arg-type]  # noqa: B023
        thread.start()
        thread.join(5)
        assert scored == [["1", "2"]]
    assert len(ends) > 20


def test_a_sandbox_without_weak_references_or_a_hash_works(gate) -> None:
    class Bare:
        __slots__ = ("run",)
        __hash__ = None  # type: ignore[assignment]

    bare = Bare()
    bare.run = gate.run  # type: ignore[attr-defined]
    gate.let_go()
    assert outputs(bare, program(2)) == ["6\n", "8\n"]  # type: ignore[arg-type]
