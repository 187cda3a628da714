"""A worker without a model, for `benchmarks.scale`; this module imports nothing, so that 64 start quickly."""

from __future__ import annotations

import time


class Sleeper:
    """A worker whose model is a clock."""

    def ready(self) -> None:
        """Is ready at once."""

    def play(self, seconds: float, reply: bytes) -> bytes:
        """Sleeps; answers as much as a shard's record has."""
        time.sleep(seconds)
        return reply
