"""Scratch folders on the host, for workers without a mount namespace.

The launcher makes a folder, tells the worker where it is, and removes it: no path ever comes
from a worker, and only the folder that was made is emptied, known by its device and inode. The
launcher holds a lock on it as long as it lives, which is how a later start tells the folders of
killed processes from those in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import tempfile
import time
from pathlib import Path

from pettingllms.sandbox.worker import folders

logger = logging.getLogger(__name__)

_PREFIX = "pettingllms-scratch-"
_FILES = "files"
_REMOVE_S = 2.0
"""A killed program may still write for a moment."""


class ScratchFolder:
    """A folder for the files of one worker's programs.

    Programs write to `path`, which lies in a folder that only the launcher can change.

    Raises:
        OSError: the temporary folder cannot be written.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._outer, self._fd = _make_locked()
        # Programs may run as another user, who has to pass through.
        os.fchmod(self._fd, 0o711)
        os.mkdir(_FILES, 0o700, dir_fd=self._fd)
        self.path = str(self._outer / _FILES)
        self._identity = _identity(self._fd, _FILES)

    def remove(self) -> None:
        """Remove the folder and what programs left in it; does nothing the second time.

        A forked process lets go of its parent's folder.
        """
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            if os.getpid() == self._owner:
                _remove(self._outer, fd, self._identity)
        finally:
            os.close(fd)


def remove_leftovers() -> int:
    """Remove the folders of this user's processes that were killed; returns how many."""
    removed = 0
    with os.scandir(tempfile.gettempdir()) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(_PREFIX)]
    for outer in found:
        with contextlib.suppress(OSError):  # it has just been removed, or is not ours
            fd = folders.open_folder(str(outer))
            try:
                if os.fstat(fd).st_uid == os.geteuid() and _is_abandoned(fd):
                    _remove(outer, fd, _identity(fd, _FILES))
                    removed += 1
            finally:
                os.close(fd)
    return removed


def _make_locked() -> tuple[Path, int]:
    """A new folder and its locked descriptor."""
    while True:
        outer = Path(tempfile.mkdtemp(prefix=_PREFIX))
        fd = folders.open_folder(str(outer))
        fcntl.flock(fd, fcntl.LOCK_EX)
        # Another process that looked for leftovers may have removed it before it was locked.
        if _identity_of(outer) is not None:
            return outer, fd
        os.close(fd)


def _is_abandoned(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _identity(folder: int, name: str) -> tuple[int, int] | None:
    """Device and inode of `name` in `folder`, without following a link; None if it is missing."""
    try:
        found = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _remove(outer: Path, fd: int, files: tuple[int, int] | None) -> None:
    """Empty and remove `outer`, open as `fd`, if its inner folder is still the one of `files`."""
    deadline = time.monotonic() + _REMOVE_S
    while True:
        try:
            _empty_files(fd, files)
            own = os.fstat(fd)
            if _identity_of(outer) == (own.st_dev, own.st_ino):
                outer.rmdir()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                logger.warning("the scratch folder %s is left behind: %s", outer, error)
                return
            time.sleep(0.02)


def _empty_files(fd: int, files: tuple[int, int] | None) -> None:
    found = _identity(fd, _FILES)
    if found is None:
        return
    try:
        inner = folders.open_folder(_FILES, below=fd)
    except OSError:
        os.unlink(_FILES, dir_fd=fd)  # a link or a file in its place, not what it leads to
        return
    try:
        own = os.fstat(inner)
        if (own.st_dev, own.st_ino) != files:
            raise OSError(f"{_FILES} is another folder than the one that was made")
        folders.empty(inner)
    finally:
        os.close(inner)
    os.rmdir(_FILES, dir_fd=fd)


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
