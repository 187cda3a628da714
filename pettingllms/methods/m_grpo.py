"""M-GRPO: callers are compared with callers, and calls with calls, of which every episode has as many.

"Multi-Agent Deep Research: Training Multi-Agent Systems with M-GRPO", 2025,
https://arxiv.org/abs/2511.13288, sections 3 and 4. After the paper's text; its code was not published.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from pettingllms.errors import ConfigError
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import EPSILON, SAME
from pettingllms.trainers.method import Attached, EpisodeCredit, argument, readable, repaid, solved
from pettingllms.types import Advantage, Candidate, Group, GroupKey

COVERED = 0.99
"""Share of the episodes that have at most d calls, where d is not given."""


class MGrpo(EpisodeCredit):
    """Callers are compared with callers and calls with calls; for a planner with workers.

        caller:  R = 0.1 + 0.9 correct                   where all of its replies could be read, else 0
        call:    R = 0.1 + 0.4 correct + 0.5 expert      where all of its replies could be read, else 0
        A = (R - mean R) / (std R + epsilon)     with the deviation of the population (1 / n)

    `correct` is whether the team succeeded, `expert` what the environment says the call was worth in
    the info of its last decision (0 where it says nothing). All decisions of a caller or a call have
    its R and its A.

    Episodes call others a varying number of times. So that none counts more for it, the d_k calls of
    episode k become d: some are dropped or used several times at random, the mean and the deviation
    are over the d K calls of the task, and what is used n times counts n times in the gradient, by an
    advantage n times as large. An episode without a call stays without.

    Args:
        calls: d; by default the smallest number that 99 % of the step's episodes do not exceed.
    """

    source = "arXiv 2511.13288"
    needs = ("calls",)
    compares = credits = "reward"
    credit_shapes = ("episodes",)
    calls: int | None = argument(None, at_least=1, whole=True)
    caller: Any = Attached()
    """The agent that calls others."""

    def attach(self, env: Any, policies: Any) -> None:
        """Learns who calls."""
        super().attach(env, policies)
        self.caller = caller_of(env)

    def episode_credit(self, trajectory: Trajectory) -> Trajectory:
        """The record with R in place of every reward."""
        correct = float(solved(trajectory, self.config))
        decisions = [group for group in trajectory.groups if group.key.agent == self.caller]
        form = all(map(readable, decisions))
        rewards = {group.key: caller_reward(form, correct) for group in decisions}
        for call in calls_of(trajectory.groups, self.caller):
            expert = float(call[-1].chosen.info.get("expert", 0.0))
            value = call_reward(all(map(readable, call)), correct, expert)
            rewards |= {group.key: value for group in call}

        def reward(group: Group, candidate: Candidate) -> float:
            del candidate
            return rewards[group.key]

        return repaid(trajectory, reward)

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """Those of the callers' episodes and of the calls."""
        values: dict[GroupKey, float] = {}
        roots: dict[str, list[list[Group]]] = defaultdict(list)
        calls: dict[str, dict[str, list[list[list[Group]]]]] = defaultdict(dict)
        episodes = by_episode(groups)
        agents = sorted({group.key.agent for group in groups} - {self.caller})
        for (task, _), decisions in episodes.items():
            roots[task].append([group for group in decisions if group.key.agent == self.caller])
            made = calls_of(decisions, self.caller)
            for agent in agents:
                # An episode that never called the agent is listed with no call, because it counts
                # in the choice of d.
                calls_to = [call for call in made if call[0].key.agent == agent]
                calls[agent].setdefault(task, []).append(calls_to)
        for members in roots.values():
            values |= self._compared([member for member in members if member])
        for agent, tasks in calls.items():
            counts = [len(called) for episodes_of in tasks.values() for called in episodes_of]
            d = self.calls or smallest(counts)
            for task, episodes_of in tasks.items():
                # By task and agent, so that the draw does not depend on what other tasks did.
                rng = random.Random(f"{self.config.seed} {task} {agent} aligned")
                times = aligned([len(called) for called in episodes_of], d, rng)
                flat = [call for called in episodes_of for call in called]
                values |= self._compared(flat, [n for uses in times for n in uses])
        return [values[group.key] for group in groups for _ in group.candidates]

    def _compared(
        self, members: Sequence[Sequence[Group]], times: Sequence[int] | None = None
    ) -> dict[GroupKey, float]:
        """The advantage of every decision of these episodes or calls."""
        uses = times or [1] * len(members)
        rewards = [member[-1].chosen.reward for member in members]
        values = over_copies(rewards, uses, scaled=self.config.scale_rewards != "none")
        return {
            group.key: n * value
            for member, value, n in zip(members, values, uses, strict=True)
            for group in member
        }


def caller_reward(form: bool, correct: float) -> float:
    """R of an episode's caller."""
    return 0.1 + 0.9 * correct if form else 0.0


def call_reward(form: bool, correct: float, expert: float) -> float:
    """R of a call."""
    return 0.1 + 0.4 * correct + 0.5 * expert if form else 0.0


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
    uses = []
    for count in counts:
        times = [1] * count
        if count >= d:
            kept = set(rng.sample(range(count), d))
            times = [int(n in kept) for n in range(count)]
        elif count:
            for _ in range(d - count):
                times[rng.randrange(count)] += 1
        uses.append(times)
    return uses


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


# ---------------------------------------------------------------------------------------- calls
# Calls: an episode in which one agent, the caller, has others do parts of the work.
#
# A call is a run of decisions of one other agent between two of the caller's. An environment names its caller in
# `metadata["caller"]`.


def caller_of(env: Any) -> str:
    """The agent that calls the others.

    Raises:
        ConfigError: the environment does not name one.
    """
    caller = getattr(env, "metadata", {}).get("caller")
    if caller is None:
        raise ConfigError(f"{env} names no caller in its metadata, so nothing in it is a call")
    return str(caller)


def calls_of(decisions: Sequence[Group], caller: str) -> list[list[Group]]:
    """The calls of an episode, each its decisions, in the order of `decisions`."""
    # `groupby` begins anew at every change, so that two calls of one agent stay apart.
    runs = groupby(decisions, key=lambda group: group.key.agent)
    return [list(run) for agent, run in runs if agent != caller]


def by_episode(groups: Sequence[Group]) -> dict[tuple[str, int], list[Group]]:
    """Task and episode -> its decisions in order, the episodes in the order of `groups`."""
    episodes: dict[tuple[str, int], list[Group]] = defaultdict(list)
    for group in groups:
        episodes[group.key.task, group.key.episode].append(group)
    return {
        key: sorted(decisions, key=lambda group: group.key.parent)
        for key, decisions in episodes.items()
    }
