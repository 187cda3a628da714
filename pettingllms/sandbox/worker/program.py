"""Runs one program on one case as Python runs a script, in the process that is there for nothing else."""

from __future__ import annotations

import _thread
import atexit
import builtins
import contextlib
import errno
import functools
import importlib
import io
import json
import linecache
import os
import re
import sys
import threading
import traceback
import types
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
_SUGGESTED_FOR = re.compile("NameError|AttributeError")
_PROCESS_CALLS = ("execv", "execve", "fork", "forkpty", "posix_spawn", "posix_spawnp", "system")
_PROCESS_MODULE = re.compile(r"subprocess|multiprocessing|concurrent\.futures\.process")
_NO_PROCESSES = "new processes are not allowed in this sandbox"
_REASONS = {errno.EPERM: FORBIDDEN, errno.EAGAIN: PROCESSES, errno.EFBIG: OUTPUT}
# What LeetCode's own judge and LiveCodeBench's harness import for every solution, in their order;
# models leave these imports out. Builtins stay, and streams are those of the program.
_STARRED = """string re datetime collections heapq bisect copy math random statistics itertools
    functools operator io json typing"""
_MODULES = [importlib.import_module(name) for name in _STARRED.split()]
CALL_NAMES: dict[str, Any] = {
    name: getattr(module, name)
    for module in _MODULES
    for name in getattr(module, "__all__", vars(module))
    if name[0] != "_" and not hasattr(builtins, name)
} | {module.__name__: module for module in (*_MODULES, sys)}
Streams = tuple[IO[Any], ...]
"""Standard input, output and error."""
_REHEARSALS, _SMALL = 20, b"x = [1]\nprint(len(x))\n"


class ProgramExit(NamedTuple):
    """The end of a program, as its own process sees it."""

    exit_code: int
    reason: int


SUCCESS = ProgramExit(0, FINE)


class NoResult(Exception):
    """A function case that cannot be answered; its text is the model's feedback."""


def try_compile(text: bytes) -> tuple[types.CodeType | None, ProgramExit]:
    """The program's code object, or None and how its compilation failed."""
    try:
        return compile(text, FILE_NAME, "exec", dont_inherit=True), SUCCESS
    except BaseException as error:  # noqa: BLE001 - a program may break the compiler in any way
        if isinstance(error, SyntaxError) and error.text is None:
            # The compiler's later stages look for the line in a file.
            error.text = linecache.getline(FILE_NAME, error.lineno or 0) or None
        return None, report(error)


def prepare(text: bytes) -> None:
    """Let tracebacks and `inspect` show the program's lines."""
    with contextlib.suppress(UnicodeDecodeError):  # the compiler says so
        # As it travels, whatever encoding the program declares: the model sees what it wrote.
        source = text.decode().removeprefix("\ufeff")
        # Without a newline at the end of the last line, the marks below it would be misplaced.
        ended = source if source.endswith("\n") else f"{source}\n"
        lines = io.StringIO(ended, newline=None).readlines()
        linecache.cache[FILE_NAME] = (len(text), None, lines, FILE_NAME)


def open_streams() -> Streams:
    """Make new sys.stdin, stdout and stderr over descriptors 0, 1 and 2, as Python makes them."""
    opened: list[IO[Any]] = []
    for fd, name, mode, errors in (
        (0, "stdin", "r", "surrogateescape"),
        (1, "stdout", "w", "surrogateescape"),
        (2, "stderr", "w", "backslashreplace"),
    ):
        buffer: Any = open(fd, f"{mode}b", closefd=False)  # noqa: SIM115
        buffer.raw.name = f"<{name}>"
        stream = io.TextIOWrapper(buffer, "utf-8", errors, "\n", line_buffering=fd == 2)
        stream.mode = mode  # type: ignore[misc]
        vars(sys).update({name: stream, f"__{name}__": stream})
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
        space.update(CALL_NAMES)
    sys.modules[module.__name__] = module
    outcomes = [_guard(functools.partial(_play, code, space, call, value_fd))]
    # An executor ends its threads in a hook that `threading` calls.
    threads = _thread._count() > 0 or "concurrent.futures.thread" in sys.modules
    # As the interpreter ends: output is flushed before globals go, which replaced streams may use.
    endings = [atexit._run_exitfuncs, _flush, lambda: _clear(space), lambda: _flush_first(streams)]
    outcomes += map(_guard, [_END_THREADS, *endings] if threads else endings)
    return next((outcome for outcome in outcomes if outcome.exit_code), SUCCESS)


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
        _write_all(value_fd, _call(space, call).encode("utf-8", "surrogatepass"))


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


def _function(space: dict[str, Any], name: str) -> Any:
    solution, function = space.get("Solution"), space.get(name)
    if isinstance(solution, type) and hasattr(solution, name):
        function = getattr(solution(), name)
    if not callable(function):
        raise NoResult(f"the program defines no function {name!r} and no Solution.{name}")
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
    if isinstance(stop.code, int):
        # By methods of `int` itself: the code may be of a class of the program's own.
        return int.__and__(stop.code, 0xFF) if int.bit_length(stop.code) < 64 else 0xFF
    if stop.code is not None:
        _say(f"{stop.code}\n")
    return 0 if stop.code is None else 1


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
    threading.excepthook = threading.__excepthook__ = _show_of_thread
    sys.unraisablehook = sys.__unraisablehook__ = _show_ignored


def _show_of_thread(error: Any, /) -> None:
    if error.exc_type is not SystemExit:
        name = error.thread.name if error.thread is not None else _thread.get_ident()
        _show(f"Exception in thread {name}:\n", error, chain=True)


def _show_ignored(error: Any, /) -> None:
    about = ":" if error.object is None else f": {error.object!r}"
    _show(f"{error.err_msg or 'Exception ignored in'}{about}\n", error, chain=False)


def _show(heading: str, error: Any, chain: bool) -> None:
    if sys.stderr is not None:
        shown = error.exc_value.with_traceback(error.exc_traceback)
        sys.stderr.write(heading + _render(shown, chain))
        sys.stderr.flush()


def _refuse_process(name: str, *_: object, **__: object) -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, f"{_NO_PROCESSES} (os.{name})")


def report(error: BaseException) -> ProgramExit:
    """Print the traceback of what a program raised, its own lines only."""
    reason = FINE
    try:
        # An exception of the program's own class may raise another one wherever it is looked at.
        wanted_process = isinstance(error, OSError) and _wanted_process(error)
        reason = PROCESSES if wanted_process else _reason(error)
        error.__traceback__ = _own_lines(error.__traceback__)
        hook = sys.excepthook
        if hook is not _DISPLAY and not isinstance(error, NoResult):
            hook(type(error), error, error.__traceback__)
        else:
            _say(f"{error}\n" if isinstance(error, NoResult) else _render(error))
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


def _render(error: BaseException, chain: bool = True) -> str:
    """The text that plain Python prints.

    Before 3.13, its "Did you mean" is known only to the interpreter's own display (3.12's is a
    question mark longer), which in turn finds no source lines here, as the program is in no file.
    """
    text = "".join(traceback.format_exception(error, chain=chain))
    if sys.version_info < (3, 13) and chain and _SUGGESTED_FOR.search(text):
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            _DISPLAY(type(error), error, error.__traceback__)
        for line in printed.getvalue().splitlines():
            plain = re.sub(r"\. Did you mean: .*|(?<=')\?$", "", line)
            text = text.replace(f"{plain}\n", f"{line}\n")
    return text


def _wanted_process(error: BaseException) -> bool:
    """Tell whether a library that makes processes was at work when `error` was raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [str(frame.f_globals.get("__name__")) for frame in frames]
    return any(map(_PROCESS_MODULE.match, names))


def _own_lines(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback without the frames of ours."""
    first = last = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename != OWN_NAME:
            first, last = first or trace, trace
        elif last is not None:
            last.tb_next = trace.tb_next
        trace = trace.tb_next
    return first


def _say(text: str) -> None:
    """Write to standard error, after what the program wrote there."""
    if len(text) > _TRACEBACK_CHARS:
        half = _TRACEBACK_CHARS // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    if sys.stderr is not None:
        sys.stderr.flush()
    _write_all(2, text.encode("utf-8", "backslashreplace"))


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[_write(fd, left) :]


def _clear(space: dict[str, Any]) -> None:
    """Drop the program's globals as the interpreter does at exit, private names first."""
    for name in sorted(space, key=lambda name: not str(name).startswith("_")):
        if name != "__builtins__":  # destructors of what is dropped may still need it
            space[name] = None


def _flush() -> None:
    """Flush what `print` writes to now, if it is still there."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name, None)
        closed = stream is None
        with contextlib.suppress(Exception):  # a program's own stream need not know
            closed = stream.closed
        if not closed:
            stream.flush()


def _flush_first(streams: Streams) -> None:
    """Flush what `print` wrote to before a program replaced it."""
    for stream in streams[1:]:
        # Closed or detached: there is nothing to flush.
        with contextlib.suppress(ValueError):
            stream.flush()
