"""The program's system call filter: an allow-list in classic BPF.

Calls of `ALLOWED` pass. Calls of `CHECKED` pass for some arguments only: threads but no
processes, waits for threads of this process, signals to itself only, plain terminal and non-blocking requests, socket pairs (asyncio
needs one) but no sockets and no socket options. A call of `HOSTILE` kills the process, and every
other call fails with EPERM, so that a program that merely tries sees an ordinary exception.

The tables hold `name:x86_64:aarch64` for each call, "-" where the architecture lacks it. A call
with a number above all of these fails with ENOSYS. Source: the kernel's asm/unistd_64.h and
asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import resource
import signal
import termios
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pettingllms.sandbox.worker import kernel

# Actions of a filter, from linux/seccomp.h.
KILL_PROCESS = 0x80000000
TRAP = 0x00030000
ERRNO = 0x00050000
ALLOW = 0x7FFF0000

# AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64 of linux/audit.h.
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
CLONE_THREAD = 0x00010000
# All flags CLONE_NEW... together, that of time namespaces (0x80) among them.
CLONE_MASK = CLONE_THREAD | 0x7E020080
"""A new thread, and no new namespace of any kind."""

_PR_SET_NAME, _PR_GET_NAME = 15, 16
_AF_UNIX = 1
_FUTEX_PRIVATE = 128
_SO_TYPE, _SO_ERROR, _SO_PROTOCOL, _SO_DOMAIN = 3, 4, 38, 39
_FIONBIO, _FIONCLEX, _FIOCLEX = 0x5421, 0x5450, 0x5451

CHOICES: dict[str, tuple[int, tuple[int, ...]]] = {
    "prctl": (0, (_PR_SET_NAME, _PR_GET_NAME)),
    "ioctl": (
        1,
        (termios.TCGETS, termios.TIOCGWINSZ, termios.FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX),
    ),
    "fcntl": (
        1,
        (
            fcntl.F_DUPFD,
            fcntl.F_DUPFD_CLOEXEC,
            fcntl.F_GETFD,
            fcntl.F_SETFD,
            fcntl.F_GETFL,
            fcntl.F_SETFL,
            fcntl.F_GETLK,
        ),
    ),
    "getsockopt": (2, (_SO_TYPE, _SO_ERROR, _SO_PROTOCOL, _SO_DOMAIN)),
    "setrlimit": (0, (resource.RLIMIT_STACK, resource.RLIMIT_CORE)),
    "socketpair": (0, (_AF_UNIX,)),
    # What allocators and garbage collectors ask for. The rest can empty the host's file cache, where
    # the trainer's user owns Python's files, or merge memory with that of other processes (KSM).
    "madvise": (2, (0, 1, 2, 3, 4, 8, 10, 11, 14, 15, 16, 17, 18, 19, 102, 103)),
    # Without flags: RWF_NOWAIT says whether another program has read that part of a file.
    "preadv2": (5, (0,)),
    "pwritev2": (5, (0,)),
}
"""Calls that pass if one argument, by its index, is one of these values."""

METADATA = ("chmod", "fchmod", "fchmodat", "truncate", "utimensat")
"""Calls that a narrow filter refuses."""

SIGNALS = {"kill": 1, "tgkill": 2, "tkill": 1}
"""Calls that send a signal to the process in argument 0, and the index of the signal."""

# Opcodes of classic BPF, from linux/bpf_common.h; all operands are constants of 32 bits.
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP_ALWAYS, _JUMP_EQUAL, _JUMP_GE = 0x05, 0x15, 0x35
_FARTHEST = 255
# In the kernel's `struct seccomp_data`, which a filter reads like a packet.
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_ARGUMENTS = 0, 4, 16

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2

Instruction = tuple[int, int, int, int]


class _Filter(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("jt", ctypes.c_ubyte),
        ("jf", ctypes.c_ubyte),
        ("k", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.POINTER(_Filter)))


def supported() -> bool:
    """Tell whether the filter is written for this machine's system call table."""
    return kernel.MACHINE in _ARCHITECTURES


def refuse(code: int) -> int:
    """The action that fails a call with errno `code`."""
    return ERRNO | code


def _action(value: int) -> list[Instruction]:
    return [(_RETURN, 0, 0, value & 0xFFFFFFFF)]


def _argument(index: int, *, high: bool = False) -> Instruction:
    # Both machines are little-endian: the low half of a 64-bit argument comes first.
    return (_LOAD, 0, 0, _OFFSET_ARGUMENTS + 8 * index + (4 if high else 0))


def _one_of(index: int, values: Iterable[int], otherwise: int) -> list[Instruction]:
    """Allow when the low half of argument `index` is one of `values`."""
    wanted = sorted(set(values))
    body = [_argument(index)]
    for position, value in enumerate(wanted):
        # On a match, jump over the remaining comparisons and the refusal.
        body.append((_JUMP_EQUAL, len(wanted) - position, 0, value & 0xFFFFFFFF))
    return [*body, *_action(otherwise), *_action(ALLOW)]


def _threads_only() -> list[Instruction]:
    return [
        _argument(0),
        (_AND, 0, 0, CLONE_MASK),
        (_JUMP_EQUAL, 1, 0, CLONE_THREAD),
        # As where there is no room for another process, so that the status is `process_limit`.
        *_action(refuse(errno.EAGAIN)),
        *_action(ALLOW),
    ]


def _own_signals(pid: int, signal_index: int) -> list[Instruction]:
    # The first process of a namespace cannot be killed from inside: a trap stands in for
    # SIGKILL, because its handler aborts (see kernel.make_deadly).
    return [
        _argument(0),
        (_JUMP_EQUAL, 1, 0, pid),
        *_action(refuse(errno.EPERM)),
        _argument(signal_index),
        (_JUMP_EQUAL, 1, 0, int(signal.SIGKILL)),
        *_action(ALLOW),
        *_action(TRAP),
    ]


def _no_address() -> list[Instruction]:
    """Allow sendto on a connected pair only: the address pointer must be null."""
    return [
        _argument(4),
        (_JUMP_EQUAL, 0, 3, 0),
        _argument(4, high=True),
        (_JUMP_EQUAL, 0, 1, 0),
        *_action(ALLOW),
        *_action(refuse(errno.EPERM)),
    ]


def _locked_at_once() -> list[Instruction]:
    """Let a record lock succeed without making one.

    These locks hold between processes, and a program has just one, so that it always gets them.
    The kernel's memory for them is not limited, and on files that programs share, such as
    /dev/null, they would be a message from one program to another. (`flock` holds between
    descriptors as well, and is refused.)
    """
    return [
        _argument(1),
        (_JUMP_EQUAL, 1, 0, fcntl.F_SETLK),
        (_JUMP_EQUAL, 0, 1, fcntl.F_SETLKW),
        *_action(refuse(0)),
    ]


def _private_futex() -> list[Instruction]:
    """Allow to wait and wake within the process alone.

    Others are known by the page of a file, which programs share also where it is read-only. EAGAIN,
    because `pthread_join` waits that way for a thread that ends, and tries again.
    """
    return [
        _argument(1),
        (_AND, 0, 0, _FUTEX_PRIVATE),
        (_JUMP_EQUAL, 0, 1, _FUTEX_PRIVATE),
        *_action(ALLOW),
        *_action(refuse(errno.EAGAIN)),
    ]


def _own_limits(pid: int) -> list[Instruction]:
    """Allow a process to read its limits, and to lower all but its CPU time.

    At a lower hard limit the kernel would kill it with SIGKILL, and the run would be tried twice.
    """
    return [
        _argument(0),
        (_JUMP_EQUAL, 2, 0, 0),
        (_JUMP_EQUAL, 1, 0, pid),
        *_action(refuse(errno.EPERM)),
        _argument(1),
        (_JUMP_EQUAL, 0, 4, resource.RLIMIT_CPU),
        _argument(2),
        (_JUMP_EQUAL, 0, 3, 0),
        _argument(2, high=True),
        (_JUMP_EQUAL, 0, 1, 0),
        *_action(ALLOW),
        *_action(refuse(errno.EPERM)),
    ]


def _checked(pid: int) -> dict[str, list[Instruction]]:
    denied = refuse(errno.EPERM)
    bodies = {
        "clone": _threads_only(),
        # Its flags are in memory, which no filter can read; the C library then uses `clone`.
        "clone3": _action(refuse(errno.ENOSYS)),
        "fork": _action(refuse(errno.EAGAIN)),
        "vfork": _action(refuse(errno.EAGAIN)),
        "execve": _action(denied),
        "execveat": _action(denied),
        "futex": _private_futex(),
        "sendto": _no_address(),
        "prlimit64": _own_limits(pid),
    }
    # Advice may be ignored. This one would empty the host's cache, where other programs see it.
    bodies["fadvise64"] = _action(refuse(0))
    bodies["flock"] = _action(refuse(errno.ENOLCK))
    for name, signal_index in SIGNALS.items():
        bodies[name] = _own_signals(pid, signal_index)
    for name, (index, values) in CHOICES.items():
        # The answer of a file that is not a terminal.
        otherwise = refuse(errno.ENOTTY) if name == "ioctl" else denied
        bodies[name] = _one_of(index, values, otherwise)
    bodies["fcntl"] = [*_locked_at_once(), *bodies["fcntl"]]
    return bodies


class ProgramFilter(NamedTuple):
    """A filter ready to be installed; `entry` keeps its instructions alive."""

    instructions: tuple[Instruction, ...]
    entry: ctypes.Structure

    def install(self) -> None:
        """Filter this process from now on. Needs no_new_privs."""
        kernel.check(
            kernel.libc.prctl(
                _PR_SET_SECCOMP,
                ctypes.c_ulong(_MODE_FILTER),
                ctypes.byref(self.entry),
                ctypes.c_ulong(0),
                ctypes.c_ulong(0),
            ),
            "prctl seccomp",
        )


def program_filter(
    pid: int, machine: str = kernel.MACHINE, *, narrow: bool = False
) -> ProgramFilter:
    """The filter for a program that knows itself as `pid`.

    `narrow` is for programs that can name the host's files: it also refuses the calls that change
    a file's metadata, which Landlock does not watch over.
    """
    instructions: list[Instruction] = [
        (_LOAD, 0, 0, _OFFSET_ARCHITECTURE),
        # First of all, because numbers are other calls on other architectures.
        (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        *_action(KILL_PROCESS),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
        *_search(_intervals(_bodies(pid, machine, narrow))),
    ]
    array = (_Filter * len(instructions))(*(_Filter(*row) for row in instructions))
    entry = _Program(len(instructions), array)
    return ProgramFilter(tuple(instructions), entry)


def _bodies(pid: int, machine: str, narrow: bool) -> dict[int, tuple[Instruction, ...]]:
    """Instructions for each known call number."""
    bodies = {}
    for name, value in numbers(ALLOWED, machine).items():
        if not (narrow and name in METADATA):
            bodies[value] = tuple(_action(ALLOW))
    conditions = _checked(pid)
    for name, value in numbers(CHECKED, machine).items():
        bodies[value] = tuple(conditions[name])
    for value in numbers(HOSTILE, machine).values():
        bodies[value] = tuple(_action(KILL_PROCESS))
    return bodies


_Interval = tuple[int, tuple[Instruction, ...]]


def _intervals(bodies: dict[int, tuple[Instruction, ...]]) -> list[_Interval]:
    """(first number, what happens) for stretches of numbers that are treated alike."""
    denied = tuple(_action(refuse(errno.EPERM)))
    # The C library falls back to older calls where a new one is reported as missing.
    unknown = tuple(_action(refuse(errno.ENOSYS)))
    result: list[_Interval] = []
    for number in range(max(bodies) + 1):
        body = bodies.get(number, denied)
        if not result or result[-1][1] != body:
            result.append((number, body))
    # Calls of x32 come with the same architecture, and this bit in their number.
    return [*result, (max(bodies) + 1, unknown), (_X32_BIT, tuple(_action(KILL_PROCESS)))]


def _search(intervals: Sequence[_Interval]) -> list[Instruction]:
    """A binary search for the interval of the loaded number.

    The kernel walks the filter for every call number when it is installed, which happens for
    every run, so that its depth matters more than its length.
    """
    if len(intervals) == 1:
        return list(intervals[0][1])
    middle = len(intervals) // 2
    below, above = _search(intervals[:middle]), _search(intervals[middle:])
    first = intervals[middle][0]
    # The distance of a conditional jump has one byte.
    if len(below) <= _FARTHEST:
        return [(_JUMP_GE, len(below), 0, first), *below, *above]
    return [(_JUMP_GE, 0, 1, first), (_JUMP_ALWAYS, 0, 0, len(below)), *below, *above]


ALLOWED = """
access:21:- alarm:37:- arch_prctl:158:- brk:12:214 capget:125:90 chdir:80:49 chmod:90:-
clock_getres:229:114 clock_gettime:228:113 clock_nanosleep:230:115 close:3:57 close_range:436:436
dup:32:23 dup2:33:- dup3:292:24 epoll_create1:291:20 epoll_ctl:233:21 epoll_pwait:281:22
epoll_wait:232:- eventfd2:290:19 exit:60:93 exit_group:231:94 faccessat:269:48 faccessat2:439:439
fallocate:285:47 fchdir:81:50 fchmod:91:52 fchmodat:268:53 fdatasync:75:83
fstat:5:80 fstatfs:138:44 fsync:74:82 ftruncate:77:46
get_robust_list:274:100 getcpu:309:168 getcwd:79:17 getdents64:217:61 getegid:108:177
geteuid:107:175 getgid:104:176 getgroups:115:158 getitimer:36:102 getpeername:52:205
getpgid:121:155 getpgrp:111:- getpid:39:172 getppid:110:173 getpriority:140:141 getrandom:318:278
getresgid:120:150 getresuid:118:148 getrlimit:97:163 getrusage:98:165 getsid:124:156
getsockname:51:204 gettid:186:178 gettimeofday:96:169 getuid:102:174 link:86:-
linkat:265:37 lseek:8:62 lstat:6:- mkdir:83:- mkdirat:258:34
mmap:9:222 mprotect:10:226 mremap:25:216 munmap:11:215 nanosleep:35:101 newfstatat:262:79
open:2:- openat:257:56 pause:34:- pipe:22:- pipe2:293:59 poll:7:- ppoll:271:73 pread64:17:67
preadv:295:69 pselect6:270:72 pwrite64:18:68 pwritev:296:70
read:0:63 readlink:89:- readlinkat:267:78 readv:19:65 recvfrom:45:207 rename:82:- renameat:264:38
renameat2:316:276 restart_syscall:219:128 rmdir:84:- rseq:334:293 rt_sigaction:13:134
rt_sigpending:127:136 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigsuspend:130:133
rt_sigtimedwait:128:137 sched_getaffinity:204:123 sched_getparam:143:121
sched_getscheduler:145:120 sched_yield:24:124 select:23:- sendfile:40:71 set_robust_list:273:99
set_tid_address:218:96 setitimer:38:103 setsid:112:157 shutdown:48:210
sigaltstack:131:132 stat:4:- statfs:137:43 statx:332:291 symlink:88:- symlinkat:266:36
sysinfo:99:179 time:201:- times:100:153 truncate:76:45 umask:95:166 uname:63:160 unlink:87:-
unlinkat:263:35 utimensat:280:88 wait4:61:260 waitid:247:95 write:1:64 writev:20:66
"""
"""Always allowed: memory, threads, clocks, own signals, files and pipes."""

CHECKED = """
clone:56:220 clone3:435:435 execve:59:221 execveat:322:281 fadvise64:221:223 fcntl:72:25 flock:73:32 fork:57:- futex:202:98 getsockopt:55:209 ioctl:16:29
kill:62:129 madvise:28:233 prctl:157:167 preadv2:327:286 pwritev2:328:287 prlimit64:302:261 sendto:44:206 setrlimit:160:164 socketpair:53:199
tgkill:234:131 tkill:200:130 vfork:58:-
"""
"""Allowed or refused by their arguments; `seccomp` holds the conditions."""

HOSTILE = """
acct:163:89 add_key:248:217 adjtimex:159:171 bpf:321:280 chroot:161:51 clock_adjtime:305:266
clock_settime:227:112 delete_module:176:106 finit_module:313:273 fsconfig:431:431 fsmount:432:432
fsopen:430:430 fspick:433:433 init_module:175:105 io_uring_enter:426:426
io_uring_register:427:427 io_uring_setup:425:425 ioperm:173:- iopl:172:- kcmp:312:272
kexec_file_load:320:294 kexec_load:246:104 keyctl:250:219 modify_ldt:154:- mount:165:40
mount_setattr:442:442 move_mount:429:429 name_to_handle_at:303:264 open_by_handle_at:304:265
open_tree:428:428 perf_event_open:298:241 pidfd_getfd:438:438 pivot_root:155:41
process_madvise:440:440 process_vm_readv:310:270 process_vm_writev:311:271 ptrace:101:117
quotactl:179:60 reboot:169:142 request_key:249:218 setdomainname:171:162 sethostname:170:161
setns:308:268 settimeofday:164:170 swapoff:168:225 swapon:167:224 syslog:103:116 umount2:166:39
unshare:272:97 userfaultfd:323:282 vhangup:153:58
"""
"""No honest Python program makes these: the program is killed, status `forbidden`."""


def numbers(table: str, machine: str) -> dict[str, int]:
    """Call name -> number on `machine` ("x86_64" or "aarch64") for one of the tables above."""
    column = {"x86_64": 1, "aarch64": 2}[machine]
    rows = (entry.split(":") for entry in table.split())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
