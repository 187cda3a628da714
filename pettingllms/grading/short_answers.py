"""Compares short answers by their words, as SQuAD does (Rajpurkar et al. 2016): exact match, F1, and containment.

Case, punctuation, articles and spacing do not count. Pure, and linear in the length of the texts.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SIGNS = re.compile(r"[\W_]+")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normal_words(text: str) -> list[str]:
    """The words of an answer that count: in lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def normal(text: str) -> str:
    """An answer reduced to what counts; empty where nothing does, as of `the`."""
    return " ".join(normal_words(text))


def exact_match(answer: str, accepted: Iterable[str]) -> bool:
    """Returns whether an answer equals one of those accepted."""
    return normal(answer) in map(normal, accepted)


def f1(answer: str, accepted: Iterable[str]) -> float:
    """The greatest F1 of the words of an answer with those of one accepted, from 0 to 1."""
    said, best = Counter(normal_words(answer)), 0.0
    for right in map(Counter, map(normal_words, accepted)):
        # As SQuAD has it: where nothing counts, only another empty answer is the same.
        words = said.total() + right.total()
        best = max(best, 2 * (said & right).total() / words if words else 1.0)
    return best


def contains(text: str, accepted: Iterable[str]) -> bool:
    """Returns whether a text contains the words of an accepted answer, in their order."""
    # Punctuation joins the parts of some words (U.S.A.) and parts others (a tag from its text).
    forms = (normal, lambda words: normal(_SIGNS.sub(" ", words)))
    pairs = [(form(text), form(other)) for other in accepted for form in forms]
    # An answer in which nothing counts would be a part of every text.
    return any(f" {wanted} " in f" {said} " for said, wanted in pairs if wanted)


def telling(accepted: Iterable[str]) -> tuple[str, ...]:
    """Those of the accepted answers that an unrelated text hardly contains: not yes, no, nor one or two characters."""
    return tuple(each for each in accepted if len(normal(each)) > 2 and normal(each) != "yes")
