"""What an estimator needs of an environment, checked before a model is loaded.

An environment says what it has in PettingZoo's `metadata`; one that says nothing is taken to have it.

| need | an environment that lacks it says |
|---|---|
| `early_rewards`: completions earn something before the end of the episode | `"outcome": "late"` |
| `recurring_states`: prompts, or `info["anchor"]`, that are met again | `"states_recur": False` |
| `reward_parts`: a team reward beside a local one, or `info["parts"]` | `"reward_parts": 1` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pettingllms.envs.base import TextEnv
from pettingllms.errors import ConfigError
from pettingllms.trainers.estimators import ESTIMATORS


def _parts(env: Any) -> int:
    # Other packages' environments pay one reward, unless they say more.
    return int(env.metadata.get("reward_parts", 2 if isinstance(env.unwrapped, TextEnv) else 1))


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
}
"""Need -> whether an environment lacks it, and what then is to be said."""


def lacking(needs: tuple[str, ...], env: Any) -> list[str]:
    """Those of the needs that the environment does not have."""
    return [need for need in needs if need in NEEDS and NEEDS[need][0](env)]


def check_needs(name: str, needs: tuple[str, ...], env: Any) -> None:
    """Refuses an estimator on an environment that lacks what it needs.

    Args:
        name: of the estimator, as the settings have it.
        needs: its `Estimator.needs`.
        env: what it is to learn from.

    Raises:
        ConfigError: names both, what is lacking, and the estimators that fit.
    """
    missing = lacking(needs, env)
    if missing:
        fitting = [own for own in ESTIMATORS.own if not lacking(ESTIMATORS.load(own).needs, env)]
        raise ConfigError(
            f"estimator {name} {NEEDS[missing[0]][1].format(env=env)}; use one of "
            f"{', '.join(fitting)}"
        )
