"""The contract of rewards: no adversary earns more than an honest player, as paid and as compared."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pettingllms.envs import ENVIRONMENTS
from pettingllms.envs.aec import MOVED
from pettingllms.errors import ConfigError
from pettingllms.methods.ma_airl import MaAirl
from pettingllms.names import role_of
from pettingllms.rollout.engine import RolloutEngine
from pettingllms.rollout.shapes import Coalitions, Episodes, LookAheadTree, RolloutShape, Tree
from pettingllms.rollout.trajectory import Trajectory, in_order
from pettingllms.samplers.scripted import ScriptedSampler
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import Method, check_method, load_method
from pettingllms.trainers.method_names import METHODS, PARTS
from pettingllms.types import Group, Task
from tests.adversaries import ADVERSARIES, HONEST, Player, adversaries, opened

HONESTLY, OTHERWISE = "+", "-"
CASES = [(name, role) for name, roles in ADVERSARIES.items() for role in roles]


def guided(env: Any, name: str, role: str, other: Player) -> Any:
    """The environment, with replies that name who gives them: the role's honest player, or the other one."""
    honest = HONEST[name]

    def text(env: Any, agent: str, reply: str) -> str:
        way = other if reply == OTHERWISE and role_of(agent) == role else honest
        return way(env, agent) if reply else reply  # blank in a copy without the agent

    class Guided(type(env)):  # type: ignore[misc]
        def cross(self, programs: Sequence[str], tests: Sequence[str]) -> Any:
            self.turn = 1  # a reply that was readable; those that stall at first are not
            pairs = zip(("coder_0", "tester_0"), (programs, tests), strict=True)
            return super().cross(*([text(self, a, t) if t else "" for t in ts] for a, ts in pairs))

    def outcomes(self: Any, agent: str, replies: Sequence[str], ids: Any = ()) -> Any:
        return type(env)._outcomes(
            self, agent, [text(self, agent, reply) for reply in replies], ids
        )

    # Afterwards, because no subclass may replace what the kernel itself calls.
    Guided._outcomes = outcomes
    twin = env.clone()
    twin.__class__ = Guided
    return twin


def played(env: Any, role: str) -> dict[type[RolloutShape], list[Trajectory]]:
    """Two tasks in each shape, or one whose tests take a while: in half of the episodes, or as half of the candidates, the adversary plays."""
    tasks = [Task(f"t:{n}", n) for n in range(1 if env.metadata.get("cross_runs") else 2)]

    def play(shape: RolloutShape, script: Any) -> list[Trajectory]:
        sampler = ScriptedSampler(script)
        with ThreadPoolExecutor(1) as pool:
            engine = RolloutEngine(
                env,
                sampler,
                pool,
                shape=shape,
                settings={"max_new_tokens": 4},
                seed=(0,),
                wide={role},
            )
            return engine.run(tasks)

    def both(_policy: str, _prompt: str, seed: int) -> str:
        return (HONESTLY, OTHERWISE)[seed % 2]

    trajectories: dict[type[RolloutShape], list[Trajectory]] = {}
    for tree in (Tree, LookAheadTree):
        trajectories[tree] = play(tree(width=4, branch="sample"), both)
    ways = ((HONESTLY, 0), (OTHERWISE, 2))
    by_way = [
        play(Coalitions(episodes=2, first=first), lambda p, *_, w=way: w if p == role else HONESTLY)
        for way, first in ways
    ]
    # Copies change nothing about the episodes that they leave.
    trajectories[Episodes] = trajectories[Coalitions] = [
        t for both_ways in by_way for t in both_ways
    ]
    return trajectories


def credited(
    groups: Sequence[Group], role: str, turns: int, values: Sequence[Any]
) -> tuple[float, float]:
    """The mean advantage of the role's honest replies, and of its other ones, in its first turns."""
    at = iter(values)
    by: dict[str, list[float]] = {HONESTLY: [], OTHERWISE: []}
    for group in groups:
        for candidate in group.candidates:
            value = next(at)
            if group.key.role == role and group.key.turn < turns:
                by[candidate.completion.text].append(value)
    return statistics.mean(by[HONESTLY]), statistics.mean(by[OTHERWISE])


COMBINED = [
    "+".join(word for word in (credit, name) if word)
    for name in METHODS.own
    if name not in PARTS
    for credit in ("", "shared", "debate", "flow", "root")
    if not credit or METHODS.load(name).credit is Method.credit
]


@functools.cache
def accepted(name: str, folder: Path) -> list[tuple[str, Method]]:
    """Every combination of credit and advantages that the settings accept for an environment."""
    env = opened(name, folder)
    players = dict.fromkeys(map(role_of, env.possible_agents), "p")
    resolved = resolve(ATGRPOConfig(env=name.rpartition(" ")[2], policies="shared"), env)
    methods = []
    pairs: list[tuple[str, dict[str, Any]]] = [(method, {}) for method in COMBINED]
    for method, args in [*pairs, ("grpo", {"mean": True})]:
        shapes = load_method(method).fitting_shapes()
        if played := {"coalitions", "episodes", "look_ahead", "tree"} & {*shapes}:
            args = {**args, "shape": min(played)}
        if method.endswith("hindsight"):  # what a model says of a text is no reward
            args = {**args, "weight": 0.0}
        config = replace(resolved, method=method, method_args=args)
        try:
            check_method(config, env, players)
        except ConfigError:
            continue
        made = Method.of(config)
        critics = getattr(made, "critics", None)
        if critics is not None:  # which expect nothing before the first step
            made.attach(None, None)
            critics.features = lambda _policies, rows: [None] * len(rows)
        if isinstance(made, MaAirl):
            # Whose rewards a model learns, but for replies that cannot be read.
            made._replayed = lambda _: iter(())  # type: ignore[method-assign, assignment]
        methods.append((method, made))
    return methods


def test_every_environment_and_role_has_adversaries() -> None:
    assert {name.rpartition(" ")[2] for name in ADVERSARIES} == {*ENVIRONMENTS.own, *MOVED}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tasks")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "role"), CASES)
def test_an_honest_player_earns_more_than_any_adversary(name, role, folder):
    """In the environment's rewards, and after every combination that the settings accept."""
    env = opened(name, folder)
    combinations = accepted(name, folder)
    wrong: list[tuple[Any, ...]] = []
    for adversary, other in adversaries(name, role).items():
        played_env = guided(env, name, role, other)
        records = played(played_env, role)
        paid = {
            way: statistics.mean(
                sum(
                    g.chosen.team_reward + g.chosen.local_reward * (g.key.role == role)
                    for g in trajectory.groups
                )
                for trajectory in records[Episodes]
                if trajectory.episode in episodes
            )
            for way, episodes in ((HONESTLY, (0, 1)), (OTHERWISE, (2, 3)))
        }
        if not (
            paid[HONESTLY] > paid[OTHERWISE]
            or (adversary in ("stalling", "copying") and paid[HONESTLY] == paid[OTHERWISE])
        ):
            wrong.append((adversary, "as paid", paid))
        for label, method in combinations:
            method.attach(played_env, None)
            method.load_state_dict({})
            compared = in_order(method.credit(records[type(method.shape())]))
            # In a tree, roles that do not learn have one candidate.
            groups = [g for g in compared if not method.tree or g.key.role == role]
            # What stalls at first is honest later.
            turns = 1 if adversary == "stalling" else 9
            honest, another = credited(groups, role, turns, method.advantages(groups))
            if another > honest + 1e-6:
                wrong.append((adversary, label, round(honest, 2), round(another, 2)))
    assert not wrong, "\n".join(map(str, wrong))
