"""A Docker engine for tests: the one that is there, or one of our own."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox import docker

SCRIPT = Path(__file__).parents[1] / "sandbox" / "dev-engine.sh"
START_S = 60
BASE = "pettingllms-sandbox-base:host"
LEFT_OUT = {"__pycache__", "test", "idlelib", "lib2to3", "ensurepip", "site-packages", "tkinter"}


def reachable(url: str | None) -> bool:
    """Whether an engine answers at `url`, or where the environment says."""
    try:
        docker.connect(url).close()
    except SandboxUnavailable:
        return False
    return True


@contextmanager
def own_engine(folder: Path, *options: str) -> Iterator[str]:
    """An engine of our own below `folder`, with further options of `dockerd`; its address."""
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        pytest.skip("no Docker engine answers, and dockerd cannot be started: it needs root")
    url = f"unix://{folder}/docker.sock"
    folder.mkdir(exist_ok=True)
    with (folder / "log").open("wb") as log:
        engine = subprocess.Popen(
            [str(SCRIPT), str(folder), *options], stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_S
        while not reachable(url):
            ended = engine.poll() is not None or time.monotonic() > deadline
            assert not ended, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield url
    finally:
        stop(engine)
        shutil.rmtree(folder, ignore_errors=True)


def stop(engine: subprocess.Popen[bytes]) -> None:
    """End an engine and what it started."""
    engine.send_signal(signal.SIGTERM)
    try:
        engine.wait(30)
    except subprocess.TimeoutExpired:
        engine.kill()
        engine.wait()


def stop_at(url: str) -> None:
    """Stop the engine of `own_engine` at `url`, and with it its containers."""
    pid = int((Path(url.removeprefix("unix://")).parent / "dockerd.pid").read_text())
    os.kill(pid, signal.SIGTERM)


def host_base(client: Any, packages: Sequence[str] = ()) -> str:
    """Make a base image from this machine's Python, since tests have no registry; returns its name."""
    interpreter = Path(sys.executable).resolve()
    standard = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    folders = [Path(next(iter(_places(name)))) for name in packages]
    folders += [libs for at in folders if (libs := at.with_name(f"{at.name}.libs")).is_dir()]
    binaries = [
        interpreter,
        *(so for at in (standard / "lib-dynload", *folders) for so in at.rglob("*.so*")),
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for link in map(Path, ("/lib", "/lib64", "/usr/lib64")):
            if link.is_symlink():
                tar.add(link, str(link)[1:])
        for library in _libraries(binaries):
            tar.add(library.resolve(), str(library)[1:])
        tar.add(interpreter, str(interpreter)[1:])
        tar.add(standard, str(standard)[1:], filter=_plain)
        for at in folders:
            tar.add(at, str(standard / "site-packages" / at.name)[1:], filter=_plain)
        python = tarfile.TarInfo("usr/local/bin/python3")
        python.type, python.linkname = tarfile.SYMTYPE, str(interpreter)
        tar.addfile(python)
        tmp = tarfile.TarInfo("tmp")
        tmp.type, tmp.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(tmp)
    changes = ["ENV PATH=/usr/local/bin", "ENV LANG=C.UTF-8", 'CMD ["python3"]']
    name, tag = BASE.split(":")
    client.api.import_image_from_data(buffer.getvalue(), repository=name, tag=tag, changes=changes)
    return BASE


def _places(package: str) -> Sequence[str]:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    return spec.submodule_search_locations or ()


def _libraries(binaries: Sequence[Path]) -> set[Path]:
    """The shared libraries of the system that these load, and the loader."""
    listing = subprocess.run(
        ["ldd", *map(str, binaries)], capture_output=True, text=True, check=False
    ).stdout
    loaded = re.findall(r"(?:=>\s*|^\s*)(/\S+) \(0x", listing, re.MULTILINE)
    # One file has several names: /lib is a link to /usr/lib.
    return {path.parent.resolve() / path.name for path in map(Path, loaded)}


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """A file that root owns and everybody can read."""
    if LEFT_OUT.intersection(Path(info.name).parts[1:]) and "numpy" not in info.name:
        return None
    info.uid = info.gid = 0
    info.mode |= 0o555 if info.isdir() else 0o444
    return info
