"""A job: one program on one case, how it travels to the process made for it, and what comes back.

A process is forked, in its namespaces, and under its limits before its job is known. The job and
its files then arrive through a socket, in which the process leaves marks on its way, and which it
closes before any program text runs. One byte of shared memory remains: a hint of why the program
failed, which is never trusted.
"""

from __future__ import annotations

import _socket
import marshal
import mmap
import os
import struct
from collections.abc import Iterable
from typing import NamedTuple

from pettingllms.sandbox.worker.isolation import Bounds

FINE, MEMORY, PROCESSES, FORBIDDEN, OUTPUT = range(5)
"""Why a program failed, where its own exception says so."""


class Span(NamedTuple):
    """Bytes of the request's text file."""

    offset: int
    size: int


class Run(NamedTuple):
    """One program on one case, with the files it reads and writes."""

    source: Span
    call: Span
    stdin_fd: int
    stdout_fd: int
    stderr_fd: int
    value_fd: int
    """-1 where no function is called."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All of them, without -1."""
        fds = (self.stdin_fd, self.stdout_fd, self.stderr_fd, self.value_fd)
        return tuple(fd for fd in fds if fd >= 0)


class HintPage:
    """Shared memory in which a program's process leaves a hint of why it failed.

    The program can find the memory and change it. All it can choose that way is which word a run
    gets that has failed by its exit code: times, and success, are measured by the worker.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def clear(self) -> None:
        """Forget the last process, all of the page: it must not carry a message to the next."""
        self._memory[:] = bytes(mmap.PAGESIZE)

    def say(self, reason: int) -> None:
        """Leave the hint."""
        self._memory[0] = reason

    def hint(self) -> int:
        """The hint that the process left, or 0."""
        return self._memory[0]


SET_UP, COMPILED, BROKEN = b"s", b"c", b"e"
"""Marks: everything is given up; the compiled program is stored; something failed, and what."""

_MESSAGE_BYTES = 4096
_MARK_BYTES = 4096
_FDS = 6
_MAX_DESCRIPTOR = 1 << 20
_INT = struct.calcsize("i")


class Job(NamedTuple):
    """The work of one process, and the file that holds its program's text."""

    run: Run
    bounds: Bounds
    text_fd: int
    code_fd: int
    """Holds the compiled program when `code_known`; the first process of a program writes it.
    -1 where it would have no second reader."""
    code_known: bool


class JobSocket:
    """One end of the socket between the worker and a process."""

    def __init__(self, end: _socket.socket) -> None:
        self._end = end

    @property
    def fd(self) -> int:
        """The descriptor, which is closed with the process's others."""
        return self._end.fileno()

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def send(self, job: Job) -> None:
        """Hand over a job and its descriptors. Raises `OSError` if the process has ended."""
        run = job.run
        fds = [job.text_fd, *run.descriptors]
        if job.code_fd >= 0:
            fds.append(job.code_fd)
        texts = (tuple(run.source), tuple(run.call))
        message = marshal.dumps((*texts, run.value_fd >= 0, job.code_known))
        packed = struct.pack(f"{len(fds)}i", *fds)
        rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)
        self._end.sendmsg([message], [rights])

    def receive(self, bounds: Bounds) -> Job:
        """Wait for the job. Raises `EOFError` if the worker has ended."""
        message, rights, _, _ = self._end.recvmsg(_MESSAGE_BYTES, _socket.CMSG_SPACE(_FDS * _INT))
        if not message:
            raise EOFError("the worker has ended")
        source, call, has_value, code_known = marshal.loads(message)
        packed = rights[0][2]
        fds = iter(struct.unpack(f"{len(packed) // _INT}i", packed))
        text_fd = next(fds)
        own = (next(fds), next(fds), next(fds), next(fds) if has_value else -1)
        run = Run(Span(*source), Span(*call), *own)
        return Job(run, bounds, text_fd, next(fds, -1), code_known)

    def mark(self, what: bytes) -> None:
        """Leave a mark for the worker."""
        os.write(self.fd, what)

    def is_set_up(self) -> bool:
        """Tell whether the process has left its first mark."""
        try:
            return bool(self._end.recv(1, _socket.MSG_DONTWAIT | _socket.MSG_PEEK))
        except (BlockingIOError, ConnectionResetError):
            return False

    def marks(self) -> bytes:
        """The marks that the process left before it ended."""
        try:
            return self._end.recv(_MARK_BYTES, _socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionResetError):
            return b""


def pair() -> tuple[JobSocket, JobSocket]:
    """The worker's and the process's end."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    return JobSocket(ours), JobSocket(theirs)


def adopt(fd: int) -> JobSocket:
    """The end that this process was given as a descriptor."""
    return JobSocket(_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd))


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor of this process from 3 on, but these."""
    low = 3
    for fd in sorted(kept):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, _MAX_DESCRIPTOR)
