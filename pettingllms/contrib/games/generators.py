"""The global random generators as a game's own: `private` swaps a game's states in and out.

Games of other libraries draw from `random` and `numpy.random`. Nothing here keeps two of them apart but
this module: around every call into a game, the states that belong to it are put in place, and those
of everybody else are put back.
"""

from __future__ import annotations

import contextlib
import io
import random
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np


class Generators(NamedTuple):
    """States of the two global random generators; never changed in place."""

    python: Any
    numpy: Any
    """None for a game that does not use it: swapping it takes longer than most games' moves."""


def seeded(seed: int, *, numpy: bool = True) -> Generators:
    """The states that `seed` puts the generators into; only Python's where not `numpy`."""
    return Generators(
        random.Random(seed).getstate(),
        # `RandomState` takes seeds of 32 bits.
        np.random.RandomState(seed % (1 << 32)).get_state() if numpy else None,
    )


class Swap:
    """The states after a block of `private`."""

    def __init__(self, state: Generators) -> None:
        self.state = state


_LOCK = threading.RLock()


@contextlib.contextmanager
def private(state: Generators) -> Iterator[Swap]:
    """Runs a block in which `random` and `numpy.random` continue from `state`.

    Outside nothing has changed afterwards, also where the block raises; the yielded object then has
    their new states. What a game prints is dropped. One block at a time: other threads wait.
    """
    nowhere = io.StringIO()
    # Standard output, too, is one for all threads, so that it is redirected under the lock.
    with _LOCK, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        outside = _taken(state)
        # Filled in at the end, because the new states are known only when the block is over.
        swap = Swap(state)
        try:
            _put(state)
            yield swap
        finally:
            swap.state = _taken(state)
            _put(outside)


def _taken(like: Generators) -> Generators:
    numpy = None if like.numpy is None else np.random.get_state()  # noqa: NPY002
    return Generators(random.getstate(), numpy)


def _put(state: Generators) -> None:
    random.setstate(state.python)
    if state.numpy is not None:
        np.random.set_state(state.numpy)  # noqa: NPY002
