"""The benchmark of training steps against an earlier revision."""

import argparse

import pytest

from benchmarks import revisions


def test_a_revision_generates_as_much_as_itself(capsys):
    options = argparse.Namespace(rounds=1, steps=3, threads=1)
    row = revisions.compare("plan_path", revisions.HERE, options)
    assert row["then, tokens"] == row["now, tokens"] > 0
    median, least, greatest = row["step"]
    assert 0 < least <= median <= greatest
    assert "round 1 of 1" in capsys.readouterr().out


def test_a_training_that_fails_ends_the_comparison_with_its_error(tmp_path):
    options = argparse.Namespace(rounds=1, steps=3, threads=1)
    with pytest.raises(SystemExit, match="did you mean 'plan_path'"):
        revisions.steps(revisions.HERE, "plan_pat", options, tmp_path)
