"""`pettingllms-view`: shows runs and evaluations in the browser, or as one HTML file."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pettingllms.cli.guard import guarded, listening_on, terminable
from pettingllms.cli.options import CommandParser
from pettingllms.errors import ConfigError

if TYPE_CHECKING:
    from pettingllms.viewer.library import Library

PORT = 8765
EXAMPLES = (
    "pettingllms-view",
    "pettingllms-view runs/latest",
    "pettingllms-view runs/one runs/two evals/mine",
    "pettingllms-view runs/latest --export run.html --steps 1,50,100 --tasks 8",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 when done or stopped, 2 on an error."""
    words = sys.argv[1:] if argv is None else list(argv)
    return guarded(lambda: _run(parse(words)))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads a command line.

    Raises:
        ConfigError: an option or value that cannot be used.
    """
    parser = CommandParser(
        prog="pettingllms-view",
        description="Shows runs and evaluations in the browser: curves, every episode as a tree of decisions, "
        "every completion with its rewards, and evaluations by task. Serves this machine only, follows "
        "running trainings, and changes nothing.",
        examples=EXAMPLES,
    )
    parser.add_argument(
        "folders",
        nargs="*",
        metavar="RUN_OR_EVAL",
        help="Folders of runs or evaluations, or their parents. Default: runs and evals",
    )
    parser.add_argument(
        "--port", type=_port, help=f"Port to listen on. Default: {PORT}, or a free one"
    )
    parser.add_argument(
        "--export",
        type=Path,
        metavar="FILE.html",
        help="Write one HTML file that opens without a server or a network",
    )
    parser.add_argument(
        "--steps",
        type=_steps,
        metavar="1,50,100",
        help="With --export: only the episodes of these steps. Default: all",
    )
    parser.add_argument(
        "--tasks", type=_count, metavar="N", help="With --export: only N tasks of each step"
    )
    options = parser.read(argv)
    if options.export is None and (options.steps or options.tasks):
        raise ConfigError("--steps and --tasks need --export FILE.html")
    if options.export is not None and options.port is not None:
        raise ConfigError("--export writes a file and listens on no port; leave out --port")
    return options


def _run(options: argparse.Namespace) -> int:
    from pettingllms.viewer.folders import checked
    from pettingllms.viewer.library import Library

    library = Library(checked(options.folders))
    if options.export is not None:
        return _export(library, options)
    from pettingllms.viewer.app import serve

    with _listening(options.port) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
        # On standard error, so that standard output is the address alone.
        print("Ctrl-C stops", file=sys.stderr, flush=True)
        serve(library, listening)
    return 0


def _export(library: Library, options: argparse.Namespace) -> int:
    from pettingllms.runs.folder import replace_file
    from pettingllms.viewer.export import exported

    bar = sys.stderr.isatty()

    def progress(done: int, total: int) -> None:
        if bar:
            end = "\n" if done == total else ""
            print(f"\r{done}/{total} steps and teams", end=end, file=sys.stderr, flush=True)

    with terminable():
        text = exported(
            library, steps=options.steps, tasks=options.tasks, on_progress=progress
        ).encode()
    target: Path = options.export
    try:
        replace_file(target, text)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}; choose another file") from None
    print(f"{target}: {len(text) / 1e6:.1f} MB")
    return 0


def _listening(port: int | None) -> socket.socket:
    """A socket that listens on this machine's own address.

    Raises:
        ConfigError: the port that was asked for is taken.
    """
    try:
        return listening_on("127.0.0.1", PORT if port is None else port)
    except ConfigError:
        if port is not None:
            raise
        # Another viewer may be open. A port that was asked for is never exchanged for another.
        return listening_on("127.0.0.1", 0)


def _number(text: str) -> int:
    # `int` alone would also take `1_000`, `+80` and digits of other scripts.
    return int(text) if text.isascii() and text.isdecimal() else -1


def _port(text: str) -> int:
    if not 0 <= _number(text) <= 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if _number(text) < 1:
        raise argparse.ArgumentTypeError(f"a number of tasks, 1 or more, got {text!r}")
    return int(text)


def _steps(text: str) -> frozenset[str]:
    steps = [step.strip() for step in text.split(",") if step.strip()]
    for step in steps:
        if _number(step) < 0:
            raise argparse.ArgumentTypeError(f"steps are numbers like 1,50,100, got {step!r}")
    if not steps:
        raise argparse.ArgumentTypeError("name at least one step, such as 1,50,100")
    # Steps are compared as text, and files write them without leading zeros.
    return frozenset(str(int(step)) for step in steps)


if __name__ == "__main__":
    sys.exit(main())
