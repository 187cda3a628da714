"""Rollout shapes: what each samples, that forks are exact, and what every candidate is worth."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pettingllms.assembly import plan_run
from pettingllms.envs.base import TextEnv
from pettingllms.envs.records import Outcome
from pettingllms.errors import UnknownNameError
from pettingllms.methods.look_ahead import LookAhead
from pettingllms.rollout.engine import RolloutEngine
from pettingllms.rollout.shapes import SHAPES, Full, Move, Plan, RolloutShape
from pettingllms.rollout.trajectory import Trajectory, in_order
from pettingllms.samplers.scripted import ScriptedSampler
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import Method
from pettingllms.trainers.metrics import generated_tokens
from pettingllms.types import Completion, Request, Task
from tests import letters_env

torch.set_num_threads(1)
GOLDEN = Path(__file__).parent / "golden"
TASKS = [Task(f"q:{n}", n) for n in range(5)]
ROLES = ("planner", "worker", "judge")


class Line(TextEnv):
    """Three roles in a line; a letter is paid by what all letters so far have in common."""

    metadata = {"name": "line_v0", "render_modes": []}  # noqa: RUF012 - PettingZoo's

    def __init__(self, *, ends: str = "", **kwargs: Any) -> None:
        self.ends = ends
        super().__init__(roles=ROLES, **kwargs)

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[str, ...]:
        return (f"task {seed}",)

    def _text(self, state: tuple[str, ...], agent: str) -> str:
        return " ".join(state)

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        paid = len(set("".join(state[1:]) + text)) / 8
        over = bool(self.ends) and text.startswith(self.ends)
        return Outcome((*state, text), team=paid, local=len(text) / 4, success=over)

    def _view(self, state: tuple[str, ...]) -> str:
        return " ".join(state)


class Counted(ScriptedSampler):
    drawn = 0

    def sample(
        self, requests: Sequence[Request], n: int, **settings: Any
    ) -> list[list[Completion]]:
        self.drawn += n * len(requests)
        return super().sample(requests, n, **settings)


def letters(_policy: str, _prompt: str, seed: int) -> str:
    return "abcdefgh"[seed % 8] * (1 + seed % 3)


def play(shape: RolloutShape, env: Any = None, **options: Any) -> list[Trajectory]:
    sampler = options.pop("sampler", None) or Counted(letters)
    tasks = options.pop("tasks", TASKS)
    arguments = {"settings": {"max_new_tokens": 8}, "seed": (7, 0), **options}
    with ThreadPoolExecutor(4) as pool:
        return RolloutEngine(env or Line(max_turns=1), sampler, pool, shape=shape, **arguments).run(
            tasks
        )


def golden() -> dict[str, Any]:
    table = json.loads((GOLDEN / "forest.json").read_text())
    (case,) = [c for c in table["cases"] if c["name"].startswith("decisions sampled")]
    return case


@pytest.mark.parametrize("name", list(SHAPES.own))
def test_a_shape_draws_as_many_completions_as_its_table_says(name: str) -> None:
    case = golden()
    n, width, table = case["inputs"]["n"], case["inputs"]["K"], case["expected"]
    # The table looks ahead from every candidate; here the chosen one is played on anyway.
    ahead = table["lookahead m"][0][0] - sum(n - 1 - at for at in range(n))
    most = {"look_ahead": ahead, "round_robin": table["round_robin f"][0][0]}
    # One copy for each agent before a decision, or for each set of them: they share what they can.
    most |= {"blanked": width * (n + n * (n - 1) // 2), "coalitions": width * (2**n - 1)}
    most["verdicts"] = table["episodes"][0]  # nobody judges here
    expected = most[name] if name in most else table[name][0]
    shape = SHAPES.load(name).of(width, "first")
    assert shape.completions(n) == expected
    sampler = Counted(lambda _policy, _prompt, seed: f"{seed % 997}")  # no two alike
    play(shape, sampler=sampler, tasks=TASKS[:1])
    assert sampler.drawn in (table["round_robin f"][0] if name == "round_robin" else [expected])


def test_round_robin_forks_at_the_place_of_another_agent_from_task_to_task() -> None:
    shape = SHAPES.load("round_robin").of(3, "first")
    places = {
        task.id: [depth for depth in range(6) if shape.plan(Move(task.id, "", depth, 3)) != Plan()]
        for task in [Task(f"q:{n}", n) for n in range(40)]
    }
    assert {tuple(depths) for depths in places.values()} == {(0,), (1,), (2,)}


FORKING = [SHAPES.load(name).of(3, "best") for name in ("fork_on_first", "round_robin", "full")]


@pytest.mark.parametrize("shape", FORKING, ids=lambda shape: type(shape).__name__)
def test_a_fork_continues_from_the_very_state_of_its_candidate(shape: RolloutShape) -> None:
    trajectories = play(shape)
    by_key = {(t.task.id, t.episode): t for t in trajectories}
    assert len(by_key) == len(trajectories)
    forks = [t for t in trajectories if t.came_from is not None]
    assert forks
    for fork in forks:
        assert fork.came_from is not None
        parent = by_key[fork.task.id, fork.came_from.episode]
        start = parent.groups[0].key.parent
        group = parent.groups[fork.came_from.depth - start]
        candidate = group.candidates[fork.came_from.candidate]
        assert candidate.chosen
        first = fork.groups[0]
        assert first.key.parent == group.key.parent + 1
        assert first.prompt == f"{group.prompt} {candidate.completion.text}"
        assert {g.key.episode for g in fork.groups} == {fork.episode}


def worth(trajectories: Sequence[Trajectory]) -> dict[tuple[str, int, int, int], float]:
    """By plain recursion over the records: what every candidate led to, itself included."""
    after: dict[tuple[str, int, int, int], Trajectory] = {}
    for t in trajectories:
        if t.came_from is not None:
            after[t.task.id, *t.came_from] = t
    values: dict[tuple[str, int, int, int], float] = {}

    def of_node(t: Trajectory, at: int) -> float:
        if at == len(t.groups):
            return 0.0
        group, total = t.groups[at], 0.0
        first = next(k for k, c in enumerate(group.candidates) if c.chosen)
        for k, candidate in enumerate(group.candidates):
            place = (t.task.id, t.episode, group.key.parent, k)
            if place in after:
                below = of_node(after[place], 0)
            else:
                below = of_node(t, at + 1) if k == first else 0.0
            values[place] = candidate.reward + below
            total += values[place]
        return total / len(group.candidates)

    for t in trajectories:
        if t.came_from is None:
            of_node(t, 0)
    return values


@pytest.mark.parametrize("ends", ["", "a"], ids=["long", "some end early"])
@pytest.mark.parametrize("shape", FORKING, ids=lambda shape: type(shape).__name__)
def test_a_return_by_a_candidate_is_the_mean_of_what_it_leads_to(
    shape: RolloutShape, ends: str
) -> None:
    trajectories = play(shape, Line(max_turns=1, ends=ends))
    expected, checked = worth(trajectories), 0
    for t in trajectories:
        for group in t.groups:
            for k, candidate in enumerate(group.candidates):
                value = group.return_by(candidate) - group.earlier
                place = (t.task.id, t.episode, group.key.parent, k)
                assert value == pytest.approx(expected[place])
                checked += 1
    assert checked > 30


def test_the_return_of_a_path_is_what_all_its_rewards_add_up_to() -> None:
    trajectories = play(FORKING[2])
    by_key = {(t.task.id, t.episode): t for t in trajectories}
    for t in trajectories:
        total, here, until = 0.0, t, 99
        while True:
            start = here.groups[0].key.parent
            kept = [g for g in here.groups if g.key.parent < until]
            total += sum(g.chosen.reward for g in kept)
            if here.came_from is None:
                break
            origin = here.came_from
            here = by_key[here.task.id, origin.episode]
            start = here.groups[0].key.parent
            total += here.groups[origin.depth - start].candidates[origin.candidate].reward
            until = origin.depth
        assert sum(t.returns.values()) == pytest.approx(total)


@pytest.mark.parametrize("shape", FORKING, ids=lambda shape: type(shape).__name__)
def test_a_forest_does_not_depend_on_how_batches_are_formed(shape: RolloutShape) -> None:
    expected = play(shape)
    for cohort in (1, 2):
        assert play(shape, cohort=cohort) == expected
    assert play(shape, sampler=Counted(letters, continuous=True)) == expected


def test_episodes_that_continue_from_equal_texts_have_environments_of_their_own() -> None:
    stepped: list[Line] = []

    class Noted(Line):
        def branch(self, replies: Sequence[str], *more: Any) -> Any:
            stepped.append(self)
            return super().branch(replies, *more)

    play(
        SHAPES.load("fork_on_first").of(3, "best"),
        Noted(max_turns=1),
        sampler=Counted(lambda *_: "a"),
        tasks=TASKS[:1],
    )
    assert len({id(env) for env in stepped}) == len(stepped) == 1 + 3 * 2


def test_rewards_at_several_steps_of_others_add_up() -> None:
    [trajectory] = play(RolloutShape(), Line(max_turns=2, share_team_reward=True), tasks=TASKS[:1])
    paid = [group.chosen.team_reward for group in trajectory.groups]
    assert len(set(paid)) > 1
    late = [group.late_reward for group in trajectory.groups]
    assert late == pytest.approx([sum(paid[n + 1 : n + 3]) for n in range(6)])
    # The team's rewards count once for each agent, which has a return of its own.
    assert not trajectory.cooperative
    local = sum(group.chosen.local_reward for group in trajectory.groups)
    assert sum(trajectory.returns.values()) == pytest.approx(3 * sum(paid) + local)


def test_only_policies_that_learn_fork() -> None:
    trajectories = play(Full.of(3, "best"), wide=("worker",))
    widths = defaultdict(set)
    for group in in_order(trajectories):
        widths[group.key.role].add(len(group.candidates))
    assert widths == {"planner": {1}, "worker": {3}, "judge": {1}}
    assert len(trajectories) == 3 * len(TASKS)


def test_tokens_of_a_forest_are_counted_once() -> None:
    sampler = Counted(lambda *_: "four")
    trajectories = play(FORKING[2], sampler=sampler)
    assert generated_tokens(in_order(trajectories)) == sampler.drawn * 5  # its end is a token, too


def test_the_record_of_a_fork_survives_its_file() -> None:
    for t in play(FORKING[2]):
        again = Trajectory.from_row(json.loads(json.dumps(t.row())))
        assert (again.came_from, again.returns) == (t.came_from, t.returns)
        assert [g.earlier for g in again.groups] == [g.earlier for g in t.groups]


@pytest.mark.parametrize(
    ("method", "shape"),
    [
        ("dr_mas", "fork_on_first"),
        ("turn", "round_robin"),
        ("decision", "full"),
        ("look_ahead", "full"),
        ("at_grpo", "full"),
    ],
)
def test_a_method_compares_the_candidates_of_a_forest(method: str, shape: str) -> None:
    args = {"shape": shape}
    config = resolve(ATGRPOConfig(method=method, method_args=args, num_generations=3))
    made = Method.of(config)
    groups = in_order(play(made.shape()))
    values = torch.tensor(made.advantages(groups), dtype=torch.float64)
    assert len(values) == sum(len(group.candidates) for group in groups)
    assert values.abs().sum() > 0
    assert values.sum() == pytest.approx(0.0, abs=1e-3)


def test_a_shape_that_an_estimator_cannot_compare_is_refused_with_those_that_fit() -> None:
    with pytest.raises(ValueError, match=r"at_grpo cannot compare .* episodes .* tree, full"):
        plan_run(ATGRPOConfig(env="coding", method_args={"shape": "episodes"}))
    with pytest.raises(ValueError, match=r"grpo cannot compare .* fork_on_first .* episodes"):
        plan_run(ATGRPOConfig(env="coding", method="grpo", method_args={"shape": "fork_on_first"}))
    with pytest.raises(UnknownNameError, match="did you mean 'round_robin'"):
        plan_run(ATGRPOConfig(env="coding", method_args={"shape": "roundrobin"}))


def test_a_full_tree_of_long_episodes_is_refused_before_anything_is_loaded() -> None:
    config = ATGRPOConfig(env="math", method_args={"shape": "full"}, num_generations=8)
    with pytest.raises(ValueError, match=r"8\^\d+ episodes of a task, and 4,096 are the most"):
        plan_run(config)


class Twice(RolloutShape):
    """Two candidates of the second decision."""

    def plan(self, move: Move) -> Plan:
        return Plan(2, forks=True) if move.depth == 1 else Plan()


@pytest.mark.slow
def test_a_shape_of_ones_own_is_played(tmp_path: Path) -> None:
    import pettingllms as pl

    summary = pl.train(
        env=letters_env.env,
        policies="per-role",
        method="dr_mas",
        method_args={"shape": f"{__name__}:Twice"},
        num_generations=2,
        tasks_per_step=2,
        max_steps=1,
        max_completion_length=8,
        eval_tasks=2,
        eval_steps=0,
        output_dir=tmp_path / "run",
    )
    lines = (summary.folder / "trajectories.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row.get("came_from") for row in rows[:2]] == [
        None,
        {"episode": 0, "depth": 1, "candidate": 1},
    ]


PAID = {
    (): (0.0, 0.0),
    (0,): (0.1, 0.2),
    (1,): (0.3, 0.3),
    (0, 0): (1.0, 0.0),
    (0, 1): (0.0, 0.0),
    (1, 0): (1.0, 1.0),
    (1, 1): (1.0, 1.0),
}
"""Path -> rewards of its two candidates: the table's forest, with its single candidates doubled, which
changes no mean."""


class Branching(Line):
    """Pays a reply, the number of a candidate, by the path that leads to it."""

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[str, ...]:
        return ()

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        paid = PAID[tuple(map(int, state))][int(text)]
        return Outcome((*state, text), team=paid, local=0.0, success=False)


class Numbered(Counted):
    def sample(
        self, requests: Sequence[Request], n: int, **settings: Any
    ) -> list[list[Completion]]:
        completions = super().sample(requests, n, **settings)
        return [[replace(c, text=str(k)) for k, c in enumerate(row)] for row in completions]


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_a_reward_is_discounted_for_each_decision_on_the_way_to_it(gamma: float) -> None:
    table = json.loads((GOLDEN / "forest.json").read_text())
    (case,) = [c for c in table["cases"] if c["name"] == "a forest with one root"]
    names = {1.0: "value (mean below, gamma 1)", 0.5: "value (gamma 0.5)"}
    expected = case["expected"][names[gamma]]
    config = resolve(
        ATGRPOConfig(method="look_ahead", method_args={"shape": "full"}, num_generations=2)
    )
    made = LookAhead(config, gamma=gamma)
    sampler = Numbered(lambda *_: "0")
    trajectories = play(made.shape(), Branching(max_turns=1), sampler=sampler, tasks=TASKS[:1])
    values = {
        (group.prompt, k): value
        for group in in_order(trajectories)
        for k, value in enumerate(made.values(group))
    }
    nodes = ["", "0", "1", "0 0", "0 1", "1 0"]  # prompts, in the order of the table
    for name, value in expected.items():
        node, candidate = map(int, name.split(","))
        assert values[nodes[node], candidate] == pytest.approx(value, abs=1e-6)


def test_a_probe_discounts_as_the_episode_does() -> None:
    config = resolve(ATGRPOConfig(method="look_ahead", num_generations=2, branch="first"))
    made = LookAhead(config, gamma=0.5)
    sampler = Numbered(lambda *_: "0")
    trajectories = play(made.shape(), Branching(max_turns=1), sampler=sampler, tasks=TASKS[:1])
    values = made.values(trajectories[0].groups[0])
    # The episode: 0.5 of the mean of (0.1 + half of the mean of 1 and 0) and (0.2 + half of 0).
    assert values == pytest.approx([0.5 * (0.35 + 0.2) / 2, 0.5 * (0.3 + 0.5 * 1.0)])
