"""The embedded tiny base model: the default of `--model`, so that a first run needs no download.

`pettingllms.models.prime` makes it.
"""

from __future__ import annotations

from pathlib import Path

EMBEDDED = Path(__file__).parent / "tiny"
"""Folder of weights, tokenizer and chat template, as transformers saves them."""
