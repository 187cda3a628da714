"""Compares short answers by their words: exact match, F1, and containment.

The rules of SQuAD (Rajpurkar et al. 2016), which open-domain question answering shares: case, punctuation,
articles and spacing do not count. Pure, and linear in the length of the texts.
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
    said = normal(answer)
    return any(said == normal(other) for other in accepted)


def f1(answer: str, accepted: Iterable[str]) -> float:
    """The greatest F1 of the words of an answer with those of one accepted, from 0 to 1."""
    said = normal_words(answer)
    return max((_f1(said, normal_words(other)) for other in accepted), default=0.0)


def _f1(left: list[str], right: list[str]) -> float:
    # As SQuAD has it: where nothing counts, only another empty answer is the same.
    if not left or not right:
        return float(left == right)
    shared = (Counter(left) & Counter(right)).total()
    return 2 * shared / (len(left) + len(right))


def contains(text: str, accepted: Iterable[str]) -> bool:
    """Returns whether a text contains the words of an accepted answer, in their order."""
    # Punctuation joins the parts of some words (U.S.A.) and parts others (a tag from its text).
    pairs = [(form(text), form(other)) for other in accepted for form in (normal, _apart)]
    # An answer in which nothing counts would be a part of every text.
    return any(f" {wanted} " in f" {said} " for said, wanted in pairs if wanted)


def _apart(text: str) -> str:
    return normal(_SIGNS.sub(" ", text))


def telling(accepted: Iterable[str]) -> tuple[str, ...]:
    """Those of the accepted answers that an unrelated text hardly contains: not yes, no, nor one or two characters."""
    return tuple(each for each in accepted if len(normal(each)) > 2 and normal(each) != "yes")
