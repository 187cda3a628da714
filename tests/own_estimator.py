"""Estimators that another package might bring: one with a state, and two token by token."""

from __future__ import annotations

from pettingllms.trainers.at_grpo import AtGrpo
from pettingllms.trainers.method import Method


class RunningMean(Method):
    """Compares with the mean reward of all earlier steps."""

    def __init__(self, config):
        super().__init__(config)
        self.total, self.count = 0.0, 0

    def advantages(self, groups):
        rewards = [c.reward for group in groups for c in group.candidates]
        mean = self.total / self.count if self.count else 0.0
        self.total, self.count = self.total + sum(rewards), self.count + len(rewards)
        return [reward - mean for reward in rewards]

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]


class Spread(AtGrpo):
    """The same advantage for every token, written out."""

    def advantages(self, groups):
        lengths = [len(c.completion.token_ids) for group in groups for c in group.candidates]
        values = super().advantages(groups)
        return [(value,) * length for value, length in zip(values, lengths, strict=True)]


class FirstToken(Spread):
    """All of the advantage on the first token."""

    def advantages(self, groups):
        return [value[:1] + (0.0,) * (len(value) - 1) for value in super().advantages(groups)]
