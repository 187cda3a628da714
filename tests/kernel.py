"""What the kernel under the tests allows."""

from __future__ import annotations

import contextlib

import pytest

from pettingllms.sandbox.embedded import launch
from pettingllms.sandbox.workers import WorkerLost


def _layers() -> tuple[str, ...]:
    try:
        with contextlib.closing(launch()) as link:
            return link.layers
    except WorkerLost:
        return ()


needs_namespaces = pytest.mark.skipif(
    "namespaces" not in _layers(),
    reason="this kernel allows no namespaces; `pettingllms-sandbox doctor` says why",
)
