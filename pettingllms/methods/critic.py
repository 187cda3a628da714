"""`Critic`: a small network that predicts from frozen features what a decision will lead to.

Features are hidden states of the base model, which no policy changes: the critic costs one forward
pass over the texts of a step, and its state is a few thousand numbers and what it will learn again.

Shapes: `_N` decisions, `_X` feature size.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.functional import mse_loss

from pettingllms.errors import NonFiniteError
from pettingllms.policies.policy_set import PolicySet
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import Method, argument

Features = Sequence[tuple[str, torch.Tensor] | None]
"""For each decision, the name of its critic and the features `_X`; None without a critic."""
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Returns the loss of predictions and targets."""

HIDDEN = 64
ROWS = 64
"""Decisions of one update of the critic."""


class Network(nn.Sequential):
    """Perceptron with two hidden layers of 64 units, which predicts 0 before training.

    Args:
        size: of the features.
        seed: of its first weights.
    """

    def __init__(self, size: int, seed: int) -> None:
        first, second, last = (
            nn.utils.skip_init(nn.Linear, *sizes) for sizes in pairwise((size, HIDDEN, HIDDEN, 1))
        )
        # Leaves the global generator alone.
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
    """A network with its optimizer and the data it learns from.

    Args:
        network: predicts a number for each decision; its `size` is the size of the features.
        seed: of the order in which it learns.
        learning_rate: of AdamW.
        epochs: passes over the targets of a step.
        memory: steps whose targets are learned again with those of a step, itself counted.
    """

    def __init__(
        self, network: nn.Module, seed: str, *, learning_rate: float, epochs: int, memory: int = 1
    ) -> None:
        self.network, self.seed, self.epochs, self.memory = network, seed, epochs, memory
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

    def fit(
        self, features_NX: torch.Tensor, targets_N: torch.Tensor, loss: Loss = mse_loss
    ) -> None:
        """Learns the targets, in an order that follows from seed and count."""
        rng = random.Random(f"{self.seed} {self.fits}")
        self.fits += 1
        steps = [*self._past, (features_NX, targets_N.float())]
        self._past = steps[1 - self.memory :] if self.memory > 1 else []
        features_NX, targets_N = (torch.cat(of_step) for of_step in zip(*steps, strict=True))
        for _ in range(self.epochs):
            order = rng.sample(range(len(targets_N)), len(targets_N))
            for start in range(0, len(order), ROWS):
                rows = order[start : start + ROWS]
                self.optimizer.zero_grad(set_to_none=True)
                loss(self.network(features_NX[rows]), targets_N[rows]).backward()
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
        self.made: dict[str, Critic] = {}

    def features(
        self, policies: PolicySet, rows: Sequence[tuple[str, Sequence[tuple[int, ...]]]]
    ) -> Features:
        """The base models' hidden states at the last tokens of texts, side by side.

        Args:
            policies: whose base models read; partners behind an API have none here, and no critic.
            rows: policy, and token ids of texts, equally many in each row.
        """
        features: list[tuple[str, torch.Tensor] | None] = [None] * len(rows)
        for place, base in enumerate(policies.bases):
            texts = [ids for policy, of in rows if policy in base.chats for ids in of]
            states = base.features(texts, self._config.tokens_per_batch)
            for row, (policy, of) in enumerate(rows):
                if policy in base.chats:
                    number = policies.names.index(policy) if self._by_policy else place
                    features[row] = str(number), torch.cat([states[ids] for ids in of])
        return features

    def values(self, features: Features) -> torch.Tensor:
        """Returns the critics' predictions, float64 `_N`; 0 for decisions without a critic."""
        values_N = torch.zeros(len(features), dtype=torch.float64)
        for critic, rows, features_RX in self._judging(features):
            values_N[rows] = critic.values(features_RX)
        return values_N

    def fit(self, features: Features, targets_N: torch.Tensor) -> None:
        """Trains each critic on the targets of its decisions."""
        for critic, rows, features_RX in self._judging(features):
            critic.fit(features_RX, targets_N[rows])

    def _judging(self, features: Features) -> Iterator[tuple[Critic, list[int], torch.Tensor]]:
        """Yields each critic with its rows and their features."""
        judged = defaultdict[str, dict[int, torch.Tensor]](dict)
        for row, feature in enumerate(features):
            if feature is not None:
                name, feature_X = feature
                judged[name][row] = feature_X
        for name, of_row in judged.items():
            features_RX = torch.stack([*of_row.values()])
            yield self.critic(name, features_RX.shape[1]), [*of_row], features_RX

    def critic(self, name: str, size: int) -> Critic:
        """Returns the critic of that name, a new one at the first call."""
        if name not in self.made:
            self.made[name] = self._new(name, size)
        return self.made[name]

    def _new(self, name: str, size: int) -> Critic:
        seed = self._config.seed + int(name)
        return Critic(Network(size, seed), f"{seed} critic", **self._settings)


class CriticMethod(Method):
    """A method with critics, which learn at its `learning_rate` and are part of its checkpoints."""

    frozen_base = True
    learning_rate: float = argument(3e-3, above=0)
    epochs: int = argument(10, at_least=1, whole=True)
    memory: int = 1
    by_policy: ClassVar[bool] = False
    kind: ClassVar[type[Critics]] = Critics

    def __init__(self, config: ResolvedConfig, **arguments: object) -> None:
        super().__init__(config, **arguments)
        settings = {name: getattr(self, name) for name in ("learning_rate", "epochs", "memory")}
        self.critics = self.kind(config, by_policy=self.by_policy, **settings)

    def state_dict(self) -> dict[str, Any]:
        """The critics; empty before the first step."""
        return {name: critic.state_dict() for name, critic in self.critics.made.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the critics of an earlier step, or without any."""
        self.critics.made.clear()
        for name, learned in state.items():
            self.critics.critic(name, learned["size"]).load_state_dict(learned)
