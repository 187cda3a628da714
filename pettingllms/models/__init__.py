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
