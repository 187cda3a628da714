"""`ProgramRun`: a program that is running, up to the calls that wait for replies.

    run = ProgramRun(program, task, ...)     starts; a thread, or a process where it is a script
    run.settle()                      until every call that comes has come, or the program has ended
    run.waiting                       these calls
    run.reply(call, text)             answers one, and the program runs on
    run.close()                       gives it up

A replay is a run that is told replies: it takes them by the content of its calls, so that no clock
decides which call has which reply, and must come to the calls that it is expected to wait at.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import ctypes
import hashlib
import inspect
import json
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pettingllms.envs.program_calls import ChatCall, Front, NotServed, answer, first_difference
from pettingllms.errors import CloneError, ConfigError

GIVEN = ("base_url", "api_key", "seed", "pay")
"""Arguments that a function is given beside its task, where it has them."""
MOST_OUTPUT = 1 << 20
"""Bytes of a script's standard output, whose last line is its reward."""
_MOST_REFUSALS = 3
"""Requests of a run that was given up, before its thread is ended."""
_LATE = 1.0
"""Seconds without a call after which a replay that waits elsewhere is taken to be another one."""
_CURE = (
    "A tree runs the program again with the replies that it had: let it depend on its task, its seed, and "
    "replies alone (no clock, no random state that threads share; threads that ask the same have to number what "
    "they ask), or train on whole episodes, --method grpo, which runs nothing twice"
)

_LIBRARIES = tuple({path for name, path in sysconfig.get_paths().items() if "lib" in name})
_fronts: dict[int, Front] = {}
_opening = threading.Lock()


def _front() -> Front:
    with _opening:
        if os.getpid() not in _fronts:  # threads do not survive a fork
            _fronts[os.getpid()] = Front()
            # A cluster's proxy cannot reach this machine's 127.0.0.1; clients read the lower-case name first.
            direct = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
            if direct != "*":
                os.environ["no_proxy"] = f"127.0.0.1,{direct}".rstrip(",")
        return _fronts[os.getpid()]


@dataclass(frozen=True, slots=True)
class Program:
    """What is run: a function of a task, or the path of a script."""

    name: str
    function: Callable[..., Any] | None
    """None for a script."""
    settle: float
    """Seconds without a further call after which those that wait are all; 0 where there is one at a time."""
    seconds: float
    """Seconds to the next call or the end, after which it hangs."""


@dataclass(eq=False, slots=True)
class _Waiting:
    call: ChatCall
    order: int
    """Of its connection."""
    gone: Callable[[], bool]
    """Whether its client has left."""
    reply: str | None = None
    number: int = 0
    """Of equal calls, in the order of their replies."""


class ProgramRun:
    """A running program; the module docstring says how it is used.

    It knows nothing of the environment, or it would live as long as its own thread.

    Args:
        program: what runs.
        task: its first argument, or, as JSON, a script's standard input.
        seed: of the task; ids of answers follow from it.
        roles: that may be asked; None for any.
        told: replies that a replay takes.
        expected: calls that a replay waits at when it has taken them.
    """

    def __init__(
        self,
        program: Program,
        task: Any,
        seed: int,
        roles: Sequence[str] | None,
        told: Sequence[tuple[ChatCall, str]] = (),
        expected: Sequence[ChatCall] = (),
    ) -> None:
        self.roles, self.seed, self._program = roles, seed, program
        self._changed = threading.Condition()
        self._told, self._expected = list(told), list(expected)
        self._came, self._times = 0, Counter[str]()
        self._last = time.monotonic()
        self._unread: list[_Waiting] = []
        self._refused: str | None = None
        self._waiting: list[_Waiting] = []
        self._arrived: list[_Waiting] = []
        """Calls of a replay that have a recorded reply, and wait for equal ones that come at the same time."""
        self.paid: list[dict[str, Any]] = []
        """Since the latest reply."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.trace = self.unserved = ""
        self.has_paid = False  # then it need not return a reward
        self.over = self._closed = self._killed = False
        self._refusals = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path.cwd()
        self._cancel: Callable[[], object] | None = None
        self.base_url = _front().add(self)
        self._thread = threading.Thread(
            # Its own copy: a program that changes its task would change it for the next episode.
            target=self._thread_main,
            args=(copy.deepcopy(task),),
            name="program",
            daemon=True,
        )
        self._thread.start()

    @property
    def waiting(self) -> list[ChatCall]:
        """The calls that wait, in the order in which they came."""
        return [request.call for request in self._waiting]

    # In the program's thread.

    def _thread_main(self, task: Any) -> None:
        with contextlib.suppress(SystemExit):  # of `_kill`, which may come anywhere
            try:
                self._play(task)
            finally:
                self._end()

    def _play(self, task: Any) -> None:
        try:
            if self._program.function is None:
                self.result = self._script(task)
            else:
                made = self._program.function(task, **self._arguments(self._program.function))
                if inspect.isgenerator(made) or inspect.isasyncgen(made):
                    raise TypeError(
                        "the function yields, so that nothing of it ran; let it return its reward"
                    )
                self.result = asyncio.run(self._main(made)) if inspect.iscoroutine(made) else made
        except BaseException as error:  # noqa: BLE001 - also SystemExit: whatever it raises ends its episode
            self.error, self.trace = error, _traced(error)

    def _end(self) -> None:
        while not self.over:
            with contextlib.suppress(SystemExit), self._changed:
                self.over = True
                self._changed.notify_all()

    def _arguments(self, function: Callable[..., Any]) -> dict[str, Any]:
        values = dict(zip(GIVEN, (self.base_url, "local", self.seed, self.pay), strict=True))
        parameters = inspect.signature(function).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return values
        return {name: value for name, value in values.items() if name in parameters}

    async def _main(self, program: Coroutine[Any, Any, Any]) -> Any:
        task, loop = asyncio.ensure_future(program), asyncio.get_running_loop()
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        return await task

    def _script(self, task: Any) -> Any:
        variables = {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": "local",
            "PROGRAM_SEED": str(self.seed),
            "OPENAI_AGENTS_DISABLE_TRACING": "1",  # the SDK would send its traces away
        }
        pipe = subprocess.PIPE
        command = [sys.executable, self._program.name]
        with subprocess.Popen(
            command,
            env=os.environ | variables,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        ) as process:
            self._process = process
            out, err = process.communicate(json.dumps(task).encode())
        if process.returncode:
            raise RuntimeError(
                f"exit status {process.returncode}: {err[-400:].decode(errors='replace')}"
            )
        if len(out) > MOST_OUTPUT:
            raise RuntimeError(f"it printed {len(out)} bytes; at most {MOST_OUTPUT} are read")
        line = out.decode(errors="replace").strip().rpartition("\n")[2]
        try:
            return json.loads(line)
        except ValueError:
            raise RuntimeError(
                f"a script prints its reward as JSON in its last line; got {line[:80]!r} (a function of it is "
                "program:FILE.py:NAME)"
            ) from None

    def pay(
        self,
        role: str | None = None,
        *,
        team: float = 0.0,
        local: float = 0.0,
        success: bool | None = None,
        parse_error: str | None = None,
    ) -> None:
        """Pays what the latest reply earned the team, and a role: by default the one that replied."""
        paid = {"role": role, "team": team, "local": local}
        with self._changed:
            self.has_paid = True
            self.paid.append(paid | {"success": success, "parse_error": parse_error})

    # In the front's threads.

    def ask(self, body: Any, gone: Callable[[], bool], order: int) -> dict[str, Any]:
        """Waits for the reply to a request, and returns it in the form of OpenAI's API.

        Args:
            body: of the request.
            gone: whether its client has left.
            order: of its connection, by which equal requests are told apart.

        Raises:
            NotServed: the run is over, or it is no request that can be answered.
        """
        try:
            call = ChatCall.of(body, self.roles)
        except NotServed as error:
            with self._changed:
                self._refused = str(error)
                self._changed.notify_all()
            raise
        with self._changed:
            if self._closed or self.over:
                self._refusals += 1
                if self._refusals > _MOST_REFUSALS:  # it swallows them
                    self._kill()
                raise NotServed(410, "this episode is over")
            waiting = self._again(call, gone) or self._new(call, gone, order)
            self._changed.notify_all()
            while waiting.reply is None and not (self._closed or self.over):
                arrived = waiting in self._arrived
                if not self._changed.wait(self._program.settle if arrived else None) and arrived:
                    self._tell(call.digest)
            if waiting.reply is None:
                raise NotServed(410, "this episode is over")
        # Of the decision, not of how often it was asked: a replay has the same.
        text = f"{self.seed}/{waiting.number}/{call.digest}".encode()
        return answer(call, waiting.reply, hashlib.blake2b(text, digest_size=12).hexdigest())

    def _again(self, call: ChatCall, gone: Callable[[], bool]) -> _Waiting | None:
        """The decision that a client asks for once more, after a timeout of its own."""
        for waiting in (*self._waiting, *self._arrived, *self._unread):
            if waiting.call.digest == call.digest and waiting.gone():
                waiting.gone = gone
                if waiting in self._unread:
                    self._unread.remove(waiting)
                return waiting
        return None

    def _new(self, call: ChatCall, gone: Callable[[], bool], order: int) -> _Waiting:
        waiting = _Waiting(call, order, gone)
        self._last = time.monotonic()
        told = [told.digest for told, _ in self._told].count(call.digest)
        if told:
            self._arrived.append(waiting)
            waits = [one.digest for one in self._expected].count(call.digest)
            if told + waits == 1 or not self._program.settle:
                self._tell(call.digest)
            return waiting
        return self._waits(waiting)

    def _tell(self, digest: str) -> None:
        """Gives equal calls that have come their recorded replies, in the order of their connections."""
        equal = sorted((w for w in self._arrived if w.call.digest == digest), key=lambda w: w.order)
        self._arrived = [w for w in self._arrived if w.call.digest != digest]
        for waiting in equal:
            place = next(
                (n for n, (told, _) in enumerate(self._told) if told.digest == digest), None
            )
            if place is None:
                self._waits(waiting)
            else:
                self._answer(waiting, self._told.pop(place)[1])
        self._last = time.monotonic()
        self._changed.notify_all()

    def _answer(self, waiting: _Waiting, reply: str) -> None:
        waiting.reply, waiting.number = reply, self._times[waiting.call.digest]
        self._times[waiting.call.digest] += 1

    def _waits(self, waiting: _Waiting) -> _Waiting:
        if self._waiting and not self._program.settle:
            self._refused = "it came while another one waits; settle=0.005 orders parallel calls"
        self._waiting.append(waiting)
        return waiting

    # From the environment.

    def settle(self) -> None:
        """Waits until the program can do nothing before it has a reply, or has ended.

        Raises:
            CloneError: a replay asks something else than what it asked before.
            ConfigError: a request was refused, or calls overlap where they must not.
            TimeoutError: neither a call nor an end within the time for it.
        """
        began = time.monotonic()
        with self._changed:
            while not self._settled():
                # A replay has many calls on its way, and is given the time to each of them.
                end = (max(began, self._last) if self._expected else began) + self._program.seconds
                if (left := min(end, self._due()) - time.monotonic()) > 0:
                    self._changed.wait(left)
                elif time.monotonic() >= end:
                    raise TimeoutError(
                        f"neither a call nor an end within {self._program.seconds:g} s"
                    )

    def _due(self) -> float:
        """When what is here now is all that comes."""
        missing = self._told or self._missing()
        return (
            self._last + (_LATE if missing else self._program.settle)
            if self._waiting
            else float("inf")
        )

    def _settled(self) -> bool:
        if self._refused:
            raise ConfigError(f"a request of the program was refused: {self._refused}")
        # Threads share it, and the trainer writes its relative paths there.
        if not (self._folder.exists() and self._folder.samefile("")):
            with contextlib.suppress(FileNotFoundError):
                os.chdir(self._folder)
            raise ConfigError(
                "the program changed the working directory of all episodes; use absolute paths and subprocesses with "
                "cwd=, or train a script (program:FILE.py), which has a process for each episode"
            )
        missing = [call for call, _ in self._told] + self._missing()
        if self.over:
            if missing and not self._closed:
                raise CloneError(
                    f"run again, the program ended before it asked {missing[0].role}. {_CURE}"
                )
            if self._unread:
                raise ConfigError(
                    f"the program no longer waited when {self._unread[0].call.role} replied: cancel no request, and "
                    "give the client a longer timeout, such as OpenAI(timeout=3600), because sampling takes time"
                )
            return True
        if not self._waiting or (not missing and time.monotonic() < self._due()):
            return False
        if not missing:
            return True
        if self._program.settle and time.monotonic() < self._due():
            return False
        expected = Counter(call.digest for call in self._expected)
        other = next((c for c in self.waiting if not expected[c.digest]), self.waiting[0])
        was, now = ({"model": call.role, **call.request} for call in (missing[0], other))
        raise CloneError(
            f"run again, the program asks something else: {first_difference(was, now)}. {_CURE}"
        )

    def _missing(self) -> list[ChatCall]:
        """Calls at which a replay is expected and has not come yet."""
        here = Counter(request.call.digest for request in self._waiting)
        here.subtract(call.digest for call in self._expected)
        return [call for call in self._expected if here[call.digest] < 0]

    def reply(self, call: ChatCall, text: str) -> None:
        """Answers the first of the equal calls that wait, by the order of their connections."""
        with self._changed:
            equal = [w for w in self._waiting if w.call.digest == call.digest]
            waiting = min(equal, key=lambda w: w.order)
            self._waiting.remove(waiting)
            self.paid, self._expected = [], []
            self._answer(waiting, text)
            self._last = time.monotonic()
            if waiting.gone():
                self._unread.append(waiting)
            self._changed.notify_all()

    def close(self, *, hangs: bool = False) -> None:
        """Gives the run up: its calls are refused, which ends most programs; one that `hangs` is killed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if hangs or self._process is not None:
                self._kill()

    def _kill(self) -> None:
        """Ends a process by a signal, a thread by an exception at its next Python instruction."""
        if self.over or self._killed:
            return
        self._killed = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        elif self._cancel is not None:
            with contextlib.suppress(RuntimeError):  # its loop has just ended
                self._cancel()
        else:
            # As Ctrl-C would: `except Exception` in the program does not hide it.
            if self._thread.is_alive() and (ident := self._thread.ident):
                exception = ctypes.py_object(SystemExit)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), exception)


def _traced(error: BaseException) -> str:
    """An error with the latest three places of the program itself, where the client's own would hide them."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and not f.filename.startswith(_LIBRARIES)]
    shown = traceback.format_list(own[-3:] or frames[-3:])
    return "".join([*shown, *traceback.format_exception_only(error)])
