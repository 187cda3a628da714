"""Checks before a model is loaded whether method, environment, and team fit together.

An environment says what it has in PettingZoo's `metadata`.
One that says nothing is taken to have what nearly all have:

| need | an environment that lacks it says |
|---|---|
| `early_rewards`: completions earn something before the end of the episode | `"outcome": "late"` |
| `recurring_states`: prompts, or `info["anchor"]`, that are met again | `"states_recur": False` |
| `reward_parts`: a team reward beside a local one, or `info["parts"]` | `"reward_parts": 1` |
| `rounds`: all agents act in each turn | `"rounds": False`, or overrides `TextEnv._next_agent` |
| `success`: `info["success"]` says whether the team solved its task | `"success": False`, or is no `TextEnv` and does not say `"success": True` |
| `opponents`: agents play against each other | `"opponents": False`, or is a `TextEnv` and does not say `"opponents": True` |

and to lack what few have:

| need | an environment that has it says |
|---|---|
| `judged_replies`: `info["right"]` says of every reply whether it is right | `"judged_replies": True` |
| `cross_runs`: programs and tests that can be run on each other, `env.cross` | the roles, `"cross_runs": ("coder", "tester")` |
| `calls`: an agent that calls others, as often as it likes | its name, `"caller": "planner_0"` |
| `privileged`: what agents are not told, such as the right answer | nothing: it overrides `TextEnv._privileged`, or has a method `privileged_for(agent)` |
| `demonstrations`: a solver, whose replies can be learned from | nothing: it overrides `TextEnv._demonstrate`, or has a method `demonstration_for(agent)` |
| `judge`: an agent that says of every reply whether it is right | its name, `"judge": "judge_0"` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pettingllms.envs.base import TextEnv
from pettingllms.envs.several import longest, parts_of
from pettingllms.errors import ConfigError
from pettingllms.policies.roles import own_names, trained_policies
from pettingllms.rollout.episode import AnyEnv
from pettingllms.rollout.shapes import SHAPES
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.difficulty import Pools
from pettingllms.trainers.method import Method
from pettingllms.trainers.method_names import METHODS, PARTS
from pettingllms.trainers.per_policy import by_base, check_policy_settings, own_settings


def _parts(env: Any) -> int:
    # Other packages' environments pay one reward, unless they say more.
    return int(env.metadata.get("reward_parts", 2 if isinstance(env.unwrapped, TextEnv) else 1))


def _in_turn(env: Any) -> bool:
    return not isinstance(env, TextEnv) or type(env)._next_agent is TextEnv._next_agent


def _lacks(method: str, of_others: str) -> Callable[[Any], bool]:
    """Whether an environment overrides no `method` of `TextEnv`, or has none named `of_others`."""

    def lacks(env: Any) -> bool:
        inner = env.unwrapped
        if isinstance(inner, TextEnv):
            return getattr(type(inner), method) is getattr(TextEnv, method)
        return not hasattr(inner, of_others)

    return lacks


NEEDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "early_rewards": (
        lambda env: env.metadata.get("outcome") == "late",
        "compares what a completion earns at once, and {env} pays at the end of an episode, so that "
        "nothing would be learned",
    ),
    "recurring_states": (
        lambda env: env.metadata.get("states_recur") is False,
        "compares decisions in equal states, and states of {env} are not met again",
    ),
    "reward_parts": (
        lambda env: _parts(env) < 2,
        "compares the parts of a reward one by one, and rewards of {env} have one part",
    ),
    "judged_replies": (
        lambda env: not env.metadata.get("judged_replies"),
        "pays for right answers, and {env} does not say of every reply whether it is one",
    ),
    "cross_runs": (
        lambda env: not env.metadata.get("cross_runs"),
        "is for programs and tests that judge each other, and {env} has none (coding with a team does)",
    ),
    "rounds": (
        lambda env: not env.metadata.get("rounds", _in_turn(env.unwrapped)),
        "pays what a round earned, and agents of {env} do not act in rounds: an episode in which more of them "
        "act would earn more",
    ),
    "success": (
        lambda env: not env.metadata.get("success", isinstance(env.unwrapped, TextEnv)),
        "needs to know whether the team succeeded, and {env} does not say so "
        '("success": True in its metadata, `success` in its infos)',
    ),
    "opponents": (
        lambda env: not env.metadata.get("opponents", not isinstance(env.unwrapped, TextEnv)),
        "is for games against an opponent, and agents of {env} are one team",
    ),
    "calls": (
        lambda env: not env.metadata.get("caller"),
        "is for an agent that calls others, and {env} names none in its metadata (search does, with "
        "--env-args.topology nested)",
    ),
    "privileged": (
        _lacks("_privileged", "privileged_for"),
        "asks how likely replies are to someone who knows the solution, and {env} tells of none (coding, "
        "math, read, and search do; one of your own overrides `_privileged`)",
    ),
    "demonstrations": (
        _lacks("_demonstrate", "demonstration_for"),
        "needs a solver, and {env} has none (plan_path, sokoban, and sudoku do; one of your own overrides "
        "`_demonstrate`)",
    ),
    "judge": (
        lambda env: not env.metadata.get("judge"),
        "pays for verdicts on replies, and {env} has no judge (--env judged:NAME adds one to any)",
    ),
}
"""Need -> whether an environment lacks it, and what then is to be said."""


def lacking(needs: tuple[str, ...], env: Any) -> list[str]:
    """Those of the needs that the environment does not have."""
    return [need for need in needs if need in NEEDS and NEEDS[need][0](env)]


def check_needs(config: ResolvedConfig, method: Method, env: Any) -> None:
    """Refuses a method on an environment that lacks what it needs.

    Raises:
        ConfigError: names both, what is lacking, and the methods that fit.
    """
    missing = lacking(method.needs, env)
    if missing:
        names = [name for name in METHODS.own if name not in PARTS]
        fitting = [name for name in names if not lacking(METHODS.load(name).needs, env)]
        raise ConfigError(
            f"method {config.method} {NEEDS[missing[0]][1].format(env=env)}; use one of "
            f"{', '.join(fitting)}"
        )


def check_method(
    config: ResolvedConfig,
    env: AnyEnv,
    players: Mapping[str, str],
    method: type[Method] | Method | None = None,
) -> None:
    """Makes the method once, to refuse one that does not fit before a model is loaded.

    Raises:
        ConfigError, UnknownNameError: an argument that the method does not take, a shape that it
            cannot compare or that the environment is too long for, an environment that lacks what it
            needs, a team that it is not for, turns that no episode has, workers without shards,
            settings that a policy cannot have for itself.
    """
    if config.workers > 1 and config.tasks_per_shard is None:
        size = max(1, config.tasks_per_step // (2 * config.workers))
        raise ConfigError(
            f"workers {config.workers}: a step's {config.tasks_per_step} tasks share batches, so one "
            f"worker would play them all; give --tasks-per-shard {size}, also to the runs that are "
            "compared with this one, because it is part of the results"
        )
    # Environments of other packages may not say how long an episode can be.
    limit, _ = longest(env)
    beyond = [turn for turn in config.turns or () if limit is not None and turn >= limit]
    if limit is not None and beyond:
        raise ConfigError(
            f"train_turns: {config.env} has turns 0 to {limit - 1}, got {min(beyond)}; raise its "
            "limit with --env-args.max_turns"
        )
    made = Method.of(config, method)
    if type(made).advantages is Method.advantages:
        raise ConfigError(
            f"method {config.method} has no advantages; join it to a method that has, such as "
            f"--method {config.method}+dr_mas"
        )
    if "cross_runs" in made.needs and len(parts_of(env)) > 1:
        raise ConfigError(
            f"method {config.method} runs programs and tests of one environment, and {config.env} are several"
        )
    for single in parts_of(env):
        check_needs(config, made, single)
        made.shape().check(single)
    if config.difficulty_pools:
        if lacking(("success",), env):
            raise ConfigError(f"difficulty_pools {NEEDS['success'][1].format(env=env)}")
        Pools(config, env)  # made only for the errors that it raises
    _check_credit(config, made)
    trained = trained_policies(config.train_roles, players)
    # Asked for the first step, because a method refuses a team only when it is asked.
    made.players(0, players, trained)
    check_policy_settings(config, own_names(players), trained)
    for base, names in by_base(config, own_names(players)) if made.frozen_base else ():
        if base.full and not any(own_settings(config, name).beta for name in names):
            raise ConfigError(
                f"method {config.method} reads the base model as it was before training, which "
                f"full policies do not keep ({', '.join(names)}); leave out full, or give beta above 0"
            )


def _check_credit(config: ResolvedConfig, method: Method) -> None:
    """Refuses a comparison of credits that would prefer another than the best reply.

    Raises:
        ConfigError: it adds up what is credited to single decisions, which pays for going on; or
            compares the decisions of a credit that is paid once an episode; or does not see the
            credit; or compares candidates that are credited alike.
    """
    credits, compares, shape = method.credits, method.compares, method.shape_name
    if compares == "parts" and type(method).credit is not Method.credit:
        why = "compares the parts that the environment paid, which `credit` does not change"
    elif credits == "reward" and compares in ("return", "to_go"):
        why = "adds up what is credited to each decision, so that an episode earns by going on"
    elif credits == "whole" and compares == "to_go":
        why = "would count the credit of later rounds once for each agent, and this round once"
    elif credits == "return" and compares not in ("return", "to_go"):
        why = "compares decisions, and credits an episode once"
    elif method.credit_shapes and shape in SHAPES.own and shape not in method.credit_shapes:
        fitting = ", ".join(method.credit_shapes)
        why = f"samples {shape}, whose candidates `credit` cannot tell apart; it takes shape {fitting}"
    else:
        return
    raise ConfigError(
        f"method {config.method} {why}. Use a method that has these parts "
        "(pettingllms-train --help), or join the part to dr_mas"
    )
