"""Settings of one policy, where `policy_settings` gives it others than the team's.

policy_settings:
tester: {learning_rate: 5.0e-5, beta: 0.01}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.trainers.config import ResolvedConfig

OWN = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "max_grad_norm",
    "tokens_per_batch",
    "loss_type",
    "importance_sampling_level",
    "epsilon",
    "epsilon_high",
    "delta",
    "beta",
    "entropy_coef",
)
"""Settings that may differ between policies: those of the update, which each policy has for itself."""


def own_settings(config: ResolvedConfig, policy: str) -> ResolvedConfig:
    """The team's settings with those of the policy in their place.

    Raises:
        ConfigError: a value that cannot be used; names the policy.
    """
    own: Mapping[str, Any] = config.mapping("policy_settings").get(policy, {})
    if not own:
        return config
    # Both follow from others unless they are given.
    follows = {} if "epsilon_high" in own else {"epsilon_high": None}
    if not {"epsilon", "loss_type"} & own.keys():
        follows = {}
    try:
        return dataclasses.replace(config, **{**follows, **own})
    except ConfigError as error:
        raise ConfigError(f"policy_settings of {policy}: {error}") from error


def check_policy_settings(config: ResolvedConfig, trained: Collection[str]) -> None:
    """Refuses what cannot be a policy's own.

    Args:
        config: resolved settings.
        trained: the policies that the run trains.

    Raises:
        ConfigError: a policy that is not trained, a setting that is the whole team's, or a value
            that cannot be used.
    """
    for policy, own in config.mapping("policy_settings").items():
        if policy not in trained:
            raise ConfigError(
                f"policy_settings names {policy!r}, which is not trained; "
                f"{did_you_mean(policy, trained)}"
            )
        if not isinstance(own, Mapping):
            raise ConfigError(f"policy_settings of {policy} must be an object, got {own!r}")
        for name in own:
            if name not in OWN:
                raise ConfigError(
                    f"policy_settings of {policy}: {name} cannot differ between policies; "
                    f"{', '.join(OWN)} can"
                )
        own_settings(config, policy)
