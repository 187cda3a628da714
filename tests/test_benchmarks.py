"""The published tables are what the committed results say."""

from __future__ import annotations

import json

import pytest

from benchmarks import learning, skill, tables
from pettingllms.envs import ENVIRONMENTS


def a_run(base: str, after: str) -> dict:
    """What `benchmarks.learning` keeps of one seed."""

    def played(**teams: str) -> dict:
        success = {name: digits.count("1") / len(digits) for name, digits in teams.items()}
        rows = {name: [{"eval/success": mean}] for name, mean in success.items()}
        return {"results": rows, "solved": teams}

    return {
        "timing": {"time/step": 60.0},
        "sampled": played(base=base, adapters=after, swapped=base),
        "greedy": played(base=base, adapters=after),
    }


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of results of its own."""
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(tables, "HERE", tmp_path)

    def publish(name: str, result: object) -> None:
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(result))

    return publish


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_tables_of_the_pages_are_made_from_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert "<!-- table " in text
    assert tables.filled(text) == text


@pytest.mark.parametrize("env", ENVIRONMENTS.own)
def test_every_run_that_is_published_has_its_settings_versions_and_tasks(env):
    for name, run in (
        tables.load(f"learning_{env}").items() if tables.published(f"learning_{env}") else ()
    ):
        assert run["config"], name
        assert run["versions"], name
        assert {len(digits) for digits in run["sampled"]["solved"].values()} == {learning.TASKS}


def test_filling_a_table_keeps_what_is_around_it():
    page = "before\n<!-- table environments -->\n<!-- end of table -->\nafter\n"
    full = tables.filled(page)
    assert full.startswith("before\n<!-- table environments -->\n| name |")
    assert full.endswith("|\n<!-- end of table -->\nafter\n")
    assert tables.filled(full) == full


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("<!-- table trust -->\n<!-- end of table -->", "no published result"),
        ("<!-- table something_else -->\n<!-- end of table -->", "no published result"),
        ("<!-- table environments -->\n", "no <!-- end of table -->"),
        (
            "<!-- table environments -->\n<!-- table outcomes -->\n<!-- end of table -->",
            "no <!-- end",
        ),
    ],
)
def test_a_marker_that_cannot_be_filled_is_an_error(results, page, why):
    with pytest.raises(SystemExit, match=why):
        tables.filled(page)


def test_without_results_the_tables_of_what_teams_learn_say_so(results):
    assert tables.outcomes() == tables.teams() == tables.UNPUBLISHED


def test_outcomes_have_a_row_an_environment_and_no_interval(results):
    results(
        "learning_sudoku", {"at_grpo-0": a_run("0011", "0111"), "at_grpo-1": a_run("0011", "1111")}
    )
    assert tables.outcomes().splitlines()[2:] == ["| `sudoku` | habits | 0.50 | 0.88 |"]


def test_outcomes_are_those_of_the_base_that_is_the_default(results):
    results("learning_coding", {"at_grpo-0": a_run("0011", "0111")})
    teams = {"trained": {"tasks": "0111"}}
    coding = {"base": {"base": {"tasks": "0001"}}, "runs": {"21": {"teams": teams}}}
    results("parts", {"environments": {"coding": coding}})
    assert tables.outcomes().splitlines()[2:] == ["| `coding` | parts | 0.25 | 0.75 |"]


def test_teams_have_intervals_that_are_never_a_point(results):
    run = a_run("0" * 50 + "1" * 50, "1" * 100)
    results("learning_sudoku", {"at_grpo-0": run, "shared-at_grpo-0": run})
    results("blind", {"rows": [{"game": "sudoku 4x4", "refused": "stop", "success": 0.125}]})
    own, shared = tables.teams().splitlines()[2:]
    assert own.startswith("| `sudoku` | per-role | 0.50 [0.40, 0.60] | 1.00 [0.95, 1.00] |")
    assert shared.startswith("| `sudoku` | shared |")
    assert "| 0.12 | 60 | 1 |" in own


def test_what_skill_says_it_runs_has_a_row_although_nothing_was_measured():
    _, rows = skill.table({"clean": {}, "half": {}})
    assert len(rows) == len(skill.ENVIRONMENTS) + 2 * len(skill.SKILLS)
    assert {cell for row in rows for cell in row[1:]} == {"not measured"}
