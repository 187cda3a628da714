"""What happens when the sandbox itself fails: retried or raised, never a verdict."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox import Case, Limits, open_sandbox
from pettingllms.sandbox import client as client_module
from pettingllms.sandbox.client import PooledSandbox, WorkerConnection
from pettingllms.sandbox.embedded import EmbeddedSandbox
from pettingllms.sandbox.workers import ProcessChannel, WorkerLost
from tests.kernel import needs_namespaces
from tests.processes import alive, descendants, eventually, running

pytestmark = needs_namespaces

SLEEP = "import time; time.sleep(1.0); print('done')"


@pytest.fixture
def sandbox() -> Iterator[PooledSandbox]:
    with EmbeddedSandbox(1) as sandbox:
        sandbox.run(["1"], [Case()])
        yield sandbox


def only_worker(sandbox: PooledSandbox) -> ProcessChannel:
    [link] = sandbox._pool._all
    assert isinstance(link.channel, ProcessChannel)
    return link.channel


def in_background(work: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    outcomes: list[Any] = []

    def run() -> None:
        try:
            outcomes.append(work())
        except SandboxUnavailable as error:
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcomes


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_worker_killed_in_the_middle_is_replaced(sandbox: PooledSandbox, depth: int):
    first = only_worker(sandbox)
    thread, outcomes = in_background(lambda: sandbox.run([SLEEP], [Case()] * 2)[0])
    assert eventually(lambda: bool(running(first.pid)))
    os.kill(descendants(first.pid)[depth], signal.SIGKILL)
    thread.join(50)
    [row] = outcomes
    assert [result.status for result in row] == ["ok"] * 2
    assert [result.stdout for result in row] == ["done\n"] * 2
    assert only_worker(sandbox) is not first


HUGE = {"results": [[0, "ok", 0, 1, 1, 1, 1025, 0, -1]], "done": True}
AGAIN = {"results": [[0, "ok", 0, 1, 1, 1, 0, 0, -1]], "done": False}


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        ([HUGE], "lengths are wrong"),
        ([AGAIN, AGAIN], "run 0 of 1 unasked or twice"),
        ([{"results": [], "done": False}], "a reply has results"),
    ],
)
def test_a_worker_sends_no_more_than_a_request_allows(replies, error):
    """Before any of it is read, so that it does not fill the caller's memory; and comes to an end."""
    worker = f"""
import sys
sys.path[:0] = {sys.path!r}
from pettingllms.sandbox.worker import frames
hello = {{"protocol": 1, "layers": [], "problems": [], "python": "3"}}
for header in (hello, *{replies!r}):
    sys.stdout.buffer.write(frames.encode(header))
sys.stdout.buffer.write(bytes(1025))
sys.stdout.buffer.flush()
sys.stdin.read()
"""
    connection = WorkerConnection(ProcessChannel((sys.executable, "-c", worker), {}))
    with contextlib.closing(connection), pytest.raises(WorkerLost, match=error):
        list(connection.ask({"limits": {"output_kib": 1}, "runs": [0, 0]}, [], 5.0))


def test_a_program_killed_from_outside_is_no_verdict(sandbox: PooledSandbox):
    thread, outcomes = in_background(lambda: sandbox.run([SLEEP], [Case()])[0])
    [pid] = eventually(lambda: running(only_worker(sandbox).pid))
    os.kill(pid, signal.SIGKILL)
    thread.join(50)
    [[result]] = outcomes
    assert (result.status, result.stdout) == ("ok", "done\n")


def test_a_waiting_process_that_is_killed_is_no_verdict(sandbox: PooledSandbox):
    assert eventually(lambda: len(descendants(only_worker(sandbox).pid)) == 4)
    os.kill(descendants(only_worker(sandbox).pid)[3], signal.SIGKILL)
    [[result]] = sandbox.run(["print(1)"], [Case()])
    assert (result.status, result.stdout) == ("ok", "1\n")


def test_other_limits_than_last_time_get_a_process_of_their_own(sandbox: PooledSandbox):
    program = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    counts = []
    for open_files in (64, 20, 20, 64):
        limits = Limits(open_files=open_files)
        counts.append(int(sandbox.run([program], [Case()], limits=limits)[0][0].stdout))
    assert counts[0] == counts[3] == counts[1] + 44 == counts[2] + 44


def test_a_worker_that_is_lost_twice_raises(sandbox: PooledSandbox):
    stop = threading.Event()

    def kill() -> None:
        while not stop.is_set():
            for link in list(sandbox._pool._all):
                link.kill()
            stop.wait(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(SandboxUnavailable, match="failed 2 times"):
            sandbox.run([SLEEP], [Case()])
    finally:
        stop.set()
        killer.join()
    assert sandbox.run(["print(1)"], [Case()])[0][0].stdout == "1\n"


def test_a_worker_that_falls_silent_is_replaced(
    sandbox: PooledSandbox, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(client_module, "GRACE_S", 1.5)
    first = only_worker(sandbox)
    for pid in descendants(first.pid):
        os.kill(pid, signal.SIGSTOP)
    [[result]] = sandbox.run(["print(1)"], [Case()], limits=Limits(wall_s=1.0))
    assert result.stdout == "1\n"
    assert not alive(first.pid)


def test_a_worker_that_talks_nonsense_is_no_worker():
    with pytest.raises(WorkerLost, match="a frame starts with"):
        WorkerConnection(ProcessChannel((sys.executable, "-c", "print('hello world')"), {}))
    with pytest.raises(WorkerLost, match="cannot start"):
        ProcessChannel(("/no/such/program",), {})


def test_what_a_worker_complains_about_is_in_the_error():
    with pytest.raises(WorkerLost, match=r"(?s)ended with code 1.*ZeroDivisionError") as caught:
        WorkerConnection(ProcessChannel((sys.executable, "-c", "1/0"), {}))
    assert "Traceback" in str(caught.value)


def test_closing_leaves_no_process_and_no_descriptor():
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    sandbox = open_sandbox("embedded", workers=2)
    sandbox.run(["print(1)"] * 4, [Case()] * 2)
    channels = [link.channel for link in sandbox._pool._all]
    firsts = [channel.pid for channel in channels if isinstance(channel, ProcessChannel)]
    pids = [pid for first in firsts for pid in descendants(first)]
    assert len(firsts) == 2
    sandbox.close()
    assert eventually(lambda: not any(alive(pid) for pid in pids))
    assert descriptors() == before
    with pytest.raises(SandboxUnavailable, match="closed"):
        sandbox.run(["1"], [Case()])


def test_closing_ends_runs_in_progress(sandbox: PooledSandbox):
    thread, outcomes = in_background(lambda: sandbox.run(["import time; time.sleep(9)"], [Case()]))
    assert eventually(lambda: bool(running(only_worker(sandbox).pid)))
    sandbox.close()
    thread.join(50)
    assert isinstance(outcomes[0], SandboxUnavailable)


def test_runs_leave_no_descriptors_or_processes_in_the_worker(sandbox: PooledSandbox):
    worker = descendants(only_worker(sandbox).pid)[1]

    def held() -> int:
        return len(list(Path(f"/proc/{worker}/fd").iterdir()))

    # The worker tidies up, and has the next process made, after its reply.
    assert eventually(lambda: len(descendants(only_worker(sandbox).pid)) == 4)
    before = held()
    programs = ["print(1)", "1/0", "import os; os.abort()", "while True: pass"]
    sandbox.run(programs, [Case("a"), Case()], limits=Limits(cpu_s=0.02))
    assert eventually(lambda: held() <= before)
    # The worker's two, its fork server, and the process that waits for the next job.
    assert eventually(lambda: len(descendants(only_worker(sandbox).pid)) == 4)
    assert running(only_worker(sandbox).pid) == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has threads, and forks
def test_a_forked_process_gets_workers_of_its_own():
    programs = ["print(2)"] * 8
    with open_sandbox("embedded", workers=2) as sandbox:
        sandbox.run(programs, [Case()])
        before = set(sandbox._pool._all)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                printed = {result.stdout for [result] in sandbox.run(programs, [Case()])}
                code = 0 if printed == {"2\n"} and not before & sandbox._pool._all else 2
                sandbox.close()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert sandbox.run(programs, [Case()])[0][0].stdout == "2\n"
        assert sandbox._pool._all == before


@pytest.mark.slow
def test_a_sandbox_that_is_forgotten_ends_its_workers():
    sandbox = EmbeddedSandbox(1)
    sandbox.run(["1"], [Case()])
    below = descendants(only_worker(sandbox).pid)
    del sandbox
    gc.collect()
    assert eventually(lambda: not any(alive(pid) for pid in below))


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_nothing_is_left_when_the_user_of_a_sandbox_ends(ending: str):
    code = f"""
import os
from pettingllms.sandbox import shared_sandbox, Case
s = shared_sandbox()
s.run(["1"], [Case()])
[link] = s._pool._all
print(link.channel.pid, flush=True)
{ending}
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    pid = int(run.stdout)
    assert run.stderr == ""
    assert eventually(lambda: not alive(pid))


def test_a_program_running_when_its_user_is_killed_ends_too():
    code = """
import threading, time
from pettingllms.sandbox import open_sandbox, Case
s = open_sandbox("embedded", 1)
threading.Thread(target=lambda: s.run(["import time; time.sleep(60)"], [Case()])).start()
while not s._pool._all: time.sleep(0.01)
[link] = s._pool._all
print(link.channel.pid, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        pid = int(user.stdout.readline())
        assert eventually(lambda: bool(running(pid)))
        below = descendants(pid)
        user.kill()
    assert eventually(lambda: not any(alive(pid) for pid in below))
