"""Tries a model when it is loaded: its output layer, its cache, and whether prompts can be shared.

A prompt is computed once for all its completions where the model's type and a trial allow it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from pettingllms.errors import ConfigError
from pettingllms.models.shared_prompts import NAME
from pettingllms.policies.packing import logits, microbatches, predictions
from pettingllms.samplers.transformers import PlainDecoding, SharedDecoding
from pettingllms.types import Sample

logger = logging.getLogger(__name__)

# Tokens, in tenths of the vocabulary. The first of a vocabulary are often special ones, with states
# so large that low precision leaves nothing to compare.
_PROMPTS = ((5, 6, 7, 8, 9), (7, 5, 4))
_COMPLETIONS = ((0, (9, 5, 8)), (0, (6, 7)), (1, (8, 8)))


def share_prompts(model: PreTrainedModel) -> bool:
    """Makes the model share prompts if its numbers stay the same; logs the reason if not.

    A model is left alone if a layer has other than full attention, or if a small trial of sampling
    and update differs from transformers' own computation.
    """
    usual = model.config._attn_implementation
    reason = _misfit(model)
    if reason is None:
        model.config._attn_implementation = NAME
        try:
            reason = _trial(model)
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
            # What model code raises when it meets an attention that it was not written for.
            reason = f"its attention cannot be replaced ({error})"
        if reason is not None:
            model.config._attn_implementation = usual
    if reason is not None:
        logger.warning(
            "each completion is computed with its own copy of the prompt, which is slower: %s",
            reason,
        )
    return reason is None


@torch.no_grad()
def check_head(model: PreTrainedModel) -> None:
    """Compares our logits from hidden states with the model's own.

    Raises:
        ConfigError: they differ, so that its log-probabilities would be wrong.
    """
    ids = torch.tensor([_token_ids(model, _PROMPTS[0])], device=model.device)
    theirs = model(input_ids=ids, use_cache=False).logits.float()
    ours = logits(model, model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    difference = float((theirs - ours.float()).abs().max())
    if not difference <= _tolerance(model):
        raise ConfigError(
            f"models of type {model.config.model_type!r} change their logits in a way that is not "
            f"known here (a trial differs by {difference:.2g}); choose another model, or report it"
        )


@torch.no_grad()
def check_cache(model: PreTrainedModel) -> None:
    """Compares next tokens computed with a cache, as they are sampled, with those of whole texts.

    Some models keep what they have seen in a form of their own. They take no notice of the cache
    that they are given, and would sample each token as if nothing stood before it.

    Raises:
        ConfigError: they differ, so that completions would be of another distribution.
    """
    prompts = _prompts(model)
    (another,) = _token_ids(model, (8,))
    try:
        decoding = PlainDecoding(model, prompts, 0)
        decoding.start()
        # Rows change places before the step, as they do in sampling: a state that is not moved with
        # its row is found out.
        decoding.keep(torch.tensor([1, 0], device=model.device), 2)
        ours_V = decoding.step(torch.tensor([another, another], device=model.device))[1].float()
        ids = torch.tensor([[*prompts[0], another]], device=model.device)
        # Without any cache, as the update computes it.
        own_V = model(input_ids=ids, use_cache=False).logits[0, -1].float()
        difference = _difference(ours_V, own_V)
        reason = f"a trial differs by {difference:.2g}"
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        difference, reason = float("nan"), str(error).splitlines()[0]
    if not difference <= _tolerance(model):
        raise ConfigError(
            f"models of type {model.config.model_type!r} cannot be sampled here, because they do "
            f"not keep their past in transformers' own cache ({reason}); use vLLM (--sampler vllm, "
            "and --sampler vllm in serving) or choose another model"
        )


def _tolerance(model: PreTrainedModel) -> float:
    return 0.25 if model.dtype in (torch.bfloat16, torch.float16) else 1e-3


def _misfit(model: PreTrainedModel) -> str | None:
    text = model.config.get_text_config(decoder=True)
    if text is not model.config:
        return "the model is more than a language model"
    if model.config._attn_implementation != "sdpa":
        return f"its attention is {model.config._attn_implementation!r}, not 'sdpa'"
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        return f"it has layers of type {', '.join(sorted(kinds))}"
    if not hasattr(text, "layer_types") and getattr(text, "sliding_window", None):
        return f"its attention slides over a window of {text.sliding_window}"
    return None


@torch.no_grad()
def _trial(model: PreTrainedModel) -> str | None:
    prompts = _prompts(model)
    replies = [(prompt, _token_ids(model, reply)) for prompt, reply in _COMPLETIONS]
    samples = [
        Sample(prompts[prompt], reply, (0.0,) * len(reply), 0.0) for prompt, reply in replies
    ]
    packed_MV, flat_MV = (_logits(model, samples, packed=packed) for packed in (True, False))
    token_R = torch.tensor([reply[0] for _, reply in replies], device=model.device)
    next_RV = []
    shared, plain = SharedDecoding(model, prompts), PlainDecoding(model, prompts, 0)
    for decoding in (shared, plain):
        decoding.start()
        decoding.step(token_R[1:])
        decoding.keep(torch.tensor([1, 0, 0], device=model.device), 3)
        next_RV.append(decoding.step(token_R).float())
    ours_XV, own_XV = (torch.cat(rows) for rows in zip((packed_MV, flat_MV), next_RV, strict=True))
    difference = _difference(ours_XV, own_XV)
    # Written so that a difference of nan counts as a misfit, too.
    if not difference <= _tolerance(model):
        return f"a trial differed by {difference:.2g}"
    return None


def _prompts(model: PreTrainedModel) -> list[tuple[int, ...]]:
    return [_token_ids(model, prompt) for prompt in _PROMPTS]


def _token_ids(model: PreTrainedModel, tenths: Sequence[int]) -> tuple[int, ...]:
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    return tuple(vocabulary * tenth // 10 for tenth in tenths)


def _difference(ours_xV: torch.Tensor, own_xV: torch.Tensor) -> float:
    """Difference of two logits in proportion to what a text changes at all: models differ in size."""
    spread_xV = own_xV - own_xV.mean(-1, keepdim=True)
    return float((ours_xV - own_xV).norm() / spread_xV.norm())


def _logits(model: PreTrainedModel, samples: list[Sample], *, packed: bool) -> torch.Tensor:
    """Computes the logits before all completions' tokens, one completion after the other."""
    batch = microbatches(samples, 1 << 20, packed=packed, device=model.device)[0]
    predicted = predictions(model, batch)
    logits_MV = logits(model, predicted.states_PX).float()[predicted.of_M]
    by_sample = logits_MV.split([len(sample.token_ids) for sample in batch.samples])
    return torch.cat(
        [by_sample[n] for n in sorted(range(len(by_sample)), key=batch.index.__getitem__)]
    )
