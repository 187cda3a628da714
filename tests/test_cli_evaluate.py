"""`pettingllms-eval` as it is typed: what plays, what is played, what is refused."""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pettingllms.cli.evaluate import BELOW, main, parse
from pettingllms.cli.guard import FAILED, INTERRUPTED
from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.evaluation import rollouts as rollouts_module
from pettingllms.evaluation import run as run_module
from pettingllms.evaluation.config import SHARED, EvalConfig
from pettingllms.evaluation.rollouts import lineups_of
from pettingllms.evaluation.run import plan_of, settings_of
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.session import Summary
from pettingllms.session import run_training as train
from pettingllms.statistics import over_seeds
from pettingllms.trainers.config import ATGRPOConfig
from tests.tiny_lm import save_tiny

WRITTEN = ("trajectories.jsonl", "results.json", "results.md", "results.png")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return train(
        ATGRPOConfig(
            env="tests.letters_env:env",
            env_args={"max_turns": 2},
            model=str(model),
            device="cpu",
            lora_r=4,
            max_steps=2,
            num_generations=4,
            tasks_per_step=2,
            temperature=0.3,
            max_completion_length=6,
            learning_rate=0.05,
            warmup_steps=0,
            eval_steps=0,
            eval_tasks=5,
            output_dir=str(tmp_path_factory.mktemp("runs") / "run"),
        )
    )


@pytest.fixture
def quiz(model: Path) -> list[str]:
    """A command that plays the quiz with the random model."""
    words = f"--env tests.quiz_env:env --model {model} --device cpu --max-completion-length 4"
    return words.split()


def results(out: Path) -> dict[str, dict[str, Any]]:
    teams = json.loads((out / "results.json").read_text())["results"]
    return {title: rows[0] for title, rows in teams.items()}


def games(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "trajectories.jsonl").read_text().splitlines()]


# ---------------------------------------------------------------------------------------- play


@pytest.mark.slow
def test_a_run_is_played_under_its_own_settings_and_scores_as_after_training(
    trained: Summary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--adapters", str(trained.folder), "--tasks", "5", "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert re.search(r"base +adapters", out)
    assert "test split, 5 held-out tasks" in out
    assert "adapters, success" in out
    assert re.search(rf"see every episode: .*pettingllms\S*view {tmp_path / 'out'}\n", out)
    scores = results(tmp_path / "out")
    assert scores["base"] == trained.before[0].row()
    assert scores["adapters"] == trained.after[0].row()
    assert scores["base"] != scores["adapters"]
    page = (tmp_path / "out" / "results.md").read_text()
    assert re.search(r"\| team \| success \| 0\.\d\d \[", page)
    assert "## adapters against base" in page
    assert (tmp_path / "out" / "results.png").read_bytes().startswith(b"\x89PNG")

    argv = ["--adapters", str(trained.folder / "adapters"), "--limit", "5", "--greedy"]
    assert main([*argv, "--no-base", "--out", str(tmp_path / "2")]) == 0
    assert results(tmp_path / "2") == {"adapters": trained.after[1].row()}


def test_every_prompt_reply_reward_and_verdict_is_kept(quiz: list[str], tmp_path: Path) -> None:
    assert main([*quiz, "--limit", "3", "--samples", "2", "--out", str(tmp_path)]) == 0
    episodes = games(tmp_path)
    assert [(row["team"], row["task"], row["episode"]) for row in episodes] == [
        ("base", f"test:{task}", sample) for sample in range(2) for task in range(3)
    ]
    for row in episodes:
        played = Trajectory.from_row(row)
        assert row["success"] == played.success
        for group in played.groups:
            assert group.prompt.startswith(f"{group.key.agent}: question {played.task.seed}")
            assert len(group.candidates) == 1
            one = group.chosen
            assert one.reward == one.team_reward + one.local_reward
            assert group.policy == group.key.role
        agents = [group.key.agent for group in played.groups[:3]]
        assert agents == ["reasoner_0", "reasoner_1", "judge_0"]
        assert played.returns == row["returns"]
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["settings"]["seed"] == 0
    assert written["versions"]["torch"]
    rows = results(tmp_path)["base"]
    assert {"eval/pass@2", "eval/difficulty/hard/success", "eval/judge/status/ok"} <= rows.keys()
    assert rows["eval/success"] == sum(row["success"] for row in episodes) / 6


@pytest.mark.slow
def test_sampling_settings_reach_the_sampler(quiz: list[str], tmp_path: Path) -> None:
    replies = {}
    for name, words in {
        "plain": "",
        "cold": "--temperature 0.01",
        "narrow": "--top-p 0.01",
    }.items():
        out = tmp_path / name
        assert main([*quiz, *words.split(), "--limit", "2", "--out", str(out)]) == 0
        replies[name] = [
            decision["candidates"][0]["completion"]
            for row in games(out)
            for decision in row["decisions"]
        ]
    # Both leave nothing but the likeliest token.
    assert replies["cold"] == replies["narrow"] != replies["plain"]


def test_a_data_set_is_played_whole_unless_limited(
    quiz: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.txt"
    rows.write_text("one two three")
    argv = [*quiz, "--dataset", str(rows)]
    assert len(plan_of(parse(argv).options).tasks) == 3
    assert len(plan_of(parse([*argv, "--limit", "2"]).options).tasks) == 2
    assert len(plan_of(parse(quiz).options).tasks) == 100
    rows.write_text("one bad")
    assert main(argv) == FAILED
    assert "rows.txt:2: field 'question' is missing" in capsys.readouterr().err


def test_a_model_without_adapters_is_the_base(model: Path, tmp_path: Path) -> None:
    argv = f"--env tests.letters_env:env --model {model} --device cpu --limit 2 --split val"
    more = ["--max-completion-length", "4", "--out", str(tmp_path)]
    assert main([*argv.split(), *more]) == 0
    assert list(results(tmp_path)) == ["base"]


def test_success_below_the_bar_is_an_exit_code(
    quiz: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*quiz, "--limit", "4", "--fail-under"]
    assert main([*argv, "0"]) == 0
    assert main([*argv, "1"]) == BELOW
    assert "is below 1.0" in capsys.readouterr().out


@pytest.mark.slow
def test_a_dry_run_says_what_there_is_to_play_and_loads_no_model(
    trained: Summary, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pettingllms.assembly.open_base", None)
    argv = ["--adapters", str(trained.folder), "--limit", "5", "--swap", "all", "--dry-run"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "Teams: base, adapters, writer by reader, reader by writer" in out
    for number, what in (("20", "episodes"), ("80", "completions"), ("480", "sampled tokens")):
        assert re.search(rf"{number}  {what}", out)


# -------------------------------------------------------------------------------------- resume


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_evaluation_killed_in_the_middle_goes_on_to_the_same_bytes(
    quiz: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "EPISODES_AT_ONCE", 4)
    trap = tmp_path / "trap"
    arguments = ["--env-args", json.dumps({"trap": str(trap)}), "--samples", "2", "--limit", "6"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([*quiz, *arguments, "--out", str(whole)]) == 0
    trap.write_text("4")
    words = [*quiz, *arguments, "--out", str(broken)]
    killed = multiprocessing.get_context("fork").Process(target=main, args=(words,))
    killed.start()
    killed.join()
    assert killed.exitcode == -9
    assert not trap.exists()
    assert not (broken / "results.json").exists()
    assert len(games(broken)) == 4  # the chunk before the one with task 4
    assert main(words) == 0
    for name in WRITTEN:
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.slow
def test_an_interruption_says_how_to_go_on_and_finished_teams_need_no_model(
    trained: Summary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run_module, "EPISODES_AT_ONCE", 2)
    argv = ["--adapters", str(trained.folder), "--limit", "4", "--out"]
    assert main([*argv, str(tmp_path / "whole")]) == 0

    roll_out, left = rollouts_module.roll_out, [3]

    def stopping(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return roll_out(*args)

    with monkeypatch.context() as patch:
        patch.setattr("pettingllms.evaluation.playing.roll_out", stopping)
        assert main([*argv, str(tmp_path / "broken")]) == INTERRUPTED
    assert "the same command resumes" in capsys.readouterr().out
    assert [row["team"] for row in games(tmp_path / "broken")] == ["adapters"] * 4 + ["base"] * 2
    assert main([*argv, str(tmp_path / "broken")]) == 0
    for name in WRITTEN:
        whole, broken = (tmp_path / folder / name for folder in ("whole", "broken"))
        assert broken.read_bytes() == whole.read_bytes(), name

    monkeypatch.setattr("pettingllms.evaluation.run.build_policies", None)
    assert main([*argv, str(tmp_path / "whole")]) == 0


def test_a_folder_goes_on_under_its_own_settings_only(
    trained: Summary, quiz: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained.folder, run)
    argv = ["--adapters", str(run), "--limit", "2", "--no-base", "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    capsys.readouterr()
    assert main([*argv, "--seed", "5"]) == FAILED
    assert "with seed 0, now it is 5" in capsys.readouterr().err
    shutil.rmtree(run / "adapters" / "writer")
    shutil.copytree(run / "adapters" / "reader", run / "adapters" / "writer")
    assert main(argv) == FAILED  # other adapters under the same name
    assert "adapter_digests" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- swap


@pytest.mark.slow
def test_swapped_policies_score_otherwise_and_all_is_the_matrix(
    trained: Summary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--adapters", str(trained.folder), "--limit", "5", "--no-base", "--samples", "2"]
    assert main([*base, "--swap", "writer=reader", "--out", str(tmp_path / "one")]) == 0
    one = results(tmp_path / "one")
    assert list(one) == ["adapters", "swapped"]
    assert one["adapters"] != one["swapped"]
    capsys.readouterr()
    assert main([*base, "--swap", "all", "--out", str(tmp_path / "all")]) == 0
    scores = results(tmp_path / "all")
    assert list(scores) == ["adapters", "writer by reader", "reader by writer"]
    assert scores["adapters"] == one["adapters"]
    matrix = json.loads((tmp_path / "all" / "results.json").read_text())["matrix"]
    assert {
        (role, other): cell[0] for role, row in matrix.items() for other, cell in row.items()
    } == {
        ("writer", "writer"): scores["adapters"]["eval/success"],
        ("writer", "reader"): scores["writer by reader"]["eval/success"],
        ("reader", "writer"): scores["reader by writer"]["eval/success"],
        ("reader", "reader"): scores["adapters"]["eval/success"],
    }
    out = capsys.readouterr().out
    assert re.search(r"role \\ policy of +writer +reader", out)
    # Each exchange against the plain team, as `--compare` has it; corrected for both of them.
    swaps = json.loads((tmp_path / "all" / "results.json").read_text())["swaps"]
    both = [str(tmp_path / "all") + end for end in (":adapters", ":writer by reader")]
    assert main(["--compare", *both, "--out", str(tmp_path / "c")]) == 0
    [pair] = json.loads((tmp_path / "c" / "comparison.json").read_text())["comparisons"]
    cell, alone = swaps["writer"]["reader"], pair["scores"]["success"]["difference"]
    assert {k: v for k, v in cell.items() if k[:2] not in ("p_", "ve")} == {
        k: v for k, v in alone.items() if k[:2] not in ("p_", "ve")
    }
    assert cell["p_holm"] >= cell["p"] == alone["p"] == alone["p_holm"]
    assert re.search(r"writer +\d.*\], [+-]?\d\.\d\d \[", out)
    by_reader = [row for row in games(tmp_path / "all") if row["team"] == "writer by reader"]
    assert {move["policy"] for row in by_reader for move in row["decisions"]} == {"reader"}


def test_which_teams_play() -> None:
    roles_to_policies = {"a": "a", "b": "b", "c": "c"}
    swapped = lineups_of(roles_to_policies, adapters=True, swap="a=b")
    assert [team.title for team in swapped] == ["base", "adapters", "swapped"]
    assert swapped[2].swap == {"a": "b", "b": "a"}
    assert len(lineups_of(roles_to_policies, adapters=True, base=False, swap="all")) == 1 + 6
    assert [team.title for team in lineups_of(roles_to_policies, adapters=False)] == ["base"]
    mixed = lineups_of({"a": "x", "b": "x", "c": "y"}, adapters=True, base=False, swap="all")
    assert [team.title for team in mixed[1:]] == ["a by c", "b by c", "c by a", "c by b"]
    for swap, error, says in (
        ("both", ConfigError, "coder=tester"),
        ("a=d", UnknownNameError, "'d'"),
        ("a=b,b=c", ConfigError, "'b' twice"),
    ):
        with pytest.raises(error, match=says):
            lineups_of(roles_to_policies, adapters=True, swap=swap)
    with pytest.raises(ConfigError, match="exchanges nothing: the policies are a=x, b=x"):
        lineups_of({"a": "x", "b": "x"}, adapters=True, swap="all")
    with pytest.raises(ConfigError, match="give --adapters"):
        lineups_of(roles_to_policies, adapters=False, swap="all")


# ------------------------------------------------------------------------------------- compare


@pytest.mark.slow
def test_two_evaluations_are_compared_task_by_task(
    trained: Summary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--adapters", str(trained.folder), "--limit", "6"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert main([*argv, "--out", str(one)]) == 0
    assert main([*argv, "--no-base", "--samples", "2", "--limit", "5", "--out", str(two)]) == 0
    capsys.readouterr()
    assert main(["--compare", str(one), str(two), "--out", str(tmp_path / "c")]) == 0
    out = capsys.readouterr().out
    assert "5 tasks; 1 tasks of only one side are left out" in out
    assert f"success of {two}:adapters against {one}:adapters: not decided" in out
    written = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert written["settings_apart"] == {"samples": [1, 2]}
    assert "settings that differ: samples: 1, 2" in out
    (comparison,) = written["comparisons"]
    assert (comparison["first"], comparison["second"]) == (f"{one}:adapters", f"{two}:adapters")
    score = comparison["scores"]["writer/reward"]
    gain = score["second"]["mean"] - score["first"]["mean"]
    assert score["difference"]["mean"] == pytest.approx(gain)
    assert "| writer | reward of a completion |" in (tmp_path / "c" / "comparison.md").read_text()

    assert main(["--compare", f"{one}:base", f"{one}:adapters", "--out", str(tmp_path / "d")]) == 0
    (comparison,) = json.loads((tmp_path / "d" / "comparison.json").read_text())["comparisons"]
    (within,) = json.loads((one / "results.json").read_text())["differences"]
    assert comparison["scores"] == within["scores"]


@pytest.mark.slow
def test_runs_of_one_method_have_one_interval_over_seeds_and_tasks(
    trained: Summary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--adapters", str(trained.folder), "--no-base", "--limit", "4"]
    folders = [str(tmp_path / seed) for seed in "12"]
    for seed, folder in enumerate(folders):
        assert main([*argv, "--seed", str(seed), "--out", folder]) == 0
    capsys.readouterr()
    assert main(["--combine", *folders, "--out", str(tmp_path / "both")]) == 0
    assert "2 runs, 4 tasks of all; in brackets 95 % intervals over runs" in capsys.readouterr().out
    [row] = json.loads((tmp_path / "both" / "combined.json").read_text())["results"]["adapters"]
    alone = [results(Path(folder))["adapters"] for folder in folders]
    for name in ("success", "reader/reward"):
        mean = sum(single[f"eval/{name}"] for single in alone) / 2
        assert row[f"eval/{name}"] == pytest.approx(mean)
        assert row[f"eval/{name}/low"] <= mean <= row[f"eval/{name}/high"]
    rng = np.random.default_rng(0)  # and two runs that disagree are less certain than their tasks
    apart = over_seeds(np.array([[1.0] * 50, [0.0] * 50]))
    assert apart.high - apart.low > 0.9
    agreed = over_seeds((rng.random((2, 50)) < 0.5).astype(float))
    assert agreed.high - agreed.low < 0.45
    assert main(["--combine", *folders, "--compare", *folders]) == FAILED
    more = str(tmp_path / "3")  # of other settings, and of fewer tasks
    assert main([*argv[:-1], "3", "--samples", "2", "--out", more]) == 0
    capsys.readouterr()
    assert main(["--combine", *folders, more]) == 0
    out = capsys.readouterr().out
    assert "3 runs, 3 tasks of all (1 others are left out)" in out
    assert "settings that differ: samples: 1, 1, 2" in out
    for once in (folders[:1], [folders[0], f"{folders[0]}/"]):  # no second seed
        assert main(["--combine", *once]) == FAILED
        assert "at least two evaluations" in capsys.readouterr().err


@pytest.mark.slow
def test_runs_are_played_and_then_compared(trained: Summary, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained.folder, other)
    argv = ["--compare", str(trained.folder), str(other), "--limit", "3", "--out"]
    assert main([*argv, str(tmp_path / "c")]) == 0
    (comparison,) = json.loads((tmp_path / "c" / "comparison.json").read_text())["comparisons"]
    assert all(score["difference"]["mean"] == 0 for score in comparison["scores"].values())
    assert list(results(tmp_path / "c" / "b")) == ["adapters"]


@pytest.mark.slow
def test_what_cannot_be_paired_is_refused(
    trained: Summary, quiz: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quizzed, lettered = tmp_path / "quiz", tmp_path / "letters"
    assert main([*quiz, "--limit", "1", "--out", str(quizzed)]) == 0
    assert main(["--adapters", str(trained.folder), "--limit", "1", "--out", str(lettered)]) == 0
    for argv, says in (
        ([str(quizzed), str(lettered)], "env is 'tests.quiz_env:env' and 'tests.letters_env:env'"),
        ([str(quizzed), str(tmp_path)], "holds no evaluation"),
        ([f"{lettered}:adaptors", str(lettered)], "did you mean 'adapters'"),
        ([str(quizzed), str(quizzed), "--adapters", "x"], "leave out --adapters"),
    ):
        assert main(["--compare", *argv]) == FAILED
        assert says in capsys.readouterr().err


# ------------------------------------------------------------------------------------- refusals


def test_options_go_over_the_run_and_the_run_over_defaults(trained: Summary) -> None:
    config = settings_of(EvalConfig.of(adapters=str(trained.folder), alpha=0.5))
    assert (config.alpha, config.max_completion_length) == (0.5, 6)
    assert config.env_args == {"max_turns": 2}
    # Another environment has arguments of its own.
    config = settings_of(EvalConfig.of(adapters=str(trained.folder), env="coding"))
    assert (config.env, config.max_completion_length, config.env_args) == ("coding", 6, {})
    assert settings_of(EvalConfig()).adapters is None


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--adapters", "nowhere"], "no folder nowhere"),
        (["--split", "tset"], "did you mean 'test'"),
        (["--limit", "0"], "limit must be from 1 to 1000000"),
        (["--seed", "-1"], "seed must be at least 0"),
        (["--temperature", "0"], "use --greedy"),
        (["--top-p", "1.5"], "top_p must be"),
        (["--fail-under", "90"], "fail_under must be from 0 to 1"),
        (["--greedy", "--samples", "4"], "leave out samples"),
        (["--env", "codng"], "did you mean 'coding'"),
        (["--swp", "all"], "did you mean '--swap'"),
        (["--policies", "coder=a"], "no policy for 'tester'"),
        (["--compare", "a", "b", "--dry-run"], "leave out --dry-run"),
    ],
)
def test_every_mistake_is_one_clear_line(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == FAILED
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_missing_adapter_and_another_base_are_named(
    trained: Summary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    incomplete = tmp_path / "part"
    shutil.copytree(trained.folder, incomplete)
    shutil.rmtree(incomplete / "adapters" / "reader")
    assert main(["--adapters", str(incomplete), "--limit", "1"]) == FAILED
    assert (
        "no adapter for the policy 'reader'; it has writer; choose the policy of 'reader'"
        in capsys.readouterr().err
    )
    other = save_tiny(tmp_path / "other", seed=5)
    assert (
        main(["--adapters", str(trained.folder), "--model", str(other), "--limit", "1"]) == FAILED
    )
    assert re.search(r"trained on the base model .*, not on .*other", capsys.readouterr().err)


@pytest.mark.slow
def test_roles_can_be_played_by_the_model_as_it_is(trained: Summary, tmp_path: Path) -> None:
    incomplete = tmp_path / "part"
    shutil.copytree(trained.folder, incomplete)
    shutil.rmtree(incomplete / "adapters" / "reader")
    asked = ["--adapters", str(incomplete), "--tasks", "5", "--no-base"]
    assert main([*asked, "--policies", "base", "--out", str(tmp_path / "all")]) == 0
    assert results(tmp_path / "all") == {"base": trained.before[0].row()}
    mixed = ["--policies", "writer=writer,reader=base", "--out", str(tmp_path / "one")]
    assert main([*asked, *mixed]) == 0
    played = {(m["role"], m["policy"]) for row in games(tmp_path / "one") for m in row["decisions"]}
    assert played == {("writer", "writer"), ("reader", "base")}
    (scores,) = results(tmp_path / "one").values()
    assert scores not in (trained.before[0].row(), trained.after[0].row())


def test_results_that_cannot_be_written_are_an_error(
    trained: Summary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    argv = ["--adapters", str(trained.folder), "--limit", "1", "--no-base"]
    assert main([*argv, "--out", str(tmp_path / "file")]) == FAILED
    assert "choose another folder" in capsys.readouterr().err


def test_every_option_has_a_place_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help-all"])
    shown = capsys.readouterr().out
    for name in {*vars(EvalConfig()), *SHARED} - {"over"}:
        dashed = name.replace("_", "-")
        assert re.search(rf"^  --(no-)?{dashed}\b", shown, re.MULTILINE), name
