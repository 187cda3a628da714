"""The published tables are what the committed results say."""

from __future__ import annotations

import itertools
import json
import re
import subprocess

import pytest
import torch

from benchmarks import boards, habits, learning, overlap, sandbox, tables
from benchmarks.evidence import PASS_TASKS, PASSES
from benchmarks.measure import Products, _of_attention
from benchmarks.priming import prime
from pettingllms.cli import train
from pettingllms.data import arithmetic
from pettingllms.data.arithmetic import Step, Story
from pettingllms.envs import ENVIRONMENTS, make
from pettingllms.models import DEFAULT, EMBEDDED
from pettingllms.trainers.config import ATGRPOConfig, resolve
from tests.quoted_commands import fork_commands


def a_run(base: str, after: str, commit: str = "0123456789") -> dict:
    """What `benchmarks.learning` keeps of one seed."""

    def played(**teams: str) -> dict:
        success = {name: digits.count("1") / len(digits) for name, digits in teams.items()}
        rows = {name: [{"eval/success": mean}] for name, mean in success.items()}
        return {"results": rows, "solved": teams, "revision": {"commit": commit}}

    return {
        "timing": {"cpu_seconds": 60.0},
        "sampled": played(base=base, adapters=after, swapped=base),
        "greedy": played(base=base, adapters=after),
        "beyond": played(base="0" * 100, adapters="0" * 100) | {"size": "larger"},
        "passes": {"solved": {"base": [0, 1], "adapters": [64, 0]}},
    }


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of results of its own."""
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(tables, "HERE", tmp_path)

    def publish(name: str, result: object) -> None:
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(result))

    return publish


def test_an_interval_in_a_sentence_of_the_results_is_one_of_a_table():
    pages = [
        *(tables.HERE.parent / "docs" / "results").glob("*.md"),
        tables.HERE / "results" / "tables.md",
    ]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    block = re.compile(r"<!-- table \w+ -->.*?<!-- end of table -->", flags=re.DOTALL)
    interval = re.compile(r"[+-]?\d\.\d\d \[[^\]]*\]")
    told = set(interval.findall(block.sub("", text)))
    tabled = set(interval.findall("".join(block.findall(text))))
    assert told <= tabled, "write it without brackets where it is of no table"


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
        # Older rows were not asked about larger tasks.
        for how in {"sampled", "greedy", "beyond"} & set(run):
            assert {len(digits) for digits in run[how]["solved"].values()} == {learning.TASKS}
        for counts in run.get("passes", {"solved": {}})["solved"].values():
            assert len(counts) == PASS_TASKS
            assert max(counts) <= PASSES[-1]


def test_filling_a_table_keeps_what_is_around_it():
    page = "before\n<!-- table teams -->\n<!-- end of table -->\nafter\n"
    full = tables.filled(page)
    assert full.startswith("before\n<!-- table teams -->\n|  | `")
    assert full.endswith("|\n<!-- end of table -->\nafter\n")
    assert tables.filled(full) == full


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("<!-- table trust -->\n<!-- end of table -->", "no published result"),
        ("<!-- table something_else -->\n<!-- end of table -->", "no published result"),
        ("<!-- table teams -->\n", "no <!-- end of table -->"),
        (
            "<!-- table teams -->\n<!-- table outcomes -->\n<!-- end of table -->",
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
    results("parts", {"environments": {"coding": coding, "paths": coding}})  # of Plan-Path, too
    assert tables.outcomes().splitlines()[2:] == ["| `coding` | parts | 0.25 | 0.75 |"]


def test_teams_have_intervals_that_are_never_a_point(results):
    run = a_run("0" * 50 + "1" * 50, "1" * 100)
    results("learning_sudoku", {"at_grpo-0": run, "shared-at_grpo-0": run})
    results("blind", {"rows": [{"game": "sudoku 4x4", "refused": "stop", "success": 0.125}]})
    rows = [line.strip("| ").split(" | ") for line in tables.teams().splitlines()]
    shown = {name: cell for name, cell, _ in rows[2:]}
    assert rows[0] == ["`sudoku`", "`sudoku`"]
    assert rows[2] == ["policies", "per-role", "shared"]
    assert (shown["base"], shown["after training"]) == ("0.50 [0.40, 0.60]", "1.00 [0.95, 1.00]")
    assert (shown["blind"], shown["larger tasks"]) == ("0.12", "larger")
    assert shown["base, larger"] == shown["after training, larger"] == "0.00 [0.00, 0.05]"
    assert (shown["CPU-seconds"], shown["revision"]) == ("60 [60, 60]", "`0123456`")


def test_pass_at_k_of_base_and_trained_team_is_of_the_first_seed(results):
    run = a_run("0011", "0111")
    other = {name: value for name, value in run.items() if name != "passes"}
    results("learning_sudoku", {"at_grpo-0": run, "at_grpo-1": other})
    assert tables.teams_passes().splitlines()[2:] == [
        "| `sudoku`, base | 0.01 | 0.03 | 0.12 | 0.50 |",
        "| `sudoku`, trained | 0.50 | 0.50 | 0.50 | 0.50 |",
    ]


def test_rows_of_another_revision_leave_the_results_when_new_ones_come_in():
    old, new, newest = (a_run("01", "11", commit) for commit in ("a", "b", "b"))
    runs = learning.beside({"at_grpo-0": old, "at_grpo-1": old}, "at_grpo-0", new)
    assert runs == {"at_grpo-0": new}
    assert learning.beside(runs, "at_grpo-1", newest) == {"at_grpo-0": new, "at_grpo-1": newest}


def test_a_task_that_was_shown_is_found_under_other_names_and_in_another_order():
    grid, twin, other = (
        tuple(map(int, text))
        for text in ("1234341221434321", "4321214334121234", "1234341241232341")
    )
    assert overlap.seen([grid], [twin, other], tuple) == 0
    assert overlap.seen([grid], [twin, other], overlap.renamed) == 1
    shown = Story(7, (Step("+", 5), Step("-", 3)), "")
    turned = Story(5, (Step("-", 3), Step("+", 7)), "")
    fresh = Story(7, (Step("+", 5), Step("+", 3)), "")
    assert overlap.seen([shown], [turned, fresh], overlap.reordered) == 1


def test_old_stories_are_of_the_old_training_split_alone():
    # Held-out stories leave it out, in this order.
    shown = {story.computation for story in overlap.old_stories(4000)}
    assert not shown & {arithmetic.generate(seed, "test").computation for seed in range(300)}


SIZES = {
    "coding": lambda game: game.steps[1],
    "math": lambda game: max(_sentences(game, seed) for seed in range(20)),
    "plan_path": lambda game: game.height,
    "sokoban": lambda game: game.settings.size,
    "sudoku": lambda game: game.size**2 - game.clues[0],
}
"""How large the largest tasks of an environment are."""


def _sentences(game, seed: int) -> int:
    game.reset(seed=seed)
    return game.observe(game.agent_selection)["text"].count(".")


@pytest.mark.parametrize("env", learning.SCORES)
def test_larger_tasks_are_one_step_or_size_beyond_the_largest_of_training(env):
    declared = dict(make(env).embedded)
    usual, larger = (
        make(env, split="test", **{**declared, **other}) for other in ({}, learning.BEYOND[env][1])
    )
    assert SIZES[env](larger) == SIZES[env](usual) + 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_finished_training_is_not_repeated_and_has_its_cpu_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", subprocess.run)  # as it is afterwards
    fork_commands({train.__name__: []})
    run = tmp_path / "run"
    words = "--env plan_path --max-steps 1 --eval-steps 0 --tasks-per-step 1 --num-generations 2"
    words += " --eval-tasks 1 --max-completion-length 4"
    learning.train(run, *words.split(), "--model", DEFAULT)
    made = (run / "summary.json").stat().st_mtime_ns
    learning.train(run, "--env", "not read any more")
    assert (run / "summary.json").stat().st_mtime_ns == made
    assert learning.timing(run)["cpu_seconds"] > learning.timing(run)["time/update"] > 0


def test_what_the_habit_study_says_it_runs_has_cells_although_nothing_was_measured():
    models = {"clean": "c0", "half": "d1"}
    _, (*rows, digests) = habits.table({"models": models, "environments": {}})
    assert {row[0] for row in rows} == {f"`{env}`" for env in learning.SCORES}
    assert {cell for row in rows for cell in row[1:]} == {"not measured"}
    assert digests == ["digest", *(["`c0`"] * 2), *(["`d1`"] * 4)]
    record = {"clean": {"sampled": "01", "greedy": "11"}, "runs": {}}
    _, rows = habits.table({"models": models, "environments": {"math": record}})
    (math,) = (row for row in rows if row[0] == "`math`")
    assert math[1].startswith("0.50 [")
    assert math[3] == "not measured"


def test_a_checkpoint_without_habits_is_never_written_over_the_embedded_model(capsys):
    with pytest.raises(SystemExit):
        prime.main(["--clean", "1"])
    assert "--out is required" in capsys.readouterr().err


@pytest.mark.parametrize("env", learning.SCORES)
def test_a_checkpoint_without_habits_is_trained_with_the_settings_of_the_embedded_model(env):
    words = learning.words_of(habits.settings(env, EMBEDDED.parent / "elsewhere"))
    config = train.parse(words).config
    assert config is not None
    settings = vars(resolve(config))
    other = vars(resolve(ATGRPOConfig(env=env, model=DEFAULT)))
    assert {name for name in settings if settings[name] != other[name]} == {"model", "env_args"}
    assert config.env_args == dict(make(env).embedded) | {
        name: list(value) for name, value in make(env).embedded.items() if type(value) is tuple
    }


def test_the_products_inside_fused_attention_count():
    query, key, value = (torch.randn(1, 2, tokens, 16).requires_grad_() for tokens in (5, 7, 7))
    with Products() as products:
        torch.nn.functional.scaled_dot_product_attention(query, key, value).sum().backward()
    shapes = [(left[0], right[0]) for _, left, right in products.calls.elements()]
    # Scores and results; then the scores again, and two gradients of either.
    assert len(shapes) == 7
    assert {rows * inner * columns for (_, rows, inner), (_, _, columns) in shapes} == {5 * 7 * 16}


@pytest.mark.parametrize("backward", [False, True])
def test_heads_of_queries_that_share_a_key_count_one_by_one(backward):
    # As a GPU's kernel gets them; on a CPU PyTorch repeats the keys before.
    tensors = [torch.randn(1, heads, tokens, 16) for heads, tokens in ((4, 5), (2, 7), (2, 7))]
    for left, right in _of_attention([tensors[0]] * backward + tensors, backward):
        assert left.shape[-1] * torch.bmm(left, right).numel() == 4 * 5 * 7 * 16


def test_the_speed_benchmarks_run_with_their_smallest_settings():
    [row] = sandbox.compare({"first": (lambda: None, itertools.count().__next__, 1)}, rounds=1)
    assert row["wall p95 ms"] >= 0
    assert sandbox.quarters([1.5]) == "1.50 to 1.50"
    quick = [f for f in boards.figures(None, calls=1) if "characters" not in f.what]
    assert all(figure.run() > 0 for figure in quick)
