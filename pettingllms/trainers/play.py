"""Rolls out tasks of a step: deterministic given settings, step, tasks, and weights.

Every decision draws from numbers of its own, which follow from (seed, step, task, episode, depth).
What remains is rounding: episodes that share batches round alike, so a step's tasks are divided
into shards of `tasks_per_shard`, and no batch has episodes of two shards. Records are therefore bit-identical
regardless of which process runs a shard and which ones failed; the size of the shards may change
the last digits of log-probabilities, and is part of the results.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

from pettingllms.envs.aec import clone_env, parts_of
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.engine import RolloutEngine, longest_prompts
from pettingllms.rollout.episode import AnyEnv, tasks_of_step
from pettingllms.rollout.shapes import RolloutShape
from pettingllms.rollout.trajectory import Trajectory, check_room
from pettingllms.samplers.base import DEFAULT_TOKENS_PER_BATCH
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import Casting
from pettingllms.trainers.metrics import Clock
from pettingllms.types import Task

if TYPE_CHECKING:
    from pettingllms.trainers.at_grpo import ATGRPO


@dataclass(frozen=True)
class Player:
    """Everything that rollouts need besides a step and its tasks."""

    config: ResolvedConfig
    env: AnyEnv
    sampler: PolicySet
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
        config, length = self.config, self.config.max_completion_length
        env, earlier = self.env, casting.earlier
        if getattr(env.unwrapped, "reward_funcs", ()):
            env = clone_env(env)
            state = SimpleNamespace(global_step=step, max_steps=config.max_steps)
            for single in parts_of(env):
                single.unwrapped.trainer_state = state
        replays = getattr(env.unwrapped, "replays", None)  # of a program
        replayed = 0.0 if replays is None else replays.seconds
        shard, count = config.tasks_per_shard, config.tasks_per_step
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
                exchanged=partial(self.sampler.exchanged, earlier) if earlier else None,
                # Shards are counted in tasks, and the engine's cohorts in episodes.
                cohort=None if shard is None else shard * self.shape.episodes,
                longest=longest_prompts(self.sampler, length),
                # By the step's shards, not those at hand: a worker has one of them at a time.
                room=DEFAULT_TOKENS_PER_BATCH // -(-count // (shard or count)),
                timed=clock.time,
            )
            trajectories = engine.run(tasks)
        if replays is not None:
            clock.add("replay", replays.seconds - replayed)
        return trajectories


def shards(config: ResolvedConfig, tasks: Sequence[Task]) -> list[Sequence[Task]]:
    """Divides the tasks of a step into those that share batches, in order."""
    size = config.tasks_per_shard or max(1, len(tasks))
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


# ----------------------------------------------------------------------------- dynamic sampling
# Dynamic sampling: further tasks until a step has enough groups with a signal.
#
# DAPO, https://arxiv.org/abs/2503.14476, section 3.2. A group in which all earned the same teaches nothing. With
# `max_num_gen_batches` above 1 (verl's name) a step samples batch after batch of `tasks_per_step` tasks, until every
# policy that learns has as many groups with a signal as a batch has tasks, and at most that many batches. All their
# completions count: in the tokens of the run and, unless they are silent, in the update.
#
# Which tasks a batch has follows from the numbers of step and batch alone, so that a resumed run and workers on Ray
# need no further state.


def sampled(trainer: ATGRPO, clock: Clock) -> list[Trajectory]:
    """Rolls out the tasks of the trainer's next step; the trainer's `batch` is 0 before and after.

    Raises:
        ConfigError: no prompt of the step leaves room for a completion in the context.
    """
    config, trajectories = trainer.config, list[Trajectory]()
    try:
        for trainer.batch in range(config.max_num_gen_batches):
            tasks = tasks_of_batch(trainer, trainer.step, trainer.batch)
            trajectories += trainer.rollout(tasks, clock)
            learners, method = trainer.casting.learners, trainer.method
            whole = method.compares not in ("reward", "parts")
            # A method that compares with a critic or with earlier steps has no silent groups.
            if method.least == 1 or has_enough(
                trajectories, learners, config.tasks_per_step, whole=whole
            ):
                break
    finally:
        trainer.batch = 0
    check_room(trajectories, config.max_completion_length)
    return trajectories


def tasks_of_batch(trainer: ATGRPO, step: int, batch: int) -> list[Task]:
    """Returns the tasks of a batch of a step."""
    config, pools = trainer.config, trainer.pools
    number = step * config.max_num_gen_batches + batch
    tasks = tasks_of_step(trainer.env, config.env, number, config.tasks_per_step, config.seed)
    return tasks if pools is None else pools.drawn(tasks, number)


def has_enough(
    trajectories: Sequence[Trajectory],
    policies: Collection[str],
    needed: int,
    *,
    whole: bool = False,
) -> bool:
    """Returns whether each policy has at least `needed` decisions whose candidates earned different rewards.

    With `whole` the returns of their episodes have to differ. A decision is a turn of an agent in a task;
    in parallel episodes its candidates are those of all episodes.
    """
    rewards = defaultdict[tuple[str, str, str, int], set[float]](set)
    for trajectory in trajectories:
        for group in trajectory.groups:
            key = group.policy, group.key.task, group.key.agent, group.key.turn
            rewards[key].update(group.return_by(c) if whole else c.reward for c in group.candidates)
    signals = Counter(policy for (policy, *_), values in rewards.items() if len(values) > 1)
    return all(signals[policy] >= needed for policy in policies)
