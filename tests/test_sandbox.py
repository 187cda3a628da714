"""The sandbox's contract as its callers see it, on the embedded back end."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.sandbox import Case, Limits, open_sandbox, shared_sandbox
from pettingllms.sandbox.embedded import EmbeddedSandbox
from pettingllms.sandbox.types import MAX_PROGRAM_BYTES, Sandbox
from pettingllms.sandbox.workers import ProcessChannel
from pettingllms.types import MAX_INPUT_BYTES
from tests.kernel import needs_namespaces

DOUBLE = "print(int(input()) * 2)"
COUNT = "import os\nn = len(os.listdir('/tmp'))\nopen(f'/tmp/{n}', 'w').close()\nprint(n)"
SHORT = Limits(cpu_s=0.3, wall_s=10.0)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox("embedded", workers=2) as sandbox:
        yield sandbox


def outputs(rows):
    return [[result.stdout for result in row] for row in rows]


def test_results_are_in_the_order_of_programs_and_cases(sandbox: Sandbox):
    programs = ["print(input())", "print(input() * 2)", "print('no')"]
    rows = sandbox.run(programs, [Case("a"), Case("b")])
    assert outputs(rows) == [["a\n", "b\n"], ["aa\n", "bb\n"], ["no\n", "no\n"]]


def test_many_runs_keep_their_order(sandbox: Sandbox):
    cases = [Case(str(n)) for n in range(150)]
    [row] = sandbox.run([DOUBLE], cases)
    assert [result.stdout for result in row] == [f"{2 * n}\n" for n in range(150)]


def test_nothing_to_run_gives_no_results(sandbox: Sandbox):
    assert sandbox.run([], [Case()]) == []
    assert sandbox.run([DOUBLE], []) == [[]]


@needs_namespaces  # elsewhere /tmp is not the program's own
def test_runs_share_no_files(sandbox: Sandbox):
    assert outputs(sandbox.run([COUNT], [Case()] * 3)) == [["0\n"] * 3]


@needs_namespaces  # elsewhere a program is no process 1, and its end has another code
def test_a_failed_run_does_not_touch_the_others(sandbox: Sandbox):
    program = (
        "import os\nn = int(input())\n"
        "if n == 1: os._exit(0)\nif n == 2: 1 / 0\nif n == 3:\n while True: pass\n"
        "if n == 4: os.abort()\nif n == 5: os._exit(7)\nprint(n)"
    )
    cases = [Case(str(n)) for n in range(7)]
    [row] = sandbox.run([program], cases, limits=SHORT, end_at_limit=False)
    assert [result.status for result in row] == [
        "ok", "ok", "error", "cpu_limit", "killed", "error", "ok",
    ]  # fmt: skip
    assert [result.stdout for result in row] == ["0\n", "", "", "", "", "", "6\n"]
    assert row[5].exit_code == 7


def test_results_say_what_was_used_and_what_held(sandbox: Sandbox):
    [[result]] = sandbox.run(["x = sum(range(10**6)); y = bytearray(60 << 20)"], [Case()])
    assert 0.001 < result.cpu_s < 5
    assert result.wall_s > 0.001
    assert 60 < result.memory_mib < 200
    assert "seccomp" in result.isolation


def test_each_of_several_runs_has_a_cpu_limit_of_its_own(sandbox: Sandbox):
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    [row] = sandbox.run([burn], [Case()] * 4, limits=Limits(cpu_s=0.6))
    assert [result.status for result in row] == ["ok"] * 4
    assert all(0.2 < result.cpu_s < 0.6 for result in row)


def test_the_functions_of_a_case_are_called_with_their_arguments(sandbox: Sandbox):
    program = "def f(a, b): return [a, b]\nclass Solution:\n def g(self, x): return {'x': x}"
    cases = [Case(function="f", args='[1, "ä\\u0000"]'), Case(function="g", args="[null]")]
    [row] = sandbox.run([program], cases)
    assert [json.loads(result.value or "") for result in row] == [[1, "ä\0"], {"x": None}]


def test_a_function_finds_what_judges_import_for_every_solution(sandbox: Sandbox):
    bodies = {
        "sum(b - x for x, b in pairwise(a)) + comb(4, 2) + isqrt(a[-1]) + prod(a) + lcm(*a)": 21,
        "[*chain(a, product(a, a))][-1]": [3, 3],
        "insort(a, 2) or nlargest(1, deepcopy(a)) + [log2(8), mean(a), pow(2, 3, 5)]": [
            3,
            3.0,
            2,
            3,
        ],
        "[math.pi - pi, bisect.bisect(a, 2), copy.copy(a), sys.stdin.read(), StringIO('b').read()]": [
            *(0.0, 2, [1, 2, 3]),
            *("", "b"),
        ],
        "[abs.__module__, compile.__module__]": ["builtins", "builtins"],
        "date(2024, 2, 29).day + datetime.timedelta(3).days": 32,
    }
    programs = [f"class Solution:\n def f(self, a: List[int]): return {text}" for text in bodies]
    rows = sandbox.run(programs, [Case(function="f", args="[[1, 2, 3]]")])
    assert [json.loads(row[0].value or row[0].stderr) for row in rows] == list(bodies.values())


def test_a_program_without_a_function_call_has_no_value(sandbox: Sandbox):
    [[result]] = sandbox.run(["print(1)"], [Case()])
    assert result.value is None


def test_text_that_is_too_long_is_an_error_of_the_program(sandbox: Sandbox):
    long_program = "#" * (MAX_PROGRAM_BYTES + 1)
    long_case = Case("x" * (MAX_INPUT_BYTES + 1))
    rows = sandbox.run([long_program, "print(1)"], [Case(), long_case])
    assert [[r.status for r in row] for row in rows] == [["error", "error"], ["ok", "error"]]
    assert str(MAX_PROGRAM_BYTES) in rows[0][0].stderr
    assert str(MAX_INPUT_BYTES) in rows[1][1].stderr


def test_text_of_the_greatest_length_is_run(sandbox: Sandbox):
    program = "import sys; print(len(sys.stdin.read()))\n"
    program += "#" * (MAX_PROGRAM_BYTES - len(program))
    [[result]] = sandbox.run([program], [Case("x" * MAX_INPUT_BYTES)])
    assert result.stdout == f"{MAX_INPUT_BYTES}\n"


def test_callers_on_many_threads_get_their_own_results(sandbox: Sandbox):
    wrong: list[str] = []

    def call(n: int) -> None:
        for k in range(5):
            [[result]] = sandbox.run([DOUBLE], [Case(str(100 * n + k))])
            if result.stdout != f"{2 * (100 * n + k)}\n":
                wrong.append(result.stdout)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_environment_secrets_of_the_parent_are_not_visible(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    look = (
        "import os, sys\nprint(os.environ, sys.argv, sys.orig_argv)\nprint(os.getenv('HF_TOKEN'))"
    )
    with open_sandbox("embedded", workers=1) as sandbox:
        [[result]] = sandbox.run([look], [Case()])
        [link] = sandbox._pool._all
        assert isinstance(link.channel, ProcessChannel)
        pid = link.channel.pid
        seen = Path(f"/proc/{pid}/environ").read_bytes()
    assert "hf_secret" not in result.stdout
    assert result.stdout.endswith("None\n")
    assert seen == b"PYTHONHASHSEED=0\0"


def test_files_of_the_parent_are_not_visible(sandbox: Sandbox, tmp_path: Path):
    secret = tmp_path / "answers.json"
    secret.write_text("the answer")
    program = (
        "for path in open(0).read().split():\n"
        " try: print(open(path).read())\n except OSError as error: print(type(error).__name__)"
    )
    paths = [str(secret), str(Path(__file__)), str(Path.home() / ".netrc"), "/etc/passwd"]
    [[result]] = sandbox.run([program], [Case(" ".join(paths))])
    refused = {"FileNotFoundError", "PermissionError"}
    assert len(result.stdout.splitlines()) == 4
    assert set(result.stdout.splitlines()) <= refused


@pytest.mark.slow
def test_memory_of_the_parent_is_not_in_the_worker():
    secret = b"-".join([b"the", b"key", b"of", b"the", b"parent"]) * 3
    with open_sandbox("embedded", workers=1) as sandbox:
        sandbox.run(["1"], [Case()])
        [link] = sandbox._pool._all
        assert isinstance(link.channel, ProcessChannel)
        pid = link.channel.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert secret in memory("self")
        for process in (str(pid), *children):
            seen = memory(process)
            assert len(seen) > 1 << 20
            assert secret not in seen


def memory(process: str) -> bytes:
    """All readable private memory of a process."""
    chunks = []
    try:
        with Path(f"/proc/{process}/mem").open("rb", buffering=0) as file:
            for line in Path(f"/proc/{process}/maps").read_text().splitlines():
                where, mode, *_ = line.split()
                begin, end = (int(text, 16) for text in where.split("-"))
                if mode.startswith("rw") and end - begin < 1 << 28:
                    with contextlib.suppress(OSError):
                        file.seek(begin)
                        chunks.append(file.read(end - begin) or b"")
    except PermissionError:
        pytest.skip("this user may not look into other processes")
    return b"".join(chunks)


def test_a_set_prints_the_same_on_every_worker():
    program = "print({'a', 'b', 'c', 'd', 'e'})"
    seen = set()
    for _ in range(3):
        with open_sandbox("embedded", workers=1) as sandbox:
            seen.add(sandbox.run([program], [Case()])[0][0].stdout)
    assert len(seen) == 1


def test_packages_are_importable_by_name_only(sandbox: Sandbox):
    program = "import numpy\nprint(numpy.arange(3).sum(), numpy.random.rand() < 1)"
    with open_sandbox("embedded", workers=1, packages=("numpy",)) as with_numpy:
        [[allowed]] = with_numpy.run([program], [Case()], limits=Limits(memory_mib=1024))
        [[other]] = with_numpy.run(["import sympy"], [Case()])
    [[refused]] = sandbox.run([program], [Case()])
    assert allowed.stdout == "3 True\n"
    assert "No module named 'sympy'" in other.stderr
    assert "No module named 'numpy'" in refused.stderr


def test_a_package_that_is_not_installed_is_named():
    with (
        open_sandbox("embedded", workers=1, packages=("no_such_package",)) as sandbox,
        pytest.raises(SandboxUnavailable, match="no_such_package"),
    ):
        sandbox.run(["1"], [Case()])


def test_unsafe_results_say_so():
    with EmbeddedSandbox(
        1, without=("namespaces", "landlock", "seccomp"), allow_unsafe=True
    ) as unsafe:
        [[result]] = unsafe.run([DOUBLE], [Case("4")])
    assert (result.stdout, result.isolation) == ("8\n", "none")


@pytest.mark.parametrize("missing", [("seccomp",), ("namespaces", "landlock")])
def test_a_machine_that_isolates_nothing_is_refused_with_advice(missing: tuple[str, ...]):
    with (
        EmbeddedSandbox(1, without=missing) as sandbox,
        pytest.raises(SandboxUnavailable, match="--sandbox docker"),
    ):
        sandbox.run(["1"], [Case()])


def test_other_systems_are_told_to_use_docker(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxUnavailable, match="--sandbox docker"):
        open_sandbox("embedded")


def test_an_unknown_back_end_is_named():
    with pytest.raises(ConfigError, match="did you mean 'embedded'"):
        open_sandbox("embeded")


@pytest.mark.parametrize(
    ("field", "value"), [("cpu_s", 0), ("wall_s", float("nan")), ("memory_mib", -1)]
)
def test_limits_that_limit_nothing_are_refused(field: str, value: Any):
    with pytest.raises(ConfigError, match=field):
        Limits(**{field: value})


def test_the_shared_sandbox_is_one_and_outlives_a_close_of_another():
    shared = shared_sandbox()
    assert shared is shared_sandbox()
    assert shared.run([DOUBLE], [Case("3")])[0][0].stdout == "6\n"


def test_importing_the_sandbox_is_light():
    code = (
        "import sys, pettingllms.sandbox as s\n"
        "heavy = {'torch', 'numpy', 'docker', 'transformers', 'ray'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
