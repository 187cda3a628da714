"""The work of a program's process, from its first instruction to its exit."""

from __future__ import annotations

import gc
import marshal
import math
import os
import types
from typing import NamedTuple

from pettingllms.sandbox.worker import program
from pettingllms.sandbox.worker.board import FINE, Board, Run, Span
from pettingllms.sandbox.worker.jail import Bounds, Jail

SET_UP, COMPILED, BROKEN = b"s", b"c", b"e"
"""Marks that the process leaves, before any program text runs, in a pipe to the worker."""

_SETUP_FAILED = 125
_CPU_GRACE_S = 1
_MAX_DESCRIPTOR = 1 << 20


class Job(NamedTuple):
    """Runs for one process, and the descriptors that all of them use."""

    runs: tuple[Run, ...]
    bounds: Bounds
    text_fd: int
    code_fd: int
    """Holds the compiled program when `code_known`; the first process of a program writes it.
    -1 where it would have no second reader."""
    code_known: bool


class Text(NamedTuple):
    """A run's program and call, read before anything untrusted happens."""

    source: bytes
    call: bytes


def perform(jail: Jail, board: Board, marks_fd: int, job: Job) -> None:
    """Confine this process, do the job's runs, and exit. Never returns."""
    try:
        jail.prepare(job.bounds)
        texts = [Text(_read(job, run.source), _read(job, run.call)) for run in job.runs]
        stored = marshal.loads(_read_all(job.code_fd)) if job.code_known else None
        if len(job.runs) == 1:
            _attach(job.runs[0])
        kept = _keep_descriptors(job, marks_fd, jail)
        cpu_s = math.ceil(job.bounds.cpu_s * len(job.runs)) + _CPU_GRACE_S
        jail.confine(job.bounds, cpu_s, kept)
        gc.enable()
        os.write(marks_fd, SET_UP)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the worker must be told
        os.write(marks_fd, BROKEN + f"{type(error).__name__}: {error}".encode()[:1000])
        os._exit(_SETUP_FAILED)
    if len(job.runs) == 1:
        _single(board, marks_fd, job, texts[0], stored)
    _several(board, marks_fd, job, texts)


def _single(board: Board, marks_fd: int, job: Job, text: Text, code: types.CodeType | None) -> None:
    run = job.runs[0]
    board.begin(0)
    program.prepare(text.source)
    outcome = program.Outcome(1, FINE)
    if code is None:
        code, outcome = program.try_compile(text.source)
        if code is not None and job.code_fd >= 0:
            _write_all(job.code_fd, marshal.dumps(code))
            os.write(marks_fd, COMPILED)
    if job.code_fd >= 0:
        os.close(job.code_fd)
    os.close(marks_fd)
    if code is not None:
        outcome = program.execute(code, text.call, run.value_fd)
    board.finish(0, outcome.exit_code, outcome.reason)
    os._exit(outcome.exit_code)


def _several(board: Board, marks_fd: int, job: Job, texts: list[Text]) -> None:
    os.close(marks_fd)
    pristine = program.Pristine()
    compiled: dict[int, tuple[types.CodeType | None, program.Outcome]] = {}
    for number, (run, text) in enumerate(zip(job.runs, texts, strict=True)):
        _attach(run)
        board.begin(number)
        if number:
            program.open_streams()
        program.prepare(text.source)
        if run.program not in compiled:
            compiled[run.program] = program.try_compile(text.source)
        code, outcome = compiled[run.program]
        if code is not None:
            outcome = program.execute(code, text.call, run.value_fd)
        for fd in run.descriptors[1:]:
            os.close(fd)
        board.finish(number, outcome.exit_code, outcome.reason)
        if outcome.worn:
            break
        pristine.restore()
    os._exit(0)


def _attach(run: Run) -> None:
    os.dup2(run.stdin_fd, 0)
    os.dup2(run.stdout_fd, 1)
    os.dup2(run.stderr_fd, 2)


def _keep_descriptors(job: Job, marks_fd: int, jail: Jail) -> int:
    """Close all but what the job needs; returns how many are left besides 0, 1 and 2."""
    fence = jail.fence.descriptors if jail.fence is not None else ()
    kept = {marks_fd, job.code_fd, *fence}
    if len(job.runs) == 1:
        kept.add(job.runs[0].value_fd)
    else:
        kept.update(fd for run in job.runs for fd in run.descriptors)
    kept.discard(-1)
    low = 3
    for fd in sorted(kept):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, _MAX_DESCRIPTOR)
    return low


def _read(job: Job, span: Span) -> bytes:
    return os.pread(job.text_fd, span.size, span.offset)


def _read_all(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _write_all(fd: int, data: bytes) -> None:
    with memoryview(data) as view:
        sent = 0
        while sent < len(view):
            sent += os.write(fd, view[sent:])
