"""Interrupts and random deaths: no process is left, no run is lost, the next call works."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from pettingllms.sandbox import Case
from pettingllms.sandbox.client import PooledSandbox
from pettingllms.sandbox.embedded import EmbeddedSandbox
from pettingllms.sandbox.workers import ProcessChannel
from tests.kernel import needs_namespaces
from tests.processes import alive, descendants, eventually

pytestmark = needs_namespaces

HELP = """
import contextlib, ctypes, os, random, signal, subprocess, sys, threading, time
from pettingllms.sandbox import Case, open_sandbox
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come to this process
def children():
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    return open(f"/proc/self/task/{os.getpid()}/children").read().split()
def left(seconds=30):
    end = time.monotonic() + seconds
    while children() and time.monotonic() < end: time.sleep(0.02)
    return children()
order = random.Random(7)
"""


def last_line(code: str, timeout: float) -> str:
    run = subprocess.run(
        [sys.executable, "-c", HELP + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()[-1]


def firsts(sandbox: PooledSandbox) -> list[int]:
    """The first process of every worker."""
    channels = [link.channel for link in list(sandbox._pool._all)]
    return [channel.pid for channel in channels if isinstance(channel, ProcessChannel)]


@pytest.mark.slow
@pytest.mark.parametrize("wait", [True, False])
def test_idle_workers_that_are_all_dead_are_replaced(wait: bool):
    programs = ["print(1)"] * 12
    with EmbeddedSandbox(3) as sandbox:
        for _ in range(3):
            sandbox.run(programs, [Case()])
            killed = [descendants(pid)[1] for pid in firsts(sandbox)]
            assert killed
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            for pid in killed if wait else ():
                assert eventually(partial(ended, pid))
            rows = sandbox.run(programs, [Case()])
            assert {result.stdout for [result] in rows} == {"1\n"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_random_kills_lose_no_run_and_leave_nothing():
    order = random.Random(4)
    program = "import time; time.sleep(0.02); print(int(input()) * 2)"
    cases = [Case(str(n)) for n in range(6)]
    expected = [[f"{2 * n}\n" for n in range(6)]] * 4
    kills = 0
    # Other tests of this process may have left helpers of their own, such as a resource tracker.
    others = set(descendants(os.getpid()))
    with EmbeddedSandbox(2) as sandbox:
        sandbox.run(["print(1)"] * 8, [Case()])
        held = len(list(Path("/proc/self/fd").iterdir()))
        while kills < 60:
            victim = order.choice(descendants(order.choice(firsts(sandbox))))
            timer = threading.Timer(order.uniform(0, 0.4), _kill, (victim,))
            timer.start()
            rows = sandbox.run([program] * 4, cases)
            assert [[result.stdout for result in row] for row in rows] == expected
            timer.join()
            kills += 1
        sandbox.run(["print(1)"] * 8, [Case()])
        assert eventually(lambda: len(list(Path("/proc/self/fd").iterdir())) == held)
        # Two workers with their two processes, their fork server, and one that waits for a job.
        assert eventually(lambda: len(below(others)) <= 8)
    assert eventually(lambda: not below(others))


def ended(pid: int) -> bool:
    return not alive(pid)


def below(others: set[int]) -> list[int]:
    return [pid for pid in descendants(os.getpid()) if pid not in others and alive(pid)]


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_interrupts_while_workers_start_leave_no_process():
    code = """
user = '''
from pettingllms.sandbox import Case, open_sandbox
print("ready", flush=True)
while True:
    with open_sandbox("embedded", 2) as sandbox:
        sandbox.run(["print(1)"] * 8, [Case()])
'''
for n in range(30):
    process = subprocess.Popen(
        [sys.executable, "-c", user], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout.readline() == b"ready\\n"
    time.sleep(order.uniform(0, 0.8))
    process.send_signal(order.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]))
    process.communicate(timeout=40)
print(len(left()))
"""
    assert last_line(code, 280) == "0"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_caller_that_catches_ctrl_c_keeps_a_working_sandbox_and_no_process():
    code = """
caught = 0
for n in range(10):
    with open_sandbox("embedded", 2) as sandbox:
        for _ in range(3):
            timer = threading.Timer(order.uniform(0, 0.6), os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                sandbox.run(["import time; time.sleep(0.2)"] * 30, [Case()])
                timer.join()
                time.sleep(0.1)
            except KeyboardInterrupt:
                caught += 1
            timer.join()
        rows = sandbox.run(["print(1)"] * 8, [Case()])
        assert {result.stdout for [result] in rows} == {"1\\n"}, rows
assert caught > 15, caught
print(len(left()))
"""
    assert last_line(code, 280) == "0"


def test_a_stopped_worker_does_not_outlive_a_killed_user():
    code = """
user = '''
import threading
from pettingllms.sandbox import Case, open_sandbox
sandbox = open_sandbox("embedded", 2)
thread = threading.Thread(target=lambda: sandbox.run(["1"] * 8, [Case()]))
thread.start()
thread.join()
first = set(sandbox._pool._all)
sandbox.run(["1"] * 8, [Case()])
# A worker outlives the thread that asked for it.
print(len(first), first == sandbox._pool._all, flush=True)
input()
'''
process = subprocess.Popen(
    [sys.executable, "-c", user], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
assert process.stdout.readline() == b"2 True\\n"
def below(pid):
    text = open(f"/proc/{pid}/task/{pid}/children").read()
    return [p for child in text.split() for p in (int(child), *below(child))]
for pid in below(process.pid):
    os.kill(pid, signal.SIGSTOP)
process.kill()
process.wait()
found = left(5)
for pid in found:
    os.kill(int(pid), signal.SIGKILL)
print(len(found))
"""
    assert last_line(code, 55) == "0"
