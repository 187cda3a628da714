"""Whether the cluster of this process is alive, asked every few seconds.

Where its head dies in the middle of a run, Ray ends the whole process after a minute, with a message
of its own; where the node of this process dies, nothing is ever started again, and a run would wait
for ever. Here either is an error that whoever waits for an actor raises.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from pettingllms.errors import WorkersLost

ASK_SECONDS = 2.0
SILENT_SECONDS = 30.0
"""After which a head that does not answer counts as dead; Ray itself waits for 60."""
_reasons: list[str] = []


def check() -> None:
    """Raises where the cluster is dead.

    Raises:
        WorkersLost: says what does not answer.
    """
    if _reasons:
        raise WorkersLost(f"the Ray cluster is lost: {_reasons[0]}")


@contextlib.contextmanager
def watched(ray: Any) -> Iterator[None]:
    """Asks the cluster until the end of the block."""
    over = threading.Event()
    threading.Thread(target=_watch, args=(ray, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()
        _reasons.clear()


def _watch(ray: Any, over: threading.Event) -> None:
    worker, heard = ray._private.worker.global_worker, time.monotonic()
    while not over.wait(ASK_SECONDS):
        with socket.socket(socket.AF_UNIX) as node:
            try:
                node.connect(worker.node.raylet_socket_name)
            except OSError:  # Ray would end this process some seconds later
                _reasons.append("the node of this process is dead")
                return
        try:
            worker.gcs_client.internal_kv_get(b"any", b"any", timeout=ASK_SECONDS)
            heard = time.monotonic()
        except ray.exceptions.RpcError:
            if time.monotonic() - heard > SILENT_SECONDS:
                _reasons.append(f"its head has not answered for {SILENT_SECONDS:g} seconds")
                return
