"""`EpisodeIndex`: where each episode of a trajectories.jsonl starts, and what it is about.

The index is in memory and grows with the file. Of a line only its head is parsed, which ends where
`decisions` begin; whole lines are parsed when they are shown. The index starts again when the bytes before
its end have changed: then the file was replaced, or cut and continued.

A last line without an end is still being written, and waits. A line that is not an episode is kept
with its number and the reason, and skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from pettingllms.rollout.files import FORMAT

HEAD = 64 << 10
"""Bytes of a line in which its decisions must begin for it to be indexed without parsing all of it."""
TAIL = 4096
"""Bytes before the end of the index by which a changed file is noticed."""
_DECISIONS = b'"decisions": ['
_NO_EPISODE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading a line raises that is no episode."""


class Entry(NamedTuple):
    """An episode of the file."""

    line: int
    """Counted from 1."""
    start: int
    end: int
    label: str
    """The step, or the team that played."""
    task: str
    episode: int
    success: bool | None
    total: float
    """The returns of all agents together."""


class EpisodeIndex:
    """The episodes of one file. `refresh` reads what was added; everything else is a look-up.

    Args:
        open_file: opens the file; None while it does not exist.
    """

    def __init__(self, open_file: Callable[[], BinaryIO | None]) -> None:
        self._open = open_file
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._upto, self._lines, self._tail = 0, 0, b""
        self.broken: dict[int, str] = {}
        """Number of a line -> why it is no episode."""
        self._by_label: dict[str, list[Entry]] = {}
        self._by_line: dict[int, Entry] = {}

    @property
    def labels(self) -> list[str]:
        """The steps or teams, in the order of the file."""
        return list(self._by_label)

    def entries(self, label: str, after: int = 0) -> list[Entry]:
        """The episodes of a step or a team, from the first line above `after` on."""
        return [entry for entry in self._by_label.get(label, ()) if entry.line > after]

    def entry(self, line: int) -> Entry | None:
        """The episode in a line; None if it has none."""
        return self._by_line.get(line)

    def text(self, entry: Entry) -> bytes:
        """The line of an episode; empty where the file has become another one."""
        with self._opened() as file:
            if file is None:
                return b""
            return os.pread(file.fileno(), entry.end - entry.start, entry.start)

    def refresh(self) -> None:
        """Reads what was added to the file."""
        with self._lock, self._opened() as file:
            if file is None:
                self._clear()
                return
            start = self._upto - len(self._tail)
            if os.pread(file.fileno(), len(self._tail), start) != self._tail:
                self._clear()
            file.seek(self._upto)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._lines += 1
                try:
                    self._add(line)
                except _NO_EPISODE as error:
                    self.broken[self._lines] = _reason(error)
                self._upto += len(line)
                self._tail = line[-TAIL:]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO | None]:
        file = self._open()
        if file is None:
            yield None
            return
        with file:
            yield file

    def _add(self, text: bytes) -> None:
        # No text can feign it, because JSON puts a backslash before a quote inside of a string.
        place = text.find(_DECISIONS, 0, HEAD)
        if place >= 0 and text.startswith(b"{"):
            # What stands before the decisions, as an object by itself.
            row = json.loads(text[:place].rstrip(b", ") + b"}")
        else:  # not written by this package, or with a very long id
            row = json.loads(text)
            if not isinstance(row.get("decisions"), list):
                raise ValueError("it has no decisions")
        if row["format"] != FORMAT:
            raise ValueError(f"format {row['format']}, this version reads {FORMAT}")
        success = row["success"]
        if success not in (True, False, None):
            raise ValueError(f"success is {success!r}")
        label = str(row["team"] if "team" in row else row.get("step", ""))
        end = self._upto + len(text)
        total = float(sum(row["returns"].values()))
        about = (label, str(row["task"]), int(row["episode"]), success, total)
        entry = Entry(self._lines, self._upto, end, *about)
        self._by_label.setdefault(label, []).append(entry)
        self._by_line[entry.line] = entry


def _reason(error: Exception) -> str:
    text = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
    return " ".join(text.split())[:200] or type(error).__name__
