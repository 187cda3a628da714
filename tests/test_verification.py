"""Right references stay: each run of `pettingllms-data check` has a process of its own."""

from __future__ import annotations

import re

import pytest

from pettingllms.data.asserts import Test as Pair
from pettingllms.data.coding import CodingTask
from pettingllms.envs.coding_judge import verified
from pettingllms.sandbox import Limits, open_sandbox

# Generous by the clock, so that a busy machine does not decide which limit is broken first.
LIMITS = Limits(cpu_s=2.0, wall_s=50.0, memory_mib=256)
TESTS = tuple(Pair(str(n), str(2 * n)) for n in range(5))
READS = "print(2 * int(input()))"
RIGHT = {
    "standard input reopened": f"import sys\nsys.stdin = open(0)\n{READS}",
    "standard input by its descriptor": "import os\nprint(2 * int(os.fdopen(0).readline()))",
    "standard input read whole": "import sys\nprint(2 * int(open(0).read()))",
    "standard output reopened": f"import sys\nsys.stdout = open(1, 'w')\n{READS}",
    "standard input closed": f"import sys\n{READS}\nsys.stdin.close()",
    "a folder of its own": f"import os\nos.mkdir('/tmp/mine')\n{READS}",
    "a file that must be new": f"open('/tmp/once', 'x').close()\n{READS}",
    "a module changed": f"import math\nassert math.pi\nmath.pi = 0\n{READS}",
    "a built-in changed": "import builtins\nn = int(input())\nbuiltins.int = None\nprint(2 * n)",
    "memory in a cycle": f"a = [bytearray(61 << 20)]\na.append(a)\n{READS}",
    "an exit": f"import sys\n{READS}\nsys.exit()",
    "a thread with a large stack": "import sys, threading\n"
    "sys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
    "def go():\n    print(2 * int(input()))\nt = threading.Thread(target=go)\nt.start()\nt.join()",
}


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_reference_is_kept_whatever_it_leaves_behind(name, sandbox):
    mutants = ("print(int(input()))", READS, f"import os\nos.mkdir('/tmp/mine')\n{READS}")
    task = CodingTask("t", "Print twice the number.", TESTS, RIGHT[name], mutants)
    checked = verified(task, sandbox, LIMITS)
    assert isinstance(checked, CodingTask), checked
    assert checked.mutants == mutants[:1]  # only the first is wrong


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("", "has no reference solution"),
        ("print(0)", r"fails tests\[1\]: ok, gave '0\\n', expected '2'"),
        ("print(2 * int(input()))\n1 / 0", r"fails tests\[0\]: error"),
        pytest.param("while True: pass", r"fails tests\[0\]: cpu_limit", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_reference_is_refused_with_the_test_that_it_fails(reference, why, sandbox):
    error = verified(CodingTask("t", "?", TESTS, reference), sandbox, LIMITS)
    assert isinstance(error, str)
    assert re.search(why, error)
