"""Builds the policies of a run from a model's name or folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from trl.trainer.utils import disable_dropout_in_model

from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.models.shared_prompts import enabled
from pettingllms.policies.chat import Chat, end_of_turn_ids
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.prefix_trial import check_cache, check_head, share_prompts
from pettingllms.policies.roles import BASE
from pettingllms.policies.weights import (
    MERGE_LIMIT_BYTES,
    FullWeights,
    LoraWeights,
    read_config,
)
from pettingllms.samplers.base import SAMPLERS, SamplerSettings, ServedPolicies, Weights

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_policies(
    model: str | Path,
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
    shared_prompts: bool = True,
    merge: bool | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    adapters: Path | Mapping[str, Path] | None = None,
    sampler: SamplerSettings | None = None,
) -> PolicySet:
    """Loads the base model and makes or loads a policy for every role.

    Args:
        model: a Hugging Face id, or a folder with a causal model and its tokenizer.
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
        shared_prompts: compute a prompt once for all its completions if a trial allows it.
        merge: sample from merged copies of adapted weights; None: for float32 bases <= 1 GiB.
        chat_template_kwargs: passed on to the chat template.
        adapters: folder with a folder for each policy, or policy -> folder; they decide their rank.
        sampler: the engine that samples; transformers by default.

    Raises:
        ConfigError, UnknownNameError: a model, adapter, sampler or value that cannot be used.
        SamplerUnavailable: the engine does not start.
    """
    open_engine = SAMPLERS.load((sampler := sampler or SamplerSettings()).name)
    compute = _dtype(dtype, place := _device(device))
    saved = _saved(adapters, names := tuple(dict.fromkeys(roles_to_policies.values())))
    kept = torch.float32 if full else compute
    here = sampler.name == "transformers"  # others have weights and caches of their own
    tokenizer, base = _load_base(model, kept, place, gradient_checkpointing, shared_prompts, here)
    chat = Chat(tokenizer, end_of_turn_ids(base, tokenizer), chat_template_kwargs)
    weights: Weights
    rank: int | None = None
    if full:
        weights = FullWeights(base, str(model), names, reference=reference, sampling_dtype=compute)
    else:
        lora = _lora_config(lora_r, lora_alpha, lora_target_modules)
        weights, rank = _adapters(base, str(model), names, saved, lora, seed, here and merge)
    served = ServedPolicies(weights, names, chat.end_ids, chat.pad_id, rank, compute)
    policies = PolicySet(weights, roles_to_policies, chat, open_engine(served, sampler))
    return _with_saved(policies, saved)


def _with_saved(policies: PolicySet, saved: Mapping[str, Path]) -> PolicySet:
    for name, folder in saved.items():
        policies.load(name, folder)
    return policies


def _adapters(
    base: Any,
    model: str,
    names: Sequence[str],
    saved: Mapping[str, Path],
    fresh: LoraConfig,
    seed: int,
    merge: bool | None,
) -> tuple[LoraWeights, int]:
    """An adapter for each policy, shaped like the saved one where there is one; the largest rank."""
    configs = {name: read_config(saved[name]) if name in saved else fresh for name in names}
    weights = _lora_weights(base, model, configs, seed, merge)
    return weights, max(config.r for config in configs.values())


def _load_base(
    model: str | Path,
    dtype: torch.dtype,
    device: torch.device,
    checkpointing: bool,
    shared: bool,
    sampled: bool,
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model))
        base = AutoModelForCausalLM.from_pretrained(str(model), dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"model {str(model)!r} cannot be loaded: {str(error).splitlines()[0]}; give the "
            "folder of a causal language model with its tokenizer, or its Hugging Face id"
        ) from error
    nn.Module.to(base.eval(), device)  # transformers' own `to` is not typed
    disable_dropout_in_model(base)
    check_head(base)
    if checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
    if shared:
        share_prompts(base)
    if sampled and not enabled(base):
        check_cache(base)
    return tokenizer, base


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


def _lora_weights(
    model: PreTrainedModel,
    name: str,
    configs: Mapping[str, LoraConfig],
    seed: int,
    merge: bool | None,
) -> LoraWeights:
    if merge is None:
        merge = model.dtype == torch.float32 and model.get_memory_footprint() <= MERGE_LIMIT_BYTES
    try:
        return LoraWeights(model, name, configs, seed=seed, merge=merge)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"no adapters can be made for model {name!r}: {error}") from error


def _device(device: str | torch.device | None) -> torch.device:
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device is None:
        return torch.device(next((kind for kind, present in gpus.items() if present), "cpu"))
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {str(device)!r}; use cpu, cuda or mps") from error
    if not gpus.get(place.type, True):
        raise ConfigError(f"device {str(device)!r} is not available here; use cpu")
    return place


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}; {did_you_mean(dtype, _DTYPES)}")
    return _DTYPES[dtype]


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
