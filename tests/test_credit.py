"""Methods of 2026 that say who earned an outcome: tables made by independent scripts, and their edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from pettingllms.envs.base import TextEnv
from pettingllms.envs.records import Outcome
from pettingllms.errors import ConfigError, GroupError
from pettingllms.rollout.trajectory import Trajectory, in_order
from pettingllms.session import plan_run
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.types import Group, Task
from tests import tic_tac_toe_env
from tests.test_estimators_golden import by_episode, cases, decision, made, played
from tests.test_forest import TASKS, Numbered, play

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
    given = case["inputs"]
    method = made("c3", num_generations=given["K"])
    env = Leaves(outcomes=given["outcomes"], agents=given["agents"])
    groups = in_order(play(method.shape(), env, sampler=Numbered(lambda *_: "0"), tasks=TASKS[:1]))
    places = [
        ",".join(filter(None, (group.prompt, str(k))))
        for group in groups
        for k in range(len(group.candidates))
    ]
    expected = case["expected"]["advantage"]
    found = dict(zip(places, method.advantages(groups), strict=True))
    assert found == pytest.approx(expected, abs=1e-6)
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
    given = case["inputs"]
    episodes: dict[int, list[Group]] = {}
    for episode, agent, turn, reward in given["decisions (episode, agent, turn, reward)"]:
        own = episodes.setdefault(episode, [])
        own.append(decision(reward, episode=episode, agent=agent, turn=turn, parent=len(own)))
    groups = played(episodes, cooperative=given["team"])
    scale = {"scale_rewards": "group"} if given["scale"] else {}
    method = made("marshal", method_args={"gamma": given["gamma"]}, **scale)
    found = by_episode(groups, method.advantages(groups))
    assert found == pytest.approx(case["expected"]["advantage"], abs=1e-6)


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
    given = {"early": {}, "cooperative": True, **options}
    return Trajectory.of(Task("q", 0), episode, groups, **given)


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
    assert [sum(each.returns.values()) for each in credited] == [1.0, 0.0, 0.0, 0.0]
    groups = in_order(credited)
    assert by_episode(groups, method.advantages(groups)) == [3.0, 3.0] + [-1.0] * 6


def test_max_rl_refuses_an_environment_that_does_not_say_who_succeeded() -> None:
    with pytest.raises(ConfigError, match="infos need `success`"):
        made("max_rl").credit([ended(None, 0, 1.0)])
    with pytest.raises(ConfigError, match="needs to know whether the team succeeded"):
        plan_run(ATGRPOConfig(method="max_rl"), env=tic_tac_toe_env.env)
    with pytest.raises(ConfigError, match="both have `credit`"):
        plan_run(ATGRPOConfig(env="coding", method="shared+max_rl"))
