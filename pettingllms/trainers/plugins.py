"""`Plugin`: what the parts of a method have in common, and how settings name them.

A part is named by a setting (`estimator`), and takes the arguments of another
(`estimator_args`). A name, a path `my_package.my_module:MyClass`, a class and an instance all do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.registry import Registry
from pettingllms.trainers.config import ResolvedConfig


class Plugin:
    """A part of a method.

    A subclass may take keyword arguments of its own after `config`, which the settings hold.

    Args:
        config: resolved settings of the run.
    """

    setting: ClassVar[str]
    """The setting that names it; with `_args` after it, the one that holds its arguments."""
    registry: ClassVar[Registry]
    by_task: ClassVar[bool] = False
    """Whether what it says of a task follows from that task's episodes alone, and changes nothing."""
    own: ClassVar[tuple[str, ...]] = ()
    """Methods on which `by_task` depends: a subclass that overrides one has to say it again."""
    by_decision: ClassVar[bool] = False
    """Whether what it says of a decision follows from that decision's candidates alone.

    Every subclass has to say it again, because it depends on whatever one may override.
    """

    def __init_subclass__(cls) -> None:
        # A promise of the base class is about the base class's code: who replaces that code has
        # promised nothing yet.
        if set(cls.own) & cls.__dict__.keys() and "by_task" not in cls.__dict__:
            cls.by_task = False
        cls.by_decision = cls.__dict__.get("by_decision", False)

    def __init__(self, config: ResolvedConfig) -> None:
        self.config = config

    def attach(self, env: Any, policies: Any) -> None:
        """Hands over what a part may ask beside the records; once, before the first step.

        Args:
            env: the environment, which is never stepped itself.
            policies: the `PolicySet` of the run; its weights are not the part's to change.
        """
        del env, policies

    def state_dict(self) -> dict[str, Any]:
        """Returns what it learned in earlier steps: numbers, strings, tensors and containers.

        It is part of every checkpoint.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, got {sorted(state)}")


P = TypeVar("P", bound=Plugin)


def plugin_of(kind: type[P], config: ResolvedConfig, given: type[P] | P | None = None) -> P:
    """The part that the settings name, or `given`: a class, or an instance, which gets them.

    Raises:
        ConfigError: it is no subclass of `kind`, or does not take an argument of its setting.
        UnknownNameError: nothing has that name.
    """
    name = getattr(config, kind.setting)
    found: Any = kind.registry.load(name) if given is None else given
    if isinstance(found, kind):
        # An instance may have been made with settings that were not resolved yet.
        found.config = config
        return found
    other = isinstance(found, type) and not issubclass(found, kind)
    # A function that makes the part is as good as its class.
    if callable(found) and not other:
        found = found(config, **_arguments(kind, found, config))
    if not isinstance(found, kind):
        raise ConfigError(
            f"{kind.setting} {name!r} is {found!r}; it must be a subclass of {kind.__name__}"
        )
    return found


def _arguments(
    kind: type[Plugin], made: Callable[..., object], config: ResolvedConfig
) -> dict[str, Any]:
    """The arguments in the settings, each of which the constructor names."""
    setting = f"{kind.setting}_args"
    given = config.mapping(setting)
    takes = [name for name in inspect.signature(made).parameters if name != "config"]
    for name in given:
        if name not in takes:
            hint = did_you_mean(name, takes) if takes else "it takes none"
            named = getattr(config, kind.setting)
            raise ConfigError(f"{setting}: {named} takes no argument {name!r}; {hint}")
    return given


def path_of(kind: type[Plugin], part: str | type[Plugin] | Plugin) -> str:
    """Returns the name by which settings refer to a part.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(part, str):
        return part
    own = part if isinstance(part, type) else type(part)
    if not issubclass(own, kind):
        raise ConfigError(f"{kind.setting} must be an {kind.__name__} or its name, got {part!r}")
    return f"{own.__module__}:{own.__qualname__}"
