"""Every tutorial runs as a reader would run it, and ends well within a minute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "tutorials").glob("[0-9]*.py"))


@pytest.mark.slow
@pytest.mark.timeout(300)  # each takes less than a minute on two idle cores
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_says_something(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_tutorials_are_numbered_without_gaps() -> None:
    assert [int(path.name[:2]) for path in TUTORIALS] == list(range(1, len(TUTORIALS) + 1))
