"""Looks at processes from outside: those below one, those that run a program, those that are gone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_Found = TypeVar("_Found")


def eventually(condition: Callable[[], _Found]) -> _Found:
    """What `condition` returns, as soon as it is true, or at the end of half a minute."""
    deadline = time.monotonic() + 30
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


def started(pid: int) -> int:
    """When a process started, in clock ticks since the machine did; its number does not say, since numbers come again."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def descendants(pid: int) -> list[int]:
    """Processes below `pid`, and itself; any of them may end while they are looked for."""
    pids = [pid]
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pids += [below for child in children for below in descendants(int(child))]
    return pids


def running(pid: int) -> list[int]:
    """Processes below `pid` that run a program: they are filtered, the others are not yet."""
    pids = []
    for child in descendants(pid):
        with contextlib.suppress(OSError):
            if "Seccomp:\t2" in Path(f"/proc/{child}/status").read_text():
                pids.append(child)
    return pids


def listening(pid: int) -> set[str]:
    """Addresses on which processes below `pid`, and itself, can be reached."""
    import psutil

    pids = set(descendants(pid))
    return {
        connection.laddr.ip.removeprefix("::ffff:")
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid in pids
    }


def alive(pid: int) -> bool:
    """Whether the process runs, and does not only wait for being reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
