"""Schemas of programming data sets, and `load_tasks` for named sets, hub ids, files and folders.

| schema | fields | tests |
|---|---|---|
| `tasks` | see below | standard input, a function or assertions |
| `apps` | question, input_output; solutions, starter_code, difficulty | either |
| `code_contests` | description, public_tests, private_tests, generated_tests; solutions | standard input |
| `livecodebench` | question_content, public_test_cases, private_test_cases, metadata | either |
| `mbpp` | text or prompt, code, test_list; challenge_test_list, test (MBPP+) | assertions |
| `humaneval` | prompt, canonical_solution, test, entry_point | assertions |

Public tests come before private and generated ones, and all are kept. The CPU time that a set's own
evaluation allows each test is in its catalog record and becomes part of each task. Limits of single
problems (CodeContests) are ignored: they were set for other machines and mostly for C++.

`reference` is the first published solution that is Python 3, and is empty where there is none (all
of LiveCodeBench, part of APPS): such a task can judge a coder, but not a tester. Whether a reference
passes the tests is unknown until it runs. Publishers do not mark tasks with several correct outputs;
they are judged by the one output that is given. Assertions are judged by Python
(`pettingllms.data.asserts`).

`FIELDS` are those of a row of a file of one's own, `tasks`.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import keyword
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pettingllms.data import asserts
from pettingllms.data.asserts import Test, is_python
from pettingllms.data.catalog import CATALOG
from pettingllms.data.coding import MUTANTS, CodingTask
from pettingllms.data.dataset import Kind, Schema, load_source, normal_text
from pettingllms.data.rows import (
    Row,
    RowError,
    UnsupportedRow,
    checked_text,
    json_object,
    label,
    optional_text,
    parsed,
    question,
    shown,
    text,
)
from pettingllms.data.splits import Split
from pettingllms.errors import did_you_mean
from pettingllms.types import LIMITS, MAX_INPUT_BYTES

FIELDS = {
    "question": "the problem or question",
    "tests": 'hidden tests: a list of `{"input": text, "output": text}` or, for tuples, sets and '
    'tolerances, of assertions such as `"assert f((1, 2)) == 3"`, which need `function`',
    "reference": "a correct program; without it the task cannot judge a tester",
    "function": "the function to call: inputs are then JSON lists of arguments, outputs JSON values",
    "mutants": "wrong programs that a tester should catch; made from `reference` if absent",
    "setup": "Python that runs between a program and its assertions",
    "example": "text that only the coder is shown after the question",
    "limits": 'limits of every test, such as `{"cpu_s": 6}`',
    "id": "name in logs (default: the row number)",
    "difficulty": "evaluations report success by difficulty",
    "split": "`train`, `val` or `test`",
}
PYTHON_3 = 3
"""In CodeContests' column of languages; 1 is Python 2, which does not run here."""


class Pair(NamedTuple):
    """Input and expected output of a program, as the data set writes them."""

    given: Any
    expected: Any


def task_of(row: Row, name: str) -> CodingTask:
    """Makes the task of a row in the schema above; `name` is the default id.

    Raises:
        RowError: the row does not fit.
    """
    asked = question(row, "question")
    function = optional_text(row, "function") or None
    task = CodingTask(
        id=label(row, "id") or name,
        question=asked,
        tests=_own_tests(row, function),
        reference=optional_text(row, "reference"),
        mutants=tuple(_texts(row, "mutants")),
        function=function,
        difficulty=label(row, "difficulty"),
        limits=_limits(row),
        setup=optional_text(row, "setup"),
        example=optional_text(row, "example"),
    )
    check_calls(task)
    if task.setup.strip():
        asserts.parse(task.setup, "setup")
        if not any(test.asserts for test in task.tests):
            raise RowError("setup", "runs before assertions alone, and the tests have none")
    if not task.reference.strip() and any(test.asserts and not test.input for test in task.tests):
        raise RowError("reference", "is absent, and the inputs of its assertions depend on it")
    return task


def _own_tests(row: Row, function: str | None) -> tuple[Test, ...]:
    tests = parsed(row, "tests")
    if not isinstance(tests, list) or not tests:
        raise RowError("tests", f"must be a list of at least one test, got {shown(tests)}")
    if all(isinstance(test, str) for test in tests):
        if function is None:
            raise RowError("function", "must name the function that the assertions call")
        return tuple(asserts.of_list(tests, function, "tests"))
    pairs = []
    for index, test in enumerate(tests):
        if not isinstance(test, dict):
            raise RowError(f"tests[{index}]", f"must be an object, got {shown(test)}")
        written = checked_text(test.get("input"), f"tests[{index}].input")
        output = checked_text(test.get("output"), f"tests[{index}].output")
        pairs.append(_fitting(Test(written, output)))
    return tuple(pairs)


def _limits(row: Row) -> tuple[tuple[str, float], ...]:
    values = parsed(row, "limits")
    if not values:
        return ()
    if not isinstance(values, dict):
        raise RowError("limits", f"must be an object, got {shown(values)}")
    limits = {name: value for name, value in values.items() if value is not None}
    for name, value in limits.items():
        if name not in LIMITS:
            raise RowError("limits", f"has an unknown limit {name!r}; {did_you_mean(name, LIMITS)}")
        least, most = LIMITS[name]
        whole = not name.endswith("_s")
        fits = isinstance(value, int | float) and value is not True and least <= value <= most
        if not fits or (whole and value != int(value)):
            kind = "a whole number" if whole else "a number"
            raise RowError(
                "limits", f"{name} must be {kind} from {least} to {most}, got {shown(value)}"
            )
        limits[name] = int(value) if whole else value
    return tuple(sorted(limits.items()))


def check_calls(task: CodingTask) -> None:
    """Checks that tests of a function are assertions, or JSON: a list of arguments, and a value.

    Raises:
        RowError: they are not, or the name is not an identifier.
    """
    if task.function is None:
        return
    _check_name(task.function, "function")
    if any(test.asserts for test in task.tests):
        return
    for index, test in enumerate(task.tests):
        given, expected = f"tests[{index}].input", f"tests[{index}].output"
        if not isinstance(_json(test.input, given), list):
            raise RowError(given, f"must be a JSON list of arguments, got {shown(test.input)}")
        # No return value counts as equal to NaN or to infinity, which `int` refuses.
        _json(test.output, expected, parse_constant=int)


def _check_name(function: str | None, field: str) -> None:
    if function is not None and (not function.isidentifier() or keyword.iskeyword(function)):
        raise RowError(field, f"must be the name of a function, got {shown(function)}")


def apps(row: Row, name: str) -> CodingTask:
    """Reads a row of APPS.

    `input_output` holds texts, or lists of lines, for standard input; with `fn_name`, arguments
    and results. Results are often wrapped in a list: they are taken out where all results of a
    task are lists of one member, which the data set's own judge accepts, too.
    """
    asked = question(row, "question")
    packed = row.get("input_output")
    if packed in (None, "", "{}"):
        raise UnsupportedRow("input_output", "is empty: there are no tests")
    tests = json_object(packed, "input_output")
    pairs = _pairs(tests.get("inputs"), tests.get("outputs"), "input_output")
    function = tests.get("fn_name")
    if function is not None and not isinstance(function, str):
        raise RowError("input_output.fn_name", f"must be a string, got {shown(function)}")
    if function and all(isinstance(p.expected, list) and len(p.expected) == 1 for p in pairs):
        pairs = [Pair(p.given, p.expected[0]) for p in pairs]
    return _task(
        label(row, "problem_id", "id") or name,
        _with_starter(asked, optional_text(row, "starter_code")),
        [_test(pair, function, f"input_output[{n}]") for n, pair in enumerate(pairs)],
        # APPS has solutions in Python 2 as well, which do not parse here.
        next(filter(is_python, _texts(row, "solutions")), ""),
        function=function or None,
        difficulty=label(row, "difficulty"),
        limits=CATALOG["apps"].limits,
    )


def code_contests(row: Row, name: str) -> CodingTask:
    """Reads a row of CodeContests; its wrong Python 3 solutions are the task's known-wrong programs."""
    asked = question(row, "description")
    for field in ("input_file", "output_file"):
        if optional_text(row, field):
            raise UnsupportedRow(field, "is used instead of standard input and output")
    pairs = [
        pair
        for field in ("public_tests", "private_tests", "generated_tests")
        for pair in _columns(row.get(field), field)
    ]
    right, wrong = (
        _python_3(row.get(field), field) for field in ("solutions", "incorrect_solutions")
    )
    return _task(
        label(row, "name") or name,
        asked,
        [_test(pair, None, f"tests[{n}]") for n, pair in enumerate(pairs)],
        next(filter(is_python, right), ""),
        # No more of them, because each runs on the tests of every reply of a tester.
        mutants=tuple(dict.fromkeys(filter(is_python, wrong)))[:MUTANTS],
        difficulty=label(row, "difficulty"),
    )


def livecodebench(row: Row, name: str) -> CodingTask:
    """Reads a row of LiveCodeBench: public and private tests, of standard input or of a function."""
    asked = question(row, "question_content")
    tests = parsed(row, "public_test_cases")
    if not isinstance(tests, list):
        raise RowError("public_test_cases", f"must hold a list of tests, got {shown(tests)}")
    field = "private_test_cases"
    tests = [*tests, *(unpacked(text(row, field), field) if row.get(field) else ())]
    # As text, because a list would not do in a set.
    kinds = {str(test.get("testtype")) if isinstance(test, dict) else None for test in tests}
    if kinds == {"functional"}:
        function = json_object(row.get("metadata"), "metadata").get("func_name")
        if not isinstance(function, str):
            raise RowError("metadata.func_name", f"must be a string, got {shown(function)}")
    elif kinds <= {"stdin"}:
        # A row without any test comes here, too; `_task` refuses it.
        function = None
    else:
        raise RowError("testtype", "must be 'stdin' or 'functional', and the same for all tests")
    pairs = [
        Pair(_arguments(t.get("input")) if function else t.get("input"), t.get("output"))
        for t in tests
    ]
    made = [
        _test(pair, function, f"tests[{n}]", json_texts=True)._replace(contest=True)
        for n, pair in enumerate(pairs)
    ]
    return _task(
        label(row, "question_id") or name,
        _with_starter(asked, optional_text(row, "starter_code")),
        made,
        "",
        function=function,
        difficulty=label(row, "difficulty"),
        limits=CATALOG["livecodebench"].limits,
    )


def mbpp(row: Row, name: str) -> CodingTask:
    """Reads a row of MBPP, full or sanitized, or of MBPP+, whose `test` has many more inputs.

    The signature of its code is part of the question, and the coder is shown the first assertion.
    """
    asked = question(row, "text", "prompt")
    # MBPP was published with line ends of Windows.
    code = text(row, "code").replace("\r\n", "\n")
    texts = [*_texts(row, "test_list"), *_texts(row, "challenge_test_list")]
    if not texts:
        raise UnsupportedRow("test_list", "has no assert")
    function = asserts.tested_function(code, texts, "test_list")
    setup = "\n".join([*_texts(row, "test_imports"), optional_text(row, "test_setup_code")])
    setup = setup.replace("\r\n", "\n").strip()
    # Parsed only to refuse the row here, before any program runs with it.
    asserts.parse(setup, "test_setup_code")
    asked = f"{asked}\n\nSignature: `{asserts.signature(code, function)}`"
    tests = asserts.of_list(texts, function, "test_list")
    # A call with objects of the program's own classes cannot be guessed.
    if asserts.needs(f"{setup}\n{texts[0]}", code):
        asked += f"\n\nIt is called like this:\n```python\n{setup}\n{tests[0].input}\n```"
    if optional_text(row, "test"):  # of MBPP+
        tests += asserts.of_list([text(row, "test")], function, "test")
    return _task(
        label(row, "task_id") or name,
        asked,
        tests,
        code,
        function=function,
        setup=setup,
        limits=CATALOG["mbpp"].limits,
        # As EvalPlus shows it: an assertion says what the sentence leaves open.
        example=f"It has to pass tests such as `{texts[0].strip()}`.",
    )


def _mbpp_split(task: CodingTask) -> Split:
    """Returns the split that MBPP's authors gave to a task: 11 to 510 test, 511 to 600 val."""
    number = int(task.id) if task.id.isdecimal() else 0
    # The first ten are the examples in the authors' prompts, on which nobody is tested.
    return "test" if 10 < number <= 510 else "val" if 510 < number <= 600 else "train"


def humaneval(row: Row, name: str) -> CodingTask:
    """Reads a row of HumanEval: the question is a signature with a docstring."""
    prompt, function = question(row, "prompt"), text(row, "entry_point")
    _check_name(function, "entry_point")
    solution = optional_text(row, "canonical_solution")
    tests = asserts.of_check(text(row, "test"), function, "test")
    if not (solution.strip() or all(test.input for test in tests)):
        raise UnsupportedRow("canonical_solution", "is absent, and the tests' inputs depend on it")
    return _task(
        label(row, "task_id") or name,
        prompt,
        tests,
        prompt + solution if solution.strip() else "",
        function=function,
        limits=CATALOG["humaneval"].limits,
        # A prompt may end in a bare signature, which is no Python without a body.
        setup=asserts.helpers(prompt + (solution or "\n    pass"), function),
    )


def _task(id: str, question: str, tests: list[Test], reference: str, **more: Any) -> CodingTask:
    if not tests:
        raise UnsupportedRow("tests", "are none")
    task = CodingTask(id, question, tuple(tests), reference, **more)
    _check_name(task.function, "function")
    return task


def _test(pair: Pair, function: str | None, field: str, *, json_texts: bool = False) -> Test:
    """Makes a test; `json_texts`: arguments and results are JSON text already."""
    given, expected = f"{field}.input", f"{field}.output"
    if function is None:
        return _fitting(Test(_lines(pair.given, given), _lines(pair.expected, expected)))
    if json_texts:
        return _fitting(Test(_json_text(pair.given, given), _json_text(pair.expected, expected)))
    if not isinstance(pair.given, list):
        raise RowError(given, f"must be a list of arguments, got {shown(pair.given)}")
    return _fitting(Test(json.dumps(pair.given), json.dumps(pair.expected)))


def _fitting(test: Test) -> Test:
    # The sandbox would refuse such an input each time that the test runs.
    if len(test.input.encode(errors="surrogatepass")) > MAX_INPUT_BYTES:
        raise UnsupportedRow("tests", f"have an input of more than {MAX_INPUT_BYTES >> 20} MiB")
    return test


def _lines(value: object, field: str) -> str:
    """Formats standard input or output: a text, a number, or a list of lines."""
    if isinstance(value, list):
        return "\n".join(_lines(line, field) for line in value)
    if isinstance(value, str):
        return checked_text(value, field)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise RowError(field, f"must be a text or a list of lines, got {shown(value)}")


def _arguments(given: object) -> object:
    """Joins arguments to a JSON list; LiveCodeBench writes one per line."""
    if not isinstance(given, str):
        return given
    # `chr(10)`, because before Python 3.12 an f-string may have no backslash in its braces.
    return f"[{', '.join(line for line in given.split(chr(10)) if line.strip())}]"


def _json_text(value: object, field: str) -> str:
    written = checked_text(value, field)
    _json(written, field)
    return written


def _json(written: str, field: str, **options: Any) -> Any:
    try:
        return json.loads(written, **options)
    except (ValueError, RecursionError) as error:
        raise RowError(field, f"is not JSON: {str(error)[:80]}") from error


def _pairs(given: object, expected: object, field: str) -> list[Pair]:
    if not isinstance(given, list) or not isinstance(expected, list):
        raise RowError(field, "must have a list of inputs and a list of outputs")
    if len(given) != len(expected):
        raise RowError(field, f"has {len(given)} inputs and {len(expected)} outputs")
    return [Pair(*pair) for pair in zip(given, expected, strict=True)]


def _columns(value: object, field: str, names: tuple[str, str] = ("input", "output")) -> list[Pair]:
    """Reads a struct of lists, as parquet has it, a list of structs, or None."""
    first, second = names
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(member, Mapping) for member in value):
        return [Pair(member.get(first), member.get(second)) for member in value]
    if not isinstance(value, Mapping):
        raise RowError(field, f"must be lists of {first}s and {second}s, got {shown(value)}")
    return _pairs(value.get(first), value.get(second), field)


def _python_3(value: object, field: str) -> Sequence[str]:
    return [
        text({field: program}, field)
        for language, program in _columns(value, field, ("language", "solution"))
        if language == PYTHON_3
    ]


def _texts(row: Row, field: str) -> list[str]:
    value = parsed(row, field)
    if value is None and field != "test_list":
        return []
    if not isinstance(value, list) or not all(isinstance(member, str) for member in value):
        raise RowError(field, f"must be a list of strings, got {shown(value)}")
    return value


def _with_starter(asked: str, starter: str) -> str:
    return f"{asked}\n\nStarter code:\n```python\n{starter}\n```" if starter.strip() else asked


def as_row(task: CodingTask, split: Split | None) -> dict[str, Any]:
    """Formats the task as a row that `task_of` reads back unchanged."""
    row: dict[str, Any] = {
        "id": task.id,
        "question": task.question,
        "tests": [
            test.output if test.asserts else {"input": test.input, "output": test.output}
            for test in task.tests
        ],
        "reference": task.reference,
    }
    optional = {
        "function": task.function,
        "mutants": list(task.mutants),
        "difficulty": task.difficulty,
        "split": split,
        "limits": dict(task.limits),
        "setup": task.setup,
        "example": task.example,
    }
    return row | {name: value for name, value in optional.items() if value}


TASKS: Kind[CodingTask] = Kind(
    name="coding",
    schemas={
        "tasks": Schema("question, tests", task_of, about=FIELDS),
        "apps": Schema("question, input_output", apps),
        "code_contests": Schema("description, public_tests", code_contests),
        "livecodebench": Schema("question_content, public_test_cases", livecodebench),
        "mbpp": Schema("code, test_list", mbpp, split_of=_mbpp_split),
        "humaneval": Schema("prompt, test, entry_point", humaneval),
    },
    own="tasks",
    text=lambda task: task.question,
    key=lambda task: normal_text(task.question),
    answer=lambda task: (task.tests, task.function),
)
load_tasks = partial(load_source, TASKS)
"""Loads tasks, with a report on all rows; see `pettingllms.data.dataset.load_source`."""


# ------------------------------------------------------------ tests as LiveCodeBench packs them
# Tests as LiveCodeBench packs them: JSON, or JSON in a pickled string in zlib in base64.
#
# Unpickling executes code, so nothing is unpickled: the only pickle that is accepted is one string, read
# opcode by opcode with `pickletools`, which builds no object. Sizes are bounded before anything is
# inflated or parsed. For any text the result is a list or a `RowError`.


MAX_PACKED = 128 << 20
"""Characters of base64; all tests of the largest problems are a few tens of millions."""
MAX_INFLATED = 512 << 20
"""Bytes after zlib."""
# What a pickled string has around it: none of it builds an object or calls anything.
_AROUND = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"}
_STRINGS = {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}


def unpacked(packed: str, field: str) -> list[Any]:
    """Unpacks the list of tests in `packed`.

    Raises:
        RowError: it holds none, is too large, or the pickle is more than a string.
    """
    # No base64 begins with a bracket.
    if packed.lstrip()[:1] in ("[", ""):
        written = packed
    else:
        written = _pickled_text(_inflated(packed, field), field)
    try:
        tests = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise RowError(field, f"does not hold JSON: {str(error)[:80]}") from error
    if not isinstance(tests, list):
        raise RowError(field, f"must hold a list of tests, not {type(tests).__name__}")
    return tests


def _inflated(packed: str, field: str) -> bytes:
    if len(packed) > MAX_PACKED:
        raise RowError(field, f"has {len(packed)} characters; at most {MAX_PACKED} are read")
    try:
        # One byte more than allowed tells a text that is too long from one that just fits.
        inflater = zlib.decompressobj()
        # Without `validate`, characters that are not base64 would be skipped.
        data = inflater.decompress(base64.b64decode(packed, validate=True), MAX_INFLATED + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise RowError(field, f"is neither JSON nor zlib in base64: {error}") from error
    if len(data) > MAX_INFLATED:
        raise RowError(field, f"inflates to more than {MAX_INFLATED} bytes")
    if not inflater.eof:
        raise RowError(field, "is neither JSON nor zlib in base64: it ends too early")
    return data


def _pickled_text(data: bytes, field: str) -> str:
    string: str | None = None
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
            # A second string is refused below: a pickle of one string has no other.
            if opcode.name in _STRINGS and string is None:
                string = str(argument)
            elif opcode.name == "STOP" and string is not None:
                return string
            elif opcode.name not in _AROUND:
                raise RowError(field, f"is a pickle of more than a string: {opcode.name}")
    except (ValueError, MemoryError, OverflowError) as error:
        raise RowError(field, f"is not a pickle: {str(error)[:80]}") from error
    raise RowError(field, "is a pickle without a string")
