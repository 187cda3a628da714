"""Rows that are given as objects, as files: a run names its data, and may be resumed or shared out.

A list of dicts, a `datasets.Dataset`, or a mapping of split -> rows such as a `DatasetDict`. Equal rows
are one file below `CACHE`, so that the same objects give the same run.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pettingllms.errors import DatasetError

CACHE = Path("~/.cache/pettingllms/rows")
Source = str | Path | Iterable[Mapping[str, Any]]
"""A name, hub id or path, or the rows themselves."""


def as_path(source: Any) -> Any:
    """Returns a file or folder of rows that are given as objects; a name, a path, or None as it is.

    Raises:
        DatasetError: it is neither, a row is no dict, or the rows cannot be written.
    """
    if source is None or isinstance(source, str | os.PathLike):
        return source
    if not isinstance(source, Iterable):
        raise DatasetError(f"a dataset is a name, a path, or rows, got {source!r:.80}")
    parts = source if isinstance(source, Mapping) else {"rows": source}
    texts = {f"{name}.jsonl": _text(rows) for name, rows in parts.items()}
    digest = hashlib.blake2b(json.dumps(texts, sort_keys=True).encode(), digest_size=12).hexdigest()
    folder = CACHE.expanduser() / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            # Under another name first, so that no other process reads half of it.
            temporary = folder / f"{name}.{os.getpid()}-{threading.get_ident()}"
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(folder / name)
    except OSError as error:
        raise DatasetError(f"cannot write the rows of the dataset to {folder}: {error}") from error
    return folder if parts is source else folder / "rows.jsonl"


def is_table(value: object) -> bool:
    """Returns whether a value is an object of the `datasets` library."""
    return type(value).__module__.partition(".")[0] == "datasets"


def _text(rows: Any) -> str:
    lines = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise DatasetError(f"row {number} of a dataset must be a dict, got {row!r:.80}")
        # Dates and other values of a table are text, as in a file.
        lines.append(json.dumps(dict(row), default=str) + "\n")
    return "".join(lines)
