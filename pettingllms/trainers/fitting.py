"""Checks before a model is loaded whether method, environment and team fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pettingllms.errors import ConfigError
from pettingllms.policies.roles import own_names, trained_policies
from pettingllms.rollout.episode import AnyEnv
from pettingllms.rollout.shapes import SHAPES
from pettingllms.trainers.casts.base import Cast
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.estimators.base import Estimator, estimator_of
from pettingllms.trainers.estimators.needs import check_needs
from pettingllms.trainers.per_policy import (
    by_base,
    check_policy_settings,
    own_settings,
)
from pettingllms.trainers.play import check_shards
from pettingllms.trainers.plugins import plugin_of
from pettingllms.trainers.rewards import REWARD_TRANSFORMS
from pettingllms.trainers.rewards.base import RewardTransform

Parts = Mapping[str, Any]
"""Setting -> a class or an instance: `estimator`, `reward_transform`, `cast`."""


def check_method(
    config: ResolvedConfig, env: AnyEnv, players: Mapping[str, str], parts: Parts
) -> None:
    """Makes every part of the method once, to refuse one that does not fit before a model is loaded.

    Raises:
        ConfigError, UnknownNameError: an argument that a part does not take, a shape that the
            estimator cannot compare or that the environment is too long for, an environment that
            lacks what the estimator or the reward transform needs, a cast for other teams, turns that no episode has,
            workers without shards, settings that a policy cannot have for itself.
    """
    check_shards(config)
    _check_turns(config, env)
    estimator = estimator_of(config, parts.get("estimator"), env)
    estimator.shape().check(env)
    transform = plugin_of(RewardTransform, config, parts.get("reward_transform"))
    named = RewardTransform.setting, config.reward_transform
    check_needs(*named, transform.needs, env, REWARD_TRANSFORMS)
    _check_rewards(config, estimator, transform)
    trained = trained_policies(config.train_roles, players)
    # Asked for the first step, because a cast refuses a team only when it is asked.
    plugin_of(Cast, config, parts.get("cast")).at(0, players, trained)
    check_policy_settings(config, own_names(players), trained)
    if estimator.frozen_base:
        _check_frozen_base(config, own_names(players))


def _check_rewards(
    config: ResolvedConfig, estimator: Estimator, transform: RewardTransform
) -> None:
    """Refuses a comparison of rewards that would prefer another than the best reply.

    Raises:
        ConfigError: the estimator adds up what a transform pays for single decisions, which pays for going on;
            or compares the decisions of a transform that pays once an episode; or does not see what the
            transform pays; or candidates that it pays alike.
    """
    name, compares = config.reward_transform, estimator.compares
    shape = (
        config.shape or (estimator.shapes or (("tree",) if estimator.tree else ("episodes",)))[0]
    )
    if compares == "parts" and type(transform) is not RewardTransform:
        why = "compares the parts that the environment paid, which the transform does not change"
    elif transform.compared == "reward" and compares in ("return", "to_go"):
        why = "adds up what it pays for each decision, so that an episode earns by going on"
    elif transform.compared == "whole" and compares == "to_go":
        why = "would count what later rounds pay once for each agent, and this round once"
    elif transform.compared == "return" and compares not in ("return", "to_go"):
        why = "compares decisions, and it pays an episode once"
    elif transform.shapes and shape in SHAPES.own and shape not in transform.shapes:
        why = f"samples {shape}, whose candidates it cannot tell apart; it takes shape {', '.join(transform.shapes)}"
    else:
        return
    raise ConfigError(
        f"reward_transform {name} does not go with estimator {config.estimator}, which {why}. Use the estimator of "
        f"a method that has it (pettingllms-train --help), or agent"
    )


def _check_frozen_base(config: ResolvedConfig, policies: Sequence[str]) -> None:
    """Refuses policies beside which there is no base model to read from.

    Raises:
        ConfigError: names the estimator that would read it.
    """
    for base, names in by_base(config, policies):
        if base.full and not any(own_settings(config, name).beta for name in names):
            raise ConfigError(
                f"estimator {config.estimator} reads the base model as it was before training, which "
                f"full policies do not keep ({', '.join(names)}); leave out full, or give beta above 0"
            )


def _check_turns(config: ResolvedConfig, env: AnyEnv) -> None:
    """Refuses turns that no episode has, on which nothing would be trained without a word.

    Raises:
        ConfigError: a turn of `train_turns` is not below the environment's limit.
    """
    # Environments of other packages may not say how long an episode can be.
    limit = getattr(env.unwrapped, "max_turns", None)
    if limit is None:
        return
    if beyond := sorted(turn for turn in config.turns or () if turn >= limit):
        raise ConfigError(
            f"train_turns: {config.env} has turns 0 to {limit - 1}, got {beyond[0]}; raise its "
            "limit with --env-args.max_turns"
        )
