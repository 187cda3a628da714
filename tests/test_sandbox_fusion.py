"""The client for SandboxFusion's interface, against a real HTTP server that also misbehaves."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.envs import make
from pettingllms.errors import SandboxUnavailable
from pettingllms.sandbox import Case, Limits, open_sandbox
from pettingllms.sandbox.fusion import FusionSandbox, _read, _ServiceTrouble
from pettingllms.sandbox.types import STATUSES

LIMITS = Limits(wall_s=2.0, output_kib=16)


def served(body: dict[str, Any]) -> dict[str, Any]:
    """What the service replies: the program really runs, in a plain Python."""
    try:
        ran = subprocess.run(
            (sys.executable, "-c", body["code"]),
            input=body["stdin"].encode(),
            capture_output=True,
            timeout=body.get("run_timeout", 10),
        )
    except subprocess.TimeoutExpired:
        result: dict[str, Any] = {"status": "TimeLimitExceeded", "execution_time": 2.0}
        return {"status": "Failed", "message": "", "run_result": result}
    result = {
        "status": "Finished",
        "execution_time": 0.1,
        "return_code": ran.returncode,
        "stdout": ran.stdout.decode(),
        "stderr": ran.stderr.decode(),
    }
    said = "Failed" if ran.returncode else "Success"
    return {"status": said, "message": "", "compile_result": None, "run_result": result}


class Stub(ThreadingHTTPServer):
    """A service; `misbehave` may answer in its place, and says whether it did."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.misbehave: Callable[[Handler, int], bool] = lambda handler, number: False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        try:
            if self.path != "/run_code":
                self.send_error(404)
            elif not self.server.misbehave(self, len(self.server.bodies)):
                self.reply(json.dumps(served(body)).encode())
        except OSError:
            pass  # the client has gone, as it should

    def reply(self, data: bytes, status: int = 200, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def client(stub: Stub) -> Iterator[FusionSandbox]:
    with FusionSandbox(stub.url, 4, grace_s=0.5, backoff_s=0.01) as sandbox:
        yield sandbox


def said(run: dict[str, Any] | None, status: str = "Success") -> bytes:
    return json.dumps({"status": status, "message": "m", "run_result": run}).encode()


def finished(code: object, stdout: object = "42\n") -> dict[str, Any]:
    return {"status": "Finished", "return_code": code, "stdout": stdout, "stderr": ""}


# ------------------------------------------------------------------------------------ programs


def test_programs_run_on_the_service(stub):
    programs = ["print(int(input()) * 2)", "1 / 0", "while True: pass", "print('x' * 20000)"]
    with open_sandbox(f"fusion:{stub.url}", 2) as sandbox:
        rows = sandbox.run(programs, [Case("21\n")], limits=LIMITS)
    double, error, endless, chatty = (row[0] for row in rows)
    assert (double.status, double.stdout, double.isolation) == ("ok", "42\n", "fusion")
    assert (error.status, error.exit_code) == ("error", 1)
    assert "ZeroDivisionError" in error.stderr
    assert endless.status == "wall_limit"
    assert (chatty.status, len(chatty.stdout)) == ("output_limit", 16 * 1024)
    assert stub.bodies[0].keys() == {"code", "language", "stdin", "run_timeout", "memory_limit_MB"}


def test_functions_are_called_and_only_a_returned_value_counts(stub):
    case = Case(function="add", args="[1, [2]]")
    programs = [
        "def add(a, b): print('noise'); return [a, *b]",
        "class Solution:\n    def add(self, a, b): return b",
        "def add(a, b): import os; print('[1]'); os._exit(0)",
        "def sub(a, b): return 1",
        "def add(a, b): return {1, 2}",
    ]
    with client(stub) as sandbox:
        rows = sandbox.run(programs, [case], limits=LIMITS)
    found = [(row[0].status, row[0].value) for row in rows]
    assert found == [("ok", "[1, 2]"), ("ok", "[2]"), *[("error", None)] * 3]
    assert rows[0][0].stdout == "noise\n"
    assert "defines no function add" in rows[3][0].stderr


def test_a_function_finds_the_names_that_puzzles_take_for_granted(stub):
    program = (
        "class Solution:\n    def add(self, x: List[int]) -> Optional[int]:\n"
        "        return Counter(x).most_common(1)[0]\nif __name__ == '__main__': input()"
    )
    with client(stub) as sandbox:
        [[result]] = sandbox.run([program], [Case(function="add", args="[[2, 2, 1]]")])
    assert (result.status, result.value) == ("ok", "[2, 2]")


def test_a_program_that_breaks_its_limit_is_not_run_on_later_cases(stub):
    with FusionSandbox(stub.url, 1) as sandbox:
        [row] = sandbox.run(["while True: pass"], [Case()] * 3, limits=Limits(wall_s=0.5))
    assert [result.status for result in row] == ["wall_limit"] * 3
    assert len(stub.bodies) == 1


@pytest.mark.parametrize(
    ("program", "case"),
    [("print('\ud800')", Case()), ("print(1)", Case("\udcff")), ("x" * (2 << 20), Case())],
)
def test_text_that_cannot_be_sent_is_an_error_of_its_author(stub, program, case):
    with client(stub) as sandbox:
        [[result]] = sandbox.run([program], [case], limits=LIMITS)
    assert result.status == "error"
    assert stub.bodies == []


def test_a_program_that_makes_a_huge_reply_has_the_output_limit_and_stops_nothing(stub):
    def misbehave(handler: Handler, _: int) -> bool:
        if "flood" in stub.bodies[-1]["code"]:
            handler.reply(said(finished(0, "x" * 2_000_000)))
            return True
        return False

    stub.misbehave = misbehave
    with client(stub) as sandbox:
        [[flood], [other]] = sandbox.run(["flood", "print(1)"], [Case()], limits=LIMITS)
    assert (flood.status, other.stdout) == ("output_limit", "1\n")


# ------------------------------------------------------------------------------ a bad service


def drip(handler: Handler, _: int) -> bool:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.1)
    return True


def slow(handler: Handler, _: int) -> bool:
    time.sleep(4)
    return True


def replies(data: bytes, status: int = 200, length: int | None = None) -> Callable[..., bool]:
    def reply(handler: Handler, _: int) -> bool:
        handler.reply(data, status, length)
        return True

    return reply


GOOD = said(finished(0))
BAD = {
    "500": replies(b"oops", 500),
    "503": replies(b"", 503),
    "429": replies(b"", 429),
    "slow": slow,
    "drip": drip,
    "cut off": replies(GOOD[:-9], length=len(GOOD)),
    "hangs up": lambda handler, _: handler.connection.shutdown(socket.SHUT_RDWR) is None,
    "no HTTP": lambda handler, _: handler.wfile.write(b"hello\n\n") > 0,
    "huge": replies(b" " * 3_000_000),
    "huge header": lambda handler, _: handler.wfile.write(b"HTTP/1.1 200 " + b"x" * 90_000) > 0,
    "wrong JSON": replies(b"{status: Success}"),
    "not text": replies(b"\xff\xfe\x00"),
    "deep": replies(b"[" * 90_000),
    "a list": replies(b"[1]"),
    "success without a run": replies(said(None)),
    "success of a failed run": replies(said(finished(1))),
    "failure of a run that went well": replies(said(finished(0), "Failed")),
    "success of a run out of time": replies(said({"status": "TimeLimitExceeded"})),
    "an exit code that is text": replies(said(finished("0"))),
    "an exit code that is true": replies(said(finished(True))),
    "an output that is a number": replies(said(finished(0, 42))),
    "an error of its own": replies(said({"status": "Error", "stderr": "x"}, "SandboxError")),
    "an unknown status": replies(said(finished(0), "Fine")),
}


@pytest.mark.parametrize("how", BAD)
def test_a_failing_service_is_never_a_score(stub, how):
    stub.misbehave = BAD[how]
    with client(stub) as sandbox, pytest.raises(SandboxUnavailable, match="failed 4 times"):
        sandbox.run(["print(42)"], [Case()], limits=Limits(wall_s=0.3, output_kib=16))


@pytest.mark.parametrize("how", BAD)
def test_a_service_that_recovers_is_asked_again(stub, how):
    good = replies(GOOD)  # a Python of the stub's own may start slowly
    stub.misbehave = lambda handler, number: (BAD[how] if number < 3 else good)(handler, number)
    with client(stub) as sandbox:
        [[result]] = sandbox.run(["print(42)"], [Case()], limits=Limits(wall_s=1.5, output_kib=16))
    assert (result.status, result.stdout) == ("ok", "42\n")
    assert len(stub.bodies) >= 3


def test_the_pauses_between_attempts_grow(stub, monkeypatch):
    stub.misbehave = BAD["500"]
    pauses: list[float] = []
    with client(stub) as sandbox:
        monkeypatch.setattr(sandbox._closed, "wait", pauses.append)
        with pytest.raises(SandboxUnavailable):
            sandbox.run(["1"], [Case()], limits=LIMITS)
    assert pauses == [0.01, 0.02, 0.04]


@pytest.mark.parametrize("status", [301, 400, 404, 422])
def test_an_address_that_is_no_such_service_is_said_at_once(stub, status):
    stub.misbehave = replies(b"", status)
    with client(stub) as sandbox, pytest.raises(SandboxUnavailable, match=f"status {status}; is a"):
        sandbox.run(["1"], [Case()], limits=LIMITS)
    assert len(stub.bodies) == 1


def test_a_service_that_is_not_there_and_a_closed_client_are_said_so(stub):
    with (
        FusionSandbox("http://127.0.0.1:1", backoff_s=0.01) as nobody,
        pytest.raises(SandboxUnavailable, match="ConnectionRefusedError"),
    ):
        nobody.run(["1"], [Case()])
    with pytest.raises(SandboxUnavailable, match="closed"):
        nobody.run(["1"], [Case()])


def test_a_failing_service_stops_an_environment_and_is_nobodys_reward(stub):
    stub.misbehave = BAD["500"]
    env = make("math", sandbox=FusionSandbox(stub.url, backoff_s=0.01))
    env.reset(seed=0)
    with pytest.raises(SandboxUnavailable):
        env.step("```python\nprint(1)\n```")
    stub.misbehave = lambda handler, number: False
    env.step("```python\nprint(1)\n```")
    assert env.infos["tool_0"]["statuses"] == ["ok"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
runs = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(["Finished", "Error", "TimeLimitExceeded"]) | json_values,
        "return_code": st.sampled_from([0, 1, -9]) | json_values,
        "stdout": st.text() | json_values,
        "stderr": st.text() | json_values,
        "execution_time": st.floats() | json_values,
    },
)
any_reply = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(["Success", "Failed", "SandboxError"]) | json_values,
        "run_result": runs | json_values,
        "message": json_values,
    },
)


@given(any_reply | json_values, st.booleans())
def test_any_reply_is_a_result_or_trouble(reply, function):
    try:
        result = _read(reply, "mark" if function else None, LIMITS)
    except _ServiceTrouble:
        return
    assert result.status in STATUSES
    if result.status == "ok":
        assert reply["status"] == "Success"
        assert reply["run_result"]["return_code"] == 0
        assert (result.value is None) != function
