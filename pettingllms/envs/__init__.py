"""PettingZoo environments for language models.

`ENVIRONMENTS` is the registry of what there is; modules are imported when an environment is made.
Importing this package adds its own environments to PettingZoo's registry, as `pettingllms/coding-v0`.

They are AEC environments and have no `parallel_env`: an agent reads what the others wrote before it
in the same round, which simultaneous actions cannot give it. PettingZoo's
`turn_based_aec_to_parallel(make("sokoban"))` has the parallel interface; of its replies only the
selected agent's is played.
"""

from __future__ import annotations

from typing import Any

import pettingzoo

from pettingllms.envs.aec import ENVIRONMENTS, clone_env, load_env, observe_text
from pettingllms.envs.base import FreeText, TextEnv, next_agent
from pettingllms.envs.check import check_env
from pettingllms.envs.records import Outcome, Record, Snapshot
from pettingllms.names import role_of

__all__ = [
    "ENVIRONMENTS",
    "FreeText",
    "Outcome",
    "Record",
    "Snapshot",
    "TextEnv",
    "check_env",
    "clone_env",
    "load_env",
    "make",
    "next_agent",
    "observe_text",
    "role_of",
]


def make(name: str, /, **kwargs: Any) -> Any:
    """Makes an environment from any name that `--env` takes, e.g. `make("coding", max_turns=2)`.

    Returns a `TextEnv` for the names in `ENVIRONMENTS`; otherwise the result of `load_env`, with its errors.
    """
    return load_env(name, **kwargs)


for _entry_point in ENVIRONMENTS.own.values():
    # The module's name ends in the version, as PettingZoo's do: coding_v0.
    _versioned = _entry_point.partition(":")[0].rpartition(".")[2]
    pettingzoo.register("aec", f"pettingllms/{_versioned}", _entry_point)
