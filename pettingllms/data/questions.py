"""Questions that take a search, and the passages that are searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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
