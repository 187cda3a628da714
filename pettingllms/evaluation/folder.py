"""The folder of an evaluation: its settings, every episode, and the results.

    settings.json       settings, versions, git revision: written first, and compared on resuming
    trajectories.jsonl  one line an episode, see `pettingllms.rollout.files`
    results.json        settings and scores, once all episodes are over
    results.md          the tables, with results.png

Episodes are written a chunk at a time (`evaluation/chunks.py`). Resuming keeps the complete chunks
and rolls out the rest; the last three files come out byte for byte as without an interruption. A
folder may also be continued with more `samples`, also one that is finished: the results are those of
asking for all of them at once. Only the missing episodes are rolled out, and those of a last chunk
that becomes larger.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pettingllms.errors import RunFolderError
from pettingllms.evaluation.chunks import EPISODES_AT_ONCE, kept
from pettingllms.rollout.files import RESULTS, SETTINGS, TRAJECTORIES
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs.folder import Folder, replace_file, versions
from pettingllms.types import Task

Key = tuple[str, str, int]
"""Of an episode: team, task, sample."""


class _Line(NamedTuple):
    """A line of trajectories.jsonl and where it starts."""

    start: int
    team: str
    episode: Trajectory

    @property
    def key(self) -> Key:
        return (self.team, self.episode.task.id, self.episode.episode)


class EvalFolder(Folder):
    """The folder of an evaluation, from construction to `close`.

    A new folder is created; one that was begun with the same settings, or with fewer samples, is
    continued.

    Raises:
        RunFolderError: it cannot be written, is in use, or holds another evaluation; the text
            names the first setting that differs.
    """

    option = "--out"
    lock = TRAJECTORIES
    remedy = "free space, fix permissions or choose another --out, then run the same command again"

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(path)
        self._known: dict[Key, _Line] = {}
        try:
            self.head = self._begin(settings)
            self._read()
        except BaseException:
            self.close()
            raise

    # --------------------------------------------------------------------------------- episodes

    def expect(self, teams: Collection[str], tasks: Sequence[Task], samples: int) -> None:
        """Checks that the folder has no other episodes than these.

        Raises:
            RunFolderError: trajectories.jsonl has an episode that is not part of the evaluation.
        """
        ids = {task.id for task in tasks}
        for team, task, sample in self._known:
            if team not in teams or task not in ids or not 0 <= sample < samples:
                raise RunFolderError(
                    f"{self.path / TRAJECTORIES} has episode {sample} of task {task} by {team!r}, "
                    f"which is not part of this evaluation of {', '.join(map(repr, teams))}; "
                    "choose another --out"
                )

    def take(self, team: str, tasks: Sequence[Task], samples: Sequence[int]) -> list[Trajectory]:
        """The episodes of a chunk if it is complete; else none, and it is cut off the log.

        Raises:
            RunFolderError: a chunk lacks episodes, and it is not the last.
        """
        keys = [(team, task.id, sample) for task in tasks for sample in samples]
        # Taken out, so that what is left in `_known` is of chunks that come later.
        lines = [self._known.pop(key) for key in keys if key in self._known]
        if len(lines) == len(keys):
            return [line.episode for line in lines]
        if lines:
            # A part of a chunk would be rolled out in batches of another shape, and rounded
            # otherwise: none of it is kept.
            start = min(line.start for line in lines)
            if any(line.start > start for line in self._known.values()):
                raise RunFolderError(
                    f"{self.path / TRAJECTORIES} lacks {len(keys) - len(lines)} of the episodes "
                    f"{samples[0]} to {samples[-1]} of {team!r} on the tasks {keys[0][1]} to "
                    f"{keys[-1][1]}; remove the folder, or choose another --out"
                )
            with self.writing(TRAJECTORIES):
                os.truncate(self.path / TRAJECTORIES, start)
        return []

    def add(self, team: str, episodes: Sequence[Trajectory]) -> None:
        """Appends the episodes of a chunk.

        Raises:
            RunFolderError: for example a full disk; resuming removes an incomplete chunk.
        """
        self.append(TRAJECTORIES, (episode.row(team=team) for episode in episodes))

    def _begin(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The content of settings.json: written if there is no episode yet, else compared.

        More samples than before make a finished evaluation an unfinished one.
        """
        values = {"settings": settings, "versions": versions(), "revision": revision(Path.cwd())}
        # As it will be read back: tuples, for example, would differ from the lists in the file.
        head: dict[str, Any] = json.loads(json.dumps(values))
        path = self.path
        if not (path / TRAJECTORIES).stat().st_size and not (path / RESULTS).exists():
            self.write(SETTINGS, json.dumps(head, indent=2) + "\n")
            return head
        begun = _read_head(path)
        before, now = (each["settings"].get("samples") for each in (begun, head))
        more = isinstance(before, int) and isinstance(now, int) and before < now
        if more:
            begun["settings"]["samples"] = now
        for part in ("settings", "versions"):
            for name in {**begun[part], **head[part]}:
                old, new = begun[part].get(name), head[part].get(name)
                if old != new:
                    raise RunFolderError(
                        f"{path} holds an evaluation with {name} {old!r}, now it is {new!r}; "
                        "continue with the same, or choose another --out"
                    )
        if more:
            with self.writing(RESULTS):
                # First: without results the folder is an unfinished evaluation, whatever happens
                # next.
                (path / RESULTS).unlink(missing_ok=True)
            # Before the settings: without these episodes it is an evaluation of either size.
            sizes = head["settings"]
            at_once = sizes.get("at_once", EPISODES_AT_ONCE)
            self._keep(kept(sizes.get("tasks", 0), before, now, at_once))
            self.write(SETTINGS, json.dumps(begun, indent=2) + "\n")
        return begun

    def _keep(self, samples: int) -> None:
        """Removes all episodes but the first `samples` of each task from the log."""
        data = (self.path / TRAJECTORIES).read_bytes()
        whole = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
        lines = [_line(self.path / TRAJECTORIES, line, 0) for line in whole]
        staying = [
            line for line, read in zip(whole, lines, strict=True) if read.episode.episode < samples
        ]
        if len(staying) < len(whole):
            self.write(TRAJECTORIES, b"".join(staying))
            # The file that was locked has been replaced by another one.
            self._acquire()

    def _read(self) -> None:
        """Reads the log, and cuts a half-written last line."""
        start = 0
        with (self.path / TRAJECTORIES).open("rb") as file:
            for data in file:
                if not data.endswith(b"\n"):
                    with self.writing(TRAJECTORIES):
                        os.truncate(self.path / TRAJECTORIES, start)
                    return
                line = _line(self.path / TRAJECTORIES, data, start)
                if line.key in self._known:
                    raise _damaged(self.path / TRAJECTORIES, start, "an episode is there twice")
                self._known[line.key] = line
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
            # The names count as well: the same bytes under another name are another model.
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
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(file, start, str(error)) from error


def _damaged(file: Path, start: int, reason: str) -> RunFolderError:
    return RunFolderError(
        f"{file} is damaged at byte {start}: {reason}; remove the folder, or choose another --out"
    )
