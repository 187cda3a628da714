"""CURE: programs and tests of one task judge each other in one matrix.

Wang et al. 2025, "Co-Evolving LLM Coder and Unit Tester via Reinforcement Learning",
https://arxiv.org/abs/2506.03136, and the authors' code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pettingllms.envs.aec import clone_env
from pettingllms.envs.coding_judge import Matrix
from pettingllms.rollout.episode import reset_seed
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import EPSILON, SAME, AtGrpo
from pettingllms.trainers.method import repaid
from pettingllms.types import Advantage, Candidate, Group, Task

UNREADABLE = -1.0
"""Reward of a tester's reply that cannot be read; a coder's has passed no hidden test."""


class Cure(AtGrpo):
    """Programs and tests judge each other; for a coder with a tester.

        program:  r = mean T                             T: which hidden tests it passes
        test:     r = + share of wrong programs that fail it      if all right programs pass it
                  r = - share of wrong programs that pass it      otherwise
        A = (r - mean r) / (std r + epsilon)             with the deviation of the population (1 / n)

    Right is a program that passes all hidden tests. Without a wrong program a test earns 1 or -1;
    without a right one nobody knows which tests are right, and none earns anything. A reply with several
    tests earns their mean, and one that cannot be read -1. Programs and tests are those of one turn: all candidates of
    the coder's prompt and of the tester's, who does not see the program in its first turn. Each different program is run once on each
    different test, K x K pairs a task; mutants have no part in it, so that what `info["caught"]` says of them measures it from outside.
    """

    source = "arXiv 2506.03136"
    settings = {"branch": "sample"}
    needs = ("early_rewards", "cross_runs")
    shapes = ("tree",)
    credits = "reward"

    def credit(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The records with these rewards.

        Raises:
            SandboxUnavailable: the sandbox failed, which is no program's fault.
        """
        coder, tester = self.env.metadata["cross_runs"]
        return [self._judged(trajectory, coder, tester) for trajectory in trajectories]

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The reward above the mean of the prompt's, exactly 0 where all earned the same.

        Raises:
            GroupError: a prompt has one candidate.
        """
        self.check_tree(groups)
        values: list[Advantage] = []
        for group in groups:
            rewards = [candidate.reward for candidate in group.candidates]
            rewards_C = torch.tensor(rewards, dtype=torch.float64)
            if rewards_C.max() - rewards_C.min() <= SAME:
                values += [0.0] * len(rewards)
                continue
            scale = rewards_C.std(correction=0) + EPSILON
            divisor = 1.0 if self.config.scale_rewards == "none" else scale
            values += ((rewards_C - rewards_C.mean()) / divisor).tolist()
        return values

    def _judged(self, trajectory: Trajectory, coder: str, tester: str) -> Trajectory:
        turns: dict[int, dict[str, Group]] = {}
        for group in trajectory.groups:
            turns.setdefault(group.key.turn, {})[group.key.role] = group
        paid: dict[tuple[int, str], list[float]] = {}
        for turn, groups in turns.items():
            if coder in groups:
                paid[turn, coder] = [program_reward(_hidden(c)) for c in groups[coder].candidates]
            if tester in groups:
                paid[turn, tester] = self._tests(trajectory.task, groups, coder, tester)

        def reward(group: Group, candidate: Candidate) -> float:
            # By identity, because equal candidates compare equal and each has a place of its own.
            (k,) = [n for n, other in enumerate(group.candidates) if other is candidate]
            values = paid.get((group.key.turn, group.key.role))
            return candidate.reward if values is None else values[k]

        return repaid(trajectory, reward)

    def _tests(
        self, task: Task, groups: Mapping[str, Group], coder: str, tester: str
    ) -> list[float]:
        """Returns what each candidate of the tester earns."""
        programs = groups[coder].candidates if coder in groups else ()
        readable = [c for c in programs if c.info.get("parse_error") is None]
        # An unreadable reply becomes an empty one in place, so that places in the matrix are those
        # of the candidates.
        tests = [
            "" if c.info.get("parse_error") is not None else c.completion.text
            for c in groups[tester].candidates
        ]
        # The template is never reset itself; a copy at the task's seed knows the task's function
        # and limits.
        env = clone_env(self.env)
        options = {} if task.options is None else {"options": dict(task.options)}
        env.reset(seed=reset_seed(env, task.seed), **options)
        judge: Any = env.unwrapped
        matrix: Matrix = judge.cross([c.completion.text for c in readable], tests)
        right = [program_reward(_hidden(c)) == 1 for c in readable]
        earned = rewards_of_tests([matrix.passes[n] for n in range(len(readable))], right)
        rewards = []
        for n in range(len(tests)):
            columns = matrix.tests.get(n)
            # `earned` is None where no program of the step is right, and then a readable test earns
            # 0.
            values = [earned[column] for column in columns] if columns and earned else []
            rewards.append(UNREADABLE if columns is None else sum(values) / max(1, len(values)))
        return rewards


def _hidden(candidate: Candidate) -> Sequence[bool] | None:
    """Which hidden tests a program passes; None for a reply without a program."""
    verdicts: Sequence[bool] | None = candidate.info.get("verdicts")
    return verdicts


def program_reward(hidden: Sequence[bool] | None) -> float:
    """The share of the hidden tests that a program passes; 0 for a reply that cannot be read."""
    return sum(hidden) / len(hidden) if hidden else 0.0


def rewards_of_tests(passes: Sequence[Sequence[bool]], right: Sequence[bool]) -> list[float] | None:
    """Returns what each test earns; None where no program is right.

    Args:
        passes: for each program whether it passes each test.
        right: whether each program passes all hidden tests.
    """
    good = [row for row, ok in zip(passes, right, strict=True) if ok]
    wrong = [row for row, ok in zip(passes, right, strict=True) if not ok]
    if not good:
        return None
    rewards = []
    for test in range(len(good[0])):
        valid = all(row[test] for row in good)
        passed = sum(row[test] for row in wrong)
        share = (len(wrong) - passed if valid else passed) / len(wrong) if wrong else 1.0
        rewards.append(share if valid else -share)
    return rewards
