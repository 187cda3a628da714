"""`--report-to`: the numbers of a run in TensorBoard, Weights & Biases or Trackio as well.

Each is used through accelerate's tracker, imported only where it is asked for. The run folder's
metrics.jsonl holds the same numbers in any case.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pettingllms.errors import ConfigError, did_you_mean

MODULES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}
"""Name -> the module that must be installed; also its name on PyPI."""
PROJECT = "pettingllms"


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
) -> list[Any]:
    """Opens accelerate's trackers for a run that stands at `step`; they have `log` and `finish`.

    TensorBoard's files are in the run folder, and lose what came after the checkpoint.
    """
    if not names:
        return []
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # trackers log only once it is there
    label = run.resolve().name
    online = {"run_name": PROJECT, "name": label, "config": dict(config), "resume": "allow"}
    settings: dict[str, dict[str, Any]] = {
        "tensorboard": {
            "run_name": "tensorboard",
            "logging_dir": str(run),
            "purge_step": step + 1 if step else None,
        },
        # Trackio finds a run by its name, wandb by its id; a resumed run continues its curves by
        # them.
        "trackio": online,
        "wandb": online | {"id": label},
    }
    trackers = [LOGGER_TYPE_TO_CLASS[name](**settings[name]) for name in names]
    for tracker in trackers:
        tracker.start()
    return trackers


def numbers_only(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row of metrics.jsonl."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
