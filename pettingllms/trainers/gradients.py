"""Gradients of micro-batches, added in their order, several computed at a time on idle cores.

The matrices of the embedded models are too small to be worth splitting between cores, and a sum split
by their number would differ in its last digits from machine to machine. Whole micro-batches are
worth it: each thread computes one, and the gradients are added in the order of the micro-batches,
so that the sum is the same, bit for bit, on one core and on many.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from pettingllms.policies.packing import Batch
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.metrics import LossMeter

Loss = Callable[[Batch, LossMeter], torch.Tensor]
"""Computes the loss of a micro-batch, with its graph, and reports to the meter."""


def batches_at_once(config: ResolvedConfig, parameters: Sequence[torch.nn.Parameter]) -> int:
    """Returns how many micro-batches a policy's update computes at the same time.

    One, unless the model is an embedded one on a CPU: larger models fill the cores by themselves,
    and each micro-batch under way needs memory for its activations. One as well with `beta`, for
    which adapters are switched off between forward passes, and among the ranks of a sharded model,
    which have to communicate in one order. Never more than OMP_NUM_THREADS where it is set, as it is
    by Ray for its processes, which share their machine.

    Args:
        config: settings of the policy's update.
        parameters: those of the policy that are trained.
    """
    ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not config.embedded or config.beta or parameters[0].device.type != "cpu" or ranks:
        return 1
    # Not os.cpu_count: a container or taskset may leave fewer cores than the machine has.
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(allowed)) if allowed.isdecimal() else cores


def add_gradients(
    batches: Sequence[Batch],
    loss_of: Loss,
    parameters: Sequence[torch.nn.Parameter],
    meter: LossMeter,
    at_once: int = 1,
) -> None:
    """Adds the gradients of all micro-batches to those that the parameters have.

    Args:
        batches: of one policy.
        loss_of: called once for each micro-batch, from `at_once` threads.
        parameters: the policy's; those that a loss does not depend on keep what they have.
        meter: hears of the micro-batches in their order.
        at_once: micro-batches to compute at the same time.

    Raises:
        NonFiniteError: a loss is not finite; no later gradient is added.
    """
    if min(at_once, len(batches)) <= 1:
        for batch in batches:
            loss_of(batch, meter).backward()
        return

    def gradient(batch: Batch) -> tuple[LossMeter, tuple[torch.Tensor | None, ...]]:
        # A meter adds floats in the order of its calls, so that threads must not share one.
        own = meter.fresh()
        # Not `backward`, which would add to the shared `.grad` in whichever order the threads end.
        return own, torch.autograd.grad(loss_of(batch, own), parameters, allow_unused=True)

    # `map` yields in the order of the micro-batches, whichever thread is done first.
    for own, gradients in _threads(at_once).map(gradient, batches):
        meter.take_over(own, 1)
        for parameter, added in zip(parameters, gradients, strict=True):
            if added is not None:
                parameter.grad = added if parameter.grad is None else parameter.grad.add_(added)


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    """Threads that stay: new ones would allocate their buffers for matrix products every time."""
    return ThreadPoolExecutor(count, thread_name_prefix="gradients")
