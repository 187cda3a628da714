"""Processes for runs: has them forked, watches them, and decides the status of every run from outside.

Limits are enforced by the kernel and from here. Nothing that a program can write says anything
about its time or its success: these are measured. The hint that its process leaves decides no more
than the word for a failure.

The worker reads requests and is itself never forked for a program. Before the first request it
forks a server, which learns nothing but the limits of each process to come. What a program
inherits is therefore the same for every run, whatever ran before or runs at the same time: no
text, length or time of another run is in its memory.
"""

from __future__ import annotations

import _socket
import marshal
import os
import select
import signal
import struct
import time
from typing import Any, NamedTuple

from pettingllms.sandbox.worker import kernel
from pettingllms.sandbox.worker.isolation import Bounds, Isolation
from pettingllms.sandbox.worker.process import (
    BROKEN,
    COMPILED,
    SET_UP,
    HintPage,
    Job,
    JobSocket,
    ProgramProcess,
    adopt,
    close_all_but,
    pair,
)
from pettingllms.sandbox.worker.program import FORBIDDEN, MEMORY, OUTPUT, PROCESSES

_REASONS = {
    MEMORY: "memory_limit",
    PROCESSES: "process_limit",
    FORBIDDEN: "forbidden",
    OUTPUT: "output_limit",
}
_CORES = os.cpu_count() or 1
_MIN_WAIT_S, _MAX_WAIT_S = 0.001, 1.0
_SETUP_S = 10.0


class JobFailed(Exception):
    """The sandbox, not the program, could not do its work."""


class ClientGone(Exception):
    """The client that asked for the results has closed the stream."""


class ProcessResult(NamedTuple):
    """The end of a run, decided outside its process. `exit_code` is -N after signal N."""

    status: str
    exit_code: int
    cpu_s: float
    wall_s: float
    memory_kib: int
    compiled: bool
    """The compiled program is now in the job's `code_fd`."""
    stray: bool
    """The process was killed by SIGKILL, and not from here. A program cannot do that to itself,
    but it may have made the machine run out of memory: the run deserves another try, and no more."""


class StartedRun(NamedTuple):
    """A process, our end of its socket, and since when it has its job, on the monotonic clock."""

    pid: int
    end: JobSocket
    begun: float


class ProcessPool:
    """Has processes made and gives them jobs, one at a time.

    A process is made before its job is known, if possible while another works: the job then finds
    it waiting, in its namespaces and under its limits.
    """

    def __init__(
        self, isolation: Isolation, hint: HintPage, forks: ForkServer, client_fd: int
    ) -> None:
        self.isolation = isolation
        self.hint = hint
        self.forks = forks
        self.client_fd = client_fd
        self._spare: tuple[JobSocket, Bounds] | None = None

    def make(self, bounds: Bounds) -> None:
        """See that there is a process for a job within `bounds`, or that one is being made."""
        if self._spare is not None:
            end, old = self._spare
            if old == bounds:
                return
            self._spare = None
            end.close()
            pid = self.forks.pid()
            os.kill(pid, signal.SIGKILL)
            self.forks.reap(pid)
            self.forks.end()
        ours, theirs = pair()
        self.forks.make(bounds, theirs)
        theirs.close()
        self._spare = ours, bounds

    def start(self, job: Job) -> StartedRun:
        """Give `job` to the process that waits for it, or to another if that one has ended."""
        # One that waited may have been killed meanwhile; one that is made now is worth a try.
        for _ in range(2):
            self.make(job.bounds)
            assert self._spare is not None
            end, _ = self._spare
            self._spare = None
            self.hint.clear()
            begun = time.monotonic()
            try:
                end.send(job)
            except OSError:
                marks = end.marks()
                end.close()
                self.forks.reap(self.forks.pid())
                self.forks.end()
            else:
                return StartedRun(self.forks.pid(), end, begun)
        reason = marks.removeprefix(BROKEN).decode("utf-8", "replace")
        raise JobFailed(f"two processes ended before their job: {reason}")

    def finish(self, job: Job, started: StartedRun) -> ProcessResult:
        """See a process to its end."""
        pid, end, begun = started
        killed_for = self._watch(started, job)
        self.forks.reap(pid)
        # Asked for together: the next process is made while this one's result is sent.
        self.make(job.bounds)
        ended = self.forks.end()
        lasted = time.monotonic() - begun
        if ended.exit_code != -signal.SIGKILL:
            killed_for = None  # it ended by itself in the same moment
        marks = end.marks()
        end.close()
        # One that was killed before it was set up gets another try: see `stray`.
        if not marks.startswith(SET_UP) and ended.exit_code != -signal.SIGKILL:
            reason = marks.removeprefix(BROKEN).decode("utf-8", "replace")
            raise JobFailed(f"a process could not be set up: {reason or ended}")
        status = killed_for or self._status(job, ended)
        compiled = COMPILED in marks
        stray = status == "killed" and ended.exit_code == -signal.SIGKILL
        cpu_s, memory_kib = ended.cpu_s, ended.memory_kib
        return ProcessResult(status, ended.exit_code, cpu_s, lasted, memory_kib, compiled, stray)

    def _watch(self, started: StartedRun, job: Job) -> str | None:
        """Wait for the process; kill it where it overstays. Returns the limit it broke."""
        pid, end, begun = started
        pidfd = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        # Without events, but the end of the other side is always reported.
        poll.register(self.client_fd, 0)
        # Not even on all cores can a limit be broken sooner.
        wait_s = min(job.bounds.cpu_s / _CORES, job.bounds.wall_s)
        try:
            while True:
                wait_s = min(max(wait_s, _MIN_WAIT_S), _MAX_WAIT_S)
                events = dict(poll.poll(wait_s * 1000))
                if pidfd in events:
                    return None
                if self.client_fd in events:
                    raise ClientGone
                broken, wait_s = _check(pid, job.bounds, begun)
                if broken is None:
                    continue
                # On a busy machine, a short limit can be over before the program begins.
                if end.is_set_up() or time.monotonic() - begun > _SETUP_S:
                    os.kill(pid, signal.SIGKILL)
                    return broken
        finally:
            os.close(pidfd)

    def _status(self, job: Job, ended: ProcessEnd) -> str:
        run, code = job.run, ended.exit_code
        # First: at its own cap the kernel ends a process by a signal, which would read as `killed`.
        if ended.cpu_s > job.bounds.cpu_s:
            return "cpu_limit"
        # One that ended well may have written exactly as much as it is allowed to.
        sizes = (os.fstat(fd).st_size for fd in run.descriptors[1:])
        if code != 0 and any(size >= job.bounds.file_bytes for size in sizes):
            return "output_limit"
        if code == -signal.SIGSYS:
            return "forbidden"
        if code < 0:
            return "killed"
        if code > 0:
            return _REASONS.get(self.hint.hint(), "error")
        # The process ended well and without a value: the program may have called `exit`.
        if run.value_fd >= 0 and os.fstat(run.value_fd).st_size <= job.bounds.output_start:
            return "error"
        return "ok"


def _check(pid: int, bounds: Bounds, begun: float) -> tuple[str | None, float]:
    """The limit that a process has broken, and how long it cannot break one."""
    clock = (~pid << 3) | 2  # CPU time of another process, from linux/posix-timers.h
    cpu_left = bounds.cpu_s - time.clock_gettime(clock)
    wall_left = begun + bounds.wall_s - time.monotonic()
    if cpu_left <= 0:
        return "cpu_limit", 0.0
    if wall_left <= 0:
        return "wall_limit", 0.0
    return None, min(cpu_left / _CORES, wall_left)


_MESSAGE_BYTES = 4096
_INT = struct.Struct("i")


class ProcessEnd(NamedTuple):
    """The kernel's account of a process that has ended. `exit_code` is -N after signal N."""

    exit_code: int
    cpu_s: float
    """User and system time of the whole process."""
    memory_kib: int
    """The most that was resident."""


class ForkServerGone(Exception):
    """The fork server has ended: this worker cannot run anything any more."""


class ForkServer:
    """The worker's side of its fork server, which does what it is asked for in this order.

    Each question wakes the server, and each wait for an answer puts the worker to sleep. Answers are
    therefore read when they are needed.
    """

    def __init__(self, end: _socket.socket) -> None:
        self._end = end
        self._pids: list[int] = []
        self._ends: list[ProcessEnd] = []

    def make(self, bounds: Bounds, end: JobSocket) -> None:
        """Ask for a process within `bounds` that gets its job through `end`."""
        rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _INT.pack(end.fd))
        self._send(marshal.dumps(tuple(bounds)), [rights])

    def pid(self) -> int:
        """The process id of the next of the processes that were asked for."""
        while not self._pids:
            self._read()
        return self._pids.pop(0)

    def reap(self, pid: int) -> None:
        """Ask for the end of a process, whose id is then released."""
        self._send(marshal.dumps(pid), [])

    def end(self) -> ProcessEnd:
        """The next of the ends that were asked for."""
        while not self._ends:
            self._read()
        return self._ends.pop(0)

    def _send(self, message: bytes, rights: list[tuple[int, int, bytes]]) -> None:
        try:
            self._end.sendmsg([message], rights)
        except OSError as error:
            raise ForkServerGone(str(error)) from error

    def _read(self) -> None:
        message = self._end.recv(_MESSAGE_BYTES)
        if not message:
            raise ForkServerGone
        answer: Any = marshal.loads(message)
        if isinstance(answer, int):
            self._pids.append(answer)
        else:
            self._ends.append(ProcessEnd(*answer))


_KEPT: list[object] = []
"""Sockets that a program's process closes by number: an object that goes while its descriptor seems
open would warn, which is a tenth of a small run."""


def start_fork_server(work: ProgramProcess) -> ForkServer | ProgramProcess:
    """Fork the server. The result is `work` in the processes that the server forks."""
    # Of packets, so that each message keeps its own descriptors.
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    if kernel.fork():
        theirs.close()
        return ForkServer(ours)
    kernel.die_with_parent()
    _KEPT.extend((ours, theirs))
    close_all_but((theirs.fileno(), work.isolation.pid_namespace, *work.fence))
    return _serve(theirs, work)


def _serve(end: _socket.socket, work: ProgramProcess) -> ProgramProcess:
    """Fork and wait as asked; returns in each forked process, with what that has to do.

    Whatever can be done before a fork is done here, where memory is written to once and not in
    every process.
    """
    space = _socket.CMSG_SPACE(_INT.size)
    bounds = b""
    while True:
        message, rights, _, _ = end.recvmsg(_MESSAGE_BYTES, space)
        if not message:
            os._exit(0)
        if not rights:
            end.send(_reap(marshal.loads(message)))
            continue
        if message != bounds:
            work.bind(Bounds(*marshal.loads(message)))
            bounds = message
        work.socket = adopt(_INT.unpack(rights[0][2])[0])
        pid = work.isolation.start()
        if pid == 0:
            return work
        work.socket.close()
        end.send(marshal.dumps(pid))


def _reap(pid: int) -> bytes:
    _, status, usage = os.wait4(pid, 0)
    code, cpu_s = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
    return marshal.dumps((code, cpu_s, usage.ru_maxrss))
