"""The sandbox's records and its contract: what to run, within which limits, what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol, Self, get_args

from pettingllms.errors import ConfigError

Status = Literal[
    "ok",
    "error",
    "cpu_limit",
    "wall_limit",
    "memory_limit",
    "output_limit",
    "process_limit",
    "killed",
    "forbidden",
]
STATUSES: tuple[str, ...] = get_args(Status)
RUNAWAY: tuple[Status, ...] = ("cpu_limit", "wall_limit")
"""Statuses of programs that used up a limit, and would use it up again on the next case."""

MAX_OUTPUT_BYTES = 128 << 20
"""Bytes of all results of one call to `Sandbox.run`, shared equally between its programs."""
MAX_PROGRAM_BYTES = 1 << 20
MAX_INPUT_BYTES = 16 << 20

_MOST = {
    "cpu_s": 86_400,
    "wall_s": 86_400,
    "memory_mib": 1 << 20,
    "output_kib": 1 << 17,
    "processes": 1 << 15,
    "tmp_mib": 1 << 20,
    "open_files": 1 << 14,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run. Exceeding a limit has a status of its own where the kernel tells.

    Raises:
        ConfigError: a limit is not positive, or larger than any machine's.
    """

    cpu_s: float = 5.0
    """User and system seconds of all threads together: the verdict `cpu_limit`."""
    wall_s: float = 15.0
    """Seconds by the clock, generous because the machine may be busy: `wall_limit`."""
    memory_mib: int = 512
    """Address space beside the interpreter's own, thread stacks included: `memory_limit`."""
    output_kib: int = 1024
    """KiB of each of standard output, standard error and a returned value: `output_limit`."""
    processes: int = 64
    """Threads. New processes are always refused; both give `process_limit`, where the error ends the
    program."""
    tmp_mib: int = 16
    """Files in /tmp, the only folder that can be written; more fails with ENOSPC."""
    open_files: int = 64
    """Descriptors beside the standard three; more fails with EMFILE."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0.001 if field.name.endswith("_s") else 1
            if not (math.isfinite(value) and least <= value <= _MOST[field.name]):
                raise ConfigError(
                    f"{field.name} must be between {least} and {_MOST[field.name]}, got {value}"
                )


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to run a program on: an input, or a function call.

    With `function`, the program's `Solution.function` or plain `function` is called with the
    JSON list `args`, and `RunResult.value` is the JSON text of what it returned. JSON has no
    tuples (they come back as lists), no sets and no keys but strings; a value that it cannot
    express is an `error` that says so.
    """

    stdin: str = ""
    function: str | None = None
    args: str = "[]"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one program on one case. Everything but the numbers was made by the program.

    Outputs are kept as bytes and decoded when they are read: as `str`, one emoji makes each
    character of a text take four bytes.
    """

    status: Status
    stdout_bytes: bytes
    stderr_bytes: bytes
    exit_code: int
    """-N where signal N ended the process."""
    cpu_s: float
    wall_s: float
    memory_mib: float
    """Peak resident memory of the process, the interpreter's own included."""
    isolation: str
    """Layers around the program, as in `namespaces+landlock+seccomp`; `none` for an unsafe back end."""
    value_bytes: bytes | None = None

    @property
    def stdout(self) -> str:
        """Standard output. Bytes that are not UTF-8 are replaced by U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error, decoded in the same way."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def value(self) -> str | None:
        """JSON text that the called function returned, as claimed by the program."""
        return self.value_bytes.decode("utf-8", "replace") if self.value_bytes else None

    @property
    def output_bytes(self) -> int:
        """Length of standard output, standard error and the value together."""
        return len(self.stdout_bytes) + len(self.stderr_bytes) + len(self.value_bytes or b"")

    def to_dict(self) -> dict[str, object]:
        """The result with its outputs as text, for JSON."""
        numbers = ("status", "exit_code", "cpu_s", "wall_s", "memory_mib", "isolation")
        texts = {"stdout": self.stdout, "stderr": self.stderr, "value": self.value}
        return {name: getattr(self, name) for name in numbers} | texts


DEFAULT_LIMITS = Limits()


class Sandbox(Protocol):
    """Runs untrusted Python programs. Any number of threads may call it at once."""

    def run(
        self,
        programs: Sequence[str],
        cases: Sequence[Case],
        *,
        limits: Limits = DEFAULT_LIMITS,
        end_at_limit: bool = True,
    ) -> list[list[RunResult]]:
        """Run every program on every case; `result[p][c]`.

        Every pair has a process of its own, which inherits nothing of any other run, so that the
        order and company of the pairs make no difference to what they do.

        With `end_at_limit`, a program that breaks its CPU or wall limit is not run on its later
        cases: an endless loop costs its limit once, not once a case (where the runs are spread, at
        most once a worker). The results of these cases have the same status, no output, and a
        standard error that says so. What counts is the order of `cases`, not who was first, so
        that programs that do the same get the same results; other programs continue. Turn it off
        where cases must not bear on each other, as where they come from different authors.

        The outputs of a program on all cases together have at most its share of
        `MAX_OUTPUT_BYTES`. The first result that exceeds the share, in the order of `cases`, and
        all later ones of this program are `output_limit` without output (a broken CPU or wall
        limit keeps its status), however the runs were spread over workers; other programs are not
        affected.

        Raises:
            SandboxUnavailable: the sandbox failed, twice, and says nothing about any program.
        """
        ...

    def close(self) -> None:
        """End all workers. Afterwards `run` raises `SandboxUnavailable`."""
        ...


class OpenSandbox(Sandbox, Protocol):
    """A `Sandbox` that a `with` statement closes."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
