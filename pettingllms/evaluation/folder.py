"""The folder of an evaluation: its settings, every episode, and the results.

    settings.json       settings, versions, git revision: written first, and compared on resuming
    trajectories.jsonl  one line an episode, see `pettingllms.rollout.trajectory`
    results.json        settings and scores, once all episodes are over
    results.md          the tables, with results.png

Episodes are written a chunk at a time. Resuming keeps the complete chunks and plays the rest; the
last three files come out byte for byte as without an interruption.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pettingllms.errors import RunFolderError
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs.folder import TRAJECTORIES, Folder, replace_file, versions
from pettingllms.types import Task

SETTINGS, RESULTS = "settings.json", "results.json"


class _Line(NamedTuple):
    """A line of trajectories.jsonl and where it starts."""

    start: int
    team: str
    episode: Trajectory


class EvalFolder(Folder):
    """The folder of an evaluation, from construction to `close`.

    A new folder is created; one that was begun with the same settings is continued.

    Raises:
        RunFolderError: it cannot be written, is in use, or holds another evaluation; the text
            names the first setting that differs.
    """

    option = "--out"
    lock = TRAJECTORIES
    remedy = "free space, fix permissions or choose another --out, then run the same command again"

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(path)
        self._known: deque[_Line] = deque()
        try:
            self.head = self._begin(settings)
            self._read()
        except BaseException:
            self.close()
            raise

    # --------------------------------------------------------------------------------- episodes

    def take(self, team: str, tasks: Sequence[Task], samples: int) -> list[Trajectory]:
        """The episodes of the next chunk if it is complete; else none, and the log is cut there.

        Raises:
            RunFolderError: trajectories.jsonl has other episodes at this place.
        """
        wanted = [(team, task.id, sample) for task in tasks for sample in range(samples)]
        lines = [self._known.popleft() for _ in wanted if self._known]
        for line, want in zip(lines, wanted, strict=False):
            played = line.episode
            if (line.team, played.task.id, played.episode) != want:
                raise RunFolderError(
                    f"{self.path / TRAJECTORIES} has episode {played.episode} of task {played.task.id} "
                    f"by {line.team!r} where episode {want[2]} of task {want[1]} by {want[0]!r} "
                    "should be; choose another --out"
                )
        if len(lines) == len(wanted):
            return [line.episode for line in lines]
        if lines:
            os.truncate(self.path / TRAJECTORIES, lines[0].start)
        return []

    def add(self, team: str, episodes: Sequence[Trajectory]) -> None:
        """Appends the episodes of a chunk.

        Raises:
            RunFolderError: for example a full disk; resuming removes an incomplete chunk.
        """
        self.append(TRAJECTORIES, (episode.row(team=team) for episode in episodes))

    def _begin(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The content of settings.json: written if no episode was played yet, else compared."""
        values = {"settings": settings, "versions": versions(), "revision": revision(Path.cwd())}
        head: dict[str, Any] = json.loads(json.dumps(values))
        path = self.path
        if not (path / TRAJECTORIES).stat().st_size and not (path / RESULTS).exists():
            self.write(SETTINGS, json.dumps(head, indent=2) + "\n")
            return head
        begun = _read_head(path)
        for part in ("settings", "versions"):
            for name in {**begun[part], **head[part]}:
                old, new = begun[part].get(name), head[part].get(name)
                if old != new:
                    raise RunFolderError(
                        f"{path} holds an evaluation with {name} {old!r}, now it is {new!r}; "
                        "continue with the same, or choose another --out"
                    )
        return begun

    def _read(self) -> None:
        """Reads the log, and cuts a half-written last line."""
        start = 0
        with (self.path / TRAJECTORIES).open("rb") as file:
            for data in file:
                if not data.endswith(b"\n"):
                    os.truncate(self.path / TRAJECTORIES, start)
                    return
                self._known.append(_line(self.path / TRAJECTORIES, data, start))
                start += len(data)


def write_file(path: Path, content: str | bytes) -> None:
    """Replaces a file as a whole, and creates its folder if missing.

    Raises:
        RunFolderError: it cannot be written; the old one is untouched.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror}; {EvalFolder.remedy}"
        ) from error


def read_trajectories(path: Path) -> dict[str, list[Trajectory]]:
    """Team -> its episodes, of a finished evaluation.

    Raises:
        RunFolderError: there is none in this folder, or it is unfinished or damaged.
    """
    if not (path / TRAJECTORIES).is_file():
        raise RunFolderError(f"{path} holds no evaluation: it has no {TRAJECTORIES}")
    if not (path / RESULTS).is_file():
        raise RunFolderError(
            f"the evaluation in {path} is not finished; run its command again to resume it"
        )
    teams: dict[str, list[Trajectory]] = {}
    with (path / TRAJECTORIES).open("rb") as file:
        for data in file:
            _, team, episode = _line(path / TRAJECTORIES, data, 0)
            teams.setdefault(team, []).append(episode)
    return teams


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of the evaluation in a folder.

    Raises:
        RunFolderError: they cannot be read.
    """
    return dict(_read_head(path)["settings"])


# -------------------------------------------------------------------------------------- settings


def revision(directory: Path) -> dict[str, Any] | None:
    """Commit of the git repository that `directory` is in, and whether files differ from it.

    None where there is no repository, no commit or no git.
    """
    if (git := shutil.which("git")) is None:
        return None

    def ask(*words: str) -> str | None:
        done = subprocess.run(
            [git, "-C", str(directory), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "changed": bool(ask("status", "--porcelain"))}


def digest(path: Path) -> str:
    """Sixteen hex digits of a file, or of all files of a folder with their names."""
    found = hashlib.sha256()
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    for file in files:
        with file.open("rb") as data:
            found.update(f"{file.relative_to(path)} ".encode())
            found.update(hashlib.file_digest(data, "sha256").digest())
    return found.hexdigest()[:16]


def _read_head(path: Path) -> dict[str, Any]:
    try:
        head: dict[str, Any] = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path / SETTINGS} cannot be read: {error}") from error
    if not all(isinstance(head.get(part), dict) for part in ("settings", "versions")):
        raise RunFolderError(f"{path / SETTINGS} has no settings; choose another --out")
    return head


def _line(file: Path, data: bytes, start: int) -> _Line:
    try:
        row = json.loads(data)
        return _Line(start, row["team"], Trajectory.from_row(row))
    except (ValueError, LookupError, TypeError) as error:
        raise RunFolderError(
            f"{file} is damaged at byte {start}: {error}; remove the folder, or choose another --out"
        ) from error
