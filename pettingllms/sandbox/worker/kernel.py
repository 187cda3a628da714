"""Kernel calls that Python 3.11 does not offer, through ctypes.

Structures and arguments that do not change are made at import, so that a call costs about a
microsecond in the forked process. Every failure raises `OSError` with the call's name.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Callable
from typing import TypeVar

# From linux/sched.h, linux/mount.h, linux/prctl.h and glibc's malloc.h.
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_M_ARENA_MAX = -8
_NOWHERE = 16
# By number: glibc has no `pivot_root`.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPABILITY_VERSION_3 = 0x20080522

CAP_SYS_ADMIN = 21

MACHINE = os.uname().machine
libc = ctypes.CDLL(None, use_errno=True)
for _name in ("capset", "mount", "prctl", "syscall", "unshare"):
    getattr(libc, _name)  # found here, and not again in every forked process
# Calls through this one keep the interpreter's lock, as a fork must.
_python_libc = ctypes.PyDLL(None, use_errno=True)
_long = ctypes.c_long
_Answer = TypeVar("_Answer")
_ulong = ctypes.c_ulong


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilityData(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


class _SignalAction(ctypes.Structure):
    """glibc's struct sigaction on 64-bit Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_NO_CAPABILITIES = (ctypes.byref(_CapabilityHeader(_CAPABILITY_VERSION_3, 0)),)
# This version has two of them, for 64 capabilities.
_NO_CAPABILITY_DATA = (_CapabilityData * 2)()


def check(result: int, call: str) -> int:
    """`result`, or the `OSError` that errno tells of."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result


def fork() -> int:
    """Fork without the interpreter's after-fork hooks, which cost a third of a small run.

    For a process of one thread, that is all right: the hooks renew locks that other threads
    might have held, and reseed `random`, which must begin alike in every run.
    """
    return check(_python_libc.fork(), "fork")


def in_another_process(work: Callable[[], _Answer]) -> _Answer:
    """Run `work` in a process of its own; its result goes through JSON.

    Raises:
        OSError: with what it raised there, or if the process ended without an answer.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        answer: list[object] = [None, ""]
        try:
            answer[0] = work()
        except BaseException as error:  # noqa: BLE001 - nothing may leave the forked process
            answer[1] = str(error) or type(error).__name__
        with open(writer, "w", encoding="ascii") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writer)
    # Before the wait: a process with more to say than a pipe holds would never end.
    with open(reader, encoding="ascii") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    reply: tuple[_Answer, str] = json.loads(text or '[null, "a process ended without an answer"]')
    if reply[1]:
        raise OSError(reply[1])
    return reply[0]


def unshare(flags: int) -> None:
    """Move this process (for PID namespaces: its next child) to new namespaces."""
    check(libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Make this process enter the namespace that `fd` refers to; for PID namespaces it is the next child that does."""
    check(libc.setns(fd, kind), "setns")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: bytes = b"") -> None:
    """Mount a file system or change a mount, like the system call."""
    check(
        libc.mount(
            source.encode() if source is not None else None,
            target.encode(),
            kind.encode() if kind is not None else None,
            _ulong(flags),
            data,
        ),
        f"mount {target}",
    )


def pivot_root(new_root: str, put_old: str) -> None:
    """Make `new_root` the root and put the old one at `put_old`."""
    number = _PIVOT_ROOT[MACHINE]
    check(libc.syscall(_long(number), new_root.encode(), put_old.encode()), "pivot_root")


def detach(target: str) -> None:
    """Unmount `target` and everything below it as soon as it is unused."""
    check(libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def set_dumpable(on: bool) -> None:
    """Decide whether this process's /proc files belong to its user, or to root."""
    check(libc.prctl(_PR_SET_DUMPABLE, _ulong(on), *_ZEROS), "prctl dumpable")


def forbid_new_privileges() -> None:
    """No call of this process or its children ever raises privileges again."""
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, _ulong(1), *_ZEROS), "prctl no_new_privs")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    check(libc.prctl(_PR_SET_PDEATHSIG, _ulong(signal.SIGKILL), *_ZEROS), "prctl pdeathsig")


def has_capability(number: int) -> bool:
    """Tell whether this process has the capability in its user namespace, numbered as in capabilities(7)."""
    # The file begins with the process's name, which may be any bytes.
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        held = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return bool(held >> number & 1)


def drop_capabilities() -> None:
    """Give up every capability, for good."""
    check(libc.capset(*_NO_CAPABILITIES, _NO_CAPABILITY_DATA), "capset")


def share_one_heap() -> None:
    """Have all threads to come share one heap, where the C library is glibc.

    It would reserve 64 MiB for each of the first ones otherwise, which count as used memory.
    """
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Give memory that is free back to the kernel, where the C library is glibc: forks copy less."""
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def make_deadly(signals: tuple[signal.Signals, ...]) -> None:
    """Let each of `signals` crash the process.

    The first process of a PID namespace ignores signals whose action is the default, so a
    program's own alarm or SIGTERM would do nothing. The handler is an address where nothing can
    be; Python's own table still says SIG_DFL, as in any other process.
    """
    action = _SignalAction(handler=_NOWHERE)
    for number in signals:
        check(libc.sigaction(int(number), ctypes.byref(action), None), "sigaction")


_ZEROS = (_ulong(0), _ulong(0), _ulong(0))
