"""Calls of tools in the text of a reply: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

The form of Qwen2.5, Qwen3, SmolLM3, and Hermes; a whole reply of the form of Llama 3.1,
`{"name": ..., "parameters": {...}}`, is read as well. What cannot be read stays text: a
malformed call is a reply like any other, and never an error.
"""

from __future__ import annotations

import json
from typing import Any

from pettingllms.types import TOOL_CALL

OPEN, CLOSE = TOOL_CALL
MOST_CALLS = 16
"""Of one reply; further ones stay text."""
_DECODER = json.JSONDecoder()

Named = tuple[str, dict[str, Any]]
"""Name of a function, and its arguments."""


def read_calls(text: str) -> tuple[str, list[Named]]:
    """The text of a reply without the calls in it, and these in their order."""
    whole = _call(text.strip(), "parameters") if text.lstrip().startswith("{") else None
    if whole is not None:
        return "", [whole]
    pieces, calls = [], list[Named]()
    first, *parts = text.split(OPEN)
    for segment in parts:
        # A model may end its turn in place of the closing tag.
        written, _, rest = segment.partition(CLOSE)
        call = _call(written.strip(), "arguments") if len(calls) < MOST_CALLS else None
        if call is None:
            pieces.append(f"{OPEN}{segment}")
        else:
            calls.append(call)
            pieces.append(rest)
    return "".join([first, *pieces]).strip() if calls else text, calls


def _call(text: str, field: str) -> Named | None:
    try:
        value, end = _DECODER.raw_decode(text)
        name, arguments = value["name"], value.get(field, {})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    fits = isinstance(name, str) and isinstance(arguments, dict) and end == len(text)
    return (name, arguments) if fits else None
