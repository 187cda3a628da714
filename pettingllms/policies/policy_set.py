"""All policies of a run: which role each plays, their sampling, log-probabilities and files.

A policy is one LoRA adapter on a base that others may share, or a full model; each request and each
update goes to the base of its policy (`pettingllms.policies.bases`). Code outside this package does
not depend on which these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from pettingllms.errors import (
    ConfigError,
    StaleSamplerError,
    UnknownNameError,
    did_you_mean,
)
from pettingllms.policies.bases import Base
from pettingllms.policies.chat import Chat
from pettingllms.policies.packing import Batch
from pettingllms.policies.roles import own_names
from pettingllms.samplers.api import ApiPartners
from pettingllms.samplers.base import OnCompletion, SampledTokens, SamplingParams, is_partner
from pettingllms.types import Completion, Request, Sample, role_of


class PolicySet:
    """The policies of a run.

    Args:
        bases: hold the policies, each of them one.
        roles_to_policies: role, or agent, -> policy.
    """

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
        return all(each.engine is not None and each.engine.continuous for each in self.bases)

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
        return self.base_of(policy).sampling_model(policy)

    @property
    def early(self) -> bool:
        """True if `sample` reports completions as they come; never with a model behind an API."""
        return self.partners is None and any(base.early for base in self.bases)

    def sample(
        self,
        requests: Sequence[Request],
        n: int,
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        greedy: bool = False,
        top_p: float = 1.0,
        on_completion: OnCompletion | None = None,
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
            return self._sample_here(requests, n, params, on_completion)
        # Partners are asked first, so that their servers compute while the policies here are
        # sampled.
        answers = self.partners.ask([requests[place] for place in theirs], n, params)
        ours = [place for place, request in enumerate(requests) if not is_partner(request.policy)]
        here = self._sample_here([requests[place] for place in ours], n, params) if ours else []
        found = dict(zip([*ours, *theirs], [*here, *answers()], strict=True))
        return [found[place] for place in range(len(requests))]

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
        found: list[list[Completion]] = [[] for _ in requests]
        for base in self.bases:
            mine = [place for place, each in enumerate(requests) if each.policy in base.chats]
            if not mine:
                continue

            # Engines number the requests that they are given, which are those of one base. `mine`
            # is bound now, because the loop gives it another value.
            def early(at: int, k: int, tokens: SampledTokens, mine: list[int] = mine) -> None:
                assert on_completion is not None
                on_completion(mine[at], k, self._completion(requests[mine[at]], tokens))

            sampled = base.sample(
                [requests[place] for place in mine], n, params, early if on_completion else None
            )
            for place, candidates in zip(mine, sampled, strict=True):
                found[place] = self._completions(requests[place], candidates)
        return found

    def _completions(
        self, request: Request, candidates: Sequence[SampledTokens]
    ) -> list[Completion]:
        # Many are alike, and one object stands for all of them.
        alike = {each: self._completion(request, each) for each in dict.fromkeys(candidates)}
        return [alike[each] for each in candidates]

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
        return self.base_of(policy).microbatches(samples, tokens_per_batch)

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
        return self.base_of(policy).logprobs(
            policy, batch, temperature=temperature, entropy=entropy, entropy_grad=entropy_grad
        )

    @torch.no_grad()
    def reference_logprobs(
        self, policy: str, batch: Batch, *, temperature: float = 1.0
    ) -> torch.Tensor:
        """Log-probabilities `_BT` of the batch under the policy's base model."""
        return self.base_of(policy).reference_logprobs(batch, temperature=temperature)

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
        for name, tensor in tensors.items():
            tensor.copy_(state[name])
        self.publish(policy, version=version)

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
