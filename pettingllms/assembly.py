"""From settings to parts: plans a run, and builds its environment and policies, without a step of it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pettingzoo import AECEnv

from pettingllms import registry
from pettingllms.data.catalog import CATALOG
from pettingllms.data.hub import divided
from pettingllms.data.rows import as_path
from pettingllms.envs.aec import (
    BRIDGES,
    by_name,
    clone_env,
    creator_of,
    entries_of,
    made_by,
    made_with,
    parts_of,
    seats_of,
    takes_anything,
)
from pettingllms.envs.base import TextEnv
from pettingllms.envs.reward_funcs import RewardFunction, reward_functions
from pettingllms.envs.several import SeveralEnvs
from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.models import SHIPPED
from pettingllms.names import is_partner, own_names, parse_policies, shipped
from pettingllms.policies.base_model import ModelSpec
from pettingllms.policies.loading import PolicySpec, lora_config, open_base, policies_on
from pettingllms.policies.policy_set import Base, PolicySet
from pettingllms.policies.sources import adapter_folders, check_base, check_model, located_adapters
from pettingllms.rollout.episode import AnyEnv
from pettingllms.rollout.files import SAMPLES
from pettingllms.samplers.api import ApiPartners
from pettingllms.samplers.api_call import ApiSettings, read_key
from pettingllms.samplers.base import SamplerSettings
from pettingllms.samplers.replies import ReplyLog
from pettingllms.sandbox.isolation import held_by
from pettingllms.trainers.advice import check_advise
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig, resolve
from pettingllms.trainers.difficulty import SizedEnvs, sizes_of
from pettingllms.trainers.method import Method, check_method
from pettingllms.trainers.settings import (
    OF_THE_BASE,
    base_model,
    by_base,
    embedded_arguments,
    own_settings,
)
from pettingllms.trainers.trackers import tracker_names

_OWN_FILE = re.compile(r"((?:judged:)?(?:program:)?)(.*\.py)(:[^:]*)?")
_WORDS: Mapping[str, Collection[str]] = {"model": SHIPPED, "dataset": CATALOG, "api_key_file": ()}
"""Settings that may be paths -> words that mean the same whatever folders are here."""
_OF_THE_ENV = {name: getattr(ATGRPOConfig, name) for name in ("alpha", "dataset", "sandbox")}
"""Settings that are arguments of the environment -> the default."""
SHARING = "pettingllms.contrib.sharing.writing"
"""Shares adapters. The core names contrib by path alone, where a setting asks for it."""
EnvSource = str | AnyEnv | Callable[..., AnyEnv]
"""A name or path, an environment, or what makes one, given the arguments that it takes."""


def located(config: ATGRPOConfig) -> ATGRPOConfig:
    """`config` with local paths made absolute, so that a run can be resumed from anywhere.

    Adapters on the Hugging Face hub become the folder that they are downloaded to.

    Raises:
        ConfigError: there are no adapters where they should be.
    """
    changes: dict[str, Any] = _located({name: getattr(config, name) for name in _WORDS})
    changes["policy_settings"] = {
        policy: _located(values) for policy, values in config.policy_settings.items()
    }
    for name, mark in {"method": "+", "reward_funcs": ","}.items():
        pieces = [_placed(piece) for piece in (getattr(config, name) or "").split(mark)]
        # Not in a folder whose name has the mark, where a piece would be read as two.
        if mark not in "".join(pieces):
            changes[name] = mark.join(pieces) or None
    placed = [  # a weight of 2.0 is written as 2, and one of 1 not at all
        f"{name}={_placed(source)}*{weight}".removesuffix(".0").removesuffix("*1")
        for name, (source, weight) in entries_of(config.env).items()
    ]
    changes["env"] = ",".join(placed) or _placed(config.env)
    if config.adapters is not None:
        changes["adapters"] = located_adapters(config.adapters)
    return dataclasses.replace(config, **changes)


def _placed(name: str) -> str:
    """A name unchanged, or a path into a file, such as my_env.py:env, with the file's folder."""
    if match := _OWN_FILE.fullmatch(name.strip()):
        bridge, file, attribute = match.groups("")
        return f"{bridge}{Path(file).expanduser().resolve()}{attribute}"
    return name


def _located(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the paths of files and folders that are here made absolute."""
    located = dict(values)
    for name, words in _WORDS.items():
        value = values.get(name)
        if isinstance(value, str) and value not in words and Path(value).exists():
            located[name] = str(Path(value).resolve())
    return located


def spec_of(config: ATGRPOConfig, given: ModelSpec | None = None) -> ModelSpec:
    """The model that the settings name, and how it is loaded; its objects are those of `given`."""
    return ModelSpec(
        base_model(config),
        revision=config.revision,
        attn_implementation=config.attn_implementation,
        long_context=config.long_context,
        load_in_4bit=config.load_in_4bit,
        adapter_dtype=config.adapter_dtype,
        model=None if given is None else given.model,
        tokenizer=None if given is None else given.tokenizer,
    )


def build_policies(
    config: ResolvedConfig,
    roles_to_policies: Mapping[str, str],
    run: Path | None = None,
    spec: ModelSpec | None = None,
    *,
    partners: ApiPartners | None = None,
) -> PolicySet:
    """The policies that the settings describe; to be closed.

    Args:
        config: resolved settings.
        roles_to_policies: role -> policy.
        run: folder of a training run, where vLLM writes its log and adapters; without one, a
            temporary folder.
        spec: the model, in place of the one that the settings name.
        partners: ask for the roles of models behind an API; made here if None.

    Raises:
        ConfigError: a model, adapter or value that cannot be used; a policy without adapter.
    """
    adapters = check_adapters(config, roles_to_policies)
    groups = by_base(config, own_names(roles_to_policies))
    # Adapters are put into the object itself, so that no second base can be made of it.
    mine = [names for settings, names in groups if base_model(settings) == base_model(config)]
    if spec is not None and spec.model is not None and len(mine) > 1:
        raise ConfigError(
            f"policy_settings gives {', '.join(mine[1])} another copy of the model, which is an "
            f"object and there once; give it a model by name, or leave out {', '.join(OF_THE_BASE)}"
        )
    # Kept, so that engines that have started are closed if a later base cannot be loaded.
    opened: list[Base] = []
    try:
        for shared, names in groups:
            settings = {name: own_settings(config, name) for name in names}
            specs = {name: _policy_spec(settings[name], adapters.get(name)) for name in names}
            base = open_base(
                spec_of(shared, spec if base_model(shared) == base_model(config) else None),
                specs,
                full=shared.full,
                # Adapters are switched off for a KL term; full models need the base beside them.
                reference=shared.full and any(resolved.beta > 0 for resolved in settings.values()),
                dtype=None if shared.dtype == "auto" else shared.dtype,
                device=None if shared.device == "auto" else shared.device,
                seed=shared.seed,
                # Engines divide the memory of the GPU among themselves by the number of bases.
                sampler=dataclasses.replace(sampler_settings(shared, run), bases=len(groups)),
            )
            opened.append(base)
        policies = policies_on(opened, roles_to_policies, adapters)
    except BaseException:
        for base in opened:
            base.close()
        raise
    policies.partners = partners or partners_of(config, roles_to_policies, run)
    return policies


def _policy_spec(config: ResolvedConfig, saved: Path | None) -> PolicySpec:
    targets = config.lora_target_modules
    return PolicySpec(
        lora_config(
            config.lora_r,
            config.lora_alpha,
            targets if targets == "all-linear" else targets.split(","),
        ),
        config.chat_template_kwargs,
        saved,
        bool(config.gradient_checkpointing),
    )


def partners_of(
    config: ATGRPOConfig, roles_to_policies: Mapping[str, str], folder: Path | None
) -> ApiPartners | None:
    """Returns the client for the roles that models behind an API play; None without such roles.

    Args:
        config: the settings.
        roles_to_policies: role -> policy.
        folder: where the replies are kept; None keeps them in memory.

    Raises:
        ConfigError: no address, a key that cannot be read, or the client is not installed.
        RunFolderError: earlier replies that cannot be read.
    """
    if not check_partners(config, roles_to_policies):
        return None
    settings = ApiSettings(
        config.api_base or "",
        key=None if config.api_key_file is None else read_key(config.api_key_file),
        concurrency=config.api_concurrency,
        timeout=config.api_timeout,
        args=dict(config.api_args),
    )
    log = ReplyLog(None if folder is None else folder / SAMPLES, config.api_max_tokens)
    return ApiPartners(settings, roles_to_policies, log)


def check_partners(
    config: ATGRPOConfig, roles_to_policies: Mapping[str, str], *, given: bool = False
) -> bool:
    """Returns whether models behind an API play any role, after checking what asking them needs.

    Args:
        config: the settings.
        roles_to_policies: role -> policy.
        given: whether an address was given for this very run, so that some role has to need it.

    Raises:
        ConfigError: no address, an address without need, or a key that cannot be read.
    """
    partners = list(filter(is_partner, roles_to_policies.values()))
    if given and not partners:
        shown = ",".join(f"{role}={policy}" for role, policy in roles_to_policies.items())
        raise ConfigError(
            f"api_base is for policies api:MODEL, and there are none: {shown}; leave it out, or name "
            "one with --policies"
        )
    if partners and config.api_base is None:
        raise ConfigError(
            f"{partners[0]} is played by a model behind an API; give its address: --api-base "
            "http://127.0.0.1:8000/v1"
        )
    # Read now only for its errors; the key itself is read where the partners are made.
    if partners and config.api_key_file is not None:
        read_key(config.api_key_file)
    return bool(partners)


def check_adapters(config: ResolvedConfig, roles_to_policies: Mapping[str, str]) -> dict[str, Path]:
    """Policy -> the folder of its adapter, after comparing these with roles and base model.

    Raises:
        ConfigError, UnknownNameError: a policy has no adapter, or one for another base model.
    """
    folders = adapter_folders(config.adapters, roles_to_policies)
    for policy, folder in folders.items():
        if not (settings := own_settings(config, policy)).full:
            check_base(folder, base_model(settings))
    return folders


def check_bases(
    config: ResolvedConfig, roles_to_policies: Mapping[str, str], *, named: bool = True
) -> None:
    """Compares the base models with what is there, before anything is loaded.

    Args:
        config: resolved settings.
        roles_to_policies: role -> policy.
        named: whether the team's model is what the settings name, and no object.

    Raises:
        ConfigError: a name or folder that is not a model.
    """
    for settings, _ in by_base(config, own_names(roles_to_policies)):
        # Models of this package are there.
        ours = shipped(settings.model) is not None and settings.revision is None
        if not ours and (named or base_model(settings) != base_model(config)):
            check_model(str(settings.model), settings.revision)


def sampler_settings(config: ATGRPOConfig, folder: Path | None) -> SamplerSettings:
    """Which engine samples, and its settings; vLLM writes into `folder`, or a temporary one."""
    options = dict(config.vllm)
    if config.revision is not None and config.sampler == "vllm":
        options["revision"] = config.revision  # vLLM loads the base by itself
    # With workers, the processes that sample are others than the one that asks them.
    elsewhere = config.workers and config.sampler == "vllm"
    return SamplerSettings(
        "pettingllms.samplers.vllm_actors:open_engine" if elsewhere else config.sampler,
        options,
        folder=folder,
    )


def name_of_env(source: EnvSource) -> str:
    """`source` as a setting: a name or path as given, of anything else where it is defined.

    Raises:
        ConfigError: it is no environment and makes none.
    """
    if isinstance(source, str):
        return source
    if not callable(source) and not isinstance(source, AECEnv):
        raise ConfigError(
            f"env must be a name, a PettingZoo AECEnv or what makes one, got {source!r}"
        )
    maker: Any = source if callable(source) else type(source.unwrapped)
    maker = getattr(maker, "func", maker)  # of a functools.partial
    return f"{maker.__module__}:{getattr(maker, '__qualname__', type(maker).__qualname__)}"


def make_env(
    config: ATGRPOConfig, split: str, source: EnvSource | None = None, *, divide: bool = False
) -> AnyEnv:
    """The environment of a run, for one split.

    Arguments that it does not take are not passed on: a foreign environment may know no splits, no
    weight of the team reward and no prompts for the embedded model.

    Args:
        config: the settings.
        split: train, val or test.
        source: in place of `config.env`; an environment is used for every split as it is.
        divide: whether a data set without splits is divided, so that tasks are held out.

    Raises:
        UnknownNameError: no environment of that name.
        ConfigError: an argument that it does not take.
    """
    arguments: dict[str, Any] = dict(config.env_args)
    maker: Any = config.env if source is None else source
    if isinstance(maker, str):
        if entries := entries_of(maker):
            parts = {name: make_env(one_of(config, name), split, divide=divide) for name in entries}
            return SeveralEnvs(parts, entries)
        maker = creator_of(maker)
    elif not callable(maker):
        made = maker
        maker = lambda: made  # noqa: E731 - takes no arguments, so that none are passed on
    # A functools.partial of a class has its arguments, but not its attributes.
    env_class = getattr(maker, "func", maker)
    open_ended, parameters = takes_anything(maker), inspect.signature(maker).parameters
    for name, default in _OF_THE_ENV.items():
        value = getattr(config, name)
        chosen = value != default
        if chosen and name not in parameters and not open_ended:
            own = _OWN_FILE.fullmatch(config.env)
            program = f", or give --env program:{config.env} for an agent program" if own else ""
            raise ConfigError(
                f"environment {config.env!r} takes no {name}; leave --{name} out{program}"
            )
        if chosen or (name in parameters and value is not None):
            arguments.setdefault(name, value)
    if arguments.get("dataset") is not None and getattr(env_class, "divides_datasets", False):
        arguments["dataset"] = (divided if divide else as_path)(arguments["dataset"])
    if "split" in arguments and "split" in parameters:
        raise ConfigError(
            f"--env-args.split {arguments['split']!r}: training has its own splits, and --split chooses that of "
            "an evaluation; leave it out of env_args"
        )
    fitted = {"split": split, **embedded_arguments(config, env_class)}
    taken = {name: value for name, value in fitted.items() if name in parameters}
    if open_ended and "split" not in arguments:
        # What hides its arguments behind **kwargs is asked.
        with contextlib.suppress(TypeError):
            return made_by(maker, config.env, **arguments, split=split)
    return made_with(config.env, maker, {**taken, **arguments}, arguments)


def one_of(config: ATGRPOConfig, name: str) -> ATGRPOConfig:
    """Returns the settings for a run with only one of several environments.

    Raises:
        ConfigError: a setting or an argument that does not say which of them it is of.
    """
    for setting, default in _OF_THE_ENV.items():
        if (value := getattr(config, setting)) != default:
            raise ConfigError(
                f"{setting} is of one environment, and {config.env} are several; give it by name: "
                f"--env-args.{name}.{setting} {value}"
            )
    env, arguments = by_name(entries_of(config.env), config.env_args)[name]
    return dataclasses.replace(config, env=env, env_args=arguments)


def training_env(
    config: ATGRPOConfig, source: EnvSource | None, functions: Sequence[RewardFunction]
) -> AnyEnv:
    """The environment of a run's training tasks, with one for each size that is drawn.

    Raises:
        ConfigError: an argument that it does not take, or sizes that it cannot have.
    """

    def made(arguments: Mapping[str, Any]) -> AnyEnv:
        changed = dataclasses.replace(config, env_args={**config.env_args, **arguments})
        return with_rewards(make_env(changed, "train", source, divide=True), functions)

    env = made({})
    if not config.difficulty_pools:
        return env
    if isinstance(env.unwrapped, SeveralEnvs):
        raise ConfigError(
            f"difficulty_pools draw tasks of one environment, and {config.env} are several; leave them out"
        )
    sizes = {name: made(arguments) for name, arguments in sizes_of(config).items()}
    if sizes and getattr(env.unwrapped, "num_tasks", None) is not None:
        raise ConfigError(
            "difficulty_pools: rows of a data set have the size that they have; give --difficulty-pools.rows true"
        )
    for name, sized in sizes.items():
        if sized.possible_agents != env.possible_agents:
            raise ConfigError(f"difficulty_pools: the team of {config.env} with {name} is another")
    if sizes:
        inner: Any = env.unwrapped
        inner.drawn_sizes = SizedEnvs(sizes)
    return env


def with_rewards(env: AnyEnv, functions: Sequence[RewardFunction]) -> AnyEnv:
    """A copy of an environment, or with no functions itself, that pays what they add.

    Raises:
        ConfigError: it is no `TextEnv`.
    """
    if not functions:
        return env
    # A copy, because an environment object also scores held-out tasks, without these rewards.
    twin = clone_env(env)
    for part in parts_of(twin):
        if not isinstance(inner := part.unwrapped, TextEnv):
            raise ConfigError(
                f"reward_funcs are for environments that are a TextEnv; {inner} is a "
                f"{type(inner).__name__}, so let it pay the rewards itself"
            )
        inner.reward_funcs = tuple(functions)
    outer: Any = twin.unwrapped  # the container of several, which rollouts ask
    outer.reward_funcs = tuple(functions)
    return twin


def isolation_of(env: AnyEnv, level: str) -> str | None:
    """Returns what isolates the programs of the agents of `env`, after requiring `level` of it.

    None for an environment that runs no programs; otherwise layers, as in
    `namespaces+landlock+seccomp`, or the reason why no program can run here, for environments that
    may never run one.

    Raises:
        SandboxUnavailable: full isolation is required, and this is less.
    """
    if isinstance(several := env.unwrapped, SeveralEnvs):
        isolations = (isolation_of(env, level) for env in several.parts.values())
        return ", ".join(dict.fromkeys(layers for layers in isolations if layers)) or None
    try:
        sandbox = getattr(env.unwrapped, "sandbox", None)
        return None if sandbox is None else held_by(sandbox, level)
    except SandboxUnavailable as error:
        if level != "any":
            raise
        return f"unavailable: {error}"


def default_folder(config: ATGRPOConfig, parent: Path = Path("runs")) -> Path:
    """`runs/<env>-<policies>-<time>`, not yet there."""
    # In textarena:NAME the name comes after the colon, in my_env:env before it.
    bridged = config.env.partition(":")[0] in BRIDGES
    match = _OWN_FILE.fullmatch(config.env)
    source = match[2] if match else config.env
    source = source if match or bridged else source.rpartition(":")[0] or source
    last = source.removesuffix(".py").replace("/", ".").rpartition(".")[2]
    words = ["-".join(entries_of(config.env)) or last, config.policies]
    slug = "-".join("".join(c if c.isalnum() or c in "-_" else "-" for c in word) for word in words)
    name = f"{slug[:60]}-{time.strftime('%Y%m%d-%H%M%S')}"
    # Two runs may start within a second.
    taken = (parent / (name if n == 1 else f"{name}-{n}") for n in range(1, 1000))
    return next(path for path in taken if not path.exists())


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """A training run before any model is loaded."""

    config: ResolvedConfig
    env: AnyEnv
    """Of training."""
    roles_to_policies: Mapping[str, str]
    """Role -> policy."""
    path: Path
    """The run folder."""
    resumes: bool
    source: EnvSource | None
    """The environment, or what makes it, in place of the one that the settings name."""
    method: type[Method] | Method | None = None
    """In place of the method that the settings name."""


def plan_run(
    config: ATGRPOConfig,
    *,
    resume: Path | None = None,
    env: EnvSource | None = None,
    named: bool = True,
    reward_funcs: Sequence[RewardFunction] | None = None,
    method: type[Method] | Method | None = None,
) -> TrainPlan:
    """Resolves the settings and checks all that can be checked without a model.

    Args:
        config: the settings.
        resume: the folder of a run to continue.
        env: the environment, or what makes it, in place of the one that the settings name.
        named: whether the model is what the settings name, and no object.
        reward_funcs: in place of those that the settings name.
        method: in place of the one that the settings name.

    Raises:
        ConfigError, UnknownNameError: settings that cannot be used, among them arguments that
            the method does not take.
    """
    if env is not None:
        config = dataclasses.replace(config, env=name_of_env(env))
    if teacher := config.method_args.get("teacher"):
        # Absolute now: `runs/latest` will be this run itself, and a resumed one may be elsewhere.
        arguments = {**config.method_args, "teacher": located_adapters(str(teacher))}
        config = dataclasses.replace(config, method_args=arguments)
    settings = resolve(located(config), env)
    if settings.embedded:
        torch.set_num_threads(1)
    if reward_funcs is None and settings.reward_funcs is not None:
        reward_funcs = reward_functions(settings.reward_funcs)
    # Held-out tasks are scored by the environment alone.
    template = training_env(settings, env, reward_funcs or ())
    roles_to_policies = parse_policies(settings.policies, *seats_of(template))
    check_method(settings, template, roles_to_policies, method)
    check_bases(settings, roles_to_policies, named=named)
    check_partners(settings, roles_to_policies, given=settings.api_base is not None)
    if settings.advise:
        check_advise(settings, roles_to_policies)
    if settings.report_to != "none":
        tracker_names(settings.report_to)
    if settings.push_to_hub is not None:  # now, and not only when all is trained
        if not settings.eval_tasks:
            raise ConfigError("push_to_hub shares what was measured; give eval_tasks above 0")
        registry.resolve(f"{SHARING}:check_shareable", "command")(settings, settings.push_to_hub)
    path = resume or Path(settings.output_dir or default_folder(settings))
    return TrainPlan(settings, template, roles_to_policies, path, resume is not None, env, method)
