"""Rows that share prompts, and packed lists, give the numbers of the plain model: sampling, update, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from pettingllms.models import EMBEDDED
from pettingllms.policies.packing import batch_logprobs, microbatches
from pettingllms.policies.prefix_trial import share_prompts
from pettingllms.samplers.transformers import PlainDecoding, SharedDecoding
from pettingllms.types import Sample

torch.set_num_threads(1)
PROMPTS = [tuple(range(5, 45)), tuple(range(9, 26)), tuple(range(4, 61))]
OWNERS = [0, 0, 0, 1, 1, 2, 2]
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {"mlp_bias": True}),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 8}),
}


def random_model(family, dtype=torch.float32):
    torch.manual_seed(0)
    config_class, changes = FAMILIES[family]
    return AutoModelForCausalLM.from_config(config_class(**SIZES, **changes), dtype=dtype)


def prepared(model):
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model = model.eval()
    assert share_prompts(model)
    return model


@torch.no_grad()
def steps(model):
    """Logits at every step of rows that share prompts and of rows that do not, while rows branch and leave."""
    shared, plain = SharedDecoding(model, PROMPTS), PlainDecoding(model, PROMPTS, 0)
    logits = shared.start(), plain.start()
    yield logits
    tokens_R = logits[0].argmax(-1)
    for left in (None, OWNERS, None, [0, 2, 1, 6, 5, 4], None, [5, 0], None, [1], None):
        if left is not None:
            keep = torch.tensor(left)
            tokens_R = tokens_R[keep]
            shared.keep(keep, len(left))
            plain.keep(keep, len(left))
        logits = shared.step(tokens_R), plain.step(tokens_R)
        yield logits
        tokens_R = (logits[0].argmax(-1) + 3) % 60


def test_rows_of_the_embedded_model_that_share_prompts_have_the_plain_logits():
    model = prepared(AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32))
    for shared_RV, plain_RV in steps(model):
        torch.testing.assert_close(
            shared_RV.log_softmax(-1), plain_RV.log_softmax(-1), atol=3e-5, rtol=0
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_share_prompts_have_the_plain_logits(family, dtype):
    near = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for shared_RV, plain_RV in steps(prepared(random_model(family, dtype))):
        torch.testing.assert_close(shared_RV, plain_RV, atol=near, rtol=near)


def test_prompts_that_no_row_continues_are_forgotten():
    decoding = SharedDecoding(prepared(random_model("qwen2")), PROMPTS)
    with torch.no_grad():
        decoding.start()
        decoding.keep(torch.tensor(OWNERS), len(OWNERS))
        decoding.step(torch.tensor(OWNERS))
        decoding.keep(torch.tensor([1, 4]), 2)
        assert [len(keys) for keys, _ in decoding._states.values()] == [3, 3], "two of three live"
        decoding.keep(torch.tensor([1]), 1)
        assert [len(keys) for keys, _ in decoding._states.values()] == [1, 1]


SAMPLES = [
    Sample((5, 6, 7), (9, 8, 7, 6), (-1.0,) * 4, 1.0),
    Sample((5, 6, 7), (9, 8, 3), (-1.0,) * 3, -0.5),
    Sample((20, 21), (11, 12), (-1.0,) * 2, 0.5),
]


def gradients(model, *, packed):
    """Log-probabilities of `SAMPLES`, in their order, and the gradients of a weighted sum of them."""
    (batch,) = microbatches(SAMPLES, 1000, packed=packed)
    logprobs, _ = batch_logprobs(model, batch)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    values = torch.autograd.grad(logprobs.sin().sum(), list(trained.values()), allow_unused=True)
    order = sorted(range(len(SAMPLES)), key=batch.index.__getitem__)
    return logprobs.detach()[order], dict(zip(trained, values, strict=True))


@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "adapter"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_lists_have_the_gradients_of_separate_rows(family, adapted):
    model = prepared(random_model(family))
    if adapted:
        torch.manual_seed(3)
        get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, target_modules="all-linear"))
    packed, flat = gradients(model, packed=True), gradients(model, packed=False)
    torch.testing.assert_close(packed, flat, atol=5e-5, rtol=1e-4)
