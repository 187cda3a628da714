"""Writes what is shared of a run, into a folder or to the hub; `pettingllms.contrib.sharing` says what that is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from pettingllms.assembly import make_env
from pettingllms.contrib.sharing.card import CURVES, SharedRun, card_of, public_settings
from pettingllms.data import hub
from pettingllms.envs.aec import AnyEnv, clone_env, observe_text, parts_of
from pettingllms.envs.questions import role_prompts
from pettingllms.errors import ConfigError, PettingLLMsError, RunFolderError
from pettingllms.names import parse_policies, role_of
from pettingllms.policies.sources import HUB, TEAM
from pettingllms.policies.weights import CONFIG_FILE, WEIGHTS_FILE, read_config, write_directory
from pettingllms.rollout.files import SUMMARY
from pettingllms.runs import read_config as read_settings
from pettingllms.runs.team import team_text
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig, resolve

CARD = "README.md"


def share(run: Path, to: str, *, private: bool = False) -> str:
    """Writes a run's adapters and their card to a folder or to the hub; returns where they are.

    Args:
        run: the folder of a finished run.
        to: `hub:NAME`, or a folder, which must be new, empty, or hold what was shared before.
        private: whether a repository that is created is private.

    Raises:
        RunFolderError: no finished run, or a folder that cannot be written.
        ConfigError: full models, a folder with other files, or the hub does not take them.
    """
    shared = read_run(run)
    if not to.startswith(HUB):
        folder = Path(to).expanduser()
        _check_folder(folder)
        write_shared(shared, folder, to)
        return str(folder)
    name = to.removeprefix(HUB)
    check_target(name)
    # A name of the kind that `RunFolder.reopen` removes, should this process be killed.
    staged = run / ".shared.upload"
    try:
        write_shared(shared, staged, to)
        return upload(staged, name, private=private)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def read_run(run: Path) -> SharedRun:
    """Reads the parts of a run that are shared.

    Raises:
        RunFolderError: no run, or one that has not finished.
        ConfigError: its policies are full models.
    """
    config = resolve(read_settings(run))
    check_shareable(config)
    path = run / SUMMARY
    if not path.is_file():
        raise RunFolderError(
            f"the run {run} has not finished, so that there is nothing measured to share: it has no "
            f"{SUMMARY}; continue it with pettingllms-train --resume {run}"
        )
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        evaluations = list(summary["after"])
        roles = list(evaluations[0]["roles"]) if evaluations else []
        table = (run / "summary.md").read_text(encoding="utf-8") if evaluations else ""
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunFolderError(f"{path} is damaged: {error}; restore it") from error
    if not roles:
        raise ConfigError(
            f"the run {run} was trained without an evaluation (eval_tasks 0), and a card says what was "
            "measured; train with --eval-tasks 100"
        )
    adapters = sorted(file.parent for file in (run / "adapters").glob(f"*/{CONFIG_FILE}"))
    return SharedRun(run, config, roles, table, adapters)


def check_shareable(config: ATGRPOConfig, name: str | None = None) -> None:
    """Refuses full models and, where it is named, a repository that cannot be uploaded to.

    Raises:
        ConfigError: nothing could be shared as `hub:NAME`, or at all.
    """
    settings = config.policy_settings.values()
    if config.full or any(policy.get("full") for policy in settings):
        raise ConfigError(
            "adapters are shared, and policies of this run are full models; upload the folder "
            "of each with `hf upload NAME FOLDER`"
        )
    if name is not None:
        check_target(name)


def write_shared(shared: SharedRun, folder: Path, to: str) -> None:
    """Writes the folder that is shared, as a whole.

    Raises:
        RunFolderError: it cannot be written.
    """

    def fill(fresh: Path) -> None:
        for adapter in shared.adapters:
            _copy_adapter(adapter, fresh / adapter.name, shared.base_of(adapter.name))
        curves = shared.run / CURVES
        if curves.is_file():
            shutil.copyfile(curves, fresh / CURVES)
        prompts = prompts_of(shared.config)
        (fresh / CARD).write_text(card_of(shared, to, prompts), encoding="utf-8")
        policies = parse_policies(shared.config.policies, shared.roles)
        text = team_text(shared.config, public_settings(shared.config), prompts, policies)
        (fresh / TEAM).write_text(text, encoding="utf-8")

    try:
        write_directory(folder, fill)
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be written: {error.strerror}; free space, fix permissions, or choose "
            "another --to"
        ) from error


def prompts_of(config: ResolvedConfig) -> dict[str, dict[str, str]]:
    """Role -> its first prompt: the text `before` and `after` a question, or an `example`.

    Nothing where the environment cannot be made here any more.
    """
    try:
        parts = parts_of(make_env(config, "test"))
        # Of a role that several environments have, its prompt in the first.
        return {role: text for env in reversed(parts) for role, text in _first(env).items()}
    except PettingLLMsError:
        return {}


def _first(env: AnyEnv) -> dict[str, dict[str, str]]:
    if asked := role_prompts(env):
        return {role: prompt._asdict() for role, prompt in asked.items()}
    env = clone_env(env)
    env.reset(seed=0)
    seen = [(role_of(agent), observe_text(env, agent)) for agent in env.possible_agents]
    return {role: {"example": text} for role, text in reversed(seen)}


def _copy_adapter(adapter: Path, target: Path, base: str) -> None:
    """Copies an adapter under the public name of its base, which may have been a path here."""
    # Refuses what is no plain LoRA adapter; nothing else of it is needed.
    read_config(adapter)
    values = json.loads((adapter / CONFIG_FILE).read_text(encoding="utf-8"))
    values["base_model_name_or_path"] = base
    target.mkdir()
    text = json.dumps(values, indent=2, sort_keys=True) + "\n"
    (target / CONFIG_FILE).write_text(text, encoding="utf-8")
    shutil.copyfile(adapter / WEIGHTS_FILE, target / WEIGHTS_FILE)


def _check_folder(folder: Path) -> None:
    """Refuses a folder that would lose what it holds.

    Raises:
        ConfigError: it holds files that were not shared, or is a file.
    """
    if folder.is_file():
        raise ConfigError(f"--to {folder} is a file; give a folder, or hub:NAME")
    inside = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    adapters = {name for name in inside if (folder / name / CONFIG_FILE).is_file()}
    others = sorted(inside - adapters - {CARD, CURVES, TEAM})
    # A folder with adapters but no card was not written by `share`.
    if others or (inside and CARD not in inside):
        raise ConfigError(
            f"--to {folder} holds other files ({(others or sorted(inside))[0]}), which would be "
            "lost; choose a new folder"
        )


# ------------------------------------------------------------------------------------------ hub
# Uploads a folder to the Hugging Face hub; its own client does the talking.
#
# The client finds the token (`hf auth login`, HF_TOKEN) and the hub (HF_ENDPOINT) by itself.


def check_target(name: str) -> None:
    """Refuses what cannot be uploaded to, as far as is known without asking.

    Raises:
        ConfigError: no name of a repository, no token, or the hub is not to be asked.
    """
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(f"{name!r} is no name of a repository on the hub: {error}") from error
    if constants.is_offline_mode():
        raise ConfigError(
            f"nothing can be pushed to hub:{name} in offline mode; unset HF_HUB_OFFLINE, or share to "
            "a folder: --to DIR"
        )
    if get_token() is None:
        raise ConfigError(
            f"pushing to hub:{name} needs a token that may write; log in with `hf auth login`, or "
            "set HF_TOKEN"
        )


def upload(folder: Path, name: str, *, private: bool) -> str:
    """Uploads a folder as one commit, into a repository that is created if needed; its address.

    Raises:
        ConfigError: the hub is out of reach, or refuses.
    """
    if not hub.hub_answers():
        raise ConfigError(f"{hub.silence()}; try again, or share to a folder: --to DIR")
    api = HfApi()
    try:
        # None keeps what a repository is that exists, and leaves a new one to the owner's defaults.
        whole = api.create_repo(name, private=private or None, exist_ok=True).repo_id
        # In one commit, so that nobody gets new weights with an old card.
        api.upload_folder(
            repo_id=whole,
            folder_path=folder,
            commit_message="Adapters and their card, by pettingllms",
        )
    except (OSError, HfHubHTTPError, httpx2.HTTPError) as error:
        # Errors of the connection come from the client's HTTP library as they are.
        raise ConfigError(
            f"the hub at {constants.ENDPOINT} did not take {name!r}: {_reason(error)}; check the name "
            "and the rights of the token, and share again"
        ) from error
    return f"{constants.ENDPOINT}/{whole}"


def _reason(error: Exception) -> str:
    """One line, with the status where there is one."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = (lines or [type(error).__name__])[0][:200]
    return f"HTTP {status} ({first})" if status else first
