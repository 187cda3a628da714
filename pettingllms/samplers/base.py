"""Interfaces of sampling: what a rollout asks, and what an inference engine answers.

A rollout asks a `Sampler`, which knows the roles, their policies and how text becomes tokens;
`PolicySet` is one and `ScriptedSampler` another. A `PolicySet` in turn asks an `InferenceEngine`,
which knows tokens only and samples from its own copy of the policies' weights.

A new engine is one file with a function `open_engine(served, settings) -> InferenceEngine`, and one
line in `SAMPLERS`; another package adds its own through the entry points `pettingllms.samplers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Required, TypedDict, Unpack

from pettingllms.registry import Registry
from pettingllms.types import Completion, Request

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from pettingllms.models.shared_prompts import States

SAMPLERS = Registry(
    "sampler",
    {
        "transformers": "pettingllms.samplers.transformers:open_engine",
        "vllm": "pettingllms.samplers.vllm:open_engine",
    },
)
DEFAULT_TOKENS_PER_BATCH = 1 << 16


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The settings by which the next token is chosen.

    Args:
        max_new_tokens: length at which a completion is truncated.
        temperature: divides the logits, above 0.
        greedy: take the likeliest token; the recorded log-probability is still the model's.
        top_p: keep the likeliest tokens that together reach this probability. For evaluation:
            the recorded log-probabilities are those of the truncated distribution, which the
            update does not recompute.
    """

    max_new_tokens: int
    temperature: float = 1.0
    greedy: bool = False
    top_p: float = 1.0


class SampleSettings(TypedDict, total=False):
    """The arguments of `SamplingParams`, as the keywords of `Sampler.sample`."""

    max_new_tokens: Required[int]
    temperature: float
    greedy: bool
    top_p: float


class SampledTokens(NamedTuple):
    """One completion as an engine returns it; `Completion` adds the prompt and the text."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    truncated: bool


OnTokens = Callable[[int, int, SampledTokens], object]
"""Takes the index of a request, the number of a completion of it, and that completion."""
OnCompletion = Callable[[int, int, Completion], object]


class Sampler(Protocol):
    """Completes prompts of roles.

    One with an attribute `early` that is true takes `on_completion` (`OnCompletion`) in `sample`, and calls
    it with each completion that is there before those that were asked for with it.
    """

    @property
    def continuous(self) -> bool:
        """True if batches may be formed from whatever is ready."""

    def policy_for(self, role: str) -> str:
        """The policy that plays a role, or an agent: its own, or else that of its role."""

    def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
        """The prompt tokens of an observation."""

    def sample(
        self, requests: Sequence[Request], n: int, **settings: Unpack[SampleSettings]
    ) -> list[list[Completion]]:
        """`n` completions of every request: `result[request][candidate]`.

        All randomness is from the requests' seeds: the same requests give the same completions on
        one machine and one version of its libraries.

        Raises:
            ConfigError: a setting or a request that cannot be used.
            SamplerUnavailable: what samples has failed, or was closed.
        """


class Weights(Protocol):
    """The policies' tensors: `LoraWeights` or `FullWeights`."""

    base: str
    """Name or path of the base model, as it was given."""
    digest: str
    """Of the base model, which tells it from others."""
    full: bool
    """Whether each policy is a whole model."""
    autocast: torch.dtype | None
    """What the update is computed in, if the weights are kept in another dtype."""

    def tensors(self, policy: str) -> dict[str, nn.Parameter]:
        """The parameters that the policy trains, under the names they are saved by."""

    def module(self, policy: str) -> PreTrainedModel:
        """The model that computes this policy, ready for training it alone."""

    def sampling_module(self, policy: str) -> PreTrainedModel:
        """The model to sample this policy from, as of the last `refresh`."""

    def reference(self) -> AbstractContextManager[PreTrainedModel]:
        """The base model."""

    def refresh(self, policy: str) -> None:
        """Brings the sampling module up to date."""

    def save(self, policy: str, directory: Path) -> None:
        """Writes the policy, atomically."""

    def read(self, directory: Path) -> dict[str, torch.Tensor]:
        """The tensors that `save` wrote, named as in `tensors`."""


@dataclass(frozen=True, slots=True)
class ServedPolicies:
    """The policies that an engine is opened for."""

    weights: Weights
    names: tuple[str, ...]
    end_ids: tuple[int, ...]
    """Tokens that end a completion."""
    pad_id: int
    lora_rank: int | None
    """Greatest rank of an adapter; None: the policies are full models."""
    dtype: torch.dtype
    """Of the computation."""
    lengths: tuple[int, int] | None = None
    """The least and greatest context with which an engine has the trainer's positions; None: any."""


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """The engine that samples, and its settings."""

    name: str = "transformers"
    """A name in `SAMPLERS`, or the `module:attribute` path of an `open_engine` function."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """vLLM's options, as `check_options` accepts them."""
    folder: Path | None = None
    """Where vLLM's adapters and its log are written; a temporary folder if None."""
    tokens_per_batch: int = DEFAULT_TOKENS_PER_BATCH
    """Bound on the positions in the cache of the transformers engine."""
    bases: int = 1
    """Base models that share the device, each with an engine of its own."""


class InferenceEngine(Protocol):
    """Completes prompts of all policies, from weights that `publish` hands over.

    One with an attribute `early` that is true takes `on_tokens` (`OnTokens`) in `sample`, and calls it with
    each completion that is there before those that were asked for with it.
    """

    @property
    def continuous(self) -> bool:
        """True if its batches depend on when requests arrive anyway, so that any may be formed."""

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each policy's weights that is sampled from."""

    def publish(self, policy: str, version: int) -> None:
        """Takes over the policy's current weights.

        Raises:
            SamplerUnavailable: the engine failed; it keeps the previous version.
        """

    def sample(
        self, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> list[list[SampledTokens]]:
        """Completes every request `n` times, or raises: a part of a batch is never returned.

        Everything random follows from the requests' seeds.

        Raises:
            ConfigError: a request that does not fit the engine.
            SamplerUnavailable: the engine failed.
        """

    def close(self) -> None:
        """Frees what the engine holds. It cannot be used afterwards."""


class Memory:
    """The latest prompt of a conversation, with its keys and values once it has been sampled from.

    The next prompt of the conversation begins with it. Keys and values are computed from where they part: the
    reply, which one pass computes in a fraction of the time that drawing it took, and what is new.

    A memory lives in an episode, so that what it has kept depends on the decisions of that episode, on the room of
    its batches and on nothing else: a rollout has the same bytes in one process, on workers, and in a resumed run.
    Against computing a whole prompt again, log-probabilities differ by the rounding of batched matrix products.
    """

    def __init__(self) -> None:
        self._owner: Any = None
        self.prompt_ids: tuple[int, ...] = ()
        self.states: States | None = None

    def of(self, owner: Any) -> Memory:
        """This memory, without what other weights than those of `owner` have computed."""
        if owner != self._owner:
            self._owner = owner
            self.keep((), None)
        return self

    def beginning(self, prompt_ids: tuple[int, ...]) -> States | None:
        """What is known of a longer prompt, None unless it begins with the one kept."""
        kept = self.prompt_ids
        begins = len(kept) < len(prompt_ids) and prompt_ids[: len(kept)] == kept
        return self.states if begins else None

    def keep(self, prompt_ids: tuple[int, ...], states: States | None) -> None:
        """Takes a prompt in place of the one before."""
        self.prompt_ids, self.states = prompt_ids, states
