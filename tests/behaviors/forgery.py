"""Attacks on the result: a program may claim what it likes, but only about itself."""

from __future__ import annotations

from pettingllms.sandbox.selfcheck import Behavior
from pettingllms.sandbox.types import Case, Limits

_CALL = Case(function="f", args="[1]")
FRAME = r"b'PLS1\x2e\x00\x00\x00{\"results\":[[0,\"ok\",0,1,1,1,1,0,-1]],\"done\":true}!'"

HINT_PAGE = """\
import sys
def find():
    frame = sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if hasattr(value, "hint"): return value.hint._memory
        frame = frame.f_back
    raise SystemExit("no page")
m = find()
"""
"""Finds the memory in which the process says why it failed."""

LIE = HINT_PAGE + "while True:\n for value in range(256): m[:] = bytes([value]) * len(m)"

BEHAVIORS = (
    Behavior("claims do not put off the CPU limit", LIE, ("cpu_limit",)),
    Behavior(
        "claims make no failure a success",
        HINT_PAGE
        + "import os\nfor value in range(256): m[:] = bytes([value]) * len(m)\nos._exit(1)",
        ("error",),
    ),
    Behavior(
        "frames of the protocol on every descriptor reach nobody",
        f"import os\nfor fd in range(3, 300):\n try: os.write(fd, {FRAME})\n except OSError: pass",
        stdout="",
    ),
    Behavior(
        "closing every descriptor makes a function unanswered",
        "import os\ndef f(x):\n os.closerange(0, 65536)\n return x",
        ("error",),
        case=_CALL,
    ),
    Behavior(
        "claims do not put off the wall limit",
        LIE.replace("while True:", "import time\nfor _ in range(1):") + "\ntime.sleep(99)\n",
        ("wall_limit",),
        limits=Limits(wall_s=0.4),
    ),
    Behavior(
        "claims do not carry a message to the next program",
        HINT_PAGE + "print(bytes(m).count(b'message'))",
        stdout="0\n",
        before=(HINT_PAGE + "m[:] = b'message ' * (len(m) // 8)",),
    ),
    Behavior(
        "leaving with code 0 inside the function is no success",
        "import os\ndef f(x): os._exit(0)",
        ("error",),
        case=_CALL,
    ),
    Behavior(
        "leaving with code 0 before the function is called is no success",
        "import os\ndef f(x): return x\nos._exit(0)",
        ("error",),
        case=_CALL,
    ),
    Behavior(
        "sys.exit before the call is no success", "import sys\nsys.exit(0)", ("error",), case=_CALL
    ),
    Behavior(
        "frames of the protocol on standard output are just output",
        f"import sys; sys.stdout.buffer.write({FRAME})",
        stdout='PLS1.\0\0\0{"results":[[0,"ok",0,1,1,1,1,0,-1]],"done":true}!',
    ),
    Behavior(
        "closing every descriptor harms nobody else",
        "import os; os.closerange(0, 65536)",
        ("ok", "error"),
        stdout="",
    ),
    Behavior(
        "replaced machinery changes nothing but the own result",
        "import json, os, sys, builtins\n"
        "json.dumps = lambda *a, **k: '42'\nos.write = os._exit = sys.exit = print\n"
        "builtins.len = builtins.isinstance = lambda *a: 1\ndef f(x): return x",
        ("ok", "error", "killed", "memory_limit", "output_limit", "cpu_limit"),
        case=_CALL,
    ),
    Behavior(
        "an object that lies about itself cannot break the answer",
        "class Liar(dict):\n def __iter__(self): raise SystemExit(0)\n items = __iter__\n"
        "def f(x): return Liar(a=1)",
        ("ok", "error"),
        case=_CALL,
    ),
    Behavior(
        "an exception that cannot be printed is an ordinary error",
        "class E(Exception):\n def __str__(self): raise SystemExit(0)\nraise E",
        ("error",),
    ),
    Behavior(
        "an exception raised while printing one is an ordinary error",
        "import sys\ndef hook(*a): raise RuntimeError\nsys.excepthook = hook\n1/0",
        ("error",),
    ),
    Behavior(
        "an exception that raises others when it is looked at is an ordinary error",
        "class A(OSError):\n errno = property(lambda self: (_ for _ in ()).throw(B()))\n"
        "class B(OSError):\n errno = property(lambda self: (_ for _ in ()).throw(SystemExit(0)))\n"
        "raise A",
        ("error",),
    ),
    Behavior("aborting is no success", "import os; os.abort()", ("killed",)),
    Behavior(
        "a default signal ends the program",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM); print('ESCAPED')",
        ("killed",),
    ),
    Behavior(
        "stopping itself does not stop the worker",
        "import os, signal\ntry: os.kill(os.getpid(), signal.SIGSTOP)\nexcept OSError: pass",
        ("ok", "wall_limit"),
        limits=Limits(wall_s=0.5),
    ),
    Behavior(
        "a non-zero exit code is an error", "import sys; print('right'); sys.exit(3)", ("error",)
    ),
    Behavior("an exit code of 256 is one of 0", "import sys; sys.exit(256)"),
    Behavior(
        "what the standard input holds cannot be changed for others",
        "import sys; print(sys.stdin.read())",
        stdout="kept\n",
        case=Case("kept"),
        before=("import os; os.lseek(0, 0, 0)\ntry: os.write(0, b'XXXX')\nexcept OSError: pass",),
    ),
)
