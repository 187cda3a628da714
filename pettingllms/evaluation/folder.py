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

import json
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pettingllms.errors import RunFolderError
from pettingllms.evaluation.chunks import EPISODES_AT_ONCE, kept
from pettingllms.rollout.files import RESULTS, SETTINGS, TRAJECTORIES
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.runs.folder import Folder, replace_file, versions
from pettingllms.types import JsonObject, Task

Key = tuple[str, str, int]
"""Of an episode: team, task, sample."""


class EvalFolder(Folder):
    """The folder of an evaluation, from construction to `close`.

    A new folder is created; one that was begun with the same settings, or with fewer samples, is
    continued.

    Raises:
        RunFolderError: it cannot be written, is in use, or holds another evaluation; the text
            names the first setting that differs.
    """

    lock = TRAJECTORIES
    remedy = "free space, fix permissions or choose another --out, then run the same command again"

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(path)
        try:
            self._lines = self._read()
            """The log: what an episode is of -> its line."""
            self.head = self._begin(settings)
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
        for team, task, sample in self._lines:
            if team not in teams or task not in ids or not 0 <= sample < samples:
                raise RunFolderError(
                    f"{self.path / TRAJECTORIES} has episode {sample} of task {task} by {team!r}, "
                    f"which is not part of this evaluation of {', '.join(map(repr, teams))}; "
                    "choose another --out"
                )

    def take(self, team: str, tasks: Sequence[Task], samples: Sequence[int]) -> list[Trajectory]:
        """The episodes of a chunk if it is complete; else none, and the log loses its episodes."""
        keys = [(team, task.id, sample) for task in tasks for sample in samples]
        if all(key in self._lines for key in keys):
            return [_episode(self._lines[key])[1] for key in keys]
        # A part of a chunk would be rolled out in batches of another shape, and rounded otherwise.
        self._drop(set(keys).__contains__)
        return []

    def add(self, team: str, episodes: Sequence[Trajectory]) -> None:
        """Appends the episodes of a chunk.

        Raises:
            RunFolderError: for example a full disk; resuming removes an incomplete chunk.
        """
        self.append(TRAJECTORIES, (episode.row(team=team) for episode in episodes))

    def _begin(self, settings: Mapping[str, Any]) -> JsonObject:
        """The content of settings.json: written if there is no episode yet, else compared.

        More samples than before make a finished evaluation an unfinished one.
        """
        values = {"settings": settings, "versions": versions(), "revision": revision(Path.cwd())}
        # As it will be read back: tuples, for example, would differ from the lists in the file.
        head: JsonObject = json.loads(json.dumps(values))
        if not self._lines and not (self.path / RESULTS).exists():
            self.write(SETTINGS, json.dumps(head, indent=2) + "\n")
            return head
        begun = _read_head(self.path)
        before, now = (values["settings"].get("samples") for values in (begun, head))
        more = isinstance(before, int) and isinstance(now, int) and before < now
        if more:
            begun["settings"]["samples"] = now
        for section in ("settings", "versions"):
            for name in {**begun[section], **head[section]}:
                old, new = begun[section].get(name), head[section].get(name)
                if old != new:
                    raise RunFolderError(
                        f"{self.path} holds an evaluation with {name} {old!r}, now it is {new!r}; "
                        "continue with the same, or choose another --out"
                    )
        if more:
            with self.writing(RESULTS):
                # First: without results the folder is an unfinished evaluation, whatever happens
                # next.
                (self.path / RESULTS).unlink(missing_ok=True)
            # Before the settings: without these episodes it is an evaluation of either size.
            sizes = head["settings"]
            at_once = sizes.get("at_once", EPISODES_AT_ONCE)
            stay = kept(sizes.get("tasks", 0), before, now, at_once)
            self._drop(lambda key: key[2] >= stay)
            self.write(SETTINGS, json.dumps(begun, indent=2) + "\n")
        return begun

    def _drop(self, unwanted: Callable[[Key], bool]) -> None:
        """Removes episodes from the log."""
        if any(map(unwanted, self._lines)):
            # Read again: episodes may have been added since.
            lines = self._read()
            self._lines = {key: line for key, line in lines.items() if not unwanted(key)}
            self.write(TRAJECTORIES, b"".join(self._lines.values()))
            # The file that was locked has been replaced by another one.
            self._acquire()

    def _read(self) -> dict[Key, bytes]:
        """Reads the log, and cuts a half-written last line."""
        file, lines = self.path / TRAJECTORIES, dict[Key, bytes]()
        whole, _, half = file.read_bytes().rpartition(b"\n")
        for number, text in enumerate(whole.split(b"\n") if whole else (), 1):
            team, episode = _checked(file, number, text)
            key = (team, episode.task.id, episode.episode)
            if key in lines:
                raise _damaged(file, number, "an episode is there twice")
            lines[key] = text + b"\n"
        if half:
            self.write(TRAJECTORIES, b"".join(lines.values()))
            self._acquire()
        return lines


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
    for name in (TRAJECTORIES, SETTINGS):
        if not (path / name).is_file():
            raise RunFolderError(f"{path} holds no evaluation: it has no {name}")
    if not (path / RESULTS).is_file():
        raise RunFolderError(
            f"the evaluation in {path} is not finished; run its command again to resume it"
        )
    teams: dict[str, list[Trajectory]] = {}
    with (path / TRAJECTORIES).open("rb") as file:
        for number, text in enumerate(file, 1):
            team, episode = _checked(path / TRAJECTORIES, number, text)
            teams.setdefault(team, []).append(episode)
    return teams


def read_settings(path: Path) -> JsonObject:
    """The settings of the evaluation in a folder.

    Raises:
        RunFolderError: they cannot be read.
    """
    return dict(_read_head(path)["settings"])


# -------------------------------------------------------------------------------------- settings


def revision(directory: Path) -> JsonObject | None:
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


def _read_head(path: Path) -> JsonObject:
    try:
        head: JsonObject = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path / SETTINGS} cannot be read: {error}") from error
    if not all(isinstance(head.get(section), dict) for section in ("settings", "versions")):
        raise RunFolderError(f"{path / SETTINGS} has no settings; choose another --out")
    return head


def _episode(text: bytes) -> tuple[str, Trajectory]:
    """Team and episode of a line."""
    row = json.loads(text)
    return row["team"], Trajectory.from_row(row)


def _checked(file: Path, number: int, text: bytes) -> tuple[str, Trajectory]:
    try:
        return _episode(text)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(file, number, str(error)) from error


def _damaged(file: Path, number: int, reason: str) -> RunFolderError:
    return RunFolderError(
        f"{file} is damaged in line {number}: {reason}; remove the folder, or choose another --out"
    )
