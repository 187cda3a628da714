"""What a demonstration is."""

from __future__ import annotations

from typing import NamedTuple


class Demo(NamedTuple):
    """A prompt for a role, as its environment shows it, and a reply to it."""

    prompt: str
    reply: str
