"""Honest programs: a back end that stops everything would withstand every attack as well."""

from __future__ import annotations

from pettingllms.sandbox.selfcheck.behaviour import Behaviour
from pettingllms.sandbox.types import Case, Limits

_OURS = ("pettingllms", "worker", "program.py")

BEHAVIOURS = (
    Behaviour("input and output", "print(int(input()) * 2)", stdout="42\n", case=Case("21\n")),
    Behaviour(
        "a function",
        "def add(a, b): return a + b",
        value="3",
        case=Case(function="add", args="[1, 2]"),
    ),
    Behaviour(
        "an error and its traceback",
        "def f(x):\n    return 1 / x\n\nf(0)",
        ("error",),
        stderr="ZeroDivisionError",
    ),
    Behaviour(
        "threads",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "print(sum(ThreadPoolExecutor(4).map(abs, range(-9, 1))))",
        stdout="45\n",
        limits=Limits(),
    ),
    Behaviour(
        "files in /tmp",
        "open('/tmp/a', 'w').write('x'); print(open('/tmp/a').read())",
        stdout="x\n",
    ),
    Behaviour(
        "the standard library",
        "import sqlite3, ssl, lzma, decimal, hashlib, ctypes, datetime\n"
        "print(sqlite3.connect(':memory:').execute('select 6 * 7').fetchone())",
        stdout="(42,)\n",
        limits=Limits(),
    ),
    Behaviour(
        "a misspelt name is answered as plain Python answers",
        "numbers = [1]\nprint(numberz)",
        ("error",),
        stderr="NameError: name 'numberz' is not defined. Did you mean: 'numbers'?\n",
        hidden=_OURS,
    ),
    *(
        Behaviour(
            f"{name} says that there are no new processes",
            program,
            ("process_limit",),
            stderr="new processes are not allowed in this sandbox",
            hidden=(*_OURS, "<sandbox>"),
            limits=Limits(),
        )
        for name, program in (
            ("os.fork", "import os; os.fork()"),
            ("os.system", "import os; os.system('true'); print('done')"),
            ("os.popen", "import os; os.popen('true').read()"),
            ("os.spawnl", "import os; os.spawnl(os.P_WAIT, '/bin/true', 'true')"),
            ("os.execl", "import os; os.execl('/bin/true', 'true')"),
            ("subprocess", "import subprocess; subprocess.run(['true'])"),
            ("a shell", "import subprocess; subprocess.check_output('true', shell=True)"),
            ("multiprocessing.Pool", "import multiprocessing as m; m.Pool(2)"),
            (
                "multiprocessing.Process",
                "import multiprocessing as m; m.Process(target=print).start()",
            ),
            ("multiprocessing.Queue", "import multiprocessing as m; m.Queue()"),
            (
                "a pool of processes",
                "import concurrent.futures as c; c.ProcessPoolExecutor(2).submit(print)",
            ),
            (
                "asyncio",
                "import asyncio\nasync def f(): await asyncio.create_subprocess_exec('true')\nasyncio.run(f())",
            ),
        )
    ),
)
