"""Landlock: the kernel's second opinion on which files the program may touch.

Namespaces already show the program little more than it needs; Landlock says it again,
independently, and where namespaces are missing it is the first line. Source: the kernel's
userspace-api/landlock and linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pettingllms.sandbox.worker import kernel

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_QUIET = 1

WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
TRUNCATE = 1 << 14
_EXECUTE = 1 << 0
_MAKE_CHAR, _MAKE_SOCK, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 11
_IOCTL_DEV = 1 << 15
_FILES_BY_VERSION = ((1, (1 << 13) - 1), (2, 1 << 13), (3, TRUNCATE), (5, _IOCTL_DEV))
_NETWORK = 0b11
_SCOPES = 0b11

READ = READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The kernel's Landlock ABI version; 0 where there is none."""
    result: int = kernel.libc.syscall(
        ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)
    )
    return max(0, result)


@dataclass(frozen=True)
class Fence:
    """Which paths a program may read, and the one below which it may do everything."""

    abi: int
    rules: tuple[_PathBeneath, ...]
    files: int
    scratch: int

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The folders and files that the rules refer to, open in this process."""
        return tuple(rule.parent for rule in self.rules)

    def close_in(self, scratch: str) -> None:
        """Restrict this process for good. Needs no_new_privs.

        A rule belongs to a directory of one mount, so the one for the fresh `scratch` cannot be
        made ahead.
        """
        network = _NETWORK if self.abi >= 4 else 0
        scopes = _SCOPES if self.abi >= 6 else 0
        attributes = _Attributes(self.files, network, scopes)
        size = 24 if self.abi >= 6 else 16 if self.abi >= 4 else 8
        syscall = kernel.libc.syscall
        ruleset = kernel.check(
            syscall(ctypes.c_long(_CREATE), ctypes.byref(attributes), ctypes.c_size_t(size), _NONE),
            "landlock_create_ruleset",
        )
        folder = os.open(scratch, os.O_PATH | os.O_CLOEXEC)
        for rule in (*self.rules, _PathBeneath(self.scratch, folder)):
            kernel.check(
                syscall(
                    ctypes.c_long(_ADD_RULE), ruleset, _PATH_BENEATH, ctypes.byref(rule), _NONE
                ),
                "landlock_add_rule",
            )
        os.close(folder)
        quiet = ctypes.c_uint32(_QUIET if self.abi >= 7 else 0)
        kernel.check(
            syscall(ctypes.c_long(_RESTRICT_SELF), ruleset, quiet), "landlock_restrict_self"
        )
        os.close(ruleset)


def fence(readable: Sequence[str], devices: Iterable[str]) -> Fence | None:
    """The fence for these paths as they are mounted now; None without Landlock.

    Its descriptors stay open in this process; a program's process closes them with the rest.
    """
    abi = version()
    if abi == 0:
        return None
    files = sum(bits for since, bits in _FILES_BY_VERSION if abi >= since)
    rules = []
    for path, wanted in (*((p, READ) for p in readable), *((p, DEVICE) for p in devices)):
        if not os.path.exists(path):
            continue
        allowed = wanted if os.path.isdir(path) else wanted & ~READ_DIR
        rules.append(_PathBeneath(allowed & files, os.open(path, os.O_PATH | os.O_CLOEXEC)))
    never = _EXECUTE | _MAKE_CHAR | _MAKE_BLOCK | _MAKE_SOCK | _IOCTL_DEV
    return Fence(abi, tuple(rules), files, files & ~never)


_NONE = ctypes.c_uint32(0)
