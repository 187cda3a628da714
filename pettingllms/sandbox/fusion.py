"""The back end `fusion:URL`: a service with SandboxFusion's HTTP interface runs the programs.

Every run is one `POST /run_code` (github.com/bytedance/SandboxFusion), in a process of its own.
The service decides how programs are isolated; results say `fusion`. Of the limits it is sent
`wall_s` and `memory_mib`, which there includes the interpreter; `output_kib` is applied here. It
knows no limit of CPU time: an endless loop costs `wall_s` and ends as `wall_limit`. CPU time and
memory of a run are not reported and read 0.

A reply that is late, cut off, too large, not JSON, or contradicts itself says nothing about the
program. The run is repeated with growing pauses, and then `SandboxUnavailable` is raised.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.sandbox.types import (
    DEFAULT_LIMITS,
    Limits,
    Pair,
    PlannedSandbox,
    RunPlan,
    RunProgress,
    RunResult,
    Status,
)

WORKERS = 8
"""Requests at the same time, by default."""
GRACE_S = 30.0
"""Seconds beyond the wall limit after which a request counts as lost."""

_ATTEMPTS = 4
_BACKOFF_S = 0.5
"""Pause before the second attempt; it doubles with each further one."""
_HEAD_BYTES = 1 << 16
_BYTES_PER_BYTE = 6
"""JSON may write a byte of output as six, such as `\\u0000`."""
# Timed out, too early, too many requests: another try may succeed.
_BUSY = (408, 425, 429)

_CALL = """\
import json as _json, sys as _sys
_space = {{"__name__": "main"}}
exec(
    "import bisect, collections, functools, heapq, itertools, math, operator\\n"
    "import random, re, string, sys\\n"
    "from bisect import bisect_left, bisect_right\\n"
    "from collections import Counter, OrderedDict, defaultdict, deque\\n"
    "from functools import cache, cmp_to_key, lru_cache, reduce\\n"
    "from heapq import heapify, heappop, heappush\\n"
    "from itertools import accumulate, combinations, permutations\\n"
    "from math import ceil, floor, gcd, inf, sqrt\\n"
    "from typing import Any, Dict, List, Optional, Set, Tuple\\n",
    _space,
)
exec(compile({source!r}, "main.py", "exec"), _space)
_solution = _space.get("Solution")
if isinstance(_solution, type) and hasattr(_solution, {name!r}):
    _function = getattr(_solution(), {name!r})
else:
    _function = _space.get({name!r})
if not callable(_function):
    _sys.exit("the program defines no function {name} and no Solution.{name}")
_value = _json.dumps(_function(*_json.loads({args!r})), allow_nan=False)
_sys.stdout.write({mark!r} + _value)
_sys.stdout.flush()
"""
"""Runs a program as the worker does for a function case, with the names that puzzles take for
granted, and calls the function; the value follows a mark that no program can guess
before it runs. As in every back end, the program may claim any value."""


class _ServiceTrouble(Exception):
    """The service did not answer as it should."""


class _TooLarge(_ServiceTrouble):
    """The reply is larger than the limits of the run allow."""


class ServiceAddress(NamedTuple):
    """The address of a service."""

    secure: bool
    host: str
    port: int
    path: str
    """Prefix of its paths, without a slash at the end."""

    @classmethod
    def of(cls, url: str) -> Self:
        """The endpoint of `http://host:port`.

        Raises:
            ConfigError: not such an address.
        """
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        extra = parts.query or parts.fragment or parts.username
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or extra:
            raise ConfigError(
                f"the sandbox fusion:{url} needs an address like fusion:http://127.0.0.1:8080"
            )
        secure = parts.scheme == "https"
        return cls(secure, parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/"))


class FusionSandbox(PlannedSandbox):
    """Runs programs on a SandboxFusion service.

    Args:
        url: its address, such as `http://127.0.0.1:8080`.
        workers: requests at the same time.
        grace_s: seconds beyond the wall limit that a request may take, waiting there included.
        backoff_s: pause before the second attempt.
    """

    def __init__(
        self,
        url: str,
        workers: int | None = None,
        *,
        grace_s: float = GRACE_S,
        backoff_s: float = _BACKOFF_S,
    ) -> None:
        self._url, self._endpoint = url, ServiceAddress.of(url)
        self._workers = workers or WORKERS
        self._grace_s, self._backoff_s = grace_s, backoff_s
        self._closed = threading.Event()

    @property
    def isolation(self) -> tuple[str, ...]:
        """The only known layer of isolation: the service."""
        return ("fusion",)

    def _do_all(self, plan: RunPlan, progress: RunProgress) -> None:
        todo = progress.left(progress.pairs())

        def do(pair: Pair) -> None:
            if progress.left([pair]):
                progress.add(pair, self._result(plan, pair))

        # A pool needs a thread, also where nothing is to be done.
        with ThreadPoolExecutor(min(self._workers, len(todo)) or 1, "fusion") as threads:
            futures = [threads.submit(do, pair) for pair in todo]
            try:
                for future in futures:
                    future.result()
            finally:
                # Only drops what has not begun; leaving the block waits for the rest.
                threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Refuse further runs."""
        self._closed.set()

    def _result(self, plan: RunPlan, pair: Pair) -> RunResult:
        """One run, repeated until the service gives an answer about the program."""
        program, case = pair
        call, limits = plan.calls[case], plan.limits
        try:
            # A plan holds lone surrogates as three bytes each, which are not UTF-8.
            source, stdin = plan.programs[program].decode(), plan.stdins[case].decode()
        except UnicodeDecodeError:
            said = "the program or its input is not text in UTF-8\n"
            return _limited("error", "", said, 1, 0.0, None, limits)
        mark = secrets.token_hex(16) if call else None
        if mark is not None:
            name, args = json.loads(call)
            source = _CALL.format(source=source, name=name, args=args, mark=mark)
        body = {
            "code": source,
            "language": "python",
            "stdin": stdin,
            "run_timeout": limits.wall_s,
            "memory_limit_MB": limits.memory_mib,
        }
        trouble = _ServiceTrouble("no attempt")
        for attempt in range(_ATTEMPTS):
            if attempt:
                # A pause that `close` ends.
                self._closed.wait(self._backoff_s * 2 ** (attempt - 1))
            if self._closed.is_set():
                raise SandboxUnavailable("the sandbox is closed; open another one")
            try:
                return _read(self._post(body, limits), mark, limits)
            except _ServiceTrouble as error:
                trouble = error
        # A service that is out of order may send too much as well, whatever the program did.
        if isinstance(trouble, _TooLarge) and self._answers():
            return _limited(
                "output_limit", "", "the program printed too much\n", 1, 0, None, limits
            )
        raise SandboxUnavailable(
            f"the service at {self._url} failed {_ATTEMPTS} times: {trouble}; see its log, or use "
            "`--sandbox embedded`"
        ) from trouble

    def _answers(self) -> bool:
        """Tell whether a program that prints little gets a proper reply now."""
        body = {"code": "print(1)", "language": "python", "stdin": ""}
        try:
            return _read(self._post(body, DEFAULT_LIMITS), None, DEFAULT_LIMITS).stdout == "1\n"
        except _ServiceTrouble:
            return False

    def _post(self, body: dict[str, Any], limits: Limits) -> Any:
        """The JSON value of the reply.

        Raises:
            _ServiceTrouble: there is none.
            SandboxUnavailable: the service refuses such requests.
        """
        secure, host, port, path = self._endpoint
        timeout = limits.wall_s + self._grace_s
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(host, port, timeout=timeout)
        text, header = json.dumps(body).encode(), {"Content-Type": "application/json"}
        # Both outputs at their limit, written as JSON at its longest.
        most = _HEAD_BYTES + 2 * _BYTES_PER_BYTE * limits.output_kib * 1024
        try:
            with contextlib.closing(connection):
                # Opened by hand, because the timer below needs the socket.
                connection.connect()
                # The connection's timeout is for each read; a reply in drops would never end.
                cut = threading.Timer(timeout, _cut, [connection.sock])
                cut.daemon = True
                cut.start()
                try:
                    connection.request("POST", f"{path}/run_code", text, header)
                    with contextlib.closing(connection.getresponse()) as reply:
                        status, data = reply.status, reply.read(most + 1)
                finally:
                    cut.cancel()
        except (OSError, http.client.HTTPException) as error:
            raise _ServiceTrouble(f"{type(error).__name__} {error}".rstrip()) from error
        if status in _BUSY or status >= 500:
            raise _ServiceTrouble(f"HTTP status {status}")
        if status != 200:
            raise SandboxUnavailable(
                f"{self._url}{path}/run_code answers with HTTP status {status}; is a SandboxFusion "
                "service listening there?"
            )
        if len(data) > most:
            raise _TooLarge(f"its reply is larger than {most} bytes")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _ServiceTrouble(f"its reply is not JSON: {error}") from error


def _cut(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _read(reply: Any, mark: str | None, limits: Limits) -> RunResult:
    """Read what a reply says about the program; `mark` is where a called function's value begins.

    Raises:
        _ServiceTrouble: it says something about the service, or contradicts itself.
    """
    if not isinstance(reply, dict):
        raise _ServiceTrouble(f"its reply is not an object: {str(reply)[:80]}")
    said, ran = reply.get("status"), reply.get("run_result")
    if said not in ("Success", "Failed") or not isinstance(ran, dict):
        raise _ServiceTrouble(f"it says {said!r}: {str(reply.get('message'))[:200]}")
    how, code = ran.get("status"), ran.get("return_code")
    texts = [ran.get(name) or "" for name in ("stdout", "stderr")]
    seconds = ran.get("execution_time") or 0.0
    if not all(isinstance(text, str) for text in texts) or not isinstance(seconds, int | float):
        raise _ServiceTrouble("a field of its reply has the wrong type")
    stdout, stderr = texts
    if how == "TimeLimitExceeded" and said == "Failed":
        return _limited("wall_limit", stdout, stderr, -9, seconds, None, limits)
    if how != "Finished" or type(code) is not int or (code == 0) != (said == "Success"):
        raise _ServiceTrouble(f"it says {said!r} of a run that is {how!r} with exit code {code!r}")
    if code:
        # The service has no status for it; Python's last line says it.
        last = stderr.rstrip().rpartition("\n")[2]
        status: Status = "memory_limit" if last.startswith("MemoryError") else "error"
        return _limited(status, stdout, stderr, code, seconds, None, limits)
    if mark is None:
        return _limited("ok", stdout, stderr, 0, seconds, None, limits)
    printed, found, value = stdout.rpartition(mark)
    if not found:
        stderr += "the program ended before the function returned a value\n"
        return _limited("error", stdout, stderr, 1, seconds, None, limits)
    return _limited("ok", printed, stderr, 0, seconds, value, limits)


def _limited(
    status: Status,
    stdout: str,
    stderr: str,
    code: int,
    seconds: float,
    value: str | None,
    limits: Limits,
) -> RunResult:
    """A result whose texts keep to the output limit; a longer one has its status."""
    most = limits.output_kib * 1024
    # JSON can express lone surrogates, which UTF-8 cannot.
    outputs = [text.encode("utf-8", "replace") for text in (stdout, stderr)]
    answer = None if value is None else value.encode("utf-8", "replace")
    if max(map(len, (*outputs, answer or b""))) > most:
        status, answer = "output_limit", None
    out, err = (output[:most] for output in outputs)
    return RunResult(status, out, err, code, 0.0, float(seconds), 0.0, "fusion", answer)
