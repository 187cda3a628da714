"""PettingZoo environments for language models.

`ENVIRONMENTS` is the one table of what there is: a new environment is its own file and a line
here. Everything finds it from there: PettingZoo's registry (`pettingllms/coding-v0`, filled when
this package is imported), `make("coding")`, the command line and the tests. Entry points are
strings, imported when an environment is made.

They are AEC environments and have no `parallel_env`: an agent reads what the others wrote before it
in the same round, which simultaneous moves cannot give it. PettingZoo's
`turn_based_aec_to_parallel(make("sokoban"))` has the parallel interface; of its replies only the
selected agent's is played.
"""

from __future__ import annotations

from typing import Any

import pettingzoo

from pettingllms.envs.aec import (
    StepResult,
    clone_env,
    load_env,
    next_agent,
    observe_text,
    role_of,
    step_result,
)
from pettingllms.envs.base import Outcome, Record, Snapshot, TextEnv
from pettingllms.envs.blind import Blind, blind_baseline
from pettingllms.envs.check import check_env
from pettingllms.envs.spaces import FreeText
from pettingllms.errors import UnknownNameError, did_you_mean

__all__ = [
    "ENVIRONMENTS",
    "Blind",
    "FreeText",
    "Outcome",
    "Record",
    "Snapshot",
    "StepResult",
    "TextEnv",
    "blind_baseline",
    "check_env",
    "clone_env",
    "load_env",
    "make",
    "next_agent",
    "observe_text",
    "role_of",
    "step_result",
]

ENVIRONMENTS = {
    "coding": "pettingllms.envs.coding_v0:env",
    "math": "pettingllms.envs.math_v0:env",
    "plan_path": "pettingllms.envs.plan_path_v0:env",
    "sokoban": "pettingllms.envs.sokoban_v0:env",
    "sudoku": "pettingllms.envs.sudoku_v0:env",
}
"""Entry point of every environment of this package, by name."""


def make(name: str, /, **kwargs: Any) -> TextEnv:
    """A new environment of this package, e.g. `make("coding", max_turns=2)`.

    Raises:
        UnknownNameError: `name` is not in `ENVIRONMENTS`.
        ConfigError: an argument that the environment cannot use.
    """
    if name not in ENVIRONMENTS:
        raise UnknownNameError(
            f"unknown environment {name!r}; {did_you_mean(name, ENVIRONMENTS)} "
            "`load_env` also takes versions and `module:attribute` paths"
        )
    env = load_env(name, **kwargs)
    assert isinstance(env, TextEnv)
    return env


for _entry_point in ENVIRONMENTS.values():
    # The module's name ends in the version, as PettingZoo's do: coding_v0.
    _versioned = _entry_point.partition(":")[0].rpartition(".")[2]
    pettingzoo.register("aec", f"pettingllms/{_versioned}", _entry_point)
