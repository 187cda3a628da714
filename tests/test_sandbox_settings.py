"""`SandboxSettings`: one record from the command line to the runs, and whose limits win."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.cli import evaluate, train
from pettingllms.data.catalog import CATALOG
from pettingllms.data.coding_schemas import load_tasks
from pettingllms.envs import coding_v0, make
from pettingllms.errors import ConfigError, PettingLLMsError, SandboxUnavailable
from pettingllms.evaluation.run import settings_of
from pettingllms.sandbox import (
    Case,
    CustomSandbox,
    Limits,
    RunResult,
    SandboxSettings,
    open_sandbox,
    shared_sandbox,
)
from pettingllms.sandbox.isolation import held_by
from pettingllms.sandbox.together import SHARED_CPU_S
from pettingllms.types import LIMITS
from tests.kernel import needs_namespaces

FIXTURES = Path(__file__).parent / "fixtures" / "datasets"
RESULT = RunResult("ok", b"0\n", b"", 0, 0.0, 0.0, 0.0, "recorder", b"0")


class Recorder:
    """A sandbox that runs nothing and remembers the limits that it was given."""

    def __init__(self) -> None:
        self.limits: list[Limits] = []
        self.closed = 0

    def run(
        self, programs: Sequence[str], cases: Sequence[Case], *, limits: Limits, **_: object
    ) -> list[list[RunResult]]:
        self.limits.append(limits)
        return [[RESULT] * len(cases) for _ in programs]

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An importable module `own` with a factory `make` of recorders, kept in `made`."""
    module: Any = ModuleType("own")
    module.made = []

    def factory() -> Recorder:
        module.made.append(Recorder())
        return module.made[-1]

    module.make = factory
    monkeypatch.setitem(sys.modules, "own", module)
    return module


keys = st.fixed_dictionaries(
    {},
    optional={
        "backend": st.sampled_from(["embedded", "docker"]),
        "workers": st.integers(1, 64),
        "packages": st.lists(st.sampled_from(["numpy", "sympy", "more-itertools"]), max_size=2),
        "cpu_s": st.floats(0.001, 1000),
        "memory_mib": st.integers(1, 1 << 16),
        "open_files": st.integers(1, 1000),
    },
)


@given(keys)
def test_the_text_of_settings_is_read_back_as_the_same_settings(given_keys):
    settings = SandboxSettings.of(given_keys)
    assert SandboxSettings.of(settings.text) == settings
    assert SandboxSettings.of(settings) == settings


@given(keys, keys)
def test_what_is_given_goes_over_a_run_key_by_key(run, over):
    text = json.dumps(over)
    assert SandboxSettings.of(run).under(text) == SandboxSettings.of({**run, **over})


def test_another_back_end_drops_the_runtime_of_the_old_one():
    run = SandboxSettings.of({"backend": "docker", "runtime": "runsc", "cpu_s": 3})
    assert run.under("embedded").text == '{"backend": "embedded", "cpu_s": 3}'


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("dockr", "did you mean 'docker'"),
        ({"cpus": 1}, "unknown key sandbox.cpus; did you mean 'cpu_s'"),
        ({"cpu_s": "fast"}, "sandbox.cpu_s must be a number, got 'fast'"),
        ({"cpu_s": True}, "sandbox.cpu_s must be a number, got True"),
        ({"memory_mib": 1.5}, "sandbox.memory_mib must be a whole number, got 1.5"),
        ({"memory_mib": 0}, "sandbox.memory_mib must be between 1 and"),
        ({"workers": 0}, "sandbox.workers must be at least 1, got 0"),
        ({"packages": "a b"}, "'a b' is not the name of a package"),
        ({"packages": 7}, "sandbox.packages must be names, as in numpy,sympy, got 7"),
        ({"runtime": "runsc"}, "sandbox.runtime is for docker, not for 'embedded'"),
        ({"backend": "own:make", "packages": "numpy"}, "sandbox.packages is for embedded, docker"),
        ('{"cpu_s"', "sandbox must be a JSON object"),
        (3, "sandbox must be a back end or an object of settings, got 3"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_cure(value, words):
    with pytest.raises(ConfigError) as caught:
        SandboxSettings.of(value)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", LIMITS)
def test_every_limit_can_be_replaced(name):
    settings = SandboxSettings.of({name: 3})
    assert getattr(settings.limits_over(Limits()), name) == 3


def test_the_users_limit_goes_over_the_data_sets_and_that_over_the_environments():
    default = Limits(cpu_s=2.0, wall_s=10.0, memory_mib=256)
    of_data = (("cpu_s", 6.0),)
    assert SandboxSettings().limits_over(default, of_data) == Limits(6.0, 30.0, 256)
    user = SandboxSettings.of({"cpu_s": 1.5, "memory_mib": 512})
    assert user.limits_over(default, of_data) == Limits(1.5, 30.0, 512)
    assert SandboxSettings.of({"cpu_s": 4, "wall_s": 5}).limits_over(default).wall_s == 5


# -------------------------------------------------------------------------------- environments


@pytest.mark.parametrize(
    ("given_keys", "cpu_s", "memory_mib"), [({}, 6.0, 256), ({"cpu_s": 1, "memory_mib": 99}, 1, 99)]
)
def test_a_task_of_livecodebench_runs_with_its_own_limits_unless_the_user_says(
    tmp_path, given_keys, cpu_s, memory_mib
):
    assert CATALOG["livecodebench"].limits == CATALOG["livecodebench_v6"].limits
    tests = json.dumps([{"input": "1", "output": "0", "testtype": "stdin"}])
    row = {"question_content": "Print 0.", "public_test_cases": tests, "private_test_cases": ""}
    file = tmp_path / "test.jsonl"
    file.write_text(json.dumps(row | {"metadata": "{}"}) + "\n")
    recorder = Recorder()
    env: Any = coding_v0.env(dataset=file, split="test", sandbox=given_keys)
    env.sandbox = recorder
    env.reset(seed=0)
    env.step("```python\nprint(0)\n```")
    seen = {(limits.cpu_s, limits.memory_mib) for limits in recorder.limits}
    assert seen == {(cpu_s, memory_mib)}


@pytest.mark.parametrize(
    ("name", "arguments", "reply"),
    [
        ("coding", {}, "```python\nprint(0)\n```"),
        ("math", {}, "```python\nprint(0)\n```"),
        ("sudoku", {"tool": "python"}, "```python\nprint(0)\n```"),
    ],
)
def test_every_environment_with_programs_takes_limits_from_the_settings(name, arguments, reply):
    env: Any = make(name, sandbox={"cpu_s": 0.75, "output_kib": 7}, **arguments)
    recorder = env.sandbox = Recorder()
    env.reset(seed=0)
    env.step(reply)
    # Of the attempt to run simple programs in one process, only the CPU limit may be shorter.
    assert {limits.output_kib for limits in recorder.limits} == {7}
    assert {limits.cpu_s for limits in recorder.limits} - {SHARED_CPU_S} == {0.75}


@needs_namespaces
def test_a_program_is_really_held_to_the_limit_of_the_settings():
    env = make("math", sandbox={"cpu_s": 0.2, "workers": 1})
    env.reset(seed=0)
    env.step("```python\nwhile True: pass\n```")
    assert env.infos["tool_0"]["statuses"] == ["cpu_limit"]


def test_limits_of_a_row_are_checked_and_kept(tmp_path):
    row = {"question": "q", "tests": [{"input": "", "output": "1"}], "reference": "print(1)"}
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row | {"limits": {"cpu_s": 6}}))
    [task] = load_tasks(file, "train").records
    assert task.limits == (("cpu_s", 6),)
    for bad, words in (
        ({"cpus": 6}, "did you mean 'cpu_s'"),
        ([6], "must be an object"),
        ({"cpu_s": -1}, "cpu_s must be a number from 0.001 to 86400, got -1"),
    ):
        file.write_text(json.dumps(row | {"limits": bad}))
        with pytest.raises(PettingLLMsError, match=words):
            load_tasks(file, "train")


@pytest.mark.parametrize(("file", "cpu_s"), [("apps.jsonl", 4.0), ("humaneval.jsonl", 3.0)])
def test_published_sets_bring_the_limit_of_their_own_evaluation(file, cpu_s):
    loaded = load_tasks(FIXTURES / file, skip_bad=True)
    assert {task.limits for task in loaded.records} == {(("cpu_s", cpu_s),)}


# ------------------------------------------------------------------------------- command lines


def test_options_of_the_sandbox_are_given_one_by_one():
    words = ["--sandbox", "docker", "--sandbox.packages", "numpy,sympy", "--sandbox.cpu-s", "6"]
    config = train.parse(words).config
    assert config is not None
    assert SandboxSettings.of(config.sandbox) == SandboxSettings(
        "docker", packages=("numpy", "sympy"), limits=(("cpu_s", 6),)
    )
    config = train.parse(["--sandbox", "docker"]).config
    assert config is not None
    assert config.sandbox == "docker"


def test_the_command_line_goes_over_the_file_key_by_key(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("sandbox: {packages: [numpy], cpu_s: 3, workers: 2}\n")
    config = train.parse(["--config", str(file), "--sandbox.cpu_s", "5"]).config
    assert config is not None
    assert SandboxSettings.of(config.sandbox).keys() == {
        "backend": "embedded",
        "workers": 2,
        "packages": ["numpy"],
        "cpu_s": 5,
    }
    file.write_text("sandbox: docker\n")
    config = train.parse(["--config", str(file), "--sandbox.cpu_s", "5"]).config
    assert config is not None
    assert config.sandbox == '{"backend": "docker", "cpu_s": 5}'


@pytest.mark.parametrize(
    "parse", [train.parse, lambda words: settings_of(evaluate.parse(words).options)]
)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sandbox.cpu", "1"], "did you mean 'cpu_s'"),
        (["--sandbox.workers", "many"], "sandbox.workers must be a whole number, got 'many'"),
        (["--sandbox", '{"workers": 1}', "--sandbox.cpu_s", "1"], "not both"),
    ],
)
def test_mistakes_on_the_command_line_are_clear(parse, words, said):
    with pytest.raises(ConfigError, match=said):
        parse(words)


def test_an_evaluation_takes_what_is_not_given_from_the_run(tmp_path):
    (tmp_path / "adapters").mkdir()
    run = {"env": "math", "sandbox": {"packages": ["numpy"], "cpu_s": 3}}
    text = json.dumps(run | {"sandbox": json.dumps(run["sandbox"])})
    (tmp_path / "config.yaml").write_text(text)

    def chosen(*words: str) -> dict:
        options = evaluate.parse(["--adapters", str(tmp_path), *words]).options
        return SandboxSettings.of(settings_of(options).sandbox).keys()

    assert chosen() == {"backend": "embedded", "packages": ["numpy"], "cpu_s": 3}
    assert chosen("--sandbox.cpu_s", "5")["cpu_s"] == 5
    assert chosen("--sandbox", "docker") == {
        "backend": "docker",
        "packages": ["numpy"],
        "cpu_s": 3,
    }


def test_every_setting_is_in_the_help():
    text = "".join(train.parser().format_help().split())
    for name in ("workers", "packages", "runtime", *LIMITS):
        assert f"--sandbox.{name}" in text


# ----------------------------------------------------------------------------- objects of yours


def test_an_object_of_the_users_own_runs_programs_and_is_closed_once(own):
    with open_sandbox("own:make") as sandbox:
        [[result]] = sandbox.run(["print(0)"], [Case()], limits=Limits(cpu_s=1))
    assert result.stdout == "0\n"
    [made] = own.made
    assert made.closed == 1
    sandbox.close()
    assert made.closed == 1


@pytest.mark.parametrize(
    "rows", [None, [], [[]], ["x"], [[None]], [[replace(RESULT, cpu_s=math.nan)]], [[RESULT] * 2]]
)
def test_what_an_object_gives_in_place_of_results_is_no_verdict(own, rows):
    own.Odd = type("Odd", (), {"run": lambda *_, **__: rows, "close": lambda _: None})
    with open_sandbox("own:Odd") as sandbox, pytest.raises(SandboxUnavailable, match=r"Odd\.run"):
        sandbox.run(["print(1)"], [Case()])


def test_an_object_that_says_how_it_isolates_is_believed_and_can_refuse(own):
    class Isolating(Recorder):
        isolation = ("virtual machine",)

        def require_isolation(self, level: str) -> None:
            if level == "full":
                raise SandboxUnavailable("not today")

    own.isolating = Isolating
    with open_sandbox("own:isolating") as sandbox:
        assert held_by(sandbox, "any") == "virtual machine"
    with pytest.raises(SandboxUnavailable, match="not today"):
        open_sandbox("own:isolating", require_isolation="full")
    with open_sandbox("own:make") as sandbox:
        assert held_by(sandbox, "any") == "unknown"
    with pytest.raises(SandboxUnavailable, match="does not say how it isolates"):
        open_sandbox("own:make", require_isolation="full")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no_such_module:make", "there is no module 'no_such_module' for the sandbox"),
        ("own:mak", "module 'own' has no 'mak'; did you mean 'make'"),
        ("own:", "is not a `module:attribute` path"),
        ("own:made", "is a list; it must be a function"),
        ("own:nothing", "made a NoneType without a method run"),
        ("own:half", "without a method close"),
    ],
)
def test_a_wrong_object_is_refused_with_its_reason(own, path, words):
    own.nothing = lambda: None
    own.half = lambda: type("Half", (), {"run": print})()
    with pytest.raises(PettingLLMsError) as caught:
        open_sandbox(path)
    assert words in str(caught.value)


def test_an_import_error_inside_the_users_module_keeps_its_own_name(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        CustomSandbox("lacking:make")


def test_settings_that_differ_in_limits_alone_share_a_sandbox(own):
    one, two = (SandboxSettings.of({"backend": "own:make", "cpu_s": s}) for s in (1, 2))
    assert shared_sandbox(one) is shared_sandbox(two)
    assert len(own.made) == 1
