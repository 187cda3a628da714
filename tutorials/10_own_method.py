"""Your own method.

A method has four parts: an estimator (what completions are compared with), a rollout shape (what is sampled), a reward transform (what the estimator sees of
the rewards) and a cast (who plays and learns in a step). Each is a class, given by its path or, in Python, as it is; the other parts stay as they are. Here the second decision of a
task forks, short completions are worth more, and the planner learns twice as often as the tool.
"""

import tempfile
from collections.abc import Mapping, Sequence

from pettingllms import ATGRPOConfig, ATGRPOTrainer
from pettingllms.rollout.shapes import Move, Plan, RolloutShape
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.casts.base import Cast, Casting
from pettingllms.trainers.rewards.base import RewardTransform, repaid
from pettingllms.types import Candidate, Group


class ForkOnSecond(RolloutShape):
    """Two candidates of the second decision, and the task continues from both."""

    def plan(self, move: Move) -> Plan:
        return Plan(draw=2, forks=True) if move.depth == 1 else Plan()


class Brief(RewardTransform):
    """Takes a little off for every token; `success` and the logged rewards stay as they were paid."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        def reward(_: Group, candidate: Candidate) -> float:
            return candidate.reward - 0.001 * len(candidate.completion.token_ids)

        return [repaid(each, reward) for each in trajectories]


class MostlyThePlanner(Cast):
    """The tool learns in every third step only. A function of the step: nothing to resume."""

    def at(self, step: int, players: Mapping[str, str], trained: Sequence[str]) -> Casting:
        return Casting(players, tuple(trained) if step % 3 == 2 else ("planner",))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trainer = ATGRPOTrainer(
            env="plan_path",
            # From the command line: --shape my_package.my_module:ForkOnSecond, and so on
            reward_transform=Brief,
            cast=MostlyThePlanner,
            args=ATGRPOConfig(
                estimator="agent",
                shape=f"{__name__}:ForkOnSecond",
                num_generations=2,
                tasks_per_step=4,
                max_steps=3,
                eval_tasks=5,
                eval_steps=0,
                output_dir=f"{folder}/run",
            ),
        )
        summary = trainer.train()
        print(f"trained {summary.step} steps with a method of our own")
        assert summary.finished
