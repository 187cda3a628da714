"""PettingZoo-style multi-agent environments for language models, and an AT-GRPO trainer.

    import pettingllms as pl

    env = pl.make("sokoban", size=6)                       # a PettingZoo AECEnv
    summary = pl.train(env="coding", policies="per-role", max_steps=5)
    result = pl.evaluate(adapters=summary.folder, limit=20)
    print(result.success)                                  # mean, low, high

Everything here is imported when it is first used: `import pettingllms` loads no other library, and
environments and the sandbox need no deep-learning library (training needs the `train` extra).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pettingllms.api import evaluate, train
    from pettingllms.envs import check_env, make
    from pettingllms.rollout.trajectory import Trajectory
    from pettingllms.sandbox import open_sandbox
    from pettingllms.trainer import ATGRPOTrainer
    from pettingllms.trainers.at_grpo import ATGRPO
    from pettingllms.trainers.callbacks import Callback
    from pettingllms.trainers.config import ATGRPOConfig
    from pettingllms.trainers.method import Method

__version__ = "0.2.0"
__all__ = [
    "ATGRPO",
    "ATGRPOConfig",
    "ATGRPOTrainer",
    "Callback",
    "Method",
    "Trajectory",
    "check_env",
    "evaluate",
    "make",
    "open_sandbox",
    "train",
]
_MODULES = {
    "ATGRPO": "trainers.at_grpo",
    "ATGRPOConfig": "trainers.config",
    "ATGRPOTrainer": "trainer",
    "Callback": "trainers.callbacks",
    "Method": "trainers.method",
    "Trajectory": "rollout.trajectory",
    "check_env": "envs",
    "evaluate": "api",
    "make": "envs",
    "open_sandbox": "sandbox",
    "train": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pettingllms.errors import naming_extras

    with naming_extras():
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    # From now on it is found directly: Python asks `__getattr__` for missing names only.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
