"""What the README and the pages of the documentation show works as shown."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import pettingllms
from pettingllms.data.coding_schemas import load_tasks
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.settings import OWN, own_settings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Their code trains for minutes, or needs a server, a model, or a framework of the reader's.
NOT_RUN = ("docs/training.md", "docs/serving.md")


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    code: str
    output: str | None
    """The block of text that follows at once: what Python code prints."""


def _blocks() -> Iterator[Block]:
    for path in PAGES:
        page, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        fences = [*re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
        for fence, following in itertools.zip_longest(fences, fences[1:]):
            shown = following is not None and following[1] == "text"
            yield Block(page, fence[1], fence[2], following[2] if following and shown else None)


BLOCKS = list(_blocks())
PYTHON = [block for block in BLOCKS if block.language == "python"]


def _commands() -> Iterator[tuple[str, list[str]]]:
    for block in BLOCKS:
        if block.language not in ("bash", "console"):
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words and words[0].startswith("pettingllms-"):
                yield block.page, words


COMMANDS = list(_commands())
every_command = pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=[f"{page} {' '.join(words)}" for page, words in COMMANDS]
)
RUN = [block for block in PYTHON if block.page not in NOT_RUN]


def test_every_kind_of_block_is_known() -> None:
    # `text` is compared with what the Python code before it prints.
    languages = {"bash", "console", "json", "python", "text", "yaml"}
    assert {block.language for block in BLOCKS} <= languages
    assert sum(block.language == "text" for block in BLOCKS) == sum(
        block.output is not None for block in RUN
    )


@pytest.mark.parametrize("block", RUN, ids=[block.page for block in RUN])
def test_python_code_runs_and_prints_what_the_page_shows(
    block: Block,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "pettingllms.trainers" in block.code:
        pytest.importorskip("torch")
    if block.page == "docs/games.md" and not (find_spec("textarena") and find_spec("pygame")):
        pytest.skip("the games are not installed")
    monkeypatch.chdir(tmp_path)
    exec(compile(block.code, block.page, "exec"), {"__name__": "page"})
    printed = capsys.readouterr().out
    if block.output is not None:
        # Editors strip blanks at the ends of lines.
        assert [line.rstrip() for line in printed.splitlines()] == block.output.splitlines()


@pytest.mark.parametrize("block", PYTHON, ids=[block.page for block in PYTHON])
def test_python_code_uses_names_and_settings_that_exist(block: Block) -> None:
    pytest.importorskip("trl")
    tree = ast.parse(block.code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pettingllms"):
            # As the statement itself, which also imports submodules.
            exec(compile(ast.Module([node], []), block.page, "exec"), {})
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "pl" or hasattr(pettingllms, node.attr), node.attr
        elif isinstance(node, ast.Call):
            arguments = [keyword.arg for keyword in node.keywords]
            assert [
                name for name in arguments if name not in _settings(ast.unparse(node.func), name)
            ] == []


def _settings(function: str, name: str | None) -> set[str | None]:
    """Names of arguments of `pl.train` and the like; whatever is given, for another function."""
    from pettingllms.evaluation.config import EvalConfig

    training = {field.name for field in dataclasses.fields(pettingllms.ATGRPOConfig)}
    accepted: dict[str, set[str]] = {
        "pl.ATGRPOConfig": training,
        "pl.train": training | {"callbacks", "display"},
        "pl.evaluate": training
        | {field.name for field in dataclasses.fields(EvalConfig)}
        | {"display"},
    }
    return {*accepted.get(function, ()), None} if function in accepted else {name}


@every_command
def test_commands_are_understood(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    from pettingllms.cli import data, envs, evaluate, sandbox, serve, train, view
    from pettingllms.contrib.sharing import command as share

    monkeypatch.syspath_prepend(str(ROOT / "integrations" / "openenv"))
    import pettingllms_env_server

    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("alpha: 0.5\n")
    Path("my.jsonl").write_text("\n".join(_rows()))
    own_method = next(block.code for block in PYTHON if block.page == "docs/own-estimator.md")
    Path("my_package").mkdir()
    Path("my_package/credit.py").write_text(own_method)
    monkeypatch.syspath_prepend(str(tmp_path))
    parsers: dict[str, Callable[[list[str]], object]] = {
        "pettingllms-train": train.parse,
        "pettingllms-eval": evaluate.parse,
        "pettingllms-serve": serve.parse,
        "pettingllms-view": view.parse,
        "pettingllms-envs": envs._parser().read,
        "pettingllms-data": data._parser().read,
        "pettingllms-sandbox": sandbox._parser().read,
        "pettingllms-share": share.parser().read,
        "pettingllms-env-server": pettingllms_env_server.parse,
    }
    parsers[words[0]](words[1:])


def test_the_readme_shows_python_code_and_commands() -> None:
    assert sum(block.page == "README.md" for block in PYTHON) >= 1
    assert sum(page == "README.md" for page, _ in COMMANDS) >= 3


def test_the_readme_fits_on_a_few_screens() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 880
    assert len(re.findall(r"\d\.\d", text)) <= 25


def _rows() -> list[str]:
    lines = (line for b in BLOCKS if b.language == "json" for line in b.code.splitlines())
    return list(dict.fromkeys(filter(None, lines)))


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "yaml"], ids=lambda b: b.page)
def test_a_configuration_file_holds_settings_that_can_be_used(block: Block) -> None:
    config = resolve(ATGRPOConfig(**yaml.safe_load(block.code)))
    for policy, settings in config.policy_settings.items():
        assert settings.keys() <= set(OWN)
        own_settings(config, policy)


def test_the_examples_of_a_task_file_load(tmp_path: Path) -> None:
    file = tmp_path / "my.jsonl"
    file.write_text("\n".join(_rows()))
    assert [*map(json.loads, _rows())]
    assert load_tasks(file).report.read == len(_rows())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_linked_file_exists(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{target} is linked and does not exist"
