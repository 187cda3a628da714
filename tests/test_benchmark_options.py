"""A mistake on the command line of a benchmark is one line that suggests what was meant."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest

import benchmarks.claims.__main__ as claims
from benchmarks.claims.cells import cell_of
from benchmarks.options import Options

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "benchmarks/README.md", *ROOT.glob("docs/*.md")]
QUOTED = sorted(
    {
        command
        for page in PAGES
        for command in re.findall(r"python -m (benchmarks\.[a-z_.]+[^`|)\n]*)", page.read_text())
    }
)
EXAMPLES = {"benchmarks.learning": "coding", "benchmarks.paper": "methods"}
"""Module -> what stands in a page as NAME."""


class Parsed(Exception):
    """The command line was understood; nothing runs after that."""


@pytest.mark.parametrize("command", QUOTED)
def test_a_command_that_a_page_quotes_is_understood(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, *words = shlex.split(command, comments=True)
    spec = find_spec(module)
    assert spec is not None
    if not words:
        return

    def parse_args(parser: Options, argv: Any = None) -> NoReturn:
        _, unknown = argparse.ArgumentParser.parse_known_args(parser, argv)
        raise Parsed(*unknown)

    def parse_known_args(parser: Options, argv: Any = None) -> NoReturn:
        argparse.ArgumentParser.parse_known_args(parser, argv)
        raise Parsed

    monkeypatch.setattr(Options, "parse_args", parse_args)
    monkeypatch.setattr(Options, "parse_known_args", parse_known_args)
    words = [EXAMPLES[module] if word == "NAME" else word for word in words]
    monkeypatch.setattr(sys, "argv", [module, *words])
    place = f"{module}.__main__" if spec.submodule_search_locations else module
    with pytest.raises(Parsed) as reached:
        importlib.import_module(place).main()
    assert not reached.value.args


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
    message = refused(capsys, *words)
    assert hint in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("name", ["airl", "alone", "hindsight"])
def test_other_settings_do_not_overwrite_what_is_published(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    option = {"hindsight": "tasks"}.get(name, "seeds")
    monkeypatch.setattr(sys, "argv", [name, f"--{option}", "77"])
    with pytest.raises(SystemExit):
        importlib.import_module(f"benchmarks.{name}").main()
    said = f"--{option} is not that of {name}.json; add --out FILE"
    assert said in capsys.readouterr().err


def test_defaults_and_other_files_are_written(tmp_path: Path) -> None:
    for words in ([], ["--tokens", "5"], ["--tokens", "7", "--out", str(tmp_path / "file.json")]):
        parser = Options("Measures something.")
        parser.add_argument("--tokens", type=int, default=5)
        out = parser.parse_beside(tmp_path / "published.json", words).out
        assert out.name == ("file.json" if "--out" in words else "published.json")


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
