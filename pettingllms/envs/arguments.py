"""Constructor arguments of environments: their signature, documentation, identity and checks.

An environment's constructor takes what its own `__init__` names and passes the rest of its
`**kwargs` to its base. Everything about arguments is derived from these `__init__`s: the one
signature that `help` and editors show, the check of a misspelt name, the list that
`pettingllms-envs show` prints (texts from the `Args:` sections of the docstrings), and what must
agree between a snapshot and the environment it is restored into. A subclass declares nothing.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from inspect import Parameter, Signature
from numbers import Number, Real
from typing import Any, NamedTuple, TypedDict

from pettingllms.errors import ConfigError, did_you_mean

DECLARED = frozenset({"roles", "extra_spaces"})
"""Arguments of `TextEnv` that a subclass passes itself, so that its own users cannot."""


class TextArguments(TypedDict, total=False):
    """The arguments that every subclass of `TextEnv` passes on, for type checkers and editors.

    `class MyEnv(TextEnv)` writes `def __init__(self, *, size: int = 6, **kwargs:
    Unpack[TextArguments])`. A test compares these names with those of `TextEnv.__init__`.
    """

    max_turns: int | None
    max_cycles: int | None
    alpha: float
    share_team_reward: bool
    render_mode: str | None
    split: str
    show_thinking: bool


_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Argument(NamedTuple):
    """One argument of an environment's constructor."""

    name: str
    kind: str
    """Its annotation as written; empty where there is none."""
    default: Any
    """`inspect.Parameter.empty` where a value has to be given."""
    about: str
    """Its text in the docstrings."""


def signature(kind: type) -> Signature:
    """Returns the signature of a class, with the arguments that `**kwargs` passes to its bases."""
    parameters: dict[str, Parameter] = {}
    # `inspect.signature` stops at the first `**kwargs`; this follows it through the bases.
    for depth, base in enumerate(base for base in kind.__mro__ if "__init__" in vars(base)):
        _, *declared = inspect.signature(vars(base)["__init__"]).parameters.values()
        inherited = depth > 0
        for parameter in declared:
            name = parameter.name
            if parameter.kind in _VARIADIC or (inherited and name in DECLARED):
                continue
            if inherited:
                # `**kwargs` passes it on by name only.
                parameter = parameter.replace(kind=Parameter.KEYWORD_ONLY)
            # The subclass comes first, so that its default counts where it names an argument
            # again.
            parameters.setdefault(name, parameter)
        # Without `**kwargs` nothing reaches the bases.
        if not any(p.kind is Parameter.VAR_KEYWORD for p in declared):
            break
    # `Signature` wants the kinds in their order; within a kind the sort keeps what was found
    # first.
    return Signature(sorted(parameters.values(), key=lambda parameter: parameter.kind))


def check_names(kind: Callable[..., Any], name: str, given: Iterable[str]) -> None:
    """Raises ConfigError for the first argument in `given` that `kind` does not take.

    Args:
        kind: a class or function that names all its arguments.
        name: its name in the message.
        given: names of arguments.
    """
    accepted = inspect.signature(kind).parameters
    for argument in given:
        if argument not in accepted:
            hint = did_you_mean(argument, accepted)
            # A hint that is not a question lists the known names itself.
            listed = f" It takes {', '.join(accepted)}" if hint.endswith("?") else ""
            raise ConfigError(f"{name} has no argument {argument!r}; {hint}{listed}")


def values(kind: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value of every argument of a call, defaults included, in a form to compare."""
    bound = inspect.signature(kind).bind_partial(*args, **kwargs)
    bound.apply_defaults()
    return {name: comparable(value) for name, value in bound.arguments.items()}


def comparable(value: Any) -> Any:
    """Returns a small picklable value that is equal for equal arguments.

    Lists and tuples are equal, as are a path and its text. Functions and other objects without a
    value of their own are represented by the name of their class.
    """
    if value is None or isinstance(value, str | Number):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        pairs = [(comparable(key), comparable(entry)) for key, entry in value.items()]
        # By `repr`, because keys of different types cannot be compared.
        return tuple(sorted(pairs, key=repr))
    if isinstance(value, list | tuple):
        return tuple(comparable(entry) for entry in value)
    if isinstance(value, AbstractSet):
        return tuple(sorted((comparable(entry) for entry in value), key=repr))
    # An object's address or `repr` would differ from process to process.
    named = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def described(kind: Callable[..., Any]) -> list[Argument]:
    """Returns the arguments of a class or function, each with its text in the docstrings.

    The docstrings of a class's bases count, too.
    """
    texts: dict[str, str] = {}
    # Bases first, so that what a subclass says of an argument counts.
    for base in reversed(getattr(kind, "__mro__", (kind,))):
        texts |= documented(vars(base).get("__doc__") or "")
    return [
        Argument(
            name,
            ""
            if p.annotation is Parameter.empty
            else inspect.formatannotation(p.annotation).strip("'"),
            p.default,
            texts.get(name, ""),
        )
        for name, p in inspect.signature(kind).parameters.items()
    ]


def documented(docstring: str) -> dict[str, str]:
    """Returns the entries of the `Args:` section of a docstring in Google's style."""
    # An entry may run over several lines and hold empty ones; the section ends at the margin.
    section = re.search(
        r"^Args:\n((?:[ \t]+.*\n?|\n(?=[ \t]))+)", inspect.cleandoc(docstring), re.M
    )
    if section is None:
        return {}
    # An entry is indented by four blanks, and what continues it by more.
    entries = re.split(r"^ {4}(?=\w+:)", section[1], flags=re.M)[1:]
    pairs = (entry.split(":", 1) for entry in entries)
    return {name: " ".join(text.split()) for name, text in pairs}


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """Returns `value`.

    Raises:
        ConfigError: it is not among `allowed`.
    """
    if value not in allowed:
        hint = did_you_mean(str(value), allowed)
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r}; {hint}")
    return value


def some_of(name: str, values: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...]:
    """Returns `values` in the order of `allowed`, each once.

    Raises:
        ConfigError: it is not a list, is empty, or has a value that is not among `allowed`.
    """
    # A string is a sequence as well, of letters.
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ConfigError(
            f"{name} must be a list of one or more of {', '.join(allowed)}, got {values!r}"
        )
    chosen = {one_of(f"each of {name}", value, allowed) for value in values}
    # Not in the order of the set, which differs between processes.
    return tuple(value for value in allowed if value in chosen)


def finite(name: str, value: float) -> float:
    """Returns `value` as a float.

    Raises:
        ConfigError: it is infinite or not a number.
    """
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value}")
    return float(value)


def turn_limit(max_turns: int | None, max_cycles: int | None, default: int) -> int:
    """Returns the number of turns, from whichever of its two names was given.

    Raises:
        ConfigError: both are given and differ, or the number is smaller than 1.
    """
    # PettingZoo's `max_cycles_test` passes `max_cycles`.
    # `index` takes NumPy's integers and refuses 4.0.
    limits = [operator.index(turns) for turns in (max_turns, max_cycles) if turns is not None]
    if len(set(limits)) > 1:
        raise ConfigError(
            f"max_turns ({max_turns}) and max_cycles ({max_cycles}) mean the same; give one"
        )
    limit = limits[0] if limits else default
    if limit < 1:
        raise ConfigError(f"max_turns must be at least 1, got {limit}")
    return limit


def agent_names(roles: Sequence[str]) -> list[str]:
    """Returns `<role>_0` for each role, `<role>_1` and so on where it occurs again.

    Raises:
        ConfigError: there is no role, or one is not a lower-case word.
    """
    seen: Counter[str] = Counter()
    names = []
    for role in roles:
        if not re.fullmatch("[a-z]+", role):
            raise ConfigError(f"a role must be a word of letters a-z, got {role!r}; rename it")
        names.append(f"{role}_{seen[role]}")
        seen[role] += 1
    if not names:
        raise ConfigError("roles must name at least one role, got none")
    return names
