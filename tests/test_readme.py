"""What the README shows works as shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pettingllms.data.coding_schemas import load_tasks

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands(name: str) -> list[list[str]]:
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith(name)]


@pytest.mark.parametrize("code", blocks("python"))
def test_the_python_code_of_the_readme_runs(code):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_the_readme_shows_python_code_and_commands():
    assert len(blocks("python")) >= 2
    assert len(commands("pettingllms-train")) >= 3


def test_every_training_command_of_the_readme_is_understood(tmp_path, monkeypatch):
    pytest.importorskip("trl")
    from pettingllms.cli.train import parse

    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("alpha: 0.5\n")
    Path("my.jsonl").write_text("\n".join(blocks("json")))
    for words in commands("pettingllms-train"):
        parse(words)


def test_every_evaluation_command_of_the_readme_is_understood():
    pytest.importorskip("trl")
    from pettingllms.cli.evaluate import parse

    for words in commands("pettingllms-eval"):
        parse(words)


def test_the_example_of_a_task_file_loads(tmp_path):
    file = tmp_path / "my.jsonl"
    file.write_text("\n".join(block.strip() for block in blocks("json")))
    assert load_tasks(file).report.read == len(blocks("json")) > 0


def test_every_linked_file_exists():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), f"{target} is linked and does not exist"
