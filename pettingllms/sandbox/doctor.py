"""Reports what this machine offers the sandbox, what is missing, and the command that fixes it."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox import isolation
from pettingllms.sandbox.embedded import launch
from pettingllms.sandbox.workers import WorkerLost

FindingState = Literal["ok", "missing", "unknown"]

_DOCKER_CURE = "pip install 'pettingllms[docker]'"
_ENGINE_CURE = "start an engine (systemctl start docker), or set DOCKER_HOST to the socket of one"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `cure` is what to type or change, empty where all is well."""

    what: str
    state: FindingState
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
    try:
        connection = launch(allow_unsafe=True)
    except WorkerLost as error:
        yield Finding("embedded", "missing", f"no worker starts: {error}", "use --sandbox docker")
        return
    with contextlib.closing(connection):
        layers, problems = connection.layers, dict(p.split(": ", 1) for p in connection.problems)
    for layer in isolation.LAYERS:
        if layer in problems:
            yield Finding(layer, "missing", problems[layer], isolation.cure(layer))
        else:
            yield Finding(layer, "ok", "works here")
    if "user" in problems:
        cure = "put Python and its packages where other users may read them"
        yield Finding("user", "missing", problems["user"], cure)
    safe = "+".join(layers)
    if safe:
        yield Finding("embedded", "ok", f"isolates by {safe}")
    else:
        yield Finding("embedded", "missing", "nothing isolates here", "use --sandbox docker")


def _docker() -> Iterator[Finding]:
    from pettingllms.sandbox import docker, docker_image

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
        name = docker_image.image_name()
        tags = [tag for found in client.images.list() for tag in found.tags]
    ours = [tag for tag in tags if tag.startswith(f"{name}")]
    if name in ours:
        yield Finding("image", "ok", ", ".join(ours))
    else:
        yield Finding(
            "image",
            "missing",
            f"no {name}",
            "pettingllms-sandbox build (without a registry: build --base host)",
        )
