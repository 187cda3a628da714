"""Estimators against tables made by independent scripts, and what holds for all of them."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from pettingllms.errors import ConfigError, NonFiniteError
from pettingllms.methods import gdpo
from pettingllms.rollout.trajectory import Trajectory, in_order
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import Method
from pettingllms.trainers.method_names import METHODS
from pettingllms.types import Candidate, Completion, Group, GroupKey, Task

torch.set_num_threads(1)
GOLDEN = Path(__file__).parent / "golden"


def cases(name: str) -> dict[str, dict[str, Any]]:
    table = json.loads((GOLDEN / f"{name}.json").read_text())
    return {case["name"]: case for case in table["cases"]}


def made(name: str, **settings: Any) -> Any:
    return Method.of(resolve(ATGRPOConfig(method=name, **settings)))


def decision(
    *rewards: float,
    task: str = "q",
    episode: int = 0,
    agent: str = "planner",
    turn: int = 0,
    parent: int = 0,
    anchor: str = "",
    parts: Sequence[Sequence[float]] = (),
) -> Group:
    prompt = (1, 2)
    candidates = tuple(
        Candidate(
            Completion(prompt, (3 + k,), (-0.5,), "", truncated=False, version=0),
            reward,
            team_reward=parts[k][0] if parts else reward,
            local_reward=parts[k][1] if parts else 0.0,
            chosen=k == 0,
        )
        for k, reward in enumerate(rewards)
    )
    key = GroupKey(task, episode, agent, agent, turn, parent, anchor)
    return Group(key, "p", "", prompt, candidates)


def played(episodes: dict[int, list[Group]], *, cooperative: bool = True) -> list[Group]:
    return in_order(
        [
            Trajectory.of(Task("q", 0), number, groups, early={}, cooperative=cooperative)
            for number, groups in episodes.items()
        ]
    )


def by_episode(groups: list[Group], values: list[float]) -> list[float]:
    ahead = sorted(range(len(groups)), key=lambda i: (groups[i].key.episode, groups[i].key.parent))
    return [values[i] for i in ahead]


ROWS = {
    "grpo, every decision one member (today's row `grpo`)": "decision",
    "grpo, every episode one member (Dr. MAS's and MATPO's baseline; proposed row `episode`)": "grpo",
    "agent (Dr. MAS): all invocations of the agent are members": "dr_mas",
    "turn": "turn",
}


@pytest.mark.parametrize("name", ROWS)
def test_groupings_give_the_advantages_of_the_table(name: str) -> None:
    case = cases("groups")[name]
    returns = {int(k): v for k, v in case["inputs"]["returns"].items()}
    episodes: dict[int, list[Group]] = {number: [] for number in returns}
    for episode, agent, turn, _ in case["inputs"]["decisions (episode, agent, turn, reward)"]:
        decisions = episodes[episode]
        # The first decision is paid the episode's return, so that returns are those of the table.
        reward = returns[episode] if not decisions else 0.0
        decisions.append(
            decision(reward, episode=episode, agent=agent, turn=turn, parent=len(decisions))
        )
    groups = played(episodes)
    advantages = by_episode(groups, made(ROWS[name]).advantages(groups))
    assert advantages == pytest.approx(case["expected"]["expected"], abs=1e-6)


@pytest.mark.parametrize("name", list(cases("gigpo")))
def test_gigpo_gives_the_advantages_of_the_table(name: str) -> None:
    case = cases("gigpo")[name]
    inputs = case["inputs"]
    episodes = {
        number: [
            decision(reward, episode=number, turn=at, parent=at, anchor=state)
            for at, (state, reward) in enumerate(zip(*episode, strict=True))
        ]
        for number, episode in enumerate(
            inputs.get("episodes (anchor states, rewards)") or inputs["episodes"]
        )
    }
    groups = played(episodes)
    scale = "none" if "mode mean" in name else "group"
    advantages = made("gigpo", scale_rewards=scale, method_args={"gamma": 0.95}).advantages(groups)
    expected = case["expected"].get("expected", case["expected"])["advantage"]
    assert by_episode(groups, advantages) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", list(cases("gdpo")))
def test_gdpo_gives_the_advantages_of_the_table(name: str) -> None:
    case = cases("gdpo")[name]
    parts = case["inputs"]["parts"]
    keys = case["inputs"]["groups"]
    groups = [
        decision(*map(sum, chosen), parts=chosen, episode=number)
        for number, key in enumerate(dict.fromkeys(keys))
        if (chosen := [components for components, k in zip(parts, keys, strict=True) if k == key])
    ]
    advantages = made("gdpo").advantages(groups)
    assert advantages == pytest.approx(case["expected"]["advantage"], abs=1e-6)


@pytest.mark.parametrize("name", list(cases("rae")))
def test_rae_gives_the_advantages_and_the_state_of_the_table(name: str) -> None:
    case = cases("rae")[name]
    inputs = case["inputs"]
    stream = inputs.get("stream (key, return)") or inputs["stream"]
    roles = [key.partition("/")[2] for key, _ in stream]
    episodes: dict[int, list[Group]] = {}
    number = 0
    for at, (role, (_, reward)) in enumerate(zip(roles, stream, strict=True)):
        if any(group.key.agent == role for group in episodes.get(number, ())):
            number += 1
        decisions = episodes.setdefault(number, [])
        decisions.append(decision(reward, episode=number, agent=role, parent=len(decisions)))
        assert at >= number
    groups = played(episodes, cooperative=False)
    estimator = made("rae", num_generations=1, env="coding")
    before = inputs.get("state before", {})
    estimator.load_state_dict(
        {"baseline": {f"coding/{key.partition('/')[2]}": value for key, value in before.items()}}
    )
    assert by_episode(groups, estimator.advantages(groups)) == pytest.approx(
        case["expected"]["advantage"], abs=1e-6
    )
    for key, value in case["expected"].get("state", {}).items():
        own_key = f"coding/{key.partition('/')[2]}"
        assert estimator.state_dict()["baseline"][own_key] == pytest.approx(value, abs=1e-6)


TREES = ("at_grpo", "gdpo")
EPISODES = ("grpo", "decision", "dr_mas", "turn", "agent_turn", "gigpo")


def random_play(seed: int, *, tree: bool, shift: float = 0.0, scale: float = 1.0) -> list[Group]:
    rng = random.Random(seed)
    episodes: dict[int, list[Group]] = {}
    for number in range(4):
        decisions = episodes.setdefault(number, [])
        for at in range(rng.choice((1, 2, 3))):
            paid = [rng.choice((0.0, 0.5, 1.0)) for _ in range(4 if tree else 1)]
            shifted = shift if tree or at == 0 else 0.0  # of an episode: its return, once
            decisions.append(
                decision(
                    *(scale * value + shifted for value in paid),
                    episode=number,
                    agent=rng.choice(("planner", "worker")),
                    turn=at,
                    parent=at,
                    anchor=rng.choice("st"),
                )
            )
    return played(episodes)


@pytest.mark.parametrize("seed", range(5))
# GiGPO's anchors are not among them: a reward at the first decision counts in the first's rewards to go.
@pytest.mark.parametrize("name", [name for name in TREES + EPISODES if name != "gigpo"])
def test_a_reward_that_all_earn_changes_no_advantage(name: str, seed: int) -> None:
    plain = random_play(seed, tree=name in TREES)
    shifted = random_play(seed, tree=name in TREES, shift=3.0)
    assert made(name).advantages(shifted) == pytest.approx(made(name).advantages(plain), abs=1e-5)


@pytest.mark.parametrize("name", TREES + EPISODES)
def test_ten_times_the_rewards_are_nearly_the_same_advantages(name: str) -> None:
    for seed in range(5):
        plain = made(name).advantages(random_play(seed, tree=name in TREES))
        scaled = made(name).advantages(random_play(seed, tree=name in TREES, scale=10.0))
        assert scaled == pytest.approx(plain, rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("name", TREES + EPISODES)
def test_where_all_earned_the_same_every_advantage_is_exactly_0(name: str) -> None:
    tree = name in TREES
    groups = played({n: [decision(*[0.7] * (4 if tree else 1), episode=n)] for n in range(3)})
    assert set(made(name).advantages(groups)) == {0.0}


@pytest.mark.parametrize("name", [*TREES, *EPISODES, "rae"])
def test_a_reward_that_is_no_number_is_not_taken_for_agreement(name: str) -> None:
    tree = name in TREES
    paid = (float("nan"), 0.0, 1.0) if tree else (float("nan"),)
    groups = played({0: [decision(*paid)], 1: [decision(*(1.0, 0.0, 1.0)[: len(paid)], episode=1)]})
    advantages = torch.tensor(made(name).advantages(groups))
    assert not torch.isfinite(advantages).all()


def test_an_episode_counts_once_however_long_it_is() -> None:
    short = {0: [decision(1.0)], 1: [decision(0.0, episode=1)]}
    long = short | {0: [decision(1.0), *(decision(0.0, parent=n, turn=n) for n in range(1, 5))]}
    first = made("grpo").advantages(played(short))
    second = made("grpo").advantages(played(long))
    assert set(first) == set(second)
    assert set(made("decision").advantages(played(long))) != set(first)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("name", EPISODES)
def test_what_another_agent_is_paid_changes_no_advantage(name: str, scale: str) -> None:
    """Where agents have returns of their own, also on scales of their own."""

    def advantages(paid: Sequence[float]) -> list[float]:
        games = {
            n: [
                decision(float(n % 3), episode=n, agent="scout", anchor=f"{n}"),
                replace(
                    decision(points, episode=n, agent="seller", parent=1, anchor=f"{n}"), policy="q"
                ),
            ]
            for n, points in enumerate(paid)
        }
        groups = played(games, cooperative=False)
        return by_episode(groups, made(name, scale_rewards=scale).advantages(groups))[::2]

    scout = advantages([0.5] * 4)
    assert scout[0] == scout[3] < 0 < scout[2]
    assert advantages([100.0, -20.0, 0.0, 50.0]) == pytest.approx(scout, abs=1e-6)


def test_the_mean_of_an_episode_does_not_pay_for_going_on() -> None:
    stalling = [decision(0.5, parent=n, turn=n) for n in range(4)]
    groups = played({0: stalling, 1: [decision(1.0, episode=1)]})
    summed = by_episode(groups, made("grpo").advantages(groups))
    mean = by_episode(groups, made("grpo", method_args={"mean": True}).advantages(groups))
    assert summed[0] > 0 > mean[0]


def test_an_anchor_of_the_environment_takes_the_place_of_the_prompt() -> None:
    def at(group: Group, anchor: str) -> Group:
        (only,) = group.candidates
        return replace(group, candidates=(replace(only, info={"anchor": anchor}),))

    plain = {n: [decision(float(n), episode=n, anchor=f"prompt {n}")] for n in range(2)}
    named = {n: [at(group, "same") for group in groups] for n, groups in plain.items()}
    apart = made("gigpo").advantages(played(plain))
    together = made("gigpo").advantages(played(named))
    assert together == pytest.approx([2 * value for value in apart], abs=1e-5)


def test_further_parts_of_a_reward_are_compared_by_themselves() -> None:
    group = decision(1.0, 1.0, 1.0)
    assert set(made("gdpo").advantages([group])) == {0.0}
    parts = [{"parts": {"short": value}} for value in (0.0, 0.0, 0.01)]
    candidates = tuple(
        replace(c, info=info) for c, info in zip(group.candidates, parts, strict=True)
    )
    low, same, high = made("gdpo").advantages([replace(group, candidates=candidates)])
    assert low == same < 0 < high


def test_baselines_of_roles_are_kept_apart_and_in_the_checkpoint() -> None:
    game = {0: [decision(1.0, agent="first"), decision(-1.0, agent="second", parent=1)]}
    one = made("rae", num_generations=1)
    values = [value for _ in range(4) for value in one.advantages(played(game, cooperative=False))]
    resumed = made("rae", num_generations=1)
    again = resumed.advantages(played(game, cooperative=False))
    for _ in range(3):
        other = made("rae", num_generations=1)
        other.load_state_dict(json.loads(json.dumps(resumed.state_dict())))
        again += other.advantages(played(game, cooperative=False))
        resumed = other
    assert again == values
    assert all(later < earlier for earlier, later in pairwise(values[::2]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "gigpo", "method_args": {"gama": 0.9}}, "did you mean 'gamma'"),
        ({"method": "at_grpo", "method_args": {"gamma": 0.9}}, "it takes none"),
        ({"method": "gigpo", "method_args": {"gamma": 1.5}}, "at most 1, got 1.5"),
        ({"method": "look_ahead", "method_args": {"gamma": 0}}, "at most 1, got 0"),
        ({"method": "rae", "method_args": {"decay": 1.0}}, "below 1, got 1.0"),
        ({"method": "grpo", "num_generations": 1}, "at least 2 for method grpo, got 1"),
    ],
)
def test_what_an_estimator_cannot_use_is_refused_with_a_reason(settings: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Method.of(resolve(ATGRPOConfig(**settings)))


class Returning(Method):
    """Returns what it is given."""

    given: Any = None

    def advantages(self, groups: Sequence[Group]) -> Any:
        return self.given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([0.5, 0.5, 0.5], "3 advantages for 2 candidates"),
        ([0.5], "1 advantages for 2 candidates"),
        (torch.zeros(2), "a Tensor; `advantages` must return a list"),
        (iter([0.0, 0.0]), "a list_iterator; `advantages` must return a list"),
        (None, "a NoneType; `advantages` must return a list"),
        ([*torch.zeros(2)], r"tensor\(0.\) as an advantage"),
        ([None, 0.0], "None as an advantage"),
        ([(0.5, 0.5), 0.0], "2 numbers for a completion of 1 tokens"),
        ([(), 0.0], "0 numbers for a completion of 1 tokens"),
        ([0.0, float("nan")], "the advantage nan"),
        ([0.0, 1e300], r"the advantage 1e\+300"),
        ([0.0, 10**400], "the advantage 1000"),
        ([0.0, (float("inf"),)], "the advantage "),
    ],
)
def test_what_is_no_advantage_is_refused_with_the_name_of_the_estimator(
    given: Any, said: str
) -> None:
    estimator = Returning(resolve(ATGRPOConfig()))
    estimator.given = given
    with pytest.raises((ConfigError, NonFiniteError), match=f"method Returning returned {said}"):
        estimator.checked([decision(0.0, 1.0)])


def test_numbers_of_other_packages_are_as_good_as_pythons() -> None:
    estimator = Returning(resolve(ATGRPOConfig()))
    estimator.given = (np.float32(0.5), [np.int64(1)])
    advantages = estimator.checked([decision(0.0, 1.0)])
    assert json.dumps(advantages) == "[0.5, [1.0]]"


def test_rewards_at_the_steps_of_others_count_in_the_rewards_to_go() -> None:
    """GiGPO: a decision with a late reward is worth more than one without, from the same state."""
    late = {
        n: [
            replace(decision(0.0, episode=n), late_reward=float(n)),
            decision(0.0, episode=n, turn=1, parent=1),
        ]
        for n in range(2)
    }
    estimator = made("gigpo", method_args={"gamma": 0.5})
    assert estimator.to_go(played(late)) == [0.0, 1.0, 0.0, 0.0]


def test_every_estimator_says_what_it_computes() -> None:
    listed = (METHODS.load(name) for name in METHODS.own)
    assert all(method.__doc__ for method in listed)


def test_gdpo_takes_as_many_steps_as_there_are_candidates() -> None:
    def steps(count: int) -> int:
        groups = [decision(1.0, float(n % 2), episode=n) for n in range(count)]
        taken = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal taken
            taken += frame.f_code.co_filename == gdpo.__file__
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            made("gdpo").advantages(groups)
        finally:
            sys.settrace(before)
        return taken

    assert steps(400) < 5 * steps(100)
