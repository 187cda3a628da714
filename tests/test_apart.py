"""A command in a child: how it ends is how the command ends, also where the child is ended without a word."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import alive, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands run in place elsewhere")
PROGRAM = """
import os, signal, sys, time
from pettingllms.cli.guard import guarded, terminable
from pettingllms.distributed.apart import apart, if_ended, left

def act():
    print("child", os.getpid(), flush=True)
    if_ended("the Ray cluster is lost: no node", node=sys.argv[1])
    left("the last checkpoint is here")
    with terminable():
        {what}
    return 0

print("here")
sys.exit(guarded(lambda: apart(lambda: guarded(act))))
"""


def started(what: str, node: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(what=what), str(node)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(what: str, node: Path) -> tuple[int, str]:
    """The exit status, and what is written after the first two lines."""
    with started(what, node) as process:
        output, _ = process.communicate()
    first, second, *rest = output.splitlines()
    assert (first, second.split()[0]) == ("here", "child")
    return process.returncode, "\n".join(rest)


@pytest.fixture
def node() -> Iterator[Path]:
    """The socket of a node that lives."""
    with tempfile.TemporaryDirectory(prefix="p-") as folder, socket.socket(socket.AF_UNIX) as lives:
        lives.bind(str(Path(folder) / "node"))
        lives.listen()
        yield Path(folder) / "node"


@pytest.mark.parametrize("what", ["os._exit(1)", "os.abort()"])
def test_a_child_that_ray_ends_leaves_its_last_words(what, tmp_path, node):
    status, text = ended(what, tmp_path / "node")
    assert status == 2
    assert text == "error: the Ray cluster is lost: no node\nthe last checkpoint is here"
    status, text = ended(what, node)
    assert status == (1 if what == "os._exit(1)" else -signal.SIGABRT)
    assert not text


@pytest.mark.parametrize(
    ("what", "status", "last"),
    [
        ("return 7", 7, ""),
        ("raise ValueError('a mistake of ours')", 1, "ValueError: a mistake of ours"),
        ("import atexit; atexit.register(os._exit, 1); return 2", 2, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)", 143, "terminated"),
        ("os.kill(os.getppid(), signal.SIGINT); time.sleep(60)", 130, "interrupted"),
    ],
    ids=["returns", "raises", "ray-ends-it-afterwards", "is-killed", "terminated", "interrupted"],
)
def test_a_command_ends_as_its_child_does(what, status, last, tmp_path):
    found, text = ended(what, tmp_path / "node")
    assert found == status
    assert text.rpartition("\n")[2] == last


def test_a_killed_command_ends_its_child(tmp_path):
    with started("time.sleep(600)", tmp_path / "node") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        child = int(process.stdout.readline().split()[1])
        process.kill()
    assert eventually(lambda: not alive(child))
    assert not alive(process.pid)
