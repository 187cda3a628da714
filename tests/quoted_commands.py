"""Runs commands of `benchmarks` one after the other: `python quoted_commands.py`, with JSON on standard input.

It has `commands`, each [module, *words], `constants` of their modules to set, by name, and `last`, the words that end
every command of the package that they start, by module (others run as they are). A line of JSON for each command says how it ended and what
CPU time it took. The folder of `benchmarks` is the current one: commands write beside their own file.

Experiments start commands of the package by the dozen, each of which would load torch for seconds: they run in forks
of this process.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import torch

LIMIT_S = 240
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
    spec = find_spec(module)
    assert spec is not None
    place = f"{module}.__main__" if spec.submodule_search_locations else module
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


def fork_commands(last: Mapping[str, Sequence[str]]) -> None:
    """Makes `subprocess.run` fork for `python -m pettingllms.cli.*`; `last` ends their words, by module."""
    start = subprocess.run

    def run_command(words: Any, **options: Any) -> Any:
        module = str(words[2]) if isinstance(words, list) and words[1:2] == ["-m"] else ""
        if module not in last or "capture_output" in options:
            return start(words, **options)
        child = os.fork()
        if child == 0:
            _be(module, [*words[3:], *last[module]], options)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if options.get("check") and code:
            raise subprocess.CalledProcessError(code, words)
        return subprocess.CompletedProcess(words, code)

    subprocess.run = run_command  # type: ignore[assignment]


def _be(module: str, words: Sequence[str], options: Mapping[str, Any]) -> NoReturn:
    """Becomes a command of the package."""
    code = 1
    try:
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        for stream, number in (("stdout", 1), ("stderr", 2)):
            file = options.get(stream)
            if file == subprocess.DEVNULL:
                file = Path(os.devnull).open("w")  # noqa: SIM115
            if file is not None:
                os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        sys.argv = [module, *words]
        # A fork gives up torch's pool of threads; the first two threads that notice may make another at once, and fail.
        torch.set_num_threads(torch.get_num_threads())
        code = sys.modules[module].main() or 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:  # noqa: BLE001 - the parent is told
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def replaced(before: Any, value: Any) -> Any:
    """Returns `value`; a mapping changes fields or entries of what is there, a list its first elements."""
    if isinstance(value, dict):
        current = before._asdict() if hasattr(before, "_asdict") else before
        changed = {name: replaced(current.get(name), one) for name, one in value.items()}
        return before._replace(**changed) if hasattr(before, "_asdict") else {**before, **changed}
    if isinstance(value, list):
        return tuple(
            replaced(before[n], one) if isinstance(one, dict) else one
            for n, one in enumerate(value)
        )
    return value


def main() -> None:
    """Runs what standard input names."""
    sys.path.insert(0, ".")
    signal.signal(signal.SIGPROF, stop)
    job = json.load(sys.stdin)
    for name, value in job["constants"].items():
        module, constant = name.rsplit(".", 1)
        assert hasattr(importlib.import_module(module), constant), name
        changed = replaced(getattr(sys.modules[module], constant), value)
        setattr(sys.modules[module], constant, changed)
    for module in job["last"]:
        importlib.import_module(module)
    fork_commands(job["last"])
    for command in job["commands"]:
        began = spent()
        sys.stderr.write(f"== {chr(32).join(command)}\n")
        Path("made").mkdir(exist_ok=True)
        failed = run(*command)
        sys.stdout.write(f"{json.dumps([command, failed, round(spent() - began, 1)])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
