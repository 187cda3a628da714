"""Text from tokens as they come: pieces of a stream, stop strings, log-probabilities.

A character may be spread over several tokens, and so may a stop string. What could still become part of one
is held back, so that the pieces of a stream, joined, are the text of the whole completion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pettingllms.samplers.continuous import Token

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_LONGEST_TAIL = 3
"""Bytes of a UTF-8 character that may be there before its last one."""


class TextStream:
    """Decodes a growing list of tokens, each only a few times.

    Args:
        decode: text of tokens, without special ones.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        # Decoded again with each token: some tokenizers write a token in another way at the start
        # of a text, so that it needs the tokens before it.
        self._start = self._read = 0
        self._given = 0
        """Characters of the current window that have been given out."""

    def push(self, token: int) -> str:
        """The text that is certain now."""
        self._ids.append(token)
        text = self._decode(self._ids[self._start :])
        # An unfinished character is decoded as replacement characters, which the next token may
        # turn into another.
        tail = len(text) - len(text.rstrip(_UNFINISHED))
        # More of them than a character has bytes were written by the model itself.
        certain = text[: len(text) - min(tail, _LONGEST_TAIL)]
        new = certain[self._given :]
        if not tail:
            # The window keeps the tokens since the last certain place, as context for those that
            # come.
            self._start, self._read = self._read, len(self._ids)
            self._given = len(self._decode(self._ids[self._start :]))
        else:
            self._given = max(self._given, len(certain))
        return new

    def rest(self) -> str:
        """The text held back, when nothing more comes."""
        text = self._decode(self._ids[self._start :])
        new = text[self._given :]
        self._given = len(text)
        return new


class Stops:
    """Looks for stop strings in a text that comes in pieces.

    Args:
        stops: strings that end the text; they are not part of it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """Returns the text that can no longer be part of a stop string; after `found`, nothing."""
        if self.found:
            return ""
        text = self._held + piece
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            # The first stop string in the text counts, not the first in the list.
            return text[: min(places)]
        size = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - size :]
        return text[: len(text) - size]

    def rest(self) -> str:
        """Returns the text that was held back, once nothing more comes."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    # A whole stop string has been looked for already.
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


@dataclass(slots=True)
class Choice:
    """One completion as it grows."""

    stream: TextStream
    stops: Stops
    end_ids: frozenset[int]
    tokens: list[Token] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    """Why it ended: stop or length; None: not yet."""

    def push(self, token: Token) -> str:
        """Takes a token; returns the text that is certain now."""
        self.tokens.append(token)
        # A token that ends the turn is counted, and is no text.
        piece = "" if token.id in self.end_ids else self.stream.push(token.id)
        new = self.stops.push(piece)
        if self.stops.found:
            self.finish = "stop"
        elif token.end is not None:
            new += self._rest()
            # What was held back may complete a stop string with the last token.
            self.finish = "stop" if self.stops.found else token.end
        self.text += new
        return new

    def _rest(self) -> str:
        new = self.stops.push(self.stream.rest())
        return new if self.stops.found else new + self.stops.rest()
