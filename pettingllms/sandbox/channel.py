"""How a worker is reached: its streams, and how it is ended. One implementation a launcher."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Protocol

from pettingllms.sandbox.worker import frames

_NOTES_BYTES = 2000


class WorkerLost(Exception):
    """The worker ended, fell silent, or did not speak the protocol."""


class Channel(Protocol):
    """A started worker."""

    stream: frames.Stream

    def kill(self) -> None:
        """End the worker at once; whoever reads from it sees the end. Safe from any thread."""
        ...

    def close(self) -> None:
        """Let go of everything that is held for the worker, which has ended or been killed.

        In a process that was forked from the owner, this leaves the owner's worker alone.
        """
        ...

    def notes(self) -> str:
        """How the worker ended, if it did, and the last of what it wrote to standard error."""
        ...


class ProcessChannel:
    """A worker that is a process of this machine, exec'd with nothing but `environment`.

    Raises:
        WorkerLost: it cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._owner = os.getpid()
        self._notes: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the channel
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._notes,
                env=dict(environment),
                cwd="/",
                bufsize=0,
                # Ctrl-C in the terminal is for the caller, which may want to finish its step.
                start_new_session=True,
            )
        except OSError as error:
            self._notes.close()
            raise WorkerLost(f"cannot start {command[0]}: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.stream = frames.Stream(self._process.stdout.fileno(), self._process.stdin.fileno())

    @property
    def pid(self) -> int:
        """Process id of the worker's first process."""
        return self._process.pid

    def kill(self) -> None:
        """End the worker; the kernel ends everything in its namespaces with it."""
        if os.getpid() == self._owner and self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        """Close the pipes and reap the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._notes.close()
        if os.getpid() == self._owner:
            self._process.wait()
        else:
            # A forked process owns no worker; this only keeps Popen from looking for it.
            self._process.returncode = 0

    def notes(self) -> str:
        """See `Channel.notes`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        self._notes.seek(0)
        said = self._notes.read()[-_NOTES_BYTES:].decode("utf-8", "replace").strip()
        code = self._process.poll()
        ended = "" if code is None else f"; the worker ended with code {code}"
        return ended + (f": {said}" if said else "")
