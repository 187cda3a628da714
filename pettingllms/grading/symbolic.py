"""Runs math-verify in a process of its own, which is killed where it takes too long.

A thread cannot be killed, and a hung computer algebra system in one would hold the interpreter.
The limit is CPU time, which the kernel enforces in the process itself, so that a verdict does not
depend on how busy the machine is. The process is started when first needed and replaced when lost.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Literal, NamedTuple

logger = logging.getLogger(__name__)

CPU_S = 1.0
MEMORY_BYTES = 2 << 30
START_S = 120.0
"""Wall time for the process to import math-verify, on a busy machine."""
WALL_S = 30.0
"""Wall time for one pair; its limit of CPU time is much smaller."""
MISSING = "math-verify cannot be used; pip install 'pettingllms[math]'"
TOO_LONG = "math-verify took too long or too much memory"


class Answered(NamedTuple):
    """The verdict on a pair, what it came from, why there is none, and what it cost."""

    equal: bool
    by: Literal["math-verify", "undecided"]
    note: str = ""
    cpu_s: float = 0.0


class Lost(Exception):
    """The process ended, or did not answer in time."""


class Missing(Exception):
    """math-verify cannot be imported."""


class _Process:
    """One worker and its pipes.

    Raises:
        Lost: it did not start.
        Missing: it started, but not math-verify.
    """

    def __init__(self) -> None:
        worker = str(Path(__file__).with_name("worker.py"))
        self.popen = subprocess.Popen(
            # With `-P` the folder of the script, whose modules have common names, is not
            # searched.
            [sys.executable, "-P", worker, str(CPU_S), str(MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.requests, self.answers = self.popen.stdin, self.popen.stdout
        self.close = weakref.finalize(self, _end, self.popen, os.getpid())
        if not self.read(START_S):
            code = self.popen.wait()
            self.close()
            raise Missing if code == 1 else Lost  # 1: Python could not import it

    def ask(self, gold: str, answer: str, places: int) -> Answered:
        """Asks for the verdict on a pair.

        Raises:
            Lost: there will be none.
        """
        try:
            self.requests.write(json.dumps([gold, answer, places]).encode() + b"\n")
            self.requests.flush()
            equal, cpu_s = json.loads(self.read(WALL_S))
        except (OSError, ValueError) as error:
            raise Lost from error
        return Answered(equal, "math-verify", "", cpu_s)

    def ended_itself(self) -> bool:
        """Returns whether a limit ended the process; False if it hangs or was killed from outside.

        Its limits end it with SIGPROF or from within; SIGKILL comes from outside, as when the
        machine runs out of memory.
        """
        try:
            return self.popen.wait(1.0) != -signal.SIGKILL
        except subprocess.TimeoutExpired:
            return False

    def read(self, within_s: float) -> bytes:
        """Reads the next line, or less where the process has ended."""
        line, end = b"", time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.answers, selectors.EVENT_READ)
            # Nothing follows the end of a line, because one question is asked at a time.
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise Lost
                part = os.read(self.answers.fileno(), 1024)
                line += part
                if not part:
                    break
        return line


def _end(popen: subprocess.Popen[bytes], owner: int) -> None:
    """Closes the pipes; kill the process, unless it belongs to the one we were forked from."""
    for pipe in (popen.stdin, popen.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except OSError:
            logger.debug("a request was lost with the grader's process")
    if os.getpid() == owner:
        popen.kill()
        popen.wait()
    else:
        popen.returncode = 0  # not ours to wait for


class _Grader:
    """The worker of this process, with a lock: it answers one question at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: _Process | None = None
        self.missing = False

    def ask(self, gold: str, answer: str, places: int) -> Answered:
        """Asks for the verdict on a pair, a worker that belongs to this process."""
        with self.lock:
            if self.missing:
                return Answered(False, "undecided", MISSING)
            try:
                return self._asked(gold, answer, places)
            except Lost:
                logger.info("%s: %.80r and %.80r", TOO_LONG, gold, answer)
                return Answered(False, "undecided", TOO_LONG, CPU_S)
            except Missing:
                self.missing = True
                logger.warning("answers are compared exactly only: %s", MISSING)
                return Answered(False, "undecided", MISSING)

    def _asked(self, gold: str, answer: str, places: int) -> Answered:
        """Asks once more where the pair is not to blame for the loss of the worker.

        Raises:
            Lost: the pair took too much, or two workers were lost.
            Missing: math-verify cannot be imported.
        """
        for last in (False, True):
            try:
                self.process = self.process or _Process()
                return self.process.ask(gold, answer, places)
            except Lost:
                blamed = self.process is not None and self.process.ended_itself()
                self.end()
                if blamed or last:
                    raise
        raise AssertionError("the second loss is raised")

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
def symbolic_equal(gold: str, answer: str, places: int) -> Answered:
    """Asks math-verify whether `answer` equals `gold`, decimals to `places` places."""
    return _GRADER.ask(gold, answer, places)
