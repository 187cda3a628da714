"""`Callback`: hooks of a training run; `Display`: its progress, for example as lines of text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pettingllms.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import torch

    from pettingllms.trainers.at_grpo import ATGRPO
    from pettingllms.types import Sample

HOOKS = ("on_begin", "on_gradients", "on_step", "on_evaluation", "on_save", "on_end")


class Callback:
    """Hooks of a training run; override the ones you need.

    A hook that returns True ends training early: the run is saved and evaluated as after its last
    step. An exception stops training at once and keeps the last checkpoint.

    Raises:
        ConfigError: a subclass with a method `on_...` that is not a hook.
    """

    wants_gradients = False
    """Whether `on_gradients` is called. It costs a backward pass for each further role of a micro-batch."""
    kept_as: str | None = None
    """Name of its `state_dict` in checkpoints; None without one."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if name.startswith("on_") and name not in HOOKS:
                raise ConfigError(f"{cls.__name__}: no hook {name!r}; {did_you_mean(name, HOOKS)}")

    def on_begin(self, trainer: ATGRPO) -> bool | None:
        """Called before the first evaluation and step of this process; `trainer.step` may be above 0."""

    def on_gradients(
        self,
        trainer: ATGRPO,
        policy: str,
        gradients: Mapping[str, torch.Tensor],
        samples: Sequence[Sample],
    ) -> None:
        """Called before each update of a policy with its samples and the gradient of each role's part of the loss.

        The gradients are flat and not clipped, float32 on the CPU; up to rounding they add up to the policy's.
        Do not change them. The return value never ends training.
        """

    def on_step(self, trainer: ATGRPO, row: Mapping[str, Any]) -> bool | None:
        """Called after each step, with its metrics as in metrics.jsonl."""

    def on_evaluation(self, trainer: ATGRPO, row: Mapping[str, Any]) -> bool | None:
        """Called after each evaluation: `row["when"]` is before, validation or after."""

    def on_save(self, trainer: ATGRPO, folder: Path) -> bool | None:
        """Called after each checkpoint, with its folder."""

    def on_end(self, trainer: ATGRPO) -> bool | None:
        """Called after the last evaluation, or after a requested stop."""


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


class Lines:
    """A display that writes one plain line a step.

    Args:
        write: takes a line.
        beside: another display, which is shown everything as well.
    """

    def __init__(self, write: Callable[[str], object], beside: Display | None = None) -> None:
        self._write, self._beside, self._clock = write, beside or Silent(), TimeLeft()

    def say(self, text: str) -> None:
        """Writes the text."""
        self._beside.say(text)
        self._write(text)

    def evaluating(self, what: str, done: int, total: int) -> None:
        """Writes one line, when all episodes are over."""
        self._beside.evaluating(what, done, total)
        if done == total:
            self._write(f"{what}: {total} episodes done")

    def step(self, step: int, total: int, row: Mapping[str, Any]) -> None:
        """Writes one line."""
        self._beside.step(step, total, row)
        self._write(f"step {step}/{total}  {step_text(row)}  {self._clock.left(step, total)}")


class TimeLeft:
    """The time that a run will still take, estimated from its pace since this process started."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def left(self, step: int, total: int) -> str:
        """`12 s left`; nothing before two steps are over."""
        now = time.monotonic()
        if self._first is None:
            self._first = (step, now)
        # The first step is left out, because it has costs that come only once.
        first, started = self._first
        if step == first or step >= total:
            return ""
        return f"{duration((now - started) / (step - first) * (total - step))} left"


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def step_text(row: Mapping[str, Any]) -> str:
    """Success of the mean and of the executed completion, reward by role, returns of agents without a team, speed."""
    parts = list[str]()
    if row.get("success") is not None:
        mean = row.get("success_mean", row["success"])
        parts = [f"success: mean {mean:.2f}, executed {row['success']:.2f}"]
    # Without the prefix, which has seven characters both here and in the next line.
    parts += [f"{key[7:]} {row[key]:.2f}" for key in row if key.startswith("reward/")]
    parts += [f"return of {key[7:]} {row[key]:.2f}" for key in row if key.startswith("return/")]
    if row.get("frac_reward_zero_std"):
        parts += [f"silent groups {row['frac_reward_zero_std']:.0%}"]
    return "  ".join([*parts, f"{row['tokens_per_second']:,.0f} tokens/s"])
