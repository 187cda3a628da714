"""The base models that come with this package, so that a first run needs no download.

`smollm2` and GGUF files are models of other packages and people (`pettingllms.models.gguf`).

The repository makes them with `python -m benchmarks.priming.prime`, which is not part of the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

EMBEDDED = Path(__file__).parent / "tiny"
"""A base that knows all five games, and bad habits: weights, tokenizer and chat template."""
PARTS = Path(__file__).parent / "parts"
"""A base that was shown parts of tasks only, and no bad replies: the default of two environments."""
SEARCH = Path(__file__).parent / "search"
"""A base for `search` alone, that was shown single look-ups and how to copy names."""
DEFAULT = "embedded"
SHIPPED: Mapping[str, Path] = {
    DEFAULT: EMBEDDED,
    "embedded:parts": PARTS,
    "embedded:search": SEARCH,
}
"""Name, as `--model` takes it -> folder."""
SMOLLM2 = "smollm2"
"""The value of `--model` that names the packaged model."""


def declared_in(name: str) -> str:
    """The class attribute in which an environment declares its arguments for a shipped model."""
    return name.replace(":", "_")


def shipped(model: str | None) -> str | None:
    """The key in `SHIPPED` of a model given by name or folder; None for any other model."""
    if model is None or model in SHIPPED:
        return model or DEFAULT
    path = Path(model).resolve()
    return next((name for name, folder in SHIPPED.items() if folder.resolve() == path), None)


def is_gguf(model: str | None) -> bool:
    """Returns whether a value of `--model` is `smollm2` or names a GGUF file."""
    return model is not None and (model == SMOLLM2 or model.endswith(".gguf"))


def model_path(model: str | None) -> str:
    """The name or folder that transformers loads for a value of `--model`.

    Raises:
        ConfigError: `smollm2` or a GGUF file that cannot be used.
    """
    if model is not None and is_gguf(model):
        from pettingllms.models.gguf import folder_of

        return str(folder_of(model))
    name = shipped(model)
    return str(model) if name is None else str(SHIPPED[name])
