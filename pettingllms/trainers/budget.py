"""When training ends: after so many steps or so many generated tokens, whichever comes first.

Generated tokens are what methods are compared at, and a step of one may cost three times that of
another. With a budget of tokens the learning rate therefore follows the tokens, so that it has
fallen as far at the end, however many steps that took.
"""

from __future__ import annotations

import math

from torch.optim.lr_scheduler import LRScheduler

from pettingllms.trainers.config import ATGRPOConfig


def last_step(config: ATGRPOConfig, step: int, tokens: int) -> int:
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
    return min(config.max_steps, max(forecast, step + 1))


def advance(scheduler: LRScheduler, config: ATGRPOConfig, tokens: int) -> None:
    """Moves a schedule on by one update, or to where the tokens are if that is further."""
    if config.max_tokens is not None:
        updates = config.max_steps * config.num_iterations
        reached = int(updates * min(1.0, tokens / config.max_tokens))
        scheduler.last_epoch = max(scheduler.last_epoch, reached - 1)
    scheduler.step()
