"""What `--dry-run` says: of memory, against what an update really keeps; of time on a CPU; of what fits."""

from __future__ import annotations

import contextlib
import json
import re
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks.measure import saved_bytes
from pettingllms.assembly import build_policies, plan_run
from pettingllms.cli import train
from pettingllms.cli.estimate import (
    Gpu,
    ModelShape,
    _NoneSilent,
    activation_bytes,
    dry_run,
    gpu_of,
)
from pettingllms.errors import ConfigError
from pettingllms.policies.packing import batch_logprobs, microbatches
from pettingllms.policies.prefix_trial import share_prompts
from pettingllms.policies.weights import LoraWeights
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.types import Sample

torch.set_num_threads(1)
LORA = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
SAMPLES = [
    Sample(tuple(range(5, 105)), tuple(range(5 + number, 69 + number)), (-1.0,) * 64, 1.0)
    for number in range(4)
]
"""A prompt of 100 tokens with four completions of 64."""


def sizes_of(hidden, inner, heads, layers):
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "num_hidden_layers": layers,
    }


def kept(sizes, dtype, checkpointing):
    """Bytes that one forward pass keeps, the model's own weights left out."""
    config = Qwen3Config(vocab_size=512, head_dim=64, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    assert share_prompts(model)
    weights = LoraWeights(model, "random", {"a": LORA}, seed=0, merge=False)
    module = weights.module("a")
    if checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})
        module.train()
    [batch] = microbatches(SAMPLES, 1 << 20, packed=True)
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    return saved_bytes(lambda: batch_logprobs(module, batch)[0].sum(), backward=False, without=own)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("hidden", "inner", "heads"), [(512, 1536, 8), (512, 512, 8), (768, 1536, 4)]
)
def test_activations_are_estimated_within_15_percent(hidden, inner, heads, dtype):
    one, three = (
        kept(sizes_of(hidden, inner, heads, layers), dtype, checkpointing=False)
        for layers in (1, 3)
    )
    tokens = 100 + 4 * 63  # nothing follows the last of a completion
    shape = ModelShape(0, 0, 2, hidden, inner, heads * 64, 0, 512)
    width = 4 if dtype == torch.float32 else 2
    estimated = activation_bytes(shape, tokens, width, checkpointing=False)
    assert estimated == pytest.approx(three - one, rel=0.15)


@pytest.mark.slow
def test_checkpointing_keeps_one_hidden_state_a_layer():
    one, three = (
        kept(sizes_of(512, 1536, 8, layers), torch.float32, checkpointing=True) for layers in (1, 3)
    )
    assert three - one == pytest.approx(2 * (100 + 4 * 64) * 512 * 4, rel=0.15)


# The whole estimate, for Qwen3-1.7B's configuration.

QWEN = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
"""Qwen3-1.7B's, as published."""


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen")
    (folder / "config.json").write_text(json.dumps(QWEN))
    return folder


def estimate(folder, *words, gpu="h100"):
    command = train.parse(["--env", "coding", "--model", str(folder), *words, "--dry-run", gpu])
    assert command.config is not None
    assert command.dry_run == gpu
    return dry_run(command.config, gpu)


def number(text, what):
    """The quantity of the line that ends in `what`, in bytes or seconds."""
    units = {"MiB": 1 << 20, "GiB": 1 << 30, "s": 1, "min": 60, "h": 3600, "days": 86400}
    [(value, unit)] = re.findall(rf"^# +([\d.,]+) (\w+)  {what}", text, re.MULTILINE)
    return float(value.replace(",", "")) * units[unit]


PARAMETERS = 1_720_574_976
GIB = 1 << 30


def test_memory_of_qwen3_is_listed_by_part_and_fits_an_h100(qwen):
    text = estimate(qwen)
    assert f"{PARAMETERS:,} parameters" in text
    assert number(text, "base model") == pytest.approx(2 * PARAMETERS, rel=0.02)
    # Keys and values of 8 heads of 128 in 28 layers, in 16 bits.
    cache = 65536 * 2 * 8 * 128 * 28 * 2
    assert number(text, "cache of a sampling batch") == pytest.approx(cache, rel=0.01)
    parts = [number(text, what) for what in ("base model", "2 adapters", "cache")]
    assert number(text, "at the fullest moment") == pytest.approx(sum(parts), rel=0.02)
    assert "Fits into H100 (80 GiB" in text


@pytest.mark.parametrize(
    ("words", "gpu", "part", "cure"),
    [
        (["--no-gradient-checkpointing"], "rtx-4090", "activations", "--gradient-checkpointing or"),
        (["--full", "--sampler", "transformers"], "rtx-4090", "training state", "without --full"),
        (["--vllm.gpu_memory_utilization", "0.9"], "rtx-4090", "vLLM", "--vllm.gpu_memory_"),
    ],
)
def test_what_does_not_fit_is_named_with_what_makes_it_smaller(qwen, words, gpu, part, cure):
    text = estimate(qwen, *words, *["--sampler", "vllm"] * ("vllm" in words[0]), gpu=gpu)
    [line] = [line for line in text.splitlines() if "Does not fit into" in line]
    assert re.search(f"the largest part: {part}.* GiB; try .*{cure}", line)


def test_vllms_share_has_to_hold_a_cache_whose_bytes_can_be_given(qwen):
    words = ("--sampler", "vllm", "--vllm.kv_cache_memory_bytes")
    small = ("--sampler", "vllm", "--vllm.gpu_memory_utilization", "0.04")
    assert "no room for a cache: raise --vllm.gpu_memory_utilization" in estimate(qwen, *small)
    text = estimate(qwen, *words, str(30 * GIB), "--vllm.gpu_memory_utilization", "0.9")
    assert number(text, "vLLM, a copy") == pytest.approx(30 * GIB + 2 * PARAMETERS, rel=0.01)


def test_a_quantized_base_is_a_third_as_large(qwen):
    # The embeddings, a fifth of this model, stay in 16 bits.
    small = number(estimate(qwen, "--load-in-4bit"), "base model in 4 bits")
    linear = PARAMETERS - 151936 * 2048
    assert small == pytest.approx(2 * 151936 * 2048 + 0.516 * linear, rel=0.05)


def test_a_gpu_is_named_or_assumed_and_a_cpu_is_measured_where_asked(qwen):
    with pytest.raises(ConfigError, match="unknown GPU 'h10'; did you mean 'h100'"):
        estimate(qwen, gpu="h10")
    on_cpu = estimate(qwen, "--device", "cpu", gpu="here")
    assert "Time of" not in on_cpu
    assert "--dry-run cpu takes a small step" in on_cpu
    assert number(on_cpu, "base model") == pytest.approx(4 * PARAMETERS, rel=0.02)
    small = train.parse(["--env", "plan_path", "--dtype", "bfloat16"]).config
    assert small is not None
    half = dry_run(small, "here")
    assert number(half, "weights as oneDNN") == number(half, "base model") > 0
    assert "oneDNN" not in estimate(qwen, "--device", "cpu", "--dtype", "bfloat16", gpu="here")


@pytest.mark.slow
def test_on_a_cpu_a_step_is_taken_and_nothing_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = ["--env", "plan_path", "--tasks-per-step", "8", "--num-generations", "2"]
    tiny += ["--max-completion-length", "6"]
    config = train.parse([*tiny, "--max-steps", "3", "--eval-tasks", "20"]).config
    assert config is not None
    text = dry_run(config, "cpu")
    assert "measured with 4 of 8 tasks" in text
    steps, played = number(text, "all 3 steps"), number(text, "9 evaluations of 20 tasks")
    assert number(text, "the run") == pytest.approx(steps + played, rel=0.05)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert number(text, "most memory") == pytest.approx(peak, rel=0.1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_on_a_cpu_a_step_of_a_run_with_workers_is_taken_in_this_process() -> None:
    words = ["--env", "plan_path", "--tasks-per-step", "2", "--num-generations", "2"]
    words += ["--max-completion-length", "6"]
    scale = ["--workers", "2", "--max-staleness", "1", "--tasks-per-shard", "1"]
    config = train.parse([*words, *scale, "--eval-tasks", "0"]).config
    assert config is not None
    assert "measured with 2 of 2 tasks" in dry_run(config, "cpu")


@pytest.mark.slow
def test_the_step_whose_memory_counts_has_a_gradient_from_every_completion() -> None:
    # So cold that all replies to a prompt are equal, and no group has a signal.
    words = ["--env", "plan_path", "--tasks-per-step", "1", "--num-generations", "4"]
    config = train.parse([*words, "--temperature", "0.001"]).config
    assert config is not None
    plan = plan_run(config)
    with contextlib.closing(build_policies(plan.config, plan.roles_to_policies)) as policies:
        _, silent = ATGRPO(plan.config, plan.env, policies).take_step()
        _, loud = _NoneSilent(plan.config, plan.env, policies).take_step()
    assert silent["frac_reward_zero_std"] == 1
    assert loud["frac_reward_zero_std"] == 0


def test_this_machines_card_has_the_memory_that_it_reports(monkeypatch):
    here = SimpleNamespace(name="NVIDIA L4", total_memory=22 * GIB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: here)
    assert gpu_of(ATGRPOConfig(model="any", device="cuda")) == Gpu("NVIDIA L4", 22)


def test_a_dry_run_shows_who_is_asked_what(tmp_path: Path) -> None:
    program = tmp_path / "team.py"
    program.write_text(
        "from tests.listening_program import asked, user\n\n\n"
        "def solve(task, base_url):\n"
        "    for number, role in enumerate(['writer', 'reader', 'writer']):\n"
        "        reply = asked(base_url, role, user(f'{role} {number}\\n' * 20))\n"
        "    return 1.0\n"
    )
    config = ATGRPOConfig(env=f"program:{program}:solve", method="look_ahead")
    _, _, shown = dry_run(config, "h100").partition("# Prompts of a task with empty replies\n")
    # The first prompt of each role is shown and cut, of others their size.
    first = [f"#              {line}" for line in [*["writer 0"] * 12, "..."]]
    second = [f"#              {line}" for line in [*["reader 1"] * 12, "..."]]
    sizes = [
        f"#           {n}  {role}, 180 characters"
        for n, role in enumerate(("", "writer", "reader", "writer"))
        if n
    ]
    assert shown.splitlines() == [sizes[0], *first, sizes[1], *second, sizes[2]]
