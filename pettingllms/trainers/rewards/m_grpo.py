"""M-GRPO: the caller is paid for its answer, a call for its form, the answer and its own part.

"Multi-Agent Deep Research: Training Multi-Agent Systems with M-GRPO", 2025,
https://arxiv.org/abs/2511.13288, section 3. After the paper's text; its code was not published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.calls import caller_of, calls_of
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.rewards.base import RewardTransform, readable, repaid, solved
from pettingllms.types import Candidate, Group, GroupKey


class CallRewards(RewardTransform):
    """Pays every decision of the caller R, and every decision of a call the R of that call.

        caller:  R = 0.1 + 0.9 correct                   where all of its replies could be read, else 0
        call:    R = 0.1 + 0.4 correct + 0.5 expert      where all of its replies could be read, else 0

    `correct` is whether the team succeeded, `expert` what the environment says the call was worth in
    the info of its last decision (0 where it says nothing). The estimator `m_grpo` compares episodes and calls,
    each once.

    Args:
        config: resolved settings of the run.
    """

    needs: ClassVar[tuple[str, ...]] = ("calls",)
    compared, shapes = "reward", ("episodes",)

    def __init__(self, config: ResolvedConfig) -> None:
        super().__init__(config)
        self.caller: str | None = None

    def attach(self, env: Any, policies: Any) -> None:
        """Learns who calls."""
        del policies
        self.caller = caller_of(env)

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The records with R in place of every reward.

        Raises:
            ConfigError: the environment does not say whether a task was solved.
        """
        return [self._repaid(trajectory) for trajectory in trajectories]

    def _repaid(self, trajectory: Trajectory) -> Trajectory:
        caller, correct = self.caller or "", float(solved(trajectory, self.config))
        own = [group for group in trajectory.groups if group.key.agent == caller]
        found: dict[GroupKey, float] = {}
        for group in own:
            found[group.key] = caller_reward(all(map(readable, own)), correct)
        for call in calls_of(trajectory.groups, caller):
            expert = float(call[-1].chosen.info.get("expert", 0.0))
            for group in call:
                found[group.key] = call_reward(all(map(readable, call)), correct, expert)

        def reward(group: Group, candidate: Candidate) -> float:
            del candidate
            return found[group.key]

        return repaid(trajectory, reward)


def caller_reward(form: bool, correct: float) -> float:
    """R of an episode's caller."""
    return 0.1 + 0.9 * correct if form else 0.0


def call_reward(form: bool, correct: float, expert: float) -> float:
    """R of a call."""
    return 0.1 + 0.4 * correct + 0.5 * expert if form else 0.0
