"""Runs SymPy in a process of its own, which is started when first needed and replaced when lost.

A thread cannot be killed. The limit is CPU time, which the kernel enforces in the process itself, so that a
verdict does not depend on how busy the machine is.
"""

from __future__ import annotations

import functools
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Literal, NamedTuple

logger = logging.getLogger(__name__)

CPU_S, MEMORY_BYTES = 1.0, 2 << 30
START_S, WALL_S = 120.0, 30.0  # on a busy machine, to import SymPy and for one pair
MISSING = "SymPy cannot be used; pip install 'pettingllms[math]'"
TOO_LONG = "SymPy took too long or too much memory"


class Grade(NamedTuple):
    """Result of a comparison: equal or not, what decided it, why nothing could, and what it cost."""

    equal: bool
    by: Literal["exact", "sympy", "undecided"] = "exact"
    note: str = ""
    cpu_s: float = 0.0


def _end(popen: subprocess.Popen[bytes], pipe: Any, owner: int) -> None:
    """Kills the process, unless it belongs to the one we were forked from."""
    pipe.close()
    if os.getpid() == owner:
        popen.kill()
        popen.wait()
    else:
        popen.returncode = 0  # not ours to wait for


class _Process:
    """One worker and its pipe."""

    popen: subprocess.Popen[bytes]

    def __init__(self) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        worker = str(Path(__file__).with_name("worker.py"))
        # With `-P` the folder of the script, whose modules have common names, is not searched.
        command = [sys.executable, "-P", worker, *map(str, (theirs.fileno(), CPU_S, MEMORY_BYTES))]
        quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with theirs:
            self.popen = subprocess.Popen(command, pass_fds=[theirs.fileno()], **quiet)
        self.close = weakref.finalize(self, _end, self.popen, self.pipe, os.getpid())
        self.ready = False

    def ask(self, *question: str | int) -> Grade:
        """Asks for the verdict on a pair; raises OSError or EOFError where there will be none."""
        self.ready = self.ready or bool(self._read(START_S))
        self.pipe.send_bytes(json.dumps(question).encode())
        equal, cpu_s = json.loads(self._read(WALL_S))
        return Grade(equal, "sympy", "", cpu_s)

    def _read(self, within_s: float) -> bytes:
        if not self.pipe.poll(within_s):
            raise TimeoutError
        return self.pipe.recv_bytes()

    def code(self) -> int | None:
        """How the process ended; None if it hangs."""
        try:
            return self.popen.wait(1.0)
        except subprocess.TimeoutExpired:
            return None


class _Grader:
    """The worker of this process, with a lock: it answers one question at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: _Process | None = None
        self.missing = False

    def ask(self, gold: str, answer: str, places: int) -> Grade:
        """Asks once more where the pair is not to blame for the loss of the worker."""
        with self.lock:
            for _ in range(0 if self.missing else 2):
                self.process = process = self.process or _Process()
                try:
                    return process.ask(gold, answer, places)
                except (OSError, EOFError):
                    code = process.code()
                    self.end()
                if code == 1 and not process.ready:  # Python could not import SymPy
                    self.missing = True
                    logger.warning("answers are compared exactly only: %s", MISSING)
                if code not in (None, -signal.SIGKILL):  # which comes from outside
                    break
            logger.info("undecided: %.80r and %.80r", gold, answer)
            return Grade(False, "undecided", MISSING if self.missing else TOO_LONG, CPU_S)

    def end(self) -> None:
        """Kills the worker; the next question starts another."""
        if self.process is not None:
            self.process.close()
            self.process = None

    def forget(self) -> None:
        """Drops the worker after a fork: it is the parent's, and so may be the lock."""
        self.lock = threading.Lock()
        self.end()


_GRADER = _Grader()
os.register_at_fork(after_in_child=lambda: _GRADER.forget())


@functools.lru_cache(maxsize=4096)
def symbolic_equal(gold: str, answer: str, places: int) -> Grade:
    """Asks whether `answer` equals `gold`, both plain texts, decimals to `places` places."""
    return _GRADER.ask(gold, answer, places)
