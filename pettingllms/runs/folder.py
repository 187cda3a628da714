"""`Folder`: files that one process at a time writes; `RunFolder`: that of a training run.

A file is replaced as a whole or not at all, and logs only grow. The lock ends with its process,
even if that is killed. A checkpoint knows the lengths of the logs: resuming cuts them back to it,
so that they read as if the run had never stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml
from safetensors import SafetensorError

from pettingllms import __version__
from pettingllms.errors import ConfigError, PettingLLMsError, RunFolderError, did_you_mean
from pettingllms.models import DEFAULT
from pettingllms.plain_yaml import read_yaml
from pettingllms.registry import names_in
from pettingllms.rollout.episode import plain
from pettingllms.rollout.files import (
    CONFIG,
    CONSOLE,
    FORMAT,
    METRICS,
    RUN_LOCK,
    STARTS,
    TRAJECTORIES,
)
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.settings import as_object
from pettingllms.types import JsonObject

LOGS = (METRICS, TRAJECTORIES)
PACKAGES = ("torch", "transformers", "trl", "peft", "pettingzoo", "gymnasium", "numpy")


class Folder:
    """A folder that this process alone writes to, until `close`.

    Raises:
        RunFolderError: it cannot be written, or another process uses it.
    """

    lock: ClassVar[str] = RUN_LOCK
    """The file that is locked; it is created if missing."""
    remedy: ClassVar[str]
    """What to do after a failed write; `{path}` stands for the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._locks: list[int] = []
        """Descriptors of the locked file, and of those that it has replaced."""
        self._acquire()

    def _acquire(self) -> None:
        """Locks the file `lock`; called again where that file has been replaced."""
        path = self.path
        try:
            path.mkdir(parents=True, exist_ok=True)
            # Not inherited: a server that was started here would hold the lock longer than this
            # process.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(path / self.lock, flags, 0o644)
        except OSError as error:
            raise RunFolderError(
                f"{path} cannot be written: {error.strerror}; fix its permissions, or choose another folder"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise RunFolderError(
                f"{path} is in use by another process; wait for it, or choose another folder"
            ) from error
        self._locks.append(descriptor)

    def close(self) -> None:
        """Releases the lock."""
        while self._locks:
            os.close(self._locks.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, name: str, content: str | bytes) -> None:
        """Replaces the file `name` as a whole.

        Raises:
            RunFolderError: it cannot be written; the old one is untouched.
        """
        with self.writing(name):
            replace_file(self.path / name, content)

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows to a log, one line of JSON each; they survive a crash of this process.

        Raises:
            RunFolderError: for example a full disk; resuming removes a half-written line.
        """
        # One write for all rows, so that a crash leaves at most one line half-written.
        lines = "".join(json.dumps(plain(row), default=str, allow_nan=False) + "\n" for row in rows)
        with self.writing(name), (self.path / name).open("ab") as file:
            file.write(lines.encode())

    def note(self, line: str) -> None:
        """Adds a line to `console.log`.

        Raises:
            RunFolderError: as `append`.
        """
        with self.writing(CONSOLE), (self.path / CONSOLE).open("a", encoding="utf-8") as file:
            file.write(f"{line.rstrip()}\n")

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Adds warnings, and the error that ends the block, to `console.log`."""
        notes = logging.Handler(logging.WARNING)

        def emit(record: logging.LogRecord) -> None:
            with contextlib.suppress(RunFolderError):  # a full disk, which other files report
                self.note(f"{record.levelname}: {record.getMessage()}")

        notes.emit = emit  # type: ignore[method-assign]
        logging.getLogger().addHandler(notes)
        try:
            yield
        except PettingLLMsError as error:
            with contextlib.suppress(RunFolderError):
                self.note(f"error: {error}")
            raise
        finally:
            logging.getLogger().removeHandler(notes)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Turns a failure to write `name` into an error that says how to continue."""
        try:
            yield
        except RunFolderError:  # an OSError that already says how to continue
            raise
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise RunFolderError(
                f"cannot write {self.path / name}: {reason}; {self.remedy.format(path=self.path)}"
            ) from error


class RunFolder(Folder):
    """The folder of a training run, from `create` or `reopen` to `close`."""

    remedy = (
        "free space or fix permissions, then continue with --resume {path}, from the last checkpoint "
        "if there is one"
    )

    @classmethod
    def create(cls, path: Path) -> Self:
        """Locks a new or empty folder. It becomes a run with `describe`.

        Raises:
            RunFolderError: it cannot be written, is in use, holds a run or other files.
        """
        _refuse_foreign(path)
        folder = cls(path)
        # Asked under the lock, because another process may just have begun a run here.
        if (path / CONFIG).exists():
            folder.close()
            raise RunFolderError(
                f"{path} holds a run already; continue it with --resume {path}, or choose another "
                "--output-dir"
            )
        return folder

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Locks the folder of an earlier run and removes what a killed process left half-written.

        Raises:
            RunFolderError: there is no run, or it is in use, or cannot be written.
        """
        if not (path / CONFIG).is_file():
            raise RunFolderError(f"{path} is no run folder: it has no {CONFIG}")
        folder = cls(path)
        with folder.writing("leftovers of a killed process"):
            for parent in (path, path / "adapters", path / "checkpoints"):
                # Names of what is written beside its place and then renamed: `.NAME.PID`,
                # `.NAME.random`, `.NAME.old`.
                for left in parent.glob(".*.*") if parent.is_dir() else ():
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
        return folder

    def close(self) -> None:
        """Releases the lock, and removes the folder if nothing was written."""
        if not (self.path / CONFIG).exists():
            with contextlib.suppress(OSError):  # it also holds files of others: then it stays
                (self.path / self.lock).unlink()
                self.path.rmdir()
        super().close()

    def describe(
        self,
        config: ATGRPOConfig,
        *,
        isolation: str | None = None,
        bases: Mapping[str, str] | None = None,
    ) -> None:
        """Writes config.yaml and adds a start to run.json."""
        start = {
            "format": FORMAT,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": sys.argv,
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "isolation": isolation,
            "policies": dict(bases or {}),
            "versions": versions(),
        }
        path = self.path / STARTS
        starts = _starts(path) if path.exists() else []
        # The settings come last: a folder is a run once they are there.
        self.write(STARTS, json.dumps([*starts, start], indent=2) + "\n")
        if not (self.path / CONFIG).exists():
            self.write(CONFIG, config_text(config))

    def rows(self, name: str) -> list[JsonObject]:
        """All rows of a log.

        Raises:
            RunFolderError: a line is damaged.
        """
        path, rows = self.path / name, list[JsonObject]()
        if not path.exists():
            return []
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    rows.append(dict(json.loads(line)))
                except (ValueError, TypeError) as error:
                    raise RunFolderError(
                        f"{path} is damaged in line {number}: {error}; restore it, or start a new run"
                    ) from error
        return rows

    def lengths(self) -> dict[str, int]:
        """Bytes in each log, all of them on disk when this returns."""
        lengths = {}
        for name in LOGS:
            with self.writing(name), (self.path / name).open("ab") as file:
                # A checkpoint must not know more of a log than a power failure leaves of it.
                os.fsync(file.fileno())
                lengths[name] = file.tell()
        return lengths

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Shortens the logs to what they were at a checkpoint.

        Raises:
            RunFolderError: a log is shorter than it was.
        """
        for name in LOGS:
            path, length = self.path / name, lengths.get(name, 0)
            # All logs would otherwise be cut to a step that one of them has lost.
            if (path.stat().st_size if path.exists() else 0) < length:
                raise RunFolderError(f"{path} lost lines that were there at the last checkpoint")
            if path.exists():
                with self.writing(name):
                    os.truncate(path, length)


# --------------------------------------------------------------------------------------- settings


def check_unused(path: str | Path) -> None:
    """Refuses the folder of a run with the advice for Python; `RunFolder.create` has the command's.

    Raises:
        RunFolderError: it holds a run.
    """
    if (Path(path) / CONFIG).exists():
        raise RunFolderError(
            f"{path} holds a run already; continue it with train(resume={str(path)!r}), or give "
            "another output_dir"
        )


def config_text(config: ATGRPOConfig) -> str:
    """The settings as YAML for `--config`, without unset ones and the folder."""
    # Without the folder, so that a copy of the settings starts a run of its own.
    values = dataclasses.asdict(config) | {"output_dir": None}
    filled = {field.name for field in dataclasses.fields(config) if field.default is not None}
    values = {
        name: value
        for name, value in values.items()
        if value != {} and (value is not None or name in filled)
    }
    text: str = yaml.safe_dump(values, sort_keys=False)
    return text


def read_config(run: Path) -> ATGRPOConfig:
    """The settings of a run.

    Raises:
        RunFolderError: there is no run in this folder, or its settings cannot be read.
        ConfigError: a setting that does not exist, or a value that cannot be used.
    """
    path = run / CONFIG
    try:
        values = read_yaml(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise RunFolderError(f"{run} is no run folder: it has no {CONFIG}") from None
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error
    if not isinstance(values, dict):
        raise RunFolderError(
            f"{path} is damaged: it holds {values!r} in place of settings; restore it, or start a "
            "new run"
        )
    values = upgraded(values)
    names = [field.name for field in dataclasses.fields(ATGRPOConfig)]
    for key in values:
        if key not in names:
            raise ConfigError(f"{path}: unknown key {key!r}; {did_you_mean(str(key), names)}")
    # Every setting is given, so that the method fills in none.
    config = dataclasses.replace(ATGRPOConfig(), **values)
    # Runs that name no model are from the time when all environments had one default.
    old = config.model is None and config.embedded
    return dataclasses.replace(config, model=DEFAULT) if old else config


def point_latest(run: Path) -> None:
    """Points the link `latest` beside the run to it."""
    # A link cannot be replaced in place: a new one is renamed over it, so that there is one at any
    # time.
    fresh = run.with_name(f".latest.{os.getpid()}")
    with contextlib.suppress(OSError):  # a convenience: some file systems have no links
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(run.name)
        fresh.replace(run.with_name("latest"))


# ------------------------------------------------------------------------------------------- disk


def replace_file(path: Path, content: str | bytes) -> None:
    """Replaces a file as a whole; on an OSError the old one is untouched."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            # The content has to be on disk before the name: after a power failure the file would be
            # empty.
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)
    sync(path.parent)


def sync(directory: Path) -> None:
    """Makes renames in `directory` survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _starts(path: Path) -> list[Any]:
    """The starts in run.json.

    Raises:
        RunFolderError: it is damaged.
    """
    try:
        starts = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(starts, list):
            raise ValueError(f"it is {str(starts)[:40]!r}, not a list")
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path} is damaged: {error}; remove it, the run does not need it"
        ) from error
    return starts


def _refuse_foreign(path: Path) -> None:
    try:
        # What a failed start leaves behind does not make a folder foreign.
        inside = {entry.name for entry in path.iterdir()} - {RunFolder.lock, "vllm.log"}
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError(f"{path} cannot be used as a run folder: {error.strerror}") from error
    if inside and CONFIG not in inside:
        raise RunFolderError(
            f"{path} is not empty and holds no run (it has {min(inside)!r}); choose another "
            "--output-dir"
        )


def versions() -> dict[str, str]:
    """Versions of Python, this package and its key dependencies that are installed."""
    installed = {"python": platform.python_version(), "pettingllms": __version__}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed


# ----------------------------------------------------------------------------- older versions
# Settings that they saved, as this one has them, so that their runs can be resumed.

_PARTS = {"cast": "all", "reward_transform": "as_paid", "estimator": "at_grpo"}
"""Parts of a method until 0.2, in the order in which they are joined -> the default."""
_ARGUMENTS = tuple(f"{name}_args" for name in _PARTS)
_GONE = (
    *(*_PARTS, *_ARGUMENTS),
    *names_in("shape stream_gradients serve server server_key server_timeout"),
)
_RENAMED = {"agent": "dr_mas", "maporl": "debate", "matpo": "root"}
"""Old name of a part -> today's; methods have some of the old names."""
_METHODS = {
    "alternate+dr_mas": "marft",
    "alternate+gae": "marft_gae",
    "swap+shared+dr_mas": "cory",
    "debate+agent_turn": "maporl",
    "flow+dr_mas": "mhgpo",
    "root+grpo": "matpo",
    "m_grpo+m_grpo": "m_grpo",
    "cure+cure": "cure",
}
"""Joined parts -> the method that they are."""
_VARIANTS = {
    **dict.fromkeys(("dr_grpo", "gspo", "cispo", "sapo"), "grpo"),
    **dict.fromkeys(("igrpo", "mlpo"), "at_grpo"),
    "malt": "look_ahead",
}
"""Method -> another one with the same parts; they differ in settings, which are saved as well."""


def upgraded(values: Mapping[str, Any]) -> JsonObject:
    """A saved configuration of any version, by today's names.

    Until 0.2 a method was up to three parts, each with arguments, and a shape.
    """
    settings = {name: value for name, value in values.items() if name not in _GONE}
    if settings.get("sampler") == "vllm-server":
        settings["sampler"] = "vllm"
    old = {hook: values.get(hook) for hook in _PARTS}
    if any(old.values()):
        names = [_RENAMED.get(name, name) for hook in _PARTS if (name := old[hook] or _PARTS[hook])]
        joined = "+".join(name for name in names if name not in ("all", "as_paid"))
        method = _METHODS.get(joined, joined)
        if _VARIANTS.get(settings.get("method", "")) != method:
            settings["method"] = method
    arguments: JsonObject = {}
    for name in ("method_args", *_ARGUMENTS):
        arguments |= as_object(name, values.get(name))
    if values.get("shape") is not None:
        arguments["shape"] = values["shape"]
    return settings | ({"method_args": arguments} if arguments else {})
