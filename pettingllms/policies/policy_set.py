"""All policies of a run: which role each plays, their sampling, log-probabilities and files.

A policy is one LoRA adapter, or a full model, on a base model. Policies that name the same model
share one `Base`, with its weights, tokenizer and engine; nothing is shared between two of them. Each
request and each update goes to the base of its policy. Code outside this package does not depend on
which these are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn
from transformers import PreTrainedModel

from pettingllms.errors import (
    ConfigError,
    SamplerUnavailable,
    StaleSamplerError,
    UnknownNameError,
    did_you_mean,
)
from pettingllms.models.shared_prompts import enabled
from pettingllms.names import is_partner, own_names, policy_of
from pettingllms.policies.base_model import context_of
from pettingllms.policies.chat import Chat
from pettingllms.policies.packing import Batch, batch_logprobs, last_states, microbatches
from pettingllms.samplers.api import ApiPartners
from pettingllms.samplers.base import (
    InferenceEngine,
    OnCompletion,
    OnTokens,
    SampledTokens,
    SampleSettings,
    SamplingParams,
    Weights,
)
from pettingllms.types import Completion, Request, Sample


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
        self.checkpointing = checkpointing
        model = weights.module(next(iter(chats)))
        # All policies of a base have one model's attention, so that the first one's answer is that
        # of all.
        self.packed = enabled(model)
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
        what = "full model" if self.weights.full else "adapter"
        return f"{what} on {self.name}, digest {self.digest}"

    @property
    def device(self) -> torch.device:
        """The device of the models."""
        return next(iter(self.parameters.values()))[0].device

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
        """Completes every request `n` times by the engine, whose errors are raised.

        Raises:
            SamplerUnavailable: it has been closed.
        """
        if self.engine is None:
            raise SamplerUnavailable("these policies have been closed; load them again to sample")
        more: dict[str, Any] = {"on_tokens": on_tokens} if self.early and on_tokens else {}
        return self.engine.sample(requests, n, params, **more)

    @torch.no_grad()
    def features(
        self,
        prompts: Sequence[tuple[int, ...]],
        tokens_per_batch: int,
        over: Mapping[tuple[int, ...], int] | None = None,
    ) -> dict[tuple[int, ...], torch.Tensor]:
        """Last hidden state of the model at the last token of each prompt, float32 on the CPU.

        Args:
            prompts: token ids; equal ones are computed once.
            tokens_per_batch: padded tokens of one forward pass.
            over: prompt -> how many tokens at its end the mean is taken over.

        Raises:
            ConfigError: full policies without a frozen base.
        """
        states: dict[tuple[int, ...], torch.Tensor] = {}
        # By length, so that little is padded; then by tokens, so that batches do not depend on the
        # order of the decisions.
        ordered = sorted(dict.fromkeys(prompts), key=lambda ids: (len(ids), ids))
        with self.weights.reference() as module, self.precision():
            _set_training(module, False)
            while ordered:
                # The longest of a batch is its last: rows are padded to its length.
                count = max(1, tokens_per_batch // len(ordered[-1]))
                rows, ordered = ordered[-count:], ordered[:-count]
                counts = None if over is None else [over[ids] for ids in rows]
                batch = last_states(module, rows, self.device, counts)
                states.update(zip(rows, batch, strict=True))
        return states

    def close(self) -> None:
        """Closes the engine; the policies can still be read and written."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def precision(self) -> torch.autocast:
        """Computes in the dtype that weights of another one are to be computed in."""
        dtype = self.weights.autocast
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)


class AskedBase(Base):
    """Policies whose weights are in other processes: they can be sampled from, and no more."""

    def __init__(
        self, chats: Mapping[str, Chat], contexts: Mapping[str, int], engine: InferenceEngine
    ) -> None:
        self.chats, self.contexts, self.engine = dict(chats), dict(contexts), engine
        self.parameters = {name: [] for name in chats}


class PolicySet:
    """The policies of a run."""

    def __init__(self, bases: Sequence[Base], roles_to_policies: Mapping[str, str]) -> None:
        self.bases = tuple(bases)
        self.roles_to_policies = dict(roles_to_policies)
        self.names = own_names(roles_to_policies)
        """The policies that have weights here, `base` among them."""
        self.versions = dict.fromkeys(self.names, 0)
        self.partners: ApiPartners | None = None
        """Asks for the roles that models behind an API play, which have no weights here."""
        self._base_of = {name: base for base in bases for name in base.chats}
        self.contexts = {name: self._base_of[name].contexts[name] for name in self.names}
        """Policy -> most tokens of a prompt and its completion together."""
        self._published = {name: self._counter(name) for name in self.names}
        # An engine knows no weights before they are published, and counts versions from this one.
        for name in self.names:
            self.publish(name, version=0)

    @property
    def base(self) -> str:
        """Name or path of the base model, as it was given; of several, the first policy's."""
        return self.bases[0].name

    @property
    def digests(self) -> dict[str, str]:
        """Policy -> the digest of its base model."""
        return {name: self._base_of[name].digest for name in self.names}

    @property
    def described(self) -> dict[str, str]:
        """Policy -> whether it is an adapter, the name of its base model, and the digest of that."""
        return {name: self._base_of[name].described for name in self.names}

    @property
    def chat(self) -> Chat:
        """Tokenizer and template of the first policy: those of all that share its base."""
        return self.chat_for(self.names[0])

    @property
    def context(self) -> int:
        """Most tokens of a prompt and its completion together, whichever policy reads it."""
        return min(self.contexts.values())

    @property
    def device(self) -> torch.device:
        """The device of the models."""
        return self.bases[0].device

    @property
    def continuous(self) -> bool:
        """True if all engines batch requests as they come."""
        return all(base.engine is not None and base.engine.continuous for base in self.bases)

    def policy_for(self, role: str) -> str:
        """The policy that plays a role, or an agent: its own, or else that of its role."""
        return self.roles_to_policies.get(role) or policy_of(role, self.roles_to_policies)

    def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
        """Renders an observation into prompt tokens, with the template of the policy that plays it.

        A partner's prompt is bytes, see `ApiPartners`.
        """
        policy = self.policy_for(role)
        if self.partners is not None and is_partner(policy):
            return self.partners.prompt_ids(role, text)
        return self.chat_for(policy).prompt_ids(text)

    def base_of(self, policy: str) -> Base:
        """The base model that a policy is on.

        Raises:
            UnknownNameError: no such policy.
        """
        return self._base_of[self._known(policy)]

    def chat_for(self, policy: str) -> Chat:
        """The policy's tokenizer and template."""
        return self.base_of(policy).chats[policy]

    def parameters(self, policy: str) -> list[nn.Parameter]:
        """The tensors that this policy trains, and no others; always the same list."""
        return self.base_of(policy).parameters[policy]

    def sampling_model(self, policy: str) -> PreTrainedModel:
        """The model that samples this policy, in evaluation mode; ask again before each use.

        For a sampler beside the engine, in this process. Policies may share one model, which
        this call gives the policy's adapter.
        """
        model = self.base_of(policy).weights.sampling_module(policy)
        _set_training(model, False)
        return model

    @property
    def early(self) -> bool:
        """True if `sample` reports completions as they come; never with a model behind an API."""
        return self.partners is None and any(base.early for base in self.bases)

    def sample(
        self,
        requests: Sequence[Request],
        n: int,
        on_completion: OnCompletion | None = None,
        **settings: Unpack[SampleSettings],
    ) -> list[list[Completion]]:
        """Completes every request `n` times: result[request][candidate].

        Raises:
            ConfigError: a setting out of range, an empty prompt.
            StaleSamplerError: a policy was changed without `publish`.
            SamplerUnavailable: the engine or a partner's server failed, or has been closed.
        """
        params = SamplingParams(**settings)
        _check_params(n, params)
        if self.partners is None:
            return self._sample_here(requests, n, params, on_completion)
        theirs = [place for place, request in enumerate(requests) if is_partner(request.policy)]
        if not theirs:
            return self._sample_here(requests, n, params, on_completion)
        # Partners are asked first, so that their servers compute while the policies here are
        # sampled.
        answers = self.partners.ask([requests[place] for place in theirs], n, params)
        ours = [place for place, request in enumerate(requests) if not is_partner(request.policy)]
        here = self._sample_here([requests[place] for place in ours], n, params) if ours else []
        by_place = dict(zip([*ours, *theirs], [*here, *answers()], strict=True))
        return [by_place[place] for place in range(len(requests))]

    def _sample_here(
        self,
        requests: Sequence[Request],
        n: int,
        params: SamplingParams,
        on_completion: OnCompletion | None = None,
    ) -> list[list[Completion]]:
        for policy in dict.fromkeys(request.policy for request in requests):
            self._check_fresh(policy)
        if not all(request.prompt_ids for request in requests):
            raise ConfigError("a prompt without tokens cannot be completed")
        completions: list[list[Completion]] = [[] for _ in requests]
        for base in self.bases:
            places = [k for k, request in enumerate(requests) if request.policy in base.chats]
            if not places:
                continue

            # Engines number the requests that they are given, which are those of one base. `places`
            # is bound now, because the loop gives it another value.
            def early(at: int, k: int, tokens: SampledTokens, places: list[int] = places) -> None:
                assert on_completion is not None
                on_completion(places[at], k, self._completion(requests[places[at]], tokens))

            sampled = base.sample(
                [requests[place] for place in places], n, params, early if on_completion else None
            )
            for place, candidates in zip(places, sampled, strict=True):
                # Many are alike, and one object stands for all of them.
                request, distinct = requests[place], dict.fromkeys(candidates)
                alike = {tokens: self._completion(request, tokens) for tokens in distinct}
                completions[place] = [alike[tokens] for tokens in candidates]
        return completions

    def _completion(self, request: Request, sampled: SampledTokens) -> Completion:
        chat = self.chat_for(request.policy)
        return Completion(
            prompt_ids=request.prompt_ids,
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            text=chat.reply(chat.decode(sampled.token_ids)),
            truncated=sampled.truncated,
            version=self.versions[request.policy],
        )

    def microbatches(
        self, policy: str, samples: Sequence[Sample], tokens_per_batch: int
    ) -> list[Batch]:
        """Cuts the policy's samples into micro-batches on its model's device.

        Prompts are computed once for all their completions if the model allows it.
        """
        base = self.base_of(policy)
        return microbatches(samples, tokens_per_batch, packed=base.packed, device=base.device)

    def logprobs(
        self,
        policy: str,
        batch: Batch,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        entropy_grad: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities `_BT` of the batch under the policy's current weights, with gradients.

        Makes this policy's tensors the only trainable ones: call `backward` before another
        policy's turn. See `batch_logprobs` for the arguments.
        """
        base = self.base_of(policy)
        module = base.weights.module(policy)
        # Activations are recomputed in training mode only; otherwise the mode has no effect,
        # because dropout is off.
        _set_training(module, policy in base.checkpointing)
        with base.precision():
            return batch_logprobs(
                module, batch, temperature=temperature, entropy=entropy, entropy_grad=entropy_grad
            )

    @torch.no_grad()
    def sample_logprobs(
        self, asked: Iterable[tuple[str, Sample]], tokens_per_batch: int, temperature: float
    ) -> dict[tuple[str, Sample], torch.Tensor]:
        """Policy and sample -> log-probabilities of its tokens `_T`, float32 on the CPU, without gradients."""
        samples: dict[str, dict[Sample, None]] = {}
        for policy, sample in asked:
            samples.setdefault(policy, {})[sample] = None
        logprobs: dict[tuple[str, Sample], torch.Tensor] = {}
        for policy, distinct in samples.items():
            for batch in self.microbatches(policy, list(distinct), tokens_per_batch):
                logp_BT, _ = self.logprobs(policy, batch, temperature=temperature)
                for sample, logp_T in zip(batch.samples, logp_BT, strict=True):
                    logprobs[policy, sample] = logp_T[: len(sample.token_ids)].float().cpu()
        return logprobs

    @torch.no_grad()
    def reference_logprobs(
        self, policy: str, batch: Batch, *, temperature: float = 1.0
    ) -> torch.Tensor:
        """Log-probabilities `_BT` of the batch under the policy's base model."""
        base = self.base_of(policy)
        with base.weights.reference() as module, base.precision():
            _set_training(module, False)
            return batch_logprobs(module, batch, temperature=temperature)[0]

    def publish(self, policy: str, *, version: int | None = None) -> int:
        """Hands the policy's weights to the engine; returns their version, one more if None."""
        # Before the engine takes the weights over: a write from now on is one that it does not
        # have.
        self._published[policy] = self._counter(self._known(policy))
        self.versions[policy] = self.versions[policy] + 1 if version is None else version
        engine = self._base_of[policy].engine
        if engine is not None:
            engine.publish(policy, self.versions[policy])
        return self.versions[policy]

    def state(self, policy: str) -> dict[str, torch.Tensor]:
        """A copy of the policy's tensors on the CPU."""
        tensors = self.base_of(policy).weights.tensors(policy)
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

    def load_state(
        self, policy: str, state: Mapping[str, torch.Tensor], *, version: int | None = None
    ) -> None:
        """Overwrites the policy's tensors in place, then publishes them.

        Args:
            policy: a name of `names`.
            state: as from `state`.
            version: of these weights; one more than the current if None.

        Raises:
            ConfigError: names or shapes differ; nothing has been changed.
        """
        tensors = self.base_of(policy).weights.tensors(policy)
        odd = sorted(
            name
            for name in tensors.keys() | state.keys()
            if name not in tensors or name not in state or tensors[name].shape != state[name].shape
        )
        if odd:
            raise ConfigError(
                f"the weights do not fit policy {policy!r}: {len(odd)} tensors differ in name or "
                f"shape, the first is {odd[0]}; use the rank and targets they were trained with"
            )
        self.overwrite(policy, state)
        self.publish(policy, version=version)

    @contextmanager
    def exchanged(self, others: Mapping[str, tuple[int, Any]]) -> Iterator[None]:
        """Samples from other weights (policy -> version, state) for the length of a `with` block."""
        current = {name: (self.versions[name], self.state(name)) for name in others}
        try:
            for name, (version, state) in others.items():
                self.load_state(name, state, version=version)
            yield
        finally:
            for name, (version, state) in current.items():
                self.load_state(name, state, version=version)

    @torch.no_grad()
    def overwrite(self, policy: str, state: Mapping[str, torch.Tensor]) -> None:
        """Writes tensors that fit the policy into it; they are not published."""
        for name, tensor in self.base_of(policy).weights.tensors(policy).items():
            tensor.copy_(state[name])

    def save(self, policy: str, directory: Path) -> None:
        """Writes the policy into `directory`, atomically, as PEFT or transformers would."""
        self.base_of(policy).weights.save(policy, directory)

    def load(self, policy: str, directory: Path) -> None:
        """Replaces the policy's weights with those in `directory` and publishes them.

        Raises:
            ConfigError: nothing usable there, or weights of another base or shape.
        """
        self.load_state(policy, self.base_of(policy).weights.read(directory))

    def close(self) -> None:
        """Closes the engines; the policies can still be read and written, but not sampled from."""
        for base in self.bases:
            base.close()
        if self.partners is not None:
            self.partners.close()

    def _known(self, policy: str) -> str:
        if policy not in self.versions:
            raise UnknownNameError(
                f"unknown policy {policy!r}; {did_you_mean(policy, self.versions)}"
            )
        return policy

    def _counter(self, policy: str) -> int:
        """Counts in-place writes to the policy's tensors.

        PyTorch does not count what its fused optimizers (`fused=True`) write; after those, a
        forgotten `publish` goes unnoticed.
        """
        # PyTorch's own count of in-place writes: as cheap as a sum of integers, and no optimizer
        # has to take part.
        return sum(parameter._version for parameter in self._base_of[policy].parameters[policy])

    def _check_fresh(self, policy: str) -> None:
        if self._counter(self._known(policy)) != self._published[policy]:
            raise StaleSamplerError(
                f"the weights of policy {policy!r} changed after version "
                f"{self.versions[policy]} was published; call publish({policy!r}) before sampling"
            )
        # Where the engine's `publish` raised, the version here is ahead of what it samples from.
        engine = self._base_of[policy].engine
        if engine is not None and engine.versions[policy] != self.versions[policy]:
            raise StaleSamplerError(
                f"the engine holds version {engine.versions[policy]} of policy {policy!r}, "
                f"the trainer {self.versions[policy]}; call publish({policy!r}) before sampling"
            )


def _check_params(n: int, params: SamplingParams) -> None:
    if n < 1:
        raise ConfigError(f"n must be at least 1, got {n}")
    if params.max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens must be at least 1, got {params.max_new_tokens}")
    if not params.temperature > 0:
        raise ConfigError(
            f"temperature must be above 0, got {params.temperature}; use greedy instead"
        )
    if not 0 < params.top_p <= 1:
        raise ConfigError(f"top_p must be above 0 and at most 1, got {params.top_p}")


def _set_training(model: nn.Module, training: bool) -> None:
    if model.training != training:
        model.train(training)
