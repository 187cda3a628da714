"""The back end `module:factory`: an object of the user's own that runs programs."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Sequence
from typing import Any, Self

from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.registry import resolve
from pettingllms.sandbox.types import STATUSES, Case, RunResult, Sandbox

_OPTIONAL = ("isolation", "require_isolation")


class OwnSandbox:
    """Passes runs to the object that the factory at `path` makes, and closes it at the end.

    The factory is called without arguments. The object needs the methods of `Sandbox`: `run` with
    its keyword arguments, and `close`; `isolation` and `require_isolation` are passed on if it has
    them. What it raises reaches the caller unchanged;
    `SandboxUnavailable` is for failures that say nothing about a program.

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
        self._inner = _checked(path, factory())
        # Also for callers that never close: at the latest when the interpreter ends.
        self._finalizer = weakref.finalize(self, self._inner.close)

    def run(
        self, programs: Sequence[str], cases: Sequence[Case], **options: Any
    ) -> list[list[RunResult]]:
        """Run every program on every case; see `Sandbox.run`.

        Raises:
            SandboxUnavailable: also where the object gave something else than a result for each run.
        """
        rows = self._inner.run(programs, cases, **options)
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
        if name in _OPTIONAL:
            return getattr(self._inner, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def close(self) -> None:
        """Close the object, once."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_result(made: object) -> bool:
    return (
        isinstance(made, RunResult)
        and made.status in STATUSES
        and all(0 <= seconds < math.inf for seconds in (made.cpu_s, made.wall_s))
    )


def _checked(path: str, made: Any) -> Sandbox:
    for method in ("run", "close"):
        if not callable(getattr(made, method, None)):
            raise ConfigError(
                f"the sandbox {path!r} made a {type(made).__name__} without a method {method}; it "
                "needs run and close, see pettingllms.sandbox.Sandbox"
            )
    # Tried with the protocol's own keywords now, and not when the first program is scored.
    wanted = inspect.signature(Sandbox.run).parameters.values()
    options = {each.name: None for each in wanted if each.kind is each.KEYWORD_ONLY}
    try:
        inspect.signature(made.run).bind([], [], **options)
    except TypeError as error:
        raise ConfigError(
            f"the sandbox {path!r} made a {type(made).__name__} whose run cannot be called with "
            f"programs, cases and {', '.join(options)}: {error}"
        ) from None
    sandbox: Sandbox = made
    return sandbox
