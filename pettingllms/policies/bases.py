"""A base model in memory: the policies on it, their tokenizers, and what samples from them.

Policies that name the same model share one `Base`; a team whose policies name several has as many.
Nothing is shared between two of them: weights, tokenizer, template and engine are each base's own.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from pettingllms.errors import SamplerUnavailable
from pettingllms.models.shared_prompts import enabled
from pettingllms.policies.chat import Chat
from pettingllms.policies.packing import Batch, batch_logprobs, last_states, microbatches
from pettingllms.samplers.base import (
    InferenceEngine,
    OnTokens,
    SampledTokens,
    SamplingParams,
    Weights,
)
from pettingllms.types import Request, Sample

logger = logging.getLogger(__name__)


class Base:
    """A base model and the policies on it.

    Args:
        weights: the policies' tensors.
        chats: policy -> tokenizer and template.
        engine: samples, from weights that `publish` hands to it.
        checkpointing: policies whose update computes activations again in the backward pass.
    """

    def __init__(
        self,
        weights: Weights,
        chats: Mapping[str, Chat],
        engine: InferenceEngine,
        checkpointing: Collection[str] = (),
    ) -> None:
        self.weights, self.chats = weights, dict(chats)
        self.engine: InferenceEngine | None = engine
        """None after `close`."""
        self._checkpointing = checkpointing
        model = weights.module(next(iter(chats)))
        # All policies of a base have one model's attention, so that the first one's answer is that
        # of all.
        self._packed = enabled(model)
        self.contexts = {
            name: context_of(model, chat.tokenizer.model_max_length) for name, chat in chats.items()
        }
        """Policy -> most tokens of a prompt and its completion together."""
        self.parameters = {name: list(weights.tensors(name).values()) for name in chats}
        """Policy -> the tensors that it trains."""

    @property
    def name(self) -> str:
        """Name or path of the model, as it was given."""
        return self.weights.base

    @property
    def digest(self) -> str:
        """Tells this model from others; see `pettingllms.policies.weights.base_digest`."""
        return self.weights.digest

    @property
    def described(self) -> str:
        """The kind of its policies, and the model's name and digest."""
        kind = "full model" if self.weights.full else "adapter"
        return f"{kind} on {self.name}, digest {self.digest}"

    @property
    def device(self) -> torch.device:
        """The device of the models."""
        return next(iter(self.parameters.values()))[0].device

    def sampling_model(self, policy: str) -> PreTrainedModel:
        """The model that samples this policy, in evaluation mode; ask again before each use."""
        model = self.weights.sampling_module(policy)
        _set_training(model, False)
        return model

    @property
    def early(self) -> bool:
        """True if the engine reports completions as they come."""
        return bool(getattr(self.engine, "early", False))

    def sample(
        self,
        requests: Sequence[Request],
        n: int,
        params: SamplingParams,
        on_tokens: OnTokens | None = None,
    ) -> list[list[SampledTokens]]:
        """Completes every request `n` times.

        Args:
            requests: of its policies.
            n: completions of each.
            params: how they are drawn.
            on_tokens: called with completions as they come, if the engine is `early`.

        Raises:
            ConfigError: a request that does not fit the engine.
            SamplerUnavailable: the engine failed, or has been closed.
        """
        if self.engine is None:
            raise SamplerUnavailable("these policies have been closed; load them again to sample")
        more: dict[str, Any] = {"on_tokens": on_tokens} if self.early and on_tokens else {}
        return self.engine.sample(requests, n, params, **more)

    def microbatches(self, samples: Sequence[Sample], tokens_per_batch: int) -> list[Batch]:
        """Cuts one policy's samples into micro-batches on the model's device."""
        return microbatches(samples, tokens_per_batch, packed=self._packed, device=self.device)

    def logprobs(
        self, policy: str, batch: Batch, *, temperature: float, entropy: bool, entropy_grad: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities `_BT` under the policy's current weights; see `batch_logprobs`."""
        module = self.weights.module(policy)
        # Activations are recomputed in training mode only; otherwise the mode has no effect,
        # because dropout is off.
        _set_training(module, policy in self._checkpointing)
        with self._precision():
            return batch_logprobs(
                module, batch, temperature=temperature, entropy=entropy, entropy_grad=entropy_grad
            )

    def reference_logprobs(self, batch: Batch, *, temperature: float) -> torch.Tensor:
        """Log-probabilities `_BT` under the model itself."""
        with self.weights.reference() as module, self._precision():
            _set_training(module, False)
            return batch_logprobs(module, batch, temperature=temperature)[0]

    @torch.no_grad()
    def features(
        self, prompts: Sequence[tuple[int, ...]], tokens_per_batch: int
    ) -> dict[tuple[int, ...], torch.Tensor]:
        """Last hidden state of the model at the last token of each prompt, float32 on the CPU.

        Args:
            prompts: token ids; equal ones are computed once.
            tokens_per_batch: padded tokens of one forward pass.

        Raises:
            ConfigError: full policies without a frozen base.
        """
        found: dict[tuple[int, ...], torch.Tensor] = {}
        # By length, so that little is padded; then by tokens, so that batches do not depend on the
        # order of the decisions.
        ordered = sorted(dict.fromkeys(prompts), key=lambda ids: (len(ids), ids))
        with self.weights.reference() as module, self._precision():
            _set_training(module, False)
            while ordered:
                # The longest of a batch is its last: rows are padded to its length.
                count = max(1, tokens_per_batch // len(ordered[-1]))
                rows, ordered = ordered[-count:], ordered[:-count]
                for ids, state in zip(rows, last_states(module, rows, self.device), strict=True):
                    found[ids] = state
        return found

    def close(self) -> None:
        """Closes the engine; the policies can still be read and written."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def _precision(self) -> torch.autocast:
        dtype = self.weights.autocast
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)


class AskedBase(Base):
    """Policies whose weights are in other processes: they can be sampled from, and no more.

    Args:
        chats: policy -> tokenizer and template.
        contexts: policy -> most tokens of a prompt and its completion together.
        engine: asks for completions.
    """

    def __init__(
        self, chats: Mapping[str, Chat], contexts: Mapping[str, int], engine: InferenceEngine
    ) -> None:
        self.chats, self.contexts, self.engine = dict(chats), dict(contexts), engine
        self.parameters = {name: [] for name in chats}


def context_of(model: PreTrainedModel, default: int) -> int:
    """The most tokens that a model is computed for.

    Models with "longrope" or "dynamic" positions turn all of them in another way once a text is
    longer than they were first trained for. The log-probabilities of a completion would then
    depend on what else is in its batch, so their texts end there.
    """
    text = model.config.get_text_config(decoder=True)
    longest = int(getattr(text, "max_position_embeddings", None) or default)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("longrope", "dynamic"):
        first = rope.get("original_max_position_embeddings") or getattr(
            text, "original_max_position_embeddings", None
        )
        if first and first < longest:
            _say_shorter(str(rope["rope_type"]), int(first), longest)
        return min(longest, int(first or longest))
    return longest


@functools.cache  # once, however many policies the model has
def _say_shorter(kind: str, used: int, longest: int) -> None:
    logger.warning(
        "texts end at %d tokens, although the model's context has %d: beyond, its %s positions "
        "depend on the longest text of a batch",
        *(used, longest, kind),
    )


def _set_training(model: nn.Module, training: bool) -> None:
    if model.training != training:
        model.train(training)
