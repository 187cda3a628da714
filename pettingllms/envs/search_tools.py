"""The search environment's second form: conversations in which a query is a call of the tool `search`.

A prompt is a list of messages: the rules and the question, then each search as a call and its result. Each one
begins with the one before, so that the turns of an episode share rows of the update. Any text is a legal reply:
what is no call, or a malformed one, is a `ParseError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, cast

from pettingllms.data import facts
from pettingllms.data.question_schemas import load_questions
from pettingllms.data.retrieval import Index, Passage, Question, open_corpus, open_passages
from pettingllms.data.rows import Source, as_path
from pettingllms.data.splits import Split
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
from pettingllms.errors import ConfigError
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
    """The conversation of a role that may call `search`."""
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


# -------------------------------------------------------------------------------------- library
# Sources of the search environment's questions, and the index in which each is searched.
#
# Generated facts are indexed in memory, a tenth of a second once a process. Corpora and the pooled passages of a
# data set have an index on disk, which all processes map (`pettingllms.data.retrieval`).


OWN, POOLED = "own", "pooled"
_KNOWN_BY_TITLE = 20
"""Of the passages that share most words with a title, so many are looked at for the one that has it."""


@dataclass(frozen=True, slots=True)
class PassageLibrary:
    """Questions by seed, and the index of each."""

    question: Callable[[int], Question]
    index: Callable[[Question], Index]
    size: int | None
    """Number of questions; None for endless ones."""
    opened: tuple[Any, ...]
    """The arguments of `library`, by which another process opens the same one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return library, self.opened


def library(
    dataset: Source | None,
    corpus: str | Path | None,
    split: str,
    hops: tuple[int, int],
    folder: str | Path | None,
) -> PassageLibrary:
    """Opens the questions of a split and what they are searched in; arguments as in `search_v0`.

    Raises:
        ConfigError: there is a corpus without questions, or there are questions without a corpus.
        DatasetError: one of them cannot be had, or has nothing that can be used.
    """
    where = None if folder is None else Path(folder)
    opened = dataset, corpus, split, hops, folder
    if dataset is None:
        if corpus is not None:
            raise ConfigError(
                f"corpus={str(corpus)!r} needs questions: give dataset, or leave both out for generated facts"
            )
        split_name = cast(Split, split)
        made = partial(facts.question, split=split_name, hops=hops)
        # A question of a user's own is searched in the same facts.
        return PassageLibrary(made, lambda _: _generated(split_name), None, opened)
    dataset = as_path(dataset)
    records = load_questions(dataset, split).records
    size = len(records)
    if corpus is not None and corpus not in (OWN, POOLED):
        index = open_corpus(corpus, where)
        return PassageLibrary(
            lambda seed: _within(records[seed % size], index), lambda _: index, size, opened
        )
    # In a fixed order, because the digest of the passages names the index on disk.
    pooled = tuple(dict.fromkeys(passage for record in records for passage in record.context))
    if not pooled:
        raise ConfigError(
            f"the rows of dataset {str(dataset)!r} bring no passages; give corpus, a file, a folder or a hub id"
        )
    if corpus == OWN:
        return PassageLibrary(lambda seed: records[seed % size], _own(), size, opened)
    index = open_passages(f"{dataset}, {split} split, pooled", pooled, where)
    return PassageLibrary(lambda seed: records[seed % size], lambda _: index, size, opened)


@cache
def _generated(split: Split) -> Index:
    return Index.of(facts.world(split).passages)


def _own() -> Callable[[Question], Index]:
    # Bounded, because every question of a data set has an index of its own.
    @lru_cache(maxsize=64)
    def of(context: Sequence[Passage]) -> Index:
        return Index.of(context)

    return lambda question: of(question.context)


def _within(question: Question, index: Index) -> Question:
    """A question without the names of passages where the corpus lacks one of them: nobody could find all."""
    for key in question.gold:
        # An index has no table of titles, so that a passage is found by the words of its title.
        if all(passage.key != key for passage in index.find(key, _KNOWN_BY_TITLE)):
            return replace(question, gold=())
    return question
