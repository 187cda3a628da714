"""Gradients that are added unit by unit, in whichever order the units come.

A unit is what was decided in one batch of a shard, where a decision is compared with nothing but its own
candidates (`at_grpo`), or else a whole shard.

A sum of floats depends on the order of its parts in the last digits. Here every part is rounded to a
multiple of 2**-40 first, and whole numbers are added: the sum is the same in every order, however
many processes play, and however many ranks add. The parts are gradients of sums over tokens or
completions; what a mean is divided by is known once all units are there, and divides the sum.

    gradient = (sum over units of round(2**40 * d/dw [sum over the unit's tokens])) / 2**40 / N

It holds 8 bytes for each trained number. Not for what couples the shards of a step: `obstacle`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch

from pettingllms.rollout.shapes import Tree
from pettingllms.trainers.batch import PolicyBatch
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.estimators.base import Estimator
from pettingllms.trainers.losses import BY_REPLIES
from pettingllms.trainers.metrics import LossMeter
from pettingllms.trainers.plugins import Plugin
from pettingllms.types import Sample

logger = logging.getLogger(__name__)
Unit = Literal["shard", "decision"]
"""What gradients are added for: a shard, or the decisions of a shard's batch."""
Number = tuple[int, ...]
"""Of a unit; the sums that meters keep are in the order of these."""
SCALE = 2.0**40
LARGEST = 2**57
"""Bound of a sum: 64 bits hold those of `RANKS`."""
RANKS = 32
"""Most sums that can be added to each other."""
UNDIVIDED = PolicyBatch((), 1, 1)
"""Stands for a policy's batch while nobody knows what its means are divided by."""


class GradientSum:
    """One policy's gradients of the units of a step.

    Args:
        policy: its name, for messages.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.clear()

    def clear(self) -> None:
        """Forgets all units."""
        self._sums: list[torch.Tensor] = []
        self._bound = 0
        self.meters: dict[Number, LossMeter] = {}
        """Unit -> what its micro-batches reported."""

    def add(
        self,
        units: Mapping[Number, Sequence[Sample]],
        parameters: Sequence[torch.nn.Parameter],
        backward: Callable[[PolicyBatch, LossMeter], None],
    ) -> None:
        """Adds the gradients of whole units.

        Args:
            units: number -> samples.
            parameters: whose gradients these are; what they have before is dropped.
            backward: computes the gradients of a batch, undivided.

        Raises:
            NonFiniteError: one is not finite, or the sum might leave the range of its numbers.
        """
        for number, samples in units.items():
            meter = self.meters[number] = LossMeter(self.policy)
            # What is left of the step before, or of a unit that failed, must not be rounded into
            # this one.
            for parameter in parameters:
                parameter.grad = None
            backward(replace(UNDIVIDED, samples=tuple(samples)), meter)
            self._take(parameters, meter)

    def _take(self, parameters: Sequence[torch.nn.Parameter], meter: LossMeter) -> None:
        if not self._sums:
            self._sums = [torch.zeros_like(each, dtype=torch.int64) for each in parameters]
        given = [(at, p.grad) for at, p in enumerate(parameters) if p.grad is not None]
        largest = torch.stack([gradient.abs().max().double() for _, gradient in given]).max()
        meter.check_finite("gradient", largest)
        # The largest entries of all parts, added up, bound every entry of the sum, so that no
        # overflow can pass unseen; 1 covers the rounding.
        self._bound += int(largest.item() * SCALE) + 1
        if self._bound > LARGEST:
            # An infinite value makes the check raise, with the advice that it gives for any other
            # gradient.
            meter.check_finite("sum of gradients", largest * torch.inf)
        for at, gradient in given:
            self._sums[at] += (gradient.double() * SCALE).round().to(torch.int64)
            parameters[at].grad = None

    def merge(
        self,
        parameters: Sequence[torch.nn.Parameter],
        add: Callable[[torch.Tensor], object],
        meters: Mapping[Number, LossMeter],
    ) -> None:
        """Becomes the sum of those that several processes have.

        Args:
            parameters: as in `add`.
            add: adds the processes' tensors, in place.
            meters: of all units that they have added.
        """
        # A rank that was given no unit still has to take part in the addition, or the others would
        # wait for it.
        self._sums = self._sums or [torch.zeros_like(p, dtype=torch.int64) for p in parameters]
        for each in self._sums:
            add(each)
        self.meters = dict(meters)

    def give(
        self, parameters: Sequence[torch.nn.Parameter], divisor: int, meter: LossMeter
    ) -> None:
        """Sets the parameters' gradients to those of the whole step, and begins anew.

        Args:
            parameters: as in `add`.
            divisor: of the loss.
            meter: takes over what the units' meters saw, in the order of the units.
        """
        for parameter, total in zip(parameters, self._sums, strict=True):
            # In float64: float32 would keep 24 bits of a sum that may have 57.
            parameter.grad = (total.double() / (SCALE * divisor)).to(parameter.dtype)
        for _, own in sorted(self.meters.items()):
            meter.take_over(own, divisor)
        self.clear()


def divisor(config: ResolvedConfig, own: PolicyBatch) -> int:
    """Returns the divisor of the loss of a policy's whole batch."""
    return own.replies if config.loss_type in BY_REPLIES else own.tokens


def obstacle(
    config: ResolvedConfig, settings: Iterable[ResolvedConfig], parts: Iterable[Plugin]
) -> str | None:
    """Returns why a shard's gradient must wait for the other shards' rollouts; None if it need not.

    Args:
        config: resolved settings.
        settings: of each policy's update.
        parts: of the method, which turn rewards into advantages.
    """
    if config.num_iterations > 1:
        return f"num_iterations {config.num_iterations} computes each shard again after an update"
    if config.scale_rewards == "batch":
        return "scale_rewards batch divides by the deviation over all shards"
    for own in settings:
        # `UNDIVIDED` stands for both means while units are added, and the sum is divided once, by
        # one number.
        if own.entropy_coef and own.loss_type in BY_REPLIES:
            return f"entropy_coef is a mean over tokens, loss_type {own.loss_type} one over replies"
    for part in parts:
        if not part.by_task:
            name = getattr(config, part.setting)
            return f"{part.setting} {name} does not say (`by_task`) that it looks at one task at a time"
    return None


def unit_of(
    config: ResolvedConfig, settings: Iterable[ResolvedConfig], parts: Sequence[Plugin]
) -> Unit | None:
    """Returns the unit that a run adds gradients for; None if that is the whole step at once.

    Logs the reason if streaming was asked for and cannot be done.
    """
    if not config.stream_gradients or not config.num_iterations:
        return None
    reason = obstacle(config, settings, parts)
    if reason is not None:
        logger.warning(
            "stream_gradients: updates wait for all shards of a step, because %s", reason
        )
        return None
    # Other shapes know the number of a fork's episode at the end only, and a loss that is divided by
    # episodes counts each of them once.
    shapes = [type(part.shape()) for part in parts if isinstance(part, Estimator)]
    alone = all(part.by_decision for part in parts) and config.loss_norm != "roots"
    return "decision" if alone and shapes == [Tree] else "shard"
