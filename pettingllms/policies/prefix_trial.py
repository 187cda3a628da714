"""Tries a model when it is loaded: its output layer, its cache, and whether prompts can be shared.

A prompt is computed once for all its completions where the model's type and a trial allow it.
"""

from __future__ import annotations

import logging

import torch
from transformers import PreTrainedModel

from pettingllms.errors import ConfigError
from pettingllms.models.shared_prompts import NAME
from pettingllms.policies.packing import logits, microbatches, predictions
from pettingllms.samplers.transformers import PlainDecoding, SharedDecoding
from pettingllms.types import Sample

logger = logging.getLogger(__name__)

_TOLERANCE = 1e-3
_LOW_PRECISION_TOLERANCE = 0.25
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
    ids = torch.tensor([_PROMPTS[0]], device=model.device)
    theirs = model(input_ids=ids, use_cache=False).logits.float()
    ours = logits(model, model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    difference = float((theirs - ours.float()).abs().max())
    if not difference <= (_LOW_PRECISION_TOLERANCE if _is_low(model) else _TOLERANCE):
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
    longest = _PROMPTS[0]
    try:
        decoding = PlainDecoding(model, _PROMPTS, 0)
        decoding.start()
        # Rows change places before the step, as they do in sampling: a state that is not moved with
        # its row is found out.
        decoding.keep(torch.tensor([1, 0], device=model.device), 2)
        ours_V = decoding.step(torch.tensor([8, 8], device=model.device))[1].float()
        ids = torch.tensor([[*longest, 8]], device=model.device)
        # Without any cache, as the update computes it.
        own_V = model(input_ids=ids, use_cache=False).logits[0, -1].float()
        # In proportion to what a text changes at all: logits of models differ in size.
        difference = float((ours_V - own_V).norm() / (own_V - own_V.mean()).norm())
        reason = f"a trial differs by {difference:.2g}"
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        difference, reason = float("nan"), str(error).splitlines()[0]
    if not difference <= (_LOW_PRECISION_TOLERANCE if _is_low(model) else _TOLERANCE):
        raise ConfigError(
            f"models of type {model.config.model_type!r} cannot be sampled here, because they do "
            f"not keep their past in transformers' own cache ({reason}); use vLLM (--sampler vllm, "
            "and --sampler vllm in serving) or choose another model"
        )


def _is_low(model: PreTrainedModel) -> bool:
    return model.dtype in (torch.bfloat16, torch.float16)


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
    samples = [
        Sample(_PROMPTS[prompt], reply, (0.0,) * len(reply), 0.0) for prompt, reply in _COMPLETIONS
    ]
    packed, flat = (_logprobs(model, samples, packed=packed) for packed in (True, False))
    token_R = torch.tensor([ids[0] for _, ids in _COMPLETIONS], device=model.device)
    next_RV = []
    shared, plain = SharedDecoding(model, _PROMPTS), PlainDecoding(model, _PROMPTS, 0)
    for decoding in (shared, plain):
        decoding.start()
        decoding.step(token_R[1:])
        decoding.keep(torch.tensor([1, 0, 0], device=model.device), 3)
        next_RV.append(decoding.step(token_R).float().log_softmax(-1))
    # Of all tokens the probabilities are compared and not their logs, of which those of very
    # unlikely tokens differ by rounding alone.
    shared_RV, plain_RV = (each_RV.exp() for each_RV in next_RV)
    gaps = packed - flat, shared_RV - plain_RV
    difference = max(float(gap.abs().max()) for gap in gaps)
    # Written so that a difference of nan counts as a misfit, too.
    if not difference <= (_LOW_PRECISION_TOLERANCE if _is_low(model) else _TOLERANCE):
        return f"a trial differed by {difference:.2g} in log-probability"
    return None


def _logprobs(model: PreTrainedModel, samples: list[Sample], *, packed: bool) -> torch.Tensor:
    """Computes log-probabilities of all completions' tokens, one completion after the other.

    It does without `head.token_logprobs`, which needs TRL: that import takes a second, and every
    process that loads a model comes here.
    """
    batch = microbatches(samples, 1 << 20, packed=packed, device=model.device)[0]
    predicted = predictions(model, batch)
    logprobs_PV = logits(model, predicted.states_PX).float().log_softmax(-1)
    logprobs_M = logprobs_PV.gather(-1, predicted.ids_P[:, None])[predicted.of_M, 0]
    by_sample = logprobs_M.split([len(sample.token_ids) for sample in batch.samples])
    return torch.cat(
        [by_sample[n] for n in sorted(range(len(by_sample)), key=batch.index.__getitem__)]
    )
