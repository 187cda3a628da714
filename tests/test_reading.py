"""The tables of what SmolLM2 learned: which cells are in which of them."""

from __future__ import annotations

from benchmarks import reading


def test_a_strangers_tasks_have_a_table_of_their_own_and_each_start_its_untrained_team():
    cells = {
        "read/policy for each role/0.0016/2": {"both": "11", "base": "00"},
        "rooms/no warm start/0.0002/2": {"both": "01", "base": "00"},
        "rooms/after a warm start/0.0002/2": {"both": "11", "base": "01"},
        "rooms/after a warm start/0.0002/3": {"both": "01", "base": "01"},
    }
    results = {"cells": {name: {"teams": teams} for name, teams in cells.items()}}
    assert {task for task, _ in reading.published(results)} == {"read"}
    _, rows = reading.strangers(results)
    shown = [
        [task, start, before[:4], after, mean[:4]] for task, start, before, after, mean in rows
    ]
    assert shown == [
        ["`rooms`", "no warm start", "0.00", "0.50", "0.50"],
        ["`rooms`", "after a warm start", "0.50", "1.00, 0.50", "0.75"],
    ]


def test_dynamic_sampling_ends_at_the_tokens_of_the_same_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "HERE", tmp_path)
    lab = reading.Lab(tmp_path / "reading.json", ["read"])
    lab.keep("read/policy for each role/0.0016/3", {"tokens": 77})
    cell = reading.Cell("read", reading.DYNAMIC, 1.6e-3, 3)
    assert lab._tokens(cell) == 77
    assert lab._tokens(cell._replace(arm=reading.EPISODES)) == float("inf")


def test_the_untrained_team_of_a_cold_start_is_not_that_of_a_warm_one(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "HERE", tmp_path)
    lab = reading.Lab(tmp_path / "reading.json", ["prices"])
    lab.keep("prices/after a warm start/0.0002/2", {"teams": {"base": "11", "both": "11"}})
    assert lab._base(reading.Cell("prices", reading.COLD, 2e-4, 2)) is None
    assert lab._base(reading.Cell("prices", reading.WARM, 2e-4, 3)) == "11"
