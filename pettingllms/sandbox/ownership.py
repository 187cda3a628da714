"""Whose container is this? A mark that tells a killed trainer's left-overs from anybody else's."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_UNKNOWN = "-"


def mark(pid: int | None = None) -> str:
    """A name for process `pid`, by default this one, that no other process ever has.

    Machine, boot, PID namespace, process id and the process's start, as far as the system tells.
    """
    pid = os.getpid() if pid is None else pid
    machine = _read("/etc/machine-id") or platform.node()
    boot = _read("/proc/sys/kernel/random/boot_id") or _UNKNOWN
    return ":".join((machine, boot, _namespace(), str(pid), _start(pid)))


def is_orphan(owner: str) -> bool:
    """Whether the process that `mark` named has certainly ended; False where that is unknown."""
    parts = owner.split(":")
    if len(parts) != 5 or not parts[3].isdigit():
        return False
    machine, boot, namespace, pid, _ = parts
    here = mark(int(pid)).split(":")
    if machine != here[0]:
        return False
    if boot != here[1]:
        return _UNKNOWN not in (boot, here[1])
    if namespace != here[2]:
        return False
    return owner != mark(int(pid))


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip().replace(":", "")
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return _UNKNOWN


def _start(pid: int) -> str:
    """When the process began, in clock ticks after the boot; `gone` if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return _start_without_proc(pid)
    return stat.rsplit(")", 1)[1].split()[19]


def _start_without_proc(pid: int) -> str:
    if Path("/proc/self/stat").exists():
        return "gone"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    except OSError:
        return _UNKNOWN
    return _UNKNOWN
