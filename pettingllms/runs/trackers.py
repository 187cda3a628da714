"""`--report-to`: the numbers of a run in TensorBoard, Weights & Biases or Trackio as well.

Each is used through its own library, imported only where it is asked for. The run folder's
metrics.jsonl holds the same numbers in any case.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pettingllms.errors import ConfigError, did_you_mean

MODULES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}
"""Name -> the module that must be installed; also its name on PyPI."""
PROJECT = "pettingllms"


class Tracker(Protocol):
    """A destination of the numbers of a run."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Adds the numbers of a step."""

    def close(self) -> None:
        """Writes out what is pending."""


def tracker_names(report_to: str) -> list[str]:
    """The trackers named in `--report-to`.

    Raises:
        ConfigError: an unknown one, or one whose library is not installed.
    """
    names = [name.strip() for name in report_to.split(",") if name.strip() not in ("", "none")]
    for name in names:
        if name not in MODULES:
            raise ConfigError(
                f"report_to names the unknown {name!r}; {did_you_mean(name, MODULES)}"
            )
        # Found and not imported, because a run may still be refused for other reasons.
        if importlib.util.find_spec(MODULES[name]) is None:
            raise ConfigError(f"report_to {name} needs its library: pip install {MODULES[name]}")
    return names


def open_trackers(
    names: Sequence[str], run: Path, config: Mapping[str, Any], step: int
) -> list[Tracker]:
    """Opens the trackers for a run that stands at `step`."""
    return [
        TensorBoard(run, step) if name == "tensorboard" else Online(name, run, config)
        for name in names
    ]


class TensorBoard:
    """Event files in the run folder. On resuming, what came after the checkpoint is discarded."""

    def __init__(self, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = step + 1 if step else None
        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=purge)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Adds the numbers of a step."""
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def close(self) -> None:
        """Writes out what is pending."""
        self._writer.close()


class Online:
    """Weights & Biases, or Trackio, which has the same functions."""

    def __init__(self, name: str, run: Path, config: Mapping[str, Any]) -> None:
        self._library = importlib.import_module(MODULES[name])
        label = run.resolve().name
        # Trackio finds a run by its name, wandb by its id; a resumed run continues its curves by
        # them.
        identity = {"id": label} if name == "wandb" else {}
        self._library.init(
            project=PROJECT, name=label, config=dict(config), resume="allow", **identity
        )

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Adds the numbers of a step."""
        self._library.log(dict(numbers), step=step)

    def close(self) -> None:
        """Writes out what is pending."""
        self._library.finish()


def numbers_only(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row of metrics.jsonl."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
