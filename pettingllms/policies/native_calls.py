"""Calls of tools in the forms of gpt-oss and Gemma 4, rewritten as `<tool_call>{...}</tool_call>`.

    <|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 2}      gpt-oss
    to=functions.add<|channel|>commentary json<|message|>{"a": 2}                    its other order
    <|tool_call>call:add{a:2,b:<|"|>text<|"|>}<tool_call|>                           Gemma 4

A malformed call stays as it was written.
"""

from __future__ import annotations

import json
import re

from pettingllms.types import TOOL_CALL

CHANNEL = r"(?:<\|channel\|>(?:commentary|analysis))?"
HARMONY_FINAL = "<|channel|>final<|message|>"
"""Ends the thought of gpt-oss, and opens its reply."""
_HARMONY_CALL = re.compile(
    CHANNEL
    + r"\s*to=functions\.(?P<name>[\w.-]+)\s*"
    + CHANNEL
    + r"\s*(?:<\|constrain\|>)?(?:json)?\s*<\|message\|>(?P<arguments>(?:[^<]|<(?!\|))*)"
)
GEMMA_MARKS = ("<|tool_call>", "<tool_call|>", '<|"|>')
_GEMMA_CALL = re.compile(
    r"<\|tool_call>call:(?P<name>[\w.-]+)(?P<arguments>\{.*?\})(?:<tool_call\|>|$)", re.DOTALL
)
_BARE_KEY = re.compile(r"([{,]\s*)([\w.-]+)(\s*:)")


def from_harmony(text: str) -> str:
    """A reply of gpt-oss, its calls in the common form, as its final channel."""

    def rewritten(match: re.Match[str]) -> str:
        call = _common(match["name"], match["arguments"])
        if call is None:
            return match[0]
        is_final = HARMONY_FINAL in text[: match.start()]
        return call if is_final else f"{HARMONY_FINAL}{call}"

    return _HARMONY_CALL.sub(rewritten, text)


def from_gemma(text: str) -> str:
    """A reply of Gemma 4, its calls in the common form."""
    return _GEMMA_CALL.sub(
        lambda match: _common(match["name"], _gemma_json(match["arguments"])) or match[0], text
    )


def _gemma_json(text: str) -> str:
    """Arguments as JSON: Gemma writes keys without quotes, and a token in place of each quote."""
    pieces = text.split(GEMMA_MARKS[2])
    strings = [json.dumps(piece) for piece in pieces[1::2]]
    pieces[::2] = [_BARE_KEY.sub(r'\1"\2"\3', piece) for piece in pieces[::2]]
    pieces[1::2] = strings
    return "".join(pieces)


def _common(name: str, arguments: str) -> str | None:
    try:
        value = json.loads(arguments)
        if not isinstance(value, dict):
            return None
        text = json.dumps({"name": name, "arguments": value}, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    # No argument may spell the closing tag, or that of a thought.
    escaped = text.replace("<", "\\u003c")
    return f"{TOOL_CALL[0]}{escaped}{TOOL_CALL[1]}"
