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


def normal(text: str) -> str:
    """The words of an answer that count, in lower case without articles; empty for `the`."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def f1(answer: str, accepted: Iterable[str]) -> float:
    """The greatest F1 of the words of an answer with those of one accepted, from 0 to 1."""
    words, best = Counter(normal(answer).split()), 0.0
    for right in (Counter(normal(other).split()) for other in accepted):
        # As SQuAD has it: where nothing counts, only another empty answer is the same.
        total = words.total() + right.total()
        best = max(best, 2 * (words & right).total() / total if total else 1.0)
    return best


def contains(text: str, accepted: Iterable[str]) -> bool:
    """Returns whether a text contains the words of an accepted answer, in their order."""
    # Punctuation joins the parts of some words (U.S.A.) and parts others (a tag from its text).
    forms = (normal, lambda words: normal(_SIGNS.sub(" ", words)))
    pairs = [(form(text), form(other)) for other in accepted for form in forms]
    # An answer in which nothing counts would be a part of every text.
    return any(f" {wanted} " in f" {words_of_text} " for words_of_text, wanted in pairs if wanted)


def telling(accepted: Iterable[str]) -> tuple[str, ...]:
    """Those of the accepted answers that an unrelated text hardly contains: not yes, no, nor one or two characters."""
    return tuple(text for text in accepted if len(normal(text)) > 2 and normal(text) != "yes")
