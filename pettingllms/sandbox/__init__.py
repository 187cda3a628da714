r"""Run programs that a model wrote, without trusting them.

    from pettingllms.sandbox import Case, Limits, open_sandbox

    with open_sandbox("embedded") as sandbox:
        [[result]] = sandbox.run(["print(int(input()) * 2)"], [Case("21")])
    result.status, result.stdout  # "ok", "42\n"

Two back ends, `embedded` (Linux, no daemon) and `docker`, start the same worker and pass the
same self-check. `module:factory` takes any object of the user's own, such as a client for a
service. `SandboxSettings` says which one, and how it is set up. What a program's status says is
about the program; when the sandbox itself fails, `SandboxUnavailable` is raised. Compare outputs here, outside: the expected one never
enters the sandbox.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from typing import Any, Self

from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.registry import resolve
from pettingllms.sandbox.client import PooledSandbox
from pettingllms.sandbox.isolation import held_by
from pettingllms.sandbox.types import (
    SANDBOXES,
    STATUSES,
    Case,
    Limits,
    RunResult,
    Sandbox,
    SandboxSettings,
    Status,
)

__all__ = [
    "Case",
    "Limits",
    "RunResult",
    "Sandbox",
    "SandboxSettings",
    "SandboxUnavailable",
    "Status",
    "open_sandbox",
    "shared_sandbox",
]


def open_sandbox(
    sandbox: SandboxSettings | str = "embedded",
    workers: int | None = None,
    *,
    allow_unsafe: bool = False,
    require_isolation: str = "any",
    **changes: Any,
) -> PooledSandbox | CustomSandbox:
    """Open a new sandbox. Workers start with the first programs; `close` it, or use `with`.

    Args:
        sandbox: settings, a back end (`embedded`, `docker`, `module:factory`), or
            the text of a JSON object of settings.
        workers: programs that run at the same time.
        allow_unsafe: let `embedded` run programs where the kernel isolates nothing.
        require_isolation: `full` refuses to run programs with less than namespaces, Landlock and
            seccomp; `any` takes what the machine has, which `isolation` says.
        changes: further keys of the settings, such as `packages=("numpy",)`. Limits size the
            containers of docker; what a run may use is said to `run`.

    Raises:
        ConfigError: settings that cannot be used, a factory that makes no sandbox, or no such level
            of isolation.
        UnknownNameError: there is no such factory.
        SandboxUnavailable: the back end cannot work on this machine, or isolates less than
            required.
    """
    settings = SandboxSettings.of(sandbox, workers=workers, **changes)
    opened = _open(settings, allow_unsafe)
    try:
        # Asking what isolates programs starts a worker, which `any` has no need of.
        if require_isolation != "any":
            held_by(opened, require_isolation)
    except BaseException:
        opened.close()
        raise
    return opened


def _open(settings: SandboxSettings, allow_unsafe: bool) -> PooledSandbox | CustomSandbox:
    backend = settings.backend
    # Each is imported when it is opened, so that none has to work where another one is used.
    if backend == "embedded":
        from pettingllms.sandbox.embedded import EmbeddedSandbox

        return EmbeddedSandbox(
            settings.workers, packages=settings.packages, allow_unsafe=allow_unsafe
        )
    if backend == "docker":
        from pettingllms.sandbox.docker import DockerSandbox, memory_for

        return DockerSandbox(
            settings.workers,
            packages=settings.packages,
            memory_mib=memory_for(settings.limits_over(Limits())),
            runtime=settings.runtime,
        )

    return CustomSandbox(SANDBOXES.path_of(backend))


@functools.cache
def shared_sandbox(sandbox: SandboxSettings | str = "embedded") -> Sandbox:
    """The process's own sandbox of these settings, opened by the first call and closed at exit.

    Settings that differ in limits alone share one. After a fork, the new process gets workers of
    its own.
    """
    return _shared(SandboxSettings.of(sandbox).pool)


_shared = functools.cache(open_sandbox)


# --------------------------------------------------------------------------------------- custom
# The back end `module:factory`: an object of the user's that runs programs.


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
