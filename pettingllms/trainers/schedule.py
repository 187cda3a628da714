"""Optimizers, their schedules, and when training ends: at a number of steps or generated tokens.

Generated tokens are what methods are compared at, and a step of one may cost three times that of
another. With a budget of tokens the learning rate therefore follows the tokens, so that it has
fallen as far at the end, however many steps that took.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler

from pettingllms.policies.policy_set import PolicySet
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import Method
from pettingllms.trainers.per_policy import trained_settings


def optimization(
    run: ResolvedConfig, policies: PolicySet, method: Method
) -> tuple[dict[str, ResolvedConfig], dict[str, int], dict[str, torch.optim.AdamW], dict[str, Any]]:
    """What an update needs of each trained policy.

    Returns:
        The policies' settings, their optimizer steps in the whole run (over which the learning rate falls), their
        optimizers, and their schedules.
    """
    roles = policies.roles_to_policies
    settings = trained_settings(run, roles)
    updates = {policy: method.updates(policy, roles, tuple(settings)) for policy in settings}
    optimizers = {
        policy: torch.optim.AdamW(
            policies.parameters(policy),
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            weight_decay=config.weight_decay,
        )
        for policy, config in settings.items()
    }
    schedulers = {
        policy: get_scheduler(
            config.lr_scheduler_type, optimizers[policy], config.warmup_steps, updates[policy]
        )
        for policy, config in settings.items()
    }
    return settings, updates, optimizers, schedulers


def last_step(config: ResolvedConfig, step: int, tokens: int) -> int:
    """The step that training ends after; a forecast from the steps so far where tokens decide.

    Args:
        config: resolved settings.
        step: steps done.
        tokens: tokens generated in them.
    """
    if config.max_tokens is None or not tokens:
        return config.max_steps
    if tokens >= config.max_tokens:
        return min(step, config.max_steps)
    forecast = math.ceil(config.max_tokens * step / tokens)
    # At least one more step, because the tokens so far have not used the budget up.
    return min(config.max_steps, max(forecast, step + 1))


def advance(scheduler: LRScheduler, config: ResolvedConfig, tokens: int, updates: int) -> None:
    """Moves a schedule on by one of its updates, or to where the tokens are if that is further."""
    if config.max_tokens is not None:
        reached = int(updates * min(1.0, tokens / config.max_tokens))
        # All schedules here are functions of `last_epoch`, and `step` adds 1 to it. It never falls
        # back, so that a step without tokens still counts as one.
        scheduler.last_epoch = max(scheduler.last_epoch, reached - 1)
    scheduler.step()
