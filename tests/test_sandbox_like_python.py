"""A program in the sandbox does what it does under plain Python: same output, same success."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pettingllms.sandbox import Case, open_sandbox
from pettingllms.sandbox.types import Sandbox

STDIN = "3\n5 4 9\r\nlast line"
PROGRAMS = {
    "nothing": "",
    "sum": "n = int(input()); print(sum(map(int, input().split())))",
    "read": "import sys; print(sys.stdin.read().split(), repr(sys.stdin.readline()))",
    "lines": "import sys; print([line for line in sys.stdin])",
    "buffer": "import sys; print(sys.stdin.buffer.readline(), sys.stdin.buffer.read())",
    "os.read": "import os; print(os.read(0, 3), os.read(0, 99), os.read(0, 9))",
    "open(0)": "print(open(0).read())",
    "open(0) twice": "print(open(0).read()); print(open(0).read())",
    "prompt": "print(input('n? '))",
    "end of input": "import sys; sys.stdin.read(); input()",
    "fileinput": "import fileinput; print([line for line in fileinput.input()])",
    "stdin seek": "import sys; sys.stdin.read(); sys.stdin.seek(0); print(sys.stdin.read())",
    "exit None": "import sys; print(1); sys.exit(None)",
    "exit 3": "import sys; print(1); sys.exit(3)",
    "exit -1": "import sys; sys.exit(-1)",
    "exit 256": "import sys; sys.exit(256)",
    "exit huge": "import sys; sys.exit(10**30)",
    "exit text": "import sys; sys.exit('why')",
    "exit float": "import sys; sys.exit(0.0)",
    "exit False": "import sys; sys.exit(False)",
    "exit liar": "class I(int):\n def __and__(s, o): return 0\nraise SystemExit(I(1))",
    "quit": "print(1); quit(); print(2)",
    "os._exit": "import os; print(1, flush=True); print(2); os._exit(0)",
    "interrupt": "raise KeyboardInterrupt",
    "syntax error": "def f(:",
    "tabs": "if True:\n\tx = 1\n        y = 2",
    "encoding line": "# -*- coding: latin-1 -*-\nprint('x')",
    "future": "from __future__ import annotations\ndef f(x: nope): return x\nprint(f(1))",
    "main guard": "if __name__ == '__main__': print('main')",
    "file": "print(__file__ != '', __doc__, __name__, __package__, __spec__)",
    "docstring": "'text'\nprint(__doc__)",
    "annotations": "x: int = 1\nprint(__annotations__)",
    "stdout replaced": "import io, sys\nsys.stdout = io.StringIO(); print(1)",
    "stdout without closed": "import os, sys\nclass O:\n def write(s, t): os.write(1, t.encode())\n def flush(s): pass\nsys.stdout = O(); print(1)",
    "stdout without flush": "import os, sys\nclass O:\n def write(s, t): os.write(1, t.encode())\nsys.stdout = O(); print(1)",
    "stdout None": "import sys; print(1); sys.stdout = None; print(2)",
    "stdout deleted": "import sys; print(1); del sys.stdout",
    "stdout closed": "import sys; print(1); sys.stdout.close()",
    "stdout detached": "import sys; sys.stdout.write('a'); o = sys.stdout.detach(); o.write(b'b')",
    "stdout wrapped": "import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.buffer); print('x')",
    "stdout reopened": "import os, sys; sys.stdout = os.fdopen(1, 'w'); print('x')",
    "stdout codecs": "import codecs, sys; sys.stdout = codecs.getwriter('utf-8')(sys.stdout.detach()); print('x')",
    "stderr closed": "import sys; sys.stderr.close(); print(3)",
    "surrogate": "print('\\ud800')",
    "atexit fails": "import atexit; atexit.register(lambda: 1 / 0); print(1)",
    "atexit order": "import atexit; atexit.register(print, 1); atexit.register(print, 2)",
    "__del__ fails": "class A:\n def __del__(s): print('del'); 1 / 0\na = A()",
    "__del__ uses globals": "x = 5\nclass A:\n def __del__(s): print(x)\n_a = A()",
    "thread fails": "import threading; threading.Thread(target=lambda: 1 / 0).start(); print(1)",
    "thread exits": "import sys, threading; threading.Thread(target=lambda: sys.exit(3)).start(); print(1)",
    "excepthook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0",
    "atexit fails in a line": "import atexit\ndef f():\n  return [][0]\natexit.register(f)",
    "__del__ fails in a line": "class A:\n def __del__(s):\n  return [][0]\nA()",
    "thread fails in a line": "import threading\ndef f():\n  return [][0]\nthreading.Thread(target=f).start()",
    "compiler fails late": "x = 1\nreturn x",
    "encoding": "# coding: latin-1\nprint(ascii('é'))\n1 / 0",
    "separators in a line": "x = '\x0c\x1e\x85\u2028'\n1 / 0",
    "lines that end in two ways": "x = 1\r\ny = 2\n1 / 0\r\n",
    "global that is no name": "globals()[1] = 2; print(3)",
    "exit in hook": "import atexit, sys; atexit.register(sys.exit, 5); print(1)",
    "recursion": "def f(n): return n and 1 + f(n - 1)\nprint(f(970))",
    "recursion without end": "def f(): f()\nf()",
    "deep": "import sys\nsys.setrecursionlimit(20000)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(10000))",
    "long integer": "print(10**5000)",
    "long integer allowed": "import sys; sys.set_int_max_str_digits(0); print(len(str(7**120000)))",
    "decimal": "from decimal import *; getcontext().prec = 40; print(Decimal(2).sqrt(), Decimal('1E+3'))",
    "fractions": "from fractions import Fraction as F; print(sum(F(1, n) for n in range(1, 30)))",
    "floats": "print(0.1 + 0.2, 1e16, 1e-5, float('inf'), -0.0, round(2.5), 7 // -2, -7 % 3)",
    "heap": "import heapq, bisect; h = [5, 1, 4]; heapq.heapify(h); print(heapq.heappop(h), bisect.bisect([1, 2, 2], 2))",
    "re": "import re; print(re.findall(r'(\\w)(\\d+)', 'a1 b22'), re.sub('x', 'y', 'axa'))",
    "itertools": "from itertools import *; print(list(permutations('abc', 2)), list(accumulate([1, 2, 3])))",
    "collections": "from collections import *; print(Counter('hello').most_common(2), OrderedDict(a=1), deque([1], 3))",
    "dataclass": "from dataclasses import *\n@dataclass(order=True, slots=True)\nclass P:\n x: int\n y: list = field(default_factory=list)\nprint(P(1) < P(2), P(3), asdict(P(1)))",
    "enum": "import enum\nclass C(enum.Enum):\n A = 1\nprint(C.A, C['A'].value, list(C))",
    "typing": "from typing import *\nT = TypeVar('T')\nclass S(Generic[T]):\n def f(self, x: Optional[T]) -> Dict[str, T]: return {'x': x}\nprint(S[int]().f(3))",
    "match": "match [1, 2, 3]:\n case [a, *rest]: print(a, rest)",
    "generators": "def g():\n x = yield 1\n print(x)\n yield from 'ab'\ni = g(); print(next(i), i.send(7), list(i))",
    "walrus": "print([y := 1, y**2], (n := 5) > 4)",
    "asyncio": "import asyncio\nasync def f(n): await asyncio.sleep(0); return n\nasync def m(): print(await asyncio.gather(f(1), f(2), asyncio.to_thread(abs, -3)))\nasyncio.run(m())",
    "queue": "import queue, threading\nq = queue.Queue()\nt = threading.Thread(target=lambda: [q.put(i) for i in range(3)]); t.start(); t.join(); print([q.get() for _ in range(3)])",
    "pickle": "import copy, pickle\nclass A:\n def __init__(s): s.x = [1]\na = pickle.loads(pickle.dumps(A())); print(a.x, copy.deepcopy(a).x)",
    "struct": "import array, struct; print(struct.pack('<iq', 1, 2), array.array('i', [1, 2]))",
    "hash of a tuple": "print(hash((1, 2.5)), hash(10**20))",
    "unicode": "import unicodedata; print('ß'.upper(), 'é' == unicodedata.normalize('NFC', 'e\u0301'), '\\U0001F600')",
    "wrong value": "print(int('x'))",
    "chained": "try: 1 / 0\nexcept Exception as e: raise ValueError('b') from e",
    "group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "name error": "numbers = [1]\nprint(numberz)",
    "name error of a builtin": "def f():\n  return pritn(1)\nf()",
    "name of an attribute": "class A:\n def __init__(self): self.total = 1\n def f(self): return totl + self.totl\ntotal = 1\ntry: A().f()\nexcept NameError as e: print(A().totl)",
    "attribute error": "print('x'.upperz())",
    "attribute of a module": "import math\nmath.sqroot(2)",
    "suggestion in a group": "try: numberz = numbers\nexcept NameError as e: raise ExceptionGroup('g', [e, ValueError(1)])",
    "notes": "e = ValueError('v'); e.add_note('a note'); raise e",
    "repeated frames": "def f(n): return f(n - 1) if n else 1 / 0\nf(20)",
    "import error": "from math import sqroot",
    "nested error": "def f():\n x = [1,\n      2]\n return {'a': [x[5]\n   ]}\nf()",
    "time": "import datetime; print(datetime.date(2024, 2, 29) + datetime.timedelta(366))",
    "random": "import random; random.seed(3); print(random.random(), random.sample(range(99), 3))",
    "json": "import json; print(json.dumps({'a': [1, None, 'é']}), json.loads('[1.5]'))",
    "files": "import os; open('a.txt', 'w').write('x'); print(open('a.txt').read(), os.path.exists('b'))",
    "temporary": "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as f: f.write('z'); f.seek(0); print(f.read())",
    "argv": "import sys; print(len(sys.argv))",
    "frozen builtins": "import builtins; builtins.print = lambda *a: None; print(1)",
    "shadowed": "list = [1]; print(list); del list; print(list('ab'))",
    "logging": "import logging; logging.basicConfig(); logging.warning('x'); print(1)",
    "exec": "exec('x = 1'); print(x, eval('x + 1'), globals()['x'])",
    "big output": "print('x' * 500000)",
    "import self": "import __main__; x = 4; print(__main__.x)",
}  # fmt: skip


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox("embedded", workers=1) as sandbox:
        yield sandbox


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_it_does_outside(sandbox: Sandbox, name: str, tmp_path):
    script = tmp_path / "main.py"
    script.write_text(PROGRAMS[name], encoding="utf-8")
    stdin_file = tmp_path / "given"
    stdin_file.write_bytes(STDIN.encode())
    with stdin_file.open("rb") as stdin:
        outside = subprocess.run(
            [sys.executable, "-I", "-X", "utf8", str(script)],
            stdin=stdin,
            capture_output=True,
            cwd=tmp_path,
            check=False,
        )
    [[inside]] = sandbox.run([PROGRAMS[name]], [Case(STDIN)])
    assert inside.stdout == outside.stdout.decode()
    assert (inside.status == "ok") == (outside.returncode == 0)
    # The interpreter's own complaints at exit do not count.
    if outside.returncode == 1 or name.endswith("in a line"):
        expected = outside.stderr.decode().replace(f"{tmp_path}/", "")
        # The sandbox has some frames of the recursion limit for itself.
        stderr, expected = (
            re.sub(r"repeated \d+|0x[0-9a-f]+", "", text) for text in (inside.stderr, expected)
        )
        assert stderr == expected


@pytest.mark.parametrize(
    "program",
    ["#!x\n# -*- coding: nothing -*-\n", "# vim: set fileencoding=ascii :\nprint('é')"],
)
def test_an_encoding_that_cannot_be_read_is_a_syntax_error_that_names_it(
    sandbox: Sandbox, program: str
):
    [[result]] = sandbox.run([program], [Case()])
    assert (result.status, result.stdout) == ("error", "")
    assert re.search(r"^SyntaxError: .*(nothing|ascii)", result.stderr, re.MULTILINE)


def test_an_error_shows_the_line_that_the_model_wrote_whatever_encoding_it_declares(
    sandbox: Sandbox,
):
    [[result]] = sandbox.run(["# coding: latin-1\nint('é')\n"], [Case()])
    assert "    int('é')\n" in result.stderr
