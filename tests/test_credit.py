"""Methods of 2026 that say who earned an outcome: tables made by independent scripts, and their edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from pettingllms.envs.base import TextEnv
from pettingllms.envs.records import Outcome
from pettingllms.errors import ConfigError, GroupError
from pettingllms.rollout.trajectory import in_order
from pettingllms.session import plan_run
from pettingllms.trainers.config import ATGRPOConfig, resolve
from tests.test_estimators_golden import cases, decision, made
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
