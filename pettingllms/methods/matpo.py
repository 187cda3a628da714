"""MATPO: an episode is paid for its answer and for its form, to which every call belongs.

https://github.com/mzf666/MATPO
"""

from __future__ import annotations

from collections.abc import Iterable

from pettingllms.methods.grpo import Grpo
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.method import EpisodeCredit, readable, repaid, solved
from pettingllms.types import Candidate, Group


class RootReward(EpisodeCredit):
    """An episode is worth R at its last decision, and nothing before.

        R = 0.9 correct + 0.1 form

    `correct` is whether the team succeeded, `form` whether all replies could be read, those of workers
    too. With the advantages of `grpo` every decision below a planner then has the advantage of the
    planner's episode, and `loss_norm` roots divides by episodes.
    """

    needs = ("calls",)
    credits = "return"
    credit_shapes = ("episodes",)

    def episode_credit(self, trajectory: Trajectory) -> Trajectory:
        """The record with R as its return."""
        total = root_reward(solved(trajectory, self.config), map(readable, trajectory.groups))

        def reward(group: Group, candidate: Candidate) -> float:
            del candidate
            # A return is the sum of the rewards of its episode, so that R may be paid once only.
            return total if group is trajectory.groups[-1] else 0.0

        return repaid(trajectory, reward)


def root_reward(correct: bool, forms: Iterable[bool]) -> float:
    """R of an episode, of whose replies `forms` says whether each could be read."""
    return 0.9 * correct + 0.1 * all(forms)


class Matpo(RootReward, Grpo):
    """Workers learn with the advantage of the planner's episode that called them.

    A loss is divided by episodes. For a planner with workers of one policy, `--policies shared`.
    """

    source = "github.com/mzf666/MATPO"
    # `roots` divides a mean over completions, and the default loss averages over tokens.
    settings = {"loss_type": "grpo", "loss_norm": "roots"}
