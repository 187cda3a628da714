"""What a user sees while a run goes on."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from pettingllms.cli.display import TerminalDisplay, best_display
from pettingllms.trainers.callbacks import TimeLeft, duration


def row(**more: float) -> dict[str, float]:
    return {
        "reward/coder": 0.5,
        "tokens_per_second": 1234.5,
        "success": 0.25,
        "success_mean": 0.125,
    } | more


def test_plain_lines_show_step_success_rewards_speed_and_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with best_display() as display:  # standard output is no terminal here
        display.say("hello")
        for step in (1, 2, 3):
            display.step(step, 3, row())
        display.evaluating("before", 1, 2)
        display.evaluating("before", 2, 2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "hello"
    assert (
        lines[1].rstrip()
        == "step 1/3  success: mean 0.12, executed 0.25  coder 0.50  1,234 tokens/s"
    )
    assert lines[2].endswith("left")
    assert lines[4] == "before: 2 episodes done"


def test_a_terminal_shows_bars_and_keeps_messages() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    with TerminalDisplay(console) as display:
        display.say("[not markup] kept")
        display.evaluating("before: test tasks", 1, 2)
        display.evaluating("before: test tasks", 2, 2)
        display.step(1, 2, row())
    shown = stream.getvalue()
    assert "[not markup] kept" in shown
    assert "executed 0.25" in shown
    assert "1/2" in shown


def test_time_left_follows_the_speed_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = TimeLeft()
    assert clock.left(40, 60) == ""  # resumed: nothing is known yet
    now[0] += 30
    assert clock.left(41, 60) == f"{duration(19 * 30)} left"
    assert duration(19 * 30) == "10 min"
    assert duration(20_000) == "5.6 h"
