"""Layers of isolation: which ones make it full, what this machine offers, and how it gets what it lacks."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pettingllms.errors import ConfigError, SandboxUnavailable, did_you_mean

LAYERS = ("namespaces", "landlock", "seccomp")
"""All that the worker can put around a program, the strongest first."""
LEVELS = {"any": (), "full": LAYERS}
"""Values of `require_isolation`, and the layers that each requires a worker to report."""

CONTAINER_OPTIONS = (
    "--security-opt",
    "seccomp=unconfined",
    "--security-opt",
    "apparmor=unconfined",
)
"""Options that let a container's processes make namespaces; the worker installs a filter of its own."""

# Ways to forbid user namespaces: in Debian's kernels, in every kernel, and in Ubuntu's AppArmor.
_SWITCHES = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
_CURES = {
    "landlock": "use a kernel >= 5.13 with lsm=landlock,... on its command line",
    "seccomp": "use a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64",
}


def layers_of(level: str) -> tuple[str, ...]:
    """The layers that `level` requires.

    Raises:
        ConfigError: there is no such level.
    """
    if level not in LEVELS:
        hint = did_you_mean(level, tuple(LEVELS))
        raise ConfigError(f"no level of isolation {level!r}; {hint}")
    return tuple(LEVELS[level])


def cure(layer: str) -> str:
    """The command or change that gives this machine `layer`."""
    if layer in _CURES:
        return _CURES[layer]
    for path, bad, setting in _SWITCHES:
        # A switch may be absent: two of them come with some kernels only.
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == bad:
                return f"sysctl -w {setting}"
    return f"in a container: start it with docker run {' '.join(CONTAINER_OPTIONS)} ..."


def announce(held_by: str) -> str:
    """Returns a line for the log about the isolation, such as `docker+landlock+seccomp`."""
    if held_by.startswith("unavailable"):
        return f"no program can run here: {held_by}"
    missing = [layer for layer in LAYERS if layer not in held_by.split("+")]
    if not missing:
        return f"isolation of model-written programs: {held_by}"
    return (
        f"isolation of model-written programs: only {held_by}, without {', '.join(missing)}; "
        "`pettingllms-sandbox doctor` says how to get more, --require-isolation full refuses less"
    )


def require(
    wanted: Sequence[str],
    layers: Sequence[str],
    problems: Sequence[str],
    reason: str = "full isolation is required",
) -> None:
    """Refuse a worker that reports `layers` and `problems` where `wanted` is required.

    Raises:
        SandboxUnavailable: names each missing layer, why it is missing, and its cure.
    """
    missing = [layer for layer in wanted if layer not in layers]
    if not missing:
        return
    # A problem begins with the layer that it is about.
    why = {problem.partition(": ")[0]: problem for problem in problems}
    details = "; ".join(f"{why.get(layer, layer)} ({cure(layer)})" for layer in missing)
    raise SandboxUnavailable(
        f"{reason}, and programs would be held by {'+'.join(layers) or 'nothing'} alone; "
        f"missing: {details}"
    )


def held_by(sandbox: Any, level: str) -> str:
    """Layers around the programs of any sandbox, as in `namespaces+landlock+seccomp`.

    Raises:
        ConfigError: there is no such level.
        SandboxUnavailable: the sandbox isolates less than `level`, or does not say how it isolates.
    """
    layers_of(level)
    if hasattr(sandbox, "require_isolation"):
        sandbox.require_isolation(level)
    elif level != "any":
        raise SandboxUnavailable(
            f"{level} isolation is required, and {type(sandbox).__name__} does not say how it "
            "isolates; leave --require-isolation out, or use embedded or docker"
        )
    return "+".join(getattr(sandbox, "isolation", ("unknown",)))


_DOCKER_CURE = "pip install 'pettingllms[docker]'"
_ENGINE_CURE = "start an engine (systemctl start docker), or set DOCKER_HOST to the socket of one"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `cure` is what to type or change, empty where all is well."""

    what: str
    state: Literal["ok", "missing"]
    detail: str
    cure: str = ""


def diagnose() -> Iterator[Finding]:
    """Look at everything that the two back ends need, the embedded one first."""
    yield Finding("system", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")
    yield Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield from _embedded()
    yield from _docker()


def _embedded() -> Iterator[Finding]:
    if sys.platform != "linux":
        yield Finding("embedded", "missing", "needs Linux", "use --sandbox docker")
        return
    from pettingllms.sandbox.embedded import launch
    from pettingllms.sandbox.workers import WorkerLost

    try:
        # An unsafe worker starts as well, and can therefore name everything that is missing.
        connection = launch(allow_unsafe=True)
    except WorkerLost as error:
        yield Finding("embedded", "missing", f"no worker starts: {error}", "use --sandbox docker")
        return
    with contextlib.closing(connection):
        layers, problems = connection.layers, dict(p.split(": ", 1) for p in connection.problems)
    for layer in LAYERS:
        if layer in problems:
            yield Finding(layer, "missing", problems[layer], cure(layer))
        else:
            yield Finding(layer, "ok", "works here")
    if "user" in problems:
        readable = "put Python and its packages where other users may read them"
        yield Finding("user", "missing", problems["user"], readable)
    safe = "+".join(layers)
    if safe:
        yield Finding("embedded", "ok", f"isolates by {safe}")
    else:
        yield Finding("embedded", "missing", "nothing isolates here", "use --sandbox docker")


def _docker() -> Iterator[Finding]:
    from pettingllms.sandbox import docker

    try:
        client = docker.connect()
    except SandboxUnavailable as error:
        has_package = importlib.util.find_spec("docker") is not None
        yield Finding(
            "docker", "missing", str(error), _ENGINE_CURE if has_package else _DOCKER_CURE
        )
        return
    with contextlib.closing(client):
        version = client.version()
        yield Finding("engine", "ok", f"{version.get('Version')}, API {client.api.api_version}")
        name = docker.image_name()
        tags = [tag for image in client.images.list() for tag in image.tags]
    # The names of images with packages begin with this one.
    ours = [tag for tag in tags if tag.startswith(f"{name}")]
    if name in ours:
        yield Finding("image", "ok", ", ".join(ours))
    else:
        yield Finding(
            "image",
            "missing",
            f"no {name}",
            "pettingllms-sandbox build (without a registry: sandbox/build-offline.sh)",
        )
