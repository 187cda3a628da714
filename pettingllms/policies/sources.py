"""The sources of models and adapters: folders, runs, and the Hugging Face hub.

The setting `adapters` has one of these forms:

    RUN                   a run, or its folder `adapters`: a folder for every policy
    FOLDER                one adapter as PEFT saves it, which every role uses
    hub:org/name@revision either of these on the hub, downloaded or from its cache; the revision
                          and `hub:` may be left out
    coder=X,tester=Y      an adapter for each of these roles, each in one of the forms above

A role without an adapter is played by the base model in an evaluation, and starts with a fresh
adapter in training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError, safe_open

from pettingllms.data import hub
from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.models import SHIPPED, SMOLLM2
from pettingllms.names import BASE, is_gguf, is_own, model_path, pairs_of, shipped
from pettingllms.policies.weights import CONFIG_FILE, DIGEST_KEY, WEIGHTS_FILE, read_config

_HUB_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
_RUN = "config.yaml"
TEAM = "team.json"
"""Settings of a shared team, beside its adapters; `pettingllms.runs.team` reads it."""
HUB = "hub:"
"""What the name of a repository on the hub may begin with, which tells it from a folder's."""


def check_model(model: str, revision: str | None = None) -> None:
    """Refuses what is no model, before anything is loaded; asks the hub at most once.

    Raises:
        ConfigError: a run, an adapter or another folder without a model, a file, or a name that is
            neither in the hub's cache nor on the hub.
    """
    # Before the hub is asked, where no repository has such a name.
    ours = model.startswith(("embedded", "smol")) and "/" not in model
    if ours and not Path(model).exists() and shipped(model) is None and not is_gguf(model):
        hint = did_you_mean(model, (*SHIPPED, SMOLLM2))
        raise UnknownNameError(f"model {model!r} is unknown; {hint}")
    path = Path(model_path(model))
    if revision is not None and path.is_dir():
        raise ConfigError(f"revision is for models on the hub; {model} is a folder")
    if (path / "config.json").is_file():
        return
    if (path / _RUN).is_file():
        raise ConfigError(f"model {model} is a run; use its adapters with --adapters {model}")
    if (path / CONFIG_FILE).is_file():
        base = read_config(path).base_model_name_or_path
        raise ConfigError(
            f"model {model} is an adapter; give its base model, and the adapter with --adapters "
            f"{model}: --model {base}"
        )
    if path.is_dir():
        raise ConfigError(
            f"model {model} holds no model: it has no config.json; give a folder that "
            "`save_pretrained` has written"
        )
    if path.is_file():
        raise ConfigError(
            f"model {model} is a file; give the folder of a transformers model, or its hub id"
        )
    try:
        if isinstance(try_to_load_from_cache(model, "config.json", revision=revision), str):
            return
    except HFValidationError as error:
        raise ConfigError(
            f"model: there is no folder {model}, and it is no hub id nor an embedded model; "
            f"{did_you_mean(model, [*SHIPPED, SMOLLM2])}"
        ) from error
    _from_hub(model, revision, ["config.json"], f"model: there is no folder {model}")


def adapters_in(folder: Path) -> Path:
    """Returns the folder of the adapters: `adapters` in a run, or `folder` itself.

    Raises:
        ConfigError: there is no such folder, or the run has not saved any.
    """
    if not folder.is_dir():
        raise ConfigError(f"adapters: there is no folder {folder}; give a run, or its adapters/")
    if (folder / "adapters").is_dir():
        return folder / "adapters"
    if (folder / _RUN).is_file():
        raise ConfigError(
            f"the run {folder} has no adapters yet: it ended before its first checkpoint; continue "
            f"it with pettingllms-train --resume {folder}"
        )
    return folder


def located_adapters(spec: str) -> str:
    """The setting `adapters` with absolute paths of folders that are on this machine.

    Raises:
        ConfigError: a folder that does not exist, or an adapter that the hub does not hand out.
    """
    if is_folder(spec) or "=" not in spec:
        return str(_located(spec))
    return ",".join(f"{role}={_located(source, role)}" for role, source in _pairs(spec).items())


def adapter_folders(spec: str | None, roles_to_policies: Mapping[str, str]) -> dict[str, Path]:
    """Policy -> the folder of its adapter, of a setting as `located_adapters` returns it.

    Raises:
        ConfigError: a policy without an adapter, or with two.
        UnknownNameError: a role that does not act.
    """
    if spec is None:
        return {}
    policies = list(filter(is_own, dict.fromkeys(roles_to_policies.values())))
    if not is_folder(spec):
        return _of_roles(_pairs(spec), roles_to_policies)
    if (Path(spec) / CONFIG_FILE).is_file():
        return dict.fromkeys(policies, Path(spec))
    available = sorted(path.name for path in Path(spec).iterdir() if path.is_dir())
    for role, policy in roles_to_policies.items():
        if policy not in available and is_own(policy):
            raise ConfigError(
                f"{spec} has no adapter for the policy {policy!r}; it has "
                f"{', '.join(available) or 'none'}; choose the policy of {role!r} with --policies, for "
                f"example {','.join(f'{name}={(available or [policy])[0]}' for name in roles_to_policies)}"
            )
    return {policy: Path(spec) / policy for policy in policies}


def is_folder(spec: str) -> bool:
    """Returns whether the setting is one folder, and not pairs of roles and folders."""
    return Path(spec).is_dir()


def is_adapter(spec: str) -> bool:
    """Returns whether the setting is one adapter for all roles."""
    return (Path(spec) / CONFIG_FILE).is_file()


def check_base(folder: Path, model: str) -> None:
    """Compares the base model that an adapter names with `model`.

    An adapter of this package carries a digest of its base, which is compared when it is loaded.

    Raises:
        ConfigError: it was trained on another model, or is no LoRA adapter that can be read.
    """
    theirs = read_config(folder).base_model_name_or_path
    try:
        with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
            has_digest = DIGEST_KEY in (file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{folder / WEIGHTS_FILE} cannot be read: {error}; an adapter in another format is "
            "converted by PeftModel.from_pretrained and save_pretrained"
        ) from error
    # Another program wrote it. Only the last part is compared, because one base has many paths and
    # mirrors.
    if not has_digest and Path(str(theirs)).name.lower() != Path(model).name.lower():
        raise ConfigError(
            f"the adapter in {folder} was trained on the base model {str(theirs)!r}, not on "
            f"{model!r}; choose it with --model {theirs}, or correct base_model_name_or_path in "
            f"{CONFIG_FILE} if they are the same"
        )


def _of_roles(
    pairs: Mapping[str, Path | str], roles_to_policies: Mapping[str, str]
) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for role, folder in pairs.items():
        if role not in roles_to_policies:
            hint = did_you_mean(role, roles_to_policies)
            raise UnknownNameError(f"adapters names the unknown role {role!r}; {hint}")
        policy = roles_to_policies[role]
        if not is_own(policy) or folders.setdefault(policy, Path(folder)) != Path(folder):
            frozen = "the base model" if policy == BASE else "a model behind an API"
            whose = "another role's, too" if is_own(policy) else frozen
            raise ConfigError(
                f"adapters gives {role!r} an adapter of its own, but its policy {policy!r} is "
                f"{whose}; leave out --policies, or name a policy for each role"
            )
    return folders


def _pairs(spec: str) -> dict[str, str]:
    """Role -> folder or hub id."""
    hint = "; write coder=FOLDER,tester=FOLDER, or give one folder for all roles"
    return pairs_of("adapters", spec, "ROLE=FOLDER", hint)


def _located(source: str, role: str | None = None) -> Path:
    """The folder of one adapter, or of adapters by policy; of the one for `role` if given."""
    hub = _HUB_ID.fullmatch(source.removeprefix(HUB))
    if source.startswith(HUB) and not hub:
        raise ConfigError(f"adapters: {source!r} names no repository; write hub:org/name")
    # A folder that is there goes before a repository of the same name.
    if Path(source).exists() or not hub:
        folder = adapters_in(Path(source).expanduser())
    else:
        # Adapters of a whole run are a folder deep. Nothing else is downloaded: repositories may
        # hold much more.
        patterns = [
            f"{any_depth}{name}" for any_depth in ("", "*/") for name in (CONFIG_FILE, WEIGHTS_FILE)
        ] + [TEAM]
        folder = _from_hub(
            hub["name"], hub["revision"], patterns, f"adapters: there is no folder {source}"
        )
    # The source is a run or its adapters, where per-role policies have the names of their roles.
    if role is not None and not (folder / CONFIG_FILE).is_file():
        folder = folder / role
    if role is not None and not folder.is_dir():
        raise ConfigError(f"adapters: {source} has no adapter for the role {role!r}")
    # Absolute, because a run may be resumed from another working directory.
    return folder.resolve()


def _from_hub(name: str, revision: str | None, patterns: Sequence[str], otherwise: str) -> Path:
    """The files of a repository that fit `patterns`, downloaded or from the cache.

    Raises:
        ConfigError: they cannot be had; `otherwise` says what else the name is not.
    """
    # Asked first, with a short timeout: the client itself waits without end for a hub that never
    # answers.
    alone = not hub.hub_answers()
    try:
        folder = snapshot_download(
            name, revision=revision, allow_patterns=list(patterns), local_files_only=alone
        )
        return Path(folder)
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = lines[0].partition(". ")[0].rstrip(".").removeprefix("Got: ")
        if alone:
            reason = hub.silence()
        raise ConfigError(
            f"{otherwise}, and the Hugging Face hub did not hand out {name!r} ({reason}); check "
            "the name and the network, or give the path of a downloaded copy"
        ) from error
