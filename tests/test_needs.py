"""A part of a method is refused on an environment that lacks what it needs, with those that would fit."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pettingllms.assembly import plan_run
from pettingllms.envs import ENVIRONMENTS, load_env
from pettingllms.errors import ConfigError
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import NEEDS, Method, check_needs
from pettingllms.trainers.method_names import METHODS, PARTS
from tests import tic_tac_toe_env

LACKS: dict[str, tuple[dict[str, Any], str]] = {
    "early_rewards": ({"outcome": "late", "reward_parts": 2}, r"pays at the end of an episode"),
    "recurring_states": ({"states_recur": False}, r"states of .* are not met again"),
    "reward_parts": ({"reward_parts": 1}, r"have one part"),
    "judged_replies": ({"judged_replies": False}, r"does not say of every reply"),
    "cross_runs": ({"cross_runs": ()}, r"is for programs and tests that judge each other"),
    "rounds": ({"rounds": False}, r"do not act in rounds"),
    "success": ({"success": False}, r"needs to know whether the team succeeded"),
    "opponents": ({"opponents": False}, r"is for games against an opponent"),
    "calls": ({"caller": ""}, r"is for an agent that calls others"),
    "privileged": ({"tells": False}, r"tells of none"),
    "demonstrations": ({"solver": False}, r"needs a solver, and .* has none"),
    "judge": ({"judge": ""}, r"has no judge"),
}
ALL = {"reward_parts": 2, "judged_replies": True, "caller": "x", "cross_runs": ("a", "b")}
ALL |= {"success": True, "judge": "judge_0"}
"""What an environment says that lacks nothing."""


def game(**facts):
    class Lacking(tic_tac_toe_env.env):
        metadata = {**tic_tac_toe_env.env.metadata, **ALL, **facts}  # noqa: RUF012
        if facts.get("tells", True):  # in a method of its own, not in the metadata

            def privileged_for(self, agent):
                return f"{agent} should take the middle"

        if facts.get("solver", True):

            def demonstration_for(self, agent):
                return "5"

    return Lacking


@pytest.mark.slow
@pytest.mark.parametrize("need", list(NEEDS))
def test_methods_that_need_what_is_lacking_are_refused_before_a_model_is_loaded(need):
    facts, message = LACKS[need]
    refused, named = set(), ""
    names = [name for name in METHODS.own if name not in PARTS]
    for name in names:
        config = ATGRPOConfig(method=name, train_roles=None, train_turns=None)
        if name in ("malt", "c3"):  # a game of full trees may be too long
            config = replace(config, method_args={"shape": "look_ahead"})
        try:
            plan_run(config, env=game(**facts))
        except ConfigError as error:
            # Others are refused for their team, such as a game with one policy.
            if re.search(message, str(error)):
                refused.add(name)
                named = str(error)
    assert refused == {n for n in names if need in METHODS.load(n).needs}
    assert set(named.rpartition("use one of ")[2].split(", ")) == set(names) - refused


def test_gigpo_is_refused_where_states_hardly_recur_and_taken_on_boards():
    taken = set()
    for name in ("coding", "math", "plan_path", "sokoban", "sudoku"):
        assert name in ENVIRONMENTS
        config = resolve(ATGRPOConfig(method="gigpo"))
        if name in ("coding", "math"):
            with pytest.raises(
                ConfigError, match="are not met again; use one of at_grpo, look_ahead"
            ):
                check_needs(config, Method.of(config), load_env(name))
        else:
            check_needs(config, Method.of(config), load_env(name))
            taken.add(name)
    assert taken == {"plan_path", "sokoban", "sudoku"}


def test_a_method_of_self_play_is_accepted_where_the_outcome_is_late():
    config = ATGRPOConfig(method="rae")
    assert plan_run(config, env=game(outcome="late")).config.method == "rae"


@pytest.mark.parametrize(
    ("method", "arguments", "said"),
    [
        ("debate+grpo", {}, "adds up what is credited"),
        ("flow+gigpo", {}, "adds up what is credited"),
        ("debate+dr_mas", {"by": "return"}, "adds up what is credited"),
        ("root+at_grpo", {}, "credits an episode once"),
        ("root+grpo", {"mean": True}, "credits an episode once"),
        ("flow+at_grpo", {}, "samples tree, whose candidates"),
        ("shared+gigpo", {}, "later rounds once for each agent"),
        ("shared+gdpo", {}, "compares the parts"),
    ],
)
def test_a_comparison_that_would_prefer_another_than_the_best_reply_is_refused(
    method, arguments, said
):
    with pytest.raises(ConfigError, match=said):
        plan_run(ATGRPOConfig(method=method, method_args=arguments), env=game())


@pytest.mark.parametrize("part", ["debate", "flow"])
def test_what_a_decision_is_worth_is_compared_by_decision_unless_said_otherwise(part):
    config = ATGRPOConfig(method=f"{part}+dr_mas")
    assert Method.of(resolve(config)).compares == "reward"
    plan_run(replace(config, method=f"{part}+grpo", method_args={"mean": True}), env=game())
