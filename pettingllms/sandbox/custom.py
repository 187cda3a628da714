"""The back end `module:factory`: an object of the user's that runs programs."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, Self

from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.registry import resolve
from pettingllms.sandbox.types import STATUSES, Case, RunResult


class CustomSandbox:
    """Passes runs to the object that the factory at `path` makes, and closes it at the end.

    The factory is called without arguments. The object needs the methods of `Sandbox`: `run` with
    its keyword arguments, and `close`; `isolation` and `require_isolation` are passed on if it has
    them. What it raises reaches the caller unchanged; `SandboxUnavailable` is for failures that say
    nothing about a program.

    Raises:
        ConfigError: the path leads to something that makes no such object.
        UnknownNameError: there is no such module, or no such attribute in it.
    """

    def __init__(self, path: str) -> None:
        factory = resolve(path, "sandbox")
        if not callable(factory):
            raise ConfigError(
                f"the sandbox {path!r} is a {type(factory).__name__}; it must be a function that "
                "returns an object with run and close"
            )
        self._inner: Any = factory()
        for method in ("run", "close"):
            if not callable(getattr(self._inner, method, None)):
                raise ConfigError(
                    f"the sandbox {path!r} made a {type(self._inner).__name__} without a method "
                    f"{method}; it needs run and close, see pettingllms.sandbox.Sandbox"
                )
        # Also for callers that never close: at the latest when the interpreter ends.
        self._finalizer = weakref.finalize(self, self._inner.close)

    def run(
        self, programs: Sequence[str], cases: Sequence[Case], **options: Any
    ) -> list[list[RunResult]]:
        """Run every program on every case; see `Sandbox.run`.

        Raises:
            SandboxUnavailable: also where the object gave something else than a result for each run.
        """
        rows: list[list[RunResult]] = self._inner.run(programs, cases, **options)
        shape = [len(cases)] * len(programs)
        try:
            good = [sum(map(_is_result, row)) for row in rows] == shape == list(map(len, rows))
        except TypeError:  # no lists
            good = False
        if not good:
            raise SandboxUnavailable(
                f"{type(self._inner).__name__}.run gave {str(rows)[:200]} for {len(programs)} programs "
                f"and {len(cases)} cases; it has to return a list for each program, with a RunResult "
                "for each case whose seconds are finite"
            )
        return rows

    def __getattr__(self, name: str) -> Any:
        # Optional parts of the object, which `isolation.held_by` looks for.
        if name in ("isolation", "require_isolation"):
            return getattr(self._inner, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def close(self) -> None:
        """Close the object, once."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_result(row: object) -> bool:
    return (
        isinstance(row, RunResult)
        and row.status in STATUSES
        and all(0 <= seconds < math.inf for seconds in (row.cpu_s, row.wall_s))
    )
