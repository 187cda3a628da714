"""Runs and evaluations below the folders that a viewer was given, and their files, read only.

A file is opened by one of the names of `pettingllms.rollout.files`, in a folder that lies below a
given one, and only if neither is a symbolic link: nothing that a run contains leads out of it. The
given paths themselves may be links, such as `runs/latest`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.plain_yaml import read_yaml
from pettingllms.rollout.files import (
    ADVICE,
    CONFIG,
    METRICS,
    RESULTS,
    RUN_LOCK,
    SETTINGS,
    STARTS,
    SUMMARY,
    TRAJECTORIES,
)

DEEP = 3
"""Levels below a given folder at which runs are looked for."""
LATELY = 60.0
"""Seconds since the last write in which a run whose lock is unknown counts as running."""
_SMALL = 4 << 20
"""Largest configuration or summary that is read."""
_TAIL = 256 << 10
"""Bytes at the end of metrics.jsonl in which the last success is looked for."""


@dataclass(frozen=True, slots=True)
class Source:
    """A run or an evaluation."""

    name: str
    """Unique among the sources of a viewer; stands in links."""
    kind: str
    """`run` or `eval`."""
    path: Path

    def open(self, name: str) -> BinaryIO | None:
        """Opens a file of the folder for reading; None where there is no regular file."""
        with contextlib.suppress(OSError):
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                # A pipe under that name would block without O_NONBLOCK.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                # Relative to the open folder: a link that takes its place by now is not followed.
                descriptor = os.open(name, flags, dir_fd=folder)
            finally:
                os.close(folder)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return os.fdopen(descriptor, "rb")
            os.close(descriptor)
        return None

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None where it is absent or large."""
        file = self.open(name)
        if file is None:
            return None
        with file:
            # A byte more than allowed tells a file that is too large.
            content = file.read(_SMALL + 1)
        return content if len(content) <= _SMALL else None

    def json(self, name: str) -> Any:
        """The content of a JSON file; None where there is none that can be read."""
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(self.read(name) or b"null")
        return None

    def settings(self) -> dict[str, Any]:
        """The settings; empty where they cannot be read."""
        values: Any = None
        if self.kind == "run":
            values = _yaml(self.read(CONFIG) or b"")
        else:
            head = self.json(SETTINGS)
            values = head.get("settings") if isinstance(head, dict) else None
        return values if isinstance(values, dict) else {}

    def state(self) -> str:
        """`running`, `finished` or `interrupted`."""
        lock, last = (RUN_LOCK, SUMMARY) if self.kind == "run" else (TRAJECTORIES, RESULTS)
        if self._locked(lock):
            return "running"
        if self._modified(last) is not None:
            return "finished"
        # The lock of a process in another container is not visible here; its writes are.
        changed = max((self._modified(log) or 0.0 for log in (METRICS, TRAJECTORIES)), default=0.0)
        return "running" if time.time() - changed < LATELY else "interrupted"

    def about(self) -> dict[str, Any]:
        """The fields that the list of runs shows."""
        settings, last = self.settings(), self._last_row()
        results = self.json(RESULTS) if self.kind == "eval" else None
        success = results.get("success") if isinstance(results, dict) else None
        starts, advice = self.json(STARTS), self.json(ADVICE)
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state(),
            "settings": settings,
            "advice": advice.get("text") if isinstance(advice, dict) else None,
            "start": starts[-1] if isinstance(starts, list) and starts else None,
            "step": last.get("step"),
            "success": success.get("mean") if isinstance(success, dict) else last.get("success"),
            "updated": max(self._modified(log) or 0.0 for log in (METRICS, TRAJECTORIES)),
        }

    def _last_row(self) -> dict[str, Any]:
        """The last training row of metrics.jsonl; empty where there is none."""
        file = self.open(METRICS)
        if file is None:
            return {}
        with file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            # Without the last one, which is empty or still being written.
            lines = file.read().split(b"\n")[:-1]
        for line in reversed(lines):
            with contextlib.suppress(ValueError, RecursionError):
                # The first line may lack its start, and is then no JSON.
                row = json.loads(line)
                if isinstance(row, dict) and row.get("kind") == "train":
                    return row
        return {}

    def _modified(self, name: str) -> float | None:
        with contextlib.suppress(OSError):
            return (self.path / name).lstat().st_mtime
        return None

    def _locked(self, name: str) -> bool:
        """Returns whether a process holds the lock; does not take it, which could stop a writer."""
        with contextlib.suppress(OSError):
            # By inode alone: overlays and btrfs show another device here than `stat` does.
            held = f":{(self.path / name).lstat().st_ino}"
            locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
            # A line is like `1: FLOCK ADVISORY WRITE 4242 08:01:131 0 EOF`: process, device, inode.
            return any("FLOCK" in line and f"{held} " in line for line in locks)
        return False


@lru_cache(maxsize=1024)
def _yaml(text: bytes) -> Any:
    """The value; None where it cannot be read. Kept, because the list of runs is asked for again and again."""
    with contextlib.suppress(ConfigError):
        return read_yaml(text)
    return None


def sources_in(roots: Iterable[Path]) -> list[Source]:
    """The runs and evaluations in and below `roots`, each once, by name."""
    sources: dict[Path, Source] = {}
    names: set[str] = set()
    for root in roots:
        base = root.resolve()
        for path, kind in _found(base, DEEP):
            if path in sources:
                continue
            inside = path.relative_to(base).as_posix()
            # Two parts at most of the given path: an exported file shall not name a home folder.
            name = f"{base.name}/{inside}" if inside != "." else "/".join(path.parts[-2:])
            numbered = (f"{name}#{number}" for number in itertools.count(2))
            unique = next(
                candidate
                for candidate in itertools.chain([name], numbered)
                if candidate not in names
            )
            names.add(unique)
            sources[path] = Source(unique, kind, path)
    return sorted(sources.values(), key=lambda source: (source.kind != "run", source.name))


def _found(path: Path, deep: int) -> Iterator[tuple[Path, str]]:
    """Folders with a run or an evaluation and their kind; links are not followed."""
    try:
        with os.scandir(path) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    names = {entry.name for entry in inside}
    if CONFIG in names and names & {STARTS, METRICS, TRAJECTORIES}:
        yield path, "run"
    elif SETTINGS in names and TRAJECTORIES in names:
        yield path, "eval"
    elif deep:
        for entry in inside:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _found(path / entry.name, deep - 1)


def checked(given: Sequence[str]) -> list[Path]:
    """The folders to show: those that were named, else `runs` and `evals` where they exist.

    Raises:
        ConfigError: one of them is no folder or holds neither a run nor an evaluation, or nothing
            was named and there is nothing here.
    """
    if not given:
        roots = [path for path in (Path("runs"), Path("evals")) if path.is_dir()]
        if not roots:
            raise ConfigError(
                "there is neither runs/ nor evals/ here; name the folder of a run or an evaluation"
            )
        return roots
    for name in given:
        path = Path(name)
        if not path.is_dir():
            beside = path.parent
            names = (
                [entry.name for entry in beside.iterdir() if entry.is_dir()]
                if beside.is_dir()
                else []
            )
            raise ConfigError(f"{name!r} is no folder; {did_you_mean(path.name, names)}")
        if not sources_in([path]):
            raise ConfigError(
                f"{name!r} holds no run and no evaluation: neither {CONFIG} with {METRICS} nor "
                f"{SETTINGS} with {TRAJECTORIES}, {DEEP} levels deep"
            )
    return [Path(name) for name in given]
