"""Simple programs that share a process: same results as processes of their own, and nothing else is simple."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.data import coding
from pettingllms.envs import coding_judge, coding_v0
from pettingllms.sandbox import Case, Limits, RunResult, open_sandbox
from pettingllms.sandbox.together import METHODS, SHARED_CPU_S, SharedRuns, is_simple
from pettingllms.sandbox.types import Sandbox
from tests import sandbox_idioms, test_sandbox_like_python
from tests.test_coding_v0 import a_row, checks, code

LIMITS = Limits(cpu_s=0.5, wall_s=10.0, memory_mib=128, output_kib=64)
STDINS = ("3 1 2\n", "", "7", "a b\r\nc", "é 🎈\n", "1\n2\n3\n")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


class Counted:
    """A sandbox that counts the processes that it is asked for."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox, self.runs = sandbox, 0

    def run(
        self, programs: Sequence[str], cases: Sequence[Case], **options: object
    ) -> list[list[RunResult]]:
        self.runs += len(programs) * len(cases)
        return self._sandbox.run(programs, cases, **options)  # type: ignore[arg-type]

    def close(self) -> None:
        self._sandbox.close()


def verdict(run: RunResult) -> tuple[object, ...]:
    return run.status, run.stdout_bytes, run.stderr_bytes, run.value_bytes, run.exit_code


SIMPLE = {
    "nothing": "",
    "no newline at the end": "print(input(), end='')",
    "sum": "print(sum(map(int, input().split())))",
    "prompt": "print(input('n? '))",
    "two lines": "a = input()\nb = input()\nprint(b, a)",
    "main guard": "def main():\n    print(len(input()))\nif __name__ == '__main__':\n    main()",
    "error in a function": "def f(x):\n    return 1 / x\nprint('before')\nprint(f(0), f(1))",
    "error in a comprehension": "print([x[1] for x in ('ab', 'c')])",
    "error over lines": "print(\n    int(\n        'x'\n    )\n)",
    "error that suggests": "length = 3\nprint(lenght)",
    "error without a newline": "[][0]",
    "failed assertion": "assert input() == 'nothing', 'why'",
    "syntax error": "def f(:",
    "unfinished text": "a = [x + '!' for x in a if 'ut x in x]\nprint(a)",
    "wrong indent": "x = 1\n  print(x)",
    "tabs and blanks": "if True:\n\tx = 1\n        y = 2",
    "return outside": "return 1",
    "assigned call": "f() = 1",
    "deep brackets": "(" * 300 + ")" * 300,
    "null byte": "print(1)\0",
    "separators in a line": "x = '\x0c\x1e'\r\n1 / 0",
    "warning of the compiler": "print(1 is 1)",
    "warning and error of the compiler": "print(1 is 1\nx = (",
    "escape that warns": "print('\\d')",
    "warning at run time": "print(~True, input())",
    "rebound builtins": "print = len\ninput = 3\nlen = sorted\nx = print('abc')",
    "changed default": "def f(x, seen=[]):\n    seen.append(x)\n    return len(seen)\nprint(f(1), f(1))",
    "deep recursion": "def f(n):\n    return n if n == 0 else f(n - 1)\nprint(f(900))",
    "deepest recursion": "def f(n):\n    return n if n == 0 else f(n - 1)\nprint(f(988))",
    "endless recursion": "def f():\n    return f()\nf()",
    "endless loop": "while True:\n    pass",
    "slow": "n = 0\nwhile n < 6_000_000:\n    n += 1\nprint(n)",
    "memory": "x = [0] * (200 << 17)\nprint(len(x))",
    "garbage in a circle": "for i in range(8):\n    x = [0] * (60 << 14)\n    x.append(x)\nprint(len(x))",
    "much output": "print('x' * 100_000)",
    "output near its limit": "print('x' * ((64 << 10) - 1))",
    "lone surrogate": "print(chr(0xd800))",
    "surrogates of one letter": "print('a', '\\ud83d\\ude00')",
    "not ASCII": "print(chr(233) * 3)",
    "long number": "print(int('9' * 5000))",
    "set of texts": "print({'b', 'a', 'c', *input().split()})",
    "floats": "print(0.1 + 0.2, 1e300 * 1e10, -0.0, round(2.5))",
    "carriage return": "print('a\\rb\\r\\n', end='')",
    "generator": "print(sum(x * x for x in range(10)), max((c for c in 'abc'), default=''))",
    "format of a number": "x = 3.14159\nprint(f'{x:.2f}', '%05.1f' % x)",
}
FUNCTIONS = {
    "double": "def solve(a):\n    return [x * 2 for x in a]",
    "tuple": "def solve(a):\n    return (a, None, True, 1.5)",
    "set": "def solve(a):\n    return {1, 2}",
    "prints": "def solve(a):\n    print(a)\n    return len(a)",
    "too few arguments": "def solve():\n    return 1",
    "no such function": "def resolve(a):\n    return a",
    "no function": "solve = 3",
    "syntax error": "def solve(a)\n    return a",
    "name that is only there for calls": "def solve(a):\n    return gcd(a[0], 4)",
    "error": "def solve(a):\n    return a[5]",
    "reads where nothing is": "n = input()\ndef solve(a):\n    return n",
}
ARGUMENTS = ("[[1, 2]]", "[[]]", "[1]", "{}", "not JSON", "[[3, 4, 5, 6, 7, 8]]", "[]")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "slow")) for n in SIMPLE]
)
def test_a_simple_program_gives_what_it_gives_in_a_process_of_its_own(sandbox, name) -> None:
    cases = [Case(text) for text in STDINS]
    # What is slow ends within its limit on slow machines, too, and on fast ones not within a shared process's.
    limits = replace(LIMITS, cpu_s=20.0, wall_s=60.0) if name == "slow" else LIMITS
    [shared] = SharedRuns(sandbox, limits)([SIMPLE[name]], cases)
    [alone] = sandbox.run([SIMPLE[name]], cases, limits=limits)
    assert list(map(verdict, shared)) == list(map(verdict, alone))


def test_a_simple_function_gives_what_it_gives_in_a_process_of_its_own(sandbox) -> None:
    cases = [Case(function="solve", args=text) for text in ARGUMENTS]
    programs = list(FUNCTIONS.values())
    shared = SharedRuns(sandbox, LIMITS)(programs, cases)
    alone = sandbox.run(programs, cases, limits=LIMITS)
    for program, a, b in zip(programs, shared, alone, strict=True):
        assert list(map(verdict, a)) == list(map(verdict, b)), program


def test_idioms_of_honest_programs_give_what_they_give_in_processes_of_their_own(sandbox) -> None:
    programs = [*sandbox_idioms.READ_WRITE.values(), *test_sandbox_like_python.PROGRAMS.values()]
    simple = [program for program in programs if is_simple(program)]
    assert len(simple) > 10
    cases = [Case(text) for text in STDINS[:2]]
    for program in simple:
        [shared] = SharedRuns(sandbox, LIMITS)([program], cases)
        [alone] = sandbox.run([program], cases, limits=LIMITS)
        assert list(map(verdict, shared)) == list(map(verdict, alone)), program


@pytest.mark.slow
def test_generated_tasks_are_judged_as_in_processes_of_their_own(sandbox) -> None:
    for seed in range(8):
        task = coding.generate(seed, "train")
        programs = [task.reference, *task.mutants]
        cases = coding_judge.cases(
            task, [*(test.input for test in task.tests), "", "x y", "[1]", '["a"]']
        )
        shared = SharedRuns(sandbox, LIMITS)(programs, cases)
        alone = sandbox.run(programs, cases, limits=LIMITS)
        assert [list(map(verdict, row)) for row in shared] == [
            list(map(verdict, row)) for row in alone
        ]


@pytest.mark.parametrize("text", ["lambda: 1", "map(len, [])", "[x for x in [print]]"])
def test_addresses_are_printed_in_a_process_of_its_own(sandbox, text) -> None:
    """They would be others in company."""
    counted = Counted(sandbox)
    [row] = SharedRuns(counted, LIMITS)([f"print({text})"], [Case(""), Case("a")])
    assert counted.runs == (3 if " at 0x" in row[0].stdout else 1)


STATEMENTS = (
    *("print(input())", "print(end='')", "x = [1, 'a', 2.5]", "print(x)", "print(*x, sep='\\n')"),
    *(
        "x += [len(x)]",
        "x = x[1:]",
        "for c in input():\n    print(ord(c), end=' ')",
        "print(1 // len(x))",
    ),
    *(
        "print({*input()})",
        "x = input().split()",
        "print(chr(0xdc80 + len(x)))",
        "print(chr(0xd800))",
    ),
    *(
        "def f(n):\n    return n and f(n - 1)",
        "print(f(30))",
        "print(int(input()))",
        "print(x.pop())",
    ),
    *(
        "print('%s' % x)",
        "print(f'{x!r:>20}')",
        "print(dict(zip(x, x)))",
        "assert x",
        "del x",
        "x = f",
    ),
)


def test_programs_of_random_statements_give_what_they_give_in_processes_of_their_own(sandbox):
    rng = random.Random(0)
    programs = ["x = [3]\n" + "\n".join(rng.choices(STATEMENTS, k=5)) for _ in range(40)]
    cases = [Case(STDINS[0]), Case(STDINS[3])]
    shared, alone = SharedRuns(sandbox, LIMITS)(programs, cases), sandbox.run(programs, cases)
    assert [list(map(verdict, row)) for row in shared] == [list(map(verdict, r)) for r in alone]


def test_the_mutants_of_a_task_cost_one_process(sandbox) -> None:
    counted = Counted(sandbox)
    task = next(t for t in (coding.generate(seed, "train") for seed in range(9)) if not t.function)
    programs = [task.reference, *task.mutants]
    SharedRuns(counted, LIMITS)(
        programs, coding_judge.cases(task, [test.input for test in task.tests])
    )
    assert counted.runs == 1


def test_a_program_that_does_not_compile_costs_one_process(sandbox) -> None:
    counted = Counted(sandbox)
    [row] = SharedRuns(counted, LIMITS)(["print(1"], [Case(text) for text in STDINS])
    assert counted.runs == 1
    assert {run.status for run in row} == {"error"}


@pytest.mark.parametrize(
    "said",
    [
        "",
        "0\n",
        "[0]\n",
        "[[0]]\n",
        '{"a": 1}\n',
        "no JSON\n",
        "null\n",
        '[["", "", "", NaN]]\n',
        '[["", "", 1, 0.0]]\n',
        '[["\u0100", "", "", 0.0]]\n',
        f"[[{10**30}, 0, 0, 0]]\n",
    ],
)
def test_a_service_that_answers_something_else_is_asked_for_each_run(sandbox, said) -> None:
    class Other(Counted):
        def run(self, programs: Sequence[str], cases: Sequence[Case], **options: object) -> Any:
            rows = super().run(programs, cases, **options)
            shared = "def one(" in programs[0]
            return [[replace(rows[0][0], stdout_bytes=said.encode())]] if shared else rows

    [row] = SharedRuns(Other(sandbox), LIMITS)(["print(1)"], [Case(""), Case("a")])
    assert [run.stdout for run in row] == ["1\n", "1\n"]


def test_results_tried_ahead_are_not_run_again(sandbox) -> None:
    counted = Counted(sandbox)
    runs = SharedRuns(counted, LIMITS)
    programs, cases = ["print(1)", "print(2)"], [Case("a"), Case("b")]
    runs.share(programs, cases)
    [[first], [second]] = runs.within(Limits(cpu_s=1.0))(programs, cases[:1])
    assert (first.stdout, second.stdout, counted.runs) == ("1\n", "2\n", 1)


def test_an_endless_loop_costs_the_shared_process_and_its_own_limit_once(sandbox) -> None:
    programs = ["print(1)", "while True:\n    pass", "print(3)"]
    cases = [Case(str(n)) for n in range(4)]
    runs = SharedRuns(sandbox, LIMITS)
    rows = runs(programs, cases)
    assert [row[0].status for row in rows] == ["ok", "cpu_limit", "ok"]
    assert {run.status for run in rows[1]} == {"cpu_limit"}
    spent = sum(run.cpu_s for row in rows for run in row)
    assert spent < LIMITS.cpu_s + SHARED_CPU_S + 0.25


def test_a_loop_on_one_case_ends_the_list_as_in_processes_of_their_own(sandbox) -> None:
    program = "n = int(input())\nwhile n < 0:\n    pass\nprint(n)"
    cases = [Case(text) for text in ("1", "-1", "2")]
    [shared] = SharedRuns(sandbox, LIMITS)([program], cases)
    assert [run.status for run in shared] == ["ok", "cpu_limit", "cpu_limit"]
    [shared] = SharedRuns(sandbox, LIMITS, end_at_limit=False)([program], cases)
    assert [run.status for run in shared] == ["ok", "cpu_limit", "ok"]


HOSTILE = {
    "import": "import os",
    "import in a function": "def f():\n    from os import path",
    "frame of a generator": "print((x for x in [1]).gi_frame)",
    "frame behind a blank": "g = (x for x in [1])\nprint(g. gi_frame)",
    "frame behind a new line": "g = (x for x in [1])\nprint(g.\\\ngi_frame)",
    "frame behind a comment": "g = (x for x in [1])\nprint((g. # \ngi_frame))",
    "frame after a blank": "g = (x for x in [1])\nprint(g .gi_frame)",
    "class of a number": "print(1 .__class__)",
    "attribute in a format": "print('{0.__class__}'.format(1))",
    "format of a map": "print('{a.b}'.format_map({}))",
    "attribute in an f-string": "x = 1\nprint(f'{x.real}')",
    "attribute in a pattern": "g = (x for x in [1])\nmatch g:\n    case object(gi_frame=f):\n        print(f)",
    "handler": "try:\n    x\nexcept BaseException:\n    print(1)",
    "class": "class A:\n    pass",
    "context": "with open(0) as f:\n    print(f)",
    "builtins by name": "print(__builtins__)",
    "loader": "print(__loader__)",
    "other letters": "print(1).ｇi_frame",
    "generator function": "def f():\n    x = yield\n    print(x)",
    "coroutine": "async def f():\n    await f()",
    "raise": "raise SystemExit(0)",
    "too long": "x = 1\n" * 5000,
    "another encoding": "# coding: nothing\nprint(1)",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_could_reach_the_interpreter_is_not_simple(name) -> None:
    assert not is_simple(HOSTILE[name])


REACHING = ("eval", "exec", "open", "getattr", "vars", "globals", "object", "breakpoint", "id")


@pytest.mark.parametrize("name", REACHING)
def test_a_builtin_that_reaches_further_is_only_in_a_process_of_its_own(sandbox, name) -> None:
    counted = Counted(sandbox)
    program = f"f = {name}\nprint(1)"
    [row] = SharedRuns(counted, LIMITS)([program], [Case(""), Case("a")])
    assert [run.stdout for run in row] == ["1\n", "1\n"]
    assert counted.runs == 1 + 2  # tried together, where the name is unknown, then alone


WORDS = [
    *("x", "f", "print", "input", "g", "_", "__name__", "__class__", "gi_frame", "format", "append"),
    *(".", ". ", ".\\\n", "(", ")", "[", "]", ":", "=", ",", "1", "1.5", "1.", "'", '"', "f'{", "}'"),
    *("\n", "\n    ", " ", " # c\n", "def f():\n    ", "lambda: ", "for x in ", "if x:\n    ", "class A: "),
    *("import os\n", "from os import ", "match x:\n    case ", "try:\n    ", "except: ", "with x: "),
    *("yield ", "await ", "async ", "global x\n", "raise x\n", "return ", "é", "ｘ", "\t", "\\"),
]  # fmt: skip
FORBIDDEN = (
    *(ast.Import, ast.ImportFrom, ast.ClassDef, ast.Try, ast.With, ast.AsyncWith, ast.Match),
    *(ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.Raise),
)


@given(st.lists(st.sampled_from(WORDS), max_size=12).map("".join))
def test_the_tree_of_a_simple_program_has_no_way_out(program) -> None:
    if not is_simple(program):
        return
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        assert not isinstance(node, FORBIDDEN), program
        assert not isinstance(node, ast.Attribute) or node.attr in METHODS, program
        assert (
            not isinstance(node, ast.Name)
            or not node.id.startswith("__")
            or (node.id == "__name__")
        ), program


@given(st.text(max_size=200))
def test_any_text_is_simple_or_not(program) -> None:
    assert is_simple(program) in (True, False)


REPLIES = {
    "coder": [
        code(program)
        for program in (
            "print(abs(int(input())))",
            "print(int(input()))",
            "n = int(input())\nprint(n if n > 0 else -n)",
            "while True:\n    pass",
            "print(abs(int(input()))",
            "print(1 // int(input()))",
            "import math\nprint(int(math.fabs(int(input()))))",
            "n = input()\nm = input()",
        )
    ],
    "tester": [
        checks(("-5", "5"), ("7", "7")),
        checks(("-5", "-5"), ("12", "12")),
        checks(("x", "5"), ("-1", "1")),
        "no test",
    ],
}


def scored(env: Any) -> list[object]:
    """What a training step takes from every reply of both roles: rewards, metrics, and what is shown next."""
    record: list[object] = []
    for seed in range(2):
        env.reset(seed=seed)
        while not any(env.terminations.values()) and not any(env.truncations.values()):
            agent = env.agent_selection
            replies = REPLIES["coder" if agent.startswith("coder") else "tester"]
            for reply in replies:
                branch = env.clone()
                branch.step(reply)
                infos = {name: dict(info) for name, info in branch.infos.items()}
                record.append((agent, reply, dict(branch.rewards), infos))
                record.append([branch.observe(name) for name in branch.possible_agents])
            env.step(replies[(seed + len(record)) % len(replies)])
    return record


def test_a_step_is_scored_alike_with_shared_processes_and_with_one_a_run(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.jsonl"
    limits = {"cpu_s": 0.2}  # of the endless loop
    rows = (a_row(limits=limits), a_row(question="Print |n|, as in 7 for 7.", limits=limits))
    file.write_text("\n".join(map(json.dumps, rows)))
    env: Any = coding_v0.env(dataset=file, sandbox=sandbox, max_turns=1)
    counted = env.unwrapped.sandbox = Counted(sandbox)
    together = scored(env)
    shared_runs, counted.runs = counted.runs, 0
    monkeypatch.setattr("pettingllms.sandbox.together.is_simple", lambda _: False)
    env = coding_v0.env(dataset=file, sandbox=sandbox, max_turns=1)
    env.unwrapped.sandbox = counted
    assert scored(env) == together
    # Otherwise nothing was shared, and the test says nothing.
    assert shared_runs < counted.runs
