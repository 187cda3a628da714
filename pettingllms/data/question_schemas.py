"""Published sets of questions that take a search, each read by its own schema.

| schema | fields | data sets |
|---|---|---|
| `questions` | `FIELDS` | files of your own |
| `hotpot_qa` | question, answer, supporting_facts, context; id or _id, type | HotpotQA, 2WikiMultihopQA |
| `musique` | question, answer, paragraphs; id, answer_aliases, answerable | MuSiQue |
| `golden_answers` | question, golden_answers; id, metadata | NQ, TriviaQA, PopQA, Bamboogle and others of FlashRAG and Search-R1 |
| `nq_open` | question, answer (list) | NQ |
| `trivia_qa` | question, answer (value, aliases); question_id | TriviaQA |
| `popqa` | question, possible_answers; id | PopQA |
| `bamboogle` | Question, Answer | Bamboogle |

`hotpot_qa` and `musique` bring passages with each question and name those that it takes. An answer is right if it
matches any of the accepted ones; some sets list answers among them that are another entity, and
exact match over the list then overstates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard

from pettingllms.data.dataset import Kind, Schema, load_source, normal_text
from pettingllms.data.retrieval import Passage, Question
from pettingllms.data.rows import (
    Row,
    RowError,
    UnsupportedRow,
    checked_text,
    is_blank,
    json_object,
    label,
    parsed,
    question,
    shown,
    text,
)
from pettingllms.grading.short_answers import normal

FIELDS = {
    "question": "the problem or question",
    "answer": "the answer, in few words",
    "accepted": "in place of `answer`: a list of answers, any of which is right",
    "gold": "titles of the passages needed, or their texts if they have no title",
    "id": "name in logs (default: the row number)",
    "difficulty": "evaluations report success by difficulty",
    "split": "`train`, `val` or `test`",
}
_ANSWERS = ("answer", "accepted", "answers")  # the last to be refused with a reason


def _accepted(values: object, field: str) -> tuple[str, ...]:
    """Answers that can be matched, each once; an answer such as `The` could be matched by nothing."""
    if isinstance(values, str):
        values = [values]
    if not _is_list(values):
        raise RowError(field, f"must be an answer or a list of answers, got {shown(values)}")
    texts = [value if isinstance(value, str) else _number(value, field) for value in values]
    answers = tuple(dict.fromkeys(checked_text(value, field).strip() for value in texts))
    usable = tuple(answer for answer in answers if not is_blank(normal(answer)))
    if not usable:
        raise UnsupportedRow(field, "has no answer with a word that counts")
    return usable


def _number(value: object, field: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError(field, f"must hold text, got {shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UnsupportedRow(field, f"is {value}, which is no answer")
    return str(value)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    # A text is a sequence as well, of its letters.
    return isinstance(value, Sequence) and not isinstance(value, str)


def _list(values: object, field: str) -> Sequence[Any]:
    if not _is_list(values):
        raise RowError(field, f"must be a list, got {shown(values)}")
    return values


def _keys(values: object, field: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(checked_text(value, field) for value in _list(values, field)))


def _own(row: Row, name: str) -> Question:
    if "answers" in row:
        raise RowError(
            "answers", "are needed together; name answers of which any is right 'accepted'"
        )
    accepted = parsed(row, "accepted")
    field = "answer" if accepted is None else "accepted"
    answers = _accepted(_listed(row.get("answer") if accepted is None else accepted), field)
    gold = _keys(parsed(row, "gold") or [], "gold")
    named = label(row, "id") or name
    return Question(question(row, "question"), answers, gold, named, label(row, "difficulty"))


def _listed(value: object) -> object:
    return [value] if isinstance(value, int | float) else value


def _golden_answers(row: Row, name: str) -> Question:
    answers = _accepted(parsed(row, "golden_answers"), "golden_answers")
    extra = row.get("metadata")
    gold: tuple[str, ...] = ()
    context: tuple[Passage, ...] = ()
    difficulty = None
    if isinstance(extra, Mapping):
        difficulty = label(extra, "type", "level")
        if extra.get("supporting_facts") and extra.get("context"):
            gold, context = _supporting(extra), _context(extra)
    asked = question(row, "question")
    return Question(asked, answers, gold, label(row, "id") or name, difficulty, context)


def _hotpot_qa(row: Row, name: str) -> Question:
    return Question(
        question(row, "question"),
        _accepted(text(row, "answer"), "answer"),
        _supporting(row),
        label(row, "id", "_id") or name,
        label(row, "type", "level"),
        _context(row),
    )


def _supporting(row: Row) -> tuple[str, ...]:
    """Titles of the passages that a question takes; a pair of lists, or a list of pairs."""
    facts = parsed(row, "supporting_facts")
    if isinstance(facts, Mapping):
        return _keys(facts.get("title"), "supporting_facts.title")
    if _is_list(facts) and all(_is_list(fact) and fact for fact in facts):
        return _keys([fact[0] for fact in facts], "supporting_facts")
    raise RowError("supporting_facts", f"must be titles and sentences, got {shown(facts)}")


def _context(row: Row) -> tuple[Passage, ...]:
    context = parsed(row, "context")
    if isinstance(context, Mapping):
        titles = _list(context.get("title") or [], "context.title")
        texts = _list(context.get("sentences", context.get("content")) or [], "context")
        if len(titles) != len(texts):
            raise RowError("context", f"has {len(titles)} titles and {len(texts)} texts")
        pairs: Any = zip(titles, texts, strict=True)
    elif _is_list(context) and all(_is_list(entry) and len(entry) == 2 for entry in context):
        pairs = context
    else:
        raise RowError("context", f"must be titles and their sentences, got {shown(context)}")
    passages = (
        Passage(_joined(sentences), checked_text(title, "context")) for title, sentences in pairs
    )
    return tuple(passage for passage in passages if not is_blank(passage.text))


def _joined(sentences: object) -> str:
    if _is_list(sentences):
        # Without blanks between them: in HotpotQA, sentences begin with their own.
        sentences = "".join(checked_text(sentence, "context") for sentence in sentences)
    return checked_text(sentences, "context").strip()


def _musique(row: Row, name: str) -> Question:
    if row.get("answerable") is False:
        raise UnsupportedRow("answerable", "is false: nobody could be right")
    paragraphs = row.get("paragraphs")
    if not _is_list(paragraphs) or not all(isinstance(p, Mapping) for p in paragraphs):
        raise RowError("paragraphs", f"must be a list of objects, got {shown(paragraphs)}")
    passages = [Passage(text(p, "paragraph_text").strip(), text(p, "title")) for p in paragraphs]
    pairs = zip(passages, paragraphs, strict=True)
    gold = [passage.key for passage, p in pairs if p.get("is_supporting")]
    aliases = _list(row.get("answer_aliases") or [], "answer_aliases")
    answers = _accepted([text(row, "answer"), *aliases], "answer")
    named = label(row, "id") or name
    # Ids begin with the number of look-ups: 2hop__482757_12019.
    hops = named.partition("hop")[0]
    difficulty = f"{hops} hops" if hops.isdigit() else None
    context = tuple(passage for passage in passages if not is_blank(passage.text))
    return Question(
        question(row, "question"), answers, tuple(dict.fromkeys(gold)), named, difficulty, context
    )


def _nq_open(row: Row, name: str) -> Question:
    return Question(question(row, "question"), _accepted(row.get("answer"), "answer"), (), name)


def _trivia_qa(row: Row, name: str) -> Question:
    answer = json_object(row.get("answer"), "answer")
    aliases = [text(answer, "value"), *_list(answer.get("aliases") or [], "answer.aliases")]
    named = label(row, "question_id") or name
    return Question(question(row, "question"), _accepted(aliases, "answer.aliases"), (), named)


def _popqa(row: Row, name: str) -> Question:
    answers = _accepted(parsed(row, "possible_answers"), "possible_answers")
    return Question(question(row, "question"), answers, (), label(row, "id") or name)


def _bamboogle(row: Row, name: str) -> Question:
    return Question(question(row, "Question"), _accepted(text(row, "Answer"), "Answer"), (), name)


QUESTIONS: Kind[Question] = Kind(
    name="search",
    schemas={
        # The first that fits is taken: from the most particular to `questions`, which fits many
        # rows.
        "hotpot_qa": Schema("question, answer, supporting_facts, context", _hotpot_qa),
        "musique": Schema("question, answer, paragraphs", _musique),
        "golden_answers": Schema("question, golden_answers", _golden_answers),
        "popqa": Schema("question, possible_answers", _popqa),
        "trivia_qa": Schema(
            "question, answer.value",
            _trivia_qa,
            lambda row: "question" in row and isinstance(row.get("answer"), Mapping),
        ),
        "nq_open": Schema(
            "question, answer (list)",
            _nq_open,
            # Exactly these fields: with more of them it is a row of a user's own.
            lambda row: row.keys() == {"question", "answer"} and isinstance(row["answer"], list),
        ),
        "bamboogle": Schema("Question, Answer", _bamboogle),
        "questions": Schema(
            "question, answer or accepted; gold",
            _own,
            lambda row: "question" in row and not row.keys().isdisjoint(_ANSWERS),
            about=FIELDS,
        ),
    },
    own="questions",
    text=lambda found: found.text,
    key=lambda found: normal_text(found.text),
    answer=lambda found: tuple(map(normal, found.answers)),
)
load_questions = partial(load_source, QUESTIONS)
"""Loads questions, with a report on all rows; see `pettingllms.data.dataset.load_source`."""
