"""`Critic`: a small network that predicts from frozen features what a decision will lead to.

Features are hidden states of the base model, which no policy changes: the critic costs one forward
pass over the prompts of a step, and its state is a few thousand numbers.

Shapes: `_N` decisions, `_X` feature size.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from pettingllms.errors import NonFiniteError

HIDDEN = 64
ROWS = 64
"""Decisions of one update of the critic."""


class Critic:
    """Two hidden layers of 64; predicts 0 before it has learned anything.

    Args:
        size: of the features.
        seed: of its first weights and of the order in which it learns.
        learning_rate: of AdamW.
        epochs: passes over the targets of a step.
    """

    def __init__(self, size: int, seed: int, *, learning_rate: float, epochs: int) -> None:
        self.size, self.seed, self.epochs = size, seed, epochs
        self.fits = 0
        """How often `fit` was called."""
        # A generator of its own: the global one is nobody's. Kaiming's bound for layers as PyTorch
        # initializes them.
        generator = torch.Generator().manual_seed(seed)
        sizes = (size, HIDDEN, HIDDEN)
        # Normalized first, because hidden states have another scale in every model.
        layers: list[nn.Module] = [nn.LayerNorm(size)]
        for before, after in pairwise(sizes):
            layer = nn.utils.skip_init(nn.Linear, before, after)
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -(before**-0.5), before**-0.5, generator=generator)
            layers += [layer, nn.Tanh()]
        last = nn.utils.skip_init(nn.Linear, HIDDEN, 1)
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        self.network = nn.Sequential(*layers, last)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=learning_rate)

    @torch.no_grad()
    def values(self, features_NX: torch.Tensor) -> torch.Tensor:
        """Predicts what each decision will lead to, float64 `_N`.

        Raises:
            NonFiniteError: a prediction is not a finite number.
        """
        values_N: torch.Tensor = self.network(features_NX)[:, 0].double()
        if not torch.isfinite(values_N).all():
            raise NonFiniteError(
                "the critic predicts a value that is not finite; lower its learning_rate "
                "(method_args), or look for rewards of that kind"
            )
        return values_N

    def fit(self, features_NX: torch.Tensor, targets_N: torch.Tensor) -> None:
        """Learns the targets by mean squared error, in an order that follows from seed and count."""
        rng = random.Random(f"{self.seed} critic {self.fits}")
        self.fits += 1
        targets_N = targets_N.float()
        for _ in range(self.epochs):
            order = rng.sample(range(len(targets_N)), len(targets_N))
            for start in range(0, len(order), ROWS):
                rows = order[start : start + ROWS]
                loss = nn.functional.mse_loss(
                    self.network(features_NX[rows])[:, 0], targets_N[rows]
                )
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Weights, the optimizer's state, and how often it has learned."""
        return {
            "size": self.size,
            "fits": self.fits,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned."""
        self.fits = state["fits"]
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
