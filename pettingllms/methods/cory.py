"""CORY: a pioneer and an observer share their rewards and change places.

Ma et al. 2024, https://arxiv.org/abs/2410.06101.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pettingllms.errors import ConfigError
from pettingllms.methods.dr_mas import DrMas
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.method import Casting, EpisodeCredit, Method, argument, repaid
from pettingllms.types import Candidate, Group


class Swap(Method):
    """Two policies learn both roles, by changing places every `steps` steps.

    Which of them is used later is open.

    Args:
        steps: after which they change places.
    """

    steps: int = argument(5, at_least=1, whole=True)

    def players(self, step: int, players: Mapping[str, str], trained: Sequence[str]) -> Casting:
        """Swaps, in every other period, the places that the settings give the two policies.

        Raises:
            ConfigError: the run does not train two policies.
        """
        if len(trained) != 2:
            raise ConfigError(
                f"method {self.config.method} changes the places of two trained policies, got "
                f"{len(trained)} ({', '.join(trained)}); set policies and train_roles so that two are trained"
            )
        if step // self.steps % 2 == 0:
            return Casting(players, tuple(trained))
        one, other = trained
        places = {one: other, other: one}
        # Policies that are not trained stay where they are.
        swapped = {role: places.get(policy, policy) for role, policy in players.items()}
        return Casting(swapped, tuple(trained))


class SharedRewards(EpisodeCredit):
    """A completion is worth its own reward and those of the other agents in the same round.

        r = r_pioneer + r_observer

    A round is one turn of each agent. The others' rewards are those of the completions that the
    episode continued from. Agents with returns of their own are paid for each other in this way; a
    team that shares one return has it already, and only its trees see a difference.
    """

    needs = ("rounds",)
    credits = "whole"
    credit_shapes = ("episodes", "tree")

    def episode_credit(self, trajectory: Trajectory) -> Trajectory:
        """The record with the sums."""
        rounds: dict[int, float] = defaultdict(float)
        for group in trajectory.groups:
            rounds[group.key.turn] += group.chosen.reward

        def reward(group: Group, candidate: Candidate) -> float:
            # The sum of the round has the reward of the chosen candidate, which this one takes the
            # place of.
            return candidate.reward + rounds[group.key.turn] - group.chosen.reward

        return repaid(trajectory, reward)


class Cory(Swap, SharedRewards, DrMas):
    """A pioneer and an observer are paid the sum of both and change places every five steps.

    For two trained policies, such as two reasoners in math.
    """

    source = "arXiv 2410.06101"
