"""Prompts of the search environment, and the parsing of replies.

No text that a model can write raises here or takes longer than its length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pettingllms.data.retrieval import Passage
from pettingllms.envs import small_text
from pettingllms.envs.parsing import ParseError
from pettingllms.grading.short_answers import normal

MAX_QUERY_CHARS = 300
MAX_ANSWER_CHARS = 200
SHOWN_WORDS = 100
"""Of a passage; the rest of a longer one is cut."""
SHOWN_CHARS = 6_000
"""Of all passages together; the oldest make room."""

_ROLE_TAGS = {
    "verifier": ("verify",),
    "searcher": ("search",),
    "answerer": ("answer", "verify"),
    "solver": ("search", "answer"),
    "planner": ("task", "answer"),
    "worker": ("search", "result"),
}
_NAMES = {"search": "query", "task": "task", "result": "result"}
"""What a reply of a kind says, for messages."""
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_WORD = re.compile(r"\w")


class Lookup(NamedTuple):
    """A search of an episode, and what it found that was not there before."""

    query: str
    found: tuple[Passage, ...]


class SearchReply(NamedTuple):
    """A parsed reply."""

    kind: str
    """`verify`, `search`, `answer`, `task` or `result`."""
    said: str
    """`yes` or `no`, a query, an answer, a task for the worker, or what it found."""


class Call(NamedTuple):
    """A task that a planner gave its worker."""

    task: str
    start: int
    """Searches of the episode before it."""
    result: str | None = None
    """What the worker said of it in the end; None while it is at work."""


def parse_reply(role: str, text: str, prompt: str) -> SearchReply | ParseError:
    """Parses a reply by the rules of its author's role.

    A compact reply has no tags: its last line counts, and those before it are working. Of a reply to a
    small prompt the first line counts, or its first yes or no.
    """
    if prompt == "full":
        reply = tagged(_ROLE_TAGS[role], text)
    else:
        reply = _small(role, text) if prompt == "small" else _bare(role, text)
    return reply if isinstance(reply, ParseError) else checked(reply)


def _bare(role: str, text: str) -> SearchReply | ParseError:
    line = text.strip().rpartition("\n")[2].strip()
    if role in ("solver", "planner", "worker"):
        tag, _, rest = line.partition(" ")
        if tag not in _ROLE_TAGS[role]:
            one, other = _ROLE_TAGS[role]
            return ParseError(f"neither `{one}` nor `{other}` and what belongs to it")
        return SearchReply(tag, rest.strip())
    # Nothing that can be found is called no: an answerer who says it asks for more.
    tag = "verify" if role == "answerer" and line == "no" else _ROLE_TAGS[role][0]
    return SearchReply(tag, line)


def _small(role: str, text: str) -> SearchReply | ParseError:
    if role == "verifier":
        word = small_text.yes_or_no(text)
        return word if isinstance(word, ParseError) else SearchReply("verify", word)
    line = text.strip().partition("\n")[0].strip()
    if role in ("searcher", "answerer"):
        return SearchReply(_ROLE_TAGS[role][0], line)
    tag, _, rest = line.partition(":")
    if tag.lower() not in _ROLE_TAGS[role]:
        return ParseError(f"neither `{_ROLE_TAGS[role][0]}:` nor `{_ROLE_TAGS[role][1]}:`")
    return SearchReply(tag.lower(), rest.strip())


def tagged(tags: Sequence[str], text: str) -> SearchReply | ParseError:
    """Reads the last complete pair of tags of these kinds."""
    # Tags are ASCII, and `str.lower` can change the length of a text.
    low = text.translate(_ASCII_LOWER)
    ends = {tag: low.rfind(f"</{tag}>") for tag in tags}
    tag = max(tags, key=lambda name: ends[name])
    # The last opening tag before the last closing one, then up to the first that closes it.
    start = low.rfind(f"<{tag}>", 0, max(ends[tag], 0))
    if start < 0:
        return ParseError(f"no {' or '.join(f'<{name}>...</{name}>' for name in tags)}")
    inside = start + len(tag) + 2
    return SearchReply(tag, text[inside : low.find(f"</{tag}>", inside)].strip())


def checked(reply: SearchReply) -> SearchReply | ParseError:
    """Returns a reply with clean spaces, or why what it says cannot be used."""
    if reply.kind == "verify":
        # No more of it than the two words have, since a reply may be a megabyte long.
        verdict = reply.said[:8].lower()
        if verdict not in ("yes", "no"):
            return ParseError(f"{reply.said[:40]!r} is neither yes nor no")
        return SearchReply("verify", verdict)
    if reply.kind in _NAMES:
        name = _NAMES[reply.kind]
        if len(reply.said) > MAX_QUERY_CHARS:
            return ParseError(f"the {name} is longer than {MAX_QUERY_CHARS} characters")
        if not _WORD.search(reply.said):
            return ParseError(f"the {name} has no word")
        return SearchReply(reply.kind, " ".join(reply.said.split()))
    if len(reply.said) > MAX_ANSWER_CHARS:
        return ParseError(f"the answer is longer than {MAX_ANSWER_CHARS} characters")
    # Grading leaves out articles and punctuation, and here nothing would be left to compare.
    if not normal(reply.said):
        return ParseError("the answer has no word that counts")
    return reply


def compact_prompt(
    role: str,
    question: str,
    searches: Sequence[Lookup],
    *,
    calls: Sequence[Call] = (),
    may_pass: bool = False,
) -> str:
    """Prompt in few tokens, for the embedded model: role, question, and the passages found.

    Every line but the first begins with a blank: a word is then the same token wherever it stands.

    Args:
        role: of the reader.
        question: the question; a worker's is its task.
        searches: those that the reader knows of.
        calls: those that have ended, for a planner.
        may_pass: whether an answerer may say `no` and leave the answer for later.
    """
    lines = [line for call in calls for line in (call.task, call.result or "")]
    lines += [passage.text for search in searches for passage in search.found]
    return "\n ".join([role, question, *lines, *(["no"] if may_pass else [])])


_SMALL = {
    "verifier": "{texts}\nDoes this name the {question}? Say yes or no.",
    "searcher": "{texts}\nRepeat what is missing: {question}",
    "answerer": "{texts}\nSay the last word.",
    "solver": "{texts}\nRepeat `search: {question}` or say `answer:` and the last word.",
    "planner": "{texts}\nRepeat `task: {question}` or say `answer:` and the last word.",
    "worker": "{texts}\nRepeat `search: {question}` or say `result:` and the last word.",
}


def small_prompt(role: str, question: str, searches: Sequence[Lookup]) -> str:
    """Prompt of one instruction, for small pretrained models, with what the latest search found."""
    texts = [passage_text(passage) for passage in searches[-1].found] if searches else []
    return _SMALL[role].format(texts=". ".join(texts) or "No text.", question=question)


_RULES = {
    "verifier": """You lead a team that answers a question by searching a collection of texts. Judge whether what has been \
found is enough to answer the question with certainty. If it is, the answerer is next; if anything is missing, the searcher is.
Think first if you like, then end your reply with <verify>yes</verify> if it is enough, or <verify>no</verify> if it is not.""",
    "searcher": """You search a collection of texts for a team that has to answer a question. Texts are found by the words that \
they share with your query. Work out which fact is missing next, also in the light of what has been found, and search for that; \
an earlier query finds nothing new.
Think first if you like, then end your reply with one query: <search>your query</search>.""",
    "answerer": """You answer a question for a team that has searched a collection of texts. Use what has been found.
Think first if you like, then end your reply with the shortest exact answer, a name, a number or a few words: \
<answer>your answer</answer>.""",
    "solver": """You answer a question by searching a collection of texts. Texts are found by the words that they share with your \
query. In each reply you either search or answer; your first answer is final.
Think first if you like, then end your reply with one query, <search>your query</search>, or with the shortest exact answer, \
a name, a number or a few words: <answer>your answer</answer>.""",
    "planner": """You answer a question with the help of a worker, who can search a collection of texts, knows neither the question nor what you have learned so far, and forgets each task when it is done. In each reply you either give the worker one task that can be understood by itself, or answer; your first answer is final.
Think first if you like, then end your reply with one task, <task>your task</task>, or with the shortest exact answer, a name, a number or a few words: <answer>your answer</answer>.""",
    "worker": """You carry out one task by searching a collection of texts. Texts are found by the words that they share with your query. In each reply you either search, or end the task by reporting what you found to the one who gave it.
Think first if you like, then end your reply with one query, <search>your query</search>, or with a report in few words: <result>your report</result>.""",
}
_MAY_PASS = (
    "If anything is missing, end it with <verify>no</verify> instead, and another search follows."
)


def full_prompt(
    role: str,
    question: str,
    searches: Sequence[Lookup],
    *,
    left: int,
    calls: Sequence[Call] = (),
    may_pass: bool = False,
) -> str:
    """Prompt of rules, question and passages, for real language models.

    Args:
        role: of the reader.
        question: the question; a worker's is its task.
        searches: those that the reader knows of.
        left: searches that the episode may still make.
        calls: those that have ended, for a planner.
        may_pass: whether an answerer may ask for another search.
    """
    label = "Task" if role == "worker" else "Question"
    parts = [_RULES[role], *([_MAY_PASS] if may_pass else []), f"{label}: {question}"]
    if role == "planner":
        told = [f"Task: {call.task}\nResult: {call.result or 'none'}" for call in calls]
        return "\n\n".join([*parts, *(told or ["The worker has not been asked."]), _left(left)])
    parts += _shown(searches) or ["Nothing has been searched yet."]
    if role != "answerer" or may_pass:
        parts.append(_left(left))
    return "\n\n".join(parts)


def _left(count: int) -> str:
    return f"Searches left: {count}."


def _shown(searches: Sequence[Lookup]) -> list[str]:
    """Queries with the passages that they found, as many of the latest as have room."""
    blocks: list[str] = []
    # Counted down from all of them: a passage keeps its number when older ones are left out.
    number = sum(len(search.found) for search in searches)
    room = SHOWN_CHARS
    for search in reversed(searches):
        lines = [f"Search: {search.query}"]
        texts = [passage_text(passage) for passage in search.found]
        number -= len(texts)
        lines += [f"[{number + n}] {text}" for n, text in enumerate(texts, 1)]
        lines += [] if texts else ["Nothing new was found."]
        block = "\n".join(lines)
        if len(block) > room:
            note = f"(What was found earlier is left out: at most {SHOWN_CHARS} characters.)"
            # Where the latest search alone is too long, its beginning is better than nothing.
            return [note, *(blocks or [block[:room]])]
        room -= len(block)
        blocks.insert(0, block)
    return blocks


def passage_text(passage: Passage) -> str:
    """A passage as agents see it, within bounds."""
    # A passage may be one line of a megabyte.
    # Words may be long: no passage takes more than an eighth of the room.
    text = " ".join(passage.text[: 20 * SHOWN_WORDS].split()[:SHOWN_WORDS])[: SHOWN_CHARS // 8]
    title = " ".join(passage.title.split())[:100]
    return f"({title}) {text}" if title else text
