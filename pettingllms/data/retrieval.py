"""Questions that take a search, passages, and the search in them by BM25.

`bm25s` scores and stores (Lucene's variant, k1 1.5, b 0.75). Words are runs of letters, digits and underscores in lower case, without stop words and stemming; the
first `MAX_WORDS` words of a query count. A passage that shares none of them is not found. Among equal
scores the lower passage number comes first. Any text is a query.

A corpus is a file, or a folder or hub id with files, of rows:

| fields | corpora |
|---|---|
| `text` (or `contents`, `paragraph_text`); `title` | files of your own |
| `contents`: the title in quotes, a line break, the text | Search-R1's and FlashRAG's Wikipedia of 2018 |

A row without text is left out and counted; the first such row is named with its number. An index is a folder of
the cache whose name is a digest of the corpus, mapped by all processes that search it. It is written under another
name and then renamed, under a lock: of several processes one builds it and the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pettingllms.data.hub import locate
from pettingllms.data.rows import TABLES, Located, RowError, is_blank, rows
from pettingllms.errors import DatasetError


class Passage(NamedTuple):
    """A text that can be found."""

    text: str
    title: str = ""

    @property
    def key(self) -> str:
        """Name by which a question refers to it: its title, or its text if it has none."""
        return self.title or self.text


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its accepted answers, and what has to be found for it."""

    text: str
    answers: tuple[str, ...]
    """Any of them is right. None where nobody knows the answer."""
    gold: tuple[str, ...]
    """Keys of the passages that it takes; empty where the data set does not name them."""
    id: str
    difficulty: str | None = None
    """Such as `2 hops`, or the data set's own word."""
    context: tuple[Passage, ...] = ()
    """The passages that the data set gives along with it."""


# A query may be any text of a model; this bounds what it costs to answer.
MAX_WORDS = 32
K1, B = 1.5, 0.75
_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """Splits a passage or a query into the words that are counted."""
    return _WORD.findall(text.lower())


class Hit(NamedTuple):
    """A passage that was found."""

    number: int
    score: float


class Index:
    """Passages and their scores; immutable, so that threads and copies of environments share it.

    Args:
        engine: a `bm25s.BM25` with the scores; None where no passage has a word.
        rows: the passages by their numbers, or mappings with their fields.
    """

    def __init__(self, engine: Any, rows: Sequence[Passage | Mapping[str, str]]) -> None:
        self._engine, self._rows = engine, rows
        self._reading = threading.Lock()  # a mapped file has one place where it is read
        if engine is not None:
            # Of the sums: passages with equal words then have equal sums to the last bit.
            engine.dtype = "float64"

    @classmethod
    def of(cls, passages: Sequence[Passage]) -> Index:
        """Indexes passages in memory."""
        numbers: dict[str, int] = {}
        rows = [
            [numbers.setdefault(word, len(numbers)) for word in words_of(f"{title} {text}")]
            for text, title in passages
        ]
        if not numbers:
            return cls(None, passages)
        engine = _bm25s().BM25(method="lucene", k1=K1, b=B, backend="numpy")
        engine.index((rows, numbers), create_empty_token=False, show_progress=False)
        return cls(engine, passages)

    @classmethod
    def open(cls, folder: Path) -> Index:
        """Maps an index that `save` wrote; processes share the memory of what they read.

        Raises:
            OSError: a file of it cannot be read.
        """
        engine = _bm25s().BM25.load(
            folder, mmap=True, load_corpus=True, show_progress=False, verbosity=0
        )
        rows, engine.corpus = engine.corpus, None
        return cls(engine, rows)

    def save(self, folder: Path) -> None:
        """Writes the index, which must have a word, to an empty folder."""
        rows = (self[number]._asdict() for number in range(len(self)))
        self._engine.save(folder, rows, show_progress=False, raise_on_serialization_error=True)

    @property
    def has_words(self) -> bool:
        """True if a passage has a word."""
        return self._engine is not None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Passage:
        with self._reading:
            row = self._rows[number]
        return row if isinstance(row, Passage) else Passage(**row)

    def find(self, query: str, k: int) -> list[Passage]:
        """Returns at most `k` passages, the best first."""
        return [self[hit.number] for hit in self.search(query, k)]

    def search(self, query: str, k: int) -> list[Hit]:
        """Returns the numbers and scores of at most `k` passages, the best first."""
        if k < 1 or self._engine is None:
            return []
        # Not its `retrieve`: that finds passages without any of the words, and raises where more
        # passages are asked for than there are.
        sums = self._engine.get_scores_from_ids(
            self._engine.get_tokens_ids(words_of(query)[:MAX_WORDS])
        )
        numbers = np.flatnonzero(sums)
        if len(numbers) > k:
            least = np.partition(sums[numbers], -k)[-k]
            numbers = numbers[sums[numbers] >= least]  # with all ties of the last place
        order = np.lexsort((numbers, -sums[numbers]))[:k]
        return [Hit(int(number), float(sums[number])) for number in numbers[order]]


def _bm25s() -> Any:
    import bm25s  # here, because it looks for numba and jax

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import sets it to DEBUG
    return bm25s


CACHE = Path("~/.cache/pettingllms/search")
VERSION = 2
_TEXT_FIELDS = ("text", "contents", "paragraph_text")

_log = logging.getLogger(__name__)


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
    files = [
        (file.shown, stat.st_size, stat.st_mtime_ns)
        for file in located.files
        for stat in (file.path.stat(),)
    ]
    return _opened(json.dumps(files), lambda: read_corpus(located), located.name, cache)


def open_passages(name: str, passages: Sequence[Passage], cache: Path | None = None) -> Index:
    """Opens the index of passages that are in memory, shared by all processes that have the same.

    Raises:
        DatasetError: none of them has a word, or the cache cannot be written.
    """
    content = hashlib.blake2b(digest_size=16)
    for passage in passages:
        # As JSON, in which no text runs into the next: `ab`, `c` is not `a`, `bc`.
        content.update(json.dumps(passage).encode())
    return _opened(content.hexdigest(), lambda: passages, name, cache)


def read_corpus(located: Located) -> list[Passage]:
    """Reads the passages of a corpus; logs how many rows have none.

    Raises:
        DatasetError: a file cannot be read, or no row has a text.
    """
    passages: list[Passage] = []
    without, first = 0, ""
    for file in located.files:
        for number, row in rows(file):
            passage = None if isinstance(row, RowError) else _passage(row)
            if passage is None:
                without += 1
                first = first or f"{file.shown}:{number}"
            else:
                passages.append(passage)
    if not passages:
        raise DatasetError(
            f"{located.name} has no passages: none of its {without} rows has text in one of the fields "
            f"{', '.join(_TEXT_FIELDS)}"
        )
    if without:
        _log.warning(
            "%s: %d passages, %d without text left out, first at %s",
            located.name,
            len(passages),
            without,
            first,
        )
    return passages


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
    return Passage(*(value.encode(errors="replace").decode() for value in (text.strip(), title)))


def _opened(
    content: str, read: Callable[[], Sequence[Passage]], name: str, cache: Path | None
) -> Index:
    folder = (cache or CACHE).expanduser()
    # With all that stored scores depend on: another format or weighting gets another folder.
    digest = hashlib.blake2b(f"{VERSION} {K1} {B} {content}".encode(), digest_size=12).hexdigest()
    target = folder / digest
    try:
        # Without the lock first: a folder of this name is complete, because renaming comes last.
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            # Released by the kernel if this process dies.
            with (folder / f"{digest}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not target.exists():  # another process may have built it meanwhile
                    _build(target, read(), name)
        return Index.open(target)
    except OSError as error:
        raise DatasetError(
            f"the index of {name} cannot be kept in {folder} ({error}); give another folder: cache"
        ) from error


def _build(target: Path, passages: Sequence[Passage], name: str) -> None:
    _log.info("%s: building the index of %d passages", name, len(passages))
    began = time.monotonic()
    index = Index.of(passages)
    if not index.has_words:
        raise DatasetError(f"{name} has no passage with a word in it")
    # In the same folder as the target, since a rename works within one file system.
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        index.save(partial)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _log.info("%s: index built in %.0f s: %s", name, time.monotonic() - began, target)
