"""team.json: what a shared team needs to be evaluated and served, as data that nothing executes.

    format                  1
    settings                of `SETTINGS`: environment, base model, lengths, temperature
    policies                role -> policy, a folder beside the file
    prompts                 role -> its first prompt: `before` and `after` a question, or an `example`
                            where tasks are no questions

A repository of another person must not choose which code runs here. So only an environment of this
package is followed; another is named by whoever uses the team. Arguments are plain words and numbers:
no paths, addresses, or names of functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pettingllms.envs.aec import ENVIRONMENTS
from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.policies.sources import TEAM
from pettingllms.registry import names_in
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.settings import as_object

SETTINGS = names_in(
    "env env_args alpha model revision max_completion_length temperature chat_template_kwargs"
)
_MODEL = re.compile(r"(\w[\w.:-]*(/\w[\w.-]*)?)?")
_PLAIN = re.compile(r"[\w ., -]*")


def team_text(
    config: ATGRPOConfig,
    shown: Mapping[str, Any],
    prompts: Mapping[str, Any],
    policies: Mapping[str, str],
) -> str:
    """The content of team.json; `shown` are the settings of `config` that are public."""
    settings = {name: shown[name] for name in SETTINGS if name in shown}
    settings["env_args"] = _plain(config.env_args)
    team = {"format": 1, "settings": settings, "policies": policies, "prompts": prompts}
    return json.dumps(team, indent=2) + "\n"


def team_of(folder: Path, env: str | None) -> ATGRPOConfig | None:
    """The settings of a shared team; None where the folder is of another kind.

    Raises:
        RunFolderError: team.json is damaged.
        ConfigError: its environment is code that the user has not named.
    """
    path = folder / TEAM
    if not path.is_file():
        return None
    try:
        team = json.loads(path.read_text(encoding="utf-8"))
        values = {name: team["settings"][name] for name in SETTINGS if name in team["settings"]}
        arguments = _plain(as_object("env_args", values.get("env_args")))
        template = _plain(as_object("chat_template_kwargs", values.get("chat_template_kwargs")))
        policies = ",".join(f"{role}={policy}" for role, policy in team["policies"].items())
        if not _MODEL.fullmatch(str(values.get("model", ""))):
            raise ValueError(f"model is {values['model']!r}, which is no name of a model")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged: {error}; download it again") from error
    if str(values.get("env")) not in ENVIRONMENTS and env is None:
        raise ConfigError(
            f"the environment of the team in {folder} is {values.get('env')!r}, which is code that is "
            f"not part of this package; if you trust it, name it: --env {values.get('env')}"
        )
    return ATGRPOConfig(
        **values | {"env_args": arguments, "chat_template_kwargs": template, "policies": policies}
    )


def _plain(arguments: Any) -> dict[str, Any]:
    """The arguments whose values are plain words or numbers, or lists of them."""
    pairs = dict(arguments).items()
    return {name: value for name, value in pairs if name != "sandbox" and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    words = isinstance(value, str) and _PLAIN.fullmatch(value) and ".." not in value
    return value is None or isinstance(value, int | float) or bool(words)
