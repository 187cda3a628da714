"""Bounds the CPU time of a block of a test."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator


@contextlib.contextmanager
def at_most(seconds: float, what: object = "") -> Iterator[None]:
    """Fails where the block takes more CPU time in this thread.

    The garbage collector waits meanwhile: it walks the objects of all tests before, which took half a
    second where the block took none.
    """
    gc.disable()
    try:
        started = time.thread_time()
        yield
        spent = time.thread_time() - started
    finally:
        gc.enable()
    assert spent < seconds, (what, spent)
