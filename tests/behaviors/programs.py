"""Honest programs that must simply work on every back end, and what they are told when they fail."""

from __future__ import annotations

from pettingllms.sandbox.selfcheck import Behavior
from pettingllms.sandbox.types import Case, Limits

_ALL = Limits()
OURS = ("pettingllms", "worker", "task.py", "program.py")

BEHAVIORS = (
    Behavior("print", "print('hello')", stdout="hello\n"),
    Behavior("input", "print(int(input()) * 2)", stdout="42\n", case=Case("21\n")),
    Behavior(
        "input and sys.stdin share a position",
        "import sys; a = input(); print(a, sys.stdin.read().split())",
        stdout="1 ['2', '3']\n",
        case=Case("1\n2\n3\n"),
    ),
    Behavior(
        "sys.stdin.buffer",
        "import sys; print(sys.stdin.buffer.read())",
        stdout="b'a\\xc3\\xa9'\n",
        case=Case("aé"),
    ),
    Behavior("sys.stdout.buffer", "import sys; sys.stdout.buffer.write(b'a\\n')", stdout="a\n"),
    Behavior(
        "os.read and os.write",
        "import os; os.write(1, os.read(0, 9))",
        stdout="abc",
        case=Case("abc"),
    ),
    Behavior("open(0)", "print(open(0).read())", stdout="abc\n", case=Case("abc")),
    Behavior(
        "open('/dev/stdin')", "print(open('/dev/stdin').read())", stdout="abc\n", case=Case("abc")
    ),
    Behavior("output that is never flushed", "f = open(1, 'w'); f.write('x')", stdout="x"),
    Behavior(
        "output that a replaced stream holds back",
        "import io, sys\nout = sys.stdout\nsys.stdout = io.StringIO()\nprint('x')\n"
        "import atexit; atexit.register(lambda: out.write(sys.stdout.getvalue()))",
        stdout="x\n",
    ),
    Behavior(
        "a stream of the program's own that uses its globals at the end",
        "import io, os, sys\nclass Fast:\n def __init__(self): self.kept = io.BytesIO(); self.write = lambda s: self.kept.write(s.encode())\n"
        " def flush(self): os.write(1, self.kept.getvalue()); self.kept = io.BytesIO()\nsys.stdout = Fast(); print('x')",
        stdout="x\n",
    ),
    Behavior("reading past the end is an error", "input()", ("error",), stderr="EOFError"),
    Behavior(
        "text beyond ASCII",
        "print(input()[::-1], '\\U0001f600')",
        stdout="öä😀 😀\n",
        case=Case("😀äö"),
    ),
    Behavior("a NUL in the input", "print(len(input()))", stdout="3\n", case=Case("a\0b")),
    Behavior(
        "a line of ten megabytes",
        "print(len(input()))",
        stdout="10000000\n",
        case=Case("x" * 10_000_000),
    ),
    Behavior(
        "a lone surrogate in the input",
        "import sys; print(len(sys.stdin.buffer.read()))",
        stdout="3\n",
        case=Case("\ud800"),
    ),
    Behavior("a NUL in the program is an error", "print(1)\0", ("error",), stderr="null byte"),
    Behavior(
        "a lone surrogate in the program is an error", "print('\ud800')", ("error",), stderr="Error"
    ),
    Behavior("bytes that are no text", "import os; os.write(1, b'\\xff\\n')", stdout="\ufffd\n"),
    Behavior(
        "recursion to the default limit",
        "def f(n): return n and 1 + f(n - 1)\nprint(f(980))",
        stdout="980\n",
    ),
    Behavior("recursion without end", "def f(): f()\nf()", ("error",), stderr="RecursionError"),
    Behavior(
        "recursion far beyond the default",
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(50000))",
        stdout="50000\n",
        limits=_ALL,
    ),
    Behavior(
        "recursion in a thread with a large stack",
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 27)\n"
        "def f(n): return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(50000)))\n"
        "t.start(); t.join()",
        stdout="50000\n",
        limits=_ALL,
    ),
    Behavior(
        # Since 3.12, Python bounds recursion through C by a constant: 500 levels there, 3,000 in 3.13.
        "deep recursion through C",
        "import functools, sys\nsys.setrecursionlimit(10**6)\n@functools.cache\n"
        "def f(n): return n and 1 + f(n - 1)\n"
        "n = {11: 30000, 12: 400}.get(sys.version_info.minor, 2000)\nprint(f(n) == n)",
        stdout="True\n",
        limits=_ALL,
    ),
    Behavior(
        "big integers", "print(len(str(3**9000)), 2**200)", stdout=f"{len(str(3**9000))} {2**200}\n"
    ),
    Behavior(
        "integers beyond Python's own limit",
        "print(10**5000)",
        ("error",),
        stderr="set_int_max_str_digits",
    ),
    Behavior(
        "a thread that outlives the main program",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()",
        stdout="late\n",
    ),
    Behavior(
        "a pool of threads",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "print(sum(ThreadPoolExecutor(4).map(abs, range(-9, 1))))",
        stdout="45\n",
        limits=_ALL,
    ),
    Behavior(
        "asyncio",
        "import asyncio\nasync def f():\n await asyncio.sleep(0); print('async')\nasyncio.run(f())",
        stdout="async\n",
    ),
    Behavior(
        "temporary files",
        "import tempfile\nwith tempfile.TemporaryFile() as f: print(f.write(b'abc'))",
        stdout="3\n",
    ),
    Behavior(
        "a pool of 32 threads in 256 MiB",
        "import concurrent.futures as c, time\n"
        "with c.ThreadPoolExecutor(32) as p: print(len(list(p.map(lambda _: time.sleep(0.01), range(64)))))",
        stdout="64\n",
        limits=Limits(memory_mib=256),
    ),
    Behavior("exit()", "print(1); exit(); print(2)", stdout="1\n"),
    Behavior("quit()", "print(1); quit(0); print(2)", stdout="1\n"),
    Behavior(
        "sys.exit with a text", "import sys; sys.exit('reason')", ("error",), stderr="reason\n"
    ),
    Behavior("the main guard", "if __name__ == '__main__': print('main')", stdout="main\n"),
    Behavior("a byte order mark", "\ufeffprint(1)", stdout="1\n"),
    Behavior("carriage returns", "if True:\r\n    print(1)\r\n", stdout="1\n"),
    Behavior("work at exit", "import atexit; atexit.register(print, 'bye')", stdout="bye\n"),
    Behavior(
        "__del__ at exit", "class A:\n def __del__(self): print('gone')\na = A()", stdout="gone\n"
    ),
    Behavior(
        "dataclasses, pickle and typing know the main module",
        "from __future__ import annotations\nimport dataclasses, pickle, typing\n@dataclasses.dataclass\nclass A:\n x: int\n"
        "print(pickle.loads(pickle.dumps(A(3))), typing.get_type_hints(A))",
        stdout="A(x=3) {'x': <class 'int'>}\n",
    ),
    Behavior(
        "getting the source",
        "import inspect\ndef f(): pass\nprint(inspect.getsource(f))",
        stdout="def f(): pass\n\n",
    ),
    Behavior(
        "alarms with a handler",
        "import signal, time\nsignal.signal(signal.SIGALRM, lambda *a: print('ring'))\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\ntime.sleep(0.2)",
        stdout="ring\n",
    ),
    Behavior(
        "the clock",
        "import time; print(time.time() > 1.6e9, time.perf_counter() > 0)",
        stdout="True True\n",
    ),
    Behavior(
        "entropy",
        "import os, secrets; print(len(os.urandom(8)), len(secrets.token_hex()))",
        stdout="8 64\n",
    ),
    Behavior(
        "the whole standard library",
        "import sqlite3, ssl, lzma, bz2, zlib, decimal, hashlib, ctypes, csv, statistics, datetime, unicodedata\n"
        "print(sqlite3.connect(':memory:').execute('select 6 * 7').fetchone(), hashlib.md5(b'').hexdigest()[:4])",
        stdout="(42,) d41d\n",
        limits=_ALL,
    ),
    Behavior("a set prints the same on every worker", "print({'a', 'b', 'c', 'd'})", stdout=None),
    Behavior(
        "a traceback shows the program's lines and none of ours",
        "def f(x):\n    return 1 / x\n\nf(0)  # the call\n",
        ("error",),
        stderr='File "main.py", line 2, in f\n    return 1 / x\n',
        hidden=OURS,
    ),
    Behavior(
        "a chain of exceptions shows none of our lines",
        "try: 1 / 0\nexcept ZeroDivisionError as e: raise KeyError(1) from e",
        ("error",),
        stderr="direct cause",
        hidden=OURS,
    ),
    Behavior(
        "the whole stack shows no file of ours",
        "import traceback, warnings; traceback.print_stack(); warnings.warn('x', stacklevel=3)",
        stderr='File "main.py", line 1',
        hidden=OURS,
    ),
    Behavior(
        "a syntax error shows its place",
        "x = (1,\nprint(",
        ("error",),
        stderr='File "main.py", line',
        hidden=OURS,
    ),
    Behavior(
        "a missing package says its name",
        "import numpy_is_not_here",
        ("error",),
        stderr="numpy_is_not_here",
    ),
    Behavior(
        "a method of Solution, with the usual names at hand",
        "class Solution:\n  def f(self, x: List[int]) -> Optional[int]:\n    print('seen'); return Counter(x).most_common(1)[0]",
        stdout="seen\n",
        value="[2, 3]",
        case=Case(function="f", args="[[2, 2, 2, 1]]"),
    ),
    Behavior(
        "a puzzle whose names are ours as well",
        "class Solution:\n def exist(self, board: List[List[str]], program: str, task=0, frames=1) -> bool:\n"
        "  start = jail = view = program\n  return any(set(start) <= set(row) for row in board)",
        value="true",
        case=Case(function="exist", args='[[["A", "B"], ["C", "D"]], "DC"]'),
    ),
    Behavior(
        "a function that is missing",
        "def g(): pass",
        ("error",),
        stderr="no function 'f'",
        case=Case(function="f"),
    ),
    Behavior(
        "a value that is no JSON",
        "def f(): return {1}",
        ("error",),
        stderr="JSON cannot express",
        case=Case(function="f"),
    ),
    Behavior(
        "arguments that are no JSON",
        "def f(): return 1",
        ("error",),
        stderr="not JSON",
        case=Case(function="f", args="nope"),
    ),
    Behavior(
        "arguments that are no list",
        "def f(): return 1",
        ("error",),
        stderr="JSON list",
        case=Case(function="f", args="{}"),
    ),
    Behavior(
        "an error in a function shows the program's lines and none of ours",
        "def f(x):\n    return x[9]",
        ("error",),
        stderr='File "main.py", line 2, in f',
        hidden=OURS,
        case=Case(function="f", args="[[]]"),
    ),
    Behavior(
        "the main guard is not run where a function is called",
        "def f(): return 1\nif __name__ == '__main__': input()",
        value="1",
        case=Case(function="f"),
    ),
)
