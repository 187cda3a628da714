"""Runs one program on one case as Python runs a script, in the process that is there for nothing else."""

from __future__ import annotations

import _thread
import atexit
import bisect
import builtins
import collections
import contextlib
import copy
import datetime
import errno
import functools
import heapq
import io
import itertools
import json
import linecache
import math
import operator
import os
import random
import re
import statistics
import string
import sys
import threading
import traceback
import types
import typing
from collections.abc import Callable
from typing import IO, Any, NamedTuple, NoReturn

FINE, MEMORY, PROCESSES, FORBIDDEN, OUTPUT = range(5)
"""Why a program failed, where its own exception says so."""

FILE_NAME = "main.py"
ENVIRONMENT = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}
OWN_NAME = "<sandbox>"
"""The file name of all code of the worker, once programs can run."""
# Bound here, because a program may replace them where others look them up.
_write, _dumps, _loads = os.write, json.dumps, json.loads
_END_THREADS: Callable[[], None] = vars(threading)["_shutdown"]
_DISPLAY = sys.__excepthook__
_CLASS_NAME: Any = vars(type)["__name__"]
"""Unlike `__name__`, it runs no code of a metaclass."""
_TRACEBACK_CHARS = 1 << 16
_SUGGESTED_FOR = ("NameError", "AttributeError")
_PROCESS_CALLS = ("execv", "execve", "fork", "forkpty", "posix_spawn", "posix_spawnp", "system")
_PROCESS_MODULES = ("subprocess", "multiprocessing", "concurrent.futures.process")
_NO_PROCESSES = "new processes are not allowed in this sandbox"
_REASONS = {errno.EPERM: FORBIDDEN, errno.EAGAIN: PROCESSES, errno.EFBIG: OUTPUT}
# What LeetCode's own judge and LiveCodeBench's harness import for every solution, in their order;
# models leave these imports out. Builtins stay, and streams are those of the program.
_STARRED = [string, re, datetime, collections, heapq, bisect, copy, math, random, statistics]
_STARRED += [itertools, functools, operator, io, json, typing]
_CALL_NAMES: dict[str, Any] = {
    name: getattr(module, name)
    for module in _STARRED
    for name in getattr(module, "__all__", vars(module))
    if name[0] != "_" and not hasattr(builtins, name)
} | {module.__name__: module for module in (*_STARRED, sys)}


Streams = tuple[IO[Any], ...]
"""Standard input, output and error."""


class ProgramExit(NamedTuple):
    """The end of a program, as its own process sees it."""

    exit_code: int
    reason: int


_REHEARSALS, _SMALL = 20, b"x = [1]\nprint(len(x))\n"
SUCCESS = ProgramExit(0, FINE)


# As PEP 263 has it: in one of the first two lines, the first of which is blank or a comment.
_COOKIE = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:[ \t\f]*(?:#[^\r\n]*)?\r?\n)?[ \t\f]*#[^\r\n]*?coding[:=][ \t]*([-\w.]+)"
)


class NoResult(Exception):
    """A function case that cannot be answered; its text is the model's feedback."""


def try_compile(text: bytes) -> tuple[types.CodeType | None, ProgramExit]:
    """The program's code object, or None and how its compilation failed."""
    try:
        return compile(_source(text), FILE_NAME, "exec", dont_inherit=True), SUCCESS
    except BaseException as error:  # noqa: BLE001 - a program may break the compiler in any way
        if isinstance(error, SyntaxError) and error.text is None:
            # The compiler's later stages look for the line in a file.
            error.text = linecache.getline(FILE_NAME, error.lineno or 0) or None
        return None, report(error)


def prepare(text: bytes) -> None:
    """Let tracebacks and `inspect` show the program's lines."""
    try:
        source = _source(text)
    except SyntaxError:
        return  # the compiler says so
    # Without a newline at the end of the last line, the marks below it would be misplaced.
    ended = source if source.endswith("\n") else f"{source}\n"
    linecache.cache[FILE_NAME] = (len(source), None, ended.splitlines(True), FILE_NAME)


def _source(text: bytes) -> str:
    """The text of a program, in the encoding that it declares.

    Raises:
        SyntaxError: in the interpreter's words; there is no such encoding, or it does not fit.
    """
    cookie = _COOKIE.match(text)
    if cookie is None:
        return text.decode("utf-8", "surrogatepass").removeprefix("\ufeff")
    name = cookie[1].decode("ascii")
    try:
        return text.decode(name).removeprefix("\ufeff")
    except (LookupError, ValueError):
        raise SyntaxError(f"encoding problem: {name}") from None


def open_streams() -> Streams:
    """Make new sys.stdin, stdout and stderr over descriptors 0, 1 and 2, as Python makes them."""
    opened: list[IO[Any]] = []
    for fd, name, mode, errors in (
        (0, "stdin", "r", "surrogateescape"),
        (1, "stdout", "w", "surrogateescape"),
        (2, "stderr", "w", "backslashreplace"),
    ):
        stream = open(  # noqa: SIM115
            fd, mode, encoding="utf-8", errors=errors, newline="\n", closefd=False
        )
        if isinstance(stream, io.TextIOWrapper):
            stream.buffer.raw.name = f"<{name}>"
            stream.mode = mode  # type: ignore[misc]
            if fd == 2:
                stream.reconfigure(line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
        opened.append(stream)
    return tuple(opened)


def execute(code: types.CodeType, call: bytes, value_fd: int, streams: Streams) -> ProgramExit:
    """Run `code`; with a `call`, also the function it names."""
    # A function is called as if the program had been imported: what a model wrote below
    # `if __name__ == "__main__"` would read an input that is not there.
    module = types.ModuleType("main" if call else "__main__")
    space = module.__dict__
    space.update(__builtins__=builtins, __file__=FILE_NAME)
    if call:
        space.update(_CALL_NAMES)
    sys.modules[module.__name__] = module
    outcome = _guard(functools.partial(_play, code, space, call, value_fd))
    # An executor ends its threads in a hook that `threading` calls.
    threads = _thread._count() > 0 or "concurrent.futures.thread" in sys.modules
    endings: list[Callable[[], object]] = [_END_THREADS] if threads else []
    # As the interpreter ends: output is flushed before globals go, which replaced streams may use.
    endings += [atexit._run_exitfuncs, _flush, functools.partial(_clear, space)]
    endings.append(functools.partial(_flush_first, streams))
    for ending in endings:
        ended = _guard(ending)
        if outcome.exit_code == 0:
            outcome = ended
    return outcome


def rehearse() -> None:
    """Run a small program a few times, in a process that programs are then forked from.

    Python adapts code to what it does the first times that it runs, by writing to it. What is
    adapted before a fork need not be copied in every forked process.
    """
    streams = open_streams()
    for _ in range(_REHEARSALS):
        prepare(_SMALL)
        code, _ = try_compile(_SMALL)
        assert code is not None
        execute(code, b"", -1, streams)


def _play(code: types.CodeType, space: dict[str, Any], call: bytes, value_fd: int) -> None:
    exec(code, space)  # noqa: S102 - the purpose of this module
    if call:
        value = _call(space, call)
        data = value.encode("utf-8", "surrogatepass")
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                sent += _write(value_fd, view[sent:])


def _call(space: dict[str, Any], call: bytes) -> str:
    name, text = _loads(call)
    try:
        arguments = _loads(text)
    except (ValueError, RecursionError) as error:
        raise NoResult(f"the arguments are not JSON: {error}") from None
    if not isinstance(arguments, list):
        raise NoResult(f"the arguments must be a JSON list, got {type(arguments).__name__}")
    value = _function(space, name)(*arguments)
    try:
        return _dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise NoResult(f"{name} returned something that JSON cannot express: {error}") from None


def _function(space: dict[str, Any], name: str) -> Callable[..., object]:
    solution = space.get("Solution")
    candidate = space.get(name)
    if isinstance(solution, type) and hasattr(solution, name):
        candidate = getattr(solution(), name)
    if not callable(candidate):
        raise NoResult(f"the program defines no function {name!r} and no Solution.{name}")
    function: Callable[..., object] = candidate
    return function


def _guard(action: Callable[[], object]) -> ProgramExit:
    """Do `action` the way Python runs a script: what it raises becomes an exit code."""
    try:
        action()
    except SystemExit as stop:
        return ProgramExit(_exit_code(stop), FINE)
    except BaseException as error:  # noqa: BLE001 - everything a program raises is its result
        return report(error)
    return SUCCESS


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        # By methods of `int` itself: the code may be of a class of the program's own.
        fits = int.bit_length(stop.code) < 64
        return int.__and__(stop.code, 0xFF) if fits else 0xFF
    _say(f"{stop.code}\n")
    return 1


def refuse_processes() -> None:
    """Have the calls that make processes say that there are none.

    The kernel's filter refuses them as well, but with an error that says little, which os.system
    turns into a number.
    """
    for name in _PROCESS_CALLS:
        refuse = functools.partial(_refuse_process, name)
        # `os` has them from `posix`, where a program may take them as well.
        for module in (os, sys.modules["posix"]):
            setattr(module, name, refuse)


def show_lines() -> None:
    """Have errors of threads and of destructors shown with source lines.

    The interpreter looks for these in a file, and the program is in none.
    """
    for module, name, hook in (
        (threading, "excepthook", _show_of_thread),
        (sys, "unraisablehook", _show_ignored),
    ):
        setattr(module, name, hook)
        setattr(module, f"__{name}__", hook)


def _show_of_thread(error: threading.ExceptHookArgs, /) -> None:
    if error.exc_type is not SystemExit and error.exc_value is not None and sys.stderr is not None:
        name = error.thread.name if error.thread is not None else _thread.get_ident()
        error.exc_value.__traceback__ = error.exc_traceback
        sys.stderr.write(f"Exception in thread {name}:\n{_render(error.exc_value)}")
        sys.stderr.flush()


def _show_ignored(error: Any, /) -> None:
    if sys.stderr is not None:
        about = ":" if error.object is None else f": {error.object!r}"
        lines = traceback.format_exception(
            error.exc_type, error.exc_value, error.exc_traceback, chain=False
        )
        sys.stderr.write(f"{error.err_msg or 'Exception ignored in'}{about}\n{''.join(lines)}")
        sys.stderr.flush()


def _refuse_process(name: str, *_: object, **__: object) -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, f"{_NO_PROCESSES} (os.{name})")


def report(error: BaseException) -> ProgramExit:
    """Print the traceback of what a program raised, its own lines only."""
    reason = FINE
    try:
        # An exception of the program's own class may raise another one wherever it is looked at.
        wanted_process = isinstance(error, OSError) and _is_inside(error, _PROCESS_MODULES)
        reason = PROCESSES if wanted_process else _reason(error)
        error.__traceback__ = _own_lines(error.__traceback__)
        hook = sys.excepthook
        if isinstance(error, NoResult):
            _say(f"{error}\n")
        elif hook is not _DISPLAY:
            hook(type(error), error, error.__traceback__)
        else:
            _say(_render(error))
        if wanted_process:
            _say(f"{_NO_PROCESSES}\n")
    except BaseException:  # noqa: BLE001 - out of memory, or an exception that cannot be shown
        _write(2, f"{_CLASS_NAME.__get__(type(error))}\n".encode("utf-8", "replace"))
    return ProgramExit(1, reason)


def _reason(error: BaseException) -> int:
    if isinstance(error, MemoryError):
        return MEMORY
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0, FINE)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        # A thread needs address space for its stack as well as a place among the processes.
        return PROCESSES if _thread._count() > 4 else MEMORY
    return FINE


def _render(error: BaseException) -> str:
    """The text that plain Python prints.

    Before 3.13, its "Did you mean" is known only to the interpreter's own display (3.12's is a
    question mark longer), which in turn finds no source lines here, as the program is in no file.
    """
    text = "".join(traceback.format_exception(error))
    if sys.version_info < (3, 13) and any(word in text for word in _SUGGESTED_FOR):
        stream, sys.stderr = sys.stderr, io.StringIO()
        try:
            _DISPLAY(type(error), error, error.__traceback__)
            printed = sys.stderr.getvalue()
        finally:
            sys.stderr = stream
        for line in printed.splitlines():
            plain = re.sub(r"\. Did you mean: .*|(?<=')\?$", "", line)
            text = text.replace(f"{plain}\n", f"{line}\n")
    return text


def _is_inside(error: BaseException, modules: tuple[str, ...]) -> bool:
    """Tell whether code of one of these modules was running when `error` was raised."""
    names = (frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(isinstance(name, str) and name.startswith(modules) for name in names)


def _own_lines(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback without the frames of ours, which are its first and perhaps its last."""
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    last = trace
    while last is not None and last.tb_next is not None:
        if _is_ours(last.tb_next):
            last.tb_next = None
        last = last.tb_next
    return trace


def _is_ours(trace: types.TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename == OWN_NAME


def _say(text: str) -> None:
    """Write to standard error, after what the program wrote there."""
    if len(text) > _TRACEBACK_CHARS:
        half = _TRACEBACK_CHARS // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    if sys.stderr is not None:
        sys.stderr.flush()
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[_write(2, data) :]


def _clear(space: dict[str, Any]) -> None:
    """Drop the program's globals as the interpreter does at exit, private names first."""
    for private in (True, False):
        for name in [name for name in space if name.startswith("_") is private]:
            # Destructors of what is dropped may still need it.
            if name != "__builtins__":
                space[name] = None


def _flush() -> None:
    """Flush what `print` writes to now, if it is still there."""
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
        if stream is not None and not _is_closed(stream):
            stream.flush()


def _flush_first(streams: Streams) -> None:
    """Flush what `print` wrote to before a program replaced it."""
    for stream in streams[1:]:
        # Closed or detached: there is nothing to flush.
        with contextlib.suppress(ValueError):
            stream.flush()


def _is_closed(stream: IO[Any]) -> bool:
    try:
        return bool(stream.closed)
    except Exception:  # noqa: BLE001 - a program's own stream need not know
        return False
