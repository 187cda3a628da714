"""Corpora of passages, and their indexes on disk: built once, and mapped by all processes that search them.

A corpus is a file, or a folder or hub id with files, of rows:

| fields | corpora |
|---|---|
| `text` (or `contents`, `paragraph_text`); `title` | files of your own |
| `contents`: the title in quotes, a line break, the text | Search-R1's and FlashRAG's Wikipedia of 2018 |

A row without text is left out and counted; the first such row is named with its number. An index is made in a folder of
the cache whose name is a digest of the corpus. It is written beside it and renamed, under a lock, so that of
several processes one builds and the others wait. Opening it reads nothing: arrays and texts are mapped, so that processes share the
memory of the pages they touch.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from pettingllms.data.hub import locate
from pettingllms.data.questions import Passage
from pettingllms.data.retrieval import K1, B, Index, Postings, full_text, indexed
from pettingllms.data.rows import TABLES, Located, RowError, is_blank, rows
from pettingllms.errors import DatasetError

CACHE = Path("~/.cache/pettingllms/search")
VERSION = 1
_TEXT_FIELDS = ("text", "contents", "paragraph_text")
_SECONDS_BETWEEN_LINES = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CorpusReport:
    """The numbers of a corpus's rows that were kept and left out."""

    source: str
    kept: int
    without_text: int = 0
    first_without: str = ""
    """File and row number of the first row that has no text."""

    def __str__(self) -> str:
        """The counts in one line."""
        bad = f", {self.without_text} without text left out, first at {self.first_without}"
        return f"{self.source}: {self.kept} passages{bad if self.without_text else ''}"


def open_corpus(source: str | Path, cache: Path | None = None) -> Index:
    """Opens the index of a corpus; the first time, builds it.

    Args:
        source: a file, a folder, or a hub id (`org/name`, `org/name:file`).
        cache: where indexes are; None for `CACHE`.

    Raises:
        DatasetError: the corpus cannot be had or has no text, or the cache cannot be written.
    """
    located = locate(source, None, TABLES)
    # By names, sizes and times: the contents of a large corpus take minutes to read.
    facts = [
        (file.shown, stat.st_size, stat.st_mtime_ns)
        for file in located.files
        for stat in (file.path.stat(),)
    ]
    return _opened(json.dumps(facts), lambda: read_corpus(located), located.name, cache)


def open_passages(name: str, passages: Sequence[Passage], cache: Path | None = None) -> Index:
    """Opens the index of passages that are in memory, shared by all processes that have the same.

    Raises:
        DatasetError: none of them has a word, or the cache cannot be written.
    """
    content = hashlib.blake2b(digest_size=16)
    for passage in passages:
        # As JSON, in which no text runs into the next: `ab`, `c` is not `a`, `bc`.
        content.update(json.dumps(passage).encode())
    report = CorpusReport(name, len(passages))
    return _opened(content.hexdigest(), lambda: (passages, report), name, cache)


def read_corpus(located: Located) -> tuple[list[Passage], CorpusReport]:
    """Reads the passages of a corpus, and counts the rows that have none.

    Raises:
        DatasetError: a file cannot be read, or no row has a text.
    """
    found: list[Passage] = []
    without, first = 0, ""
    said = time.monotonic()
    for file in located.files:
        for number, row in rows(file):
            passage = None if isinstance(row, RowError) else _passage(row)
            if passage is None:
                without += 1
                first = first or f"{file.shown}:{number}"
            else:
                found.append(passage)
            if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                _log.info("%s: %d passages read", located.name, len(found))
    report = CorpusReport(located.name, len(found), without, first)
    if not found:
        raise DatasetError(
            f"{located.name} has no passages: none of its {without} rows has text in one of the fields "
            f"{', '.join(_TEXT_FIELDS)}"
        )
    return found, report


def _passage(row: dict[str, Any]) -> Passage | None:
    text = next((row[field] for field in _TEXT_FIELDS if row.get(field)), None)
    if not isinstance(text, str) or is_blank(text):
        return None
    title = row.get("title")
    if not isinstance(title, str):
        title, _, rest = text.partition("\n") if text.startswith('"') else ("", "", text)
        # A text that is only a title is found by it all the same.
        title, text = title.strip().strip('"'), rest.strip() or title.strip('"')
    # Half a surrogate pair cannot be written; it is no reason to lose the passage.
    return Passage(*(part.encode(errors="replace").decode() for part in (text.strip(), title)))


# The index on disk.


class Stored(Sequence[Passage]):
    """Passages in a mapped file: `edges` are where each title and each text begins."""

    def __init__(self, data: NDArray[np.uint8], edges: NDArray[np.int64]) -> None:
        self._data, self._edges = data, edges

    def __len__(self) -> int:
        return len(self._edges) // 2

    @overload
    def __getitem__(self, at: int) -> Passage: ...
    @overload
    def __getitem__(self, at: slice) -> list[Passage]: ...
    def __getitem__(self, at: int | slice) -> Passage | list[Passage]:
        if isinstance(at, slice):
            return [self[n] for n in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        at %= len(self)
        title, text, end = map(int, self._edges[2 * at : 2 * at + 3])
        cut = self._data[title:end].tobytes()
        return Passage(cut[text - title :].decode(), cut[: text - title].decode())


def _opened(
    facts: str,
    read: Callable[[], tuple[Sequence[Passage], CorpusReport]],
    name: str,
    cache: Path | None,
) -> Index:
    folder = (cache or CACHE).expanduser()
    # With all that stored scores depend on: another format or weighting gets another folder.
    digest = hashlib.blake2b(f"{VERSION} {K1} {B} {facts}".encode(), digest_size=12).hexdigest()
    target = folder / digest
    try:
        # Without the lock first: a folder of this name is complete, because renaming comes last.
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder / f"{digest}.lock"):
                if not target.exists():  # another process may have built it meanwhile
                    _build(target, *read())
        return open_index(target)
    except OSError as error:
        raise DatasetError(
            f"the index of {name} cannot be kept in {folder} ({error}); give another folder: cache"
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        # Released by the kernel if this process dies.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(target: Path, passages: Sequence[Passage], report: CorpusReport) -> None:
    if report.without_text:
        _log.warning("%s", report)
    _log.info("%s: building the index of %d passages", report.source, len(passages))
    began = time.monotonic()
    words, postings = indexed(_counted(passages, report.source))
    if not words:
        raise DatasetError(f"{report.source} has no passage with a word in it")
    # In the same folder as the target, since a rename works within one file system.
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for field, array in postings._asdict().items():
            np.save(beside / f"{field}.npy", array)
        # Sorted, so that a word is found by bisection, without reading the words into memory.
        keys = np.fromiter(map(_key, words), np.uint64, len(words))
        order = np.argsort(keys)
        np.save(beside / "keys.npy", keys[order])
        np.save(beside / "numbers.npy", order.astype(np.int32))
        _write_texts(beside, passages)
        (beside / "report.json").write_text(json.dumps(asdict(report)), encoding="utf-8")
        beside.rename(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    _log.info("%s: index built in %.0f s: %s", report.source, time.monotonic() - began, target)


def _counted(passages: Iterable[Passage], name: str) -> Iterator[str]:
    said = time.monotonic()
    for number, passage in enumerate(passages):
        if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            _log.info("%s: %d passages split into words", name, number)
        yield full_text(passage)


def _write_texts(folder: Path, passages: Sequence[Passage]) -> None:
    edges = np.zeros(2 * len(passages) + 1, np.int64)
    with (folder / "texts.bin").open("wb") as file:
        for number, passage in enumerate(passages):
            edges[2 * number + 1] = edges[2 * number] + file.write(passage.title.encode())
            edges[2 * number + 2] = edges[2 * number + 1] + file.write(passage.text.encode())
        file.flush()
        # An array that a crash has cut short cannot be mapped; a text can, and would lack its end.
        os.fsync(file.fileno())
    np.save(folder / "edges.npy", edges)


def _key(word: str) -> int:
    # With a million words, two of them share a key once in thirty million corpora.
    return int.from_bytes(
        hashlib.blake2b(word.encode(errors="replace"), digest_size=8).digest(), "big"
    )


def open_index(folder: Path) -> Index:
    """Maps an index that `open_corpus` has built.

    Raises:
        OSError: a file of it cannot be read.
    """

    def mapped(name: str) -> NDArray[Any]:
        # As a plain array: every slice of a memmap costs microseconds more.
        return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))

    keys, numbers = mapped("keys"), mapped("numbers")

    def number_of(word: str) -> int | None:
        # As their type: with a Python integer, NumPy would compare keys of 64 bits as floats.
        key = np.uint64(_key(word))
        at = int(np.searchsorted(keys, key))
        return int(numbers[at]) if at < len(keys) and keys[at] == key else None

    data = np.asarray(np.memmap(folder / "texts.bin", np.uint8, "r"))
    postings = Postings(*(mapped(field) for field in Postings._fields))
    return Index(Stored(data, mapped("edges")), postings, number_of)


def report_of(source_index: Path) -> CorpusReport:
    """Reads the report that was written when an index was built."""
    return CorpusReport(**json.loads((source_index / "report.json").read_text(encoding="utf-8")))
