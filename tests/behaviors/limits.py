"""Every limit, broken in more than one way, has the status that says so."""

from __future__ import annotations

from dataclasses import replace

from pettingllms.sandbox.selfcheck import TIGHT, Behavior, attack
from pettingllms.sandbox.types import Case, Limits

_SHORT_WALL = replace(TIGHT, wall_s=0.4)
_FEW_FILES = replace(TIGHT, open_files=16)

BEHAVIORS = (
    Behavior(
        "a loop that catches everything ends at the CPU limit",
        "while True:\n try:\n  while True: pass\n except BaseException: pass",
        ("cpu_limit",),
    ),
    Behavior(
        "handlers for every signal do not put off the CPU limit",
        "import signal\n"
        "for s in range(1, 65):\n"
        " try: signal.signal(s, lambda *a: None)\n"
        " except (OSError, ValueError): pass\n"
        "while True: pass",
        ("cpu_limit",),
    ),
    Behavior(
        "one long call into C ends at the CPU limit",
        "print(len(range(10**12)) - sum(range(10**12)))",
        ("cpu_limit",),
    ),
    Behavior(
        "a regular expression without end ends at the CPU limit",
        "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')",
        ("cpu_limit",),
    ),
    Behavior(
        "a program that compiles without end ends at the CPU limit",
        "x = ("
        + "+".join(["1"] * 3)
        + ")\nexec('x = [' + '0,' * 3_000_000 + ']')\nwhile True: pass",
        ("cpu_limit", "memory_limit"),
    ),
    Behavior(
        "a deadlock ends at the wall limit",
        "import threading; l = threading.Lock(); l.acquire(); l.acquire()",
        ("wall_limit",),
        limits=_SHORT_WALL,
    ),
    Behavior(
        "a thread that never ends is not waited for longer than the wall limit",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
        ("wall_limit",),
        limits=_SHORT_WALL,
    ),
    Behavior(
        "reading a pipe that nobody writes ends at the wall limit",
        "import os; r, w = os.pipe(); os.read(r, 1)",
        ("wall_limit",),
        limits=_SHORT_WALL,
    ),
    Behavior(
        "anonymous shared memory is counted",
        "import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 1 << 26))",
        ("memory_limit", "error"),
        stderr="Error",
    ),
    Behavior(
        "a program that survives a MemoryError continues",
        "try: x = bytearray(1 << 40)\nexcept MemoryError: print('fine')",
        stdout="fine\n",
    ),
    Behavior(
        "thread stacks count as memory",
        "import threading\nthreading.stack_size(1 << 27); e = threading.Event()\n"
        "for _ in range(8): threading.Thread(target=e.wait, daemon=True).start()",
        ("memory_limit", "process_limit"),
    ),
    Behavior(
        "standard error ends at its limit",
        "import sys\nwhile True: sys.stderr.write('x' * 999)",
        ("output_limit",),
    ),
    Behavior(
        "output written past Python ends at its limit",
        "import os\nwhile True:\n try: os.write(1, b'x' * 999)\n except OSError: pass",
        ("output_limit",),
    ),
    Behavior(
        "a returned value ends at the output limit",
        "def f(): return 'x' * (1 << 20)",
        ("output_limit",),
        case=Case(function="f"),
    ),
    Behavior(
        "a fork bomb does not go off",
        "import os\nfor _ in range(100000):\n try: os.fork()\n except OSError: pass\nprint(os.getpid() > 0)",
        ("ok", "cpu_limit"),
    ),
    Behavior(
        "a program of 16 open files has all of them",
        "import os\nx = [os.open('/dev/null', 0) for _ in range(13)]; print(len(x))",
        stdout="13\n",
        limits=_FEW_FILES,
    ),
    attack(
        "the limit of CPU time cannot be lowered, which would look like a failure of the sandbox",
        "import resource\nresource.prlimit(0, resource.RLIMIT_CPU, (1, 1))",
    ),
    Behavior(
        "arguments that are larger than the memory are the program's failure",
        "def f(x): return len(x)",
        ("memory_limit",),
        case=Case(function="f", args='["' + "x" * 15_000_000 + '"]'),
        limits=Limits(memory_mib=1),
    ),
    Behavior(
        "a wall limit shorter than the start of a program is still a wall limit",
        "import time; time.sleep(9)",
        ("wall_limit",),
        limits=Limits(wall_s=0.001),
    ),
    Behavior(
        "a main thread that ends by itself leaves no thread beyond the CPU limit",
        "import ctypes, threading\ndef burn():\n while True: pass\n"
        "threading.Thread(target=burn, daemon=True).start()\nctypes.CDLL(None).pthread_exit(None)",
        ("cpu_limit", "killed"),
    ),
    Behavior(
        "an exception of a megabyte is an ordinary error",
        "raise ValueError('x' * (1 << 20))",
        ("error",),
        limits=Limits(),
        stderr="characters left out",
    ),
)
