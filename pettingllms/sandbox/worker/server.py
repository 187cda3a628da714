"""The worker's main loop: requests in, results out, one at a time.

Programs, inputs and outputs go from the client's pipe to memory files and back. No program
inherits anything of this process: the fork server makes theirs.

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
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

from pettingllms.sandbox.worker import frames, isolation, process, supervisor

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_TRIES = 2
"""Attempts at a run whose process was killed from outside."""
# As `RUNAWAY` in `pettingllms.sandbox.types`, which the worker cannot import.
_RUNAWAY = ("cpu_limit", "wall_limit")
_FRAME_S, _FRAME_BYTES = 0.02, 1 << 16
"""After so many seconds, or with so many bytes of output, results are not kept back."""


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
        request = receive(stream, stream.read_header())
        replies = Replies(stream, request.bounds)
        try:
            for finished in perform(pool, request):
                replies.add(finished)
        except (supervisor.JobFailed, supervisor.ForkServerGone) as error:
            stream.write(frames.encode({"failure": f"{type(error).__name__}: {error}"[:1000]}))
            raise
        _close((request.text_fd, *request.stdin_fds))


def receive(stream: frames.Stream, header: dict[str, Any]) -> RunRequest:
    """Read a request's payload into memory files. The client is trusted to have sent one."""
    programs, calls = header["programs"], header["calls"]
    sizes = [*programs, *calls]
    text_fd = _filled(stream, "text", sum(sizes))
    offsets = itertools.accumulate(sizes, initial=0)
    # Not strict: the last offset is the end of all texts, where none begins.
    spans = tuple(itertools.starmap(process.Span, zip(offsets, sizes, strict=False)))
    stdin_fds = tuple(_filled(stream, "stdin", size) for size in header["stdins"])
    flat, limits = header["runs"], header["limits"]
    return RunRequest(
        isolation.Bounds(
            cpu_s=limits["cpu_s"],
            wall_s=limits["wall_s"],
            memory_bytes=limits["memory_mib"] << 20,
            output_bytes=limits["output_kib"] << 10,
            processes=limits["processes"],
            tmp_bytes=limits["tmp_mib"] << 20,
            open_files=limits["open_files"],
        ),
        spans[: len(programs)],
        spans[len(programs) :],
        text_fd,
        stdin_fds,
        tuple(zip(flat[::2], flat[1::2], strict=True)),
        header["end"],
    )


def _filled(stream: frames.Stream, name: str, size: int) -> int:
    """A memory file with the stream's next `size` bytes, which nobody can change afterwards."""
    fd = _new_file(name)
    stream.read_into_file(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


def _new_file(name: str, at: int = 0) -> int:
    """An empty memory file, positioned at offset `at`."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if at:
        os.lseek(fd, at, os.SEEK_SET)
    return fd


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


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
        # A run without a value has two outputs: the place of the third length is then -1.
        row = [finished.number, result.status, result.exit_code, *numbers, *map(len, outputs), -1]
        self._rows.append(row[:9])
        self._outputs += outputs
        late = time.monotonic() - self._sent > _FRAME_S
        if finished.last or late or sum(map(len, self._outputs)) > _FRAME_BYTES:
            header = {"results": self._rows, "done": finished.last}
            self._stream.write(frames.encode(header, self._outputs))
            self._rows, self._outputs, self._sent = [], [], time.monotonic()


def perform(pool: supervisor.ProcessPool, request: RunRequest) -> Iterator[FinishedRun]:
    """Do the request's runs in their order, and yield each when it is over."""
    todo = list(enumerate(request.runs))
    codes: dict[int, int] = {}
    compiled: set[int] = set()
    tries = 0
    while todo:
        number, (program, case) = todo[0]
        if program not in codes and any(p == program for _, (p, _) in todo[1:]):
            codes[program] = _new_file("code")
        run = _open_run(request, program, case)
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
        # All but the input, which other runs read as well.
        _close(run.descriptors[1:])
    _close(codes.values())


def _open_run(request: RunRequest, program: int, case: int) -> process.Run:
    start = request.bounds.output_start
    call = request.calls[case]
    stdin = request.stdin_fds[case]
    # What a program can do to an input that the next one reads: mode, times and flags.
    os.fchmod(stdin, 0o600)
    os.utime(stdin)
    fcntl.fcntl(stdin, fcntl.F_SETFL, 0)
    return process.Run(
        request.programs[program],
        call,
        stdin,
        _new_file("stdout", start),
        _new_file("stderr", start),
        _new_file("value", start) if call.size else -1,
    )
