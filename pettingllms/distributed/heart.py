"""Whether the cluster of this process is alive, asked every few seconds.

Where its head dies in the middle of a run, Ray ends the whole process after a minute, with a message
of its own; where the node of this process dies, nothing is ever started again, and a run would wait
for ever. Here either is an error that whoever waits for an actor raises.
"""

from __future__ import annotations

import contextlib
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
    head = ray._private.worker.global_worker.gcs_client
    here, heard = ray.get_runtime_context().get_node_id(), time.monotonic()
    while not over.wait(ASK_SECONDS):
        try:
            head.internal_kv_get(b"any", b"any", timeout=ASK_SECONDS)
            nodes = head.get_all_node_info(timeout=ASK_SECONDS)
        except ray.exceptions.RpcError:
            if time.monotonic() - heard > SILENT_SECONDS:
                _reasons.append(f"its head has not answered for {SILENT_SECONDS:g} seconds")
                return
            continue
        heard = time.monotonic()
        living = [key.hex() for key, node in nodes.items() if not node.state]
        if here not in living:
            _reasons.append("the node of this process is dead")
            return
