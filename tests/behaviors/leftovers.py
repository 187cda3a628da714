"""Attempts of one program to leave something to the next."""

from __future__ import annotations

from pettingllms.sandbox.selfcheck import Behavior
from pettingllms.sandbox.types import Case

_SECRET = "marker-of-the-one-before"
SEARCH_MEMORY = """\
import ctypes, gc, sys
objects = gc.get_objects()
for module in list(sys.modules.values()):
    for value in list(vars(module).values()):
        objects += [value, *getattr(value, "__dict__", {}).values()]
pages = {id(o) >> 12 for o in objects}
found = 0
for page in pages:
    data = ctypes.string_at(page << 12, 1 << 12)
    at = data.find(b"marker-of-")
    while at >= 0:
        found += data[at + 10 : at + 24][::-1] == b"erofeb-eno-eht"
        at = data.find(b"marker-of-", at + 1)
print(len(pages) > 100, found > 0)
"""
"""Looks for `_SECRET` in all memory next to live objects, without writing it down itself."""

LEAVE_SECRET = f"x = [{_SECRET!r} + str(i) for i in range(1000)]; print(x[0])"

BEHAVIORS = (
    Behavior(
        "environment variables are gone",
        "import os; print(os.environ.get('LEFT'), sorted(os.environ))",
        stdout="None ['HOME', 'LANG', 'PATH']\n",
        before=("import os; os.environ['LEFT'] = 'x'; os.putenv('LEFT', 'x')",),
    ),
    Behavior(
        "nothing of the program before is in memory",
        SEARCH_MEMORY,
        stdout="True False\n",
        before=(LEAVE_SECRET,),
    ),
    Behavior(
        "changed builtins are back",
        "print(len([1, 2]))",
        stdout="2\n",
        before=("import builtins; builtins.len = builtins.print = lambda *a: 7",),
    ),
    Behavior(
        "imported modules of the program's own are gone",
        "import sys; print('left' in sys.modules)",
        stdout="False\n",
        before=("import sys, types; sys.modules['left'] = types.ModuleType('left')",),
    ),
    Behavior(
        "the working folder is back",
        "import os; print(os.getcwd() == os.path.realpath('/tmp') or os.listdir('.'))",
        before=("import os; os.mkdir('/tmp/a'); os.chdir('/tmp/a')",),
    ),
    Behavior(
        "the mask for new files is back",
        "import os; print(oct(os.umask(0)))",
        stdout="0o22\n",
        before=("import os; os.umask(0o777)",),
    ),
    Behavior(
        "limits that were lowered are back",
        "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 8)",
        stdout="True\n",
        before=("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))",),
    ),
    Behavior(
        "signal handlers are back",
        "import signal; print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)",
        stdout="True\n",
        before=("import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)",),
    ),
    Behavior(
        "the state of random numbers is as before any program",
        "import random; print(random.random() in (0.1, random.Random(9).random()))",
        stdout="False\n",
        before=("import random; random.seed(9)",),
    ),
    Behavior(
        "what a program does to the file of its input is undone",
        "import fcntl, os; s = os.fstat(0)\n"
        "print(oct(s.st_mode & 0o777), s.st_mtime > 1000, fcntl.fcntl(0, fcntl.F_GETFL) & os.O_NONBLOCK, os.lseek(0, 0, 1))",
        stdout="0o600 True 0 0\n",
        case=Case("text"),
        before=(
            "import fcntl, os\nos.lseek(0, 2, 0)\nfcntl.fcntl(0, fcntl.F_SETFL, os.O_NONBLOCK)\n"
            "os.fchmod(0, 0o123); os.utime(0, (1, 2))",
        ),
    ),
)
