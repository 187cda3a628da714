"""STeP's teacher: it gives an agent's next reply after a wrong one, and play goes on from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pettingllms.cli.data import main
from pettingllms.cli.evaluate import main as evaluate
from pettingllms.errors import ConfigError
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.run import plan_of
from tests.api_stub import Stub, stubbed
from tests.test_step_sft import replies, rows
from tests.tiny_lm import save_tiny

torch.set_num_threads(1)
ENV = ["--env", "tests.test_step_sft:Walk", "--env-args.max_turns", "4", "--limit", "1"]


@pytest.fixture
def stub() -> Iterator[Stub]:
    with stubbed() as server:
        yield server


def saying(**lines: list[str]) -> Any:
    """The next line of each model; guides say the same always."""
    left = {model: iter(texts) for model, texts in lines.items()}

    def text(body: dict[str, Any]) -> str:
        shown = body["messages"][0]["content"]
        return "go" if shown.startswith("guide") else next(left[body["model"]])

    return text


def decisions(out: Path) -> list[tuple[str, str, str | None]]:
    """Policy, reply, and what the teacher corrects, of the walker's decisions."""
    (row,) = rows(out / "trajectories.jsonl")
    walker = [d for d in row["decisions"] if d["role"] == "walker"]
    said = [(d["policy"], d["candidates"][0]) for d in walker]
    return [(policy, c["completion"], c["info"].get("corrects")) for policy, c in said]


def test_the_teacher_follows_a_wrong_reply_once_and_its_words_are_in_later_prompts(
    stub: Stub, tmp_path: Path
) -> None:
    stub.text = saying(young=["-1", "um", "2"], old=["-1", "2"])
    out = tmp_path / "played"
    words = [*ENV, "--policies", "api:young", "--teacher", "api:old", "--api-base", stub.base]
    assert evaluate([*words, "--out", str(out)]) == 0
    assert decisions(out) == [
        ("api:young", "-1", None),
        ("api:old", "-1", "worse"),
        # One try: a teacher that is wrong itself hands back.
        ("api:young", "um", None),
        ("api:old", "2", "unreadable"),
    ]
    asked = [b["messages"][0]["content"] for b in stub.bodies if b["model"] == "old"]
    assert asked == ["walker_0 after go -1 go", "walker_0 after go -1 go -1 go um go"]
    settings = json.loads((out / "settings.json").read_text())["settings"]
    assert settings["teams"] == {"corrected": {"teacher": "api:old"}}


def test_a_local_student_is_corrected_and_the_correction_is_exported(
    stub: Stub, tmp_path: Path
) -> None:
    # The random model never writes a number.
    stub.text = saying(old=["3"])
    model, out = save_tiny(tmp_path / "model"), tmp_path / "played"
    words = [*ENV, "--model", str(model), "--max-completion-length", "6", "--greedy", "true"]
    words += ["--teacher", "api:old", "--api-base", stub.base, "--split", "train"]
    assert evaluate([*words, "--out", str(out)]) == 0
    assert [policy for policy, _, _ in decisions(out)] == ["walker", "api:old"]
    assert main(["step", str(out), "--out", str(tmp_path / "step")]) == 0
    assert replies(tmp_path / "step" / "walker.jsonl") == ["3"]
    (row,) = rows(tmp_path / "step" / "walker.jsonl")
    (line,) = rows(out / "trajectories.jsonl")
    said = [decided["candidates"][0]["completion"] for decided in line["decisions"][:3]]
    assert row["prompt"][0]["content"] == f"walker_0 after {' '.join(said)}"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"teacher": "old"}, r"api:MODEL; got 'old'"),
        ({"teacher": "api:"}, "names no model"),
        ({"teacher": "api:old", "api_base": None}, "give its address"),
        ({"teacher": "api:old", "swap": "all"}, "leave out --swap"),
        ({"teacher": "api:old", "members": "a=b,c=d"}, "leave out --members"),
    ],
)
def test_a_teacher_that_cannot_correct_is_refused_before_anything_is_loaded(
    more: dict[str, Any], words: str
) -> None:
    given = {"env": "tests.test_step_sft:Walk", "api_base": "http://127.0.0.1:1/v1", **more}
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(ConfigError, match=words):
        plan_of(EvalConfig.of(**given))
