"""Uploads a folder to the Hugging Face hub; its own client does the talking.

The client finds the token (`hf auth login`, HF_TOKEN) and the hub (HF_ENDPOINT) by itself.
"""

from __future__ import annotations

from pathlib import Path

import httpx2
from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from pettingllms.data import reach
from pettingllms.errors import ConfigError


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
    if not reach.hub_answers():
        raise ConfigError(f"{reach.silence()}; try again, or share to a folder: --to DIR")
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
