"""Contamination: test tasks whose question is also in a training set, or shares many words with one.

Questions are compared as they are, up to what does not change them, and, where they are prose, by
runs of words and numbers without case and punctuation. Paraphrases and translations are not found.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from pettingllms.data.dataset import Kind, Loaded, Record

NGRAM = 13
"""Words that two questions have in common in a row where they count as overlapping: the size that
GPT-3 (arXiv 2005.14165, appendix C) and most reports since use. Of a shorter question all words."""
COMMON = 10
"""An n-gram in more training questions than this is a phrase that a generator or a publisher puts
around questions, and no sign of overlap; GPT-3's number, too."""
# Removed, so that 1,000 and 1000 are the same word.
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+|[-+*/^=<>%|]")


@dataclass(frozen=True, slots=True)
class Shared(Generic[Record]):
    """A task of the test set and one of the training set with the same question, or parts of it."""

    test: Record
    train: Record
    same_answer: bool
    words: int = 0
    """Length of the n-gram that they share; 0 where the questions are the same."""


@dataclass(frozen=True, slots=True)
class Overlap(Generic[Record]):
    """The tasks that two sets share."""

    train: str
    test: str
    of: int
    """Tasks of the test set."""
    shared: tuple[Shared[Record], ...]
    """At most one for each task of the test set."""

    def __str__(self) -> str:
        text = f"{len(self.shared)} of {self.of} tasks of {self.test} are also in {self.train}"
        if parts := sum(pair.words > 0 for pair in self.shared):
            text += f", {parts} of them by a run of {NGRAM} words (all words of a shorter question)"
        return text


def overlap(kind: Kind[Record], train: Loaded[Record], test: Loaded[Record]) -> Overlap[Record]:
    """Finds the tasks of `test` whose question is also in `train`, or shares `NGRAM` words in a row."""
    by_question: defaultdict[str, list[Record]] = defaultdict(list)
    for record in train.records:
        by_question[kind.key(record)].append(record)
    by_words = _word_twins(kind, train.records, test.records) if kind.prose else {}
    shared = []
    for number, record in enumerate(test.records):
        answer = kind.answer(record)
        twins = by_question.get(kind.key(record), [])
        same = [twin for twin in twins if kind.answer(twin) == answer]
        if twins:
            shared.append(Shared(record, (same or twins)[0], bool(same)))
        elif number in by_words:
            twin, words = by_words[number]
            shared.append(Shared(record, twin, kind.answer(twin) == answer, words))
    return Overlap(train.report.source, test.report.source, len(test.records), tuple(shared))


def _word_twins(
    kind: Kind[Record], train: Sequence[Record], test: Sequence[Record]
) -> dict[int, tuple[Record, int]]:
    """Maps places in `test` to a record of `train` with a common n-gram, and the n-gram's length.

    The n-grams of the test set alone are kept, so that the training set may be large.
    """
    grams: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, record in enumerate(test):
        for gram in _ngrams(words_of(kind.text(record))):
            grams[gram].append(number)
    places: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, record in enumerate(train):
        # A set, since a question that repeats a phrase makes it no more common.
        for gram in {*_ngrams(words_of(kind.text(record)))} & grams.keys():
            # One more than counts is enough to know a phrase as common.
            if len(places[gram]) <= COMMON:
                places[gram].append(place)
    twins: dict[int, tuple[Record, int]] = {}
    for gram, at in places.items():
        # A shorter one is a whole question, not a phrase that surrounds others, however often
        # it occurs.
        if len(at) <= COMMON or len(gram) < NGRAM:
            for number in grams[gram]:
                twins.setdefault(number, (train[at[0]], len(gram)))
    return twins


def words_of(text: str) -> tuple[str, ...]:
    """Returns the words, numbers and signs of a question, without case and punctuation."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return tuple(_WORD.findall(_THOUSANDS.sub("", folded)))


def _ngrams(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields all runs of `NGRAM` words; of a shorter text, all of its words as one."""
    if 0 < len(words) < NGRAM:
        yield words
    for start in range(len(words) - NGRAM + 1):
        yield words[start : start + NGRAM]
