"""The worker's main loop: requests in, results out, one at a time.

Programs, inputs and outputs go from the client's pipe to memory files and back, past this
process's own memory. No program inherits anything of it: the fork server makes their processes.

Request header: `programs`, `calls`, `stdins` (bytes of each, in the payload's order), `runs`
(program and case numbers, flat), `limits`, `end`. Reply headers: `results`, one row `[run,
status, exit code, CPU us, wall us, memory KiB, stdout, stderr and value bytes]` for each run, with
value -1 where there is none, followed by these bytes; `done` in the last one. A reply `{"failure":
text}` means that the worker could not do its work, and ends it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from pettingllms.sandbox.worker import frames, isolation, process, supervisor

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_TRIES = 2
"""Attempts at a run whose process was killed from outside."""
_RUNAWAY = ("cpu_limit", "wall_limit")
_FRAME_S, _FRAME_BYTES = 0.02, 1 << 16
"""After so many seconds, or with so many bytes of output, results are not kept back."""
_LIMITS = (
    ("cpu_ms", 86_400_000),
    ("wall_ms", 86_400_000),
    ("memory_mib", 1 << 20),
    ("output_kib", 1 << 20),
    ("processes", 1 << 15),
    ("tmp_mib", 1 << 20),
    ("open_files", 1 << 16),
)


class MemoryFiles:
    """The memory files of one request."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def add(self, name: str, *, at: int = 0) -> int:
        """A new empty file, positioned at offset `at`."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._fds.append(fd)
        if at:
            os.lseek(fd, at, os.SEEK_SET)
        return fd

    def drop(self, fds: Sequence[int]) -> None:
        """Close these files."""
        for fd in fds:
            os.close(fd)
            self._fds.remove(fd)

    def close(self) -> None:
        """Close what is left."""
        self.drop(list(self._fds))


class RunRequest(NamedTuple):
    """A request whose texts lie in memory files."""

    bounds: isolation.Bounds
    programs: tuple[process.Span, ...]
    calls: tuple[process.Span, ...]
    text_fd: int
    stdin_fds: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    end: bool


def serve(stream: frames.Stream, pool: supervisor.ProcessPool) -> NoReturn:
    """Answer requests until the client closes the stream, which raises."""
    while True:
        header = stream.read_header()
        files = MemoryFiles()
        request = receive(stream, header, files)
        replies = Replies(stream, request.bounds)
        try:
            for finished in perform(pool, request, files):
                replies.add(finished)
        except (supervisor.JobFailed, supervisor.ForkServerGone) as error:
            stream.write(frames.encode({"failure": f"{type(error).__name__}: {error}"[:1000]}))
            raise
        files.close()


def receive(stream: frames.Stream, header: dict[str, Any], files: MemoryFiles) -> RunRequest:
    """Read a request's payload into memory files."""
    programs, calls = frames.sizes(header, "programs"), frames.sizes(header, "calls")
    stdins = frames.sizes(header, "stdins")
    if len(calls) != len(stdins):
        raise frames.FrameError("every case has a call and an input, each possibly empty")
    text_fd = files.add("text")
    _fill(stream, text_fd, sum(programs) + sum(calls))
    offsets = list(itertools.accumulate((*programs, *calls), initial=0))
    spans = [process.Span(*pair) for pair in zip(offsets, (*programs, *calls), strict=False)]
    stdin_fds = []
    for size in stdins:
        fd = files.add("stdin")
        _fill(stream, fd, size)
        stdin_fds.append(fd)
    flat = frames.sizes(header, "runs")
    runs = tuple(zip(flat[::2], flat[1::2], strict=True))
    if any(p >= len(programs) or c >= len(calls) for p, c in runs):
        raise frames.FrameError("a run names a program or case that the request does not have")
    return RunRequest(
        _bounds(header),
        tuple(spans[: len(programs)]),
        tuple(spans[len(programs) :]),
        text_fd,
        tuple(stdin_fds),
        runs,
        bool(header.get("end")),
    )


def _bounds(header: dict[str, Any]) -> isolation.Bounds:
    limits = header.get("limits")
    if not isinstance(limits, dict):
        raise frames.FrameError("a request has limits")
    value = {name: frames.whole(limits, name, most=most) for name, most in _LIMITS}
    return isolation.Bounds(
        cpu_s=value["cpu_ms"] / 1000,
        wall_s=value["wall_ms"] / 1000,
        memory_bytes=value["memory_mib"] << 20,
        output_bytes=value["output_kib"] << 10,
        processes=value["processes"],
        tmp_bytes=value["tmp_mib"] << 20,
        open_files=value["open_files"],
    )


def _fill(stream: frames.Stream, fd: int, size: int) -> None:
    """Move `size` bytes from the stream to a file that nobody can change afterwards."""
    if size:
        stream.read_into_file(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)


class FinishedRun(NamedTuple):
    """A run that is over."""

    number: int
    """Index of the run in the request."""
    run: process.Run
    result: supervisor.ProcessResult
    last: bool


class Replies:
    """Results on their way to the client: several in a frame, as each frame wakes the client."""

    def __init__(self, stream: frames.Stream, bounds: isolation.Bounds) -> None:
        self._stream, self._bounds = stream, bounds
        self._rows: list[list[object]] = []
        self._outputs: list[bytes] = []
        self._sent = time.monotonic()

    def add(self, finished: FinishedRun) -> None:
        """Send a result, or keep it for the next frame where that can wait."""
        start, result = self._bounds.output_start, finished.result
        fds = finished.run.descriptors[1:]
        outputs = [os.pread(fd, self._bounds.output_bytes, start) for fd in fds]
        numbers = [round(result.cpu_s * 1e6), round(result.wall_s * 1e6), result.memory_kib]
        row = [finished.number, result.status, result.exit_code, *numbers, *map(len, outputs), -1]
        self._rows.append(row[:9])
        self._outputs += outputs
        late = time.monotonic() - self._sent > _FRAME_S
        if finished.last or late or sum(map(len, self._outputs)) > _FRAME_BYTES:
            header = {"results": self._rows, "done": finished.last}
            self._stream.write(frames.encode(header, self._outputs))
            self._rows, self._outputs, self._sent = [], [], time.monotonic()


def perform(
    pool: supervisor.ProcessPool, request: RunRequest, files: MemoryFiles
) -> Iterator[FinishedRun]:
    """Do the request's runs in their order, and yield each when it is over."""
    todo = list(enumerate(request.runs))
    codes: dict[int, int] = {}
    compiled: set[int] = set()
    tries = 0
    while todo:
        number, (program, case) = todo[0]
        if program not in codes and any(p == program for _, (p, _) in todo[1:]):
            codes[program] = files.add("code")
        run = _open_run(request, files, program, case)
        code_fd = codes.get(program, -1)
        task = process.Job(run, request.bounds, request.text_fd, code_fd, program in compiled)
        started = pool.start(task)
        if len(todo) > 1:
            pool.make(request.bounds)  # the next one gets ready while this one works
        result = pool.finish(task, started)
        if result.compiled:
            compiled.add(program)
        tries += 1
        if not result.stray or tries == _TRIES:
            tries = 0
            ended = request.end and result.status in _RUNAWAY
            todo = [entry for entry in todo[1:] if not (ended and entry[1][0] == program)]
            yield FinishedRun(number, run, result, not todo)
        files.drop(run.descriptors[1:])


def _open_run(request: RunRequest, files: MemoryFiles, program: int, case: int) -> process.Run:
    start = request.bounds.output_start
    call = request.calls[case]
    _refresh(request.stdin_fds[case])
    return process.Run(
        request.programs[program],
        call,
        request.stdin_fds[case],
        files.add("stdout", at=start),
        files.add("stderr", at=start),
        files.add("value", at=start) if call.size else -1,
    )


def _refresh(fd: int) -> None:
    """Undo what a program can do to an input that the next one reads: mode, times and flags."""
    os.fchmod(fd, 0o600)
    os.utime(fd)
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)


