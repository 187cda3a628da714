"""One worker and the frames to and from it. Not thread-safe: one request at a time."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from pettingllms.sandbox.channel import Channel, WorkerLost
from pettingllms.sandbox.types import STATUSES
from pettingllms.sandbox.worker import frames

START_S = 60.0
"""Seconds that a worker may take to start on a busy machine."""
GRACE_S = 15.0
"""Seconds beyond the wall limits after which a worker counts as lost."""

_PROTOCOL = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One run's result as it travels."""

    run: int
    status: str
    exit_code: int
    cpu_us: int
    wall_us: int
    memory_kib: int
    stdout: bytes
    stderr: bytes
    value: bytes | None


class Link:
    """A worker that has said hello over `channel`, which it owns from now on.

    Raises:
        WorkerLost: it has not; the channel is closed.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.begun = time.monotonic()
        self.requests = 0
        self._owner = os.getpid()
        self._stream = channel.stream
        self._scratch: str | None = None
        try:
            hello = self._read_header(self.begun + START_S)
            if hello.get("protocol") != _PROTOCOL:
                raise WorkerLost(f"the worker speaks protocol {hello.get('protocol')!r}")
        except WorkerLost:
            self.close()
            raise
        self.layers: tuple[str, ...] = tuple(map(str, hello.get("layers", ())))
        self.problems: tuple[str, ...] = tuple(map(str, hello.get("problems", ())))
        self.python = str(hello.get("python"))
        if "namespaces" not in self.layers:
            self._scratch = str(hello.get("scratch"))

    def ask(
        self, header: dict[str, Any], payload: Sequence[bytes], wall_s: float
    ) -> Generator[Row]:
        """Send a request and yield its results as they come.

        `wall_s` is the longest that one reply may take if the worker keeps its limits.

        Raises:
            WorkerLost: also in the middle; rows already yielded are good.
        """
        self.requests += 1
        patience = wall_s + GRACE_S
        try:
            self._stream.write(frames.encode(header, payload), time.monotonic() + patience)
            while True:
                deadline = time.monotonic() + patience
                reply = self._read_header(deadline)
                rows = reply.get("results")
                if not isinstance(rows, list):
                    raise frames.FrameError("a reply has results")
                for row in rows:
                    yield self._read_row(row, deadline)
                if reply.get("done") is True:
                    return
        except (frames.FrameError, OSError) as error:
            raise WorkerLost(f"{error}{self.channel.notes()}") from error

    def _read_header(self, deadline: float) -> dict[str, Any]:
        try:
            header = self._stream.read_header(deadline)
        except (frames.FrameError, OSError) as error:
            raise WorkerLost(f"{error}{self.channel.notes()}") from error
        if "failure" in header:
            raise WorkerLost(str(header["failure"]))
        return header

    def _read_row(self, row: object, deadline: float) -> Row:
        if not (isinstance(row, list) and len(row) == 9 and row[1] in STATUSES):
            raise frames.FrameError(f"not a result: {str(row)[:80]}")
        numbers = [row[0], *row[2:]]
        if any(type(number) is not int for number in numbers):
            raise frames.FrameError(f"a result holds whole numbers: {str(row)[:80]}")
        lengths = row[6:]
        if not all(-1 <= length <= frames.MAX_PAYLOAD_BYTES for length in lengths):
            raise frames.FrameError(f"a result's lengths are wrong: {lengths}")
        texts = [bytes(self._stream.read(max(0, length), deadline)) for length in lengths]
        value = texts[2] if lengths[2] >= 0 else None
        run, status, exit_code, cpu_us, wall_us, memory_kib = row[:6]
        return Row(run, status, exit_code, cpu_us, wall_us, memory_kib, texts[0], texts[1], value)

    def kill(self) -> None:
        """Kill the worker; whoever waits for it gets `WorkerLost`. Safe from any thread."""
        self.channel.kill()

    def close(self) -> None:
        """Kill the worker and everything it started, and take back what it held."""
        self.channel.kill()
        self.channel.close()
        if self._scratch is not None and os.getpid() == self._owner:
            shutil.rmtree(self._scratch, ignore_errors=True)
