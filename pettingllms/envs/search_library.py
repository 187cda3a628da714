"""Sources of the search environment's questions, and the index in which each is searched.

Generated facts are indexed in memory, a tenth of a second once a process. Corpora and the pooled passages of a
data set have an index on disk, which all processes map (`pettingllms.data.corpora`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, cast

from pettingllms.data import facts
from pettingllms.data.corpora import open_corpus, open_passages
from pettingllms.data.objects import Source, as_path
from pettingllms.data.question_schemas import load_questions
from pettingllms.data.questions import Passage, Question
from pettingllms.data.retrieval import Index
from pettingllms.data.splits import Split
from pettingllms.errors import ConfigError

OWN, POOLED = "own", "pooled"
_KNOWN_BY_TITLE = 20
"""Of the passages that share most words with a title, so many are looked at for the one that has it."""


@dataclass(frozen=True, slots=True)
class PassageLibrary:
    """Questions by seed, and the index of each."""

    question: Callable[[int], Question]
    index: Callable[[Question], Index]
    size: int | None
    """Number of questions; None for endless ones."""
    opened: tuple[Any, ...]
    """The arguments of `library`, by which another process opens the same one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return library, self.opened


def library(
    dataset: Source | None,
    corpus: str | Path | None,
    split: str,
    hops: tuple[int, int],
    folder: str | Path | None,
) -> PassageLibrary:
    """Opens the questions of a split and what they are searched in; arguments as in `search_v0`.

    Raises:
        ConfigError: there is a corpus without questions, or there are questions without a corpus.
        DatasetError: one of them cannot be had, or has nothing that can be used.
    """
    where = None if folder is None else Path(folder)
    opened = dataset, corpus, split, hops, folder
    if dataset is None:
        if corpus is not None:
            raise ConfigError(
                f"corpus={str(corpus)!r} needs questions: give dataset, or leave both out for generated facts"
            )
        split_name = cast(Split, split)
        made = partial(facts.question, split=split_name, hops=hops)
        # A question of a user's own is searched in the same facts.
        return PassageLibrary(made, lambda _: _generated(split_name), None, opened)
    dataset = as_path(dataset)
    records = load_questions(dataset, split).records
    size = len(records)
    if corpus is not None and corpus not in (OWN, POOLED):
        index = open_corpus(corpus, where)
        return PassageLibrary(
            lambda seed: _within(records[seed % size], index), lambda _: index, size, opened
        )
    # In a fixed order, because the digest of the passages names the index on disk.
    pooled = tuple(dict.fromkeys(passage for record in records for passage in record.context))
    if not pooled:
        raise ConfigError(
            f"the rows of dataset {str(dataset)!r} bring no passages; give corpus, a file, a folder or a hub id"
        )
    if corpus == OWN:
        return PassageLibrary(lambda seed: records[seed % size], _own(), size, opened)
    index = open_passages(f"{dataset}, {split} split, pooled", pooled, where)
    return PassageLibrary(lambda seed: records[seed % size], lambda _: index, size, opened)


@cache
def _generated(split: Split) -> Index:
    return Index.of(facts.world(split).passages)


def _own() -> Callable[[Question], Index]:
    # Bounded, because every question of a data set has an index of its own.
    @lru_cache(maxsize=64)
    def of(context: Sequence[Passage]) -> Index:
        return Index.of(context)

    return lambda question: of(question.context)


def _within(question: Question, index: Index) -> Question:
    """A question without the names of passages where the corpus lacks one of them: nobody could find all."""
    for key in question.gold:
        # An index has no table of titles, so that a passage is found by the words of its title.
        if all(passage.key != key for passage in index.find(key, _KNOWN_BY_TITLE)):
            return replace(question, gold=())
    return question
