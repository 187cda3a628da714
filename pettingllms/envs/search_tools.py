"""The search environment's second form: conversations in which a query is a call of the tool `search`.

A prompt is a list of messages: the rules and the question, then each search as a call and its result. Each one
begins with the one before, so that the turns of an episode share rows of the update. Any text is a legal reply:
what is no call, or a malformed one, is a `ParseError`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pettingllms.envs.parsing import ParseError
from pettingllms.envs.search_text import (
    SHOWN_CHARS,
    Lookup,
    SearchReply,
    checked,
    passage_text,
    tagged,
)
from pettingllms.envs.tool_calls import read_calls
from pettingllms.types import Conversation

CALLERS = ("searcher", "solver", "worker")
"""Roles that search, and so have the tool."""
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds texts in a collection by the words that they share with the query.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "Words to look for."}},
            "required": ["query"],
        },
    },
}
_ENDS = {"solver": "answer", "worker": "result"}
"""The tag of a reply that does not search."""
_RULES = {
    "searcher": """You search a collection of texts for a team that has to answer a question. Work out which fact is missing next, \
and call `search` once for it; an earlier query finds nothing new.""",
    "solver": """You answer a question by searching a collection of texts. In each reply you either call `search` once, or end \
with the shortest exact answer, a name, a number or a few words: <answer>your answer</answer>. Your first answer is final.""",
    "worker": """You carry out one task by searching a collection of texts. In each reply you either call `search` once, or end \
the task by reporting what you found in few words: <result>your report</result>.""",
}
_LEFT_OUT = f"(Left out: texts have at most {SHOWN_CHARS} characters together.)"


def tool_prompt(role: str, question: str, searches: Sequence[Lookup], *, left: int) -> Conversation:
    """The conversation of a role that may call `search`.

    Args:
        role: of the reader, one of `CALLERS`.
        question: the question; a worker's is its task.
        searches: those that the reader knows of.
        left: searches that the episode may still make.
    """
    label = "Task" if role == "worker" else "Question"
    # What an earlier prompt said is said again, so that this one begins with it.
    lefts = [f"Searches left: {left + later}." for later in range(len(searches), -1, -1)]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"{_RULES[role]}\n\n{label}: {question}\n\n{lefts[0]}"}
    ]
    for number, (search, result) in enumerate(zip(searches, _results(searches), strict=True), 1):
        arguments = json.dumps({"query": search.query}, ensure_ascii=False)
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "search", "arguments": arguments},
        }
        content = f"{result}\n\n{lefts[number]}"
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": content},
        ]
    return Conversation.of(messages, [SEARCH])


def _results(searches: Sequence[Lookup]) -> list[str]:
    """What each search found, as text; older results make room for the latest."""
    results, room = list[str](), SHOWN_CHARS
    for search in reversed(searches):
        result = "\n".join(map(passage_text, search.found)) or "Nothing new was found."
        # The beginning of the latest is better than nothing.
        result = result[:SHOWN_CHARS] if not results else result
        room -= len(result)
        results.append(result if room >= 0 else _LEFT_OUT)
    return results[::-1]


def parse_tool_reply(role: str, text: str) -> SearchReply | ParseError:
    """Parses a reply of a role that may call `search`: one call, or what ends its work."""
    _, calls = read_calls(text)
    if not calls:
        if role not in _ENDS:
            return ParseError("no call of `search`")
        tag = _ENDS[role]
        reply = tagged([tag], text)
        if isinstance(reply, ParseError):
            return ParseError(f"neither a call of `search` nor <{tag}>...</{tag}>")
        return checked(reply)
    if len(calls) > 1:
        return ParseError(f"{len(calls)} calls in a reply; search once")
    [(name, arguments)] = calls
    if name != "search":
        return ParseError(f"there is no tool {name[:40]!r}; call `search`")
    query = arguments.get("query")
    if not isinstance(query, str):
        return ParseError("the call of `search` has no `query` that is text")
    return checked(SearchReply("search", query))
