"""The limits of a program's run, which rows of data sets may set as well as users; nothing is run here."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pettingllms.errors import ConfigError

MAX_INPUT_BYTES = 16 << 20
"""Of a program's standard input, and of a function's arguments."""
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
            seconds = field.name.endswith("_s")
            if not seconds and isinstance(value, float) and value.is_integer():  # as in tables
                value = int(value)
                object.__setattr__(self, field.name, value)
            least, kind = (0.001, int | float) if seconds else (1, int)
            fits = isinstance(value, kind) and value is not True
            if not (fits and least <= value <= _MOST[field.name]):
                bounds = f"between {least} and {_MOST[field.name]}{'' if seconds else ' and whole'}"
                raise ConfigError(f"{field.name} must be {bounds}, got {value!r:.40}")


LIMITS = tuple(field.name for field in fields(Limits))
