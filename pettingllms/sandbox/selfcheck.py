"""The self-check: does this back end hold on this machine? Run on the real thing.

    for report in self_check(open_sandbox("embedded", workers=1)):
        ...

It has one or two behaviors for each limit, each layer of isolation, and each kind of honest program:
what a kernel, an engine or an image can get wrong. `pettingllms-sandbox check` shows it to users. The
project's tests have many more (`tests/behaviors`). With one worker, what a program leaves
behind is looked for where it would be found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from textwrap import dedent, indent

from pettingllms.sandbox.types import Case, Limits, RunResult, Sandbox

TIGHT = Limits(cpu_s=0.25, wall_s=10.0, memory_mib=256, output_kib=64, processes=16)
"""Limits for programs that break one: small, so that the check is short."""
ENOUGH = replace(TIGHT, cpu_s=5.0, wall_s=30.0)
"""Limits for all other programs: imports alone take longer than `TIGHT` where the machine is busy."""


@dataclass(frozen=True, slots=True)
class Behavior:
    """A program to run and what its result must look like.

    Without `stdout`, the output may be anything but the word `ESCAPED`, which attacks print
    when they get through.
    """

    name: str
    """Says what is expected, as in `a loop ends at the CPU limit`."""
    program: str
    statuses: tuple[str, ...] = ("ok",)
    stdout: str | None = None
    stderr: str = ""
    """Must occur in standard error."""
    hidden: tuple[str, ...] = ()
    """Must occur nowhere in the result."""
    value: str | None = None
    case: Case = field(default_factory=Case)
    limits: Limits | None = None
    """None: `TIGHT` where the CPU limit is an expected end, else `ENOUGH`."""
    before: Sequence[str] = ()
    """Programs run first, on the same case, to leave something behind."""

    def complaint(self, result: RunResult) -> str:
        """Describe how `result` differs from what is expected; empty if it does not."""
        if result.status not in self.statuses:
            return f"status {result.status}, expected {' or '.join(self.statuses)}"
        if self.stdout is not None and result.stdout != self.stdout:
            return f"printed {result.stdout[:200]!r}, expected {self.stdout[:200]!r}"
        if self.value is not None and result.value != self.value:
            return f"returned {result.value!r}, expected {self.value!r}"
        if self.stderr not in result.stderr:
            return f"standard error {result.stderr[-200:]!r} does not mention {self.stderr!r}"
        output = f"{result.stdout}{result.stderr}{result.value}"
        shown = [text for text in ("ESCAPED", *self.hidden) if text in output]
        return f"the result contains {shown[0]!r}: {output[:200]!r}" if shown else ""

    def check(self, sandbox: Sandbox) -> str:
        """Run it; why it failed, or empty."""
        programs = [*self.before, self.program]
        limits = self.limits or (TIGHT if "cpu_limit" in self.statuses else ENOUGH)
        rows = sandbox.run(programs, [self.case], limits=limits)
        return self.complaint(rows[-1][0])


def attack(name: str, code: str) -> Behavior:
    """A program that tries `code`, says `held` if an exception stopped it and `ESCAPED` if not.

    A program that the kernel stops (`forbidden`, `killed`) says nothing, and passes as well.
    """
    body = indent(dedent(code).strip(), "    ")
    program = f"""\
import os, sys, ctypes, errno, socket, signal
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
try:
{body}
except (OSError, ImportError, ValueError, AttributeError) as error:
    print("held")
else:
    print("ESCAPED")
"""
    return Behavior(name, program, statuses=("ok", "forbidden", "killed"))


_SHORT_WALL = replace(TIGHT, wall_s=0.4)
_FEW_FILES = replace(TIGHT, open_files=16)
LIMITS = (
    Behavior("a loop ends at the CPU limit", "while True: pass", ("cpu_limit",)),
    Behavior(
        "the CPU time of all threads counts together",
        "import threading\n"
        "def burn():\n while True: pass\n"
        "for _ in range(4): threading.Thread(target=burn).start()",
        ("cpu_limit",),
    ),
    Behavior(
        "a sleeping program ends at the wall limit",
        "import time; time.sleep(1000)",
        ("wall_limit",),
        limits=_SHORT_WALL,
    ),
    Behavior("one huge object is out of memory", "x = bytearray(1 << 30)", ("memory_limit",)),
    Behavior(
        "many small objects are out of memory",
        "x = []\nwhile True: x.append(bytes(1 << 16))",
        ("memory_limit",),
        limits=Limits(memory_mib=64),
    ),
    Behavior(
        "standard output ends at its limit", "while True: print('x' * 999)", ("output_limit",)
    ),
    Behavior(
        "output of the exact limit is fine",
        "import sys; sys.stdout.write('x' * (64 << 10))",
        stdout="x" * (64 << 10),
    ),
    Behavior("a fork is a process too many", "import os; os.fork()", ("process_limit",)),
    Behavior(
        "threads end at the process limit",
        "import threading\nthreading.stack_size(1 << 18); e = threading.Event()\n"
        "for _ in range(99): threading.Thread(target=e.wait, daemon=True).start()",
        ("process_limit",),
    ),
    Behavior(
        "files in /tmp end at their limit",
        "open('/tmp/a', 'wb').write(bytes(64 << 20))",
        ("error",),
        stderr="No space left",
        limits=Limits(tmp_mib=4),
    ),
    Behavior(
        "the number of files is limited",
        "for i in range(10**6): open(f'/tmp/{i}', 'w').close()",
        ("error",),
        stderr="No space left",
        limits=Limits(),
    ),
    Behavior(
        "open files end at their limit",
        "x = [open('/dev/null') for _ in range(32)]",
        ("error",),
        stderr="Too many open files",
        limits=_FEW_FILES,
    ),
    Behavior(
        "limits cannot be raised",
        "import resource as r\n"
        "for kind in (r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_FSIZE, r.RLIMIT_NOFILE):\n"
        " try: r.setrlimit(kind, (r.RLIM_INFINITY, r.RLIM_INFINITY)); print('ESCAPED')\n"
        " except (OSError, ValueError): print('held')",
        stdout="held\n" * 4,
    ),
)

ISOLATION = (
    attack("users of the host are not visible", "open('/etc/passwd').read()"),
    attack("there is no /proc", "os.listdir('/proc/self')"),
    attack("no environment is readable in /proc", "open('/proc/1/environ').read()"),
    attack("home folders are not visible", "os.listdir('/home')"),
    attack("a hard link does not lead out", "os.link('/etc/passwd', '/tmp/hard')"),
    attack("the standard library is read-only", "open(os.__file__, 'a')"),
    attack("the times of files of the host cannot be changed", "os.utime(os.__file__, (0, 0))"),
    attack("nothing can be created in /", "os.mkdir('/evil')"),
    attack("no disk is reachable", "open('/dev/vda', 'rb')\n"),
    attack(
        "no descriptor is left open but the three",
        """
        found = []
        for fd in range(3, 4096):
            try: os.fstat(fd); found.append(fd)
            except OSError: pass
        if not found: raise OSError("none")
        """,
    ),
    attack("the third-party packages of the host are not visible", "import pip, setuptools"),
    attack("no internet socket", "socket.socket(socket.AF_INET)"),
    attack("no unix socket", "socket.socket(socket.AF_UNIX)"),
    attack("no name resolution", "socket.getaddrinfo('example.org', 80)"),
    # Here and below the numbers of calls are those of x86_64.
    attack("no connection by raw calls", "call(41, 2, 1, 0)"),
    attack(
        "no buffer of a socket is larger than usual",
        "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)",
    ),
    attack(
        "no lock that others see",
        "import fcntl; fcntl.flock(os.open('/dev/null', 0), fcntl.LOCK_EX)",
    ),
    attack("no interruption of the other cores", "call(324, 1, 0, 0)"),
    attack("no mark on the times of a device", "os.utime('/dev/null')"),
    attack(
        "the fork server cannot be signalled", "[os.kill(n, s) for n in (0, 2, 3) for s in (9, 19)]"
    ),
    attack("nobody else can be signalled", "os.kill(-1, signal.SIGTERM)"),
    attack("no process can be replaced", "os.execv(sys.executable, ['python'])"),
    attack("no fork by a raw call", "call(57)"),
    attack("no tracing", "call(101, 0, 0, 0, 0)"),
    attack("no reading of other memory", "call(310, 2, 0, 0, 0, 0, 0)"),
    attack("no other user", "os.setuid(0)"),
    attack("no mounts", "call(165, b'none', b'/tmp', b'tmpfs', 0, None)"),
    attack("no new namespaces", "call(272, 0x10000000)"),
    attack("no loading of kernel code", "call(321, 0, 0, 0)"),
    attack("no keyrings", "call(250, 0, -3, 0)"),
    attack("no io_uring", "call(425, 8, 0)"),
    attack("no System V shared memory", "call(29, 42, 4096, 0o1600)"),
    attack("no program from memory", "call(322, -1, b'', 0, 0, 0x1000)"),
    attack("no memory files", "os.memfd_create('x')"),
    attack("no system calls of the x32 table", "call(0x40000000 + 41, 2, 1, 0)"),
)

FORGERY = (
    Behavior("killing itself is no success", "import os; os.kill(os.getpid(), 9)", ("killed",)),
    Behavior("a crash in C is no success", "import ctypes; ctypes.string_at(0)", ("killed",)),
)

LEFTOVERS = (
    Behavior(
        "files are gone",
        "import os; print(os.listdir('/tmp'))",
        stdout="[]\n",
        before=("open('/tmp/left', 'w').write('x'); import os; os.mkdir('/tmp/folder')",),
    ),
    Behavior(
        "files left by a killed program are gone",
        "import os; print(os.listdir('/tmp'))",
        stdout="[]\n",
        before=("open('/tmp/left', 'w').write('x')\nwhile True: pass",),
        limits=TIGHT,
    ),
    Behavior(
        "changed modules are back",
        "import math; print(math.floor(2.5), hasattr(math, 'left'))",
        stdout="2 False\n",
        before=("import math; math.floor = None; math.left = 1",),
    ),
)

HONEST = (
    Behavior("input and output", "print(int(input()) * 2)", stdout="42\n", case=Case("21\n")),
    Behavior(
        "a function",
        "def add(a, b): return a + b",
        value="3",
        case=Case(function="add", args="[1, 2]"),
    ),
    Behavior(
        "an error and its traceback",
        "def f(x):\n    return 1 / x\n\nf(0)",
        ("error",),
        stderr="ZeroDivisionError",
    ),
    Behavior(
        "threads",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "print(sum(ThreadPoolExecutor(4).map(abs, range(-9, 1))))",
        stdout="45\n",
        limits=Limits(),
    ),
    Behavior(
        "files in /tmp",
        "open('/tmp/a', 'w').write('x'); print(open('/tmp/a').read())",
        stdout="x\n",
    ),
    Behavior(
        "the standard library",
        "import sqlite3, ssl, lzma, decimal, hashlib, ctypes, datetime\n"
        "print(sqlite3.connect(':memory:').execute('select 6 * 7').fetchone())",
        stdout="(42,)\n",
        limits=Limits(),
    ),
    Behavior(
        "a misspelt name is answered as plain Python answers",
        "numbers = [1]\nprint(numberz)",
        ("error",),
        stderr="NameError: name 'numberz' is not defined. Did you mean: 'numbers'?\n",
        hidden=("pettingllms", "worker", "program.py"),
    ),
)

GROUPS: dict[str, tuple[Behavior, ...]] = {
    "limits": LIMITS,
    "isolation": ISOLATION,
    "forgery": FORGERY,
    "leftovers": LEFTOVERS,
    "honest": HONEST,
}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The outcome of one behavior; `complaint` is empty if it is correct."""

    group: str
    name: str
    complaint: str


def self_check(sandbox: Sandbox) -> Iterator[CheckReport]:
    """Check every behavior on `sandbox`, one after the other."""
    for group, behaviors in GROUPS.items():
        for behavior in behaviors:
            yield CheckReport(group, behavior.name, behavior.check(sandbox))
