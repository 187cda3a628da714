"""The image that containers are made from: Python, the worker, and nothing that runs by itself.

With a registry, the base is the official slim image, pinned by digest in the Dockerfile. Without
one, `host_base` makes a base from this machine's own Python: the interpreter, its standard
library, the shared libraries that these load, and no shell.
"""

from __future__ import annotations

import hashlib
import io
import sys
import sysconfig
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox.embedded import ENVIRONMENT, WORKER_MAIN, python_command
from pettingllms.sandbox.worker.rootfs import ZONES
from pettingllms.sandbox.workers import ProcessChannel

IMAGE = "pettingllms-sandbox"
HOST_BASE = f"{IMAGE}-base:host"

_WORKER_FOLDER = WORKER_MAIN.parent
_DOCKERFILE = Path(__file__).parent / "Dockerfile"
_LEFT_OUT = {"__pycache__", "test", "idlelib", "lib2to3", "ensurepip", "site-packages", "tkinter"}
_LINKS = [Path(name) for name in ("/lib", "/lib64", "/usr/lib64", "/bin", "/sbin")]
_PYTHON = "/usr/local/bin/python3"
_START_S = 120.0


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
        packages: third-party packages to install, as for `pip`. They must be in `base` already
            if that was made by `host_base`.
        base: another base image than the Dockerfile's.

    Raises:
        SandboxUnavailable: the engine could not do it.
    """
    own_base = base == HOST_BASE
    arguments = {} if base is None else {"BASE": base}
    if packages and not own_base:
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
            "`pettingllms-sandbox build --base host` makes the base from this machine's Python"
        ) from error
    return name


def host_base(client: Any, *, packages: Sequence[str] = ()) -> str:
    """Make a base image from this machine's Python and give it to the engine; returns its name."""
    changes = ("ENV PATH=/usr/local/bin:/usr/bin:/bin", "ENV LANG=C.UTF-8", f"CMD [{_PYTHON!r}]")
    client.api.import_image_from_data(
        _host_tar(packages),
        repository=HOST_BASE.split(":")[0],
        tag=HOST_BASE.split(":")[1],
        # CMD is JSON, whose texts have double quotes.
        changes=[change.replace("'", '"') for change in changes],
    )
    return HOST_BASE


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


def _host_tar(packages: Sequence[str]) -> bytes:
    described = _describe(packages)
    interpreter = Path(sys.executable).resolve()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for link in _LINKS:
            # Of a merged /usr these folders are links, and must not become copies.
            if link.is_symlink():
                tar.add(link, str(link).lstrip("/"))
        for path in (interpreter, *_loaders(), *_with_names(map(Path, described["libraries"]))):
            tar.add(path, str(path).lstrip("/"), filter=_plain)
        for folder in described["standard"]:
            tar.add(folder, folder.lstrip("/"), filter=_standard)
        if Path(ZONES).is_dir():
            tar.add(ZONES, ZONES.lstrip("/"), filter=_plain)
        for package in map(Path, described["packages"]):
            tar.add(package, str(_site_packages() / package.name).lstrip("/"), filter=_plain)
        for name, data in (
            ("passwd", "nobody:x:65534:65534::/:\n"),
            ("group", "nogroup:x:65534:\n"),
        ):
            tar.addfile(*_entry(f"etc/{name}", data.encode()))
        tar.addfile(_link(_PYTHON, str(interpreter)))
        tar.addfile(_folder("tmp", 0o1777))
    return buffer.getvalue()


def _describe(packages: Sequence[str]) -> dict[str, list[str]]:
    channel = ProcessChannel(python_command(packages, describe=True), ENVIRONMENT)
    try:
        answer = channel.stream.read_header(time.monotonic() + _START_S)
    finally:
        channel.kill()
        channel.close()
    if "failure" in answer:
        raise SandboxUnavailable(f"this machine's Python cannot be used: {answer['failure']}")
    return {name: list(answer.get(name, ())) for name in ("libraries", "standard", "packages")}


def _loaders() -> list[Path]:
    """The links by which programs name the dynamic loader, such as /lib64/ld-linux-x86-64.so.2."""
    folders = {Path(name).resolve() for name in ("/lib", "/lib64") if Path(name).is_dir()}
    return sorted(
        link for folder in folders for link in folder.glob("ld-*.so*") if link.is_symlink()
    )


def _with_names(libraries: Iterable[Path]) -> Iterator[Path]:
    """`libraries` and the links in their folders by which the loader knows them."""
    for library in libraries:
        yield library
        for other in sorted(library.parent.glob(library.name.split(".so")[0] + ".so*")):
            if other.is_symlink() and other.resolve() == library.resolve():
                yield other


def _site_packages() -> Path:
    """The folder in which the interpreter of the image, outside any environment, finds packages."""
    prefix = {"base": sys.base_prefix, "platbase": sys.base_prefix}
    return Path(sysconfig.get_path("purelib", vars=prefix))


def _standard(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """`_plain`, without what no program needs of the standard library's folder."""
    parts = Path(info.name).parts
    unwanted = _LEFT_OUT.intersection(parts) or any(part.startswith("config-3") for part in parts)
    return None if unwanted else _plain(info)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """A file that root owns and everybody can read."""
    if not (info.isfile() or info.isdir() or info.issym()):
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode |= 0o555 if info.isdir() else 0o444
    return info


def _link(path: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path.lstrip("/"))
    info.type = tarfile.SYMTYPE
    info.linkname = target
    return info


def _folder(path: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.type = tarfile.DIRTYPE
    info.mode = mode
    return info
