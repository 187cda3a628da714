"""Thoughts: what a reasoning model writes between `<think>` and `</think>` before its reply.

A reply begins after the last `</think>`, so that no draft counts as an answer. Where a `<think>`
has no end, there is no reply: the model was cut while it was thinking. A tag between quotation
marks on its line, as in a program's string, is text. `TextEnv` takes thoughts
away before `_act` sees a reply, in environments of one's own as well; nothing of a thought reaches
teammates unless the argument `show_thinking` is set. The transcript keeps all that was written.

A chat template may have opened the thought already; `pettingllms.policies.chat` then puts
`<think>` before the completion.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from pettingllms.envs.parsing import shortened
from pettingllms.envs.records import Record

OPEN, CLOSE = "<think>", "</think>"
UNCLOSED = (
    f"the thought is not closed: there is no {CLOSE} after {OPEN}, and only what follows it is read"
)
SHOWN_CHARS = 2000

_TAG = re.compile(f"{OPEN}|{CLOSE}")
_QUOTES = re.compile(r"\""), re.compile(r"(?<!\w)'|'(?!\w)"), re.compile(r"(?<!`)`(?!`)")
_NEAR = 200
"""Characters of a line around a tag in which quotation marks are looked for."""


def without_thought(text: str) -> str | None:
    """Returns what `text` says after its thought; None where the thought is not closed."""
    begin, unclosed = _begin(text)
    return None if unclosed else text[begin:]


def _begin(text: str) -> tuple[int, bool]:
    """Returns where `text` goes on after its last thought, and whether another one has begun there."""
    begin, unclosed = 0, False
    for tag in _TAG.finditer(text):
        if not _is_quoted(text, tag):
            unclosed = tag[0] == OPEN
            begin = begin if unclosed else tag.end()
    return begin, unclosed


def _is_quoted(text: str, tag: re.Match[str]) -> bool:
    before = text[max(0, tag.start() - _NEAR) : tag.start()].rpartition("\n")[2]
    after = text[tag.end() : tag.end() + _NEAR].partition("\n")[0]
    return any(len(mark.findall(before)) % 2 and mark.search(after) for mark in _QUOTES)


def thought_in(text: str) -> str:
    """Returns the thought before what `text` says, shortened; empty where there is none.

    It holds neither of the two tags, which would begin a thought in the prompt of its reader.
    """
    begin, unclosed = _begin(text)
    thought = text[:begin] or (text if unclosed else "")
    thought = thought.removesuffix(CLOSE).strip().removeprefix(OPEN).strip()
    thought = shortened(thought, SHOWN_CHARS)
    # A space in place of nothing: without the tag in its middle, `<t<think>hink>` would be one.
    return thought.replace(OPEN, "< think>").replace(CLOSE, "< /think>")


def shown_thoughts(transcript: Iterable[Record], agent: str, heard: Collection[str]) -> str:
    """Returns the thoughts of the agents in `heard` since the last reply of `agent`, as it is shown them."""
    parts: list[str] = []
    for record in transcript:
        if record.agent == agent:
            parts.clear()
        elif record.agent in heard and (thought := thought_in(record.reply)):
            parts.append(f"\n\n{record.agent} thought:\n{thought}")
    return "".join(parts)
