"""Your own estimator.

An estimator turns rewards into advantages. This one compares the K completions of a prompt with each other, as AT-GRPO does, and gives prompts
twice the weight where a role earns less than it recently did. The recent rewards of each role are a state, which the checkpoints of a run keep.
"""

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from pettingllms.session import run_training
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.method import Method
from pettingllms.types import Advantage, Group


class Struggling(Method):
    """The reward above the mean of its group; twice that where the role does worse than usual."""

    tree = True  # K candidates of one prompt; without it: K whole episodes of a task

    def __init__(self, config: ATGRPOConfig) -> None:
        super().__init__(config)
        self.usual: dict[str, float] = {}
        """Role -> moving average of its rewards."""

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        values: list[Advantage] = []
        for group in groups:
            rewards = [candidate.reward for candidate in group.candidates]
            mean = sum(rewards) / len(rewards)
            usual = self.usual.get(group.key.role, mean)
            weight = 2.0 if mean < usual else 1.0
            values += [weight * (reward - mean) for reward in rewards]
            self.usual[group.key.role] = 0.95 * usual + 0.05 * mean
        return values  # one number for each candidate, in order; a tuple has one for each token

    def state_dict(self) -> dict[str, Any]:
        return dict(self.usual)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.usual = dict(state)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        summary = run_training(
            ATGRPOConfig(
                env="plan_path",
                # From the command line: --method my_package.my_module:Struggling
                method=f"{__name__}:Struggling",
                num_generations=4,
                tasks_per_step=4,
                max_steps=2,
                eval_tasks=5,
                eval_steps=0,
                output_dir=f"{folder}/run",
            )
        )
        print(f"trained {summary.step} steps with an estimator of our own")
        assert summary.finished
