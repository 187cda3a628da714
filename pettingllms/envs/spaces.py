"""`FreeText`: a Gymnasium space for text as language models write it.

`gymnasium.spaces.Text` needs a character set: its default rejects a space, a full Unicode set
takes seconds to build and still rejects lone surrogates, and membership costs a Python loop
over every character. `FreeText` bounds the length only.
"""

from __future__ import annotations

import string
from typing import Any

from gymnasium.spaces import Space, Text

from pettingllms.errors import ConfigError

MAX_TEXT = 1_000_000
"""Longest text, in characters, that counts as an action or an observation."""

SAMPLE_LENGTH = 32
"""Longest text that `FreeText.sample` draws, in characters."""

_CHARACTERS = tuple(string.printable)


class FreeText(Text):
    """Every `str` of at most `max_length` characters, including the empty one and any Unicode.

    Equal where the bounds are equal. Copies share the character tables, which are used for
    sampling only.

    Args:
        max_length: longest member, in characters; at least 1.
        seed: seed of `sample`.

    Raises:
        ConfigError: `max_length` is smaller than 1.
    """

    # Gymnasium's Text fills these per instance; as class attributes they cost an instance
    # nothing to make, pickle or copy.
    _char_list = _CHARACTERS
    _char_set = frozenset(_CHARACTERS)
    _char_str = "".join(sorted(_CHARACTERS))

    def __init__(self, max_length: int = MAX_TEXT, *, seed: int | None = None) -> None:
        if max_length < 1:
            raise ConfigError(f"max_length must be at least 1 character, got {max_length}")
        self.min_length = 0
        self.max_length = int(max_length)
        # Not `Text.__init__`, which makes tables of characters for each instance.
        Space.__init__(self, dtype=str, seed=seed)

    def contains(self, x: Any) -> bool:
        """Returns whether `x` is a `str` within the length bound, in the same time for any length."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Draws up to `SAMPLE_LENGTH` printable ASCII characters from the space's generator.

        Raises:
            ConfigError: a mask or probability was given; free text has neither.
        """
        if mask is not None or probability is not None:
            raise ConfigError("FreeText cannot be sampled with a mask or probability; omit them")
        generator = self.np_random
        length = int(generator.integers(min(SAMPLE_LENGTH, self.max_length) + 1))
        picks = generator.integers(len(_CHARACTERS), size=length).tolist()
        return "".join(_CHARACTERS[pick] for pick in picks)

    def character_index(self, char: str) -> Any:
        """Raises ConfigError: with any character a member there is no table of them."""
        raise ConfigError(f"FreeText cannot be flattened: it has no index for {char!r}")

    @property
    def is_np_flattenable(self) -> bool:
        """False: text without a character set has no array form."""
        return False

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, FreeText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((FreeText, self.max_length))

    def __repr__(self) -> str:
        return f"FreeText({self.max_length})"
