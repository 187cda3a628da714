"""Your own method.

A method is a class with a few hooks: `credit` (what a completion is worth), `advantages` (what it is compared with), `shape` (what is sampled), and `players` (who plays and
learns in a step). It is given by its path or, in Python, as it is, and takes the other hooks from a method that there is. Here the second decision of a task forks, short
completions are worth more, and the planner learns in every step while the tool learns in every third one.
"""

import tempfile
from collections.abc import Mapping, Sequence

from pettingllms import ATGRPOConfig, ATGRPOTrainer
from pettingllms.methods.dr_mas import DrMas
from pettingllms.rollout.shapes import Move, Plan, RolloutShape
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.method import Casting, argument, repaid
from pettingllms.types import Candidate, Group


class ForkOnSecond(RolloutShape):
    """Two candidates of the second decision, and the task continues from both."""

    def plan(self, move: Move) -> Plan:
        return Plan(draw=2, forks=True) if move.depth == 1 else Plan()


class Brief(DrMas):
    """Dr. MAS that takes a little off for every token, for a planner that learns most of the time."""

    price: float = argument(0.001, at_least=0)  # --method-args.price 0.002

    def shape(self) -> RolloutShape:
        return ForkOnSecond()

    def credit(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        def reward(_: Group, candidate: Candidate) -> float:
            return candidate.reward - self.price * len(candidate.completion.token_ids)

        # `success` and the logged rewards stay those of the environment.
        return [repaid(trajectory, reward) for trajectory in trajectories]

    def players(self, step: int, players: Mapping[str, str], trained: Sequence[str]) -> Casting:
        # A function of the step: nothing to resume.
        return Casting(players, tuple(trained) if step % 3 == 2 else ("planner",))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trainer = ATGRPOTrainer(
            env="plan_path",
            method=Brief,  # from the command line: --method my_package.my_module:Brief
            args=ATGRPOConfig(
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
