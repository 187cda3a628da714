"""One worker process and the frames to and from it. Not thread-safe: one request at a time."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pettingllms.sandbox.types import STATUSES
from pettingllms.sandbox.worker import frames

logger = logging.getLogger(__name__)

START_S = 60.0
"""Seconds that a worker may take to start on a busy machine."""
GRACE_S = 15.0
"""Seconds beyond the wall limits after which a worker counts as lost."""

_PROTOCOL = 1
_NOTES_BYTES = 2000


class WorkerLost(Exception):
    """The worker ended, fell silent, or did not speak the protocol."""


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
    """Starts a worker with `command` and talks to it. `environment` is all that it sees."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._owner = os.getpid()
        self._notes: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the link
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own worker
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._notes,
                env=dict(environment),
                cwd="/",
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._notes.close()
            raise WorkerLost(f"cannot start {command[0]}: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stream = frames.Stream(self._process.stdout.fileno(), self._process.stdin.fileno())
        self._scratch: str | None = None
        try:
            hello = self._read_header(time.monotonic() + START_S)
            if hello.get("protocol") != _PROTOCOL:
                raise WorkerLost(f"the worker speaks protocol {hello.get('protocol')!r}")
        except WorkerLost:
            self.close()
            raise
        self.layers: tuple[str, ...] = tuple(map(str, hello.get("layers", ())))
        self.problems: tuple[str, ...] = tuple(map(str, hello.get("problems", ())))
        if "namespaces" not in self.layers:
            self._scratch = str(hello.get("scratch"))

    @property
    def pid(self) -> int:
        """Process id of the worker's first process."""
        return self._process.pid

    def ask(self, header: dict[str, Any], payload: Sequence[bytes], wall_s: float) -> Iterator[Row]:
        """Send a request and yield its results as they come.

        `wall_s` is the longest that one reply may take if the worker keeps its limits.

        Raises:
            WorkerLost: also in the middle; rows already yielded are good.
        """
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
            raise WorkerLost(self._explain(error)) from error

    def _read_header(self, deadline: float) -> dict[str, Any]:
        try:
            header = self._stream.read_header(deadline)
        except (frames.FrameError, OSError) as error:
            raise WorkerLost(self._explain(error)) from error
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
        return Row(*row[:6], texts[0], texts[1], value)

    def _explain(self, error: Exception) -> str:
        """What went wrong, with the last of what the worker wrote to standard error."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        self._notes.seek(0)
        notes = self._notes.read()[-_NOTES_BYTES:].decode("utf-8", "replace").strip()
        code = self._process.poll()
        ended = "" if code is None else f"; the worker ended with code {code}"
        return f"{error}{ended}" + (f": {notes}" if notes else "")

    def kill(self) -> None:
        """Kill the worker; whoever waits for it gets `WorkerLost`. Safe from any thread."""
        if os.getpid() == self._owner and self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        """Kill the worker and everything it started, and take back what it held."""
        mine = os.getpid() == self._owner
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._notes.close()
        if mine:
            self._process.wait()
            if self._scratch is not None:
                shutil.rmtree(Path(self._scratch), ignore_errors=True)
        else:
            # A forked process owns no worker; this only keeps Popen from looking for it.
            self._process.returncode = 0
