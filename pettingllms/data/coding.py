"""Programming tasks: generated from the grammar, or read from a JSONL file of the user's own.

A row of a JSONL file:

| field | type | meaning |
|---|---|---|
| `question` | str | the problem, as shown to both roles |
| `tests` | list of `{"input": str, "output": str}` | hidden tests; at least one |
| `reference` | str | a correct program: it decides whether a generated test is valid |
| `function` | str, optional | name of the function to call; then `input` is a JSON list of arguments and `output` the JSON return value. Without it, programs read standard input and print |
| `mutants` | list of str, optional | known-wrong programs; made from the reference where absent |
| `split` | `train`, `val` or `test`, optional | by a checksum of the question (80/10/10) where absent |
| `id` | str, optional | shown in logs; the line number where absent |
"""

from __future__ import annotations

import json
import random
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pettingllms.data import grammar
from pettingllms.data.grammar import Composition, Split
from pettingllms.errors import DatasetError
from pettingllms.sandbox import RunResult
from pettingllms.sandbox.compare import same_output, same_value

HIDDEN_TESTS = 6
MUTANTS = 6
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Test:
    """One test case: standard input or a JSON list of arguments, and what must come out."""

    input: str
    output: str


@dataclass(frozen=True, slots=True)
class CodingTask:
    """A programming problem with hidden tests, a reference solution and known-wrong programs."""

    id: str
    question: str
    tests: tuple[Test, ...]
    reference: str
    mutants: tuple[str, ...] = ()
    function: str | None = None


def generate(seed: int, split: Split) -> CodingTask:
    """The generated task of `seed`: the same for ever, and of a composition of `split` only."""
    rng = random.Random(f"coding {split} {seed}")
    weights = {"numbers": 5, "words": 2, "arithmetic": 3}
    family = rng.choices(list(weights), list(weights.values()))[0]
    members = [c for c in grammar.COMPOSITIONS[split] if c.family.name == family]
    composition = rng.choice(members)
    return from_composition(composition, rng, function=rng.random() < 1 / 3, id=f"{split}-{seed}")


def from_composition(
    composition: Composition, rng: random.Random, *, function: bool, id: str
) -> CodingTask:
    """A task of one composition: its phrasing, tests and mutants are drawn from `rng`."""
    inputs = [
        grammar.random_values(rng, composition.family, 3 + n % 4) for n in range(HIDDEN_TESTS)
    ]
    expected = [composition.run(values) for values in inputs]
    # A mutant changes one part and is known to be wrong: it fails at least one hidden test.
    wrong = [
        other
        for other in composition.neighbours()
        if any(other.run(v) != e for v, e in zip(inputs, expected, strict=True))
    ]
    mutants = rng.sample(wrong, min(MUTANTS, len(wrong)))
    return CodingTask(
        id=id,
        question=composition.question(rng, function=function),
        tests=tuple(
            Test(
                input_text(composition, values, function=function),
                output_text(e, function=function),
            )
            for values, e in zip(inputs, expected, strict=True)
        ),
        reference=composition.program(function=function),
        mutants=tuple(mutant.program(function=function) for mutant in mutants),
        function="solve" if function else None,
    )


def input_text(composition: Composition, values: list[Any], *, function: bool) -> str:
    """`values` as standard input, or as a JSON list of arguments."""
    if function:
        return json.dumps(values if composition.family.parameters == 2 else [values])
    return " ".join(map(str, values))


def output_text(value: Any, *, function: bool) -> str:
    """What the reference prints, or its return value as JSON."""
    if function:
        return json.dumps(value)
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def passes(test: Test, result: RunResult, function: str | None) -> bool:
    """Whether a run ended well and gave the expected output or return value."""
    if result.status != "ok":
        return False
    if function is None:
        return same_output(test.output, result.stdout)
    return same_value(test.output, result.value)


def load_jsonl(path: str | Path) -> dict[Split, tuple[CodingTask, ...]]:
    """Read a task file, by split.

    Raises:
        DatasetError: the file cannot be read, or a row does not fit; names line and field.
    """
    file = Path(path)
    try:
        # Not splitlines: a JSON string may hold U+2028 and other separators as they are.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read the task file {file}: {error}") from error
    tasks: dict[Split, list[CodingTask]] = {split: [] for split in grammar.SPLITS}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            split, task = _row(line, f"{file}:{number}", number)
            tasks[split].append(task)
    if not any(tasks.values()):
        raise DatasetError(f"{file} has no rows; write one JSON object a line")
    return {split: tuple(members) for split, members in tasks.items()}


def _row(line: str, where: str, number: int) -> tuple[Split, CodingTask]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{where}: not a JSON object: {error}") from error
    if not isinstance(row, dict):
        raise DatasetError(f"{where}: expected a JSON object, got {type(row).__name__}")
    question = _text(row, "question", where)
    tests = row.get("tests")
    if not isinstance(tests, list) or not tests:
        raise DatasetError(
            f"{where}: field 'tests' must be a list of at least one test, got {tests!r}"
        )
    for index, test in enumerate(tests):
        if not isinstance(test, dict):
            raise DatasetError(f"{where}: field 'tests[{index}]' must be an object, got {test!r}")
    mutants = row.get("mutants", [])
    if not isinstance(mutants, list) or not all(isinstance(mutant, str) for mutant in mutants):
        raise DatasetError(f"{where}: field 'mutants' must be a list of strings, got {mutants!r}")
    split = row.get("split", _split_of(question))
    if split not in get_args(Split):
        raise DatasetError(f"{where}: field 'split' must be train, val or test, got {split!r}")
    task = CodingTask(
        id=str(row.get("id", number)),
        question=question,
        tests=tuple(
            Test(
                _text(test, "input", where, f"tests[{n}].input"),
                _text(test, "output", where, f"tests[{n}].output"),
            )
            for n, test in enumerate(tests)
        ),
        reference=_text(row, "reference", where),
        mutants=tuple(mutants),
        function=_text(row, "function", where) if row.get("function") is not None else None,
    )
    _check_calls(task, where)
    return split, task


def _text(row: dict[str, Any], field: str, where: str, shown: str | None = None) -> str:
    value = row.get(field)
    if not isinstance(value, str):
        raise DatasetError(f"{where}: field '{shown or field}' must be a string, got {value!r}")
    if _LONE_SURROGATE.search(value):
        raise DatasetError(
            f"{where}: field '{shown or field}' has half of a surrogate pair, which is no character"
        )
    return value


def _check_calls(task: CodingTask, where: str) -> None:
    """Tests of a function need JSON: a list of arguments, and a value."""
    if task.function is None:
        return
    if not task.function.isidentifier():
        raise DatasetError(
            f"{where}: field 'function' must be the name of a function, got {task.function!r}"
        )
    for index, test in enumerate(task.tests):
        for field, text in (("input", test.input), ("output", test.output)):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise DatasetError(
                    f"{where}: field 'tests[{index}].{field}' is not JSON: {error}"
                ) from error
            if field == "input" and not isinstance(value, list):
                raise DatasetError(
                    f"{where}: field 'tests[{index}].input' must be a JSON list of arguments, got {text!r}"
                )


def _split_of(question: str) -> Split:
    bucket = zlib.crc32(" ".join(question.lower().split()).encode()) % 10
    return "test" if bucket == 0 else "val" if bucket == 1 else "train"
