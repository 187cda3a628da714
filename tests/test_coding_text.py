from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.data import coding
from pettingllms.data.asserts import Test as Pair
from pettingllms.envs.coding_text import (
    MAX_BLOCK_CHARS,
    MAX_TESTS,
    MAX_TESTS_BYTES,
    SHOWN_CHARS,
    Attempt,
    Block,
    Disagreement,
    blocks,
    compact_prompt,
    full_prompt,
    parse_program,
    parse_tests,
    shown_result,
)
from pettingllms.envs.parsing import ParseError
from pettingllms.sandbox import RunResult

PROBLEM = coding.CodingTask(
    id="1",
    question="Print the number.",
    tests=(Pair("hidden input", "hidden output"),),
    reference="hidden reference",
    mutants=("hidden mutant",),
)
CALL = coding.CodingTask("2", "Write f(x).", PROBLEM.tests, "hidden", function="f")


def pair(first, second):
    return f"```input\n{first}\n```\nand\n```output\n{second}\n```\n"


# Blocks and programs


def test_blocks_are_read_in_order_with_their_tags():
    text = "Look:\n```python\nx = 1\n\ny = 2\n```\nthen\n  ```INPUT stdin\n1 2\n  ```  \n```\n```"
    assert blocks(text) == [
        Block("python", "x = 1\n\ny = 2"),
        Block("input", "1 2"),
        Block("", ""),
    ]


@pytest.mark.parametrize("text", ["", "```", "```python\nprint(1)", "``\nprint(1)\n``", "`a`"])
def test_what_is_not_closed_is_no_block(text):
    assert blocks(text) == []
    assert parse_program(text) == ParseError("no closed ```python block with a program")


def test_a_fence_inside_a_line_of_code_is_code():
    assert blocks("```\nprint('```')\nx = '''```'''\n```") == [
        Block("", "print('```')\nx = '''```'''")
    ]


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("```py\nprint(1)\n```", "print(1)"),
        ("```Python3\nprint(1)\n```", "print(1)"),
        ("```\nprint(1)\n```", "print(1)"),
        ("```python\nfirst\n```\nno, better:\n```python\nsecond\n```", "second"),
        ("```python\nprint(1)\n```\n```text\nan example\n```", "print(1)"),
        ("```python\nprint(1)\n```\n```python\nunfinished", "print(1)"),
        ("```python\n```", ""),
        ("```python\nprint(1)\n```\nIt prints\n```\n1\n```", "print(1)"),
        ("```py\nprint(1)\n```\n```python\n\n```", "print(1)"),
        ("```\nO(1)\n```\n```py title=a.py\nprint(1)\n```\n```\n8\n```", "print(1)"),
        ("```\nprint(1)\n```\nIt prints\n```\n1\n```", "print(1)"),
        ("```\nprint(1)\n```\n```\nO(1)\n```\n```\nx = 5\n```", "print(1)"),
        ("```\nprint(1)\n```\n~~~\nno: 5\n~~~\n```\nprint(2)\n```\n```\n2\n```", "print(2)"),
        ("```py\nprint(1)\n```\n```py\n>>> f(2)\n4\n```\n```py\n[4]\n```", "print(1)"),
        ("```py\nprint(1)\n```\n```py\nprint(2\n```", "print(2"),
        ("````\n```py\nprint(1)\n```\n````", "print(1)"),
        ("~~~md\nSo:\n```\nprint(1)\n```\n~~~", "print(1)"),
        (
            "```\ndef f():\n  '''\n  ~~~\n  f\n  ~~~\n  '''\n```",
            "def f():\n  '''\n  ~~~\n  f\n  ~~~\n  '''",
        ),
        ("1. So:\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y"),
    ],
)
def test_the_last_closed_block_of_python_is_the_program(text, program):
    assert parse_program(text) == program


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("~~~python\nx\n~~~", [("python", "x")]),
        ("~~~ a`b\nx\n~~~~", [("a", "x")]),
        ("```a`b\nx\n```", []),
        ("````markdown\n```python\nx\n```\n````", [("markdown", "```python\nx\n```")]),
        ("```python\nx\n~~~\n``\n```", [("python", "x\n~~~\n``")]),
        ("``` python3 {.a}\nx\n`````", [("python3", "x")]),
        ("```{.python}\r\nx\r\n```\r\n", [("python", "x\r")]),
        ("  ```\n   a\n b\n ```", [("", " a\nb")]),
        ("```\n    ```\nx\n```", [("", "    ```\nx")]),
        ("- ```py\n  x\n   y\n  ```", [("py", "x\n y")]),
        ("10. a\n    ```py\n    x\n        ```\n    ```", [("py", "x\n    ```")]),
        ("> ```py\n> x\n>  y\n> ```", [("py", "x\n y")]),
        ("> > ```\n> > x\n>> ```", [("", "x")]),
        ("> ```\n> x\nend\n```\ny\n```", [("", "y")]),
    ],
)
def test_fences_are_read_as_markdown_reads_them(text, found):
    assert blocks(text) == found


PROGRAMS = st.sampled_from(
    [
        "print(1)",
        "def f(x):\n    return x",
        "import sys\nsys.stdout.write('1')",
        "f = lambda x: '```'",
        "if 1:\n    print('~~~')",
    ]
)
OUTPUTS = st.sampled_from(
    [
        "8",
        "O(n)",
        "O(n log n)",
        "yes",
        "[1, 2]",
        "x = 5",
        "a: 1",
        "1 2\n3",
        "Error: no",
        ">>> f(1)\n1",
        "f(2)",
        "",
        "$ ls",
        "{'a': 1}",
        "pass",
        "max(3, 4)",
        "import error",
    ]
)
OTHER_TAGS = st.sampled_from(["", "text", "output", "console", "bash", "json", "c++"])


@st.composite
def fenced(draw, tags, bodies):
    """A block in one of the ways to write it: tilde, long, indented, in a list, in a quote."""
    fence = draw(st.sampled_from(["```", "````", "~~~", "~~~~"]))
    lead, rest = draw(
        st.sampled_from([("", ""), ("  ", "  "), ("- ", "  "), ("1. ", "   "), ("> ", "> ")])
    )
    lines = [f"{fence}{draw(tags)}", *draw(bodies).split("\n"), fence]
    return "\n".join((rest if n else lead) + line for n, line in enumerate(lines))


@given(st.data(), st.booleans(), st.sampled_from(["", "`````\n", "`````md\n"]))
def test_the_program_of_a_reply_is_found_among_outputs_in_any_order(data, tagged, quoted):
    tags = st.sampled_from(["python", "py", "Python3"]) if tagged else st.just("")
    before, between, after = (
        data.draw(st.lists(fenced(OTHER_TAGS, OUTPUTS), max_size=3)) for _ in range(3)
    )
    draft, program = data.draw(PROGRAMS), data.draw(PROGRAMS)
    written = [data.draw(fenced(tags, st.just(body))) for body in (draft, program)]
    reply = "\n\n".join([*before, written[0], "So:", *between, written[1], *after, "Done."])
    assert parse_program(f"{quoted}{reply}\n{quoted[:5]}") == program


def test_a_program_or_a_test_may_be_long_but_not_endless():
    body = "#" * MAX_BLOCK_CHARS
    assert parse_program(f"```\n{body}\n```") == body
    assert isinstance(parse_program(f"```\n{body}#\n```"), ParseError)


@given(st.lists(st.integers(0, 2 * MAX_TESTS_BYTES), min_size=1, max_size=12), st.booleans())
def test_all_tests_of_a_reply_together_have_a_bound_in_bytes(sizes, wide):
    letter, most = ("é", MAX_TESTS_BYTES // 2) if wide else ("x", MAX_TESTS_BYTES)
    read = parse_tests("".join(pair("", letter * size) for size in sizes), None)
    kept = sizes[:MAX_TESTS]
    assert isinstance(read, ParseError) == (sum(kept) > most)
    if not isinstance(read, ParseError):
        assert [len(test.output) for test in read] == kept


# Tests


def test_tests_are_pairs_of_an_input_and_the_output_after_it():
    text = f"Work.\n{pair('1 2', '3')}{pair('', '0')}```python\nx\n```"
    assert parse_tests(text, None) == (Pair("1 2", "3"), Pair("", "0"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no block",
        "```input\n1\n```",
        "```output\n1\n```",
        "```output\n1\n```\n```input\n1\n```",
        "```python\n1\n```\n```output\n1\n```",
        "```input\n1\n```\n```output\n1\n",
    ],
)
def test_without_a_pair_there_are_no_tests(text):
    error = ParseError("no ```input block followed by an ```output block")
    assert parse_tests(text, None) == parse_tests(text, "f") == error


def test_an_output_without_an_input_of_its_own_is_left_out():
    text = f"```output\n0\n```\n```input\nlost\n```\n{pair('1', '2')}```output\n3\n```"
    assert parse_tests(text, None) == (Pair("1", "2"),)


def test_only_the_first_tests_count():
    text = "".join(pair(n, n) for n in range(MAX_TESTS + 5))
    tests = parse_tests(text, None)
    assert tests == tuple(Pair(str(n), str(n)) for n in range(MAX_TESTS))


@pytest.mark.parametrize(
    ("first", "second"), [("[1, [2]]", "3"), ("[]", "null"), (' [ "a" ] ', '"b"'), ("[1]", "[]")]
)
def test_a_test_of_a_function_is_json(first, second):
    assert parse_tests(pair(first, second), "f") == (Pair(first, second),)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1", "1"),
        ('{"x": 1}', "1"),
        ("[1", "1"),
        ("[x]", "1"),
        ("[1]", "one"),
        ("[1]", ""),
        ("[1]", "(1, 2)"),
        ("[" * 50_000, "1"),
        ("[1]", "[" * 50_000),
        ("[1]", "9" * 50_000),
        ("[" + "9" * 50_000 + "]", "1"),
    ],
)
def test_a_test_of_a_function_that_is_no_json_is_refused(first, second):
    error = parse_tests(pair("[1]", "1") + pair(first, second), "f")
    assert isinstance(error, ParseError)
    assert "JSON" in error.why


# Hostile text

HOSTILE = [
    "`",
    "``",
    "```",
    "``` ",
    "```a",
    "```\n",
    "``` \n",
    "```input\n",
    "```input\n```\n```output\n```\n",
    "[",
    "]",
    "{",
    "\n",
    "\r",
    " ",
    "\t```",
    "a",
    "\0",
    "\ud800",
    "\u2028",
    "é",
]


@pytest.mark.slow
@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
@pytest.mark.parametrize("ends", [("", ""), ("```", "`"), ("```\n", "\n```"), ("```input ", "`\n")])
def test_a_quarter_of_a_megabyte_of_anything_is_read_in_linear_time(piece, ends):
    text = ends[0] + piece * (250_000 // len(piece)) + ends[1]
    started = time.process_time()
    blocks(text)
    assert isinstance(parse_program(text), str | ParseError)
    for function in (None, "f"):
        tests = parse_tests(text, function)
        assert isinstance(tests, ParseError) or len(tests) <= MAX_TESTS
    assert time.process_time() - started < 5


def test_what_stands_before_a_fence_is_bounded():
    for before in (">", " ", "- "):
        for many in (80, 300_000):
            started = time.process_time()
            blocks(f"{before * many}~~~\n" + "\n~~" * 100_000 + f"{before * many}~~~")
            assert time.process_time() - started < 5


def test_mixed_runs_in_one_line_are_read_in_linear_time():
    for blanks, letters in ((200_000, 200_000), (1, 400_000), (400_000, 1)):
        line = "```" + " " * blanks + "a" * letters + "`"
        started = time.process_time()
        assert blocks(f"{line}\n```\nx\n```") == [Block("", "x")]
        assert time.process_time() - started < 5


@given(st.text(alphabet="`abc \n[]\0\ud800") | st.text())
def test_any_text_is_a_program_or_says_why_not(text):
    program = parse_program(text)
    if isinstance(program, ParseError):
        assert program.why
    else:
        assert all(line in text for line in program.split("\n"))
    for function in (None, "f"):
        tests = parse_tests(text, function)
        if isinstance(tests, ParseError):
            assert tests.why
        else:
            assert 1 <= len(tests) <= MAX_TESTS
            lines = [line for t in tests for field in t[:2] for line in field.split("\n")]
            assert all(line in text for line in lines)


@given(st.text(alphabet="ab \t1[]"))
def test_a_fenced_program_comes_back_as_it_was(body):
    assert parse_program(f"Here.\n```python\n{body}\n```\nDone.") == body
    assert parse_tests(pair(body, body), None) == (Pair(body, body),)


# Prompts

HISTORY = (
    Attempt("print(1)", (Disagreement("5", "6", "1"), Disagreement("7", "8", "error Oops"))),
    Attempt(None, ()),
)


@pytest.mark.parametrize("role", ["coder", "tester"])
@pytest.mark.parametrize("task", [PROBLEM, CALL], ids=["stdin", "function"])
def test_prompts_show_the_problem_the_format_and_the_past_and_nothing_hidden(role, task):
    first, later = full_prompt(role, task, ()), full_prompt(role, task, HISTORY)
    compact = compact_prompt(role, task.question, HISTORY)
    for text in (first, later, compact):
        assert task.question in text
        assert role in text
        assert "hidden" not in text
        assert "{" not in text
    assert "```python" in first if role == "coder" else "```input" in first
    assert ("`f`" in first) == (task is CALL)
    assert "print(1)" not in first
    for shown in ("print(1)", "5", "6", "7", "8", "error Oops"):
        assert shown in later
        assert shown in compact
    assert later.startswith(first)
    assert "Turn 1:\n(no program)" in later


@pytest.mark.parametrize("task", [PROBLEM, CALL], ids=["stdin", "function"])
def test_the_prompt_of_a_coder_alone_says_how_it_ends_and_speaks_of_no_team(task):
    history = (Attempt("print(1)", ()), Attempt(None, ()))
    first = full_prompt("coder", task, (), team=False)
    later = full_prompt("coder", task, history, team=False)
    assert later.startswith(first)
    assert "twice in a row" in first
    assert task.question in first
    assert ("`f`" in first) == (task is CALL)
    assert isinstance(parse_program(first), str)
    assert "Turn 0:\nprint(1)" in later
    for word in ("team", "tester", "disagree", "hidden", "{"):
        assert word not in later.lower()


def test_an_agents_own_reply_format_can_be_parsed_from_the_prompts_example():
    assert isinstance(parse_program(full_prompt("coder", PROBLEM, ())), str)
    tests = parse_tests(full_prompt("tester", PROBLEM, ()), None)
    assert tests == (Pair("<standard input>", "<expected output>"),)


def test_long_tests_are_cut_where_they_are_shown():
    long = Attempt("x", (Disagreement("1" * 10_000, "2" * 10_000, "3"),))
    text = full_prompt("coder", PROBLEM, (long,))
    assert "1" * SHOWN_CHARS in text
    assert len(text) < 2000 + 2 * SHOWN_CHARS


def a_result(status="ok", stdout="", stderr="", value=None):
    texts = stdout.encode(), stderr.encode()
    returned = None if value is None else value.encode()
    return RunResult(status, *texts, 0, 0.0, 0.0, 0.0, "none", returned)


@pytest.mark.parametrize(
    ("result", "function", "shown"),
    [
        (a_result(stdout="1 2\n"), None, "1 2"),
        (a_result(value="[1]"), "f", "[1]"),
        (a_result(), "f", ""),
        (a_result("error", stderr="Traceback\nValueError: no\n"), None, "error ValueError: no"),
        (a_result("cpu_limit"), None, "cpu_limit"),
        (a_result("ok", stdout="x" * 10_000), None, "x" * SHOWN_CHARS),
        (a_result("error", stderr="y" * 10_000), None, ("error " + "y" * 10_000)[:SHOWN_CHARS]),
    ],
)
def test_a_run_is_shown_by_its_output_or_its_failure(result, function, shown):
    assert shown_result(result, function) == shown
