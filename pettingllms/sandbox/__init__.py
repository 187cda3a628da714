r"""Run programs that a model wrote, without trusting them.

    from pettingllms.sandbox import Case, Limits, open_sandbox

    with open_sandbox("embedded") as sandbox:
        [[result]] = sandbox.run(["print(int(input()) * 2)"], [Case("21")])
    result.status, result.stdout  # "ok", "42\n"

Two back ends, `embedded` (Linux, no daemon) and `docker`, start the same worker and pass the
same self-check. What a program's status says is about the program; when the sandbox itself
fails, `SandboxUnavailable` is raised. Compare outputs here, outside: the expected one never
enters the sandbox.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pettingllms.errors import ConfigError, SandboxUnavailable, did_you_mean
from pettingllms.sandbox.client import PooledSandbox
from pettingllms.sandbox.types import Case, Limits, RunResult, Sandbox, Status

__all__ = [
    "BACKENDS",
    "Case",
    "Limits",
    "RunResult",
    "Sandbox",
    "SandboxUnavailable",
    "Status",
    "open_sandbox",
    "shared_sandbox",
]

BACKENDS = ("embedded", "docker")


def open_sandbox(
    backend: str = "embedded",
    workers: int | None = None,
    *,
    packages: Sequence[str] = (),
    allow_unsafe: bool = False,
) -> PooledSandbox:
    """A new sandbox. Workers start with the first programs; `close` it, or use `with`.

    Args:
        backend: `embedded` or `docker`.
        workers: programs that run at the same time; the number of cores by default.
        packages: third-party packages that programs may import, such as `("numpy",)`.
        allow_unsafe: let `embedded` run programs where the kernel isolates nothing.

    Raises:
        ConfigError: there is no such back end.
        SandboxUnavailable: the back end cannot work on this machine at all.
    """
    if backend == "embedded":
        from pettingllms.sandbox.embedded import EmbeddedSandbox

        return EmbeddedSandbox(workers, packages=packages, allow_unsafe=allow_unsafe)
    if backend == "docker":
        from pettingllms.sandbox.containers import DockerSandbox

        return DockerSandbox(workers, packages=packages)
    raise ConfigError(f"no sandbox back end {backend!r}; {did_you_mean(backend, BACKENDS)}")


def shared_sandbox(backend: str = "embedded") -> PooledSandbox:
    """The process's own sandbox of that back end, opened by the first call and closed at exit.

    After a fork, the new process gets workers of its own.
    """
    return _shared(backend)


@functools.cache
def _shared(backend: str) -> PooledSandbox:
    return open_sandbox(backend)
