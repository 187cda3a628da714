"""`--adapters`: a run, one adapter that PEFT saved, pairs of roles, the hub; and what is none of these."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from pettingllms.api import evaluate
from pettingllms.assembly import build_policies, located
from pettingllms.cli.evaluate import main, parse
from pettingllms.cli.guard import FAILED
from pettingllms.errors import ConfigError
from pettingllms.evaluation.run import EvalPlan, plan_of
from pettingllms.policies.weights import read_config, read_tensors
from pettingllms.trainers.config import ATGRPOConfig, resolve
from tests.tiny_lm import save_tiny, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter as PEFT alone writes it, strong enough to change completions."""
    shape = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        peft = get_peft_model(tiny_model(), shape)
        with torch.no_grad():
            for name, tensor in peft.named_parameters():
                if "lora_B" in name:
                    tensor.normal_(std=0.5)
    peft.peft_config["default"].base_model_name_or_path = str(model)
    folder = tmp_path_factory.mktemp("peft") / "mine"
    peft.save_pretrained(str(folder))
    (folder / "README.md").unlink(missing_ok=True)
    return folder


@pytest.fixture
def words(model: Path) -> list[str]:
    return [*["--env", "tests.letters_env:env", "--env-args.max_turns", "2", "--limit", "3", "--device", "cpu"],
            *f"--max-completion-length 4 --model {model}".split()]  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put(cache: Path, name: str, files: Path, inside: str = ".") -> None:
    """Lays a repository out in the cache as the hub's client does."""
    folder = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(files, folder / "snapshots" / "a1b2c3" / inside)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a1b2c3")


def plan(argv: list[str]) -> EvalPlan:
    return plan_of(parse(argv).options)


def failure(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == FAILED
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.slow
def test_one_adapter_that_peft_saved_plays_all_roles(
    words: list[str], adapter: Path, tmp_path: Path
) -> None:
    assert main([*words, "--adapters", str(adapter), "--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["settings"]["policies"] == {"writer": "shared", "reader": "shared"}
    assert list(written["settings"]["adapter_digests"]) == ["shared"]
    base, adapted = (written["results"][team][0] for team in ("base", "adapters"))
    assert base["eval/writer/reward"] != adapted["eval/writer/reward"]


@pytest.mark.slow
def test_roles_are_given_adapters_one_by_one_and_the_base_plays_the_others(
    words: list[str], adapter: Path, tmp_path: Path
) -> None:
    assert main([*words, "--adapters", f"writer={adapter}", "--out", str(tmp_path)]) == 0
    lines = [
        json.loads(line) for line in (tmp_path / "trajectories.jsonl").read_text().splitlines()
    ]
    played = {
        (move["role"], move["policy"])
        for row in lines
        if row["team"] == "adapters"
        for move in row["decisions"]
    }
    assert played == {("writer", "writer"), ("reader", "base")}
    both = plan([*words, "--adapters", f"writer={adapter},reader={adapter}"])
    assert both.roles_to_policies == {"writer": "writer", "reader": "reader"}
    assert set(both.adapters.values()) == {adapter.resolve()}
    by_api = evaluate(
        "tests.letters_env:env",
        adapters={"writer": adapter},
        env_args={"max_turns": 2},
        limit=3,
        device="cpu",
        max_completion_length=4,
        model=words[-1],
    )
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["results"]["adapters"] == [by_api.main.row()]


def test_training_starts_from_one_roles_adapter_and_a_fresh_one_for_the_other(
    adapter: Path, model: Path
) -> None:
    config = ATGRPOConfig(model=str(model), device="cpu", adapters=f"writer={adapter}")
    policies = build_policies(resolve(located(config)), {"writer": "writer", "reader": "reader"})
    saved = load_file(adapter / "adapter_model.safetensors")
    started = policies.state("writer")
    assert started.keys() == saved.keys()
    assert all(torch.equal(started[name], saved[name]) for name in saved)
    fresh = policies.state("reader")
    assert all(not tensor.any() for name, tensor in fresh.items() if "lora_B" in name)
    policies.close()


def test_an_adapter_comes_from_the_hubs_cache_by_its_id(
    words: list[str], adapter: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cache, "somebody/mine", adapter)
    put(cache, "somebody/team", adapter, inside="writer")
    snapshot = cache / "models--somebody--mine" / "snapshots" / "a1b2c3"
    for spec in ("somebody/mine", "somebody/mine@main"):
        planned = plan([*words, "--adapters", spec])
        assert planned.adapters == {"shared": snapshot}
        assert planned.config.adapters == str(snapshot)
    pairs = plan([*words, "--adapters", "writer=somebody/team,reader=somebody/mine"])
    assert pairs.adapters["writer"].name == "writer"
    assert pairs.adapters["reader"] == snapshot
    err = failure([*words, "--adapters", "somebody/nothing"], capsys)
    assert "no folder somebody/nothing, and the Hugging Face hub did not hand out" in err
    assert "check the name and the network" in err


def test_an_adapter_of_another_base_model_is_noticed_before_anything_is_loaded(
    words: list[str],
    adapter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "other"
    shutil.copytree(adapter, other)
    config = json.loads((other / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "Qwen/Qwen3-1.7B"
    (other / "adapter_config.json").write_text(json.dumps(config))
    monkeypatch.setattr("pettingllms.assembly.open_base", None)
    for spec in (str(other), f"writer={other}"):
        err = failure([*words, "--adapters", spec], capsys)
        assert "trained on the base model 'Qwen/Qwen3-1.7B', not on" in err
        assert "--model Qwen/Qwen3-1.7B" in err


def test_what_is_no_adapter_is_refused_with_a_cure(
    words: list[str], adapter: Path, model: Path, tmp_path: Path, cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run, bare, broken = tmp_path / "run", tmp_path / "bare", tmp_path / "broken"
    run.mkdir()
    (run / "config.yaml").write_text("env: coding\n")
    shutil.copytree(adapter, bare)
    (bare / "adapter_model.safetensors").unlink()
    shutil.copytree(adapter, broken)
    (broken / "adapter_config.json").write_text("[]")
    dora = tmp_path / "dora"
    shutil.copytree(adapter, dora)
    values = json.loads((dora / "adapter_config.json").read_text())
    (dora / "adapter_config.json").write_text(json.dumps(values | {"use_dora": True}))
    for spec, says in {
        str(tmp_path / "nowhere"): "there is no folder",
        str(run): "--resume",
        str(bare): "save_pretrained",
        str(broken): "not an object",
        str(dora): "has use_dora='True'; only plain LoRA",
        f"writer={adapter},writer={adapter}": "'writer' is named twice",
        f"writer={adapter},": "is not ROLE=FOLDER",
        f"wrter={adapter}": "did you mean 'writer'",
        f"writer={model}": "no adapter for the role 'writer'",
    }.items():
        assert says in failure([*words, "--adapters", spec], capsys), spec
    shared = [*words, "--policies", "shared", "--adapters", f"writer={adapter},reader={dora}"]
    assert "its policy 'shared' is another role's, too" in failure(shared, capsys)


def test_what_is_no_model_is_refused_with_a_cure(
    words: list[str], adapter: Path, tmp_path: Path, cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("env: coding\n")
    (tmp_path / "model.gguf").write_text("")
    for name, says in {
        str(run): f"is a run; use its adapters with --adapters {run}",
        str(adapter): "is an adapter; give its base model",
        str(tmp_path): "has no config.json",
        str(tmp_path / "model.gguf"): "cannot be read as GGUF",
        "nosuch/x": "the Hugging Face hub did not hand out 'nosuch/x'",
        "a b/c/d": "no hub id",
    }.items():
        argv = [*words[:-1], name]
        assert says in failure(argv, capsys), name
        assert says in failure([*argv, "--dry-run"], capsys), name


@pytest.mark.parametrize(
    "field",
    [
        {"r": 10**7},
        {"r": "16"},
        {"lora_alpha": float("nan")},
        {"target_modules": "(.*.*)*(.*.*)*Z"},
        {"target_modules": "("},
        {"target_modules": {"q_proj": 1}},
        {"rank_pattern": {"(.*.*)*Z": 5}},
        {"alpha_pattern": {"q_proj": "y"}},
        {"layers_to_transform": "x"},
        {"layer_replication": [[0, 10**6]]},
        {"loftq_config": {"loftq_bits": 4}},
        {"of_a_later_peft": True},
    ],
    ids=str,
)
def test_a_hostile_adapter_is_refused_before_peft_sees_it(field: dict[str, Any], tmp_path: Path):
    values = {"peft_type": "LORA", "r": 4, "target_modules": r".*layers.*\.(q|v)_proj"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(values))
    assert read_config(tmp_path).r == 4
    (tmp_path / "adapter_config.json").write_text(json.dumps(values | field))
    with pytest.raises(ConfigError, match=f"has {next(iter(field))}=.*only plain LoRA"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name} is no regular file"):
        read_tensors(tmp_path, "base", "digest")


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    save_file({"x": torch.tensor([1.0, float("nan")])}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match="has NaN or infinity, first in x"):
        read_tensors(tmp_path, "base", "digest")


@pytest.mark.parametrize("listens", [False, True], ids=["closed-port", "never-answers"])
def test_a_hub_out_of_reach_is_said_in_one_line_and_soon(
    words: list[str], listens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("pettingllms.data.hub.HUB_SECONDS", 0.5)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        if not listens:
            server.close()
        reason = f"{url} did not answer" if listens else "Connection refused"
        for spec in ("nosuch/x", "nosuch/x@main", "writer=nosuch/x"):
            started = time.monotonic()
            err = failure([*words, "--adapters", spec], capsys)
            assert time.monotonic() - started < 5
            assert "the Hugging Face hub did not hand out 'nosuch/x' (" in err
            assert reason in err
            assert len(err.splitlines()) == 1
        assert reason in failure([*words[:-1], "nosuch/x"], capsys)


@pytest.mark.slow
def test_another_sampling_engine_samples_in_an_evaluation(
    words: list[str], adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot = ["--sampler", "tests.own_engine:open_engine", "--no-base", "--out", str(tmp_path)]
    assert main([*words, "--adapters", str(adapter), *parrot]) == 0
    lines = [
        json.loads(line) for line in (tmp_path / "trajectories.jsonl").read_text().splitlines()
    ]
    for move in (move for row in lines for move in row["decisions"]):
        assert move["candidates"][0]["token_ids"] == move["prompt_ids"][:4]
    capsys.readouterr()
    # The same folder cannot be continued with another engine.
    err = failure([*words, "--adapters", str(adapter), "--no-base", "--out", str(tmp_path)], capsys)
    assert "with sampler 'tests.own_engine:open_engine'" in err
    try:
        import vllm  # noqa: F401
    except ModuleNotFoundError:
        err = failure([*words, "--sampler", "vllm"], capsys)
        assert "pip install 'pettingllms[vllm]'" in err
        assert ".ci/setup" not in err
