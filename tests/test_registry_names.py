"""Names and paths: what is found, what is suggested, what another package may add."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.registry import Registry, resolve

TOOLS = Registry("tool", {"hammer": "os.path:join", "saw": "nowhere_at_all:saw"})


def test_a_name_and_a_path_lead_to_the_same() -> None:
    assert TOOLS.load("hammer") is TOOLS.load("os.path:join")


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("hamer", UnknownNameError, "unknown tool 'hamer'; did you mean 'hammer'"),
        ("saw", UnknownNameError, "no module 'nowhere_at_all' for the tool 'nowhere_at_all:saw'"),
        ("os.path:joyn", UnknownNameError, "has no 'joyn'; did you mean 'join'"),
        (":join", ConfigError, "is not a `module:attribute` path"),
    ],
)
def test_what_leads_nowhere_is_named(name: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        TOOLS.load(name)


def test_an_import_error_inside_a_found_module_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_tool.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        resolve("broken_tool:x", "tool")


def test_an_installed_package_adds_names_and_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[pettingllms.tools]\nlevel = os.path:split\nhammer = os.path:exists\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert TOOLS.load("level") is resolve("os.path:split", "tool")
    assert TOOLS.load("hammer") is resolve("os.path:join", "tool")


def test_the_names_of_estimators_need_no_torch() -> None:
    code = "import sys, pettingllms.trainers.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
