"""Environments of this package whose planner calls a worker, as environments of their own."""

from __future__ import annotations

from typing import Any

from pettingllms.envs import search_v0

raw_env = search_v0.raw_env


def search(**kwargs: Any) -> search_v0.raw_env:
    """Search, with a planner and a worker."""
    return search_v0.env(topology="nested", **kwargs)
