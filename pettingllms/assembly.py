"""From the settings of a run to its parts: the environment, the policies, the place of its folder."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pettingllms.envs.foreign import load_env
from pettingllms.errors import ConfigError
from pettingllms.models import EMBEDDED
from pettingllms.policies.loading import load_policies
from pettingllms.policies.mapping import BASE
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.vllm_options import VllmSettings
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.episodes import AnyEnv


def is_embedded(config: ATGRPOConfig) -> bool:
    """Whether the run is of the model that comes with this package."""
    return config.model is None or Path(config.model).resolve() == EMBEDDED.resolve()


def located(config: ATGRPOConfig) -> ATGRPOConfig:
    """`config` with local paths made absolute, so that a run can be resumed from anywhere.

    Raises:
        ConfigError: `adapters` is no folder.
    """
    changes: dict[str, Any] = {}
    for name in ("model", "dataset", "policies", "server_key"):
        value = getattr(config, name)
        if value is not None and Path(value).exists():
            changes[name] = str(Path(value).resolve())
    if config.adapters is not None:
        changes["adapters"] = str(adapters_in(Path(config.adapters)).resolve())
    return dataclasses.replace(config, **changes)


def adapters_in(folder: Path) -> Path:
    """Where the adapters are: in the folder `adapters` of a run, or in `folder` itself.

    Raises:
        ConfigError: there is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"adapters: there is no folder {folder}; give a run, or its adapters/")
    return folder / "adapters" if (folder / "adapters").is_dir() else folder


def build_policies(
    config: ATGRPOConfig, players: Mapping[str, str], run: Path | None = None
) -> PolicySet:
    """The policies that the settings describe; to be closed.

    Args:
        config: resolved settings.
        players: role -> policy.
        run: folder of a training run, which samples as its settings say. Without one, replies
            come from transformers.

    Raises:
        ConfigError: a model, adapter or value that cannot be used; a policy without adapter.
        SamplerUnavailable: a vLLM server that should be started does not start.
    """
    adapters = None if config.adapters is None else Path(config.adapters)
    for policy in players.values():
        if adapters is not None and policy != BASE and not (adapters / policy).is_dir():
            found = sorted(path.name for path in adapters.iterdir() if path.is_dir())
            raise ConfigError(
                f"{adapters} has no adapter for the policy {policy!r}; it has "
                f"{', '.join(found) or 'none'} (policies: {config.policies})"
            )
    targets = config.lora_target_modules
    return load_policies(
        EMBEDDED if config.model is None else config.model,
        players,
        lora_r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_target_modules=targets if targets == "all-linear" else targets.split(","),
        full=config.full,
        reference=config.full and config.beta > 0,
        dtype=None if config.dtype == "auto" else config.dtype,
        device=None if config.device == "auto" else config.device,
        seed=config.seed,
        chat_template_kwargs=config.mapping("chat_template_kwargs"),
        adapters=adapters,
        vllm=None if run is None else vllm_settings(config, run),
    )


def vllm_settings(config: ATGRPOConfig, folder: Path) -> VllmSettings | None:
    """How the run samples with vLLM; None where it does not.

    Raises:
        ConfigError: the file with the server's key cannot be read.
    """
    if config.sampler == "transformers":
        return None
    key = None
    if config.server_key is not None:
        try:
            key = Path(config.server_key).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"server_key {config.server_key} cannot be read: {error}") from error
    return VllmSettings(
        config.mapping("vllm"),
        server=config.sampler == "vllm-server",
        url=config.server,
        key=key,
        timeout=config.server_timeout,
        folder=folder,
    )


def make_env(config: ATGRPOConfig, split: str, *, embedded: bool) -> AnyEnv:
    """The environment of a run, for one split.

    What it does not take is not passed on: a foreign environment may know no splits, no weight of
    the team reward and no prompts for the embedded model.

    Raises:
        UnknownNameError: no environment of that name.
        ConfigError: an argument that it does not take.
    """
    given = config.mapping("env_args")
    probe = _load(config.env, given)
    known = _parameters(type(probe.unwrapped))
    wanted: dict[str, Any] = {
        "alpha": config.alpha,
        "dataset": config.dataset,
        "sandbox": config.sandbox,
    }
    for name, value in wanted.items():
        if name not in known and value not in (None, 1.0, "embedded"):
            raise ConfigError(f"environment {config.env!r} takes no {name}; leave --{name} out")
    wanted |= {"split": split} | (
        dict(getattr(probe.unwrapped, "embedded", {})) if embedded else {}
    )
    extra = {k: v for k, v in wanted.items() if k in known and k not in given and v is not None}
    return _load(config.env, {**extra, **given}) if extra else probe


def _load(name: str, arguments: Mapping[str, Any]) -> AnyEnv:
    try:
        return load_env(name, **arguments)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise ConfigError(f"environment {name!r}: {error}; see env_args") from error


def _parameters(kind: type) -> set[str]:
    """Arguments of a class, through `**kwargs` up to its bases."""
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        names |= {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names


def default_folder(config: ATGRPOConfig, parent: Path = Path("runs")) -> Path:
    """`runs/<env>-<policies>-<time>`, not yet there."""
    words = [config.env.partition(":")[0].rpartition(".")[2] or "env", config.policies]
    slug = "-".join("".join(c if c.isalnum() or c in "-_" else "-" for c in word) for word in words)
    name = f"{slug[:60]}-{time.strftime('%Y%m%d-%H%M%S')}"
    taken = (parent / (name if n == 1 else f"{name}-{n}") for n in range(1, 1000))
    return next(path for path in taken if not path.exists())
