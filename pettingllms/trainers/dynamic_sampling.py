"""Dynamic sampling: further tasks until a step has enough groups with a signal.

DAPO, https://arxiv.org/abs/2503.14476, section 3.2. A group in which all earned the same teaches nothing. With
`max_num_gen_batches` above 1 (verl's name) a step samples batch after batch of `tasks_per_step` tasks, until every
policy that learns has as many groups with a signal as a batch has tasks, and at most that many batches. All their
completions count: in the tokens of the run and, unless they are silent, in the update.

Which tasks a batch has follows from the numbers of step and batch alone, so that a resumed run and workers on Ray
need no further state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pettingllms.rollout.episode import AnyEnv, tasks_of_step
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.types import Task

if TYPE_CHECKING:
    from pettingllms.trainers.at_grpo import ATGRPO
    from pettingllms.trainers.config import ResolvedConfig
    from pettingllms.trainers.metrics import Clock


def sampled(trainer: ATGRPO, clock: Clock) -> list[Trajectory]:
    """Rolls out the tasks of the trainer's next step; the trainer's `batch` is 0 before and after."""
    config, trajectories = trainer.config, list[Trajectory]()
    try:
        for trainer.batch in range(config.max_num_gen_batches):
            tasks = tasks_of_batch(trainer.env, config, trainer.step, trainer.batch)
            trajectories += trainer.rollout(tasks, clock)
            if has_enough(trajectories, trainer.casting.learners, config.tasks_per_step):
                break
    finally:
        trainer.batch = 0
    return trajectories


def tasks_of_batch(env: AnyEnv, config: ResolvedConfig, step: int, batch: int) -> list[Task]:
    """Returns the tasks of a batch of a step."""
    number = step * config.max_num_gen_batches + batch
    return tasks_of_step(env, config.env, number, config.tasks_per_step, config.seed)


def has_enough(trajectories: Sequence[Trajectory], policies: Collection[str], needed: int) -> bool:
    """Returns whether each policy has at least `needed` decisions whose candidates earned different rewards.

    A decision is a turn of an agent in a task; in parallel episodes its candidates are those of all episodes.
    """
    rewards = defaultdict[tuple[str, str, str, int], set[float]](set)
    for trajectory in trajectories:
        for group in trajectory.groups:
            key = group.policy, group.key.task, group.key.agent, group.key.turn
            rewards[key].update(candidate.reward for candidate in group.candidates)
    signals = Counter(policy for (policy, *_), values in rewards.items() if len(values) > 1)
    return all(signals[policy] >= needed for policy in policies)
