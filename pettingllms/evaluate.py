"""Plays held-out tasks, one reply a turn, and says how well the team and each role did.

No branching and no training: every task is played `samples` times to its end, all games in lock
step. Scores carry 95 % intervals by bootstrap over tasks (percentiles of 2000 resamples), because
the games of one task are not independent of each other.

| score | mean over tasks of |
|---|---|
| `success` | games at whose end the team has succeeded (absent where an environment does not say) |
| `decisions` | replies of a game, all roles |
| `<role>/reward`, `/team_reward`, `/local_reward` | what a reply earned |
| `<role>/first_local_reward` | what the role's first reply of a game earned it: a task's first turn is the same problem for every team |
| `<role>/first_<key>` | numbers that the environment reports of that first reply, 0 where it reports none (it could not be read): `coder/first_passed` is the share of hidden tests passed |
| `<role>/parse_error` | replies that could not be read (share) |
| `<role>/tokens` | tokens of a reply |
| `<role>/truncated` | replies cut at the limit (share) |
| `<role>/turns` | replies of this role in a game |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from pettingllms.envs.foreign import role_of
from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.policies.policy_set import PolicySet
from pettingllms.trainers.episodes import AnyEnv, Episode, score
from pettingllms.types import Reply, Request, Task

RESAMPLES = 2000
HELD_OUT = {"val": 1 << 31, "test": (1 << 31) + (1 << 30)}
"""First seed of held-out tasks where an environment has no splits; no training step uses it."""


class Estimate(NamedTuple):
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of one set of games; the module docstring says what each is."""

    roles: tuple[str, ...]
    tasks: int
    samples: int
    greedy: bool
    scores: Mapping[str, Estimate]

    def row(self) -> dict[str, Any]:
        """One flat record: `<score>`, `<score>/low`, `<score>/high`, and the settings."""
        row: dict[str, Any] = {
            "roles": list(self.roles),
            "tasks": self.tasks,
            "samples": self.samples,
            "greedy": self.greedy,
        }
        for name, (mean, low, high) in self.scores.items():
            row |= {f"eval/{name}": mean, f"eval/{name}/low": low, f"eval/{name}/high": high}
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Evaluation:
        """The inverse of `row`; other entries are ignored."""
        names = [
            key.removesuffix("/low").removeprefix("eval/")
            for key in row
            if key.startswith("eval/") and key.endswith("/low")
        ]
        scores = {
            name: Estimate(*(row[f"eval/{name}{end}"] for end in ("", "/low", "/high")))
            for name in names
        }
        return cls(tuple(row["roles"]), row["tasks"], row["samples"], row["greedy"], scores)


# ------------------------------------------------------------------------------------------ play


def evaluate(
    env: AnyEnv,
    policies: PolicySet,
    *,
    tasks: Sequence[Task],
    max_new_tokens: int,
    samples: int = 1,
    greedy: bool = False,
    temperature: float = 1.0,
    seed: int = 0,
    swap: Mapping[str, str] | None = None,
    scoring_threads: int = 4,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Evaluation:
    """Plays each task `samples` times without branching.

    Args:
        env: of the split to play; copied, never stepped itself.
        policies: who answers.
        tasks: what to play, for example `held_out(env, "test", 100)`.
        max_new_tokens: of a reply.
        samples: games of each task.
        greedy: take the likeliest token always.
        temperature: of sampling.
        seed: of sampling and of the bootstrap.
        swap: role -> the role whose policy answers for it.
        scoring_threads: replies that are scored at the same time.
        on_progress: told finished and all games after every move; may raise to stop.

    Raises:
        ConfigError, UnknownNameError: nothing to play; `swap` names an unknown role.
    """
    if not tasks or samples < 1:
        raise ConfigError(f"nothing to play: {len(tasks)} tasks, {samples} samples of each")
    roles = roles_of(env)
    players = {role: policies.policy_for(as_role) for role, as_role in _players(roles, swap)}
    games = [Episode(env, task, index) for task in tasks for index in range(samples)]
    generator = torch.Generator(policies.device).manual_seed(seed)
    logs: dict[tuple[str, int], list[_Move]] = {(g.task.id, g.index): [] for g in games}
    with ThreadPoolExecutor(scoring_threads) as pool:
        while moving := [game for game in games if game.agent is not None]:
            on_progress(len(games) - len(moving), len(games))
            replies = policies.sample(
                [Request(players[g.role], policies.prompt_ids(g.role, g.prompt())) for g in moving],
                1,
                generator=generator,
                greedy=greedy,
                temperature=temperature,
                max_new_tokens=max_new_tokens,
            )
            for game, (scored,) in zip(moving, pool.map(score, moving, replies), strict=True):
                logs[game.task.id, game.index].append(
                    _Move(game.role, game.key(()).turn, scored.reply, *scored[2:])
                )
                game.go_on(scored.env)
    on_progress(len(games), len(games))
    reported = _reported(logs.values())
    by_task = [[logs[task.id, index] for index in range(samples)] for task in tasks]
    scores = bootstrap([_task_scores(moves, reported) for moves in by_task], seed)
    return Evaluation(tuple(roles), len(tasks), samples, greedy, scores)


def held_out(env: AnyEnv, split: str, count: int) -> list[Task]:
    """The first `count` tasks of a split, or all of a smaller data set."""
    plain = env.unwrapped
    rows = getattr(plain, "num_tasks", None)
    first = 0 if hasattr(plain, "split") else HELD_OUT.get(split, 0)
    numbers = range(first, first + (count if rows is None else min(count, rows)))
    return [Task(f"{split}:{number}", number) for number in numbers]


def roles_of(env: AnyEnv) -> list[str]:
    """The roles of an environment, each once, in turn order."""
    return list(dict.fromkeys(role_of(str(agent)) for agent in env.possible_agents))


def _players(roles: Sequence[str], swap: Mapping[str, str] | None) -> list[tuple[str, str]]:
    for role in {**(swap or {}), **dict.fromkeys((swap or {}).values())}:
        if role not in roles:
            raise UnknownNameError(
                f"swap names the unknown role {role!r}; {did_you_mean(role, roles)}"
            )
    return [(role, (swap or {}).get(role, role)) for role in roles]


class _Move(NamedTuple):
    """One reply of a game, and what it earned."""

    role: str
    turn: int
    reply: Reply
    team: float
    local: float
    reward: float
    info: Mapping[str, Any]


# ---------------------------------------------------------------------------------------- scores


def _reported(games: Iterable[Sequence[_Move]]) -> dict[str, list[str]]:
    """For each role the numbers that the environment reports of any of its first replies."""
    names: dict[str, set[str]] = defaultdict(set)
    for move in (move for moves in games for move in moves if move.turn == 0):
        names[move.role] |= {
            name for name in move.info.keys() - _COMMON if isinstance(move.info[name], int | float)
        }
    return {role: sorted(found) for role, found in names.items()}


def _task_scores(
    games: Sequence[Sequence[_Move]], reported: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Means over the games of one task."""
    values: dict[str, list[float]] = defaultdict(list)
    for moves in games:
        values["decisions"].append(len(moves))
        if moves and "success" in moves[-1].info:
            values["success"].append(bool(moves[-1].info["success"]))
        turns: dict[str, int] = defaultdict(int)
        for role, turn, reply, team, local, reward, info in moves:
            turns[role] += 1
            values[f"{role}/reward"].append(reward)
            values[f"{role}/team_reward"].append(team)
            values[f"{role}/local_reward"].append(local)
            values[f"{role}/parse_error"].append(info.get("parse_error") is not None)
            values[f"{role}/tokens"].append(len(reply.token_ids))
            values[f"{role}/truncated"].append(not reply.finished)
            if turn == 0:
                values[f"{role}/first_local_reward"].append(local)
                for name in reported[role]:
                    values[f"{role}/first_{name}"].append(info.get(name, 0.0))
        for role, number in turns.items():
            values[f"{role}/turns"].append(number)
    return {name: float(np.mean(numbers)) for name, numbers in sorted(values.items())}


_COMMON = {"team_reward", "local_reward", "success", "parse_error", "turn"}


def bootstrap(tasks: Sequence[Mapping[str, float]], seed: int) -> dict[str, Estimate]:
    """Mean and 95 % interval of every score over tasks; tasks without a score are left out of it."""
    scores = {}
    for name in sorted({name for task in tasks for name in task}):
        values = np.array([task[name] for task in tasks if name in task])
        # The same seed for every score: scores over the same tasks share their resamples.
        picks = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
        low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
        scores[name] = Estimate(float(values.mean()), float(low), float(high))
    return scores
