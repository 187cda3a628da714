"""Checks that the cluster of this process is alive.

Where its head dies in the middle of a run, Ray ends the whole process after a minute. Where the node of
this process dies, Ray ends the process with the next object that it stores or fetches; without one,
nothing is ever started again, and a run would wait for ever. Here either is an error that whoever waits
for an actor raises. Ray may be faster, and then ends the process without a word.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pettingllms.errors import PettingLLMsError, WorkersLost

ASK_SECONDS = 2.0
SILENT_SECONDS = 30.0
"""After which a head that does not answer counts as dead; Ray itself waits for 60."""
CLOSING_SECONDS = 1.0
"""In which the kernel closes all connections of a process that was killed."""
NODE = "the Ray cluster is lost: the node of this process is dead"
HEAD = f"the Ray cluster is lost: its head has not answered for {SILENT_SECONDS:g} seconds"


@dataclass
class _Heart:
    node: socket.socket
    """A connection to the node of this process, over which nothing is said."""
    silent: bool = False
    """Whether the head has not answered for too long; it may answer again."""

    def beats(self, seconds: float) -> bool:
        closed = select.poll()  # one that threads share can be asked by one at a time only
        closed.register(self.node, 0)
        return not closed.poll(1000 * seconds)


_hearts: list[_Heart] = []


def check(seconds: float = 0.0) -> None:
    """Raises where the cluster is dead.

    Args:
        seconds: in which the node of this process may still be found dead.

    Raises:
        WorkersLost: says what does not answer.
    """
    for heart in [*_hearts]:
        if not heart.beats(seconds):
            raise WorkersLost(NODE)
        if heart.silent:
            raise WorkersLost(HEAD)


@contextlib.contextmanager
def blamed() -> Iterator[None]:
    """Raises `WorkersLost` in place of what Ray raises because its cluster is dead."""
    try:
        yield
    except PettingLLMsError:
        raise
    except Exception:
        check(CLOSING_SECONDS)
        raise


@contextlib.contextmanager
def watched(ray: Any) -> Iterator[None]:
    """Watches the cluster until the end of the block.

    Raises:
        WorkersLost: the node of this process is dead already.
    """
    worker, over = ray._private.worker.global_worker, threading.Event()
    with socket.socket(socket.AF_UNIX) as node:
        place = worker.node.raylet_socket_name
        try:
            node.connect(place)
        except OSError as error:
            raise WorkersLost(NODE) from error
        heart = _Heart(node)
        threading.Thread(target=_ask, args=(ray, worker, heart, over), daemon=True).start()
        _hearts.append(heart)
        try:
            yield
        finally:
            over.set()
            _hearts.remove(heart)


def _ask(ray: Any, worker: Any, heart: _Heart, over: threading.Event) -> None:
    """Asks the head every few seconds, and notes whether it has been silent for too long."""
    heard = time.monotonic()
    while not over.wait(ASK_SECONDS):
        try:
            worker.gcs_client.internal_kv_get(b"any", b"any", timeout=ASK_SECONDS)
        except ray.exceptions.RpcError:
            silent = time.monotonic() - heard > SILENT_SECONDS
        else:
            heard, silent = time.monotonic(), False
        heart.silent = silent
