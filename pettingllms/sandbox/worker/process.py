"""A program's process: the job it gets, how that travels, what comes back, and the work from the fork to the exit.

A process is forked, in its namespaces, and under its limits before its job is known. The job and
its files then arrive through a socket, in which the process leaves marks on its way, and which it
closes before any program text runs. One byte of shared memory remains: a hint of why the program
failed, which is never trusted. Everything that is said here once the program runs is a claim of
the program; `supervisor` decides the status from what the kernel says.
"""

from __future__ import annotations

# `socket` itself would import modules that every forked process has to carry.
import _socket
import gc
import marshal
import math
import mmap
import os
import struct
import types
from collections.abc import Iterable
from resource import RLIMIT_CPU, RLIMIT_NOFILE
from typing import NamedTuple, NoReturn

from pettingllms.sandbox.worker import program
from pettingllms.sandbox.worker.isolation import Bounds, Isolation
from pettingllms.sandbox.worker.rootfs import SCRATCH, STDIN_COPY


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
# The text, four files of the run, and the compiled program.
_FDS = 6
# The kernel's own bound (fs.nr_open) unless it was raised; closing the range is one call.
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
        # `marshal`, because both ends are the same interpreter.
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
        descriptors = (next(fds), next(fds), next(fds), next(fds) if has_value else -1)
        run = Run(Span(*source), Span(*call), *descriptors)
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


_STDIN_PATH = b"/dev/stdin"
_SETUP_FAILED = 125
_CORES = os.cpu_count() or 1
_CPU_SLACK_S = 60
_exit = os._exit  # bound here, because a program may replace it where others look it up


def cpu_cap_s(bounds: Bounds) -> int:
    """CPU seconds at which the kernel kills the process, should the worker not have done so.

    The kernel counts whole ticks here, and the worker nanoseconds: a program that runs around the
    tick only has used next to nothing, but seems busy all the time. Hence not even all cores
    may reach the cap before the wall limit.
    """
    return math.ceil(bounds.cpu_s + bounds.wall_s * _CORES) + _CPU_SLACK_S


class ProgramProcess:
    """The work of a program's process. The server sets `socket` and `bounds` before it forks one."""

    socket: JobSocket

    def __init__(self, isolation: Isolation, hint: HintPage, streams: program.Streams) -> None:
        self.isolation = isolation
        self.hint = hint
        self.streams = streams
        self.fence = (isolation.fence.ruleset,) if isolation.fence is not None else ()

    def bind(self, bounds: Bounds) -> None:
        """Fix the bounds of the jobs of all processes that are forked from now on."""
        self.bounds = bounds
        self._scratch_options = self.isolation.scratch_options(bounds)
        self._limits = self.isolation.limits(bounds)
        cpu_s = cpu_cap_s(bounds)
        self._last_limits = [
            ((RLIMIT_NOFILE, (files, files)), (RLIMIT_CPU, (cpu_s, cpu_s)))
            # The fourth is the file for the value of a function.
            for files in (3 + bounds.open_files, 4 + bounds.open_files)
        ]

    def perform(self) -> NoReturn:
        """Confine this process, wait for a job, do it, and exit."""
        try:
            close_all_but((self.socket.fd, *self.fence))
            self.isolation.prepare(self._scratch_options)
            self.isolation.confine(self._limits)
            job = self.socket.receive(self.bounds)
            self.isolation.seal(self._last_limits[job.run.value_fd >= 0])
            self.socket.mark(SET_UP)
        except BaseException as error:  # noqa: BLE001 - the worker must learn of any failure
            self._give_up(error)
        try:
            # From here on, memory that is missing is missing to the program.
            os.dup2(job.run.stderr_fd, 2)
            self._do(job)
        except BaseException as error:  # noqa: BLE001 - the program broke what runs it
            outcome = program.report(error)
            self.hint.say(outcome.reason)
            _exit(outcome.exit_code)

    def _give_up(self, error: BaseException) -> NoReturn:
        try:
            self.socket.mark(BROKEN + f"{type(error).__name__}: {error}".encode()[:1000])
        finally:
            _exit(_SETUP_FAILED)

    def _do(self, job: Job) -> NoReturn:
        run = job.run
        source, call = _read(job, run.source), _read(job, run.call)
        fd = job.code_fd
        cached = marshal.loads(os.pread(fd, os.fstat(fd).st_size, 0)) if job.code_known else None
        # The open file is shared with the runs before this one, and so is its offset.
        os.lseek(run.stdin_fd, 0, os.SEEK_SET)
        os.dup2(run.stdin_fd, 0)
        os.dup2(run.stdout_fd, 1)
        # Not that of the value, which the function's result goes to.
        for fd in (job.text_fd, *run.descriptors[:3]):
            os.close(fd)
        if _STDIN_PATH in source:
            self._copy_stdin()
        # It was off for the forks, because a collection writes to memory that they share.
        gc.enable()
        program.prepare(source)
        code, outcome = (
            (cached, program.SUCCESS) if cached is not None else self._compile(job, source)
        )
        if job.code_fd >= 0:
            os.close(job.code_fd)
        self.socket.close()
        if code is not None:
            outcome = program.execute(code, call, run.value_fd, self.streams)
        self.hint.say(outcome.reason)
        _exit(outcome.exit_code)

    def _compile(
        self, job: Job, source: bytes
    ) -> tuple[types.CodeType | None, program.ProgramExit]:
        """Compile, and keep the result for the program's other cases.

        A program that prints a warning while it is compiled must print it on every case; and no
        file may be longer than the limit.
        """
        code, outcome = program.try_compile(source)
        silent = os.lseek(2, 0, os.SEEK_CUR) == self.bounds.output_start
        if code is not None and job.code_fd >= 0 and silent:
            data = marshal.dumps(code)
            if len(data) < self.bounds.file_bytes:
                _write_all(job.code_fd, data)
                self.socket.mark(COMPILED)
        return code, outcome

    def _copy_stdin(self) -> None:
        """Serve programs that open standard input by its path, which needs /proc elsewhere."""
        try:
            with open(os.path.join(SCRATCH, STDIN_COPY), "wb") as copy:
                offset = 0
                while count := os.sendfile(copy.fileno(), 0, offset, 1 << 24):
                    offset += count
        except OSError:
            # There is no /tmp, or it is smaller than the input: the program sees its beginning.
            return


def _read(job: Job, span: Span) -> bytes:
    return os.pread(job.text_fd, span.size, span.offset)


def _write_all(fd: int, data: bytes) -> None:
    with memoryview(data) as view:
        sent = 0
        while sent < len(view):
            sent += os.write(fd, view[sent:])
