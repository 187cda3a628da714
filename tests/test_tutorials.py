"""Every tutorial runs as a reader would run it, and ends well within a minute."""

from __future__ import annotations

import io
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.forks import Fork

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "tutorials").glob("[0-9]*.py"))


def run(path: str) -> bool:
    """Runs a file as `python path`; returns whether it printed nothing (warnings do not count)."""
    sys.argv = [path]
    sys.path[0] = str(Path(path).parent)
    with redirect_stdout(io.StringIO()) as said:
        runpy.run_path(path, run_name="__main__")
    return not said.getvalue().strip()


@pytest.mark.slow
@pytest.mark.timeout(300)  # each takes less than a minute on two idle cores
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_says_something(path: Path, tmp_path: Path) -> None:
    with Fork(run, str(path), folder=tmp_path) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output[-2000:] or "it says nothing"


def test_tutorials_are_numbered_without_gaps() -> None:
    assert [int(path.name[:2]) for path in TUTORIALS] == list(range(1, len(TUTORIALS) + 1))
