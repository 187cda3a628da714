"""A coder that calls a debugger: who acts, what each sees, and what a call is worth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.environments import debugging_v0
from pettingllms.assembly import plan_run
from pettingllms.sandbox import Sandbox, open_sandbox
from pettingllms.trainers.config import ATGRPOConfig
from tests.test_coding_v0 import a_row, code

RIGHT, WRONG = "print(abs(int(input())))", "print(int(input()))"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


def made(tmp_path: Path, sandbox: Sandbox, **options: Any) -> Any:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(a_row()))
    env = debugging_v0.env(dataset=file, sandbox=sandbox, **options)
    env.reset(seed=0)
    return env


def asks(program: str, question: str = "Is it right for -4?") -> str:
    return f"{code(program)}\n```debug\n{question}\n```"


def block(tag: str, text: str) -> str:
    return f"Well:\n```{tag}\n{text}\n```"


def played(env: Any, *replies: str) -> list[str]:
    order = []
    for reply in replies:
        order.append(env.agent_selection)
        env.step(reply)
    return order


def test_a_coder_calls_as_often_as_it_likes(tmp_path: Path, sandbox: Sandbox) -> None:
    env = made(tmp_path, sandbox, max_turns=6)
    assert played(env, code(RIGHT)) == ["coder_0"]
    assert all(env.terminations.values())
    assert env.infos["coder_0"]["success"]
    env.reset(seed=0)
    order = played(
        env,
        asks(WRONG),
        block("input", "3"),
        block("input", "-4"),
        block("report", "-4 gives -4"),
        asks(WRONG),
        block("report", "as before"),
        code(RIGHT),
    )
    call = ["debugger_0"]
    assert order == ["coder_0", *call * 3, "coder_0", *call, "coder_0"]
    assert all(env.terminations.values())
    assert env.infos["coder_0"]["success"]


@pytest.mark.parametrize("prompt", ["full", "compact"])
def test_the_debuggers_context_is_its_own(tmp_path: Path, sandbox: Sandbox, prompt: str) -> None:
    env = made(tmp_path, sandbox, prompt=prompt)
    played(env, asks(WRONG, "first question"), block("input", "-4"))
    shown = env.observe("debugger_0")["text"]
    for text in ("first question", WRONG, "input -4 gives -4"):
        assert text in shown
    assert "absolute value" not in shown
    played(env, block("report", "minus four stays"))
    shown = env.observe("coder_0")["text"]
    for text in ("absolute value", WRONG, "first question", "minus four stays"):
        assert text in shown
    assert "gives -4" not in shown
    played(env, asks(RIGHT, "second question"))
    shown = env.observe("debugger_0")["text"]
    assert "first question" not in shown
    assert WRONG not in shown


def test_a_call_is_worth_what_it_has_seen_go_wrong(tmp_path: Path, sandbox: Sandbox) -> None:
    finding = "-4 gives -4, not 4"
    for program, text, report, expert in (
        (WRONG, "-4", finding, 1.0),
        (WRONG, "4", finding, 0.0),  # it did not see that
        (WRONG, "-4", "nothing", 0.0),
        (WRONG, "-4", "right", 0.0),
        (WRONG, "-4", "-41 gives -41", 0.0),
        (WRONG, "-4", "It keeps `-4`.", 1.0),
        (WRONG, "no number", "no number fails", 0.0),
        (RIGHT, "-4", "Right.", 1.0),
        (RIGHT, "-4", finding, 0.0),
        (RIGHT, "no number", "right", 0.0),
        (RIGHT, None, "right", 0.0),
    ):
        env = made(tmp_path, sandbox)
        inputs = [] if text is None else [block("input", text)]
        played(env, asks(program), *inputs, block("report", report))
        assert env.infos["debugger_0"]["expert"] == env.rewards["debugger_0"] == expert


def test_what_cannot_be_read_uses_up_a_turn_or_ends_a_call(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    env = made(tmp_path, sandbox, max_turns=3)
    assert played(env, "hm", asks(WRONG), "hm", "hm") == ["coder_0"] * 2 + ["debugger_0", "coder_0"]
    assert env.infos["debugger_0"]["parse_error"] is not None
    assert env.rewards["debugger_0"] == 0
    assert all(env.truncations.values())


def test_a_question_that_no_turn_is_left_for_is_ignored(tmp_path: Path, sandbox: Sandbox) -> None:
    env = made(tmp_path, sandbox, max_turns=3)
    trial = block("input", "-4")
    order = played(env, asks(WRONG), trial, trial, trial, asks(WRONG))
    # The third input is refused and counts as an empty report; then no call is possible.
    assert order == ["coder_0", *["debugger_0"] * 3, "coder_0"]
    assert "a report is due" in env.infos["debugger_0"]["parse_error"]
    assert all(env.terminations.values())
    once = made(tmp_path, sandbox, max_turns=1)
    played(once, asks(RIGHT))
    assert all(once.terminations.values())


def test_no_score_is_paid_twice(tmp_path: Path, sandbox: Sandbox) -> None:
    env = made(tmp_path, sandbox, max_turns=6)
    earned: dict[str, float] = {"coder_0": 0.0, "debugger_0": 0.0}
    call = asks(WRONG), block("input", "-4"), block("report", "-4 stays")
    for reply in (*call, *call, code(RIGHT)):
        agent = env.agent_selection
        env.step(reply)
        earned[agent] += env.rewards[agent]
    assert earned == {"coder_0": 2.0, "debugger_0": 1.0}


def test_it_is_a_team_for_methods_of_calling_and_not_for_those_of_testers() -> None:
    config = ATGRPOConfig(env="debugging", method="m_grpo")
    assert plan_run(config).config.method == "m_grpo"
    with pytest.raises(ValueError, match="programs and tests that judge each other"):
        plan_run(ATGRPOConfig(env="debugging", method="cure"))
