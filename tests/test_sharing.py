"""What a run trained, handed on: the card, the folder, the hub, and the way back."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard, constants
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from pettingllms.assembly import plan_run
from pettingllms.cli import evaluate as evaluate_command
from pettingllms.cli import serve as serve_command
from pettingllms.cli import train as train_command
from pettingllms.contrib.sharing import command as share_command
from pettingllms.contrib.sharing.card import license_of, public_settings
from pettingllms.contrib.sharing.writing import share
from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.run import run_evaluation
from pettingllms.runs.team import team_of
from pettingllms.samplers.vllm_process import free_port
from pettingllms.session import run_training as train
from pettingllms.trainers.config import ATGRPOConfig, resolve
from tests.hub_stub import TOKEN, Hub, hub_stub
from tests.tiny_lm import save_tiny, tiny_config

torch.set_num_threads(1)
ROLES = ("writer", "reader")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # One layer: nothing here depends on how deep the model is.
    folder = tmp_path_factory.mktemp("somebodys-machine") / "tiny-base"
    save_tiny(folder, config=tiny_config(layers=1))
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# A base\n")
    return folder


def settings(model: Path, out: Path, **changes: Any) -> ATGRPOConfig:
    values: dict[str, Any] = {
        "env": "tests.letters_env:env",
        "env_args": '{"max_turns": 2}',
        "model": str(model),
        "lora_r": 4,
        "max_steps": 2,
        "num_generations": 4,
        "tasks_per_step": 2,
        "max_completion_length": 6,
        "learning_rate": 0.01,
        "warmup_steps": 0,
        "eval_tasks": 3,
        "eval_steps": 0,
        "output_dir": str(out),
    }
    return ATGRPOConfig(**{**values, **changes})


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(settings(model, tmp_path_factory.mktemp("somewhere") / "run")).folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that the client in this process talks to."""
    with hub_stub() as server:
        files = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        # The client has read these from the environment when it was imported.
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


# ------------------------------------------------------------------------------------ a folder


@pytest.mark.slow
def test_a_folder_has_the_adapters_and_a_card_of_what_was_measured(run, tmp_path):
    where = share(run, str(tmp_path / "mine"))
    assert where == str(tmp_path / "mine")
    files = {p.relative_to(where).as_posix() for p in Path(where).rglob("*") if p.is_file()}
    adapters = {f"{r}/adapter_{f}" for r in ROLES for f in ("config.json", "model.safetensors")}
    assert files == {"README.md", "curves.png", "team.json", *adapters}
    for role in ROLES:
        same = [
            folder / role / "adapter_model.safetensors"
            for folder in (run / "adapters", Path(where))
        ]
        assert same[0].read_bytes() == same[1].read_bytes()
    card = ModelCard.load(f"{where}/README.md")
    assert card.data.license == "cc-by-4.0"
    assert card.data.library_name == "peft"
    assert {"trl", "grpo", "lora", "transformers", "generated_from_trainer"} <= set(card.data.tags)
    text = card.text
    assert (run / "summary.md").read_text().strip() in text
    assert "](curves.png)" in text
    options = "--env tests.letters_env:env --model tiny-base"
    assert f"pettingllms-eval --adapters mine {options}\npettingllms-serve mine {options}\n" in text
    shown = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert (shown["model"], shown["learning_rate"], shown["seed"]) == ("tiny-base", 0.01, 0)


def test_nothing_of_this_machine_is_shared(run, tmp_path):
    share(run, str(tmp_path / "mine"))
    for path in (tmp_path / "mine").rglob("*"):
        if path.is_file() and path.suffix != ".png":
            content = path.read_bytes().decode("latin-1")
            for secret in (str(run.parent), "somebodys-machine", "somewhere", str(Path.home())):
                assert secret not in content, (path, secret)


def test_what_was_shared_evaluates_as_the_run_itself(run, model, tmp_path):
    share(run, str(tmp_path / "mine"))
    common = {"env": "tests.letters_env:env", "env_args": '{"max_turns": 2}', "limit": 3}
    common |= {"max_completion_length": 6, "base": False, "model": str(model)}
    ours = run_evaluation(EvalConfig.of(adapters=str(run), **common))
    policies = "writer=writer,reader=reader"
    theirs = run_evaluation(
        EvalConfig.of(adapters=str(tmp_path / "mine"), policies=policies, **common)
    )
    assert theirs.teams == ours.teams


@pytest.mark.slow
def test_a_shared_team_is_evaluated_and_served_as_it_is(run, model, tmp_path, monkeypatch):
    share(run, str(tmp_path / "mine"))
    team = json.loads((tmp_path / "mine" / "team.json").read_text())
    assert team["policies"] == {"writer": "writer", "reader": "reader"}
    assert "example" in team["prompts"]["reader"]
    named = {"adapters": str(tmp_path / "mine"), "model": str(model), "base": False, "limit": 3}
    with pytest.raises(ConfigError, match="if you trust it, name it: --env tests"):
        run_evaluation(EvalConfig.of(**named))
    theirs = run_evaluation(EvalConfig.of(env="tests.letters_env:env", **named))
    assert (
        theirs.teams == run_evaluation(EvalConfig.of(adapters=str(run), base=False, limit=3)).teams
    )
    served: list[Any] = []
    monkeypatch.setattr(serve_command, "_front", lambda options, listening: served.append)
    more = ["--env", "tests.letters_env:env", "--model", str(model), "--sampler", "transformers"]
    # A team, and one adapter of another program, which does not say what it plays.
    for words in (["mine"], ["mine/writer", "--policies", "shared"]):
        words[0] = str(tmp_path / words[0])
        assert serve_command.main([*words, *more, "--port", str(free_port("127.0.0.1"))]) == 0
        assert served[-1].reader.roles == ROLES
        served[-1].close()


def test_data_of_another_person_names_no_path_and_no_code(tmp_path):
    arguments = {
        "max_turns": 2,
        "topology": "star",
        "corpus": "/etc",
        "judge": "os:system",
        "sandbox": "docker",
    }
    settings = {
        "env": "search",
        "env_args": json.dumps(arguments),
        "sandbox": "my:own",
        "output_dir": "/",
    }
    team = {"format": 1, "settings": settings, "policies": {"answerer": "a"}, "prompts": {}}
    (tmp_path / "team.json").write_text(json.dumps(team))
    published = team_of(tmp_path, None)
    assert published is not None
    assert published.env_args == {"max_turns": 2, "topology": "star"}
    assert (published.policies, published.sandbox) == ("answerer=a", ATGRPOConfig.sandbox)
    template = {"enable_thinking": False, "template": "{{ 1 }}"}
    team["settings"] = settings | {"chat_template_kwargs": template}
    (tmp_path / "team.json").write_text(json.dumps(team))
    published = team_of(tmp_path, None)
    assert published is not None
    assert published.chat_template_kwargs == {"enable_thinking": False}
    team["settings"] = settings
    settings["model"] = "../secret"
    for damaged in (json.dumps(team), "[" * 100_000):
        (tmp_path / "team.json").write_text(damaged)
        with pytest.raises(RunFolderError, match="is damaged"):
            team_of(tmp_path, None)


@pytest.mark.slow
def test_the_program_of_each_role_on_a_card_works(run, model, tmp_path, monkeypatch, capsys):
    share(run, str(tmp_path / "mine"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-base").symlink_to(model)
    programs = (tmp_path / "mine" / "README.md").read_text().split("```python\n")[1:]
    assert len(programs) == len(ROLES)
    for role, program in zip(ROLES, programs, strict=True):
        capsys.readouterr()
        code = program.split("```")[0]
        assert f"subfolder={role!r}" in code
        prompt = json.loads(Path("mine/team.json").read_text())["prompts"][role]["example"]
        assert repr(prompt) in code
        exec(compile(code, role, "exec"), {})
        assert capsys.readouterr().out.strip()


def test_peft_alone_loads_what_was_shared(run, model, tmp_path):
    share(run, str(tmp_path / "mine"))
    base = AutoModelForCausalLM.from_pretrained(model)
    PeftModel.from_pretrained(base, str(tmp_path / "mine"), subfolder="reader")
    saved = load_file(tmp_path / "mine" / "reader" / "adapter_model.safetensors")
    assert any(tensor.any() for tensor in saved.values())


@pytest.mark.slow
def test_a_folder_is_shared_to_again_but_no_other_files_are_lost(run, tmp_path):
    share(run, str(tmp_path / "mine"))
    share(run, str(tmp_path / "mine"))
    for name in ("thesis.txt", "README.md"):
        other = tmp_path / name.lower()
        other.mkdir()
        (other / "thesis.txt").write_text("years of work")
        (other / "README.md").touch()
        with pytest.raises(ConfigError, match=r"holds other files \(thesis.txt\)"):
            share(run, str(other))
        assert (other / "thesis.txt").exists()
    with pytest.raises(ConfigError, match="is a file"):
        share(run, str(tmp_path / "mine" / "README.md"))


def test_the_command_says_what_cannot_be_shared(run, tmp_path, capsys):
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.yaml").write_text("env: coding\n")
    full = tmp_path / "full"
    full.mkdir()
    (full / "config.yaml").write_text("env: coding\nfull: true\n")
    for folder, says in {
        tmp_path / "none": "no run",
        unfinished: "has not finished",
        full: "policies of this run are full models",
    }.items():
        assert share_command.main([str(folder), "--to", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
    assert share_command.main([str(run), "--to", "hub:no such name"]) == 2
    assert "is no name of a repository" in capsys.readouterr().err
    assert share_command.main([str(run), "--to", "hub:me/mine"]) == 2
    assert "HF_HUB_OFFLINE" in capsys.readouterr().err
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.yaml").write_text("env: coding\n")
    (tmp_path / "damaged" / "summary.json").write_text("{}")
    with pytest.raises(RunFolderError, match="is damaged"):
        share(tmp_path / "damaged", str(tmp_path / "out"))


def test_the_settings_of_a_card_are_those_of_the_run():
    config = resolve(
        ATGRPOConfig(
            env="sokoban", method="grpo", seed=3, gradient_checkpointing=True, eval_steps=7
        )
    )
    assert resolve(ATGRPOConfig(**public_settings(config))) == config


def test_a_license_is_the_bases_own_or_none(model, tmp_path):
    assert license_of(ATGRPOConfig()) == "apache-2.0"
    assert license_of(ATGRPOConfig(model=str(model))) == "cc-by-4.0"
    assert license_of(ATGRPOConfig(model=str(save_tiny(tmp_path)))) is None
    assert license_of(ATGRPOConfig(model="nobody/nothing")) is None  # offline


# ------------------------------------------------------------------------------------- the hub


@pytest.mark.slow
def test_the_hub_gets_what_a_folder_gets_and_an_evaluation_takes_it_back(run, model, tmp_path, hub):
    share(run, str(tmp_path / "mine"))
    # A process, whose environment names the hub and has the token, as that of a user.
    done = subprocess.run(
        [sys.executable, "-m", share_command.__name__, str(run), "--to", "hub:me/mine"],
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "", "HF_HUB_DISABLE_XET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr + str(hub.asked)
    assert done.stdout == f"shared: {hub.url}/me/mine\n"
    folder = tmp_path / "mine"
    written = {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    assert hub.repos["me/mine"].keys() - {".gitattributes"} == written.keys()
    for name, content in hub.repos["me/mine"].items():
        if name != "README.md":
            assert content == written[name]
    assert b"--adapters hub:me/mine" in hub.repos["me/mine"]["README.md"]
    assert not (run / ".shared.upload").exists()
    card = hub.repos["me/mine"]["README.md"].decode()
    [line] = [line for line in card.splitlines() if line.startswith("pettingllms-eval ")]
    # The base has no name that the hub knows; its folder stands in for it.
    words = [str(model) if word == "tiny-base" else word for word in shlex.split(line)[1:]]
    words += ["--limit", "3", "--out", str(tmp_path / "eval"), "--no-base"]
    assert evaluate_command.main(words) == 0, hub.asked
    ours = run_evaluation(EvalConfig.of(adapters=str(run), base=False, limit=3))
    results = json.loads((tmp_path / "eval" / "results.json").read_text())
    assert results["results"]["adapters"] == [ours.main.row()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # the client's own
def test_a_run_pushes_at_its_end(model, tmp_path, hub, capsys):
    config = tmp_path / "settings.yaml"
    values = vars(settings(model, tmp_path / "run", max_steps=1, push_to_hub="me/pushed"))
    config.write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not None}))
    assert train_command.main(["--config", str(config)]) == 0
    assert f"shared: {hub.url}/me/pushed" in capsys.readouterr().out
    assert "writer/adapter_model.safetensors" in hub.repos["me/pushed"]


@pytest.mark.slow
def test_a_hub_that_refuses_is_one_line(run, hub, monkeypatch, capsys):
    def refused() -> str:
        assert share_command.main([str(run), "--to", "hub:me/mine"]) == 2
        [line] = capsys.readouterr().err.strip().splitlines()
        return line

    monkeypatch.delenv("HF_TOKEN")
    assert "needs a token that may write; log in with `hf auth login`" in refused()
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    wrong = refused()
    hub.broken = 403
    for line, status in ((wrong, "HTTP 401"), (refused(), "HTTP 403")):
        assert line.startswith(f"error: the hub at {hub.url} did not take 'me/mine': {status}")
        assert "hf_wrong" not in line


def test_a_target_that_cannot_be_pushed_to_is_refused_before_anything_is_trained(model, tmp_path):
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
        plan_run(settings(model, tmp_path / "run", push_to_hub="me/mine"))
    with pytest.raises(ConfigError, match="full models"):
        plan_run(settings(model, tmp_path / "run", push_to_hub="me/mine", full=True))
    assert not (tmp_path / "run").exists()
