"""Methods of 2026 that say who earned an outcome: tables made by independent scripts, and their edges."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pettingllms as pl
from pettingllms.assembly import plan_run
from pettingllms.envs.base import TextEnv
from pettingllms.envs.records import Outcome
from pettingllms.errors import ConfigError, GroupError
from pettingllms.methods.counterfactual import outcome_without, shapley
from pettingllms.rollout.shapes import SHAPES, Episodes
from pettingllms.rollout.trajectory import Overlong, Trajectory, Without, in_order
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import check_method, solved
from pettingllms.trainers.metrics import rollout_metrics
from pettingllms.types import Group, Task
from tests import letters_env, tic_tac_toe_env, toy_env
from tests.test_estimators_golden import by_episode, cases, decision, made, played
from tests.test_forest import TASKS, Counted, Numbered, play
from tests.tiny_lm import save_tiny

torch.set_num_threads(1)


class Leaves(TextEnv):
    """A chain whose agents are paid once, at the end, by the numbers of all replies."""

    metadata = {"name": "leaves_v0", "render_modes": []}  # noqa: RUF012 - PettingZoo's
    default_turns = 1

    def __init__(self, *, outcomes: Mapping[str, float], agents: int, **kwargs: Any) -> None:
        self.outcomes, self.count = dict(outcomes), agents
        super().__init__(roles=("one", "two", "three")[:agents], **kwargs)

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[str, ...]:
        return ()

    def _text(self, state: tuple[str, ...], agent: str) -> str:
        return ",".join(state)

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        after = (*state, text)
        paid = self.outcomes[",".join(after)] if len(after) == self.count else 0.0
        return Outcome(after, team=paid, local=0.0, success=paid == 1.0)

    def _view(self, state: tuple[str, ...]) -> str:
        return ",".join(state)


# C3


@pytest.mark.parametrize("name", list(cases("c3")))
def test_c3_gives_the_advantages_of_the_table(name: str) -> None:
    case = cases("c3")[name]
    inputs = case["inputs"]
    method = made("c3", num_generations=inputs["K"])
    env = Leaves(outcomes=inputs["outcomes"], agents=inputs["agents"])
    groups = in_order(play(method.shape(), env, sampler=Numbered(lambda *_: "0"), tasks=TASKS[:1]))
    places = [
        ",".join(filter(None, (group.prompt, str(k))))
        for group in groups
        for k in range(len(group.candidates))
    ]
    expected = case["expected"]["advantage"]
    advantages = dict(zip(places, method.advantages(groups), strict=True))
    assert advantages == pytest.approx(expected, abs=1e-6)
    # A full tree has every completion once.
    assert len(places) == len(expected)


def test_c3_is_not_scaled_unless_it_is_asked_for() -> None:
    group = decision(0.0, 0.0, 0.1)
    assert made("c3").advantages([group]) == pytest.approx([-0.05, -0.05, 0.1])
    scaled = made("c3", scale_rewards="group").advantages([group])
    assert scaled == pytest.approx(made("look_ahead").advantages([group]), abs=1e-3)


def test_c3_refuses_a_prompt_with_one_candidate() -> None:
    with pytest.raises(GroupError, match="has one candidate"):
        made("c3").advantages([decision(1.0)])
    with pytest.raises(ConfigError, match="at least 2 for method c3, got 1"):
        made("c3", num_generations=1)


def test_c3_refuses_trees_that_are_too_large_before_a_model_is_loaded() -> None:
    with pytest.raises(ConfigError, match="lower num_generations"):
        plan_run(ATGRPOConfig(env="math", method="c3"))
    config = ATGRPOConfig(env="coding", method="c3", env_args={"max_turns": 1})
    assert plan_run(config).config.num_generations == 3
    assert resolve(config).scale_rewards == "none"


# MARSHAL


@pytest.mark.parametrize("name", list(cases("marshal")))
def test_marshal_gives_the_advantages_of_the_table(name: str) -> None:
    case = cases("marshal")[name]
    inputs = case["inputs"]
    episodes: dict[int, list[Group]] = {}
    for episode, agent, turn, reward in inputs["decisions (episode, agent, turn, reward)"]:
        decisions = episodes.setdefault(episode, [])
        decisions.append(
            decision(reward, episode=episode, agent=agent, turn=turn, parent=len(decisions))
        )
    groups = played(episodes, cooperative=inputs["team"])
    scale = {"scale_rewards": "group"} if inputs["scale"] else {}
    method = made("marshal", method_args={"gamma": inputs["gamma"]}, **scale)
    advantages = by_episode(groups, method.advantages(groups))
    assert advantages == pytest.approx(case["expected"]["advantage"], abs=1e-6)


def test_marshal_says_which_turn_earned_where_whole_episodes_do_not() -> None:
    """A reward that was paid before a turn is no part of what the turn is worth."""
    early = [decision(1.0), decision(0.0, turn=1, parent=1)]
    late = [decision(0.0, episode=1), decision(0.0, episode=1, turn=1, parent=1)]
    groups = played({0: early, 1: late})
    first, second, *_ = by_episode(groups, made("marshal").advantages(groups))
    assert first > 0 > second
    first, second, *_ = by_episode(groups, made("dr_mas").advantages(groups))
    assert first == second > 0


def test_marshal_counts_rewards_at_the_steps_of_others() -> None:
    game = {
        n: [replace(decision(0.0, episode=n, agent="first"), late_reward=float(n))]
        for n in range(2)
    }
    groups = played(game, cooperative=False)
    assert made("marshal").advantages(groups) == pytest.approx([-0.5, 0.5])
    assert made("marshal").advantages([]) == []


# MaxRL


def ended(success: bool | None, episode: int, *rewards: float, **options: Any) -> Trajectory:
    """An episode at whose end the team had succeeded or not."""
    groups = [decision(r, episode=episode, parent=n) for n, r in enumerate(rewards)]
    (last,) = groups[-1].candidates
    info = {} if success is None else {"success": success}
    groups[-1] = replace(groups[-1], candidates=(replace(last, info=info),))
    arguments = {"early": {}, "cooperative": True, **options}
    return Trajectory.of(Task("q", 0), episode, groups, **arguments)


@pytest.mark.parametrize("name", list(cases("max_rl")))
def test_max_rl_gives_the_advantages_of_the_table(name: str) -> None:
    case = cases("max_rl")[name]
    method = made("max_rl")
    # Longer episodes and other rewards change nothing: an episode counts once, by its success.
    episodes = [
        ended(bool(r), n, *[0.3 * n] * (1 + n % 3)) for n, r in enumerate(case["inputs"]["r"])
    ]
    groups = in_order(method.credit(episodes))
    values = dict(zip([g.key.episode for g in groups], method.advantages(groups), strict=True))
    assert [values[n] for n in sorted(values)] == pytest.approx(
        case["expected"]["advantage"], abs=1e-6
    )


def test_max_rl_reads_the_teams_success_also_where_agents_have_returns_of_their_own() -> None:
    method = made("max_rl")
    episodes = [
        ended(n == 0, n, 5.0, -5.0, cooperative=False, early={"other": 3.0}) for n in range(4)
    ]
    credited = method.credit(episodes)
    assert [sum(trajectory.returns.values()) for trajectory in credited] == [1.0, 0.0, 0.0, 0.0]
    groups = in_order(credited)
    assert by_episode(groups, method.advantages(groups)) == [3.0, 3.0] + [-1.0] * 6


def test_max_rl_refuses_an_environment_that_does_not_say_who_succeeded() -> None:
    with pytest.raises(ConfigError, match="infos need `success`"):
        made("max_rl").credit([ended(None, 0, 1.0)])
    with pytest.raises(ConfigError, match="needs to know whether the team succeeded"):
        plan_run(ATGRPOConfig(method="max_rl"), env=tic_tac_toe_env.env)
    with pytest.raises(ConfigError, match="both have `credit`"):
        plan_run(ATGRPOConfig(env="coding", method="shared+max_rl"))


# CCPO and SHARP


class Relayed(TextEnv):
    """A thinker that knows the answer, a rider that nobody reads, and a solver that reads the thinker."""

    metadata = {"name": "relayed_v0", "render_modes": []}  # noqa: RUF012 - PettingZoo's
    default_turns = 1

    def __init__(self, *, roles: Sequence[str] = ("thinker", "rider", "solver"), **kwargs: Any):
        super().__init__(roles=roles, **kwargs)

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[str, ...]:
        return ("ab"[seed % 2],)

    def _text(self, state: tuple[str, ...], agent: str) -> str:
        replies = dict(zip(self.possible_agents, state[1:], strict=False))
        if agent == "thinker_0":
            return state[0]
        return replies.get("thinker_0", "") if agent == "solver_0" else "ride"

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        right = agent == "solver_0" and text == state[0]
        return Outcome((*state, text), team=float(right), local=0.0, success=right)

    def _view(self, state: tuple[str, ...]) -> str:
        return " ".join(state)


def said(policy: str, prompt: str, seed: int) -> str:
    """A thinker that is right three times of four, a solver that repeats it or guesses."""
    other = {"a": "b", "b": "a"}
    if policy == "thinker":
        return other[prompt] if seed % 4 == 0 else prompt
    return prompt or "ab"[seed % 2] if policy == "solver" else "abc"[seed % 3]


BLANKED = SHAPES.load("blanked").of(4, "best")
COALITIONS = SHAPES.load("coalitions").of(4, "best")
MANY = [Task(f"q:{n}", n) for n in range(12)]


def relayed(shape: Any = BLANKED, **options: Any) -> list[Trajectory]:
    arguments = {"sampler": Counted(said), "tasks": MANY, **options}
    return play(shape, arguments.pop("env", None) or Relayed(), **arguments)


def with_ends(outcome: float, episode: int, ends: Mapping[tuple[str, ...], float]) -> Trajectory:
    """An episode of agents 0, 1, ... with an F1, and its copies without some of them."""
    agents = dict.fromkeys(agent for blanked in ends for agent in blanked)
    groups = [decision(9.0, episode=episode, agent=a, parent=n) for n, a in enumerate(agents)]
    (last,) = groups[-1].candidates
    info = {"f1": outcome, "success": outcome == 1}
    groups[-1] = replace(groups[-1], candidates=(replace(last, info=info),))
    without = [Without(tuple(blanked), value, 3) for blanked, value in ends.items()]
    return Trajectory.of(Task("q", 0), episode, groups, early={}, cooperative=True, without=without)


@pytest.mark.parametrize("name", list(cases("ccpo")))
def test_ccpo_gives_the_credits_and_advantages_of_the_table(name: str) -> None:
    case = cases("ccpo")[name]
    inputs = case["inputs"]
    method = made("ccpo", method_args={k: inputs[k] for k in ("averaged", "joint")})
    episodes = [
        with_ends(outcome, n, {(agent,): solo[n] for agent, solo in inputs["without"].items()})
        for n, outcome in enumerate(inputs["R"])
    ]
    credited = method.credit(episodes)
    groups = in_order(credited)
    values = method.advantages(groups)
    for agent, expected in case["expected"].items():
        assert [t.returns[agent] for t in credited] == pytest.approx(expected["credit"])
        of_agent = [v for g, v in zip(groups, values, strict=True) if g.key.agent == agent]
        assert of_agent == pytest.approx(expected["advantage"], abs=1e-5)


@pytest.mark.parametrize("name", list(cases("sharp")))
def test_shapley_values_are_those_of_the_table(name: str) -> None:
    case = cases("sharp")[name]
    team, v = range(case["inputs"]["agents"]), case["inputs"]["v"]

    def present(blanked: Sequence[int]) -> float:
        return float(v[",".join(str(a) for a in team if a not in blanked)])

    # As they are played: each copy blanks one more agent that acts after those it has blanked.
    subsets = [c for size in team for c in itertools.combinations(team, size + 1)]
    ends = {tuple(f"{a}" for a in c): present(c) for c in sorted(subsets)}
    trajectory = with_ends(present(()), 0, ends)
    assert [shapley(f"{a}", trajectory) for a in team] == pytest.approx(
        case["expected"]["phi"], abs=1e-6
    )
    (credited,) = made("sharp").credit([trajectory])
    expected = {f"{a}": present(()) + phi for a, phi in enumerate(case["expected"]["phi"])}
    assert credited.returns == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("name", "shape"), [("ccpo", BLANKED), ("sharp", COALITIONS)])
def test_a_free_rider_earns_no_credit(name: str, shape: Any) -> None:
    method = made(name, method_args={"joint": 0.0}, num_generations=4)
    credited = method.credit(relayed(shape))
    team = ("thinker", "rider", "solver")
    earned = {role: [t.returns[f"{role}_0"] for t in credited] for role in team}
    assert set(earned["rider"]) == {0.0}
    assert sum(earned["thinker"]) > 0.5
    assert sum(earned["solver"]) > 0.5
    groups = in_order(credited)
    values = dict(zip([g.key for g in groups], method.advantages(groups), strict=True))
    assert {v for key, v in values.items() if key.role == "rider"} == {0.0}
    assert any(v != 0 for key, v in values.items() if key.role == "thinker")
    # Whole episodes pay the rider for what the others did.
    plain = in_order(relayed(Episodes(episodes=4)))
    paid = zip(plain, made("grpo").advantages(plain), strict=True)
    assert any(v != 0 for g, v in paid if g.key.role == "rider")


@pytest.mark.slow
def test_averaged_copies_pay_a_free_rider_for_the_luck_of_others() -> None:
    method = made("ccpo", method_args={"joint": 0.0, "averaged": True})
    assert {t.returns["rider_0"] for t in method.credit(relayed())} != {0.0}


def test_copies_change_nothing_about_the_episodes_themselves() -> None:
    plain = relayed(Episodes(episodes=4))
    for shape in (BLANKED, COALITIONS):
        assert [replace(t, without=()) for t in relayed(shape)] == plain
    few = relayed(COALITIONS, tasks=MANY[:3])
    assert relayed(COALITIONS, tasks=MANY[:3], cohort=2) == few
    continuous = Counted(said, continuous=True)
    assert relayed(COALITIONS, tasks=MANY[:3], sampler=continuous) == few


def test_every_set_of_agents_is_blanked_once() -> None:
    team = Relayed().possible_agents
    sets = [c for size in (1, 2, 3) for c in itertools.combinations(team, size)]
    for t in relayed(COALITIONS):
        assert sorted(end.blanked for end in t.without) == sorted(sets)
        # The solver is read by the outcome, so that nothing succeeds without it.
        assert all(end.outcome == 0.0 for end in t.without if "solver_0" in end.blanked)
        assert sum(shapley(agent, t) for agent in t.returns) == pytest.approx(
            t.outcome - outcome_without(t, team)
        )
    assert [end.blanked for end in relayed()[0].without] == [(agent,) for agent in team]


def test_an_agent_that_does_not_learn_has_no_copy_and_no_bonus() -> None:
    trajectories = relayed(wide={"thinker"})
    assert {end.blanked for t in trajectories for end in t.without} == {("thinker_0",)}
    for paid, t in zip(made("ccpo").credit(trajectories), trajectories, strict=True):
        assert paid.returns["solver_0"] == t.outcome


def test_tokens_of_copies_are_counted_once_and_survive_the_file() -> None:
    for shape in (BLANKED, COALITIONS):
        sampler = Counted(lambda _policy, _prompt, seed: "ab"[seed % 2])
        trajectories = relayed(shape, sampler=sampler, tasks=MANY[:1])
        # Every reply has two tokens, its end included.
        assert rollout_metrics(trajectories)["num_tokens"] == 2 * sampler.drawn
        assert sampler.drawn == shape.completions(3)
        for t in trajectories:
            again = Trajectory.from_row(json.loads(json.dumps(t.row())))
            assert again.without == t.without
    assert "without" not in relayed(Episodes(episodes=1))[0].row()


class Leaving(Relayed):
    """The solver acts only where the thinker said something: a copy may lack a decision."""

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        outcome = super()._act(state, agent, text)
        return replace(outcome, done=True) if agent == "rider_0" and not state[1] else outcome


def test_a_copy_may_end_before_the_others_act() -> None:
    for t in relayed(COALITIONS, env=Leaving()):
        blanked = [end.blanked for end in t.without]
        assert ("thinker_0", "solver_0") not in blanked
        assert outcome_without(t, ["thinker_0", "solver_0"]) == 0.0
        assert outcome_without(t, ["solver_0"]) == 0.0
        assert outcome_without(t, []) == t.outcome
        assert sum(shapley(agent, t) for agent in t.returns) == pytest.approx(t.outcome)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "ccpo", "method_args": {"shape": "episodes"}}, "cannot compare what shape"),
        ({"method": "ccpo", "method_args": {"weight": -1}}, "weight must be at least 0, got -1"),
        ({"method": "ccpo", "method_args": {"averaged": 1}}, "averaged must be true or false"),
        ({"method": "sharp", "method_args": {"shape": "blanked"}}, "it takes coalitions"),
        ({"method": "debate+ccpo"}, "both have `credit`"),
        ({"method": "ccpo", "method_args": {"mean": True}}, "credits an episode once"),
        ({"method": "ccpo", "env_args": {"roles": ["thinker"]}}, "has one agent; use a team"),
        ({"method": "sharp", "env_args": {"roles": list("vwxyz")}}, "has 5 agents; 4 are the most"),
    ],
)
def test_credit_that_cannot_be_computed_is_refused_before_a_model_is_loaded(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_run(ATGRPOConfig(env=f"{__name__}:Relayed", **settings))


def test_credit_is_refused_where_nothing_says_whether_the_team_succeeded() -> None:
    for name in ("ccpo", "sharp"):
        with pytest.raises(ConfigError, match="needs to know whether the team succeeded"):
            plan_run(ATGRPOConfig(method=name), env=tic_tac_toe_env.env)
        with pytest.raises(ConfigError, match="infos need `success`"):
            made(name).credit([ended(None, 0, 1.0)])


def test_a_prompt_without_room_in_a_copy_is_no_success() -> None:
    long = {"solver": 0}
    (first, *_) = relayed(COALITIONS, longest=long, tasks=MANY[:1])
    assert first.overlong is not None
    assert first.outcome == 0.0
    ends = {end.blanked: end.outcome for end in first.without}
    # The blank prompt of the solver has room, the others end there.
    assert ends["rider_0",] == 0.0


@pytest.mark.slow
def test_a_run_learns_from_copies_and_counts_them(tmp_path: Path) -> None:
    summary = pl.train(
        env=letters_env.env,
        model=save_tiny(tmp_path / "model"),
        policies="per-role",
        method="sharp",
        method_args={"weight": 0.5},
        num_generations=2,
        tasks_per_step=2,
        max_steps=1,
        max_completion_length=8,
        eval_tasks=0,
        eval_steps=0,
        output_dir=tmp_path / "run",
    )
    lines = (summary.folder / "trajectories.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    recorded = sum(
        len(c["token_ids"]) for r in rows for d in r["decisions"] for c in d["candidates"]
    )
    metrics = map(json.loads, (summary.folder / "metrics.jsonl").read_text().splitlines())
    (step,) = (row for row in metrics if "num_tokens" in row)
    copies = sum(end["tokens"] for row in rows for end in row["without"])
    assert copies > 0
    assert step["num_tokens"] == recorded + copies
    advantages = [c["advantage"] for r in rows for d in r["decisions"] for c in d["candidates"]]
    assert None not in advantages


def test_a_first_prompt_without_room_is_no_success():
    config = resolve(ATGRPOConfig(method="max_rl"))
    overlong = Overlong("writer_0", 9000, 8000)
    for cut in (overlong, None):
        episode = Trajectory.of(Task("t:0", 0), 0, [], early={}, cooperative=True, overlong=cut)
        if cut:
            assert not solved(episode, config)
        else:
            with pytest.raises(ConfigError, match="does not say whether a task"):
                solved(episode, config)


@pytest.mark.parametrize("shape", ["fork_on_first", "round_robin", "full"])
def test_shared_rewards_are_refused_where_forks_begin_in_the_middle_of_a_round(shape):
    config = resolve(ATGRPOConfig(method="cory", method_args={"shape": shape}, num_generations=2))
    with pytest.raises(ConfigError, match="takes shape episodes, tree"):
        check_method(config, toy_env.env(), {"guesser": "guesser", "checker": "checker"})
