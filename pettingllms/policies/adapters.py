"""Adapters on disk, exactly as PEFT lays them out, so that plain PEFT and vLLM load them.

    <directory>/adapter_config.json        PEFT's configuration, keys and lists sorted
    <directory>/adapter_model.safetensors  PEFT's tensor names, without the adapter's name

The safetensors header also holds a digest of the base model, which PEFT ignores and `read`
checks. The same weights always give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from pettingllms.errors import ConfigError

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_DIGEST = "pettingllms_base_digest"


def base_digest(model: nn.Module) -> str:
    """Sixteen hex digits that tell base models apart, from a few numbers of every tensor.

    Values are rounded to bfloat16 first, so the digest is the same for every loading dtype.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        few = tensor.detach().flatten()[:64].cpu().to(torch.bfloat16)
        digest.update(f"{name} {tuple(tensor.shape)} ".encode())
        digest.update(few.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def write_directory(directory: Path, write: Callable[[Path], None]) -> None:
    """Fills a new folder beside `directory`, then puts it in its place by renaming.

    A reader sees the old folder or the new one, never a half-written one. A crash between the
    two renames leaves the old folder under its `.old` name.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        write(fresh)
        fresh.chmod(0o755)
        old = directory.with_name(f".{directory.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if directory.exists():
            directory.rename(old)
        fresh.rename(directory)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def write_adapter(
    directory: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    base: str,
    digest: str,
) -> None:
    """Writes one adapter into `directory`, atomically.

    Args:
        directory: replaced where it exists.
        config: the adapter's PEFT configuration, as a dictionary.
        tensors: PEFT's names without the adapter's name.
        base: name or path of the base model, for PEFT's `base_model_name_or_path`.
        digest: `base_digest` of the base model.
    """
    values = {**config, "base_model_name_or_path": base, "inference_mode": True}
    text = json.dumps(values, indent=2, sort_keys=True, default=_as_json) + "\n"

    def write(folder: Path) -> None:
        (folder / _CONFIG).write_text(text, encoding="utf-8")
        cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        # One entry only: safetensors writes several in an order of its own, new in each process.
        save_file(cpu, folder / _WEIGHTS, metadata={_DIGEST: digest})

    write_directory(directory, write)


def _as_json(value: object) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def read_config(directory: Path) -> LoraConfig:
    """The PEFT configuration of the adapter in `directory`.

    Raises:
        ConfigError: there is no adapter, or one of another kind than LoRA.
    """
    path = directory / _CONFIG
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no adapter in {directory}: {path.name} cannot be read ({error}); give a folder "
            "that holds adapter_config.json and adapter_model.safetensors"
        ) from error
    if values.get("peft_type") != "LORA":
        raise ConfigError(
            f"the adapter in {directory} is of type {values.get('peft_type')!r}; only LORA "
            "adapters can be loaded"
        )
    if values.get("use_dora"):
        raise ConfigError(f"the adapter in {directory} uses DoRA; only plain LoRA can be loaded")
    config: LoraConfig = LoraConfig.from_pretrained(str(directory), inference_mode=False)
    return config


def read_tensors(directory: Path, base: str, digest: str) -> dict[str, torch.Tensor]:
    """The tensors of the adapter in `directory`, after checking that it fits the base model.

    An adapter that carries no digest (another program wrote it) is checked by the last part of
    its base model's name.

    Raises:
        ConfigError: the weights are missing or damaged, or belong to another base model.
    """
    theirs = str(read_config(directory).base_model_name_or_path)
    try:
        with safe_open(directory / _WEIGHTS, framework="pt") as file:
            found = (file.metadata() or {}).get(_DIGEST)
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{directory / _WEIGHTS} cannot be read: {error}") from error
    same = found == digest if found else Path(theirs).name.lower() == Path(base).name.lower()
    if not same:
        raise ConfigError(
            f"the adapter in {directory} was trained on the base model {theirs!r}, not on "
            f"{base!r}; load it with --model {theirs}"
            + ("" if found else ", or correct base_model_name_or_path in its adapter_config.json")
        )
    return tensors
