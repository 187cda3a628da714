"""The display of a run in progress: a live line on a terminal, one plain line a step elsewhere."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from pettingllms.trainers.callbacks import Lines, TimeLeft, step_text


class TerminalDisplay:
    """A bar for the run and one for held-out episodes, redrawn in place."""

    def __init__(self, console: Console | None = None) -> None:
        self._clock = TimeLeft()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            # Soft wrapping, since rich would break a long path at the width of the terminal.
            console=console or Console(highlight=False, soft_wrap=True),
            refresh_per_second=4,
        )
        self._run: TaskID | None = None
        self._evaluating: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Prints the text above the bars."""
        # A text may have brackets, as in a path, which rich would take for markup.
        self._progress.console.print(text, markup=False, highlight=False)

    def evaluating(self, what: str, done: int, total: int) -> None:
        """Shows a second bar while held-out tasks are evaluated."""
        if self._evaluating is None:
            self._evaluating = self._progress.add_task(what, total=total, note="episodes")
        self._progress.update(self._evaluating, description=what, completed=done, total=total)
        if done == total:
            self._progress.remove_task(self._evaluating)
            self._evaluating = None

    def step(self, step: int, total: int, row: Mapping[str, Any]) -> None:
        """Moves the bar of the run."""
        note = f"{step_text(row)}  {self._clock.left(step, total)}"
        if self._run is None:
            self._run = self._progress.add_task("step", total=total, note="")
        # A budget of tokens makes the last step a guess that changes.
        self._progress.update(self._run, completed=step, total=total, note=note)


def best_display() -> contextlib.AbstractContextManager[Lines | TerminalDisplay]:
    """Returns bars for a terminal, plain lines for anything else, such as log files and pipes."""
    if sys.stdout.isatty():
        return TerminalDisplay()
    return contextlib.nullcontext(Lines(functools.partial(print, flush=True)))


def without_bars() -> None:
    """Keeps transformers from drawing bars of its own, which break ours."""
    from transformers.utils import logging

    logging.disable_progress_bar()
