"""`Critic`: a small network that predicts from frozen features what a decision will lead to.

Features are hidden states of the base model, which no policy changes: the critic costs one forward
pass over the texts of a step, and its state is a few thousand numbers and what it will learn again.

Shapes: `_N` decisions, `_X` feature size.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from pettingllms.errors import NonFiniteError
from pettingllms.policies.policy_set import PolicySet
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import Method

Features = Mapping[int, tuple[list[int], torch.Tensor]]
"""Number of a critic -> the rows that it judges, and their features `_NX`."""

HIDDEN = 64
ROWS = 64
"""Decisions of one update of the critic."""


class Network(nn.Sequential):
    """Two hidden layers of 64; gives 0 before it has learned anything.

    Args:
        size: of the features.
        seed: of its first weights.
    """

    def __init__(self, size: int, seed: int) -> None:
        first, second, last = (
            nn.utils.skip_init(nn.Linear, *sizes) for sizes in pairwise((size, HIDDEN, HIDDEN, 1))
        )
        # A generator of its own: the global one is nobody's.
        generator = torch.Generator().manual_seed(seed)
        for layer in (first, second):
            bound = layer.in_features**-0.5  # Kaiming's, as PyTorch initializes layers
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        # Normalized first, because hidden states have another scale in every model.
        layers = (nn.LayerNorm(size), first, nn.Tanh(), second, nn.Tanh(), last, nn.Flatten(0))
        super().__init__(*layers)
        self.size = size


class Critic:
    """A network that learns targets, and what that takes.

    Args:
        network: gives a number for each decision; its `size` is that of the features.
        seed: of the order in which it learns.
        learning_rate: of AdamW.
        epochs: passes over the targets of a step.
        memory: steps whose targets are learned again with those of a step, itself counted.
        loss: of the numbers and the targets.
    """

    def __init__(
        self,
        network: nn.Module,
        seed: str,
        *,
        learning_rate: float,
        epochs: int,
        memory: int = 1,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = nn.functional.mse_loss,
    ) -> None:
        self.network, self.seed, self.loss = network, seed, loss
        self.epochs, self.memory = epochs, memory
        self.optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate)
        self.fits = 0
        """How often `fit` was called."""
        self._past: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Features and targets of earlier steps."""

    @torch.no_grad()
    def values(self, features_NX: torch.Tensor) -> torch.Tensor:
        """Predicts what each decision will lead to, float64 `_N`.

        Raises:
            NonFiniteError: a prediction is not a finite number.
        """
        values_N: torch.Tensor = self.network(features_NX).double()
        if not torch.isfinite(values_N).all():
            raise NonFiniteError(
                "the critic predicts a value that is not finite; lower its learning_rate "
                "(method_args), or look for rewards of that kind"
            )
        return values_N

    def fit(self, features_NX: torch.Tensor, targets_N: torch.Tensor) -> None:
        """Learns the targets, in an order that follows from seed and count."""
        rng = random.Random(f"{self.seed} {self.fits}")
        self.fits += 1
        steps = [*self._past, (features_NX, targets_N.float())]
        self._past = steps[len(steps) - self.memory + 1 :] if self.memory > 1 else []
        features_NX, targets_N = (torch.cat(of_step) for of_step in zip(*steps, strict=True))
        for _ in range(self.epochs):
            order = rng.sample(range(len(targets_N)), len(targets_N))
            for start in range(0, len(order), ROWS):
                rows = order[start : start + ROWS]
                self.optimizer.zero_grad(set_to_none=True)
                self.loss(self.network(features_NX[rows]), targets_N[rows]).backward()
                self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Weights, the optimizer's state, how often it has learned, and what it will learn again."""
        return {
            "size": self.network.size,
            "fits": self.fits,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "past": self._past,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned."""
        self.fits, self._past = state["fits"], state.get("past", [])
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


class Critics:
    """A critic for each base model of a team, or for each policy, from the first text on that it judges."""

    def __init__(self, config: ResolvedConfig, *, by_policy: bool = False, **settings: Any) -> None:
        self._config, self._by_policy, self._settings = config, by_policy, settings
        self._critics: dict[int, Critic] = {}

    def features(
        self, policies: PolicySet, rows: Sequence[tuple[str, Sequence[tuple[int, ...]]]]
    ) -> Features:
        """What the base models make of texts: hidden states at their last tokens, side by side.

        Args:
            policies: whose base models read the texts.
            rows: policy, and token ids of texts, equally many in each row. Partners behind an API have no
                hidden states here, and no critic.
        """
        features: dict[int, tuple[list[int], torch.Tensor]] = {}
        for place, base in enumerate(policies.bases):
            on_base = [row for row, (policy, _) in enumerate(rows) if policy in base.chats]
            texts = [ids for row in on_base for ids in rows[row][1]]
            states = base.features(texts, self._config.tokens_per_batch)
            judged = defaultdict[int, list[int]](list)
            for row in on_base:
                judged[policies.names.index(rows[row][0]) if self._by_policy else place].append(row)
            for critic, members in judged.items():
                of_rows = [torch.cat([states[ids] for ids in rows[row][1]]) for row in members]
                features[critic] = members, torch.stack(of_rows)
        return features

    def values(self, count: int, features: Features) -> torch.Tensor:
        """Predictions for `count` rows, float64 `_N`; 0 for those without features.

        Raises:
            NonFiniteError: a prediction is not a finite number.
        """
        values_N = torch.zeros(count, dtype=torch.float64)
        for critic, (rows, features_NX) in features.items():
            values_N[rows] = self._critic(critic, features_NX.shape[1]).values(features_NX)
        return values_N

    def fit(
        self, features: Features, targets_N: torch.Tensor, rows: Sequence[int] | None = None
    ) -> None:
        """Each critic learns the targets of its rows.

        Args:
            features: of all rows.
            targets_N: one for each row, or for each of `rows`.
            rows: those to learn from; one may be named several times.
        """
        asked = range(len(targets_N)) if rows is None else rows
        for critic, (members, features_MX) in features.items():
            place = {row: number for number, row in enumerate(members)}
            mine = [number for number, row in enumerate(asked) if row in place]
            if mine:
                chosen_NX = features_MX[[place[asked[number]] for number in mine]]
                self._critic(critic, features_MX.shape[1]).fit(chosen_NX, targets_N[mine])

    def _critic(self, number: int, size: int) -> Critic:
        if number not in self._critics:
            seed = self._config.seed + number
            self._critics[number] = Critic(Network(size, seed), f"{seed} critic", **self._settings)
        return self._critics[number]

    def state_dict(self) -> dict[str, Any]:
        """The critics; empty before the first step."""
        return {str(number): critic.state_dict() for number, critic in self._critics.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the critics of an earlier step, or without any."""
        self._critics = {}
        for number, learned in state.items():
            self._critic(int(number), learned["size"]).load_state_dict(learned)


class CriticMethod(Method):
    """A method whose checkpoints have its critics."""

    critics: Critics

    def state_dict(self) -> dict[str, Any]:
        """The critics; empty before the first step."""
        return self.critics.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the critics of an earlier step, or without any."""
        self.critics.load_state_dict(state)
