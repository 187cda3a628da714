"""Playing some tasks of a step: a function of settings, step, tasks and weights, of nothing else.

Every decision draws from numbers of its own, which follow from (seed, step, task, episode, depth).
What remains is rounding: episodes that share batches round alike, so a step's tasks are divided
into shards of `tasks_per_shard`, and no batch has episodes of two shards. Which process plays a
shard, beside which others and after which failures, therefore changes no bit of its record; the
size of the shards may change the last digits of log-probabilities, and is part of the results.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from types import SimpleNamespace
from typing import Any

from pettingllms.envs.aec import clone_env
from pettingllms.errors import ConfigError
from pettingllms.rollout.engine import Decided, RolloutEngine, returned
from pettingllms.rollout.episode import AnyEnv
from pettingllms.rollout.room import longest_prompts
from pettingllms.rollout.shapes import RolloutShape
from pettingllms.rollout.trajectory import Trajectory, in_order
from pettingllms.samplers.base import Sampler
from pettingllms.trainers.casts.base import Casting
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.metrics import Clock
from pettingllms.trainers.streamed import Unit
from pettingllms.types import Group, Task


@dataclass(frozen=True)
class Player:
    """Everything that rollouts need besides a step and its tasks.

    Args:
        config: resolved settings.
        env: a template, copied for every episode.
        sampler: the policies, with the weights that the step is played with.
        shape: what the estimator needs of each task.
    """

    config: ResolvedConfig
    env: AnyEnv
    sampler: Sampler
    shape: RolloutShape

    def play(
        self, step: int, tasks: Sequence[Task], casting: Casting, clock: Clock
    ) -> list[Trajectory]:
        """Rolls out whole shards of a step; `pettingllms.rollout.engine` has the loop.

        Args:
            step: of training.
            tasks: the shards'.
            casting: who plays, and whose prompts get as many completions as `shape` says.
            clock: takes the seconds of sampling and scoring.

        Raises:
            NonFiniteError: the environment paid a reward that is not finite.
            SandboxUnavailable, SamplerUnavailable: the sandbox or the sampler failed.
            ConfigError: the context has no room for any prompt.
        """
        return returned(self.stream(step, tasks, casting, clock))

    def stream(
        self,
        step: int,
        tasks: Sequence[Task],
        casting: Casting,
        clock: Clock,
        begun: Sequence[Decided] = (),
    ) -> Generator[Decided, None, list[Trajectory]]:
        """Rolls out like `play`, and yields what each batch led to.

        What `begun` has, from another player of the same tasks who did not come to the end, is not sampled
        again, and not yielded again.
        """
        config, length = self.config, self.config.max_completion_length
        env = self.env
        if getattr(env.unwrapped, "reward_funcs", ()):
            env = clone_env(env)
            inner: Any = env.unwrapped
            inner.trainer_state = SimpleNamespace(global_step=step, max_steps=config.max_steps)
        shard = config.tasks_per_shard
        with ThreadPoolExecutor(config.scoring_threads) as pool:
            engine = RolloutEngine(
                env,
                self.sampler,
                pool,
                shape=self.shape,
                settings={"temperature": config.temperature, "max_new_tokens": length},
                seed=(config.seed, step),
                policies=casting.players,
                wide=casting.learners,
                # Shards are counted in tasks, and the engine's cohorts in episodes.
                cohort=None if shard is None else shard * self.shape.episodes,
                longest=longest_prompts(self.sampler, length),
                timed=clock.time,
                known={place: own for each in begun for place, own in each.completions.items()},
            )
            return (yield from engine.stream(tasks))


def shards(config: ResolvedConfig, tasks: Sequence[Task]) -> list[Sequence[Task]]:
    """Divides the tasks of a step into those that share batches, in order."""
    size = config.tasks_per_shard or max(1, len(tasks))
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


def by_unit(
    config: ResolvedConfig, unit: Unit | None, trajectories: Sequence[Trajectory]
) -> list[list[Group]]:
    """The decisions of a step, divided into what gradients are added for; all are one without a unit."""
    if unit is None:
        return [in_order(trajectories)]
    shards = [in_order(shard) for shard in _by_shard(config, trajectories)]
    if unit == "shard":
        return shards
    # `in_order` sorts by depth, so that equal depths are neighbors: the decisions of one batch of
    # the shard.
    return [list(own) for shard in shards for _, own in groupby(shard, lambda g: g.key.parent)]


def _by_shard(config: ResolvedConfig, trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """The records of a step, divided as its tasks are; a task may have several."""
    # Records come in the order of the tasks, so that a task's first record tells its place in the
    # step.
    numbers = {task: n for n, task in enumerate(dict.fromkeys(each.task for each in trajectories))}
    size = config.tasks_per_shard or max(1, len(numbers))
    found: list[list[Trajectory]] = [[] for _ in range(0, len(numbers), size)]
    for each in trajectories:
        found[numbers[each.task] // size].append(each)
    return found


def check_shards(config: ResolvedConfig) -> None:
    """Refuses workers that would wait for one of them.

    Raises:
        ConfigError: several workers, and no shards to divide a step's tasks into.
    """
    if config.workers > 1 and config.tasks_per_shard is None:
        size = max(1, config.tasks_per_step // (2 * config.workers))
        raise ConfigError(
            f"workers {config.workers}: a step's {config.tasks_per_step} tasks share batches, so one "
            f"worker would play them all; give --tasks-per-shard {size}, also to the runs that are "
            "compared with this one, because it is part of the results"
        )
