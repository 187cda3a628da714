"""`Estimator`: the interface of everything that turns rewards into advantages."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar

from pettingllms.errors import ConfigError, NonFiniteError
from pettingllms.rollout.episode import AnyEnv
from pettingllms.rollout.shapes import SHAPES, RolloutShape
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.estimators import ESTIMATORS
from pettingllms.trainers.estimators.needs import check_needs
from pettingllms.trainers.plugins import Plugin, plugin_of
from pettingllms.types import Advantage, Group


class Estimator(Plugin, ABC):
    """Turns the rewards of a rollout into advantages.

    A subclass may take keyword arguments of its own after `config`: `estimator_args` holds them.

    Args:
        config: resolved settings of the run.
    """

    setting, registry = "estimator", ESTIMATORS
    own = ("advantages",)
    tree: ClassVar[bool] = False
    """What it compares: K candidates of one prompt (a tree), or else K episodes of a task."""
    shapes: ClassVar[tuple[str, ...]] = ()
    """Names of the rollout shapes that it can work with, the default first; by `tree` if empty."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What it needs of an environment: words of `pettingllms.trainers.estimators.needs`."""
    least: ClassVar[int] = 2
    """The smallest K (`num_generations`) that it can work with."""

    compares: str = "return"
    """What it compares: sums over an episode ("return"), or over what is left of one ("to_go"), or "reward"."""
    frozen_base: ClassVar[bool] = False
    """Whether it reads the base model as it was before training, which full policies do not keep."""

    def shape(self) -> RolloutShape:
        """Returns the shape of a task's rollout: `shape` of the settings, or the default.

        Raises:
            ConfigError: a shape that the estimator cannot work with; one of one's own always can.
            UnknownNameError: no shape of that name.
        """
        fitting = self.shapes or (("tree",) if self.tree else ("episodes",))
        name = self.config.shape or fitting[0]
        made = SHAPES.load(name)
        # A shape of another package may sample what the estimator needs, which nobody can know
        # here.
        if name in SHAPES.own and name not in fitting:
            raise ConfigError(
                f"estimator {self.config.estimator} cannot compare what shape {name} samples; it "
                f"takes {', '.join(fitting)}"
            )
        if not (isinstance(made, type) and issubclass(made, RolloutShape)):
            raise ConfigError(f"shape {name!r} must be a subclass of RolloutShape, got {made!r}")
        return made.of(self.config.num_generations, self.config.branch)

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

    def checked(self, groups: Sequence[Group]) -> list[Advantage]:
        """Returns `advantages` as Python's numbers, one entry for each candidate.

        Raises:
            ConfigError: `advantages` returned something else.
            NonFiniteError: a number is infinite or NaN.
        """
        found: Any = self.advantages(groups)
        counts = [len(c.completion.token_ids) for group in groups for c in group.candidates]
        said = f"the estimator {type(self).__qualname__} returned"
        if not isinstance(found, list | tuple):
            raise ConfigError(
                f"{said} a {type(found).__name__}; `advantages` must return a list (of a tensor: `.tolist()`)"
            )
        if len(found) != len(counts):
            raise ConfigError(f"{said} {len(found)} advantages for {len(counts)} candidates")
        return [_numbers(*pair, said) for pair in zip(found, counts, strict=True)]


def _numbers(value: Any, tokens: int, said: str) -> Advantage:
    each = value if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(number, Real) for number in each):
        raise ConfigError(
            f"{said} {value!r:.80} as an advantage; it must be a number, or a tuple of one for each token"
        )
    if each is value and len(each) != tokens:
        raise ConfigError(f"{said} {len(each)} numbers for a completion of {tokens} tokens")
    if not all(map(math.isfinite, each)):
        raise NonFiniteError(f"{said} the advantage {value!r:.80}; look for extreme rewards")
    return tuple(map(float, each)) if each is value else float(value)


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
        ConfigError: it is no `Estimator`, does not take an argument of `estimator_args`, needs more
            generations, another shape, or something that `env` does not have.
        UnknownNameError: no estimator or shape of that name.
    """
    found = plugin_of(Estimator, config, given)  # type: ignore[type-abstract]
    if config.num_generations < found.least:
        raise ConfigError(
            f"num_generations must be at least {found.least} for estimator {config.estimator}, got "
            f"{config.num_generations} (a group of one has no advantage)"
        )
    # Asked only for the error that it raises, before a model is loaded.
    found.shape()
    if env is not None:
        check_needs(Estimator.setting, config.estimator, found.needs, env, ESTIMATORS)
    return found
