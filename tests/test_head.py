"""Log-probabilities in chunks: the same numbers and gradients, and never all logits at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode

from pettingllms.errors import ConfigError
from pettingllms.policies import packing
from pettingllms.policies.prefix_trial import check_head
from tests.tiny_lm import tiny_config, tiny_model

torch.set_num_threads(1)
VOCABULARY, TOKENS = 5000, 200


class Largest(TorchDispatchMode):
    """Notes the most elements of any tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def scored(model, **options):
    """Log-probabilities, entropies, gradients, and the size of the largest tensor."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(TOKENS, 32, generator=generator).requires_grad_()
    ids = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    with Largest() as largest:
        logprobs, entropy = packing.token_logprobs(model, states, ids, temperature=0.7, **options)
        loss = logprobs.sin().sum() + (0 if entropy is None else entropy.square().sum())
        loss.backward()
    return logprobs.detach(), entropy, states.grad, largest.elements


@pytest.mark.parametrize(
    "options", [{}, {"entropy": True}, {"entropy": True, "entropy_grad": True}]
)
def test_chunks_give_the_same_numbers_and_gradients_in_constant_size(monkeypatch, options):
    model = tiny_model(config=tiny_config(vocab_size=VOCABULARY)).requires_grad_(False)
    whole = scored(model, **options)
    assert whole[3] == VOCABULARY * TOKENS
    monkeypatch.setattr(packing, "LOGITS_PER_CHUNK", 10 * VOCABULARY)
    chunked = scored(model, **options)
    # The output layer's own weights are the largest tensor then.
    assert chunked[3] <= max(10 * VOCABULARY, 32 * VOCABULARY) < whole[3]
    for one, other in zip(whole[:3], chunked[:3], strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_frozen_head_gives_the_numbers_and_gradients_of_a_trained_one():
    config = tiny_config(vocab_size=VOCABULARY, tie_word_embeddings=False)
    model = tiny_model(config=config).requires_grad_(False)
    frozen = scored(model, entropy=True)
    # An adapter of the head, whose own weights stay frozen; it begins as no change.
    get_peft_model(model, LoraConfig(r=4, target_modules=["lm_head"]))  # in place
    trained = scored(model, entropy=True)
    assert sum(p.grad is not None and bool(p.grad.any()) for p in model.parameters()) == 1
    for one, other in zip(frozen[:3], trained[:3], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_model_that_changes_its_logits_in_an_unknown_way_is_refused():
    model = tiny_model()
    check_head(model)
    forward = model.forward

    def scaled(*args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        out.logits = out.logits * 1.5
        return out

    model.forward = scaled
    with pytest.raises(ConfigError, match=r"qwen3.*change their logits"):
        check_head(model)
