"""The mark on a container: only left-overs of processes that have certainly ended are ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pettingllms.sandbox import docker


def changed(field: int, value: str) -> str:
    parts = docker.owner_mark().split(":")
    parts[field] = value
    return ":".join(parts)


def test_a_living_process_is_no_orphan():
    assert not docker.is_orphan(docker.owner_mark())


def test_a_process_that_has_ended_leaves_orphans():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        mark = docker.owner_mark(process.pid)
        assert not docker.is_orphan(mark)
        process.communicate(b"\n")
    assert docker.is_orphan(mark)


@pytest.mark.parametrize(
    ("field", "value", "orphan"),
    [
        (0, "another-boot", False),
        (1, "another-namespace", False),
        (2, "999999999", True),
        (3, "1", True),  # another process of the same number
    ],
)
def test_what_a_change_of_each_part_means(field: int, value: str, orphan: bool):
    assert docker.is_orphan(changed(field, value)) is orphan


@pytest.mark.parametrize("mark", ["", "a", "a:b:c:d", "a:b:x:e", ":::", ":1:2", "a:b:c:1:2:3"])
def test_a_mark_of_somebody_else_is_left_alone(mark: str):
    assert not docker.is_orphan(mark)
