"""M-GRPO: callers are compared with callers, and calls with calls, of which every episode has as many.

https://arxiv.org/abs/2511.13288, sections 3 and 4. After the paper's text; its code was not published.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from pettingllms.errors import ConfigError
from pettingllms.trainers.calls import by_episode, caller_of, calls_of
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.estimators.base import Estimator
from pettingllms.trainers.estimators.group_relative import EPSILON, SAME
from pettingllms.types import Advantage, Group, GroupKey

COVERED = 0.99
"""Share of the episodes that have at most d calls, where d is not given."""


class MGrpo(Estimator):
    """Compares K episodes of a task by their caller's reward, and their calls by the calls' rewards.

        A = (R - mean R) / (std R + epsilon)     with the deviation of the population (1 / n)

    Episodes call others a varying number of times. So that none counts more for it, the d_k calls of
    episode k become d: some are dropped or used several times at random, the mean and the deviation
    are over the d K calls of the task, and what is used n times counts n times in the gradient, by an
    advantage n times as large. An episode without a call stays without. All decisions of a call have its
    advantage. Rewards are those of the transform `m_grpo`: the same at all decisions of a caller or a call.

    Args:
        config: resolved settings of the run.
        calls: d; by default the smallest number that 99 % of the step's episodes do not exceed.

    Raises:
        ConfigError: calls is not a whole number from 1.
    """

    needs: ClassVar[tuple[str, ...]] = ("calls",)
    compares = "reward"

    def __init__(self, config: ResolvedConfig, *, calls: int | None = None) -> None:
        super().__init__(config)
        if calls is not None and (
            isinstance(calls, bool) or not isinstance(calls, int) or calls < 1
        ):
            raise ConfigError(f"estimator_args: calls must be a whole number from 1, got {calls!r}")
        self.calls = calls
        self.caller: str | None = None

    def attach(self, env: Any, policies: Any) -> None:
        """Learns who calls."""
        del policies
        self.caller = caller_of(env)

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """Those of the callers' episodes and of the calls."""
        caller, found = self.caller or "", dict[GroupKey, float]()
        roots: dict[str, list[list[Group]]] = defaultdict(list)
        calls: dict[str, dict[str, list[list[list[Group]]]]] = defaultdict(dict)
        episodes = by_episode(groups)
        agents = sorted({group.key.agent for group in groups} - {caller})
        for (task, _), decisions in episodes.items():
            roots[task].append([group for group in decisions if group.key.agent == caller])
            made = calls_of(decisions, caller)
            for agent in agents:
                # An episode that never called the agent is listed with no call, because it counts
                # in the choice of d.
                own = [call for call in made if call[0].key.agent == agent]
                calls[agent].setdefault(task, []).append(own)
        for members in roots.values():
            self._compared([own for own in members if own], None, found)
        for agent, tasks in calls.items():
            counts = [len(each) for episodes_of in tasks.values() for each in episodes_of]
            d = self.calls or smallest(counts)
            for task, called in tasks.items():
                # By task and agent, so that the draw does not depend on what other tasks did.
                rng = random.Random(f"{self.config.seed} {task} {agent} aligned")
                times = aligned([len(each) for each in called], d, rng)
                flat = [call for each in called for call in each]
                self._compared(flat, [n for each in times for n in each], found)
        return [found[group.key] for group in groups for _ in group.candidates]

    def _compared(
        self, members: Sequence[Sequence[Group]], times: Sequence[int] | None, found: Any
    ) -> None:
        """Notes in `found` the advantage of every decision of these episodes or calls."""
        used = times or [1] * len(members)
        rewards = [member[-1].chosen.reward for member in members]
        values = over_copies(rewards, used, scaled=self.config.scale_rewards != "none")
        for member, value, n in zip(members, values, used, strict=True):
            found.update({group.key: n * value for group in member})


def smallest(counts: Sequence[int]) -> int:
    """d: the smallest number that `COVERED` of the counts do not exceed."""
    return sorted(counts)[math.ceil(COVERED * len(counts)) - 1] if counts else 0


def aligned(counts: Sequence[int], d: int, rng: random.Random) -> list[list[int]]:
    """Returns how often each call is used: `d` times in total in every episode that has any.

    Args:
        counts: calls of each episode.
        d: calls that an episode is to have.
        rng: chooses those that are dropped, or used again.
    """
    found = []
    for count in counts:
        times = [1] * count
        if count >= d:
            kept = set(rng.sample(range(count), d))
            times = [int(n in kept) for n in range(count)]
        elif count:
            for _ in range(d - count):
                times[rng.randrange(count)] += 1
        found.append(times)
    return found


def over_copies(
    rewards: Sequence[float], times: Sequence[int], *, scaled: bool = True
) -> list[float]:
    """Rewards above the mean over all copies, by their deviation; 0 for what has no copy."""
    copies = [r for r, n in zip(rewards, times, strict=True) for _ in range(n)]
    copies_N = torch.tensor(copies, dtype=torch.float64)
    if not copies or copies_N.max() - copies_N.min() <= SAME:
        return [0.0] * len(rewards)
    mean, scale = copies_N.mean(), copies_N.std(correction=0) + EPSILON if scaled else 1.0
    return [float((r - mean) / scale) if n else 0.0 for r, n in zip(rewards, times, strict=True)]
