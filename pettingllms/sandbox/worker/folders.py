"""The scratch folder of a worker that has no mount namespace: emptied, measured, never named.

The launcher makes the folder and passes its path in (`pettingllms.sandbox.embedded`). Everything
here works on descriptors and follows no symbolic link, because a program decides what is inside.
"""

from __future__ import annotations

import functools
import itertools
import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES = 512


def open_folder(path: str, *, below: int | None = None) -> int:
    """A descriptor of the folder `path` itself.

    Raises:
        OSError: there is no folder, or a symbolic link in its place.
    """
    return os.open(path, _FOLDER, dir_fd=below)


def empty(top: int) -> None:
    """Remove all that is in the folder `top`, whatever its depth and modes.

    Folders inside a folder are moved up first: neither a path nor Python's stack may be long
    enough for them. A folder on another device is a mount and is left alone.

    Raises:
        OSError: something cannot be removed.
    """
    # A name that no program can have taken.
    token, numbers = os.urandom(8).hex(), itertools.count()
    device = os.fstat(top).st_dev
    # Folders that were moved up are found in the next round.
    while names := os.listdir(top):
        for name in names:
            if not _is_folder(name, top):
                os.unlink(name, dir_fd=top)
                continue
            _unlock(name, top)
            below = open_folder(name, below=top)
            try:
                if os.fstat(below).st_dev != device:
                    raise OSError(f"{name} is a mount")
                for inner in os.listdir(below):
                    if _is_folder(inner, below):
                        _unlock(inner, below)
                        free = f".{token}-{next(numbers)}"
                        os.rename(inner, free, src_dir_fd=below, dst_dir_fd=top)
                    else:
                        os.unlink(inner, dir_fd=below)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=top)


def exceeds(top: int, most_bytes: int, most_entries: int) -> bool:
    """Tell whether the folder `top` holds more than that, counted in allocated blocks.

    Stops at the first entry too many, so that a program cannot make the measurement expensive.
    Folders that cannot be opened count as one entry.
    """
    held = entries = 0
    # A copy, because each folder that waits is closed when it is done.
    waiting = [os.dup(top)]
    try:
        while waiting:
            folder = waiting.pop()
            try:
                for name in os.listdir(folder):
                    entries += 1
                    if entries > most_entries:
                        return True
                    try:
                        found = os.lstat(name, dir_fd=folder)
                        if stat.S_ISDIR(found.st_mode):
                            waiting.append(open_folder(name, below=folder))
                    except OSError:
                        continue  # the program has removed it, or has locked it up
                    held += found.st_blocks * _BLOCK_BYTES
                    if held > most_bytes:
                        return True
            finally:
                os.close(folder)
    finally:
        for folder in waiting:
            os.close(folder)
    return False


def hidden_bytes(descriptors: int) -> int:
    """Allocated bytes of deleted files that the first `descriptors` descriptors keep alive.

    No folder shows such files. Memory files, which have no name either, are not counted.
    """
    memory = memory_device()
    held = {}
    for fd in range(descriptors):
        try:
            found = os.fstat(fd)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_dev != memory:
            held[found.st_dev, found.st_ino] = found.st_blocks * _BLOCK_BYTES
    return sum(held.values())


@functools.cache
def memory_device() -> int:
    """The device of memory files; asked once, because asking opens a descriptor."""
    fd = os.memfd_create("device", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def _unlock(name: str, folder: int) -> None:
    """Make a folder accessible to its owner. By descriptor, because `chmod` follows links.

    A program that still runs could put a link to a file of the host in the folder's place.
    """
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def _is_folder(name: str, folder: int) -> bool:
    return stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode)
