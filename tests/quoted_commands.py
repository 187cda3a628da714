"""Runs commands of `benchmarks` one after the other in this process: `python quoted_commands.py`, with a list on standard input.

Each is [module, *words]; a line of JSON for each says how it ended and what CPU time it took. The folder of
`benchmarks` is the current one: commands write beside their own file.
"""

from __future__ import annotations

import importlib
import json
import resource
import signal
import sys
import traceback
from contextlib import redirect_stdout
from importlib.util import find_spec
from typing import NoReturn

LIMIT_S = 60
"""CPU seconds after which a command has failed."""


def stop(*_: object) -> NoReturn:
    """Ends a command that takes too long."""
    raise TimeoutError(f"it takes more than {LIMIT_S} CPU seconds")


def spent() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


def run(module: str, *words: str) -> str:
    """Returns why a command failed; empty where it did not."""
    sys.argv = [module, *words]
    found = find_spec(module)
    assert found is not None
    place = f"{module}.__main__" if found.submodule_search_locations else module
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        with redirect_stdout(sys.stderr):
            importlib.import_module(place).main()
    except SystemExit as ended:
        return "" if ended.code in (None, 0) else f"exit: {ended.code}"
    except Exception:  # noqa: BLE001 - whatever it is, the other commands run
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def main() -> None:
    """Runs what standard input names."""
    sys.path.insert(0, ".")
    signal.signal(signal.SIGPROF, stop)
    for command in json.load(sys.stdin):
        began = spent()
        sys.stderr.write(f"== {chr(32).join(command)}\n")
        failed = run(*command)
        sys.stdout.write(f"{json.dumps([command, failed, round(spent() - began, 1)])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
