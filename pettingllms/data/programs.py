"""Tasks of a program: the rows of a file, unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pettingllms.data.dataset import Kind, Schema, load_source
from pettingllms.data.rows import Row, label


@dataclass(frozen=True, slots=True)
class ProgramTask:
    """A row of a data set."""

    id: str
    row: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The row as JSON."""
        return json.dumps(self.row, sort_keys=True, default=str)


def _read(row: Row, name: str) -> ProgramTask:
    return ProgramTask(label(row, "id") or name, dict(row))


TASKS: Kind[ProgramTask] = Kind(
    name="program",
    schemas={"rows": Schema("any", _read, lambda _: True)},
    own="rows",
    text=lambda task: task.text,
    key=lambda task: task.text,
    prose=False,
)


load_rows = partial(load_source, TASKS)
"""Loads the tasks of a program; see `pettingllms.data.dataset.load_source`."""
