r"""Mathematics problems with reference answers: published sets, files, and reasoning-gym.

| schema | fields | data sets |
|---|---|---|
| `problems` | `FIELDS` | files of your own |
| `gsm8k` | question, answer that ends `#### 72` | GSM8K |
| `aime24` | Problem, Answer; ID | AIME 2024 |
| `problem_answer` | problem, answer; unique_id or id, level or difficulty | AIME 2025, MATH-500, Polaris, DeepScaleR |
| `math` | problem, solution with a boxed answer; level | MATH, Minerva |
| `olympiadbench` | question, final_answer (list); id, subfield | OlympiadBench |
| `dapo_math` | prompt (a chat), reward_model.ground_truth | DAPO-Math |

An answer stays as the data set writes it (`033`, `\frac{1}{2}`, `1,234`), without surrounding spaces
and, in OlympiadBench, dollar signs: deciding which answers are equal is the grader's job. DAPO's
instruction around each question ("The last line of your response ...") is removed, since an
environment gives its own.

reasoning-gym's generators (arithmetic, algebra) work offline. The package is optional
(`pip install reasoning-gym`) and imported when a generator is made. Answers are compared by
`pettingllms.grading`, not by its own scorer. Splits are disjoint up to the order of words and
numbers: `3 + 4` and `4 + 3` are in one.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pettingllms.data.dataset import Kind, Schema, load_source, normal_text
from pettingllms.data.rows import (
    Row,
    RowError,
    UnsupportedRow,
    checked_text,
    is_blank,
    label,
    parsed,
    question,
    shown,
    text,
)
from pettingllms.data.splits import Split, split_of
from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.grading import boxed

FIELDS = {
    "question": "the problem or question",
    "answer": "the answer, as text or a number",
    "answers": "in place of `answer`: a list of answers that are all needed, such as the roots of an equation",
    "id": "name in logs (default: the row number)",
    "difficulty": "evaluations report success by difficulty",
    "split": "`train`, `val` or `test`",
}
_DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem."
)
_DAPO_AFTER = 'Remember to put your answer on its own line after "Answer:".'
_NUMBER = re.compile(r"([+-]?)0*(\d+)(?:\.(\d*?)0*)?", re.ASCII)
_BOXED_WORD = re.compile(r"\\boxed\s+([^\s$\\.]+)")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class MathProblem:
    """A question and its answer, as the data set writes them."""

    question: str
    answers: tuple[str, ...]
    """At least one. If there are several, the question asks for all (the roots of an equation)."""
    id: str
    difficulty: str | None = None
    """In the words of the data set: `Level 3`, `5/8`. None where it has none."""


def normal_answer(answer: str) -> str:
    """Normalizes an answer: `033`, `33.0` and `$33$` are `33`.

    Serves to find duplicates; grading does more.
    """
    bare = "".join(answer.casefold().split()).strip("$")
    if bare.startswith("\\boxed{") and bare.endswith("}"):
        bare = bare[len("\\boxed{") : -1]
    if _THOUSANDS.fullmatch(bare):
        bare = bare.replace(",", "")
    if number := _NUMBER.fullmatch(bare):
        sign, whole, decimals = number[1].replace("+", ""), number[2], number[3]
        return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"
    return bare


def _answer(value: object, field: str) -> str:
    """Returns an answer as text; JSON files and parquet columns may hold numbers."""
    # `True` is an int in Python, and no answer.
    if isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float) and not math.isfinite(value):
            raise UnsupportedRow(field, f"is {value}, which is no answer")
        return str(value)
    if value is None:
        raise RowError(field, "is absent")
    answer = checked_text(value, field).strip()
    if is_blank(answer):
        raise UnsupportedRow(field, "is blank")
    # A missing value becomes this text on its way through pandas, for example.
    if answer.casefold() == "nan":
        raise UnsupportedRow(field, f"is {answer}, which is no answer")
    return answer


def _own(row: Row, name: str) -> MathProblem:
    listed = parsed(row, "answers")
    if listed is not None or "answer" not in row:
        if not isinstance(listed, list) or not listed:
            raise RowError("answers", f"must be a list of at least one answer, got {shown(listed)}")
        answers = tuple(_answer(value, f"answers[{n}]") for n, value in enumerate(listed))
    else:
        if isinstance(row.get("answer"), list):
            raise RowError("answer", "is a list; name answers that are all needed 'answers'")
        answers = (_answer(row.get("answer"), "answer"),)
    asked = question(row, "question")
    return MathProblem(asked, answers, label(row, "id") or name, label(row, "difficulty"))


def _gsm8k(row: Row, name: str) -> MathProblem:
    _, marker, answer = text(row, "answer").rpartition("####")
    if not marker:
        raise RowError("answer", "has no '####' before the final answer")
    return MathProblem(question(row, "question"), (_answer(answer, "answer"),), name)


def _aime24(row: Row, name: str) -> MathProblem:
    answer = _answer(row.get("Answer"), "Answer")
    return MathProblem(question(row, "Problem"), (answer,), label(row, "ID") or name)


def _problem_answer(row: Row, name: str) -> MathProblem:
    level = label(row, "difficulty", "level")
    # MATH-500 writes 3 where MATH has `Level 3`.
    if isinstance(row.get("level"), int):
        level = f"Level {level}"
    return MathProblem(
        question(row, "problem"),
        (_answer(row.get("answer"), "answer"),),
        label(row, "unique_id", "id") or name,
        level,
    )


def _math(row: Row, name: str) -> MathProblem:
    solution = text(row, "solution")
    answer = boxed(solution)
    if answer is None:  # MATH writes `\boxed 5`, too
        bare = _BOXED_WORD.findall(solution)
        answer = bare[-1] if bare else None
    if answer is None:
        raise UnsupportedRow("solution", "has no boxed answer")
    return MathProblem(
        question(row, "problem"),
        (_answer(answer, "solution"),),
        label(row, "unique_id", "id", "idx") or name,
        label(row, "difficulty", "level"),
    )


def _olympiadbench(row: Row, name: str) -> MathProblem:
    asked = question(row, "question")
    final = row.get("final_answer")
    if final is None:
        raise UnsupportedRow("final_answer", "is null: a proof, which has no answer to compare")
    if not isinstance(final, list) or not final:
        raise RowError("final_answer", f"must be a list of answers, got {shown(final)}")
    if row.get("error"):
        raise UnsupportedRow("error", "allows a tolerance, which the grader does not support")
    if "<image_" in asked:
        raise UnsupportedRow("question", "shows a picture")
    texts = (_answer(value, f"final_answer[{n}]") for n, value in enumerate(final))
    # `$x$` without its dollar signs; `$x$ and $y$` stays.
    answers = tuple(
        answer[1:-1].strip() if re.fullmatch(r"\$[^$]+\$", answer) else answer for answer in texts
    )
    return MathProblem(asked, answers, label(row, "id") or name)


def _dapo_math(row: Row, name: str) -> MathProblem:
    chat, model, extra = row.get("prompt"), row.get("reward_model"), row.get("extra_info")
    if not isinstance(chat, list) or len(chat) != 1 or not isinstance(chat[0], Mapping):
        raise RowError("prompt", f"must be a list of one message, got {shown(chat)}")
    if not isinstance(model, Mapping):
        raise RowError("reward_model", f"must be an object, got {shown(model)}")
    asked = checked_text(chat[0].get("content"), "prompt[0].content").strip()
    asked = asked.removeprefix(_DAPO_BEFORE).removesuffix(_DAPO_AFTER).strip()
    if is_blank(asked):
        raise UnsupportedRow("prompt[0].content", "is blank")
    answer = _answer(model.get("ground_truth"), "reward_model.ground_truth")
    index = label(extra, "index") if isinstance(extra, Mapping) else None
    return MathProblem(asked, (answer,), index or name)


PROBLEMS: Kind[MathProblem] = Kind(
    name="math",
    schemas={
        # The first that fits is taken: from the most particular to `problems`, which fits many
        # rows.
        "dapo_math": Schema("prompt, reward_model", _dapo_math),
        "olympiadbench": Schema("question, final_answer", _olympiadbench),
        "gsm8k": Schema(
            "question, answer with ####",
            _gsm8k,
            lambda row: {"question", "answer"} <= row.keys() and "####" in str(row["answer"]),
        ),
        "aime24": Schema("Problem, Answer", _aime24),
        "problem_answer": Schema("problem, answer", _problem_answer),
        "math": Schema("problem, solution", _math),
        "problems": Schema(
            "question, answer or answers",
            _own,
            lambda row: "question" in row and ("answer" in row or "answers" in row),
            about=FIELDS,
        ),
    },
    own="problems",
    text=lambda problem: problem.question,
    key=lambda problem: normal_text(problem.question),
    answer=lambda problem: tuple(map(normal_answer, problem.answers)),
)
load_problems = partial(load_source, PROBLEMS)
"""Loads problems, with a report on all rows; see `pettingllms.data.dataset.load_source`."""


PREFIX = "reasoning_gym:"
# The smallest split has a tenth of all problems: missing it 1000 times has odds of 10**-46.
_TRIES = 1000


class ReasoningGym:
    """One of reasoning-gym's generators, such as `chain_sum`.

    Raises:
        ConfigError: reasoning-gym is not installed, or has no such generator.
    """

    def __init__(self, name: str) -> None:
        try:
            from reasoning_gym.factory import DATASETS, create_dataset
        except ImportError as error:
            raise ConfigError(
                f"dataset {PREFIX}{name} needs reasoning-gym ({error}); pip install reasoning-gym"
            ) from error
        if name not in DATASETS:
            raise ConfigError(
                f"reasoning-gym has no task {name!r}; {did_you_mean(name, list(DATASETS))}"
            )
        self.name = name
        # Problems are made one by one, from the seed and their number: the size costs nothing.
        self.tasks: Any = create_dataset(name, seed=0, size=1 << 31)

    def entry(self, seed: int, split: Split) -> dict[str, Any]:
        """Returns the raw problem of `seed`, of `split` only; stable within a reasoning-gym version.

        Raises:
            ConfigError: the generator has almost no problems of that split.
        """
        for attempt in range(_TRIES):
            digest = hashlib.blake2b(f"{split}/{seed}/{attempt}".encode(), digest_size=8).digest()
            # Thirty bits: every number is within the size that the generator was made with.
            problem: dict[str, Any] = self.tasks[int.from_bytes(digest, "big") >> 34]
            if question_split(problem["question"]) == split:
                return problem
        raise ConfigError(f"{PREFIX}{self.name} has hardly any problem for the split {split!r}")

    def problem(self, seed: int, split: Split) -> MathProblem:
        """Returns the problem of `seed`; see `entry`."""
        entry = self.entry(seed, split)
        return MathProblem(
            question=entry["question"],
            answers=(str(entry["answer"]),),
            id=f"{self.name}-{split}-{seed}",
        )


def question_split(question: str) -> Split:
    """Returns the split of a problem, by its words, numbers and signs in any order."""
    words = sorted(re.findall(r"\w+|[^\w\s]", question.casefold()))
    return split_of(" ".join(words), domain="reasoning_gym")
