"""Rights that a worker gives up once, and those that every program gives up again.

The worker moves into user, mount, network, IPC, UTS and PID namespaces of its own. A program's
process gets PID and mount namespaces of its own inside these, a fresh /tmp, resource
limits, no capabilities and no way to gain any, a Landlock fence, and the system call filter.
Landlock repeats independently what the namespaces already enforce; where these are missing, it is
the first line of defense, and programs cannot write any file. Source: the kernel's userspace-api/landlock and linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pettingllms.sandbox.worker import kernel, rootfs, seccomp

# The numbers of these calls are the same on all architectures.
_CREATE, _ADD_RULE = 444, 445
_RESTRICT_SELF = ctypes.c_long(446)
_VERSION_FLAG = 1
_PATH_BENEATH = 1
# LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF: what programs try does not fill the host's audit log.
_QUIET = 1

WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
TRUNCATE = 1 << 14
_EXECUTE = 1 << 0
_MAKE_CHAR, _MAKE_SOCK, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 11
_IOCTL_DEV = 1 << 15
# Each version of the interface knows more rights, and refuses those of later ones.
_FILES_BY_VERSION = ((1, (1 << 13) - 1), (2, 1 << 13), (3, TRUNCATE), (5, _IOCTL_DEV))
# To bind and connect TCP sockets, from version 4 of the interface on.
_NETWORK = 0b11
# Abstract sockets of processes outside, and signals to them, from version 6 on.
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
    # The kernel's structure is packed, too: it has 12 bytes.
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The kernel's Landlock ABI version; 0 where there is none."""
    result: int = kernel.libc.syscall(
        ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)
    )
    return max(0, result)


class Fence(NamedTuple):
    """The paths that a program may read, and the one below which it may do everything."""

    ruleset: int
    """Descriptor of the kernel's object, which any number of processes can be restricted by."""
    flags: int

    def close_in(self) -> None:
        """Restrict this process for good. Needs no_new_privs."""
        call = _RESTRICT_SELF, self.ruleset, ctypes.c_uint32(self.flags)
        kernel.check(kernel.libc.syscall(*call), "landlock_restrict_self")


def fence(readable: Sequence[str], devices: Iterable[str], writable: Sequence[str]) -> Fence | None:
    """The fence for these paths as they are mounted now; None without Landlock.

    A rule belongs to a directory of one mount, and also holds in what is mounted *below* it later:
    the mounts of programs, which are made below `writable`.
    """
    abi = version()
    if abi == 0:
        return None
    files = sum(bits for since, bits in _FILES_BY_VERSION if abi >= since)
    attributes = _Attributes(files, _NETWORK if abi >= 4 else 0, _SCOPES if abi >= 6 else 0)
    size = ctypes.c_size_t(24 if abi >= 6 else 16 if abi >= 4 else 8)
    make = ctypes.c_long(_CREATE), ctypes.byref(attributes), size, ctypes.c_uint32(0)
    ruleset = kernel.check(kernel.libc.syscall(*make), "landlock_create_ruleset")
    # No executables, devices or sockets, also where files may be made.
    everything = files & ~(_EXECUTE | _MAKE_CHAR | _MAKE_BLOCK | _MAKE_SOCK | _IOCTL_DEV)
    wanted = [*((path, READ) for path in readable), *((path, DEVICE) for path in devices)]
    for path, rights in (*wanted, *((path, everything) for path in writable)):
        # Not every machine has all of them: time zones may be missing.
        if os.path.exists(path):
            _allow(ruleset, path, rights & files)
    return Fence(ruleset, _QUIET if abi >= 7 else 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    # For a file the kernel refuses a rule with rights of folders.
    rule = _PathBeneath(rights if os.path.isdir(path) else rights & ~READ_DIR, fd)
    add = ctypes.c_long(_ADD_RULE), ruleset, _PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0)
    kernel.check(kernel.libc.syscall(*add), "landlock_add_rule")
    os.close(fd)


NOBODY = 65534
_STACK_BYTES = 64 << 20
"""Stack of the main thread, for deep recursion through C; its used part counts as memory."""
_SCRATCH_INODES = 1024
_SCRATCH_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
_OOM_SCORE = "800"
_MIB = 1 << 20
_SETUP_BYTES = 8 << 20

NAMESPACES, LANDLOCK, SECCOMP = "namespaces", "landlock", "seccomp"

# Without these handlers, pid 1 of a namespace would live through its own signals.
_DEADLY = "HUP QUIT ILL TRAP ABRT BUS FPE SEGV USR1 USR2 ALRM TERM XCPU XFSZ VTALRM PROF IO SYS"
DEADLY = tuple(signal.Signals[f"SIG{name}"] for name in _DEADLY.split())


ResourceLimit = tuple[int, tuple[int, int]]
"""Arguments of `resource.setrlimit`."""


class Bounds(NamedTuple):
    """The limits of one run, as the kernel wants them."""

    cpu_s: float
    wall_s: float
    memory_bytes: int
    output_bytes: int
    processes: int
    tmp_bytes: int
    open_files: int

    @property
    def file_bytes(self) -> int:
        """The largest offset a program can write to, more than its /tmp holds.

        An output file starts `output_bytes` before it, so that the kernel itself stops output
        at its limit.
        """
        return max(self.tmp_bytes, self.output_bytes) + _MIB

    @property
    def output_start(self) -> int:
        """Offset at which an output file begins."""
        return self.file_bytes - self.output_bytes


class Isolation(NamedTuple):
    """Isolation of this worker's programs: by `layers`, of which an unsafe worker has too few."""

    layers: tuple[str, ...]
    fence: Fence | None
    filter: seccomp.ProgramFilter | None
    pid_namespace: int
    base_bytes: int
    base_processes: int

    def start(self) -> int:
        """Fork into new PID and mount namespaces; like os.fork, 0 in the new process."""
        if NAMESPACES not in self.layers:
            return kernel.fork()
        kernel.unshare(kernel.CLONE_NEWPID)
        pid = kernel.fork()
        if pid:
            # Children go back to the worker's own namespace, else the next unshare is refused.
            kernel.setns(self.pid_namespace, kernel.CLONE_NEWPID)
        return pid

    def scratch_options(self, bounds: Bounds) -> bytes:
        """Options of the mount of a program's /tmp."""
        return f"size={bounds.tmp_bytes},nr_inodes={_SCRATCH_INODES},mode=1777".encode()

    def prepare(self, scratch_options: bytes) -> None:
        """Give the new process a /tmp of its own, where it can have one. The first thing it does."""
        if NAMESPACES in self.layers:
            kernel.unshare(kernel.CLONE_NEWNS)
            kernel.mount("tmpfs", rootfs.SCRATCH, "tmpfs", _SCRATCH_FLAGS, scratch_options)
            os.chdir(rootfs.SCRATCH)
        else:
            kernel.die_with_parent()
            # Not in a PID namespace, which is as good: with autogroup scheduling, every session
            # costs 0.1 ms, and on a busy machine its first process waits four times as long.
            os.setsid()

    def limits(self, bounds: Bounds) -> tuple[ResourceLimit, ...]:
        """Return the limits that a process is given before its job."""
        memory = self.base_bytes + _SETUP_BYTES + bounds.memory_bytes
        wanted = [
            (resource.RLIMIT_AS, (memory, memory)),
            (resource.RLIMIT_FSIZE, (bounds.file_bytes, bounds.file_bytes)),
            (resource.RLIMIT_CORE, (0, 0)),
            (resource.RLIMIT_STACK, _stack()),
        ]
        if NAMESPACES in self.layers:
            processes = self.base_processes + bounds.processes
            wanted.append((resource.RLIMIT_NPROC, (processes, processes)))
        return tuple(wanted)

    def confine(self, limits: tuple[ResourceLimit, ...]) -> None:
        """Give up what is not needed to receive a job, for good."""
        for limit in limits:
            resource.setrlimit(*limit)
        if self.layers:
            kernel.drop_capabilities()
        # A crash must not reach the host's crash handler, which runs as root and gets the whole
        # memory: no limit on the size of cores holds where cores go to a pipe.
        kernel.set_dumpable(False)
        kernel.forbid_new_privileges()
        if self.fence is not None:
            self.fence.close_in()
            os.close(self.fence.ruleset)

    def seal(self, limits: tuple[ResourceLimit, ...]) -> None:
        """Give up the rest: what is left is what a program may do."""
        for limit in limits:
            resource.setrlimit(*limit)
        if self.filter is not None:
            self.filter_for_this_process().install()

    def filter_for_this_process(self) -> seccomp.ProgramFilter:
        """The prepared filter where every program is pid 1, else one that names its pid."""
        assert self.filter is not None
        if NAMESPACES in self.layers:
            return self.filter
        return seccomp.program_filter(os.getpid(), narrow=True)


def _stack() -> tuple[int, int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    enough = soft == resource.RLIM_INFINITY or soft >= _STACK_BYTES
    allowed = hard == resource.RLIM_INFINITY or hard >= _STACK_BYTES
    return (soft if enough or not allowed else _STACK_BYTES), hard


def virtual_bytes() -> int:
    """Address space that this process uses."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def volunteer_for_oom() -> None:
    """Ask the kernel to kill this process and its children first when memory runs out."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(_OOM_SCORE)
    except OSError:
        # A read-only /proc: the score stays unchanged; it is only a preference.
        return


def enter_namespaces(seen: rootfs.RootFs) -> None:
    """Move this process into namespaces of its own; its next child is pid 1 of a new one.

    Root first builds the new root with root's rights (the interpreter may lie in a folder that only
    root can enter), then becomes nobody. Other users make it inside the user namespace. Root
    without CAP_SYS_ADMIN, as in most containers, becomes the root of a user namespace first, and root
    that is the only user of its namespace is like any other user.

    Raises:
        OSError: the kernel, or the container around, refuses a step.
    """
    as_root = is_root_among_users()
    if as_root and not kernel.has_capability(kernel.CAP_SYS_ADMIN):
        _become_root_of_a_namespace()
    flags = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    proc = os.open("/proc/self", os.O_PATH | os.O_CLOEXEC)  # the new root has none
    if as_root:
        kernel.unshare(kernel.CLONE_NEWNS)
        rootfs.build(seen)
        become_nobody()
        kernel.set_dumpable(True)  # else its /proc files are root's, and the maps read-only
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(flags | kernel.CLONE_NEWNS)
    # Without this a process that lacks privileges may not map its group.
    _write(proc, "setgroups", "deny")
    _write(proc, "uid_map", f"{NOBODY} {uid} 1")
    _write(proc, "gid_map", f"{NOBODY} {gid} 1")
    os.close(proc)
    if not as_root:
        rootfs.build(seen)
    name = b"sandbox"
    kernel.check(kernel.libc.sethostname(name, ctypes.c_size_t(len(name))), "sethostname")
    kernel.unshare(kernel.CLONE_NEWPID)


def is_root_among_users() -> bool:
    """Tell whether this is root, and can become nobody: `unshare -r` leaves it alone in its namespace."""
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}", encoding="ascii") as file:
            ranges = [tuple(map(int, line.split())) for line in file]
        if not any(first <= NOBODY < first + count for first, _, count in ranges):
            return False
    return os.geteuid() == 0


def _become_root_of_a_namespace() -> None:
    """Enter a user namespace in which root and nobody are who they are outside.

    A map of two users needs CAP_SETUID and CAP_SETFCAP outside of the namespace (see
    user_namespaces(7)), so a process that stays outside writes it.
    """
    reader, writer = os.pipe()
    target = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            kernel.die_with_parent()
            os.close(writer)
            # Nothing comes where the other process could not enter its namespace.
            if os.read(reader, 1):
                for name in ("uid_map", "gid_map"):
                    with open(f"/proc/{target}/{name}", "w", encoding="ascii") as file:
                        file.write(f"0 0 1\n{NOBODY} {NOBODY} 1\n")
                code = 0
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    os.close(reader)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
        os.write(writer, b"!")
    finally:
        os.close(writer)
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise OSError(
            code, f"root has no CAP_SYS_ADMIN, and no users can be mapped: {os.strerror(code)}"
        )


def become_nobody() -> None:
    """Drop from root to the overflow user and group, and with root to all capabilities."""
    # Groups first, because nobody may not change them.
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _write(folder: int, name: str, text: str) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    os.write(fd, text.encode())
    os.close(fd)
