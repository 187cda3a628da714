"""The root file system of programs: the standard library, its shared libraries, and no more.

`find` looks at the running interpreter, wherever it was installed; `build` makes a small
read-only root that holds just that, and moves this process into it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from pettingllms.sandbox.worker import kernel

DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
SCRATCH_PARENT = "/scratch"
SCRATCH = f"{SCRATCH_PARENT}/tmp"
"""Where each program's own folder is mounted. /tmp leads to it: a Landlock rule for the folder above
holds in every later mount, one for the mount itself would have to be made for every run."""
STDIN_COPY = ".stdin"
"""The target of /dev/stdin in the scratch folder, for programs that open it by that name."""
ZONES = "/usr/share/zoneinfo"
_LINKS = ("/lib", "/lib64", "/usr/lib64")
_STAGES = ("/tmp", "/mnt", "/run", "/dev")
_PLAIN = kernel.MS_NOSUID | kernel.MS_NODEV
_STANDARD = tuple(sys.path)
"""The standard library's folders: a worker starts with no others."""
_NEVER_IMPORTED = ("_test", "_tkinter", "xxlimited", "_ctypes_test")
_FOREIGN = ("site-packages", "dist-packages")


class RootFs(NamedTuple):
    """Absolute paths: folders and files to show read-only, and folders in them to hide."""

    shown: tuple[str, ...]
    hidden: tuple[str, ...]
    packages: tuple[str, ...]
    """Shown as well, and perhaps inside a hidden folder."""


def find(packages: Sequence[str]) -> RootFs:
    """The root for this interpreter and the named third-party packages."""
    standard = [path for path in _STANDARD if os.path.isdir(path)]
    # Elsewhere, because it loads all extensions there are, and every fork would carry them.
    paths = kernel.in_another_process(lambda: _scout(packages))
    shown = _outermost([*standard, *paths["libraries"], ZONES])
    hidden = [
        os.path.join(folder, name)
        for folder in (*standard, *paths["libraries"])
        for name in _FOREIGN
        if os.path.isdir(os.path.join(folder, name))
    ]
    return RootFs(tuple(shown), tuple(dict.fromkeys(hidden)), tuple(paths["packages"]))


def _outermost(paths: Sequence[str]) -> list[str]:
    """`paths` that exist, without those that lie inside another of them."""
    present = sorted({os.path.abspath(path) for path in paths if os.path.exists(path)})
    return [
        path
        for path in present
        if not any(path.startswith(other + os.sep) for other in present if other != path)
    ]


def _scout(packages: Sequence[str]) -> dict[str, list[str]]:
    before = _mapped_files()
    # What this process has mapped needs no file any more.
    files = _libraries(packages) - before
    return {"libraries": sorted({os.path.dirname(file) for file in files}), "packages": _wheels()}


def _libraries(packages: Sequence[str]) -> set[str]:
    """Shared libraries outside Python's own folders that this Python can ever need.

    Loads all of them: for a process that ends soon.
    """
    for name in packages:
        importlib.import_module(name)
    for folder in [path for path in _STANDARD if path.endswith("lib-dynload")]:
        for name in sorted(os.listdir(folder)):
            if name.endswith(".so") and not name.startswith(_NEVER_IMPORTED):
                _load(os.path.join(folder, name))
    prefixes = tuple(os.path.join(path, "") for path in (*_STANDARD, *_wheels()))
    return {path for path in _mapped_files() if ".so" in path and not path.startswith(prefixes)}


def _load(file: str) -> None:
    try:
        ctypes.CDLL(file)
    except OSError:
        # An extension whose library the host lacks cannot be imported outside either.
        return


def _mapped_files() -> set[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        # The path is the last of six fields, and may itself hold blanks.
        lines = (line.rstrip("\n").split(maxsplit=5) for line in maps)
        return {fields[5] for fields in lines if len(fields) == 6}


def _wheels() -> list[str]:
    """Top-level files and folders, outside the standard library, that are imported by now."""
    paths: set[str] = set()
    for name, module in list(sys.modules.items()):
        if "." in name or name == "__main__":
            continue
        file = getattr(module, "__file__", None)
        if file is None:  # built in, or a package without a file of its own, in several folders
            paths.update(map(str, getattr(module, "__path__", ())))
        elif not _is_standard(file):
            inside = os.path.basename(file).startswith("__init__.")
            place = os.path.dirname(file) if inside else file
            # Wheels bring shared libraries in a folder of this name beside their package.
            libraries = os.path.join(os.path.dirname(place), f"{name}.libs")
            paths.update((place, libraries) if os.path.isdir(libraries) else (place,))
    return sorted(paths)


def _is_standard(file: str) -> bool:
    parts = file.split(os.sep)
    foreign = any(name in parts for name in _FOREIGN)
    return not foreign and file.startswith(tuple(path + os.sep for path in _STANDARD))


def build(wanted: RootFs) -> None:
    """Make the root that `wanted` describes, and move this process into it.

    Needs its own mount namespace and CAP_SYS_ADMIN in it.
    """
    # Nothing that is mounted from here on may spread to the host.
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    # Sources are held by descriptor: one of them may lie below the folder covered next.
    sources = {
        path: os.open(path, os.O_PATH | os.O_CLOEXEC)
        for path in (*wanted.shown, *wanted.packages, *DEVICES)
    }
    links = {path: os.readlink(path) for path in _LINKS if os.path.islink(path)}
    # Any folder will do: what it covers has been opened above.
    stage = next(path for path in _STAGES if os.path.isdir(path))
    kernel.mount("tmpfs", stage, "tmpfs", _PLAIN, b"size=256k,nr_inodes=512,mode=755")
    os.mkdir(stage + "/.old")
    os.makedirs(stage + SCRATCH)
    os.symlink(SCRATCH.lstrip("/"), stage + "/tmp")
    for path in (*wanted.shown, *DEVICES):
        _show(sources[path], stage + path, device=path in DEVICES)
    for path in wanted.hidden:
        _hide(stage + path)
    for path in wanted.packages:
        _show(sources[path], stage + path)
    # Only now, because packages were mounted inside some of them.
    for path in wanted.hidden:
        _freeze(stage + path)
    for source in sources.values():
        os.close(source)
    for path, target in links.items():
        if not os.path.lexists(stage + path):
            os.makedirs(os.path.dirname(stage + path), exist_ok=True)
            os.symlink(target, stage + path)
    os.symlink(f"{SCRATCH}/{STDIN_COPY}", stage + "/dev/stdin")
    os.chdir(stage)
    kernel.pivot_root(".", ".old")
    os.chdir("/")
    kernel.detach("/.old")
    os.rmdir("/.old")
    kernel.mount(None, "/", None, kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | _PLAIN)


def _show(source: int, target: str, *, device: bool = False) -> None:
    path = f"/proc/self/fd/{source}"
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        # A file can be mounted on another file only.
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)
    # Read-only devices can be written to, but their modes and times cannot be changed.
    _freeze(target, kernel.MS_NOSUID if device else _PLAIN)


def _hide(target: str) -> None:
    kernel.mount("tmpfs", target, "tmpfs", _PLAIN, b"size=64k,nr_inodes=64,mode=755")


def _freeze(target: str, plain: int = _PLAIN) -> None:
    # A user namespace may not drop flags that the host's mount has, so noexec is kept.
    kept = kernel.MS_NOEXEC if os.statvfs(target).f_flag & os.ST_NOEXEC else 0
    flags = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | plain | kept
    kernel.mount(None, target, None, flags)
