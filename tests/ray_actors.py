"""Actors without a model, for tests of what happens when actors die; nothing here imports Ray or torch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from pettingllms.errors import ConfigError, SandboxUnavailable


class Hand:
    """Does jobs on numbers, and whatever a file in its folder says happens to it first."""

    def __init__(self, folder: str, ready: str = "") -> None:
        if ready == "unmade":
            raise ModuleNotFoundError("No module named 'my_game'")
        self._folder, self._ready = Path(folder), ready

    def ready(self) -> None:
        self._suffer("ready")
        if self._ready:
            raise ConfigError(self._ready)

    def square(self, number: int) -> int:
        self._suffer(f"square-{number}")
        return number * number

    def refuse(self) -> None:
        raise ConfigError("this job cannot be done")

    def process(self) -> int:
        return os.getpid()

    def _suffer(self, job: str) -> None:
        """Dies, hangs, fails or takes long as often as there are files for the job, one of which it removes."""
        for file in sorted(self._folder.glob(f"{job}-*")):
            try:
                file.unlink()
            except FileNotFoundError:  # another rank was first
                continue
            fate = file.name.rpartition("-")[2]
            if fate == "late":
                time.sleep(3)
                return
            if fate == "fail":
                raise SandboxUnavailable("the sandbox is gone")
            os.kill(os.getpid(), signal.SIGKILL if fate == "kill" else signal.SIGSTOP)
            return


class Sum(Hand):
    """A state that jobs change: the sum of what was added."""

    total = 0

    def address(self) -> None:
        """Ranks of this have nowhere to meet."""

    def join(self, place: None, rank: int, ranks: int) -> None:
        """Does nothing."""

    def load(self, state: int) -> None:
        if state < 0:
            raise ConfigError("no such state")
        self.total = state

    def add(self, number: int) -> int:
        self.total += number
        self._suffer(f"add-{number}")
        return self.total

    def spoil(self) -> None:
        self.total = -1
        raise ConfigError("half of it is done")

    def state(self) -> int:
        return self.total
