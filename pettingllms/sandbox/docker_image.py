"""The image that containers are made from: Python, the worker, and nothing that runs by itself.

The base is the official slim image, pinned by digest in the Dockerfile, or another image with
Python; without a registry, `sandbox/build-offline.sh` makes one.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox.embedded import WORKER_MAIN

IMAGE = "pettingllms-sandbox"

_WORKER_FOLDER = WORKER_MAIN.parent
_DOCKERFILE = Path(__file__).parent / "Dockerfile"


def worker_digest() -> str:
    """A short name for this version of the worker: an image made from another one is stale."""
    digest = hashlib.sha256()
    for file in sorted(_WORKER_FOLDER.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def image_name(packages: Sequence[str] = ()) -> str:
    """The name under which the image for these packages is kept."""
    # The same packages are the same image, in whichever order and case they are named.
    extra = "".join(f"-{name}" for name in sorted(packages))
    return f"{IMAGE}:{worker_digest()}{extra.lower()}"


def build_image(client: Any, *, packages: Sequence[str] = (), base: str | None = None) -> str:
    """Build the image with the engine behind `client`; returns its name.

    Args:
        client: a `docker.DockerClient`.
        packages: third-party packages to install, as for `pip`.
        base: another base image than the Dockerfile's.

    Raises:
        SandboxUnavailable: the engine could not do it.
    """
    arguments = {} if base is None else {"BASE": base}
    if packages:
        arguments["PACKAGES"] = " ".join(packages)
    import docker.errors

    name = image_name(packages)
    try:
        client.images.build(
            fileobj=io.BytesIO(_context()),
            custom_context=True,
            tag=name,
            target="with-packages" if "PACKAGES" in arguments else "sandbox",
            buildargs=arguments,
            rm=True,
            forcerm=True,
        )
    except docker.errors.DockerException as error:
        raise SandboxUnavailable(
            f"the engine could not build the image: {error}; without a registry, "
            "sandbox/build-offline.sh makes a base"
        ) from error
    return name


def _context() -> bytes:
    """The build context: the Dockerfile and the worker, always with the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(*_entry("Dockerfile", _DOCKERFILE.read_bytes()))
        for file in sorted(_WORKER_FOLDER.glob("*.py")):
            tar.addfile(*_entry(f"worker/{file.name}", file.read_bytes()))
    return buffer.getvalue()


def _entry(name: str, data: bytes) -> tuple[tarfile.TarInfo, io.BytesIO]:
    # Without a time, so that the same files give the same bytes.
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    return info, io.BytesIO(data)
