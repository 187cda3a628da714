"""Runs SymPy in a process of its own, which is started when first needed and replaced when lost.

A thread cannot be killed. The limit is CPU time, which the kernel enforces in the process itself, so that a
verdict does not depend on how busy the machine is.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal, NamedTuple

logger = logging.getLogger(__name__)

CPU_S, MEMORY_BYTES = 1.0, 2 << 30
_PIPES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "bufsize": 0}  # fmt: skip
WALL_S = 120.0  # on a busy machine, to import SymPy and for one pair
MISSING = "SymPy cannot be used; pip install 'pettingllms[math]'"
TOO_LONG = "SymPy took too long or too much memory"


class Grade(NamedTuple):
    """Result of a comparison: equal or not, what decided it, why nothing could, and what it cost."""

    equal: bool
    by: Literal["exact", "sympy", "undecided"] = "exact"
    note: str = ""
    cpu_s: float = 0.0


class _Grader:
    """The worker of this process, with a lock: it answers one question at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: Any = None  # a Popen with pipes
        self.missing = False

    def ask(self, *question: str | int) -> Grade:
        """Asks once more where the pair is not to blame for the loss of the worker."""
        with self.lock:
            for _ in range(0 if self.missing else 2):
                # With `-P` the folder of the script, whose modules have common names, is not searched.
                command = [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))]
                process: Any = self.process or subprocess.Popen(command, **_PIPES)
                self.process = process
                line = b""
                try:
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.write(json.dumps(question).encode() + b"\n")
                    line = process.stdout.readline() if wait([process.stdout], WALL_S) else b""
                finally:
                    # After Ctrl-C, too: the line would be taken for that to the next question.
                    code = None if line else self.end()
                if line:
                    equal, cpu_s = json.loads(line)
                    return Grade(equal, "sympy", "", cpu_s)
                if code == 1:  # Python could not import SymPy
                    self.missing = True
                    logger.warning("answers are compared exactly only: %s", MISSING)
                if code != -signal.SIGKILL:  # which comes from outside
                    break
            logger.info("undecided: %.80r and %.80r", *question[:2])
            return Grade(False, "undecided", MISSING if self.missing else TOO_LONG, CPU_S)

    def end(self) -> int | None:
        """Kills the worker and returns how it ended; the next question starts another."""
        process, self.process = self.process, None
        if process is None:
            return None
        with process:
            process.kill()  # one that has ended by itself keeps its code
        return int(process.returncode)

    def forget(self) -> None:
        """Drops the worker after a fork: it is the parent's, and so may be the lock."""
        self.lock = threading.Lock()
        if self.process is not None:
            self.process.returncode = 0  # not ours to kill or wait for
        self.end()


_GRADER = _Grader()
os.register_at_fork(after_in_child=lambda: _GRADER.forget())
atexit.register(lambda: _GRADER.end())


@functools.lru_cache(maxsize=4096)
def symbolic_equal(gold: str, answer: str, places: int) -> Grade:
    """Asks whether `answer` equals `gold`, both plain texts, decimals to `places` places."""
    return _GRADER.ask(gold, answer, places)
