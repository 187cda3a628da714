"""MAPoRL: the debate's rewards are those of the table, and only debates are accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pettingllms.assembly import plan_run
from pettingllms.errors import ConfigError
from pettingllms.methods.maporl import discounted, others_change, own_change
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import Method
from pettingllms.types import Group, Task
from tests.test_estimators_golden import cases, decision

NAMES = "xyz"


def transform(**arguments: float) -> Any:
    config = ATGRPOConfig(env="math", method="maporl", method_args=arguments)
    return Method.of(resolve(config))


def answer(right: Any, agent: str, turn: int, parent: int, episode: int = 0) -> Group:
    group = decision(0.25, agent=agent, turn=turn, parent=parent, episode=episode)
    (only,) = group.candidates
    return replace(group, candidates=(replace(only, info={"right": right}),))


def debate(*rounds: str, episode: int = 0) -> Trajectory:
    """Of `1` (right), `0` (wrong) and `-` (silent) for each agent in each round."""
    answers = [
        (mark == "1", NAMES[at], turn)
        for turn, marks in enumerate(rounds)
        for at, mark in enumerate(marks)
        if mark != "-"
    ]
    groups = [answer(*arguments, parent=n, episode=episode) for n, arguments in enumerate(answers)]
    return Trajectory.of(Task("q", 0), episode, groups, early={}, cooperative=True)


def paid(trajectory: Trajectory, **arguments: float) -> list[float]:
    (credited,) = transform(**arguments).credit([trajectory])
    return [group.chosen.reward for group in credited.groups]


SCORED = [case for name, case in cases("maporl").items() if name != "incentives"]


@pytest.mark.parametrize("case", SCORED, ids=lambda case: case["name"])
def test_an_answer_is_paid_for_its_score_and_those_of_later_rounds(case: dict[str, Any]) -> None:
    rounds = [
        {NAMES[at]: score for at, score in enumerate(scores) if score is not None}
        for scores in case["inputs"]["V"]
    ]
    for t, expected in enumerate(case["expected"]["R"]):
        for at, value in enumerate(expected):
            if value is not None:
                assert discounted(rounds, t, NAMES[at], 0.3) == pytest.approx(value, abs=1e-6)


INCENTIVES = cases("maporl")["incentives"]


@pytest.mark.parametrize("name", list(INCENTIVES["expected"]))
def test_a_change_of_mind_is_paid_as_in_the_table(name: str) -> None:
    weights = INCENTIVES["inputs"]["weights"]
    key = "cases (before, after, others before, others after)"
    before, after, others_before, others_after = INCENTIVES["inputs"][key][name]
    reward = others_change(after, others_before, others_after, (weights["b0"], weights["b1"]))
    if before is not None:
        reward += own_change(before, after, others_before, (weights["a0"], weights["a1"]))
    assert reward == pytest.approx(INCENTIVES["expected"][name], abs=1e-6)


def test_a_debate_is_paid_whole() -> None:
    # Wrong, then right beside two that were right; in the end all are.
    rewards = paid(debate("011", "111"), gamma=0.3)
    assert rewards[0] == pytest.approx(0.3 / 1.3)
    assert rewards[1:] == pytest.approx([1.0] * 5)
    assert paid(debate("011", "111"), gamma=0.0) == [0, 1, 1, 1, 1, 1]


def test_changes_of_mind_are_weighed_by_what_the_others_said() -> None:
    plain = paid(debate("011", "111"))
    weighed = paid(debate("011", "111"), a0=0.2, a1=0.1, b0=0.05, b1=0.3)
    gained = [now - before for now, before in zip(weighed, plain, strict=True)]
    # Of y's others, x and z, one was right before: a tie, from which nobody is turned.
    assert gained == pytest.approx([0, 0, 0, 0.1, 0, 0])
    plain = paid(debate("000", "100", "111"))
    weighed = paid(debate("000", "100", "111"), a0=0.2, a1=0.1, b0=0.05, b1=0.3)
    gained = [now - before for now, before in zip(weighed, plain, strict=True)]
    # x alone becomes right (a0), and then y and z follow (b1); y's others, x and z, were a tie.
    assert gained == pytest.approx([0, 0, 0, 0.2 + 0.3, 0, 0, 0, 0.1, 0.1])


def test_silence_is_neither_paid_nor_counted() -> None:
    assert paid(debate("01", "1-")) == pytest.approx([0.3 / 1.3, 1.0, 1.0])


def test_the_worth_of_an_answer_is_compared_and_not_the_return_of_its_episode() -> None:
    estimator = Method.of(resolve(ATGRPOConfig(env="math", method="maporl", num_generations=2)))
    played = [debate("01", "01", episode=0), debate("10", "10", episode=1)]
    groups = [
        group for trajectory in transform(gamma=0.0).credit(played) for group in trajectory.groups
    ]
    gains = torch.tensor(estimator.advantages(groups)).tolist()
    # The episodes earned the same, the answers did not.
    assert [value > 0 for value in gains] == [False, True, False, True, True, False, True, False]
    assert min(abs(value) for value in gains) > 0.7


def test_an_environment_that_does_not_judge_answers_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"maporl pays for right answers.*use one of at_grpo"):
        plan_run(ATGRPOConfig(env="sokoban", method="maporl"))
    debating = ATGRPOConfig(env="math", env_args={"reasoners": 2}, method="maporl")
    assert plan_run(debating).config.method == "maporl"


def test_a_reply_that_was_not_judged_stops_the_training_with_a_reason() -> None:
    unjudged = Trajectory.of(Task("q", 0), 0, [decision(1.0)], early={}, cooperative=True)
    with pytest.raises(ConfigError, match="infos need `right`"):
        transform().credit([unjudged])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"gamma": 2.0}, "at most 1"),
        ({"b1": -1.0}, "b1 must be at least 0"),
        ({"gama": 1.0}, "'gamma'"),
    ],
    ids=["gamma", "negative", "unknown"],
)
def test_arguments_that_maporl_cannot_use_are_refused(
    arguments: dict[str, float], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        transform(**arguments)


def test_what_is_compared_has_two_names() -> None:
    config = ATGRPOConfig(method="dr_mas", method_args={"by": "rewards"})
    with pytest.raises(ConfigError, match="did you mean 'reward'"):
        Method.of(resolve(config))
