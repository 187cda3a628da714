"""`pettingllms-eval` as it is typed: what plays, what is played, what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from pettingllms.cli.evaluate import EvalOptions, main, parse, settings_of, swaps_of
from pettingllms.cli.guard import FAILED
from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.session import Summary, train
from pettingllms.trainers.config import ATGRPOConfig
from tests.tiny_lm import save_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return train(
        ATGRPOConfig(
            env="tests.letters_env:env",
            env_args='{"max_turns": 2}',
            model=str(model),
            device="cpu",
            lora_r=4,
            max_steps=2,
            num_generations=4,
            tasks_per_step=2,
            max_completion_length=6,
            learning_rate=0.05,
            warmup_steps=0,
            eval_steps=0,
            eval_tasks=5,
            output_dir=str(tmp_path_factory.mktemp("runs") / "run"),
        )
    )


def results(out: Path) -> dict[str, dict[str, object]]:
    found = json.loads((out / "results.json").read_text())["results"]
    return {title: rows[0] for title, rows in found.items()}


def test_a_run_is_played_under_its_own_settings_and_scores_as_after_training(
    trained: Summary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--adapters", str(trained.folder), "--tasks", "5", "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert re.search(r"base +adapters", out)
    assert "test split, 5 held-out tasks" in out
    found = results(tmp_path / "out")
    assert found["base"] == trained.before[0].row()
    assert found["adapters"] == trained.after[0].row()
    assert found["base"] != found["adapters"]
    assert "| team | success | sampled |" in (tmp_path / "out" / "results.md").read_text()

    folder = str(trained.folder / "adapters")
    argv = [
        "--adapters",
        folder,
        "--tasks",
        "5",
        "--greedy",
        "--no-base",
        "--out",
        str(tmp_path / "2"),
    ]
    assert main(argv) == 0
    assert results(tmp_path / "2") == {"adapters": trained.after[1].row()}


def test_swapped_policies_score_otherwise_and_all_is_every_pair(
    trained: Summary, tmp_path: Path
) -> None:
    base = ["--adapters", str(trained.folder), "--tasks", "5", "--no-base", "--samples", "2"]
    assert main([*base, "--swap", "writer=reader", "--out", str(tmp_path / "one")]) == 0
    one = results(tmp_path / "one")
    assert list(one) == ["adapters", "swapped"]
    assert one["adapters"] != one["swapped"]
    assert main([*base, "--swap", "all", "--out", str(tmp_path / "all")]) == 0
    assert list(results(tmp_path / "all")) == ["adapters", "writer by reader", "reader by writer"]


def test_a_model_without_adapters_is_the_base(model: Path, tmp_path: Path) -> None:
    argv = f"--env tests.letters_env:env --model {model} --device cpu --tasks 2 --split val"
    more = ["--max-completion-length", "4", "--out", str(tmp_path)]
    assert main([*argv.split(), *more]) == 0
    assert list(results(tmp_path)) == ["base"]


def test_exchanging_goes_both_ways() -> None:
    assert swaps_of("a=b", ["a", "b", "c"])["swapped"] == {"a": "b", "b": "a"}
    assert len(swaps_of("all", ["a", "b", "c"])) == 1 + 6
    assert swaps_of(None, ["a", "b"]) == {"": None}
    with pytest.raises(ConfigError, match="coder=tester"):
        swaps_of("both", ["a", "b"])
    with pytest.raises(UnknownNameError, match="'d'"):
        swaps_of("a=d", ["a", "b"])


def test_options_go_over_the_run_and_the_run_over_defaults(trained: Summary) -> None:
    config = settings_of(EvalOptions(adapters=str(trained.folder), env="coding", alpha=0.5))
    assert (config.env, config.alpha) == ("coding", 0.5)
    assert config.max_completion_length == 6
    assert config.env_args == '{"max_turns": 2}'
    assert settings_of(EvalOptions()).adapters is None


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--adapters", "nowhere"], "no folder nowhere"),
        (["--split", "tset"], "split must be one of"),
        (["--tasks", "0"], "tasks must be at least 1"),
        (["--seed", "-1"], "seed must not be negative"),
        (["--env", "codng"], "did you mean 'coding'"),
        (["--swp", "all"], "did you mean '--swap'"),
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
    part = tmp_path / "part"
    shutil.copytree(trained.folder, part)
    shutil.rmtree(part / "adapters" / "reader")
    assert main(["--adapters", str(part), "--tasks", "1"]) == FAILED
    assert "no adapter for the policy 'reader'; it has writer" in capsys.readouterr().err
    other = save_tiny(tmp_path / "other", seed=5)
    assert (
        main(["--adapters", str(trained.folder), "--model", str(other), "--tasks", "1"]) == FAILED
    )
    assert re.search(r"trained on the base model .*, not on .*other", capsys.readouterr().err)


def test_results_that_cannot_be_written_are_an_error(
    trained: Summary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    argv = ["--adapters", str(trained.folder), "--tasks", "1", "--no-base"]
    assert main([*argv, "--out", str(tmp_path / "file")]) == FAILED
    assert "choose another --out" in capsys.readouterr().err


def test_every_option_has_a_place_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    shown = capsys.readouterr().out
    for name in vars(EvalOptions()):
        dashed = name.replace("_", "-")
        assert re.search(rf"^  --(no-)?{dashed}\b", shown, re.MULTILINE), name
