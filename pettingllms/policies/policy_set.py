"""All policies of a run: who plays which role, what they answer, what they learn, what is saved.

A policy is one LoRA adapter on a shared base or a full model; nothing outside this package knows
which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from pettingllms.errors import ConfigError, StaleSamplerError, UnknownNameError, did_you_mean
from pettingllms.policies.chat import Chat
from pettingllms.policies.packing import Batch, batch_logprobs, microbatches
from pettingllms.policies.sampler import Draw, TransformersSampler
from pettingllms.policies.shared_prompts import enabled
from pettingllms.types import Reply, Request, Sample


class Weights(Protocol):
    """Where the policies' tensors live: `LoraWeights` or `FullWeights`."""

    base: str
    autocast: torch.dtype | None
    """What the update is computed in, where the weights are kept in another dtype."""

    def tensors(self, policy: str) -> dict[str, nn.Parameter]:
        """What the policy trains, under the names it is saved by."""

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
        """What `save` wrote, named as `tensors` is."""


class PolicySet:
    """The policies of a run.

    Args:
        weights: the policies' tensors.
        roles_to_policies: role -> policy.
        chat: tokenizer and template.
        sampler: samples from a model.
    """

    def __init__(
        self,
        weights: Weights,
        roles_to_policies: Mapping[str, str],
        chat: Chat,
        sampler: TransformersSampler,
    ) -> None:
        self.roles_to_policies = dict(roles_to_policies)
        self.names = tuple(dict.fromkeys(self.roles_to_policies.values()))
        self.versions = dict.fromkeys(self.names, 0)
        self.chat = chat
        self._weights, self._sampler = weights, sampler
        model = weights.module(self.names[0])
        self._packing, self._checkpointing = enabled(model), model.is_gradient_checkpointing
        self._parameters = {name: list(weights.tensors(name).values()) for name in self.names}
        self._published = {name: self._counter(name) for name in self.names}

    @property
    def base(self) -> str:
        """Name or path of the base model, as it was given."""
        return self._weights.base

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return self._parameters[self.names[0]][0].device

    def policy_for(self, role: str) -> str:
        """The policy that plays `role`.

        Raises:
            UnknownNameError: no policy was given for it.
        """
        if role not in self.roles_to_policies:
            known = did_you_mean(role, self.roles_to_policies)
            raise UnknownNameError(f"no policy plays the role {role!r}; {known}")
        return self.roles_to_policies[role]

    def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
        """The prompt tokens for what `role` is shown; the role is checked, the template common."""
        self.policy_for(role)
        return self.chat.prompt_ids(text)

    def parameters(self, policy: str) -> list[nn.Parameter]:
        """Exactly the tensors that this policy trains, listed once when it was made."""
        return self._parameters[self._known(policy)]

    def sample(
        self,
        requests: Sequence[Request],
        n: int,
        *,
        generator: torch.Generator,
        max_new_tokens: int,
        temperature: float = 1.0,
        greedy: bool = False,
        top_p: float = 1.0,
    ) -> list[list[Reply]]:
        """Answers every request `n` times: result[request][candidate].

        One batch per policy. The same requests and the same generator state give the same
        replies, on one machine and one version of its libraries.

        Raises:
            ConfigError: a setting out of range, an empty prompt.
            StaleSamplerError: a policy was changed without `publish`.
        """
        draw = _draw(n, max_new_tokens, temperature, greedy, top_p)
        replies: list[list[Reply]] = [[] for _ in requests]
        for policy in dict.fromkeys(request.policy for request in requests):
            self._check_fresh(policy)
            mine = [i for i, request in enumerate(requests) if request.policy == policy]
            prompts = [requests[i].prompt_ids for i in mine]
            if not all(prompts):
                raise ConfigError("a prompt without tokens cannot be answered")
            module = self._weights.sampling_module(policy)
            _set_training(module, False)
            answers = self._sampler.sample(module, prompts, n, draw, generator)
            for i, drawn in zip(mine, answers, strict=True):
                replies[i] = [
                    Reply(
                        prompt_ids=requests[i].prompt_ids,
                        token_ids=one.token_ids,
                        logprobs=one.logprobs,
                        text=self.chat.decode(one.token_ids),
                        finished=one.finished,
                        version=self.versions[policy],
                    )
                    for one in drawn
                ]
        return replies

    def microbatches(self, samples: Sequence[Sample], tokens_per_batch: int) -> list[Batch]:
        """Cuts one policy's samples into micro-batches on the model's device.

        Prompts are computed once for all their replies where the model allows it.
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
        """Log-probabilities `_BT` of the batch under the policy as it is now, with gradients.

        Makes this policy's tensors the only trainable ones: call `backward` before another
        policy's turn. See `batch_logprobs` for the arguments.
        """
        module = self._weights.module(self._known(policy))
        # Activations are recomputed in training mode only; without that, the mode means nothing,
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

    def publish(self, policy: str) -> int:
        """Hands the policy's weights to the sampler; returns their new version."""
        self._weights.refresh(self._known(policy))
        self._published[policy] = self._counter(policy)
        self.versions[policy] += 1
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
            policy: whose.
            state: as from `state`.
            version: of these weights; one more than the present if None.

        Raises:
            ConfigError: names or shapes differ; nothing has been changed then.
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
        self.publish(policy)
        if version is not None:
            self.versions[policy] = version

    def save(self, policy: str, directory: Path) -> None:
        """Writes the policy into `directory`, atomically, as PEFT or transformers would."""
        self._weights.save(self._known(policy), directory)

    def load(self, policy: str, directory: Path) -> None:
        """Replaces the policy's weights by those in `directory` and publishes them.

        Raises:
            ConfigError: nothing usable there, or of another base or shape.
        """
        self.load_state(policy, self._weights.read(directory))

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
        """Changes whenever one of the policy's tensors is written to in place.

        PyTorch does not count what its fused optimizers (`fused=True`) write; after those,
        forgetting to publish goes unnoticed.
        """
        return sum(parameter._version for parameter in self._parameters[policy])

    def _check_fresh(self, policy: str) -> None:
        if self._counter(self._known(policy)) != self._published[policy]:
            raise StaleSamplerError(
                f"the weights of policy {policy!r} changed after version "
                f"{self.versions[policy]} was published; call publish({policy!r}) before sampling"
            )


def _set_training(model: PreTrainedModel, training: bool) -> None:
    if model.training != training:
        model.train(training)


def _draw(n: int, max_new_tokens: int, temperature: float, greedy: bool, top_p: float) -> Draw:
    if n < 1:
        raise ConfigError(f"n must be at least 1, got {n}")
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if not temperature > 0:
        raise ConfigError(f"temperature must be above 0, got {temperature}; use greedy instead")
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p must be above 0 and at most 1, got {top_p}")
    return Draw(max_new_tokens, temperature, greedy, top_p)
