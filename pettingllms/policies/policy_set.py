"""All policies of a run: which role each plays, their sampling, log-probabilities and files.

A policy is one LoRA adapter on a shared base or a full model; code outside this package does not
depend on which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

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
from pettingllms.policies.chat import Chat
from pettingllms.policies.packing import Batch, batch_logprobs, last_states, microbatches
from pettingllms.samplers.api import ApiPartners
from pettingllms.samplers.base import InferenceEngine, SamplingParams, Weights, is_partner
from pettingllms.types import Completion, Request, Sample, role_of


class PolicySet:
    """The policies of a run.

    Args:
        weights: the policies' tensors.
        roles_to_policies: role, or agent, -> policy.
        chat: tokenizer and template.
        engine: samples, from weights that `publish` hands to it.
    """

    def __init__(
        self,
        weights: Weights,
        roles_to_policies: Mapping[str, str],
        chat: Chat,
        engine: InferenceEngine,
    ) -> None:
        self.roles_to_policies = dict(roles_to_policies)
        self.names = own_names(roles_to_policies)
        """The policies that have weights here, `base` among them."""
        self.versions = dict.fromkeys(self.names, 0)
        self.chat = chat
        self._weights = weights
        self._engine: InferenceEngine | None = engine
        self.partners: ApiPartners | None = None
        """Asks for the roles that models behind an API play, which have no weights here."""
        model = weights.module(self.names[0])
        self._packing, self._checkpointing = enabled(model), model.is_gradient_checkpointing
        self.context = context_of(model, chat.tokenizer.model_max_length)
        """Most tokens of a prompt and its completion together."""
        self._parameters = {name: list(weights.tensors(name).values()) for name in self.names}
        self._published = {name: self._counter(name) for name in self.names}
        for name in self.names:
            self.publish(name, version=0)

    @property
    def base(self) -> str:
        """Name or path of the base model, as it was given."""
        return self._weights.base

    @property
    def base_digest(self) -> str:
        """Tells this base model from others; see `pettingllms.policies.weights.base_digest`."""
        return self._weights.digest

    @property
    def device(self) -> torch.device:
        """The device of the models."""
        return self._parameters[self.names[0]][0].device

    @property
    def continuous(self) -> bool:
        """Whether the engine batches requests as they come."""
        return self._engine is not None and self._engine.continuous

    def policy_for(self, role: str) -> str:
        """The policy that plays a role, or an agent: its own, or else that of its role.

        Raises:
            UnknownNameError: no policy was given for it.
        """
        given = self.roles_to_policies
        found = given.get(role) or given.get(role_of(role))
        if found is None:
            known = did_you_mean(role, given)
            raise UnknownNameError(f"no policy plays the role {role!r}; {known}")
        return found

    def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
        """Renders an observation of a role or agent into prompt tokens; all share the template.

        A partner's prompt is bytes, see `ApiPartners`.
        """
        if self.partners is not None and is_partner(self.policy_for(role)):
            return self.partners.prompt_ids(role, text)
        self.policy_for(role)
        return self.chat.prompt_ids(text)

    def parameters(self, policy: str) -> list[nn.Parameter]:
        """The tensors that this policy trains, and no others; always the same list."""
        return self._parameters[self._known(policy)]

    def sampling_model(self, policy: str) -> PreTrainedModel:
        """The model that samples this policy, in evaluation mode; ask again before each use.

        For a sampler beside the engine, in this process. Policies may share one model, which
        this call gives the policy's adapter.
        """
        model = self._weights.sampling_module(self._known(policy))
        _set_training(model, False)
        return model

    def sample(
        self,
        requests: Sequence[Request],
        n: int,
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        greedy: bool = False,
        top_p: float = 1.0,
    ) -> list[list[Completion]]:
        """Completes every request `n` times: result[request][candidate].

        The same requests, seeds included, give the same completions on one machine and one version
        of its libraries.

        Raises:
            ConfigError: a setting out of range, an empty prompt.
            StaleSamplerError: a policy was changed without `publish`.
            SamplerUnavailable: the engine or a partner's server failed, also at a second try, or
                has been closed.
        """
        params = _sampling_params(n, max_new_tokens, temperature, greedy, top_p)
        theirs = [place for place, request in enumerate(requests) if is_partner(request.policy)]
        if not theirs or self.partners is None:
            return self._sample_here(requests, n, params)
        answers = self.partners.ask([requests[place] for place in theirs], n, params)
        ours = [place for place, request in enumerate(requests) if not is_partner(request.policy)]
        here = self._sample_here([requests[place] for place in ours], n, params) if ours else []
        found = dict(zip([*ours, *theirs], [*here, *answers()], strict=True))
        return [found[place] for place in range(len(requests))]

    def _sample_here(
        self, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> list[list[Completion]]:
        for policy in dict.fromkeys(request.policy for request in requests):
            self._check_fresh(policy)
        if not all(request.prompt_ids for request in requests):
            raise ConfigError("a prompt without tokens cannot be completed")
        if self._engine is None:
            raise SamplerUnavailable("these policies have been closed; load them again to sample")
        sampled = self._engine.sample(requests, n, params)
        return [
            [
                Completion(
                    prompt_ids=request.prompt_ids,
                    token_ids=one.token_ids,
                    logprobs=one.logprobs,
                    text=self.chat.reply(self.chat.decode(one.token_ids)),
                    truncated=one.truncated,
                    version=self.versions[request.policy],
                )
                for one in candidates
            ]
            for request, candidates in zip(requests, sampled, strict=True)
        ]

    def microbatches(self, samples: Sequence[Sample], tokens_per_batch: int) -> list[Batch]:
        """Cuts one policy's samples into micro-batches on the model's device.

        Prompts are computed once for all their completions if the model allows it.
        """
        return microbatches(samples, tokens_per_batch, packed=self._packing, device=self.device)

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
        module = self._weights.module(self._known(policy))
        # Activations are recomputed in training mode only; otherwise the mode has no effect,
        # because dropout is off.
        _set_training(module, self._checkpointing)
        with self._precision():
            return batch_logprobs(
                module, batch, temperature=temperature, entropy=entropy, entropy_grad=entropy_grad
            )

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch, *, temperature: float = 1.0) -> torch.Tensor:
        """Log-probabilities `_BT` of the batch under the base model."""
        with self._weights.reference() as module, self._precision():
            _set_training(module, False)
            return batch_logprobs(module, batch, temperature=temperature)[0]

    @torch.no_grad()
    def features(
        self, prompts: Sequence[tuple[int, ...]], tokens_per_batch: int
    ) -> dict[tuple[int, ...], torch.Tensor]:
        """Last hidden state of the base model at the last token of each prompt, float32 on the CPU.

        Args:
            prompts: token ids; equal ones are computed once.
            tokens_per_batch: padded tokens of one forward pass.

        Raises:
            ConfigError: full policies without a frozen base.
        """
        found: dict[tuple[int, ...], torch.Tensor] = {}
        ordered = sorted(dict.fromkeys(prompts), key=lambda ids: (len(ids), ids))
        with self._weights.reference() as module, self._precision():
            _set_training(module, False)
            while ordered:
                # The longest of a batch is its last: rows are padded to its length.
                count = max(1, tokens_per_batch // len(ordered[-1]))
                rows, ordered = ordered[-count:], ordered[:-count]
                for ids, state in zip(rows, last_states(module, rows, self.device), strict=True):
                    found[ids] = state
        return found

    def publish(self, policy: str, *, version: int | None = None) -> int:
        """Hands the policy's weights to the engine; returns their version, one more if None."""
        self._published[policy] = self._counter(self._known(policy))
        self.versions[policy] = self.versions[policy] + 1 if version is None else version
        if self._engine is not None:
            self._engine.publish(policy, self.versions[policy])
        return self.versions[policy]

    def state(self, policy: str) -> dict[str, torch.Tensor]:
        """A copy of the policy's tensors on the CPU."""
        tensors = self._weights.tensors(self._known(policy))
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

    @torch.no_grad()
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
        tensors = self._weights.tensors(self._known(policy))
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
        for name, tensor in tensors.items():
            tensor.copy_(state[name])
        self.publish(policy, version=version)

    def save(self, policy: str, directory: Path) -> None:
        """Writes the policy into `directory`, atomically, as PEFT or transformers would."""
        self._weights.save(self._known(policy), directory)

    def load(self, policy: str, directory: Path) -> None:
        """Replaces the policy's weights with those in `directory` and publishes them.

        Raises:
            ConfigError: nothing usable there, or weights of another base or shape.
        """
        self.load_state(policy, self._weights.read(directory))

    def close(self) -> None:
        """Closes the engine; the policies can still be read and written, but not sampled from."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self.partners is not None:
            self.partners.close()

    def _precision(self) -> torch.autocast:
        dtype = self._weights.autocast
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

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
        return sum(parameter._version for parameter in self._parameters[policy])

    def _check_fresh(self, policy: str) -> None:
        if self._counter(self._known(policy)) != self._published[policy]:
            raise StaleSamplerError(
                f"the weights of policy {policy!r} changed after version "
                f"{self.versions[policy]} was published; call publish({policy!r}) before sampling"
            )
        if self._engine is not None and self._engine.versions[policy] != self.versions[policy]:
            raise StaleSamplerError(
                f"the engine holds version {self._engine.versions[policy]} of policy {policy!r}, "
                f"the trainer {self.versions[policy]}; call publish({policy!r}) before sampling"
            )


def own_names(roles_to_policies: Mapping[str, str]) -> tuple[str, ...]:
    """The policies that have weights here, each once, in the order of the roles."""
    names = dict.fromkeys(roles_to_policies.values())
    return tuple(name for name in names if not is_partner(name))


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
        return min(longest, int(first or longest))
    return longest


def _set_training(model: PreTrainedModel, training: bool) -> None:
    if model.training != training:
        model.train(training)


def _sampling_params(
    n: int, max_new_tokens: int, temperature: float, greedy: bool, top_p: float
) -> SamplingParams:
    if n < 1:
        raise ConfigError(f"n must be at least 1, got {n}")
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if not temperature > 0:
        raise ConfigError(f"temperature must be above 0, got {temperature}; use greedy instead")
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p must be above 0 and at most 1, got {top_p}")
    return SamplingParams(max_new_tokens, temperature, greedy, top_p)
