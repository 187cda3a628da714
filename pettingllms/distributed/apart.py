"""A command in a process of its own, whose last words another process says.

As soon as a process of Ray's meets a broken connection to the object store of its node, Ray ends it
with exit status 1 and no message, from its own code: no thread and no handler in that process can
prevent it, and none is always faster. So a command that uses Ray runs in a child. What the child would
say if it were ended now is in memory that both share.

Does nothing for programs that call the package from Python: their process is not ours to divide.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable

from pettingllms.errors import WorkersLost

SLOT = 8192
"""Bytes of shared memory for one text; longer ones are cut."""
_CODE, _REASON, _NODE, _LEFT = (slice(place, place + SLOT) for place in range(0, 4 * SLOT, SLOT))
_shared = mmap.mmap(-1, 4 * SLOT)


def if_ended(reason: str, *, node: str = "") -> None:
    """Notes why Ray would end this process now.

    Args:
        reason: the message.
        node: the socket of the node that would be dead then.
    """
    _write(_NODE, node)
    _write(_REASON, reason)


def left(text: str) -> None:
    """Notes what this process would leave behind."""
    _write(_LEFT, text)


def apart(command: Callable[[], int]) -> int:
    """Runs a command in a child of this process; returns its exit code.

    The child does not return from here, but ends. Signals that come from other processes are passed
    on; a terminal sends its own to both.

    Args:
        command: reports its own errors.

    Raises:
        WorkersLost: Ray has ended the child.
    """
    if sys.platform != "linux":
        return command()
    sys.stdout.flush()  # or both would write what is there
    parent = os.getpid()
    if child := os.fork():
        return _outlived(child)
    _end_with(parent)
    code = 1  # of an exception that nobody catches
    try:
        code = command()
    finally:
        _write(_CODE, str(code))
    sys.exit(code)


def _end_with(parent: int) -> None:
    # Here and not above: it looks up system calls that only Linux has.
    from pettingllms.sandbox.worker.kernel import die_with_parent

    die_with_parent()
    if os.getppid() != parent:  # it has ended before this was known
        os._exit(1)


def _outlived(child: int) -> int:
    """The exit code of the child, once it has ended.

    Raises:
        WorkersLost: Ray has ended it.
    """
    status = os.waitstatus_to_exitcode(_waited(child))
    if code := _read(_CODE):
        return int(code)
    # Ray leaves with 1, or aborts where it does not expect a broken connection.
    if (reason := _read(_REASON)) and status in (1, -signal.SIGABRT) and not _answers():
        raise WorkersLost("\n".join(filter(None, (reason, _read(_LEFT)))))
    if status < 0:
        os.kill(os.getpid(), -status)  # the shell is to see what it would without this process
    return status


def _answers() -> bool:
    """Returns whether the node whose death would be the reason is alive."""
    if not (place := _read(_NODE)):
        return False
    with socket.socket(socket.AF_UNIX) as node:
        return node.connect_ex(place) == 0


def _waited(child: int) -> int:
    """Waits for the child and passes signals on to it; how it has ended."""
    wanted = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            asked = signal.sigwaitinfo(wanted)
            if asked.si_signo != signal.SIGCHLD and asked.si_code <= 0:  # from a process
                os.kill(child, asked.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _write(slot: slice, text: str) -> None:
    _shared[slot] = os.fsencode(text)[:SLOT].ljust(SLOT, b"\0")


def _read(slot: slice) -> str:
    return os.fsdecode(_shared[slot].rstrip(b"\0"))
