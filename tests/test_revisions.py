"""The benchmark of training steps against an earlier revision."""

import argparse
import time
from pathlib import Path

import pytest

from benchmarks import revisions


@pytest.fixture(autouse=True)
def _few_tasks(monkeypatch):
    monkeypatch.setitem(revisions.SETTINGS, "tasks-per-step", 2)


def stands_still(process):
    """Whether the process was stopped, which takes a moment: its state is then `T`; see proc(5)."""
    for _ in range(100):
        if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.01)
    return False


def test_a_revision_generates_as_much_as_itself_and_stands_still_between_its_turns(
    monkeypatch, capsys
):
    started: list[revisions.Training] = []

    class Watched(revisions.Training):
        def step(self):
            others = [each for each in started if each is not self and not each.done]
            assert all(stands_still(each.process) for each in others)
            if self not in started:
                started.append(self)
            super().step()

    monkeypatch.setattr(revisions, "Training", Watched)
    options = argparse.Namespace(rounds=1, steps=3, threads=1)
    row = revisions.compare("plan_path", revisions.HERE, options)
    assert [len(each.seconds) for each in started] == [3, 3]
    assert all(each.process.poll() == 0 for each in started)
    assert row["then, tokens"] == row["now, tokens"] > 0
    median, least, greatest = row["step"]
    assert 0 < least <= median <= greatest
    assert "round 1 of 1" in capsys.readouterr().out


def test_a_training_that_fails_ends_the_comparison_with_its_error():
    options = argparse.Namespace(rounds=1, steps=3, threads=1)
    with pytest.raises(SystemExit, match="did you mean 'plan_path'"):
        revisions.compare("plan_pat", revisions.HERE, options)
