"""`Callback`: what a training run calls of yours; `Display`: where it shows its progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pettingllms.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pettingllms.trainers.at_grpo import ATGRPO

HOOKS = ("on_begin", "on_step", "on_evaluation", "on_save", "on_end")


class Callback:
    """Hooks of a training run; override those that you need.

    A hook that returns True ends training early: the run is saved and evaluated as after its last
    step. An exception ends it at once; the last checkpoint stays.

    Raises:
        ConfigError: a subclass with a method `on_...` that is not a hook.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if name.startswith("on_") and name not in HOOKS:
                raise ConfigError(f"{cls.__name__}: no hook {name!r}; {did_you_mean(name, HOOKS)}")

    def on_begin(self, trainer: ATGRPO) -> bool | None:
        """Called before the first evaluation and step of this process; `trainer.step` may be above 0."""

    def on_step(self, trainer: ATGRPO, row: Mapping[str, Any]) -> bool | None:
        """Called after each step, with its metrics as in metrics.jsonl."""

    def on_evaluation(self, trainer: ATGRPO, row: Mapping[str, Any]) -> bool | None:
        """Called after each evaluation: `row["when"]` is before, validation or after."""

    def on_save(self, trainer: ATGRPO, folder: Path) -> bool | None:
        """Called after each checkpoint, with its folder."""

    def on_end(self, trainer: ATGRPO) -> bool | None:
        """Called after the last evaluation, or after a stop that was asked for."""


def called(callbacks: Iterable[Callback], hook: str, *arguments: Any) -> bool:
    """Calls one hook of all callbacks; returns whether any of them ends training."""
    # All of them are called, also after one that ends training.
    answers = [getattr(callback, hook)(*arguments) for callback in callbacks]
    return True in answers


class Display(Protocol):
    """Receives the progress of a run."""

    def say(self, text: str) -> None:
        """Shows a message."""

    def evaluating(self, what: str, done: int, total: int) -> None:
        """Shows how many held-out episodes are finished."""

    def step(self, step: int, total: int, row: Mapping[str, Any]) -> None:
        """Shows a finished step; `row` is its line of metrics.jsonl."""


class Silent:
    """A display that shows nothing."""

    def say(self, text: str) -> None:
        """Shows nothing."""

    def evaluating(self, what: str, done: int, total: int) -> None:
        """Shows nothing."""

    def step(self, step: int, total: int, row: Mapping[str, Any]) -> None:
        """Shows nothing."""
