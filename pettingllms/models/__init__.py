"""The embedded tiny base model: the default of `--model`, so that a first run needs no download.

The repository makes it with `python -m benchmarks.priming.prime`, which is not part of the package.
"""

from __future__ import annotations

from pathlib import Path

EMBEDDED = Path(__file__).parent / "tiny"
"""Folder of weights, tokenizer and chat template, as transformers saves them."""
