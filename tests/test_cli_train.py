"""`pettingllms-train` as it is typed: from options to adapters, and every mistake in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from peft import PeftModel
from transformers import AutoModelForCausalLM

import pettingllms
from pettingllms.cli import guard, train
from pettingllms.cli.train import StopAsked, main, parse, parser
from pettingllms.errors import ConfigError
from tests.tiny_lm import save_tiny, tiny_config

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # One layer: nothing here depends on how deep the model is.
    return save_tiny(tmp_path_factory.mktemp("model"), config=tiny_config(layers=1))


def words(model: Path, run: Path, *more: str, steps: int = 2) -> list[str]:
    options = (
        f"--env tests.letters_env:env --model {model} --device cpu --lora-r 2 --max-steps {steps} "
        f"--num-generations 4 --tasks_per_step=2 --max-completion-length 4 --eval-tasks 2 "
        f"--eval-steps 2 --learning-rate 1e-2 --warmup-steps 0 --output-dir {run}"
    )
    return [*options.split(), "--env-args", '{"max_turns": 1}', *more]


# ------------------------------------------------------------------------------- end to end


@pytest.mark.slow
def test_two_steps_from_the_command_line_give_adapters_for_plain_peft(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(words(model, run)) == 0
    out = capsys.readouterr().out
    assert "step 1/2" in out
    assert re.search(r"step 2/2  success: mean \d\.\d\d, executed \d\.\d\d  writer .*tokens/s", out)
    assert re.search(r"team +success +sampled +0\.\d\d \[0\.\d\d, .* greedy", out, re.DOTALL)
    assert out.rstrip().endswith(f"pettingllms-eval --env tests.letters_env:env --adapters {run}")
    assert re.search(rf"view the episodes: .*pettingllms\S*view {run}\n", out)
    base = AutoModelForCausalLM.from_pretrained(model)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        plain = base(ids).logits
        adapted = PeftModel.from_pretrained(base, str(run / "adapters" / "writer"))
        assert not torch.equal(adapted(ids).logits, plain)

    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["num_generations"] == 4
    again = ["--config", str(run / "config.yaml"), "--output-dir", str(tmp_path / "again")]
    assert main(again) == 0
    for policy in ("writer", "reader"):
        path = f"adapters/{policy}/adapter_model.safetensors"
        assert (tmp_path / "again" / path).read_bytes() == (run / path).read_bytes()

    capsys.readouterr()
    assert main(words(model, run)) == guard.FAILED
    assert "holds a run already" in capsys.readouterr().err
    assert main(["--resume", str(run), "--max-steps", "9"]) == guard.FAILED
    assert "leave out --max-steps" in capsys.readouterr().err


@pytest.mark.slow
def test_the_default_is_the_embedded_model_on_the_coding_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--max-steps 1 --num-generations 2 --tasks-per-step 2 --eval-tasks 2 --device cpu"
    # Half of the length that is the default: some programs of this model fit into it.
    short = "--max-completion-length 48 --eval-steps 0 --no-compare-roles"
    assert main([*small.split(), *short.split()]) == 0
    out = capsys.readouterr().out
    assert "model: embedded, for a CPU" in out
    assert "--model Qwen/Qwen3-1.7B" in out
    assert "hidden tests passed, first completion" in out
    (run,) = (path for path in (tmp_path / "runs").iterdir() if not path.is_symlink())
    assert re.fullmatch(r"coding-per-role-\d{8}-\d{6}", run.name)
    assert (tmp_path / "runs" / "latest").resolve() == run
    assert {path.name for path in (run / "adapters").iterdir()} == {"coder", "tester"}
    rows = [json.loads(line) for line in (run / "trajectories.jsonl").read_text().splitlines()]
    first = [row["decisions"][0] for row in rows]
    assert all(len(decision["prompt_ids"]) < 100 for decision in first), (
        "the embedded model's prompts are short"
    )


@pytest.mark.slow
def test_an_interrupted_run_saves_says_how_to_go_on_and_exits_with_130(
    model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "pettingllms.cli.train", *words(model, run, steps=100_000)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 2/"):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=40)
    assert process.returncode == guard.INTERRUPTED, err
    assert "stopping after this step" in err
    stopped = re.search(rf"after step (\d+); resume with: .*train --resume {run}", out)
    assert stopped
    assert (run / "checkpoints" / f"step-{int(stopped[1]):06d}" / "state.json").is_file()
    assert "Traceback" not in err


# ---------------------------------------------------------------------------------- options


def test_the_command_line_goes_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "env: coding\nmax_steps: 7\nseed: 3\nlearning_rate: 1e-4\nfull: true\n"
        "env_args: {max_turns: 2}\nreport_to: [tensorboard, trackio]\ndelta: null\n"
    )
    parse([])  # imports everything: some libraries set variables then
    before = dict(os.environ)
    config = parse(["--seed", "4", f"--config={file}"]).config
    assert config is not None
    assert (config.max_steps, config.seed, config.learning_rate) == (7, 4, 1e-4)
    assert config.full is True
    assert config.env_args == {"max_turns": 2}
    assert config.report_to == "tensorboard,trackio"
    assert config.epsilon == 0.2
    assert config.env == "coding", "the key `env` is a setting"
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--max-step", "3"], "'--max-step'; did you mean '--max-steps'"),
        (["--max_step=3"], "did you mean '--max-steps'"),
        (["--lr", "3"], "unknown option '--lr'; use --learning-rate"),
        (["--vllm-mode", "colocate"], "use --sampler (vllm, in this process"),
        (["--optim", "sgd"], "TRL's optim is not here: the optimizer is AdamW"),
        (["--gradient_accumulation_steps", "2"], "use --tokens-per-batch"),
        (["--max-steps", "many"], "--max-steps: invalid int value: 'many'"),
        (["--max-steps", "0"], "max_steps must be at least 1"),
        (["--max-steps"], "expected one argument"),
        (["stray"], "unexpected argument 'stray'"),
        (["--method", "at_grop"], "at_grpo"),
        (["--loss-type", "sft"], "loss_type"),
        (["--env", "codng", "--dry-run"], "did you mean 'coding'"),
        (["--resume", "runs/none"], "no run folder"),
        (["--resume", "x", "--seed", "1", "--dry-run"], "leave out --dry-run, --seed"),
        (["--config", "nofile.yaml"], "nofile.yaml cannot be read"),
    ],
)
def test_every_mistake_on_the_command_line_is_one_clear_line(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == guard.FAILED
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_step: 3", "unknown key 'max_step'; did you mean 'max_steps'"),
        ("per_device_train_batch_size: 3", "use tasks_per_step"),
        ("bf16: true", "use dtype (bfloat16)"),
        ("max_steps: 2.5", "invalid int value: '2.5'"),
        ("max_steps: true", "invalid int value: 'True'"),
        ("seed:", "seed has no value"),
        ("- a", "must map settings to values"),
        ("a: [", "is not YAML"),
    ],
)
def test_every_mistake_in_a_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse(["--config", str(file)])


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert parse(["--config", str(tmp_path / "c.yaml")]).config == parse([]).config


def test_help_shows_every_option_once_and_does_not_wait_for_torch() -> None:
    code = (
        "import sys\n"
        "from pettingllms.cli.train import main\n"
        "try:\n    main(['--help-all'])\n"
        "finally:\n    assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert shown.returncode == 0, shown.stderr
    options = re.findall(r"^  (--[a-z0-9-]+)", shown.stdout, re.MULTILINE)
    assert len(options) == len(set(options))
    dests = {action.dest for action in parser()._actions}
    # A switch that is on by default is shown as the one that turns it off.
    names = {option[2:].replace("-", "_").removeprefix("no_") for option in options}
    assert names == dests
    assert all(len(line) <= 120 for line in shown.stdout.splitlines())


def test_the_first_level_of_help_has_at_most_sixty_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    options = re.findall(r"^  --[a-z0-9-]+", shown, re.MULTILINE)
    assert len(options) <= 60
    assert f"--help-all shows {len(parser()._rare)} more options" in " ".join(shown.split())


@pytest.mark.parametrize("env", ["coding", "math", "plan_path", "sokoban", "sudoku", "model"])
def test_help_shows_the_values_that_a_run_would_use(
    env: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--env", env] if env != "model" else ["--env", "sokoban", "--model", str(model)]
    with pytest.raises(SystemExit):
        main([*words, "--help-all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert main([*words, "--dry-run"]) == 0
    used = yaml.safe_load(capsys.readouterr().out)
    assert {"learning_rate", "num_generations", "tasks_per_step", "max_steps"} <= used.keys()
    for name, value in used.items():
        if not isinstance(value, bool) and name != "model":
            option = f"--{name.replace('_', '-')}"
            match = re.search(rf" {option} .*?\(default: (.*?)\)", shown)
            assert match is not None
            assert match[1] == str(value), name
    if env == "sokoban":
        assert (used["num_generations"], used["tasks_per_step"]) == (16, 8)
        assert used["learning_rate"] == 5e-4


def test_every_command_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    from pettingllms.cli import data, envs, evaluate, sandbox, serve, train, view

    for command in (data, envs, evaluate, sandbox, serve, train, view):
        with pytest.raises(SystemExit):
            command.main(["--version"])
        assert capsys.readouterr().out == f"pettingllms {pettingllms.__version__}\n"


def test_an_unwritable_folder_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(words(model, tmp_path / "file" / "run")) == guard.FAILED
    assert "cannot be" in capsys.readouterr().err


def test_a_missing_library_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    def needs(name: str) -> int:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    assert guard.guarded(lambda: needs("torch.nn")) == guard.FAILED
    assert "pip install 'pettingllms[train]'" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError):
        guard.guarded(lambda: needs("my_own_package"))


# ---------------------------------------------------------------------------------- dry run


def test_a_dry_run_estimates_and_writes_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(words(model, run, "--dry-run")) == 0
    out = capsys.readouterr().out
    assert not run.exists()
    assert yaml.safe_load(out)["tasks_per_step"] == 2, "all but the settings is a comment"
    assert "2 policies for 2 roles (writer, reader), 2 trained" in out
    weights = AutoModelForCausalLM.from_pretrained(model)
    assert f"model: {sum(p.numel() for p in weights.parameters()):,} parameters" in out
    completions = 2 * 4 * 2
    assert re.search(rf"# +{completions}  completions \(4 to each prompt\)", out)
    assert re.search(rf"# +{completions * 4}  sampled tokens", out)


def test_the_estimate_of_an_adapter_is_what_peft_makes(model: Path) -> None:
    from pettingllms.cli.estimate import shape_of
    from pettingllms.policies.loading import load_policies

    for targets in ("all-linear", "q_proj,v_proj"):
        config = parse(
            ["--model", str(model), "--lora-r", "3", "--lora-target-modules", targets]
        ).config
        assert config is not None
        names = targets if targets == "all-linear" else targets.split(",")
        policies = load_policies(model, {"a": "a"}, lora_r=3, lora_target_modules=names)
        made = sum(parameter.numel() for parameter in policies.parameters("a"))
        assert shape_of(config).adapter == made


def test_a_second_interrupt_stops_at_once_unless_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    asked = StopAsked(reading)
    assert not asked()
    asked.ask(signal.SIGTERM, None)
    assert asked()
    asked.ask(signal.SIGTERM, None)
    with pytest.raises(KeyboardInterrupt):
        asked.ask(signal.SIGINT, None)  # a key that was pressed twice, however fast
    monkeypatch.setattr(train, "SAME_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        asked.ask(signal.SIGTERM, None)
    # Python calls once for two presses during one call of C.
    os.write(writing, bytes([signal.SIGINT, signal.SIGINT]))
    with pytest.raises(KeyboardInterrupt):
        StopAsked(reading).ask(signal.SIGINT, None)
    os.close(reading)
    os.close(writing)
