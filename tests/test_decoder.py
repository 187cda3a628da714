"""Sampling and the update call the decoder's operations themselves: the same numbers, in less time."""

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
from pettingllms.models.decoder import known, trains
from pettingllms.policies.packing import batch_logprobs, microbatches
from pettingllms.policies.prefix_trial import share_prompts
from pettingllms.samplers.decoding import SharedDecoding
from pettingllms.types import Sample

torch.set_num_threads(1)
PROMPTS = [tuple(range(5, 45)), tuple(range(9, 26)), tuple(range(4, 61))]
OWNERS = [0, 0, 0, 1, 1, 2, 2]
NEW = 12
COPIED = (0, 250, 4096)
"""Rows share prompts throughout, until few are left, and never."""
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
    kind, changes = FAMILIES[family]
    return AutoModelForCausalLM.from_config(kind(**SIZES, **changes), dtype=dtype)


def prepared(model):
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model = model.eval()
    assert share_prompts(model)
    assert known(model)
    return model


def both(model, copied):
    """Two ways to decode; the second calls the model itself, and rows share prompts to the end."""
    ours, theirs = (SharedDecoding(model, PROMPTS, NEW, most) for most in (copied, 0))
    theirs._next = None
    theirs.__dict__["_forget"] = lambda _: None
    return ours, theirs


@torch.no_grad()
def steps(model, copied):
    """Logits of both at every step, while rows branch and leave."""
    ours, theirs = both(model, copied)
    first = ours.start(), theirs.start()
    yield first
    tokens_R = first[0].argmax(-1)
    for left in (None, OWNERS, None, [0, 2, 1, 6, 5, 4], None, [5, 0], None, [1], None):
        if left is not None:
            keep = torch.tensor(left)
            tokens_R = tokens_R[keep]
            ours.keep(keep, len(left))
            theirs.keep(keep, len(left))
        found = ours.step(tokens_R), theirs.step(tokens_R)
        yield found
        tokens_R = (found[0].argmax(-1) + 3) % 60


@pytest.mark.parametrize("copied", COPIED)
def test_the_embedded_model_has_the_same_logits_but_for_rounding(copied):
    model = prepared(AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32))
    for ours_RV, theirs_RV in steps(model, copied):
        torch.testing.assert_close(
            ours_RV.log_softmax(-1), theirs_RV.log_softmax(-1), atol=3e-5, rtol=0
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("copied", COPIED)
def test_decoders_of_every_known_family_give_the_same_logits(copied, family, dtype):
    near = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for ours_RV, theirs_RV in steps(prepared(random_model(family, dtype)), copied):
        torch.testing.assert_close(ours_RV, theirs_RV, atol=near, rtol=near)


def test_prompts_that_no_row_continues_are_forgotten():
    decoding = SharedDecoding(prepared(random_model("qwen2")), PROMPTS, NEW, copied=0)
    with torch.no_grad():
        decoding.start()
        decoding.keep(torch.tensor(OWNERS), len(OWNERS))
        decoding.step(torch.tensor(OWNERS))
        decoding.keep(torch.tensor([1, 4]), 2)
        assert [len(keys) for keys, _ in decoding._states.values()] == [3, 3], "two of three live"
        decoding.keep(torch.tensor([1]), 1)
        assert [len(keys) for keys, _ in decoding._states.values()] == [1, 1]


def test_a_decoder_that_somebody_listens_to_is_called_itself():
    model = prepared(random_model("qwen3"))
    handle = model.model.layers[0].register_forward_hook(lambda *_: None)
    assert SharedDecoding(model, PROMPTS, NEW)._next is None
    handle.remove()
    assert SharedDecoding(model, PROMPTS, NEW)._next is not None


SAMPLES = [
    Sample((5, 6, 7), (9, 8, 7, 6), (-1.0,) * 4, 1.0),
    Sample((5, 6, 7), (9, 8, 3), (-1.0,) * 3, -0.5),
    Sample((20, 21), (11, 12), (-1.0,) * 2, 0.5),
]


def gradients(model):
    """Log-probabilities of `SAMPLES`, and the gradients of a weighted sum of them."""
    (batch,) = microbatches(SAMPLES, 1000, packed=True)
    logprobs, _ = batch_logprobs(model, batch)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    found = torch.autograd.grad(logprobs.sin().sum(), list(trained.values()), allow_unused=True)
    return logprobs.detach(), dict(zip(trained, found, strict=True))


def by_modules(model):
    """The same through transformers' and PEFT's modules: one that is listened to is called itself."""
    handle = model.model.layers[0].register_forward_hook(lambda *_: None)
    assert not trains(model)
    found = gradients(model)
    handle.remove()
    assert trains(model)
    return found


def adapted(model, **config):
    """Injects two adapters with random weights, of which the second is active."""
    torch.manual_seed(3)
    one, two = (LoraConfig(r=4, lora_alpha=12, init_lora_weights=False, **config) for _ in range(2))
    peft = get_peft_model(model, one, adapter_name="one")
    peft.add_adapter("two", two)
    peft.set_adapter("two")
    return peft


TARGETS: dict[str, dict[str, Any]] = {
    "all": {"target_modules": "all-linear"},
    "some": {"target_modules": ["q_proj", "v_proj", "up_proj"]},
    "rslora": {"target_modules": "all-linear", "use_rslora": True},
    "dora": {"target_modules": "all-linear", "use_dora": True},
}


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_adapters_are_those_of_the_modules(family, targets):
    model = prepared(random_model(family))
    adapted(model, **TARGETS[targets])
    ours, theirs = gradients(model), by_modules(model)
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-5, rtol=1e-5)
    assert sum(each is not None for each in ours[1].values()) > 6
    torch.testing.assert_close(ours[1], theirs[1], atol=5e-5, rtol=1e-4)
    assert all(".one." not in name for name in ours[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_whole_models_are_those_of_the_modules(family):
    model = prepared(random_model(family))
    ours, theirs = gradients(model), by_modules(model)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_without_its_adapters_a_model_is_its_base():
    model = prepared(random_model("qwen3"))
    (batch,) = microbatches(SAMPLES, 1000, packed=True)
    before, _ = batch_logprobs(model, batch)
    peft = adapted(model, target_modules="all-linear")
    assert not torch.equal(batch_logprobs(model, batch)[0], before)
    with peft.disable_adapter():
        assert torch.equal(batch_logprobs(model, batch)[0], before)


def test_other_precisions_and_activations_that_are_computed_again_are_left_to_the_modules():
    model = prepared(random_model("qwen3"))
    assert trains(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert not trains(model)
    model.gradient_checkpointing_enable()
    assert not trains(model.train())
    assert not trains(prepared(random_model("qwen3", torch.bfloat16)))
