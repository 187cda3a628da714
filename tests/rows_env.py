"""An environment over a data set, which keeps count of how often it is read."""

from __future__ import annotations

from typing import Any

from tests import letters_env

READ: list[str] = []
"""Data sets in the order in which they were read."""


class raw_env(letters_env.raw_env):
    """Three tasks from a data set; its own tasks, without end, where there is none."""

    def __init__(self, *, dataset: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_tasks: int | None = None
        if dataset is not None:
            READ.append(dataset)
            self.num_tasks = 3


def env(**kwargs: Any) -> raw_env:
    """The environment as PettingZoo users make it."""
    return raw_env(**kwargs)
