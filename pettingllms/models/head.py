"""Log-probabilities of given tokens from hidden states, without the logits of all of them at once.

The logits of a batch are its tokens times the vocabulary, in several copies: with 150,000 words
they are by far the largest thing that an update holds. Here they are computed for a limited number
of tokens at a time, and again in the backward pass, so that their size does not grow with the batch.

Shapes: `_M` tokens, `_C` tokens of one chunk, `_X` hidden size, `_V` vocabulary.
"""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

LOGITS_PER_CHUNK = 1 << 25
"""128 MiB in float32; an update holds about four times that."""


def token_logprobs(
    model: PreTrainedModel,
    states_MX: torch.Tensor,
    ids_M: torch.Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    entropy_grad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of each token after its hidden state; entropies in nats where asked for.

    Args:
        model: whose output layer is used.
        states_MX: last hidden states of the decoder.
        ids_M: the tokens that follow them.
        temperature: divides the logits.
        entropy: also return the entropy of each distribution.
        entropy_grad: let gradients flow through the entropy.

    Returns:
        float32 of shape `_M` each; None for entropies that were not asked for.
    """
    # Here, because it takes a second: processes that only sample never need it, and learners start
    # without it.
    from trl.trainer.utils import selective_log_softmax, selective_log_softmax_and_entropy

    def score(states_CX: torch.Tensor, ids_C: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # A sum over a vocabulary needs more than the two or three digits of bfloat16.
        logits_1CV = logits(model, states_CX)[None].float()
        if temperature != 1.0:
            logits_1CV = logits_1CV / temperature
        if not entropy:
            # Empty in place of entropies, so that all chunks are joined in the same way.
            return selective_log_softmax(logits_1CV, ids_C[None])[0], ids_C.new_empty(0)
        logprobs_1C, entropies_1C = selective_log_softmax_and_entropy(
            logits_1CV, ids_C[None], entropy_requires_grad=entropy_grad
        )
        return logprobs_1C[0], entropies_1C[0]

    size = max(1, LOGITS_PER_CHUNK // model.get_output_embeddings().weight.shape[0])
    chunks = zip(states_MX.split(size), ids_M.split(size), strict=True)
    # A single chunk is small enough to be kept until the backward pass.
    if len(ids_M) <= size or not torch.is_grad_enabled():
        scored = [score(*chunk) for chunk in chunks]
    else:
        scored = [checkpoint(score, *chunk, use_reentrant=False) for chunk in chunks]
    logprobs, entropies = (torch.cat(values) for values in zip(*scored, strict=True))
    return logprobs, entropies if entropy else None


def logits(model: PreTrainedModel, states: torch.Tensor) -> torch.Tensor:
    """The model's logits from last hidden states, with the scaling that some families add.

    `tests/test_families.py` and a trial at loading compare it with the model's own.
    """
    config = model.config.get_text_config(decoder=True)
    values: torch.Tensor = model.get_output_embeddings()(states)
    if getattr(config, "logit_scale", None) is not None:  # Cohere
        values = values * config.logit_scale
    if getattr(config, "logits_scaling", None) is not None:  # Granite
        values = values / config.logits_scaling
    if getattr(config, "final_logit_softcapping", None) is not None:  # Gemma 2 and 3
        cap = config.final_logit_softcapping
        values = torch.tanh(values / cap) * cap
    return values
