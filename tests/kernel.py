"""What the kernel under the tests allows."""

from __future__ import annotations

import contextlib

import pytest

from pettingllms.sandbox.channel import ProcessChannel, WorkerLost
from pettingllms.sandbox.embedded import ENVIRONMENT, python_command
from pettingllms.sandbox.link import Link


def _layers() -> tuple[str, ...]:
    try:
        with contextlib.closing(Link(ProcessChannel(python_command(), ENVIRONMENT))) as link:
            return link.layers
    except WorkerLost:
        return ()


needs_namespaces = pytest.mark.skipif(
    "namespaces" not in _layers(),
    reason="this kernel allows no namespaces; `pettingllms-sandbox doctor` says why",
)
