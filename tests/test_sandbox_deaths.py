"""However a program ends itself, the sandbox goes on and calls it the program's doing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pettingllms.sandbox import Case, Limits, RunResult, open_sandbox
from pettingllms.sandbox.client import PooledSandbox
from pettingllms.sandbox.embedded import EmbeddedSandbox
from pettingllms.sandbox.types import Sandbox
from tests.kernel import needs_namespaces
from tests.processes import alive, descendants, eventually, running
from tests.test_sandbox_faults import in_background, only_worker

pytestmark = needs_namespaces

LIBC = "import ctypes, os, signal\nlibc = ctypes.CDLL(None, use_errno=True)\n"
FAILED = ("killed", "error", "forbidden", "cpu_limit", "wall_limit", "memory_limit")
DEATHS = {
    "SIGKILL": "import os; os.kill(os.getpid(), 9)",
    "SIGKILL to the thread": LIBC + "libc.syscall(234, os.getpid(), os.getpid(), 9)",
    "SIGKILL by tkill": LIBC + "libc.syscall(200, os.getpid(), 9)",
    "SIGKILL by raise": LIBC + "libc.raise_ = libc['raise']; libc.raise_(9)",
    "SIGXCPU": "import os, signal; os.kill(os.getpid(), signal.SIGXCPU)",
    "SIGXFSZ": "import os, signal; os.kill(os.getpid(), signal.SIGXFSZ)",
    "SIGSYS": "import os, signal; os.kill(os.getpid(), signal.SIGSYS)",
    "SIGSEGV": "import ctypes; ctypes.string_at(0)",
    "SIGBUS": "import mmap, os\nfd = os.open('/tmp/x', os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 4096)\nm = mmap.mmap(fd, 4096); os.ftruncate(fd, 0); m[0]",
    "SIGABRT": "import os; os.abort()",
    "SIGILL": LIBC + "import mmap\nm = mmap.mmap(-1, 4096, prot=7); m[:2] = b'\\x0f\\x0b'\nctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
    "every signal": "import os\nfor n in range(1, 65):\n try: os.kill(os.getpid(), n)\n except OSError: pass\nos._exit(1)",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); os._exit(1)",
    "stack of C": "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n def __repr__(s): return repr(s)\nrepr(A())",
    "stack of the compiler": "eval('(' * 100 + ')' * 100 + '-' * 500000 + '1')",
    "raw exit": LIBC + "libc.syscall(60, 7)",
    "raw exit_group": LIBC + "libc.syscall(231, 9)",
    "filter": LIBC + "libc.syscall(101, 0, 0, 0, 0)",
    "strict seccomp": LIBC + "libc.prctl(22, 1, 0, 0, 0); os._exit(1)",
    "parent's death": LIBC + "libc.prctl(1, 9, 0, 0, 0); os._exit(1)",
    "no descriptors": "import os; os.closerange(0, 1 << 16); os._exit(3)",
    "no stack limit": "import resource; resource.setrlimit(resource.RLIMIT_STACK, (4096, 4096)); f = lambda n: n and f(n - 1); f(10**5)",
    "no memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))\nx = [bytes(1 << 20) for _ in range(99)]",
    "no memory to run": LIBC + "libc.mprotect(ctypes.c_void_p(id(None) & ~4095), 4096, 0); print(None)",
    "exit handlers forever": "import atexit\ndef f(): atexit.register(f); 1 / 0\nf()\nimport os; atexit.register(os._exit, 1)",
    "del at exit dies": "import os\nclass A:\n def __del__(s, os=os): os.kill(os.getpid(), 11)\na = A()",
    "hook dies": "import os, sys; sys.excepthook = lambda *a: os.abort(); 1 / 0",
    "thread dies": "import os, threading; threading.Thread(target=os.abort).start(); import time; time.sleep(9)",
    "alarm": "import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(9)",
    "faulthandler": "import faulthandler; faulthandler.dump_traceback_later(0.05, exit=True); import time; time.sleep(9)",
}  # fmt: skip


@pytest.fixture(scope="module")
def sandbox() -> Iterator[PooledSandbox]:
    with EmbeddedSandbox(1) as sandbox:
        sandbox.run(["1"], [Case()])  # starts its worker, whichever test comes first
        yield sandbox


@pytest.mark.parametrize("name", DEATHS)
def test_no_way_to_die_is_a_failure_of_the_sandbox(sandbox: PooledSandbox, name: str):
    sandbox.run(["1"], [Case()])
    worker = only_worker(sandbox)
    limits = Limits(cpu_s=1.0, wall_s=20.0)
    [[dead], [after]] = sandbox.run([DEATHS[name], "print('fine')"], [Case()], limits=limits)
    assert dead.status in FAILED
    assert dead.exit_code != 0
    assert (after.status, after.stdout) == ("ok", "fine\n")
    assert only_worker(sandbox) is worker


DODGER = """
import time
now, tick = time.monotonic, 0.004
while True:
    at = now()
    time.sleep(max(0, tick - at % tick - 0.0004))
    end = now() + 0.0008
    while now() < end: pass
"""
"""Runs only around the moment when the kernel looks which process is running."""


@pytest.mark.slow
def test_a_program_that_runs_around_the_tick_is_no_failure_of_the_sandbox(
    sandbox: PooledSandbox,
):
    worker = only_worker(sandbox)
    limits = Limits(cpu_s=0.9, wall_s=3.0)
    [[result]] = sandbox.run([DODGER], [Case()], limits=limits)
    assert result.status in ("cpu_limit", "wall_limit")
    assert only_worker(sandbox) is worker


@pytest.mark.parametrize(("cpu_s", "wall_s"), [(0.5, 0.1), (2.0, 10.0), (5.0, 15.0), (60.0, 600.0)])
def test_the_kernel_s_own_cap_cannot_be_reached_within_the_wall_limit(cpu_s: float, wall_s: float):
    """Ticks may count every core as busy all the time."""
    program = (
        "import os, resource; print(resource.getrlimit(resource.RLIMIT_CPU)[0], os.cpu_count())"
    )
    with open_sandbox("embedded", workers=1) as sandbox:
        generous = Limits(cpu_s=max(cpu_s, 1.0), wall_s=max(wall_s, 5.0))
        [[result]] = sandbox.run([program], [Case()], limits=generous)
    cap, cores = map(int, result.stdout.split())
    assert cap > generous.cpu_s + generous.wall_s * cores


def test_a_program_that_is_killed_again_and_again_is_called_killed(sandbox: PooledSandbox):
    """As where it makes the machine run out of memory: one more try, then a verdict."""
    program = "import time; time.sleep(20); print('done')"
    thread, rows = in_background(lambda: sandbox.run([program], [Case()], limits=Limits(wall_s=40)))
    worker, killed = only_worker(sandbox), set()

    def kill_next() -> bool:
        for pid in running(worker.pid):
            if pid not in killed:
                killed.add(pid)
                os.kill(pid, 9)
        return len(killed) == 2

    assert eventually(kill_next)
    thread.join(50)
    [[[result]]] = rows
    assert (result.status, result.exit_code, result.stdout) == ("killed", -9, "")
    assert only_worker(sandbox) is worker


def test_a_program_s_memory_is_not_for_crash_handlers(sandbox: PooledSandbox):
    """A process that can be dumped owns its /proc files; the others are root's.

    The limit on the size of cores says nothing where they go to a pipe.
    """
    program = "import ctypes, time; ctypes.CDLL(None).prctl(4, 1, 0, 0, 0); time.sleep(30)"
    thread, rows = in_background(lambda: sandbox.run([program], [Case()]))
    worker = only_worker(sandbox)
    [pid] = eventually(lambda: running(worker.pid))
    try:
        assert Path(f"/proc/{pid}/environ").stat().st_uid == 0
    finally:
        os.kill(pid, signal.SIGTERM)
        thread.join(50)
    assert rows[0][0][0].status == "killed"


def result_of(sandbox: Sandbox, program: str, limits: Limits) -> RunResult:
    [[result]] = sandbox.run([program], [Case()], limits=limits)
    return result


@pytest.mark.parametrize("memory_mib", [48, 256, 768])
@pytest.mark.parametrize(
    "how",
    [
        "bytearray({n} << 20)",
        "[bytearray(1 << 20) for _ in range({n})]",
        "__import__('mmap').mmap(-1, {n} << 20)",
    ],
)
def test_memory_is_there_to_eight_tenths_and_not_beyond_twelve(
    sandbox: Sandbox, memory_mib: int, how: str
):
    limits = Limits(memory_mib=memory_mib)
    below = result_of(sandbox, f"x = {how.format(n=memory_mib * 8 // 10)}", limits)
    above = result_of(sandbox, f"x = {how.format(n=memory_mib * 12 // 10)}", limits)
    assert below.status == "ok"
    assert above.status in ("memory_limit", "error")  # mmap has an error of its own
    assert "Error" in above.stderr


def ended(pid: int) -> bool:
    return not alive(pid)


@pytest.mark.slow
def test_a_program_that_overruns_its_cpu_time_and_ends_by_itself_has_broken_the_limit(
    sandbox: PooledSandbox,
):
    """Here the worker cannot look in between: what the program used in all is what counts."""
    program = "import time\ntime.sleep(2)\nend = time.process_time() + {s}\nwhile time.process_time() < end: pass\nprint('done')"
    limits = Limits(cpu_s=0.4, wall_s=60.0)
    results = []
    for used in (0.2, 0.6):
        sandbox.run(["1"], [Case()], limits=limits)
        worker = descendants(only_worker(sandbox).pid)[1]
        text = program.format(s=used)
        thread, rows = in_background(partial(sandbox.run, [text], [Case()], limits=limits))
        [pid] = eventually(partial(running, worker))
        os.kill(worker, signal.SIGSTOP)
        assert eventually(partial(ended, pid))
        os.kill(worker, signal.SIGCONT)
        thread.join(50)
        [[[result]]] = rows
        assert (result.exit_code, result.stdout) == (0, "done\n")
        results.append(result.status)
    assert results == ["ok", "cpu_limit"]


@pytest.mark.parametrize(("share", "status"), [(0.99, "ok"), (1.0, "ok"), (1.01, "output_limit")])
@pytest.mark.parametrize("descriptor", [1, 2])
def test_output_is_there_to_the_limit_and_not_beyond(
    sandbox: Sandbox, share: float, status: str, descriptor: int
):
    size = int(share * (64 << 10))
    program = f"open({descriptor}, 'wb', closefd=False).write(b'x' * {size})"
    result = result_of(sandbox, program, Limits(output_kib=64))
    assert result.status == status
    assert len(result.stdout if descriptor == 1 else result.stderr) <= 64 << 10


@pytest.mark.parametrize(("threads", "status"), [(12, "ok"), (20, "process_limit")])
def test_threads_are_there_to_about_the_limit(sandbox: Sandbox, threads: int, status: str):
    program = f"import threading\nthreading.stack_size(1 << 18); e = threading.Event()\nfor _ in range({threads}): threading.Thread(target=e.wait, daemon=True).start()"
    assert result_of(sandbox, program, Limits(processes=16)).status == status


def test_exactly_as_many_files_can_be_opened_as_allowed(sandbox: Sandbox):
    program = "import os\ntry:\n n = 0\n while True: os.open('/dev/null', 0); n += 1\nexcept OSError: print(n)"
    for case, open_files in [(Case(), 16), (Case("x"), 40), (Case(function="f"), 16)]:
        source = program + "\ndef f(): return 1"
        [[result]] = sandbox.run([source], [case], limits=Limits(open_files=open_files))
        assert result.stdout == f"{open_files}\n"
