"""Fields of settings dataclasses: how one becomes an option, and what it takes.

Values come from Python, YAML or a command line: `normalized` gives them one form. JSON in a text is
accepted wherever an object is.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from pettingllms.data.rows import as_path, is_table
from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.registry import names_in
from pettingllms.trainers.trl_names import advice


def check_names(given: Iterable[str], known: Sequence[str]) -> None:
    """Compares names of settings with those that there are.

    Raises:
        ConfigError: for the first unknown one, with its name here or the nearest known one.
    """
    for name in given:
        if name not in known:
            hint = advice(name, known) or did_you_mean(name, known)
            raise ConfigError(f"unknown setting {name!r}; {hint}")


def setting(group: str, default: Any, text: str, **more: Any) -> Any:
    """A dataclass field that is a command-line option.

    Args:
        group: its heading in the help.
        default: its value where none is given; `{}` for an object, which checks itself.
        text: its help.
        more: `choices`; `at_least`, `at_most`, `below` and `positive` limit a number; `why` explains a limit;
            `aliases` are other spellings of the option; `shared` makes it an option of
            `pettingllms-eval`: "run" where an evaluation takes it from the run, "default" where not.
    """
    metadata = {"group": group, "help": text, **more}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


# What training and evaluation have in common.
task_setting = partial(setting, "Task")
policies_setting = partial(setting, "Policies")
sampling_setting = partial(setting, "Sampling")


def check_values(settings: Any) -> None:
    """Compares every value of a settings dataclass with what its field takes.

    Raises:
        ConfigError: names the field, the value and what it takes.
    """
    hints = typing.get_type_hints(type(settings))
    for option in dataclasses.fields(settings):
        name, value, limits = option.name, getattr(settings, option.name), option.metadata
        if not limits:
            continue
        _check_kind(name, value, hints[name])
        if value is None:
            continue
        if (choices := limits.get("choices")) and value not in choices:
            hint = did_you_mean(str(value), choices)
            raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}; {hint}")
        low, high, why = limits.get("at_least"), limits.get("at_most"), limits.get("why", "")
        # `not >=` instead of `<`, so that NaN is refused too.
        if high is not None and not low <= value <= high:
            raise ConfigError(f"{name} must be from {low} to {high}, got {value}{why}")
        if (end := limits.get("below")) is not None and not low <= value < end:
            raise ConfigError(f"{name} must be at least {low} and below {end}, got {value}{why}")
        if low is not None and not value >= low:
            raise ConfigError(f"{name} must be at least {low}, got {value}{why}")
        if limits.get("positive") and not value > 0:
            raise ConfigError(f"{name} must be positive, got {value}{why}")


def _check_kind(name: str, value: Any, hint: Any) -> None:
    """Compares a value with the type of its field; a whole number is a number, too.

    Raises:
        ConfigError: it has another type, or is infinite or not a number.
    """
    if typing.get_origin(hint) is Mapping:
        return  # `as_object` has checked it
    kinds = typing.get_args(hint) or (hint,)
    if float in kinds and isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value}")
    fits = isinstance(value, kinds) or (float in kinds and isinstance(value, int))
    # bool is a subclass of int in Python, and True is no number of steps.
    if not fits or (isinstance(value, bool) and bool not in kinds):
        expected = next(cls for cls in kinds if cls is not type(None))
        raise ConfigError(f"{name} must be {_KINDS[expected]}, got {value!r}")


_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def normalized(field: dataclasses.Field[Any], value: Any) -> Any:
    """The value of a setting in the one form in which it is compared and saved.

    An object is a dict, also where its JSON was given; other values are as they would be typed.

    Raises:
        ConfigError: an object that JSON cannot hold.
    """
    if field.name == "env_args" and isinstance(value, Mapping):
        # Lists of dicts are JSON, and an environment of one's own may want them as they are.
        value = {key: str(as_path(v)) if is_table(v) else v for key, v in value.items()}
    if field.default_factory is dict:
        arguments = as_object(field.name, value)
        if field.name == "chat_template_kwargs" and (taken := sorted(TEMPLATE & arguments.keys())):
            raise ConfigError(f"chat_template_kwargs: {taken[0]} is set here; leave it out")
        return arguments
    return _as_text(field.name, value)


def _as_text(name: str, value: Any) -> Any:
    """The value of a setting as it would be typed: paths, lists and maps of roles as text.

    Rows of a data set become a file, and its path is the setting.
    """
    if name == "dataset" and not isinstance(value, str | None):
        value = as_path(value)
    if isinstance(value, Path):
        return str(value)
    # These have a shorter form than JSON, the one that is typed: coder=a,tester=b.
    if isinstance(value, Mapping) and name in ("policies", "adapters", "members"):
        return ",".join(f"{role}={policy}" for role, policy in value.items())
    if isinstance(value, Mapping) and name == "sandbox":
        return json.dumps(as_object(name, value))
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return ",".join(value)
    return value


TEMPLATE = names_in(
    "conversation tools documents chat_template add_generation_prompt tokenize "
    "continue_final_message padding truncation max_length return_tensors return_dict "
    "return_assistant_tokens_mask tokenizer_kwargs"
)
"""Arguments of transformers' `apply_chat_template` itself; any other goes to the template."""


def as_object(name: str, value: Any) -> dict[str, Any]:
    """A copy of an object that the setting `name` holds, or of its JSON; empty for None.

    Raises:
        ConfigError: it is not a JSON object.
    """
    if value is None:
        return {}
    try:
        text = json.dumps(dict(value)) if isinstance(value, Mapping) else value
        # Python's reader would take NaN and Infinity, and make infinity of 1e999, none of which is
        # JSON.
        read = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{name} must be a JSON object, got {value!r}: {error}") from error
    if not isinstance(read, dict):
        raise ConfigError(f"{name} must be a JSON object, got {value!r}")
    return read


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is beyond the numbers of this machine")
    return value
