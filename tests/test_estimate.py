"""What `--dry-run` says of memory, against what an update really keeps, with random weights."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks.measure import saved_bytes
from pettingllms.cli.estimate import ModelShape, activation_bytes
from pettingllms.policies.packing import batch_logprobs, microbatches
from pettingllms.policies.prefix_trial import share_prompts
from pettingllms.policies.weights import LoraWeights
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("hidden", "inner", "heads"), [(512, 1536, 8), (512, 512, 8), (768, 1536, 4)]
)
def test_activations_are_estimated_within_15_percent(hidden, inner, heads, dtype):
    one, three = (
        kept(sizes_of(hidden, inner, heads, layers), dtype, checkpointing=False)
        for layers in (1, 3)
    )
    tokens = 100 + 4 * 64
    shape = ModelShape(0, 0, 2, hidden, inner, heads * 64, 0, 512)
    width = 4 if dtype == torch.float32 else 2
    estimated = activation_bytes(shape, tokens, width, checkpointing=False)
    assert estimated == pytest.approx(three - one, rel=0.15)


def test_checkpointing_keeps_one_hidden_state_a_layer():
    one, three = (
        kept(sizes_of(512, 1536, 8, layers), torch.float32, checkpointing=True) for layers in (1, 3)
    )
    assert three - one == pytest.approx(2 * (100 + 4 * 64) * 512 * 4, rel=0.15)
