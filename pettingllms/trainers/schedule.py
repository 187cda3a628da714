"""Optimizers, their schedules, and when training ends: at a number of steps or generated tokens.

Generated tokens are what methods are compared at, and a step of one may cost three times that of
another. With a budget of tokens the learning rate therefore follows the tokens, so that it has
fallen as far at the end, however many steps that took.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler

from pettingllms.trainers.config import ResolvedConfig


def optimization(
    settings: Mapping[str, ResolvedConfig],
    parameters: Mapping[str, Iterable[torch.nn.Parameter]],
    updates: Mapping[str, int],
) -> tuple[dict[str, torch.optim.AdamW], dict[str, Any]]:
    """Each policy's optimizer, and the schedule of its learning rate.

    Args:
        settings: policy -> its settings.
        parameters: policy -> what it trains.
        updates: policy -> its optimizer steps in the whole run, over which its learning rate falls.
    """
    optimizers = {
        policy: torch.optim.AdamW(
            trained,
            lr=settings[policy].learning_rate,
            betas=(settings[policy].adam_beta1, settings[policy].adam_beta2),
            weight_decay=settings[policy].weight_decay,
        )
        for policy, trained in parameters.items()
    }
    return optimizers, {
        policy: get_scheduler(
            settings[policy].lr_scheduler_type,
            optimizer,
            settings[policy].warmup_steps,
            updates[policy],
        )
        for policy, optimizer in optimizers.items()
    }


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
