"""Checks that an environment has what an estimator or a reward transform needs.

The checks run before a model is loaded. An environment says what it has in PettingZoo's `metadata`.
One that says nothing is taken to have what nearly all have:

| need | an environment that lacks it says |
|---|---|
| `early_rewards`: completions earn something before the end of the episode | `"outcome": "late"` |
| `recurring_states`: prompts, or `info["anchor"]`, that are met again | `"states_recur": False` |
| `reward_parts`: a team reward beside a local one, or `info["parts"]` | `"reward_parts": 1` |
| `rounds`: all agents act in each turn | `"rounds": False`, or overrides `TextEnv._next_agent` |

and to lack what few have:

| need | an environment that has it says |
|---|---|
| `judged_replies`: `info["right"]` says of every reply whether it is right | `"judged_replies": True` |
| `cross_runs`: programs and tests that can be run on each other, `env.cross` | the roles, `"cross_runs": ("coder", "tester")` |
| `calls`: an agent that calls others, as often as it likes | its name, `"caller": "planner_0"` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pettingllms.envs.base import TextEnv
from pettingllms.errors import ConfigError
from pettingllms.registry import Registry


def _parts(env: Any) -> int:
    # Other packages' environments pay one reward, unless they say more.
    return int(env.metadata.get("reward_parts", 2 if isinstance(env.unwrapped, TextEnv) else 1))


def _in_turn(env: Any) -> bool:
    return not isinstance(env, TextEnv) or type(env)._next_agent is TextEnv._next_agent


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
    "calls": (
        lambda env: not env.metadata.get("caller"),
        "is for an agent that calls others, and {env} names none in its metadata (debugging does, and "
        "search with --env-args.topology nested)",
    ),
}
"""Need -> whether an environment lacks it, and what then is to be said."""


def lacking(needs: tuple[str, ...], env: Any) -> list[str]:
    """Those of the needs that the environment does not have."""
    return [need for need in needs if need in NEEDS and NEEDS[need][0](env)]


def check_needs(
    setting: str, name: str, needs: tuple[str, ...], env: Any, registry: Registry
) -> None:
    """Refuses a part of a method on an environment that lacks what it needs.

    Args:
        setting: that names the part, such as `estimator`.
        name: of the part, as the settings have it.
        needs: its class's `needs`.
        env: what it is to learn from.
        registry: of parts that would do in its place.

    Raises:
        ConfigError: names both, what is lacking, and the parts that fit.
    """
    missing = lacking(needs, env)
    if missing:
        fitting = [own for own in registry.own if not lacking(registry.load(own).needs, env)]
        raise ConfigError(
            f"{setting} {name} {NEEDS[missing[0]][1].format(env=env)}; use one of "
            f"{', '.join(fitting)}"
        )
