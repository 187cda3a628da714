"""Settings of one policy, where `policy_settings` gives it others than the team's.

    policy_settings:
      judge: {model: Qwen/Qwen3-8B, full: true, learning_rate: 2.0e-6}
      tester: {lora_r: 32, beta: 0.01}

Policies whose settings name the same model, loaded in the same way, share it in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.models import model_path
from pettingllms.registry import names_in
from pettingllms.roles import trained_policies
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig
from pettingllms.trainers.presets import DECIDING, FOLLOWING

OF_THE_BASE = names_in("model revision full dtype attn_implementation long_context load_in_4bit")
"""Settings of a model in memory: policies that differ in one have a model each."""
OF_THE_POLICY = ("chat_template_kwargs", "lora_r", "lora_alpha", "lora_target_modules")
"""Settings of a policy's weights and prompts that those on the same model may differ in."""
OF_THE_UPDATE = names_in(
    "learning_rate lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 "
    "max_grad_norm tokens_per_batch gradient_checkpointing loss_type "
    "importance_sampling_level epsilon epsilon_high delta beta entropy_coef"
)
"""Settings of the update, which each trained policy has for itself."""
OWN = (*OF_THE_BASE, *OF_THE_POLICY, *OF_THE_UPDATE)
"""Settings that may differ between policies."""


def own_settings(config: ResolvedConfig, policy: str) -> ResolvedConfig:
    """The team's settings with those of the policy in their place.

    Raises:
        ConfigError: a value that cannot be used; names the policy.
    """
    overrides: Mapping[str, Any] = config.policy_settings.get(policy, {})
    if not overrides:
        return config
    # These follow from others unless they are given.
    follows: dict[str, Any] = {}
    if {"epsilon", "loss_type"} & overrides.keys():
        follows["epsilon_high"] = None
    if "model" in overrides:
        follows["revision"] = None  # the team's is one of another model
    try:
        return dataclasses.replace(config, **{**follows, **overrides})
    except ConfigError as error:
        raise ConfigError(f"policy_settings of {policy}: {error}") from error


def trained_settings(
    config: ResolvedConfig, players: Mapping[str, str]
) -> dict[str, ResolvedConfig]:
    """Trained policy -> its settings, in the order of the roles."""
    return {
        name: own_settings(config, name) for name in trained_policies(config.train_roles, players)
    }


def by_base(
    config: ResolvedConfig, policies: Sequence[str]
) -> list[tuple[ResolvedConfig, tuple[str, ...]]]:
    """The policies of each base model, with the settings of the first of them.

    Raises:
        ConfigError: settings of a policy that cannot be used.
    """
    groups: dict[tuple[Any, ...], list[str]] = {}
    settings = {policy: own_settings(config, policy) for policy in policies}
    for policy, resolved in settings.items():
        # The model counts by the folder that it is loaded from, so that two spellings of an
        # embedded model share one in memory.
        rest = (getattr(resolved, name) for name in OF_THE_BASE if name != "model")
        groups.setdefault((base_model(resolved), *rest), []).append(policy)
    return [(settings[names[0]], tuple(names)) for names in groups.values()]


def base_model(config: ATGRPOConfig) -> str:
    """Name or folder of the model that the settings name."""
    return model_path(config.model)


def common_settings(config: ResolvedConfig, policies: Sequence[str]) -> ResolvedConfig | None:
    """The settings of all policies, where they are adapters of one model with one template.

    None where they are not, so that no server of one model can hold them.
    """
    groups = by_base(config, policies)
    templates = [own_settings(config, policy).chat_template_kwargs for policy in policies]
    if len(groups) > 1 or any(one != templates[0] for one in templates) or groups[0][0].full:
        return None
    return groups[0][0]


def any_full(config: ResolvedConfig, policies: Sequence[str]) -> bool:
    """Returns whether any of the policies is a full model."""
    return any(own_settings(config, policy).full for policy in policies)


def check_policy_settings(
    config: ResolvedConfig, policies: Sequence[str], trained: Collection[str]
) -> None:
    """Refuses what cannot be a policy's own.

    Raises:
        ConfigError: a policy that plays no role, a setting that is the whole team's or of an update
            that does not happen, or a value that cannot be used.
    """
    for policy, overrides in config.policy_settings.items():
        if policy not in policies:
            raise ConfigError(
                f"policy_settings names {policy!r}, which is no policy of the team's own; "
                f"{did_you_mean(policy, policies)}"
            )
        # What follows from a model of its own stands there without anybody having given it.
        follows = FOLLOWING if overrides.keys() & {*DECIDING} else ()
        for name in overrides:
            if name not in config.__dataclass_fields__:
                raise ConfigError(
                    f"policy_settings of {policy}: unknown setting {name!r}; "
                    f"{did_you_mean(name, OWN)}"
                )
            if name not in OWN:
                raise ConfigError(
                    f"policy_settings of {policy}: {name} cannot differ between policies; "
                    f"{', '.join(OWN)} can"
                )
            if overrides[name] is None and name in (*FOLLOWING, "model"):
                raise ConfigError(f"policy_settings of {policy}: {name} has no value; give it one")
            if name in OF_THE_UPDATE and name not in follows and policy not in trained:
                raise ConfigError(
                    f"policy_settings of {policy}: {name} is of the update, and {policy} is not "
                    "trained; leave it out"
                )
        # Asked only for the error that it raises where values do not go together.
        own_settings(config, policy)
