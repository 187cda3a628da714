"""What only an NVIDIA GPU can show: `make test-gpu`.

Models have random weights; the last test has the width of Qwen3-0.6B, so that bytes are real ones. Anchors for the first
GPU, published elsewhere for the trainer alone on one H100 (LoRA of rank 16, 16k tokens): 13,342 tokens/s at 5.1 GiB for
0.6B, 6,229 tokens/s at 23.3 GiB for 4B. `python -m benchmarks.update` measures tokens/s.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from pettingllms.cli.estimate import GIB, Gpu, ModelShape, Workload, memory, shape_of
from pettingllms.models.shared_prompts import enabled
from pettingllms.policies.base_model import ModelSpec
from pettingllms.policies.loading import load_policies
from pettingllms.policies.packing import microbatches
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.shapes import Tree
from pettingllms.samplers.base import SamplerSettings
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.types import Request, Sample
from tests.graded_env import GradedEnv
from tests.tiny_lm import save_tiny, tiny_config, tiny_tokenizer
from tests.vllm_policies import differences, sampled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),  # vLLM compiles its kernels when it starts
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here"),
]
ROLES = {"writer": "writer", "reader": "reader"}
BF16 = 0.15
"""Nats by which log-probabilities of random weights in bfloat16 may differ from one batch to another."""

TOKENS = 512 + 5 * (512 + (512 + 512) // 8)
"""Of a micro-batch of five completions of 512 tokens to a prompt of 512, as `microbatches` counts."""
HELD = 512 + 5 * 511
"""Tokens that the model computes of them: nothing follows the last of a completion."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 64 numbers: the fewest that flash attention and vLLM's kernels take."""
    config = tiny_config(hidden=256, intermediate_size=512)
    return save_tiny(tmp_path_factory.mktemp("gpu"), config=config)


def team(folder: Path, sampler: str = "transformers", **changes: object) -> PolicySet:
    options = {"gpu_memory_utilization": 0.3, "max_model_len": 512} if sampler == "vllm" else {}
    spec = ModelSpec(str(folder), **changes)  # type: ignore[arg-type]
    return load_policies(
        spec, ROLES, lora_r=8, dtype="bfloat16", sampler=SamplerSettings(sampler, options)
    )


def settings(**changes: object) -> ATGRPOConfig:
    few: dict[str, object] = {
        "env": "graded",
        "num_generations": 4,
        "tasks_per_step": 4,
        "max_steps": 2,
        "max_completion_length": 32,
        "learning_rate": 1e-3,
        "warmup_steps": 0,
    }
    return ATGRPOConfig(**few | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampler", ["transformers", "vllm"])
def test_a_team_trains_in_bfloat16_and_sampler_and_trainer_agree(
    folder: Path, sampler: str
) -> None:
    if sampler == "vllm":
        pytest.importorskip("vllm", reason="vLLM is not installed")
    policies = team(folder, sampler)
    assert policies.device.type == "cuda"
    trainer = ATGRPO(settings(), GradedEnv(), policies)
    before = {name: policies.state(name) for name in policies.names}
    for _ in range(2):
        _, metrics = trainer.train_step()
        for name in ROLES:
            assert metrics[f"{name}/sampling/sampling_logp_difference/mean"] < BF16 / 5
            assert metrics[f"{name}/sampling/kl"] < 0.01
            assert torch.isfinite(torch.tensor(metrics[f"{name}/grad_norm"]))
    for name in ROLES:
        assert {value.dtype for value in policies.state(name).values()} == {torch.float32}
        assert any(not policies.state(name)[k].equal(v) for k, v in before[name].items())
    policies.close()


def test_vllm_samples_each_role_with_its_own_adapter(folder: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    assert resolve(ATGRPOConfig(model=str(folder))).sampler == "vllm", "the default on a GPU"
    policies = team(folder, "vllm")
    generator = torch.Generator(device="cuda").manual_seed(0)
    for name in policies.names:
        with torch.no_grad():
            for parameter in policies.parameters(name):
                noise = torch.randn(parameter.shape, generator=generator, device="cuda")
                parameter.add_(0.05 * noise)
        policies.publish(name)
    requests, replies = sampled(policies, n=4, max_new_tokens=24)
    matched = differences(policies, requests, replies)
    assert max(matched.values()) < 2 * BF16
    swapped = differences(policies, requests, replies, of="reader")
    assert swapped["writer"] > 2 * matched["writer"]
    policies.close()


def test_packed_rows_attend_as_rows_of_their_own_do(folder: Path) -> None:
    """Prompts of several lengths, a conversation, and completions that begin alike or have one token."""
    policies = team(folder)
    first, second = (tuple(range(5, 5 + length)) for length in (40, 7))
    replies = [(9, 8, 7), (9, 8, 6, 5, 4), (3,), tuple(range(20, 90))]
    samples = [Sample(first, ids, (-1.0,) * len(ids), 1.0) for ids in replies]
    longer = first + replies[1] + second
    samples += [Sample(longer, ids, (-1.0,) * len(ids), 1.0) for ids in replies[2:]]
    samples += [Sample(second, ids, (-1.0,) * len(ids), 1.0) for ids in replies[:2]]
    logprobs: list[dict[int, torch.Tensor]] = []
    gradients: list[torch.Tensor] = []
    for packed in (True, False):
        batches = microbatches(samples, 1 << 20, packed=packed, device="cuda")
        logprobs.append({})
        for batch in batches:
            values_BT, _ = policies.logprobs("writer", batch)
            (values_BT * batch.mask_BT).sum().backward()
            logprobs[-1] |= dict(zip(batch.index, values_BT.detach(), strict=True))
        parameters = policies.parameters("writer")
        gradients.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
        for parameter in parameters:
            parameter.grad = None
    for index, sample in enumerate(samples):
        ours, rows = (values[index][: len(sample.token_ids)] for values in logprobs)
        assert (ours - rows).abs().max() < BF16, f"completion {index}"
    assert (gradients[0] - gradients[1]).norm() < 0.05 * gradients[1].norm()


def test_flash_attention_computes_what_ours_does(folder: Path) -> None:
    pytest.importorskip("flash_attn", reason="flash-attn is not installed")
    ours, theirs = team(folder), team(folder, attn_implementation="flash_attention_2")
    assert enabled(ours.sampling_model("writer"))
    request = Request("writer", ours.prompt_ids("writer", "Say it."), seed=1)
    [replies] = ours.sample([request], 4, max_new_tokens=32)
    samples = [Sample(one.prompt_ids, one.token_ids, one.logprobs, 1.0) for one in replies]
    both = []
    for policies in (ours, theirs):
        [batch] = policies.microbatches("writer", samples, 1 << 20)
        with torch.no_grad():
            both.append(policies.logprobs("writer", batch)[0] * batch.mask_BT)
    assert (both[0] - both[1]).abs().max() < BF16


def test_adapters_over_four_bits_train(folder: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    policies = team(folder, load_in_4bit=True)
    _, metrics = ATGRPO(settings(), GradedEnv(), policies).train_step()
    # One row is multiplied by another kernel of bitsandbytes than many: 0.039 on an H200.
    assert metrics["writer/sampling/sampling_logp_difference/mean"] < BF16 / 2


@pytest.mark.parametrize("checkpointing", [True, False])
def test_the_peak_of_an_update_is_what_a_dry_run_says(tmp_path: Path, checkpointing: bool) -> None:
    shape = Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    Qwen3ForCausalLM._from_config(shape, dtype=torch.bfloat16).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    config = resolve(
        settings(
            model=str(tmp_path),
            gradient_checkpointing=checkpointing,
            # Counts are nine eighths of what is computed at least; here they are more.
            tokens_per_batch=HELD * 9 // 8,
            sampler="transformers",
        )
    )
    policies = load_policies(
        tmp_path, ROLES, lora_r=16, gradient_checkpointing=checkpointing, dtype="bfloat16"
    )
    samples = [
        Sample(tuple(range(5, 517)), tuple(range(9 + k, 521 + k)), (-1.0,) * 512, 1.0)
        for k in range(5)
    ]
    optimizers = [torch.optim.AdamW(policies.parameters(name)) for name in ROLES]
    for _ in range(2):  # the optimizer's moments are there from the first step on
        torch.cuda.reset_peak_memory_stats()
        for name, optimizer in zip(ROLES, optimizers, strict=True):
            [batch] = policies.microbatches(name, samples, TOKENS)
            policies.logprobs(name, batch, entropy=True)[0].sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    measured = torch.cuda.max_memory_allocated()
    model_shape: ModelShape = shape_of(config)
    here = Gpu("this", torch.cuda.get_device_properties(0).total_memory / GIB)
    tree = Tree(width=config.num_generations)
    weights, _, update = memory(
        Workload(config, model_shape, ("a", "b"), 2, decisions=2, tree=True, gpu=here, rollout=tree)
    )
    predicted = sum(weights.values()) + sum(update.values())
    assert predicted == pytest.approx(measured, rel=0.15), (
        f"{predicted / GIB:.2f} and {measured / GIB:.2f}"
    )
