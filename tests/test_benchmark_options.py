"""A mistake on the command line of a benchmark is one line that suggests what was meant."""

from __future__ import annotations

import sys

import pytest

import benchmarks.claims.__main__ as claims
from benchmarks.claims.cells import cell_of
from benchmarks.options import Options


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    parser = Options("Measures something.")
    parser.add_argument("--only", nargs="+", choices=["math", "search"])
    parser.add_argument("--seeds", type=int, nargs="+")
    with pytest.raises(SystemExit) as stopped:
        parser.parse_args(words)
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--sed", "1"), "unknown option '--sed'; did you mean '--seeds'"),
        (("--only", "mth"), "--only: unknown value 'mth'; did you mean 'math'?"),
        (("--seeds", "one"), "--seeds: invalid int value: 'one'"),
    ],
)
def test_a_mistake_is_one_line_with_a_hint(
    words: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, *words)
    assert hint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--arms", "math", "AT-GPRO"), "--arms: unknown name 'AT-GPRO'; did you mean 'AT-GRPO'?"),
        (("--arms", "math"), "--arms takes arms and the grounds that have them"),
        (("--cell", "math/GRPO/1/0"), "--cell: unknown name 'math/GRPO'; did you mean"),
    ],
)
def test_names_of_claims_that_are_not_there_are_refused_before_anything_runs(
    words: tuple[str, ...], hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["claims", "--medium", "--dry-run", *words])
    if "--cell" in words:
        sys.argv.remove("--dry-run")
    with pytest.raises(SystemExit, match=hint):
        claims.main()


def test_a_cell_without_its_parts_says_which_there_are() -> None:
    with pytest.raises(ValueError, match="GROUND/ARM/RATE/SEED"):
        cell_of("math/AT-GRPO")
