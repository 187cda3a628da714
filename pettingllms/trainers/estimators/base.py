"""`Estimator`: the interface of everything that turns rewards into advantages."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.rollout.engine import RolloutShape
from pettingllms.rollout.episode import AnyEnv
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.estimators import ESTIMATORS
from pettingllms.types import Advantage, Group

FIT_LATE = ("look_ahead", "grpo", "decision", "agent", "turn", "agent_turn", "gigpo", "rae")
"""Estimators that compare whole episodes, or what candidates lead to: for outcomes paid at the end."""


class Estimator(ABC):
    """Turns the rewards of a rollout into advantages.

    A subclass may take keyword arguments of its own after `config`: `estimator_args` holds them.

    Args:
        config: resolved settings of the run.
    """

    tree: ClassVar[bool] = False
    """The rollout it needs: K candidates of one prompt (a tree), or else K episodes a task."""
    least: ClassVar[int] = 2
    """The smallest K (`num_generations`) that it can work with."""

    def __init__(self, config: ResolvedConfig) -> None:
        self.config = config

    def shape(self) -> RolloutShape:
        """What the rollout samples of each task."""
        width, branch = self.config.num_generations, self.config.branch
        return (
            RolloutShape(width=width, branch=branch) if self.tree else RolloutShape(episodes=width)
        )

    @abstractmethod
    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """One advantage for each candidate, called once a step.

        Args:
            groups: the decisions of all episodes by depth, of all policies; in a tree, those of
                trained policies alone, because the others have one candidate.

        Returns:
            In the order of the groups and their candidates. A number counts for every token of the
            completion; a tuple has one number for each. Candidates of a group whose advantages
            are all 0 are left out of the loss.
        """

    def state_dict(self) -> dict[str, Any]:
        """What the estimator learned in earlier steps: numbers, strings, tensors and containers.

        It is part of every checkpoint.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, got {sorted(state)}")


def estimator_of(
    config: ResolvedConfig,
    given: type[Estimator] | Estimator | None = None,
    env: AnyEnv | None = None,
) -> Estimator:
    """The estimator that the settings name, or `given`: a class, or an instance, which gets them.

    Args:
        config: resolved settings.
        given: in place of the one that they name.
        env: what it is to learn from, where that is known.

    Raises:
        ConfigError: it is no `Estimator`, does not take an argument of `estimator_args`, needs
            more generations, or cannot learn from `env`.
        UnknownNameError: no estimator of that name.
    """
    made = ESTIMATORS.load(config.estimator) if given is None else given
    if isinstance(made, Estimator):
        made.config, found = config, made
    else:
        found = made(config, **_arguments(made, config)) if callable(made) else made
    if not isinstance(found, Estimator):
        raise ConfigError(
            f"estimator {config.estimator!r} is a {type(found).__name__}; it must be a subclass of "
            "Estimator"
        )
    if config.num_generations < found.least:
        raise ConfigError(
            f"num_generations must be at least {found.least} for estimator {config.estimator}, got "
            f"{config.num_generations} (a group of one has no advantage)"
        )
    if env is not None:
        _check_outcome(config.estimator, found, env)
    return found


def _check_outcome(name: str, estimator: Estimator, env: AnyEnv) -> None:
    """Refuses a comparison of what is earned at once, where the environment says that nothing is.

    Raises:
        ConfigError: `metadata["outcome"]` is "late", and the estimator looks at the decision alone.
    """
    shape = estimator.shape()
    if env.metadata.get("outcome") != "late" or not estimator.tree or shape.probes:
        return
    raise ConfigError(
        f"estimator {name} compares what a completion earns at once, and {env} pays at the end of "
        f"the game, so that nothing would be learned; use one of {', '.join(FIT_LATE)}, for example "
        "--estimator rae, which is made for self-play"
    )


def _arguments(made: Callable[..., object], config: ResolvedConfig) -> dict[str, Any]:
    """`estimator_args`, each of which the estimator's constructor names."""
    given = config.mapping("estimator_args")
    takes = [name for name in inspect.signature(made).parameters if name != "config"]
    for name in given:
        if name not in takes:
            hint = did_you_mean(name, takes) if takes else "it takes none"
            raise ConfigError(
                f"estimator_args: {config.estimator} takes no argument {name!r}; {hint}"
            )
    return given


def path_of(estimator: str | type[Estimator] | Estimator) -> str:
    """What settings call an estimator.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(estimator, str):
        return estimator
    kind = estimator if isinstance(estimator, type) else type(estimator)
    if not issubclass(kind, Estimator):
        raise ConfigError(f"estimator must be an Estimator or its name, got {estimator!r}")
    return f"{kind.__module__}:{kind.__qualname__}"
