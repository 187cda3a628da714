"""Difficulty pools: tasks that the team nearly always solves, or hardly ever, are drawn less often.

    hard       success below 0.25                       weight 0.2
    in reach   between, and what was not measured yet   weight 1
    easy       success above 0.75                       weight 0.2

What has a success is a row of a data set, or a size: values of arguments of the environment. Training itself measures it, as
`mean_success` of a task's episodes. A draw follows from the seed, the batch, and what was measured before the step.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from pettingllms.envs.aec import AnyEnv
from pettingllms.errors import ConfigError
from pettingllms.rollout.trajectory import Trajectory, mean_success
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig
from pettingllms.types import Task

HARD, EASY = 0.25, 0.75
SELDOM = 0.2
RECENT = 8
"""Latest tasks of a size whose mean counts. A row counts with its latest one."""


class SizedEnvs(dict[str, AnyEnv]):
    """The environments of all sizes, which copies of the team's environment share."""

    def __deepcopy__(self, memo: dict[int, Any]) -> SizedEnvs:
        return self


class Pools:
    """The success of all rows or sizes, of which there must be some, and the draw that follows from it."""

    def __init__(self, config: ResolvedConfig, env: AnyEnv) -> None:
        self._sizes: Mapping[str, AnyEnv] = getattr(env.unwrapped, "drawn_sizes", {})
        rows = getattr(env.unwrapped, "num_tasks", None)
        if not self._sizes and rows is None:
            raise ConfigError(
                f"difficulty_pools: {config.env} has no data set whose rows could be chosen; name an argument "
                "and its sizes, as in --difficulty-pools.sentences '[2, 3, 4]'"
            )
        self._names = [*self._sizes] if self._sizes else [str(row) for row in range(rows or 0)]
        self._seed, self._needed = config.seed, RECENT if self._sizes else 1
        self._measured: dict[str, list[float]] = {}

    def drawn(self, tasks: Sequence[Task], batch: int) -> list[Task]:
        """What is played in place of the tasks of a batch: of other sizes, or other rows."""
        count, rng = len(tasks), random.Random(f"{self._seed} pools {batch}")
        weights = {name: 1.0 if self._pool(name) == "in_reach" else SELDOM for name in self._names}
        if self._sizes:
            sizes = zip(tasks, rng.choices(self._names, [*weights.values()], k=count), strict=True)
            return [task._replace(id=f"{task.id}:{size}", size=size) for task, size in sizes]
        # No row twice, as long as there are others (Efraimidis and Spirakis, 2006).
        keys = {name: rng.random() ** (1 / weight) for name, weight in weights.items()}
        rows = islice(cycle(sorted(keys, key=keys.__getitem__, reverse=True)), count)
        # The number in place of the epoch keeps ids apart.
        return [
            Task(f"{task.id.rsplit(':', 2)[0]}:{row}:{batch * count + place}", int(row))
            for place, (task, row) in enumerate(zip(tasks, rows, strict=True))
        ]

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Takes over the success of a step's tasks; returns how many rows or sizes are in each pool."""
        episodes = defaultdict[Task, list[Trajectory]](list)
        for trajectory in trajectories:
            episodes[trajectory.task].append(trajectory)
        for task, of_task in episodes.items():
            success, name = mean_success(of_task), task.size or str(task.seed)
            if success is not None:
                self._measured[name] = [*self._measured.get(name, ()), success][-self._needed :]
        sizes = Counter(map(self._pool, self._names))
        return {f"pools/{pool}": float(sizes[pool]) for pool in ("hard", "in_reach", "easy")}

    def _pool(self, name: str) -> str:
        latest = self._measured.get(name, ())
        success = 0.5 if len(latest) < self._needed else sum(latest) / len(latest)
        return "hard" if success < HARD else "easy" if success > EASY else "in_reach"

    def state_dict(self) -> dict[str, Any]:
        """What was measured."""
        return {"measured": self._measured} if self._measured else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned."""
        self._measured = {name: [*latest] for name, latest in state.get("measured", {}).items()}


def sizes_of(config: ATGRPOConfig) -> dict[str, dict[str, Any]]:
    """Name of each size -> the arguments of the environment that make it; none for rows of a data set.

    Raises:
        ConfigError: `difficulty_pools` holds something else than rows, or lists of the same length.
    """
    wanted = config.difficulty_pools
    if not wanted or wanted == {"rows": True}:
        return {}
    lists = [values for values in wanted.values() if isinstance(values, list)]
    lengths = {len(values) for values in lists}
    if len(lists) < len(wanted) or len(lengths) > 1 or min(lengths) < 2:
        raise ConfigError(
            'difficulty_pools is {"rows": true} for a data set, or arguments of the environment with lists of the same '
            f'length, as in {{"height": [4, 6], "width": [4, 6]}}, got {dict(wanted)}'
        )
    made = [dict(zip(wanted, values, strict=True)) for values in zip(*lists, strict=True)]
    return {",".join(f"{name}={value}" for name, value in size.items()): size for size in made}
