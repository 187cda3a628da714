"""What settings come to: how a field becomes an option, what it takes, and the value that a run uses.

Values come from Python, YAML or a command line: `normalized` gives them one form. JSON in a text is
accepted wherever an object is. Open ones follow from model and environment, and a policy may have its own:

    policy_settings:
      judge: {model: Qwen/Qwen3-8B, full: true, learning_rate: 2.0e-6}
      tester: {lora_r: 32, beta: 0.01}

Policies whose settings name the same model, loaded in the same way, share it in memory.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pettingllms.data.rows import as_path, is_table
from pettingllms.envs.aec import creator_of, entries_of, parts_of
from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.models import DEFAULT, SMOLLM2
from pettingllms.models.gguf import fast_bfloat16
from pettingllms.names import declared_in, model_path, shipped, trained_policies
from pettingllms.registry import names_in
from pettingllms.samplers import vllm_args
from pettingllms.trainers.trl_names import advice

if TYPE_CHECKING:
    from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig


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
        if value == "":  # such as an unset shell variable
            raise ConfigError(f"{name} is empty; give a value, or leave it out")
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


# The values of open settings.

Settings = dict[str, Any]
"""Field of `ATGRPOConfig` -> its value."""
LARGE: Settings = {
    "learning_rate": 1e-4,
    "num_generations": 8,
    "tasks_per_step": 32,
    "max_steps": 200,
    "warmup_steps": 10,
    "max_completion_length": 2048,
    "tokens_per_batch": 16_384,
    "gradient_checkpointing": True,
    "num_iterations": 1,
    "silent_groups": "count",
    "epsilon_high": None,
    "eval_steps": 10,
    "eval_tasks": 100,
    "save_steps": 10,
    "temperature": 1.0,
}
EMBEDDED: Settings = LARGE | {
    "learning_rate": 5e-3,
    "tasks_per_step": 16,
    "max_steps": 100,
    "warmup_steps": 0,
    "max_completion_length": 96,
    "tokens_per_batch": 1024,
    "gradient_checkpointing": False,
    # Not TRL's mean: the published runs of the embedded models were made with it, and three seeds could
    # not tell the two apart.
    "silent_groups": "drop",
    "eval_steps": 20,
}
SMALL: Settings = LARGE | {
    "learning_rate": 2e-4,
    "tasks_per_step": 4,
    "max_steps": 60,
    "warmup_steps": 2,
    "max_completion_length": 64,
    "tokens_per_batch": 4096,
    "gradient_checkpointing": False,
    "eval_steps": 20,
    "temperature": 0.7,
}
"""Defaults for `smollm2`, which trains on a CPU in minutes. At temperature 1 its replies are twice as bad."""
LARGE_FULL = {"learning_rate": 5e-6}
TOKEN_STEPS = 1000
"""`max_steps` beside `max_tokens`: only bounds the run, and how finely the schedule is cut."""


FOLLOWING = ("learning_rate", "warmup_steps", "tokens_per_batch", "gradient_checkpointing")
"""Those that a policy with a model of its own, or whose weights are all trained, has for itself."""
DECIDING = ("model", "full", "load_in_4bit")
"""Settings of a policy that these follow from."""
OF_THE_BASE = names_in("model revision full dtype attn_implementation long_context load_in_4bit")
"""Settings of a model in memory: policies that differ in one have a model each."""
OF_THE_POLICY = ("chat_template_kwargs", "lora_r", "lora_alpha", "lora_target_modules")
"""Settings of a policy's weights and prompts that those on the same model may differ in."""
OF_THE_UPDATE = names_in(
    "learning_rate lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 "
    "max_grad_norm tokens_per_batch gradient_checkpointing loss_type "
    "importance_sampling_level epsilon epsilon_high delta beta entropy_coef"
)
"""Settings of the update, which each trained policy has for itself."""
OWN = (*OF_THE_BASE, *OF_THE_POLICY, *OF_THE_UPDATE)
"""Settings that may differ between policies."""


def open_values(config: ATGRPOConfig, env: Any = None) -> Settings:
    """The value of every setting that is open.

    `policy_settings` among them, where the model of a policy asks for another value than the team's.
    """
    values: Settings = {}
    if config.sampler == vllm_args.AUTO:
        values["sampler"] = _sampler(config)
    if config.model is None and config.embedded:
        values["model"] = _embedded_model(config, env)
        # What an environment declares for training is looked up by the name of the model, below.
        config = dataclasses.replace(config, **values)
    if (config.model, config.dtype) == (SMOLLM2, "auto") and fast_bfloat16():
        values["dtype"] = "bfloat16"
    missing = [name for name in LARGE if getattr(config, name) is None]
    defaults = preset(config, env) if missing else {}
    if config.eval_steps == 0:
        defaults["eval_tasks"] = 0  # of "no evaluation", unless tasks are asked for
    if config.max_num_gen_batches > 1 and "silent_groups" in missing:
        defaults["silent_groups"] = "drop"
    values |= {name: defaults[name] for name in missing}
    if values.get("epsilon_high", config.epsilon_high) is None:
        values["epsilon_high"] = config.clip_above
    # Values that follow from a policy's own model stand in its settings, so that a saved
    # configuration says all that was used.
    filled = {
        policy: {**_following(config, overrides, defaults, env), **overrides}
        for policy, overrides in config.policy_settings.items()
    }
    return values | {"policy_settings": filled}


def _sampler(config: ATGRPOConfig) -> str:
    """The sampler where none is chosen: vLLM if it is installed and there is an NVIDIA GPU for it.

    Not for the embedded model, which is too small to gain from it, nor for a base in 4 bits,
    which vLLM would sample from unquantized.
    """
    # Decided without an import of torch where possible: settings are read long before a model is.
    chosen = config.embedded or config.load_in_4bit or config.device not in ("auto", "cuda")
    if chosen or not vllm_args.installed():
        return "transformers"
    import torch

    return "vllm" if torch.cuda.is_available() else "transformers"


def _embedded_model(config: ATGRPOConfig, env: Any) -> str:
    """The default model of the environment.

    Raises:
        ConfigError: several environments have different ones.
    """
    models = [getattr(env_class, "embedded_model", DEFAULT) for env_class in _kinds(config, env)]
    if len(distinct := list(dict.fromkeys(models))) > 1:
        raise ConfigError(
            f"model: the environments {config.env} have different default models ({', '.join(distinct)}); "
            f"choose one for all: --model {distinct[0]}"
        )
    return str(models[0])


def embedded_arguments(config: ATGRPOConfig, kind: Any) -> Settings:
    """The arguments with which an environment fits its tasks to an embedded model or to SmolLM2."""
    return dict(_declared(config, kind)[1]) if _fitted(config) else {}


def _fitted(config: ATGRPOConfig) -> bool:
    """Returns whether environments may declare arguments and settings for this model."""
    return config.embedded or config.model == SMOLLM2


def _kinds(config: ATGRPOConfig, env: Any) -> list[Any]:
    """What has the declarations of `env`, or of all environments of the settings where it is None."""
    names = [name for name, _ in entries_of(config.env).values()] or [config.env]
    makers = [creator_of(name) for name in names] if env is None else parts_of(env)
    # A maker may be a `functools.partial` of the class that has the declarations.
    return [getattr(make, "func", make) if callable(make) else make.unwrapped for make in makers]


def _declared(
    config: ATGRPOConfig, env_class: Any, ending: str = ""
) -> tuple[str, Mapping[str, Any]]:
    """Returns the attribute that an environment declares for the model, and its value."""
    if config.model == SMOLLM2:
        return (name := f"{SMOLLM2}{ending}"), getattr(env_class, name, {})
    attribute = declared_in(f"{shipped(config.model)}{ending}")
    # An environment that declares nothing for this embedded model has what it declares for the
    # default one.
    name = attribute if hasattr(env_class, attribute) else f"{DEFAULT}{ending}"
    return name, getattr(env_class, name, {})


def _following(
    config: ATGRPOConfig, given: Mapping[str, Any], defaults: Mapping[str, Any], env: Any
) -> Settings:
    """Returns what a policy with the settings `given` has in place of the team's `defaults`."""
    deciding = {name: given[name] for name in DECIDING if name in given}
    if not deciding or not defaults:
        return {}
    try:
        values = preset(dataclasses.replace(config, **deciding), env)
    except ConfigError:
        return {}  # `check_policy_settings` says which policy it is of
    names = [name for name in FOLLOWING if name in defaults and name not in given]
    return {name: values[name] for name in names if values[name] != defaults[name]}


def preset(config: ATGRPOConfig, env: Any = None) -> Settings:
    """The values of all settings that follow from the model and the environment."""
    if _fitted(config):
        [env_class, *others] = _kinds(config, env)
        if others:
            # The longest replies, and the most steps, that any of them needs.
            presets = [preset(config, kind) for kind in (env_class, *others)]
            return {
                name: max((p[name] for p in presets if p[name] is not None), default=None)
                for name in presets[0]
            }
        declared, overrides = _declared(config, env_class, "_training")
        base = EMBEDDED if config.embedded else SMALL
        for name in overrides:
            if name not in base:
                hint = did_you_mean(name, base)
                raise ConfigError(f"{declared} of {env_class}: unknown setting {name!r}; {hint}")
        defaults = base | dict(overrides)
        if config.full:
            defaults["learning_rate"] /= 10
        if config.embedded and config.loss_type == "cispo":
            defaults["epsilon_high"] = None  # another quantity there: the largest ratio itself
    else:
        defaults = LARGE | (LARGE_FULL if config.full else {})
    return defaults if config.max_tokens is None else defaults | {"max_steps": TOKEN_STEPS}


# What a policy has in place of the team's.


def own_settings(config: ResolvedConfig, policy: str) -> ResolvedConfig:
    """The team's settings with those of the policy in their place.

    Raises:
        ConfigError: a value that cannot be used; names the policy.
    """
    overrides: Mapping[str, Any] = config.policy_settings.get(policy, {})
    if not overrides:
        return config
    # These follow from others unless they are given.
    follows: dict[str, Any] = {}
    if {"epsilon", "loss_type"} & overrides.keys():
        follows["epsilon_high"] = None
    if "model" in overrides:
        follows["revision"] = None  # the team's is one of another model
    try:
        return dataclasses.replace(config, **{**follows, **overrides})
    except ConfigError as error:
        raise ConfigError(f"policy_settings of {policy}: {error}") from error


def trained_settings(
    config: ResolvedConfig, players: Mapping[str, str]
) -> dict[str, ResolvedConfig]:
    """Trained policy -> its settings, in the order of the roles."""
    return {
        name: own_settings(config, name) for name in trained_policies(config.train_roles, players)
    }


def by_base(
    config: ResolvedConfig, policies: Sequence[str]
) -> list[tuple[ResolvedConfig, tuple[str, ...]]]:
    """The policies of each base model, with the settings of the first of them.

    Raises:
        ConfigError: settings of a policy that cannot be used.
    """
    groups: dict[tuple[Any, ...], list[str]] = {}
    settings = {policy: own_settings(config, policy) for policy in policies}
    for policy, resolved in settings.items():
        # The model counts by the folder that it is loaded from, so that two spellings of an
        # embedded model share one in memory.
        rest = (getattr(resolved, name) for name in OF_THE_BASE if name != "model")
        groups.setdefault((base_model(resolved), *rest), []).append(policy)
    return [(settings[names[0]], tuple(names)) for names in groups.values()]


def base_model(config: ATGRPOConfig) -> str:
    """Name or folder of the model that the settings name."""
    return model_path(config.model)


def common_settings(config: ResolvedConfig, policies: Sequence[str]) -> ResolvedConfig | None:
    """The settings of all policies, where they are adapters of one model with one template.

    None where they are not, so that no server of one model can hold them.
    """
    groups = by_base(config, policies)
    templates = [own_settings(config, policy).chat_template_kwargs for policy in policies]
    if len(groups) > 1 or any(one != templates[0] for one in templates) or groups[0][0].full:
        return None
    return groups[0][0]


def any_full(config: ResolvedConfig, policies: Sequence[str]) -> bool:
    """Returns whether any of the policies is a full model."""
    return any(own_settings(config, policy).full for policy in policies)


def check_policy_settings(
    config: ResolvedConfig, policies: Sequence[str], trained: Collection[str]
) -> None:
    """Refuses what cannot be a policy's own.

    Raises:
        ConfigError: a policy that plays no role, a setting that is the whole team's or of an update
            that does not happen, or a value that cannot be used.
    """
    for policy, overrides in config.policy_settings.items():
        if policy not in policies:
            raise ConfigError(
                f"policy_settings names {policy!r}, which is no policy of the team's own; "
                f"{did_you_mean(policy, policies)}"
            )
        # What follows from a model of its own stands there without anybody having given it.
        follows = FOLLOWING if overrides.keys() & {*DECIDING} else ()
        for name in overrides:
            if name not in config.__dataclass_fields__:
                raise ConfigError(
                    f"policy_settings of {policy}: unknown setting {name!r}; "
                    f"{did_you_mean(name, OWN)}"
                )
            if name not in OWN:
                raise ConfigError(
                    f"policy_settings of {policy}: {name} cannot differ between policies; "
                    f"{', '.join(OWN)} can"
                )
            if overrides[name] is None and name in (*FOLLOWING, "model"):
                raise ConfigError(f"policy_settings of {policy}: {name} has no value; give it one")
            if name in OF_THE_UPDATE and name not in follows and policy not in trained:
                raise ConfigError(
                    f"policy_settings of {policy}: {name} is of the update, and {policy} is not "
                    "trained; leave it out"
                )
        # Asked only for the error that it raises where values do not go together.
        own_settings(config, policy)
