"""Loads policies from arguments alone, without the settings of a run: for benchmarks and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pettingllms.errors import ConfigError
from pettingllms.policies.base_model import ModelSpec
from pettingllms.policies.loading import PolicySpec, lora_config, open_base, policies_on
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.roles import BASE, own_names
from pettingllms.samplers.base import SamplerSettings


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
