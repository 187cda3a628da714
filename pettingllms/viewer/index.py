"""`EpisodeIndex`: where each episode of a trajectories.jsonl starts, and what it is about.

The file is scanned for ends of lines at the speed of the disk; of each line only its head is
parsed, which ends where `decisions` begin. Whole lines are parsed when they are shown. The index
grows with the file, is kept in a cache folder, and is made anew when the file is not the one that it
was made of: then the bytes at its start or before the index's end are others.

A last line without an end is still being written, and waits. A line that is not an episode is kept
with its number and the reason, and skipped.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import json
import logging
import os
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pettingllms.rollout.files import FORMAT

logger = logging.getLogger(__name__)

VERSION = 1
"""Of the cached index."""
CHUNK = 8 << 20
"""Bytes that are read at once."""
HEAD = 64 << 10
"""Bytes of a line in which its decisions must begin for it to be indexed without parsing all of it."""
SAMPLE = 4096
"""Bytes at the start of the file and before the end of the index that tell files apart."""
LEAST_CACHED = 4 << 20
"""A smaller file is indexed sooner than a cache is read."""
BLOCK = 64 << 20
"""Bytes of the file in a block of the cache: what an interruption loses at most."""
MOST_BROKEN = 10_000
"""Broken lines of which the reason is kept."""
_DECISIONS = b'"decisions": ['
_SUCCESS = {None: 2, False: 0, True: 1}


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


class EpisodeIndex:
    """The episodes of one file. `refresh` takes in what was added; everything else is a look-up.

    Args:
        open_file: opens the file; None while it does not exist.
        cache: the file of the cached index; None for none.
    """

    def __init__(self, open_file: Callable[[], BinaryIO | None], cache: Path | None = None) -> None:
        self._open, self._cache = open_file, cache
        self._lock = threading.Lock()
        self.size = 0
        """Bytes of the file when it was last looked at."""
        self._clear()
        self._loaded = cache is None

    def _clear(self) -> None:
        self.upto = 0
        """Bytes of the file that are indexed."""
        self.lines = 0
        """Complete lines of the file so far, broken ones included."""
        self.broken: dict[int, str] = {}
        """Number of a line -> why it is no episode."""
        self.generation = getattr(self, "generation", 0) + 1
        """Changes when the file turned out to be another one."""
        self._columns = _Columns()
        self._by_label: dict[str, _Label] = {}
        self._prints = (b"", b"")

    # ----------------------------------------------------------------------------- looking up

    @property
    def labels(self) -> list[str]:
        """The steps or teams, in the order of the file."""
        return list(self._by_label)

    def counts(self, label: str) -> tuple[int, int, int]:
        """Episodes of a step or a team, successes among them, and those that do not say."""
        found = self._by_label[label]
        return len(found.places), found.successes[1], found.successes[2]

    def entries(self, label: str, after: int = 0) -> Iterator[Entry]:
        """The episodes of a step or a team, from the first line above `after` on."""
        columns, found = self._columns, self._by_label.get(label)
        for place in found.places if found else ():
            if columns.lines[place] > after:
                yield columns.entry(place)

    def entry(self, line: int) -> Entry | None:
        """The episode in a line; None if it has none."""
        columns = self._columns
        place = columns.place_of(line)
        return None if place is None else columns.entry(place)

    def text(self, entry: Entry) -> bytes:
        """The line of an episode; empty where the file has become another one."""
        with self._opened() as file:
            if file is None:
                return b""
            return os.pread(file.fileno(), entry.end - entry.start, entry.start)

    # ------------------------------------------------------------------------------- scanning

    def refresh(self, most: int | None = None) -> bool:
        """Takes in what was added to the file; returns whether the index is complete now.

        Args:
            most: bytes to scan at most; None for all.
        """
        with self._lock, self._opened() as file:
            if file is None:
                self.size = 0
                self._clear()
                return True
            self.size = os.fstat(file.fileno()).st_size
            if not self._loaded:
                self._load(file)
                self._loaded = True
            if self.upto and not self._fits(file):
                self._clear()
                self._forget()
            end = self.size if most is None else min(self.size, self.upto + most)
            while self.upto < end:
                before, reach = self.upto, BLOCK
                while self.upto == before and before + reach < self.size:
                    self._scan(file, before + reach)
                    reach *= 2  # for a line that is longer than that
                if self.upto == before:
                    self._scan(file, self.size)
                if self.upto == before:  # a last line that is still being written
                    return True
            return self.upto == self.size

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO | None]:
        file = self._open()
        if file is None:
            yield None
            return
        with file:
            yield file

    def _fits(self, file: BinaryIO) -> bool:
        return self.upto <= self.size and self._prints == _prints(file, self.upto)

    def _scan(self, file: BinaryIO, end: int) -> None:
        """Indexes the complete lines between what is indexed and byte `end`."""
        first, start = len(self._columns.lines), self.upto
        for line_start, line_end, head in _lines(file, start, end):
            self.lines += 1
            try:
                about = _about(file, line_start, line_end, head)
                self._add(line_start, line_end, *about)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                if len(self.broken) < MOST_BROKEN:
                    self.broken[self.lines] = _reason(error)
            self.upto = line_end
        if self.upto > start:
            self._prints = _prints(file, self.upto)
            self._store(first)

    def _add(
        self, start: int, end: int, label: str, task: str, episode: int, success: bool | None
    ) -> None:
        # One text in memory for all episodes of a step.
        label, verdict = sys.intern(label), _SUCCESS[success]
        self._columns.append(self.lines, start, end, label, task, episode, verdict)
        # Last, because other threads look up while this one indexes.
        self._by_label.setdefault(label, _Label()).add(len(self._columns.lines) - 1, verdict)

    # ---------------------------------------------------------------------------------- cache

    def _load(self, file: BinaryIO) -> None:
        """Reads the cached index; forgets it unless all of it fits the file."""
        try:
            assert self._cache is not None
            with self._cache.open("rb") as cached:
                for line in cached:
                    self._take(json.loads(line))
            if self._fits(file):
                return
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
            logger.info("the index %s is made anew: %s", self._cache, error)
        self._clear()
        self._forget()

    def _take(self, block: dict[str, Any]) -> None:
        if block["version"] != VERSION or block["first"] != len(self._columns.lines):
            raise ValueError("another version, or two processes wrote it")
        self._columns.extend(block["columns"])
        labels, verdicts = block["columns"][3], block["columns"][6]
        for place, label in enumerate(labels):
            found = self._by_label.setdefault(sys.intern(label), _Label())
            found.add(block["first"] + place, verdicts[place])
        self.upto, self.lines = block["upto"], block["lines"]
        self.broken |= {int(line): reason for line, reason in block["broken"].items()}
        self._prints = (bytes.fromhex(block["prints"][0]), bytes.fromhex(block["prints"][1]))

    def _store(self, first: int) -> None:
        """Adds what was indexed since the entry `first` to the cache."""
        if self._cache is None or self.size < LEAST_CACHED:
            return
        last = list(self.broken.items())
        block = {
            "version": VERSION,
            "first": first,
            "upto": self.upto,
            "lines": self.lines,
            "broken": {line: reason for line, reason in last if line > self._known(first)},
            "prints": [each.hex() for each in self._prints],
            "columns": self._columns.since(first),
        }
        with contextlib.suppress(OSError):  # the cache saves time and is not needed
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            if first and not self._cache.exists():
                return  # begun without a cache: a part of one would not be read
            # Two viewers may add to it at once: `_take` notices, and the index is made anew.
            with self._cache.open("ab" if first else "wb") as file:
                file.write(json.dumps(block).encode() + b"\n")

    def _known(self, first: int) -> int:
        return self._columns.lines[first - 1] if first else 0

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            if self._cache is not None:
                self._cache.unlink(missing_ok=True)


class _Label:
    """The episodes of a step or a team."""

    def __init__(self) -> None:
        self.places = array("L")
        self.successes = [0, 0, 0]
        """Episodes that failed, succeeded, and do not say."""

    def add(self, place: int, verdict: int) -> None:
        self.places.append(place)
        self.successes[verdict] += 1


class _Columns:
    """The facts about each episode, as columns: a million of them take about 100 MB."""

    def __init__(self) -> None:
        self.lines, self.starts, self.ends = array("Q"), array("Q"), array("Q")
        self.labels: list[str] = []
        self.tasks: list[str] = []
        self.episodes, self.successes = array("q"), bytearray()

    def append(self, *values: Any) -> None:
        for column, value in zip(self._all(), values, strict=True):
            column.append(value)

    def extend(self, columns: list[Any]) -> None:
        lines, starts, ends, labels, tasks, episodes, successes = columns
        if len({len(column) for column in columns}) != 1:
            raise ValueError("columns of different lengths")
        self.lines.extend(lines)
        self.starts.extend(starts)
        self.ends.extend(ends)
        self.labels.extend(map(sys.intern, labels))
        self.tasks.extend(tasks)
        self.episodes.extend(episodes)
        self.successes.extend(successes)

    def since(self, first: int) -> list[list[Any]]:
        return [list(column[first:]) for column in self._all()]

    def entry(self, place: int) -> Entry:
        return Entry(
            self.lines[place],
            self.starts[place],
            self.ends[place],
            self.labels[place],
            self.tasks[place],
            self.episodes[place],
            # The reverse of `_SUCCESS`.
            (False, True, None)[self.successes[place]],
        )

    def place_of(self, line: int) -> int | None:
        place = bisect.bisect_left(self.lines, line)
        return place if place < len(self.lines) and self.lines[place] == line else None

    def _all(self) -> tuple[Any, ...]:
        return (
            self.lines,
            self.starts,
            self.ends,
            self.labels,
            self.tasks,
            self.episodes,
            self.successes,
        )


def _lines(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Start, end and the first bytes of the complete lines between two bytes of the file."""
    line, head = start, b""
    position = start
    while position < end:
        chunk = os.pread(file.fileno(), min(CHUNK, end - position), position)
        if not chunk:
            return
        at = 0
        while (found := chunk.find(b"\n", at)) >= 0:
            if line >= position:
                head = chunk[at : min(found, at + HEAD)]
            elif len(head) < HEAD:
                # The line began in an earlier chunk.
                head += chunk[: min(found, HEAD - len(head))]
            yield line, position + found + 1, head
            line, at = position + found + 1, found + 1
        if line >= position:
            head = chunk[at : at + HEAD]
        elif len(head) < HEAD:
            head += chunk[: HEAD - len(head)]
        position += len(chunk)


def _about(file: BinaryIO, start: int, end: int, head: bytes) -> tuple[str, str, int, bool | None]:
    """Label, task, episode and success of a line."""
    # No text can feign it, because JSON puts a backslash before a quote inside of a string.
    place = head.find(_DECISIONS)
    if place >= 0 and head.startswith(b"{"):
        # What stands before the decisions, as an object by itself.
        row = json.loads(head[:place].rstrip(b", ") + b"}")
    else:  # not written by this package, or with a very long id
        row = json.loads(os.pread(file.fileno(), end - start, start))
        if not isinstance(row.get("decisions"), list):
            raise ValueError("it has no decisions")
    if row["format"] != FORMAT:
        raise ValueError(f"format {row['format']}, this version reads {FORMAT}")
    success = row["success"]
    if success not in _SUCCESS:
        raise ValueError(f"success is {success!r}")
    label = row["team"] if "team" in row else row.get("step", "")
    return str(label), str(row["task"]), int(row["episode"]), success


def _prints(file: BinaryIO, upto: int) -> tuple[bytes, bytes]:
    """Digests of the first bytes of the file and of the last ones before `upto`."""
    size = min(SAMPLE, upto)
    parts = (os.pread(file.fileno(), size, place) for place in (0, upto - size))
    first, last = (hashlib.blake2b(part, digest_size=16).digest() for part in parts)
    return first, last


def _reason(error: Exception) -> str:
    text = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
    return " ".join(text.split())[:200] or type(error).__name__
