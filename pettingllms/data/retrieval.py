"""Search in passages by BM25: the postings of a `bm25s` index, and exact best passages from them.

`bm25s` scores every word of every passage once (Lucene's variant, k1 1.5, b 0.75); a query adds up the scores of its
words. Its own retrieval is not used: its order of equal scores depends on how many passages are asked
for, it returns passages that share no word with the query, and it raises where more are asked for than there are.

Rules: words are runs of letters, digits and underscores in lower case, without stop words and stemming; the
first `MAX_WORDS` words of a query count; a passage that shares none of them is not found; of equal scores
the lower passage number comes first. Any text is a query.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pettingllms.data.questions import Passage

# A query may be any text of a model; this bounds what it costs to answer.
MAX_WORDS = 32
K1, B = 1.5, 0.75
_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """The words of a passage or query, as they are counted."""
    return _WORD.findall(text.lower())


class Postings(NamedTuple):
    """The passages and scores of each word: word w has the entries `start[w]` to `start[w + 1]`."""

    passage: NDArray[np.int32]
    """Passage numbers, ascending within a word."""
    score: NDArray[np.float32]
    start: NDArray[np.int64]
    most: NDArray[np.float32]
    """The greatest score of each word."""


class Hit(NamedTuple):
    """A passage that was found."""

    number: int
    score: float


class Index:
    """Passages and their postings; immutable, so that threads and copies of environments share it.

    Args:
        passages: by their numbers.
        postings: of their words.
        number_of: returns the number of a word, or None where no passage has it.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        postings: Postings,
        number_of: Callable[[str], int | None],
    ) -> None:
        self.passages = passages
        self.postings = postings
        self._number_of = number_of
        # Of each thread: fresh zeros for every query would cost a sixth of it.
        self._scratch = threading.local()

    @classmethod
    def of(cls, passages: Sequence[Passage]) -> Index:
        """Indexes passages in memory."""
        words, postings = indexed(full_text(passage) for passage in passages)
        return cls(passages, postings, words.get)

    def find(self, query: str, k: int) -> list[Passage]:
        """Returns at most `k` passages, the best first."""
        return [self.passages[hit.number] for hit in self.search(query, k)]

    def search(self, query: str, k: int) -> list[Hit]:
        """Returns the numbers and scores of at most `k` passages, the best first."""
        if not hasattr(self._scratch, "sums"):
            self._scratch.sums = np.zeros(len(self.passages))
        return best(self.postings, self._terms(query), k, self._scratch.sums)

    def _terms(self, query: str) -> list[tuple[int, int]]:
        """Number and count of each known word of a query, those that can score most first."""
        counts = Counter(words_of(query)[:MAX_WORDS])
        known = ((self._number_of(word), count) for word, count in counts.items())
        found = [(number, count) for number, count in known if number is not None]
        most = self.postings.most
        # One order for all passages, so that equal sums are equal to the last bit.
        return sorted(found, key=lambda term: (-float(most[term[0]]) * term[1], term[0]))


def full_text(passage: Passage) -> str:
    """The text of a passage that is searched: its title, if it has one, and its text."""
    return f"{passage.title} {passage.text}" if passage.title else passage.text


def indexed(texts: Iterable[str]) -> tuple[dict[str, int], Postings]:
    """Scores all words of all texts; word -> number, and the postings."""
    words: dict[str, int] = {}
    rows = [[words.setdefault(word, len(words)) for word in words_of(text)] for text in texts]
    if not words:
        nothing = np.zeros(0, np.float32)
        return {}, Postings(np.zeros(0, np.int32), nothing, np.zeros(1, np.int64), nothing)
    import bm25s  # here, because it looks for numba and jax, and an index that exists does without it

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import sets it to DEBUG
    engine: Any = bm25s.BM25(method="lucene", k1=K1, b=B)
    engine.index((rows, words), create_empty_token=False, show_progress=False)
    scores = engine.scores
    start = np.asarray(scores["indptr"], np.int64)
    score = np.asarray(scores["data"], np.float32)
    passage = np.asarray(scores["indices"], np.int32)
    # Every word has an entry, without which `reduceat` would give it its neighbor's score.
    return words, Postings(passage, score, start, np.maximum.reduceat(score, start[:-1]))


def best(
    postings: Postings, terms: Sequence[tuple[int, int]], k: int, sums: NDArray[np.float64]
) -> list[Hit]:
    """The `k` passages with the greatest sums, exactly, without adding up all of them.

    Words that can score most come first. As soon as those that remain cannot lift a passage that has none of the earlier
    words into the best `k` (MaxScore: Turtle and Flood 1995), only passages that are still in the race are looked up
    in their postings, which are long: frequent words score little.

    Args:
        postings: all of them.
        terms: number and count of each word, the greatest possible scores first.
        k: how many passages.
        sums: a zero for each passage; they are zeros again afterwards.
    """
    if k < 1 or not terms:
        return []
    met: list[NDArray[np.int32]] = []
    try:
        return _best(postings, terms, k, sums, met)
    finally:
        # Only what was touched, because a query meets few of the passages.
        for passages in met:
            sums[passages] = 0.0


def _best(
    postings: Postings,
    terms: Sequence[tuple[int, int]],
    k: int,
    sums: NDArray[np.float64],
    met: list[NDArray[np.int32]],
) -> list[Hit]:
    bounds = [float(postings.most[word]) * count for word, count in terms]
    for at, (word, count) in enumerate(terms):
        passages, scores = _entries(postings, word)
        if len(passages) > len(sums) * _LONG:
            return _sorted(*_all_summed(postings, terms, len(sums)), k)
        # All scores are positive, so that a zero marks a passage that was not met before.
        met.append(passages[sums[passages] == 0.0])
        # A passage is once among those of a word, or NumPy would add to it only once.
        sums[passages] += count * scores.astype(np.float64)
        rest = sum(bounds[at + 1 :]) + _SLACK
        # No sum can be more than the bounds so far: before that, there is nothing to compare.
        if sum(bounds[: at + 1]) > rest and sum(map(len, met)) >= k:
            numbers = np.concatenate(met)
            so_far = sums[numbers]
            if (threshold := _kth(so_far, k)) > rest:
                keep = so_far + rest >= threshold
                return _raced(postings, terms[at + 1 :], numbers[keep], so_far[keep], k)
    numbers = np.concatenate(met)
    return _sorted(numbers, sums[numbers], k)


_LONG = 1 / 8
"""Postings of more than this share of the passages are added up together, which costs less for each."""
_FEW = 8
"""Of fewer than so many passages for each that is wanted none is sorted out before the end."""
_SLACK = 1e-6
"""More than rounding can change a sum by, and less than the score of any word that can matter."""


def _kth(sums: NDArray[np.float64], k: int) -> float:
    return float(np.partition(sums, -k)[-k])


def _all_summed(
    postings: Postings, terms: Sequence[tuple[int, int]], size: int
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The numbers and sums of all passages that have one of the words."""
    entries = [(*_entries(postings, word), count) for word, count in terms]
    numbers = np.concatenate([passages for passages, _, _ in entries])
    weights = np.concatenate([count * scores.astype(np.float64) for _, scores, count in entries])
    # Added in the order of the words, as elsewhere: equal sums stay equal to the last bit.
    sums: NDArray[Any] = np.bincount(numbers, weights, minlength=size)
    found = np.flatnonzero(sums)
    return found, sums[found]


def _raced(
    postings: Postings,
    terms: Sequence[tuple[int, int]],
    numbers: NDArray[np.int32],
    sums: NDArray[np.float64],
    k: int,
) -> list[Hit]:
    """Adds the remaining words to the sums of the passages that can still be among the best."""
    order = np.argsort(numbers)
    numbers, sums = numbers[order], sums[order]
    for at, (word, count) in enumerate(terms):
        rest = sum(float(postings.most[other]) * n for other, n in terms[at:]) + _SLACK
        if len(sums) > _FEW * k:
            keep = sums + rest >= _kth(sums, k)
            numbers, sums = numbers[keep], sums[keep]
        passages, scores = _entries(postings, word)
        # A number beyond the last passage is compared with that one, and differs.
        place = np.minimum(np.searchsorted(passages, numbers), len(passages) - 1)
        same = passages[place] == numbers
        sums = sums + np.where(same, count * scores[place].astype(np.float64), 0.0)
    return _sorted(numbers, sums, k)


def _sorted(numbers: NDArray[Any], sums: NDArray[np.float64], k: int) -> list[Hit]:
    if len(sums) > k:
        # Ties with the last place stay in until the sort, which decides by number.
        keep = sums >= _kth(sums, k)
        numbers, sums = numbers[keep], sums[keep]
    order = np.lexsort((numbers, -sums))[:k]
    return [Hit(int(numbers[n]), float(sums[n])) for n in order]


def _entries(postings: Postings, word: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    span = slice(int(postings.start[word]), int(postings.start[word + 1]))
    return postings.passage[span], postings.score[span]
