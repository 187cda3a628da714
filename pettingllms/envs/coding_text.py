"""Text that coder and tester read and write: the prompts, and the parsing of their replies.

No text that a model can write raises here or takes longer than its length.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pettingllms.data.asserts import Test, is_python, parse
from pettingllms.data.coding import CodingTask
from pettingllms.data.rows import RowError
from pettingllms.envs.coding_judge import has_assertions, passes
from pettingllms.envs.parsing import ParseError, shortened
from pettingllms.sandbox import RunResult

MAX_TESTS = 8
"""Tests of a reply that are read; later ones are left out."""
MAX_TESTS_BYTES = 64 << 10
"""All inputs and outputs of these tests together."""
MAX_BLOCK_CHARS = 64_000
"""Of a program."""
SHOWN_CHARS = 400
NOT_RUN = "nothing: the input is not valid, or too large"
"""What agents read instead of the output for an input that the reference cannot handle."""
PYTHON_TAGS = ("python", "py", "python3", "py3")
_DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_PRINTING = {"print", "exec", "eval", "open", "__import__"}

# Possessive: an ordinary `*` would try every way to share a long line, in quadratic time.
_OPENING = re.compile(
    r"((?:[ \t>]|(?:[-+*]|\d{1,9}+[.)])[ \t]){0,99}+)(`{3,}+|~{3,}+)([\s{.]*+([\w+-]*+).*+)"
)
_CLOSING = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)\s*+")


class Block(NamedTuple):
    """A fenced block: the word after the fence, lower case, and the lines between the fences."""

    tag: str
    body: str


def blocks(text: str) -> list[Block]:
    """All closed fenced blocks of `text`, in order; linear in its length."""
    return _fenced(text)[0]


def prose(text: str) -> str:
    """Returns what `text` says outside of its fenced blocks."""
    return "\n".join(_fenced(text)[1])


def _fenced(text: str) -> tuple[list[Block], list[str]]:
    """Splits a text as CommonMark does into fenced blocks and the lines outside of them.

    Fences are of backticks or tildes, and the closing one is at least as long; blocks may be in
    lists and quotes. Unlike there, a block without an end is none, since the reply was cut, and any
    opening fence may be indented.
    """
    closed: list[Block] = []
    outside: list[str] = []
    lead, quotes, fence, tag, body = 0, re.compile(""), "", "", list[str]()
    # Not `splitlines`, which also breaks at form feeds and at other characters that a string in a
    # program may contain.
    for line in text.split("\n"):
        # The plain search first, since most lines have no fence.
        fenced = "```" in line or "~~~" in line
        if not fence:
            opening = _OPENING.fullmatch(line) if fenced else None
            if opening is None or ("`" in opening[2] and "`" in opening[3]):
                outside.append(line)
                continue
            fence, tag, body = opening[2], opening[4].lower(), []
            quotes = re.compile(rf"(?:[ \t]*+> ?){{{opening[1].count('>')}}}")
            # A list's content begins where its marker ends.
            lead = len(quotes.sub("", opening[1], 1).expandtabs(4))
            continue
        quoted = quotes.match(line)
        if quoted is None:  # the quote has ended before its block
            fence = ""
            outside.append(line)
            continue
        inner = line[quoted.end() :]
        if lead:
            content = inner.lstrip(" \t")
            inner = inner[: len(inner) - len(content)].expandtabs(4)[lead:] + content
        closing = _CLOSING.fullmatch(inner) if fenced else None
        if closing and closing[2].startswith(fence) and len(closing[1].expandtabs(4)) < 4:
            closed.append(Block(tag, "\n".join(body)))
            fence = ""
        else:
            body.append(inner)
    return closed, outside


def parse_program(text: str) -> str | ParseError:
    """Returns the program of a reply: its last block of Python that can print or define something.

    Untagged blocks count where none is tagged as Python. The others show outputs or calls. A tagged
    block with a syntax error counts, too: its author is shown the error.
    """
    closed = [inner for block in blocks(text) for inner in _unquoted(block)]
    tagged = [block.body for block in closed if block.tag in PYTHON_TAGS]
    bodies = tagged or [block.body for block in closed if not block.tag]
    if not bodies:
        return ParseError("no closed ```python block with a program")
    if len(bodies) > 1:
        programs = [body for body in bodies if _acts(body, invalid=bool(tagged))]
        bodies = programs or tagged
    if not bodies:
        return ParseError("several blocks without a tag, none of them a program; write ```python")
    program = bodies[-1]
    if len(program) > MAX_BLOCK_CHARS:
        return ParseError(f"the program is longer than {MAX_BLOCK_CHARS} characters")
    return program


def _unquoted(block: Block) -> list[Block]:
    """Returns the blocks inside of one that quotes a whole reply, else the block itself."""
    inner = blocks(block.body) if block.tag in ("", "markdown", "md") else []
    return inner if inner and (block.tag or not is_python(block.body)) else [block]


def _acts(body: str, invalid: bool) -> bool:
    """Returns whether Python code can print or define something; `invalid` where it is not Python."""
    if body.lstrip().startswith(">>>"):  # a session
        return False
    try:
        tree = parse(body[: MAX_BLOCK_CHARS + 1], "program")
    except RowError:
        return invalid
    imports = [isinstance(statement, ast.Import | ast.ImportFrom) for statement in tree.body]
    return (any(imports) and not all(imports)) or any(
        isinstance(node, _DEFINING)
        or (isinstance(node, ast.Call) and getattr(node.func, "id", "") in _PRINTING)
        for node in ast.walk(tree)
    )


def shown_to(role: str, task: CodingTask) -> CodingTask:
    """Returns the task with the question that a role is shown."""
    if role != "coder" or not task.example:
        return task
    return replace(task, question=f"{task.question}\n\n{task.example}", example="")


def parse_tests(text: str, function: str | None) -> tuple[Test, ...] | ParseError:
    """The first `MAX_TESTS` pairs of an `input` block and the `output` block after it.

    With `function`, an input must be a JSON list of arguments and an output a JSON value.
    """
    tests: list[Test] = []
    pending: str | None = None
    for tag, body in blocks(text):
        if tag == "input":
            pending = body
        elif tag == "output" and pending is not None:
            tests.append(Test(pending, body))
            pending = None
    if not tests:
        return ParseError("no ```input block followed by an ```output block")
    # Cut before it is measured, so that tests which are not read cannot make a reply too large.
    read = tests[:MAX_TESTS]
    # A model can write lone surrogates, which UTF-8 alone cannot encode.
    size = sum(
        len(text.encode("utf-8", "surrogatepass"))
        for test in read
        for text in (test.input, test.output)
    )
    if size > MAX_TESTS_BYTES:
        return ParseError(f"the tests have {size} bytes; at most {MAX_TESTS_BYTES} are allowed")
    if function is not None and not all(map(is_call, read)):
        return ParseError("a test of a function needs a JSON list of arguments and a JSON value")
    return tuple(read)


def is_call(test: Test) -> bool:
    """Returns whether a test of a function is JSON: a list of arguments, and a value."""
    # `json` recurses, so that brackets alone can exceed Python's limit.
    try:
        json.loads(test.output)
        return isinstance(json.loads(test.input), list)
    except (ValueError, RecursionError):
        return False


class Disagreement(NamedTuple):
    """A generated test that the program fails, or whose input no program is run on."""

    input: str
    expected: str
    actual: str


class Attempt(NamedTuple):
    """One finished turn: the program at its end, and where the tester's tests disagree with it.

    A turn whose replies could not be read is one too: the program is then that of the turn before.
    """

    program: str | None
    disagreements: tuple[Disagreement, ...]


def shown_result(result: RunResult, function: str | None) -> str:
    """Returns what a run gave, in a line: its output, or how it failed."""
    if result.status != "ok":
        return result.failure[:SHOWN_CHARS]
    return (result.stdout if function is None else result.value or "").strip()[:SHOWN_CHARS]


def disagreements_of(
    tests: Sequence[Test], results: Mapping[str, RunResult], function: str | None
) -> tuple[Disagreement, ...]:
    """The tests that a program fails; `results` are what it did with each input that it was run on."""
    failures = []
    for test in tests:
        result = results.get(test.input)
        if result is None:
            failures.append(Disagreement(test.input, test.output, NOT_RUN))
        elif not passes(test, result, function):
            failures.append(Disagreement(test.input, test.output, shown_result(result, function)))
    return tuple(failures)


def shown_attempt(turn: int, attempt: Attempt) -> str:
    """An earlier turn, for people and large models."""
    lines = [f"Turn {turn}:", attempt.program if attempt.program is not None else "(no program)"]
    lines += [
        f"input {d.input[:SHOWN_CHARS]} | tester expects {d.expected[:SHOWN_CHARS]} | program gives {d.actual}"
        for d in attempt.disagreements
    ]
    return "\n".join(lines)


def shown_episode(task: CodingTask, history: tuple[Attempt, ...], passed: float) -> str:
    """The whole episode, for people."""
    attempts = map(shown_attempt, range(len(history)), history)
    return "\n".join([task.question, *attempts, f"hidden tests passed: {passed:.0%}"])


def compact_prompt(role: str, question: str, history: tuple[Attempt, ...]) -> str:
    """Few tokens, for the embedded model: the role, the problem, what disagreed before."""
    lines = [role, question]
    for attempt in history:
        lines.append(f"tried\n{(attempt.program or 'nothing').rstrip()}")
        lines += [f"test {d.input} want {d.expected} got {d.actual}" for d in attempt.disagreements]
    return "\n".join(lines)


def small_prompt(role: str, question: str) -> str:
    """One instruction, for small pretrained models."""
    if role == "coder":
        return f"Write a Python program. {question}"
    return f"{question}\nWrite an example with Input: and Output:"


_CODER = """You are the coder of a team of two. Write a Python program that solves the problem below. {form}
Think first if you like, then end your reply with exactly one fenced block:
```python
<your program>
```"""
_ALONE = """You are a coder. Write a Python program that solves the problem below. {form}
You have several turns and are shown your earlier programs, but not whether they are right. You are finished when you \
give the same program twice in a row.
Think first if you like, then end your reply with exactly one fenced block:
```python
<your program>
```"""
_TESTER = """You are the tester of a team of two. Write one to {most} test cases for the problem below, to find out whether a \
program solves it. Work out each expected output with care: a wrong one is worse than none, and a case on which wrong \
programs fail is worth most. Examples of the problem and repetitions do not count. {form}
Think first if you like, then give each test case as two fenced blocks:
```input
{input}
```
```output
{output}
```"""


_EARLIER = (
    "Earlier turns, with the tests on which program and tester disagree (either may be wrong):"
)
_EARLIER_ALONE = "Earlier turns, each with your program as it was at its end:"


def full_prompt(
    role: str, task: CodingTask, history: tuple[Attempt, ...], *, team: bool = True
) -> str:
    """Rules, format, problem and history, for real language models; `team`: whether of a team."""
    calls = None if task.function is None else f"`{task.function}`"
    if role == "coder":
        form = (
            f"Define the function {calls}; it returns the answer."
            if calls
            else "It reads standard input and prints the answer."
        )
        rules = (_CODER if team else _ALONE).format(form=form)
    elif calls:
        form = (
            f"The input is a JSON list of the arguments of {calls}, "
            "the output is its return value as JSON."
        )
        # JSON has neither; `assertions.calls_of` makes them of lists again.
        if has_assertions(task):
            form += " Write tuples and sets as lists."
        rules = _TESTER.format(form=form, most=MAX_TESTS, input="[<arguments>]", output="<value>")
    else:
        form = "The input is what the program reads, the output is what it prints."
        shown = {"input": "<standard input>", "output": "<expected output>"}
        rules = _TESTER.format(form=form, most=MAX_TESTS, **shown)
    parts = [rules, f"Problem:\n{task.question}"]
    if history:
        parts.append(_EARLIER if team else _EARLIER_ALONE)
        parts += [shown_attempt(turn, attempt) for turn, attempt in enumerate(history)]
    return "\n\n".join(parts)


NOTE_CHARS = 1000


def failure_note(test: Test, result: RunResult) -> dict[str, str]:
    """Returns a hidden test that a program failed and what the program did, for the record of a run.

    No agent may be shown it: it holds the test.
    """
    gave = result.value if result.value is not None else result.stdout
    parts = {
        "input": test.input,
        "expected": test.output,
        "status": result.status,
        "gave": gave,
        "standard error": result.stderr,
    }
    return {name: shortened(text, NOTE_CHARS) for name, text in parts.items()}
