"""Builds the policies of a run from a model's name or folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import PreTrainedModel

from pettingllms.errors import ConfigError
from pettingllms.models.shared_prompts import enabled
from pettingllms.policies.base_model import ModelSpec, load_base, quantized
from pettingllms.policies.chat import Chat, end_of_turn_ids
from pettingllms.policies.policy_set import PolicySet, own_names
from pettingllms.policies.prefix_trial import check_cache
from pettingllms.policies.roles import BASE
from pettingllms.policies.weights import (
    MERGE_LIMIT_BYTES,
    FullWeights,
    LoraWeights,
    read_config,
)
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
        merge: sample from merged copies of adapted weights; None: for float32 bases <= 1 GiB.
        chat_template_kwargs: passed on to the chat template.
        adapters: folder with a folder for each policy, or policy -> folder; they decide their rank.
        sampler: the engine that samples; transformers by default.

    Raises:
        ConfigError, UnknownNameError: a model, adapter, sampler or value that cannot be used.
        SamplerUnavailable: the engine does not start.
    """
    open_engine = SAMPLERS.load((sampler := sampler or SamplerSettings()).name)
    compute, place = (spec := ModelSpec.of(model)).dtype_and_device(dtype, device)
    saved = _saved(adapters, names := own_names(roles_to_policies))
    kept = torch.float32 if full else compute
    tokenizer, base = load_base(spec, kept, place, gradient_checkpointing)
    here = sampler.name == "transformers"  # other engines copy the adapters
    if here and not enabled(base):
        check_cache(base)
    chat = Chat(tokenizer, end_of_turn_ids(base, tokenizer), chat_template_kwargs)
    weights: Weights
    rank: int | None = None
    if full:
        weights = FullWeights(base, spec.name, names, reference=reference, sampling_dtype=compute)
    else:
        lora = _lora_config(lora_r, lora_alpha, lora_target_modules)
        weights, rank = _adapters(base, spec, names, saved, lora, seed, here and merge)
    served = ServedPolicies(weights, names, chat.end_ids, chat.pad_id, rank, compute)
    policies = PolicySet(weights, roles_to_policies, chat, open_engine(served, sampler))
    return _with_saved(policies, saved)


def _with_saved(policies: PolicySet, saved: Mapping[str, Path]) -> PolicySet:
    for name, folder in saved.items():
        policies.load(name, folder)
    return policies


def _adapters(
    base: PreTrainedModel,
    spec: ModelSpec,
    names: Sequence[str],
    saved: Mapping[str, Path],
    fresh: LoraConfig,
    seed: int,
    merge: bool | None,
) -> tuple[LoraWeights, int]:
    """An adapter for each policy, shaped like the saved one where there is one; the largest rank."""
    configs = {name: read_config(saved[name]) if name in saved else fresh for name in names}
    if merge is None:
        small = base.get_memory_footprint() <= MERGE_LIMIT_BYTES
        merge = small and base.dtype == torch.float32 and not quantized(base)
    float32 = spec.adapter_dtype == "float32"
    try:
        weights = LoraWeights(base, spec.name, configs, seed=seed, merge=merge, float32=float32)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"no adapters can be made for model {spec.name!r}: {error}") from error
    return weights, max(config.r for config in configs.values())


def _lora_config(rank: int, alpha: int, targets: str | Sequence[str]) -> LoraConfig:
    if rank < 1:
        raise ConfigError(f"lora_r must be at least 1, got {rank}")
    if not targets:
        raise ConfigError("lora_target_modules is empty; use all-linear, or name modules")
    return LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )


def _saved(adapters: Path | Mapping[str, Path] | None, names: Sequence[str]) -> dict[str, Path]:
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
