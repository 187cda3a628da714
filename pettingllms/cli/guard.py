"""Shared error handling of all commands: one clean line, an exit code, no traceback."""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Callable

from pettingllms.errors import PettingLLMsError

EXTRA_MODULES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "safetensors",
    "rich",
    "matplotlib",
    "yaml",
)
"""What the `train` extra installs."""

FAILED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
"""What a shell reports for a command that SIGPIPE ended."""


def guarded(command: Callable[[], int]) -> int:
    """Runs a command; errors of ours and missing libraries become one line on stderr.

    A closed standard output, as of `| head`, ends the command silently. Anything else is a mistake
    in this package and keeps its traceback.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        # What is still buffered would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except PettingLLMsError as error:
        print(f"error: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA_MODULES:
            raise
        print(
            f"error: {error.name} is not installed; this command needs the train extra: "
            "pip install 'pettingllms[train]'",
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return FAILED


def _reader_is_gone() -> bool:
    """Whether standard output is a pipe that its reader has closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
