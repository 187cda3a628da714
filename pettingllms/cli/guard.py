"""What every command does about errors: one clean line, an exit code, no traceback."""

from __future__ import annotations

import logging
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


def guarded(command: Callable[[], int]) -> int:
    """Runs a command; errors of ours and missing libraries become one line on stderr.

    Anything else is a mistake in this package and keeps its traceback.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        return command()
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
