"""Names and paths: what is found, what is suggested, what another package may add."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pettingllms.envs import load_env, make
from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.registry import Registry, resolve
from pettingllms.sandbox import Case, open_sandbox
from pettingllms.trainers import config as config_module
from pettingllms.trainers import method_names
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.method import Method

TOOLS = Registry("tool", {"hammer": "os.path:join", "saw": "nowhere_at_all:saw"})


def test_a_name_and_a_path_lead_to_the_same() -> None:
    assert TOOLS.load("hammer") is TOOLS.load("os.path:join")


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("hamer", UnknownNameError, "unknown tool 'hamer'; did you mean 'hammer'"),
        ("saw", UnknownNameError, "no module 'nowhere_at_all' for the tool 'nowhere_at_all:saw'"),
        ("os.path:joyn", UnknownNameError, "has no 'joyn'; did you mean 'join'"),
        (":join", ConfigError, "`module:attribute` path, such as .*:x or ./my_file.py:x"),
        (".path:join", ConfigError, "'.path:join' is not a `module"),
        ("./no_tool.py:x", UnknownNameError, "there is no file .*/no_tool.py"),
    ],
)
def test_what_leads_nowhere_is_named(name: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        TOOLS.load(name)


@pytest.mark.parametrize("form", ["./own_tool.py:make", "{}/own_tool.py:make", "own_tool:make"])
def test_a_path_may_name_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    (tmp_path / "own_tool.py").write_text("from os.path import join as make\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_tool", raising=False)
    assert TOOLS.load(form.format(tmp_path)) is resolve("os.path:join", "tool")


def test_an_import_error_inside_a_found_module_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_tool.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        resolve("broken_tool:x", "tool")


@pytest.fixture
def installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a package that has these entry points."""

    def install(entry_points: str) -> None:
        info = tmp_path / "elsewhere-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def test_an_installed_package_adds_names_and_replaces_none(installs: Callable[[str], None]) -> None:
    installs("[pettingllms.tools]\nlevel = os.path:split\nhammer = os.path:exists\n")
    assert TOOLS.load("level") is resolve("os.path:split", "tool")
    assert TOOLS.load("hammer") is resolve("os.path:join", "tool")


def test_an_installed_package_adds_an_environment(installs: Callable[[str], None]) -> None:
    with pytest.raises(UnknownNameError, match="unknown environment 'shouting'"):
        load_env("shouting")
    installs(
        "[pettingllms.environments]\n"
        "shouting = tests.toy_env:env\n"
        "tic_tac_toe = tests.tic_tac_toe_env:env\n"
        "coding = tests.toy_env:env\n"
    )
    assert type(make("shouting", max_turns=2)) is type(load_env("tests.toy_env:env"))
    assert load_env("coding").metadata["name"] == "coding_v0"
    for find in (make, load_env):
        with pytest.raises(UnknownNameError, match="did you mean 'shouting'"):
            find("shoutin")
    load_env("tic_tac_toe")
    for game in ("tic_tac_toe", "tests.tic_tac_toe_env:env"):
        assert type(make(game)) is type(load_env(game))


def test_an_installed_package_adds_a_sandbox(installs: Callable[[str], None]) -> None:
    with pytest.raises(ConfigError, match="'our_cluster'"):
        open_sandbox("our_cluster")
    installs(
        "[pettingllms.sandboxes]\n"
        "our_cluster = pettingllms.sandbox.embedded:EmbeddedSandbox\n"
        "docker = nowhere_at_all:docker\n"
    )
    with open_sandbox("our_cluster") as sandbox:
        ((result,),) = sandbox.run(["print(6 * 7)"], [Case()])
    assert result.stdout == "42\n"
    with pytest.raises(ConfigError, match="did you mean 'our_cluster'"):
        open_sandbox("our_clustr")


def test_an_installed_package_adds_the_parts_of_a_method(installs: Callable[[str], None]) -> None:
    installs(
        "[pettingllms.methods]\nspread = tests.own_estimator:Spread\n"
        "[pettingllms.shapes]\ntwice = tests.test_forest:Twice\n"
    )
    config = config_module.resolve(ATGRPOConfig(method="dr_mas", method_args={"shape": "twice"}))
    assert type(Method.of(config).shape()).__name__ == "Twice"
    joined = dataclasses.replace(config, method="alternate+spread", method_args={})
    assert [base.__name__ for base in type(Method.of(joined)).__mro__[1:3]] == [
        "Alternate",
        "Spread",
    ]


def test_the_joined_methods_that_the_help_and_the_reference_name_can_be_used() -> None:
    shown = f"{ATGRPOConfig.__dataclass_fields__['method'].metadata['help']} {method_names.__doc__}"
    named = re.findall(r"\w+\+\w+", shown)
    assert named
    for joined in named:
        Method.of(config_module.resolve(ATGRPOConfig(method=joined)))


def test_the_names_of_estimators_need_no_torch() -> None:
    code = "import sys, pettingllms.trainers.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
