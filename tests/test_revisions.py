"""The benchmark of training steps against an earlier revision."""

import argparse
import time
from pathlib import Path

import pytest

from benchmarks import revisions


@pytest.fixture(autouse=True)
def _few_tasks(monkeypatch):
    monkeypatch.setitem(revisions.SETTINGS, "tasks-per-step", 2)


def test_a_revision_generates_as_much_as_itself(capsys):
    options = argparse.Namespace(rounds=1, steps=3, threads=1)
    row = revisions.compare("plan_path", revisions.HERE, options)
    assert row["then, tokens"] == row["now, tokens"] > 0
    median, least, greatest = row["step"]
    assert 0 < least <= median <= greatest
    assert "round 1 of 1" in capsys.readouterr().out


def test_a_training_that_fails_ends_the_comparison_with_its_error():
    options = argparse.Namespace(rounds=1, steps=3, threads=1)
    with pytest.raises(SystemExit, match="did you mean 'plan_path'"):
        revisions.compare("plan_pat", revisions.HERE, options)


def test_a_training_stands_still_while_it_is_not_its_turn(tmp_path):
    settings = {**revisions.SETTINGS, "env": "plan_path", "max-steps": 3}
    training = revisions.Training(revisions.HERE, settings, 1, tmp_path / "run")
    try:
        training.step()
        process = Path(f"/proc/{training.process.pid}/stat")
        used = process.read_text().split()[13:15]
        time.sleep(1.0)
        assert process.read_text().split()[2] == "T"
        assert process.read_text().split()[13:15] == used
        assert len(training.rows()) == 1
        training.step()
        assert len(training.rows()) == len(training.seconds) == 2
    finally:
        training.end()
    assert training.process.poll() is not None
