"""What of vLLM needs no vLLM: its options, the command line, and what is refused."""

from __future__ import annotations

import asyncio
import importlib.util
import sys

import pytest
import torch

from pettingllms.assembly import sampler_settings
from pettingllms.cli.train import parse
from pettingllms.errors import ConfigError, SamplerUnavailable, UnknownNameError
from pettingllms.policies.loading import load_policies
from pettingllms.policies.packing import microbatches
from pettingllms.runs import read_config
from pettingllms.samplers.base import SAMPLERS, SamplerSettings, SamplingParams
from pettingllms.samplers.vllm_args import (
    OPTIONS,
    RANKS,
    REFUSED,
    check_options,
    command_line,
    lora_options,
)
from pettingllms.samplers.vllm_process import (
    RequestGuard,
    ServerError,
    VllmProcess,
    completion_body,
)
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.metrics import LossMeter
from pettingllms.types import Sample
from tests.tiny_lm import save_tiny

VALUES = {int: 2, float: 0.5, str: "bfloat16", bool: True}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_passes_through_and_a_misspelt_one_is_refused_with_what_was_meant(name):
    value = VALUES[OPTIONS[name]]
    assert check_options({name: value}) == {name: value}
    [flag, *rest] = command_line({name: value})
    assert flag == f"--{name.replace('_', '-')}"
    assert rest == ([] if value is True else [str(value)])
    wrong = name[:-2] + name[-1]
    with pytest.raises(ConfigError, match=f"unknown option vllm.{wrong}; did you mean .*{name}"):
        check_options({wrong: value})


@pytest.mark.parametrize("name", REFUSED)
def test_what_decides_the_distribution_cannot_be_set(name):
    with pytest.raises(ConfigError, match=f"vllm.{name} cannot be set: "):
        check_options({name: 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", "many"),
        ("max_num_seqs", 1.5),
        ("max_num_seqs", True),
        ("dtype", 3),
        ("enforce_eager", 1),
        ("gpu_memory_utilization", "half"),
    ],
)
def test_a_value_of_another_type_is_refused(name, value):
    with pytest.raises(ConfigError, match=rf"vllm\.{name} must be .*got"):
        check_options({name: value})


def test_a_switch_that_is_off_is_said_so():
    assert command_line({"enable_prefix_caching": False}) == ["--no-enable-prefix-caching"]
    assert check_options({"gpu_memory_utilization": 1}) == {"gpu_memory_utilization": 1}


@pytest.mark.parametrize("rank", [1, 4, 8, 9, 100, 512])
def test_the_engine_has_room_for_every_adapter_and_its_next_version(rank):
    options = lora_options(["a", "b", "c"], rank)
    assert options["max_loras"] == 3
    assert options["max_cpu_loras"] == 6
    assert options["max_lora_rank"] == min(allowed for allowed in RANKS if allowed >= rank)
    assert lora_options(["a"], None) == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vllm": '{"max_num_seqs": 2}'}, r"settings of vLLM \(max_num_seqs\) are for sampler"),
        ({"sampler": "vllm", "vllm": "[1]"}, "vllm must be a JSON object"),
    ],
)
def test_settings_of_sampling_that_do_not_belong_together_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        ATGRPOConfig(**options)


def config_of(words):
    config = parse(words).config
    assert config is not None
    return config


def test_options_with_a_dot_are_gathered_into_one(tmp_path):
    words = "--sampler vllm --vllm.max-num-seqs 4 --vllm.dtype=float32 --vllm.enforce_eager"
    config = config_of([*words.split(), "--env-args.max_turns", "2"])
    assert config.vllm == {"max_num_seqs": 4, "dtype": "float32", "enforce_eager": True}
    assert config.env_args == {"max_turns": 2}
    file = tmp_path / "c.yaml"
    file.write_text("sampler: vllm\nvllm: {max_num_seqs: 8}\n")
    assert config_of(["--config", str(file)]).vllm == {"max_num_seqs": 8}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--vllm.tensor_paralel_size 2", "vllm.tensor_paralel_size; did you mean 'tensor_parallel"),
        ("--vllm.dtype float32 --vllm {}", "give either --vllm or --vllm.dtype, not both"),
        ("--vlm.dtype float32", "unknown option '--vlm.dtype'"),
    ],
)
def test_a_wrong_option_with_a_dot_says_what_to_do(words, error):
    with pytest.raises(ConfigError, match=error):
        parse(["--sampler", "vllm", *words.split()])


def test_a_resumed_run_takes_no_options_with_a_dot_either():
    with pytest.raises(ConfigError, match="leave out --vllm"):
        parse(["--resume", "runs/x", "--vllm.dtype", "float32"])


def test_settings_of_a_run_that_sampled_on_a_server_are_those_of_vllm(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "env: math\nsampler: vllm-server\nserve: true\nserver: null\nserver_timeout: 600.0\n"
    )
    assert read_config(tmp_path).sampler == "vllm"
    assert config_of(["--config", str(file)]).sampler == "vllm"
    with pytest.raises(ConfigError, match="unknown option '--server-timeout'"):
        parse(["--server-timeout", "3"])


def test_vllm_loads_the_revision_that_is_trained(tmp_path):
    config = ATGRPOConfig(model="x/y", revision="abc", sampler="vllm", vllm={"dtype": "auto"})
    assert sampler_settings(config, tmp_path).options == {"dtype": "auto", "revision": "abc"}


def test_every_sampler_opens_and_a_misspelt_one_is_refused_with_what_was_meant():
    assert all(callable(SAMPLERS.load(name)) for name in SAMPLERS.paths())
    with pytest.raises(UnknownNameError, match="unknown sampler 'vlm'; did you mean 'vllm'"):
        ATGRPOConfig(sampler="vlm")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_where_vllm_is_missing_the_command_to_install_it_is_named(tmp_path):
    model_dir = save_tiny(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"not installed; pip install 'pettingllms\[vllm\]'"):
        load_policies(model_dir, {"coder": "a"}, sampler=SamplerSettings("vllm"))


# ------------------------------------------------------------------------------- its parts


def test_a_request_leaves_nothing_that_shapes_the_distribution_to_the_server():
    body = completion_body("a@v1", (5, 6), 3, SamplingParams(7, 0.5, top_p=0.9), 11, (2,))
    neutral = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
    assert {name: body[name] for name in neutral} == neutral
    assert (body["n"], body["seed"], body["temperature"], body["top_p"]) == (3, 11, 0.5, 0.9)
    greedy = completion_body("a@v1", (5, 6), 3, SamplingParams(7, greedy=True), 11, (2,))
    assert (greedy["n"], greedy["seed"], greedy["temperature"]) == (1, None, 0.0)


def guarded(path, key=None):
    """Status that the guard answers with; 0 where the request is let through."""
    sent, reached = [], []
    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]

    async def app(scope, receive, send):
        reached.append(scope["path"])

    async def receive():
        raise AssertionError("the guard reads no body")

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "method": "POST", "headers": headers}
    asyncio.run(RequestGuard(app)(scope, receive, send))
    return 0 if reached else sent[0]["status"]


def test_the_guard_asks_for_the_key_everywhere_and_reads_nothing_before(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "right")
    for path in ("/v1/completions", "/metrics", "/invocations", "/v1/load_lora_adapter"):
        assert guarded(path, key="right") == 0
        assert [guarded(path), guarded(path, key="wrong")] == [401, 401]
    assert guarded("/health") == 0


def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no memory left\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    process = VllmProcess("model", [], tmp_path / "vllm.log")
    with pytest.raises(
        SamplerUnavailable, match=r"ended while starting; the end of .*vllm\.log"
    ) as e:
        process.start()
    assert "  | no memory left" in str(e.value)
    assert not process.running


def test_an_error_keeps_its_status():
    assert ServerError(404, "gone").status == 404


def test_the_log_has_how_far_the_trainer_is_from_the_sampler():
    samples = [Sample((1, 2), (3, 4), (-1.0, -2.0), 1.0, count=3)]
    [batch] = microbatches(samples, 100, packed=False)
    meter, bounds = LossMeter("a"), (0.8, 1.2)
    apart_BT = torch.tensor([[0.5, -0.25]])
    logp_BT = batch.old_logprobs_BT + apart_BT
    meter.add(bounds, batch, logp_BT, apart_BT.exp(), None, None, torch.zeros(()))
    metrics = meter.metrics(1.0, 0.0)
    expected = (torch.exp(apart_BT) - apart_BT - 1).mean().item()
    assert metrics["sampling/kl"] == pytest.approx(expected, rel=1e-5)
    assert metrics["sampling/sampling_logp_difference/max"] == pytest.approx(0.5)
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(0.375)
