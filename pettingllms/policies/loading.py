"""Builds the policies of a run from a model's name or folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig
from transformers import PreTrainedModel

from pettingllms.errors import ConfigError
from pettingllms.models.shared_prompts import enabled
from pettingllms.names import BASE, own_names
from pettingllms.policies.base_model import (
    ModelSpec,
    is_checkpointing,
    load_base,
    quantized,
    switch_of,
)
from pettingllms.policies.chat import Chat, end_of_turn_ids
from pettingllms.policies.policy_set import Base, PolicySet
from pettingllms.policies.prefix_trial import check_cache
from pettingllms.policies.weights import MERGE_LIMIT_BYTES, FullWeights, LoraWeights, read_config
from pettingllms.samplers.base import SAMPLERS, SamplerSettings, ServedPolicies, Weights


def load_policies(
    model: str | Path | ModelSpec,
    roles_to_policies: Mapping[str, str],
    *,
    lora_r: int = 16,
    lora_alpha: int = 32,
    lora_target_modules: str | Sequence[str] = "all-linear",
    full: bool = False,
    reference: bool = False,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    gradient_checkpointing: bool = False,
    merge: bool | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    adapters: Path | Mapping[str, Path] | None = None,
    sampler: SamplerSettings | None = None,
) -> PolicySet:
    """Loads the base model and makes or loads a policy for every role.

    Args:
        model: a Hugging Face id, a folder with a causal model and its tokenizer, or a `ModelSpec`.
        roles_to_policies: role -> policy, as from `parse_policies`.
        lora_r: rank of the adapters.
        lora_alpha: adapters are scaled by `lora_alpha / lora_r`.
        lora_target_modules: "all-linear", or names of modules, as PEFT takes them.
        full: train a full model per policy in place of adapters, each held in memory.
        reference: with `full`, keep the base, too, for a KL term. Adapters need no copy.
        dtype: of the computation; None: float32 on a CPU, else bfloat16. Trained in float32.
        device: None: cuda or mps where present, else the CPU.
        seed: of the adapters' first weights, together with each policy's name.
        gradient_checkpointing: recompute activations in the backward pass.
        merge: sample from modules of the policies' own (`LoraWeights`); None: unless float32 and above 1 GiB.
        chat_template_kwargs: passed on to the chat template.
        adapters: folder with a folder for each policy, or policy -> folder; they decide their rank.
        sampler: the engine that samples; transformers by default.

    Raises:
        ConfigError, UnknownNameError: a model, adapter, sampler or value that cannot be used.
        SamplerUnavailable: the engine does not start.
    """
    names = own_names(roles_to_policies)
    saved = saved_folders(adapters, names)
    lora = lora_config(lora_r, lora_alpha, lora_target_modules)
    template = dict(chat_template_kwargs or {})
    specs = {
        name: PolicySpec(lora, template, saved.get(name), gradient_checkpointing) for name in names
    }
    base = open_base(
        ModelSpec.of(model),
        specs,
        full=full,
        reference=reference,
        dtype=dtype,
        device=device,
        seed=seed,
        merge=merge,
        sampler=sampler,
    )
    return policies_on([base], roles_to_policies, saved)


class PolicySpec(NamedTuple):
    """A policy that is loaded onto a base."""

    lora: LoraConfig
    """Its adapter, where it is one and none was saved."""
    template: Mapping[str, Any]
    """Arguments of its chat template."""
    saved: Path | None = None
    """The folder of its weights."""
    checkpointing: bool = False
    """Whether its update computes activations again in the backward pass."""


def open_base(
    spec: ModelSpec,
    policies: Mapping[str, PolicySpec],
    *,
    full: bool = False,
    reference: bool = False,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    merge: bool | None = None,
    sampler: SamplerSettings | None = None,
) -> Base:
    """Loads a model, makes the policies on it, and opens the engine that samples them.

    `policies` has what is each policy's own; saved weights are not read, see `policies_on`. The
    other arguments, and the errors, are those of `load_policies`.
    """
    open_engine = SAMPLERS.load((sampler := sampler or SamplerSettings()).name)
    compute, place = spec.dtype_and_device(dtype, device)
    checkpointing = [name for name, policy in policies.items() if policy.checkpointing]
    if spec.model is not None and is_checkpointing(spec.model):
        checkpointing = list(policies)  # an object may have been set up so
    # Full models are trained in float32, where small updates are not rounded away, and computed in
    # `compute`.
    kept = torch.float32 if full else compute
    tokenizer, base = load_base(spec, kept, place, bool(checkpointing))
    here = sampler.name == "transformers"  # other engines copy the adapters
    # A model that shares prompts has passed a trial of sampling already.
    if here and not enabled(base):
        check_cache(base)
    ends = end_of_turn_ids(base, tokenizer)
    chats = {name: Chat(tokenizer, ends, policy.template) for name, policy in policies.items()}
    names = tuple(policies)
    weights: Weights
    rank: int | None = None
    if full:
        weights = FullWeights(base, spec.name, names, reference=reference, sampling_dtype=compute)
    else:
        # These are for sampling in this process; other engines would only pay for their memory.
        weights, rank = _adapters(base, spec, policies, seed, here and merge)
    pad_id = chats[names[0]].pad_id
    switch = switch_of(base.config)
    lengths = switch and switch.lengths
    served = ServedPolicies(weights, names, ends, pad_id, rank, compute, lengths)
    return Base(weights, chats, open_engine(served, sampler), checkpointing)


def policies_on(
    bases: Sequence[Base], roles_to_policies: Mapping[str, str], saved: Mapping[str, Path]
) -> PolicySet:
    """The policies on these bases, with the weights in the folders of `saved`.

    Raises:
        ConfigError: weights that cannot be used.
    """
    policies = PolicySet(bases, roles_to_policies)
    for name, folder in saved.items():
        policies.load(name, folder)
    return policies


def _adapters(
    base: PreTrainedModel,
    spec: ModelSpec,
    policies: Mapping[str, PolicySpec],
    seed: int,
    merge: bool | None,
) -> tuple[LoraWeights, int]:
    """An adapter for each policy, shaped like the saved one where there is one; the largest rank."""
    configs = {
        name: policy.lora if policy.saved is None else read_config(policy.saved)
        for name, policy in policies.items()
    }
    if merge is None:
        small = base.get_memory_footprint() <= MERGE_LIMIT_BYTES
        merge = (small or base.dtype != torch.float32) and not quantized(base)
    float32 = spec.adapter_dtype == "float32"
    try:
        weights = LoraWeights(base, spec.name, configs, seed=seed, merge=merge, float32=float32)
    except ValueError as error:
        # A ConfigError is a ValueError as well, and says already what is wrong.
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"no adapters can be made for model {spec.name!r}: {error}") from error
    return weights, max(config.r for config in configs.values())


def lora_config(rank: int, alpha: int, targets: str | Sequence[str]) -> LoraConfig:
    """PEFT's configuration of a plain adapter.

    Raises:
        ConfigError: no rank, or no targets.
    """
    if rank < 1:
        raise ConfigError(f"lora_r must be at least 1, got {rank}")
    if not targets:
        raise ConfigError("lora_target_modules is empty; use all-linear, or name modules")
    return LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        # The update has to compute the very probabilities that were sampled from.
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )


def saved_folders(
    adapters: Path | Mapping[str, Path] | None, names: Sequence[str]
) -> dict[str, Path]:
    """The folder of every policy but `base`; nothing if `adapters` is None.

    Raises:
        ConfigError: a policy has no folder there.
    """
    if adapters is None or isinstance(adapters, Mapping):
        return dict(adapters or {})
    names = [name for name in names if name != BASE]
    missing = [name for name in names if not (adapters / name).is_dir()]
    if missing:
        inside = sorted(path.name for path in adapters.iterdir()) if adapters.is_dir() else []
        raise ConfigError(
            f"{adapters} holds no folder for {', '.join(map(repr, missing))}; it has "
            f"{', '.join(inside[:8]) or 'nothing'}"
        )
    return {name: adapters / name for name in names}
