"""What results hold: bytes, bounded for each call, whatever the order in which they arrive."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.sandbox import Case, Limits, RunResult, open_sandbox
from pettingllms.sandbox import types as types_module
from pettingllms.sandbox.types import RunPlan, RunProgress
from tests.kernel import needs_namespaces


def result(status: str = "ok", out: bytes = b"", error: bytes = b"", value: bytes | None = None):
    return RunResult(status, out, error, 0, 0.0, 0.0, 0.0, "none", value)  # type: ignore[arg-type]


def test_outputs_are_decoded_when_they_are_read():
    one = result(out="é😀".encode() + b"\xff", error=b"\xffe", value=b"[1]")
    assert (one.stdout, one.stderr, one.value) == ("é😀\ufffd", "\ufffde", "[1]")
    assert result().value is None
    assert pickle.loads(pickle.dumps(one)) == one != result()
    assert one.to_dict()["stdout"] == "é😀\ufffd"
    assert one.output_bytes == 7 + 2 + 3


RESULTS = st.lists(
    st.tuples(st.sampled_from(["ok", "error", "cpu_limit"]), st.integers(0, 40)),
    min_size=1,
    max_size=8,
)


@given(RESULTS, RESULTS, st.booleans(), st.randoms())
def test_what_is_dropped_depends_on_no_order(first, second, end, rng):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(types_module, "MAX_OUTPUT_BYTES", 100)
        runs = [first[: len(second)], second[: len(first)]]
        in_order = play(runs, end, sorted)
        assert play(runs, end, lambda pairs: rng.sample(pairs, len(pairs))) == in_order
        for row, given_row in zip(in_order, runs, strict=True):
            kept = 0
            for (status, size), shown in zip(given_row, row, strict=False):
                kept += size
                if shown.stderr.startswith("not run"):
                    break
                dropped = kept > 50
                assert (shown.stdout_bytes == b"x" * size) or dropped
                assert shown.status == (
                    "output_limit" if dropped and status != "cpu_limit" else status
                )


def play(runs: Sequence[Sequence[tuple[str, int]]], end: bool, arrange):
    cases = [Case()] * len(runs[0])
    order = RunPlan.of(["a", "b"], cases, Limits(), end_at_limit=end)
    progress = RunProgress(order)
    for program, case in arrange(progress.pairs()):
        if (program, case) in progress.left([(program, case)]):
            status, size = runs[program][case]
            progress.add((program, case), result(status, b"x" * size))
            held = [len(r.stdout_bytes) for (p, _), r in progress._results.items() if p == program]
            assert sum(held) <= 50
    return progress.rows()


@needs_namespaces
@pytest.mark.parametrize("workers", [1, 3])
def test_a_program_that_prints_without_end_does_not_touch_the_others(
    workers: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(types_module, "MAX_OUTPUT_BYTES", 1 << 20)
    programs = ["print('x' * 200_000)", "print(1)"]
    with open_sandbox("embedded", workers) as sandbox:
        loud, quiet = sandbox.run(programs, [Case()] * 6)
    assert [r.status for r in loud] == ["ok", "ok", *["output_limit"] * 4]
    assert "exceed 524288 bytes" in loud[-1].stderr
    assert [r.stdout for r in quiet] == ["1\n"] * 6


@needs_namespaces
def test_large_outputs_with_an_emoji_cost_the_caller_their_bytes():
    code = """
import resource
from pettingllms.sandbox import Case, open_sandbox
program = "print('\\N{GRINNING FACE}' + 'x' * ((1 << 20) - 100), flush=True)"
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
with open_sandbox("embedded", 1) as sandbox:
    sandbox.run(["1"], [Case()])
    before = peak()
    [row] = sandbox.run([program], [Case()] * 100)
print([result.status for result in row].count("ok"), round(peak() - before))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ok, mib = map(int, run.stdout.split())
    assert ok == 100
    assert mib < 160
