"""Questions that take a search, and search in passages by BM25 (Lucene's variant, k1 1.5, b 0.75), scored and stored by `bm25s`.

Words are runs of letters, digits and underscores in lower case, without stop words and stemming; the
first `MAX_WORDS` words of a query count. A passage that shares none of them is not found. Among equal
scores the lower passage number comes first. Any text is a query.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


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
