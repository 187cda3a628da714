"""The frame of all commands: one clean line for an error, exit codes, signals, no traceback."""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import select
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, NoReturn, TypeVar

from pettingllms.errors import ConfigError, PettingLLMsError, naming_extras

if TYPE_CHECKING:
    from pettingllms.cli.options import CommandParser

_Command = TypeVar("_Command")
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Where a file system has no space left; `> file` makes standard output such a file."""
FAILED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
TERMINATED = 143
"""What a shell reports for a command that SIGINT, SIGPIPE or SIGTERM ended."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a command as Ctrl-C does, with an exit code of its own."""


def dispatched(parser: Callable[[], CommandParser], argv: Sequence[str] | None) -> int:
    """Runs the subcommand that a command line names; returns its exit code.

    Args:
        parser: makes the parser, whose subcommands have a default `action`: options -> exit code.
        argv: the command line; None for that of this process.
    """
    return parsed_and_run(parser().read, lambda options: options.action(options), argv)


def parsed_and_run(
    parse: Callable[[Sequence[str]], _Command],
    run: Callable[[_Command], int],
    argv: Sequence[str] | None,
) -> int:
    """Parses a command line, by default this process's, and runs the command; returns its exit code."""
    return guarded(lambda: run(parse(sys.argv[1:] if argv is None else list(argv))))


def guarded(command: Callable[[], int]) -> int:
    """Runs a command; errors of ours and missing libraries become one line on stderr.

    A closed standard output, as of `| head`, ends the command silently. Anything else is a mistake
    in this package and keeps its traceback.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        try:
            code = _reported(command)
        except SystemExit:  # of --help and --version, whose text may not be written yet
            _flush()
            raise
        return _flush() or code
    except BrokenPipeError:
        closed = [stream for stream in (sys.stdout, sys.stderr) if _reader_is_gone(stream)]
        if not closed:
            raise
        for stream in closed:
            # What is still buffered would fail once more when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return PIPE_CLOSED
    finally:
        # One more Ctrl-C then ends the process; raised in a library's exit handler, it would be a traceback.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)


def _reported(command: Callable[[], int]) -> int:
    try:
        with naming_extras():
            return command()
    except PettingLLMsError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            # A name that is too long has hundreds of characters; its start tells which one it is.
            print(f"error: {str(error.filename)[:40]!r}...: {error.strerror}", file=sys.stderr)
            return FAILED
        if error.errno not in FULL:
            raise
        return _full(error)
    except Terminated:
        print("terminated", file=sys.stderr)
        return TERMINATED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return FAILED


def _flush() -> int:
    """Writes out what was printed; returns `FAILED` where that is not possible, else 0."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # An OSError as well, but no failure: `guarded` sees to a reader that has gone.
        raise
    except OSError as error:
        if error.errno not in FULL:
            raise
        # Or the interpreter would try to write the same text once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _full(error)
    return 0


def _full(error: OSError) -> int:
    what = "a file" if error.filename is None else error.filename
    print(f"error: {what} cannot be written: {error.strerror}; free some", file=sys.stderr)
    return FAILED


def _reader_is_gone(stream: IO[str]) -> bool:
    """Returns whether a stream is a pipe that its reader has closed."""
    poll = select.poll()
    # POLLERR is reported without being asked for, and nothing else is wanted.
    poll.register(stream.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Makes SIGTERM raise `Terminated`, so that what was reached is kept and said."""

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def listening_on(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ConfigError: the host is no address of this machine, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        # Without privileges, a port below 1024 is refused with EACCES.
        cure = (
            "choose another --port"
            if error.errno in (errno.EADDRINUSE, errno.EACCES)
            else "give an address of this machine to --host: 127.0.0.1 for this machine alone, "
            "0.0.0.0 for all its addresses"
        )
        # `create_server` adds the address to the message, in parentheses.
        why = str(error.strerror).partition(" (")[0]
        raise ConfigError(f"cannot listen on {host}, port {port}: {why}; {cure}") from error


def typed(command: str) -> str:
    """A command of this package as it has to be typed here.

    With its path where the shell would not find it, or would find that of another installation.
    """
    program, *words = shlex.split(command)
    beside = Path(sys.executable).parent / program
    executable = shutil.which(program)
    # The files are compared, not their paths: PATH may lead to this one through a link.
    if executable is not None and beside.exists() and Path(executable).samefile(beside):
        return command
    if beside.exists():
        return shlex.join([str(beside), *words])
    module = {"pettingllms-eval": "evaluate"}.get(program, program.removeprefix("pettingllms-"))
    return shlex.join([sys.executable, "-m", f"pettingllms.cli.{module}", *words])


def viewing(folder: str | Path) -> str:
    """The command that shows a run or an evaluation in the browser, as it has to be typed here."""
    return typed(shlex.join(["pettingllms-view", str(folder)]))
