"""Runs of simple programs that share one process, with the results of processes of their own.

A process of its own costs a run about 2 ms, most of it the kernel's, and a small program a hundredth
of that. Programs that can leave nothing behind may therefore run one after the other in one process
of the sandbox, which is held like any other: what is shared is only shared between the programs
and cases of one call, and of calls that other threads make at the same time.

`is_simple` decides from the text which programs these are. It allows the names of pure functions
and of methods of texts, numbers and containers, and nothing else after a dot: no imports, no classes,
no handlers of exceptions, no private names. Such a program has no way to reach the interpreter, the
code around it, or another case. `_DRIVER` gives it a namespace, builtins and streams of its own all the same. Texts travel as bytes.

A result is taken over only where it is beyond doubt that a fresh process would have given it. Any
other run, one that comes near a limit among them, is done again in a process of its own.

Requests of several threads share a process, too: completions of many prompts are scored at the same
time. At most half as many shared processes run at once as there are cores: the threads that read and judge
results need the other half. A request that finds a place free runs at once, by itself; those that
arrive while all are taken are gathered, and the first thread that is woken runs them all. So no request
waits for company, and the busier the scorers, the more share a process.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import NamedTuple

from pettingllms.sandbox.types import DEFAULT_LIMITS, RUNAWAY, Case, Limits, RunResult, Sandbox

SHARED_CPU_S = 0.25
"""CPU seconds of one shared process. What is not done by then runs on its own: an attempt costs this
at most beyond that, and there are two where the first was shared with other calls."""
_PROGRAM_CHARS = 1 << 13
MOST_RUNS, MOST_CHARS = 512, 1 << 20
"""Runs and characters of one process."""
MOST_ERROR = 1 << 16
"""Characters of a traceback, which a process of its own shortens beyond that."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS = _words(
    """abs all any bin bool chr dict divmod enumerate filter float frozenset hex input int len list
    map max min oct ord pow print range reversed round set slice sorted str sum tuple zip"""
)
"""Builtins that neither reach the interpreter nor keep anything between two calls."""
METHODS = _words(
    """add append capitalize center clear copy count difference discard endswith extend find index
    insert intersection isalnum isalpha isdigit islower isspace issubset issuperset istitle isupper
    items join keys ljust lower lstrip pop popitem remove replace reverse rfind rindex rjust rsplit
    rstrip setdefault sort split splitlines startswith strip swapcase title union update upper
    values zfill"""
)
"""What may follow a dot. `format` is not among them: its argument can name attributes."""
# `match` reads attributes without a dot; handlers could hide that memory was short in this process.
_KEYWORDS = _words(
    """async await case class except finally from global import match nonlocal raise try type with
    yield"""
)
_WORD = re.compile(r"(\.?)([A-Za-z_][A-Za-z0-9_]*)?")

_DRIVER_CODE = """
import builtins, io, json, linecache, sys, time, traceback, warnings
def stream(data):
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors="surrogateescape", newline="\\n")
def one(code, names, function, given, arguments):
    sys.stdin, sys.stdout = stream(given), stream(b"")
    space = {"__name__": "__main__" if function is None else "main", "__builtins__": dict(names)}
    begun, value, said = time.process_time(), None, ""
    try:
        arguments = json.loads(arguments.decode())
        if type(arguments) is not list:
            return None
        exec(code, space)
        if function is not None:
            value = json.dumps(space[function](*arguments)).encode()
        sys.stdout.flush()
    except (ArithmeticError, LookupError, TypeError, ValueError, EOFError) as error:
        first = last = error.__traceback__.tb_next
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        # Raised around the program.
        if last is None or last.tb_frame.f_globals is not space:
            return None
        said = "".join(traceback.format_exception(type(error), error, first))
        sys.stdout.flush()
    except Exception:
        return None
    return sys.stdout.buffer.getvalue(), said, value, time.process_time() - begun
def all_of(text, names, function, cases):
    ended = text if text.endswith("\\n") else text + "\\n"
    linecache.cache["main.py"] = (len(text), None, ended.splitlines(True), "main.py")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            code = compile(text, "main.py", "exec", dont_inherit=True)
            said = None
        except SyntaxError as error:
            if error.text is None:
                error.text = linecache.getline("main.py", error.lineno or 0) or None
            said = "".join(traceback.format_exception(type(error), error, None))
    if warned:
        return []
    if said is not None:
        return [(b"", said, None, 0.0) for _ in cases]
    return [one(code, names, function, *case) for case in cases]
def main():
    read, out = sys.stdin.buffer, sys.stdout.buffer
    asked, names = json.loads(read.readline()), {name: getattr(builtins, name) for name in NAMES}
    warnings.simplefilter("error")
    for function, programs, cases in asked:
        function = None if function is None else read.read(function).decode()
        programs = [read.read(size).decode() for size in programs]
        cases = [(read.read(stdin), read.read(arguments)) for stdin, arguments in cases]
        for text in programs:
            try:
                rows = all_of(text, names, function, cases)
            except Exception:
                rows = []
            sizes, parts = [], []
            for row in rows:
                if row is None:
                    sizes.append(None)
                    continue
                texts = row[0], row[1].encode("utf-8", "backslashreplace"), row[2] or b""
                sizes.append([*map(len, texts), row[3]])
                parts += texts
            out.write(json.dumps(sizes).encode() + b"\\n" + b"".join(parts))
            out.flush()
main()
"""
_DRIVER = f"NAMES = {sorted(FUNCTIONS)}{_DRIVER_CODE}"


def is_simple(program: str) -> bool:
    """Returns whether a program, by its text alone, can leave nothing behind in its process.

    The test is on words, wherever they stand: a word in a string or a comment can only make it
    stricter. Text beyond ASCII is refused, because Python reads some of it as other letters.
    """
    if len(program) > _PROGRAM_CHARS or not program.isascii():
        return False
    for dot, word in _WORD.findall(program):
        if dot:
            # A dot belongs to a number or stands directly before a method.
            if word and word not in METHODS:
                return False
        elif word in _KEYWORDS or (word.startswith("__") and word != "__name__"):
            return False
    return _REFUSED.search(program) is None


_REFUSED = re.compile(r"\.(?![A-Za-z0-9])|coding[:=]")
"""A dot whose attribute is somewhere else, behind a blank, a comment or a new line; another encoding."""


class SharedRuns:
    """Runs programs on cases within one set of limits, as `Sandbox.run` does.

    It knows the results that it has found so far, so that many runs can be tried ahead of the calls
    that want them: a process for all costs what a process for one does.

    Args:
        sandbox: what everything runs in.
        limits, end_at_limit: as in `Sandbox.run`.
    """

    def __init__(
        self, sandbox: Sandbox, limits: Limits = DEFAULT_LIMITS, *, end_at_limit: bool = True
    ) -> None:
        self._sandbox, self._limits, self._end_at_limit = sandbox, limits, end_at_limit
        # None where a run was tried in company and its result is in doubt.
        self._known: dict[tuple[str, Case], RunResult | None] = {}

    def __call__(self, programs: Sequence[str], cases: Sequence[Case]) -> list[list[RunResult]]:
        """Runs every program on every case; `result[p][c]`.

        Raises:
            SandboxUnavailable: as `Sandbox.run`.
        """
        self.share(programs, cases)
        rows: dict[str, list[RunResult]] = {}
        missing: dict[tuple[Case, ...], list[str]] = {}
        for program in dict.fromkeys(programs):
            left = tuple(case for case in cases if self._known.get((program, case)) is None)
            missing.setdefault(left, []).append(program)
        for left, those in missing.items():
            results = self._alone(those, left) if left else [[] for _ in those]
            for program, row in zip(those, results, strict=True):
                if len(left) < len(cases) and any(run.status in RUNAWAY for run in row):
                    # A limit that was broken may end the list for cases that are known.
                    [rows[program]] = self._alone([program], cases)
                else:
                    by_case = dict(zip(left, row, strict=True))
                    rows[program] = [by_case.get(c) or self._result(program, c) for c in cases]
        return [rows[program] for program in programs]

    def within(self, limits: Limits, *, end_at_limit: bool = True) -> SharedRuns:
        """Returns runs within other limits, which know the same shared results.

        Those were found within `SHARED_CPU_S`, or less where the limits here are shorter.
        """
        other = SharedRuns(self._sandbox, limits, end_at_limit=end_at_limit)
        other._known = self._known
        return other

    def share(self, programs: Sequence[str], cases: Sequence[Case]) -> None:
        """Runs the simple ones among the programs in shared processes, and keeps what is beyond doubt.

        Raises:
            SandboxUnavailable: as `Sandbox.run`.
        """
        functions = {case.function for case in cases}
        left = [program for program in dict.fromkeys(programs) if self._is_new(program, cases)]
        size = sum(len(case.stdin) + len(case.args) for case in cases)
        # A single run gains nothing.
        if len(functions) != 1 or len(left) * len(cases) < 2 or not all(map(_is_sent, cases)):
            return
        within = replace(self._limits, cpu_s=min(self._limits.cpu_s, SHARED_CPU_S))
        # Not tried twice, whatever comes of it.
        self._known |= dict.fromkeys((program, case) for program in left for case in cases)
        # As many as fit whatever they are: a simple program has at most `_PROGRAM_CHARS`.
        at_once = min(MOST_RUNS // len(cases), (MOST_CHARS - size) // _PROGRAM_CHARS)
        while left and at_once > 0:
            now = left[:at_once]
            whole, rows = gatherer_of(self._sandbox)(self._sandbox, now, cases, within)
            # There are fewer rows where the process ended early.
            for program, row in zip(now, rows, strict=False):
                for case, run in zip(cases, row, strict=False):
                    self._known[program, case] = _result(run, whole, self._limits, case)
            if len(rows) < len(now):
                # The process ended early: an endless loop, or no memory left. Programs of one task
                # tend to do so together, and each try costs up to SHARED_CPU_S.
                return
            left = left[at_once:]

    def _is_new(self, program: str, cases: Sequence[Case]) -> bool:
        return any((program, case) not in self._known for case in cases) and is_simple(program)

    def _alone(self, programs: Sequence[str], cases: Sequence[Case]) -> list[list[RunResult]]:
        return self._sandbox.run(
            programs, cases, limits=self._limits, end_at_limit=self._end_at_limit
        )

    def _result(self, program: str, case: Case) -> RunResult:
        result = self._known[program, case]
        assert result is not None
        return result


def _is_sent(case: Case) -> bool:
    """Returns whether its call travels as it is: UTF-8 must express it."""
    try:
        f"{case.function}{case.args}".encode()
    except UnicodeEncodeError:
        return False
    return True


Raw = tuple[bytes, bytes, bytes, float] | None
"""Output, error, value and CPU seconds of a run, as the driver gives them; None where in doubt."""


def _rows_of(output: bytes) -> list[list[Raw]]:
    """The runs of each program, as far as they are complete; another service may have said anything."""
    stream = io.BytesIO(output)
    rows: list[list[Raw]] = []
    try:
        while line := stream.readline():
            row = json.loads(line)
            rows.append([None if sizes is None else _raw(stream, *sizes) for sizes in row])
    except (ValueError, TypeError, OverflowError, RecursionError):
        pass
    return rows


def _raw(stream: io.BytesIO, out: int, err: int, value: int, cpu_s: float) -> Raw:
    texts = stream.read(out), stream.read(err), stream.read(value)
    if tuple(map(len, texts)) != (out, err, value) or not 0 <= cpu_s < math.inf:
        raise ValueError("the process ended here")
    return *texts, cpu_s


def _result(run: Raw, whole: RunResult, limits: Limits, case: Case) -> RunResult | None:
    """The record that a process of its own would have given; None where that is in doubt."""
    if run is None:
        return None
    out, err, value, cpu_s = run
    # At the limit it is open whether a process of its own would have ended there. Addresses, as in
    # the text of a function, are other ones in another process.
    most = min(limits.output_kib << 10, MOST_ERROR) if err else limits.output_kib << 10
    if max(map(len, run[:3])) >= most or any(b" at 0x" in text for text in run[:3]):
        return None
    return RunResult(
        status="error" if err else "ok",
        stdout_bytes=out,
        stderr_bytes=err,
        exit_code=1 if err else 0,
        cpu_s=cpu_s,
        # Not measured: a simple program can wait for nothing, so that it takes what it computes.
        wall_s=cpu_s,
        memory_mib=whole.memory_mib,
        isolation=whole.isolation,
        value_bytes=None if case.function is None else value,
    )


# ---------------------------------------------------------------- threads that share a process


class ProcessOutput(NamedTuple):
    """The output of a process for one request."""

    whole: RunResult
    """The process itself."""
    rows: list[list[Raw]]
    """One for each program; fewer where the process ended early."""


@dataclass(eq=False)
class _Request:
    """Programs and cases of one caller; compared by identity."""

    programs: Sequence[str]
    cases: Sequence[Case]
    limits: Limits
    shared: ProcessOutput | None = None
    alone: bool = False
    """It was in a process that did not come to its end, and is not put at risk by others again."""

    def __post_init__(self) -> None:
        [function] = {case.function for case in self.cases}
        calls = [text for case in self.cases for text in (case.stdin, case.args)]
        texts = [*([] if function is None else [function]), *self.programs, *calls]
        self.payload = "".join(texts)
        sizes = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
        first = None if function is None else sizes.pop(0)
        calls_at = len(self.programs)
        pairs = list(zip(sizes[calls_at::2], sizes[calls_at + 1 :: 2], strict=True))
        self.header = (first, sizes[:calls_at], pairs)
        self.runs = calls_at * len(self.cases)


class Gatherer:
    """Runs `_DRIVER` for all threads of one sandbox."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._here: list[_Request] = []
        """Of all threads that are in a turn."""
        self._running: dict[_Request, list[_Request]] = {}
        self._most = max(1, (os.cpu_count() or 1) // 2)

    def __call__(
        self, sandbox: Sandbox, programs: Sequence[str], cases: Sequence[Case], limits: Limits
    ) -> ProcessOutput:
        """Runs programs on cases, which call one function or none, perhaps with those of other threads.

        Args:
            sandbox: where; the same for all threads.
            programs: what to run.
            cases: on what.
            limits: of the process; requests with other limits have another one.

        Raises:
            SandboxUnavailable: as `Sandbox.run`.
        """
        mine = _Request(programs, cases, limits)
        if threading.current_thread() is not threading.main_thread():
            return self._do(sandbox, mine)
        # Ctrl-C interrupts the main thread anywhere, so that one only waits.
        done: Future[ProcessOutput] = Future()
        threading.Thread(target=self._tell, args=(done, sandbox, mine), daemon=True).start()
        return done.result()

    def _tell(self, done: Future[ProcessOutput], sandbox: Sandbox, mine: _Request) -> None:
        try:
            done.set_result(self._do(sandbox, mine))
        except BaseException as error:  # noqa: BLE001 - it is raised again by who waits for it
            done.set_exception(error)

    def _do(self, sandbox: Sandbox, mine: _Request) -> ProcessOutput:
        while mine.shared is None:
            with self._turn(mine) as batch:
                if batch:
                    self._run(sandbox, batch)
        return mine.shared

    @contextlib.contextmanager
    def _turn(self, mine: _Request) -> Iterator[list[_Request]]:
        """Waits until `mine` is done, or there is room: takes it then, for `mine` and others with it."""
        try:
            with self._lock:
                self._here.append(mine)
                self._changed.wait_for(lambda: mine.shared is not None or self._is_free(mine))
                batch = [] if mine.shared is not None else self._beside(mine)
                if batch:
                    self._running[mine] = batch
            yield batch
        finally:
            with self._lock:
                # An endless loop in one request says nothing about the others, nor does an error here.
                for request in self._running.pop(mine, []):
                    request.alone = True
                self._here = [request for request in self._here if request is not mine]
                self._changed.notify_all()

    @property
    def _waiting(self) -> list[_Request]:
        taken = {request for batch in self._running.values() for request in batch}
        return [
            request for request in self._here if request.shared is None and request not in taken
        ]

    def _is_free(self, mine: _Request) -> bool:
        return len(self._running) < self._most and mine in self._waiting

    def _beside(self, mine: _Request) -> list[_Request]:
        """A request and those that fit into one process with it."""
        batch, runs, chars = [mine], mine.runs, len(mine.payload)
        for request in [] if mine.alone else self._waiting:
            fits = runs + request.runs <= MOST_RUNS and chars + len(request.payload) <= MOST_CHARS
            if fits and request is not mine and not request.alone and request.limits == mine.limits:
                batch.append(request)
                runs, chars = runs + request.runs, chars + len(request.payload)
        return batch

    def _run(self, sandbox: Sandbox, batch: Sequence[_Request]) -> None:
        header = json.dumps([request.header for request in batch])
        stdin = "".join([header, "\n", *(request.payload for request in batch)])
        [[whole]] = sandbox.run([_DRIVER], [Case(stdin)], limits=batch[0].limits)
        rows = _rows_of(whole.stdout_bytes)
        for request in batch:
            count = len(request.programs)
            mine, rows = rows[:count], rows[count:]
            # By itself a request has what there is, also where the process ended early.
            if len(mine) == count or len(batch) == 1:
                request.shared = ProcessOutput(whole, mine)


# Weak keys, so that this table keeps no sandbox and no worker alive.
_GATHERERS: weakref.WeakKeyDictionary[Sandbox, Gatherer] = weakref.WeakKeyDictionary()
# Threads of the parent, which its gatherers wait for, do not exist in a forked process.
os.register_at_fork(after_in_child=_GATHERERS.clear)


def gatherer_of(sandbox: Sandbox) -> Gatherer:
    """The gatherer of a sandbox, the same for all threads of a process."""
    try:
        # Without a lock, which a fork could copy held: one call of a dictionary.
        return _GATHERERS.setdefault(sandbox, Gatherer())
    except TypeError:  # an object of the user's without weak references gathers nothing
        return Gatherer()
