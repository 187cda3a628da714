"""Runs of simple programs that share one process, with the results of processes of their own.

A process of its own costs a run about 2 ms, most of it the kernel's, and a small program a hundredth
of that. Programs that can leave nothing behind may therefore run one after the other in one process
of the sandbox, which is held like any other: what is shared is only shared between the programs
and cases of one call, and of calls that other threads make at the same time.

`is_simple` decides from the text which programs these are. It allows the names of pure functions
and of methods of texts, numbers and containers, and nothing else after a dot: no imports, no classes,
no handlers of exceptions, no private names. Such a program has no way to reach the interpreter, the
code around it, or another case. `_DRIVER` gives it a namespace, builtins and streams of its own all the same.

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
import json
import math
import os
import re
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

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

# Bytes travel as characters below 256: JSON would join the two halves of a character.
_DRIVER_CODE = """
import builtins, io, json, linecache, sys, time, traceback, warnings
def stream(data):
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors="surrogateescape", newline="\\n")
def one(code, names, function, stdin, arguments):
    sys.stdin, sys.stdout = stream(stdin.encode("latin-1")), stream(b"")
    space = {"__name__": "__main__" if function is None else "main", "__builtins__": dict(names)}
    begun, value, said = time.process_time(), b"", ""
    try:
        arguments = json.loads(arguments.encode("latin-1").decode())
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
    return row(sys.stdout.buffer.getvalue(), said, value, time.process_time() - begun)
def row(output, error, value, seconds):
    texts = output, error.encode("utf-8", "backslashreplace"), value
    return [*(text.decode("latin-1") for text in texts), seconds]
def all_of(text, names, function, cases):
    ended = text if text.endswith("\\n") else text + "\\n"
    lines = io.StringIO(ended, newline=None).readlines()
    linecache.cache["main.py"] = (len(text), None, lines, "main.py")
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
        return [row(b"", said, b"", 0.0) for _ in cases]
    return [one(code, names, function, *case) for case in cases]
def main():
    requests, out = json.loads(sys.stdin.readline()), sys.stdout
    names = {name: getattr(builtins, name) for name in NAMES}
    warnings.simplefilter("error")
    for function, programs, cases in requests:
        for text in programs:
            try:
                rows = all_of(text, names, function, cases)
            except Exception:
                rows = []
            out.write(json.dumps(rows) + "\\n")
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
    """

    def __init__(
        self, sandbox: Sandbox, limits: Limits = DEFAULT_LIMITS, *, end_at_limit: bool = True
    ) -> None:
        self._sandbox, self._limits, self._end_at_limit = sandbox, limits, end_at_limit
        self._known: dict[tuple[str, Case], RunResult] = {}
        self._tried: set[tuple[str, Case]] = set()

    def __call__(self, programs: Sequence[str], cases: Sequence[Case]) -> list[list[RunResult]]:
        """Runs every program on every case; `result[p][c]`.

        Raises:
            SandboxUnavailable: as `Sandbox.run`.
        """
        self.share(programs, cases)
        run = partial(self._sandbox.run, limits=self._limits, end_at_limit=self._end_at_limit)
        rows: dict[str, list[RunResult]] = {}
        missing: dict[tuple[Case, ...], list[str]] = {}
        for program in dict.fromkeys(programs):
            left = tuple(case for case in cases if (program, case) not in self._known)
            missing.setdefault(left, []).append(program)
        for left, alike in missing.items():
            results = run(alike, left) if left else [[] for _ in alike]
            for program, row in zip(alike, results, strict=True):
                if len(left) < len(cases) and any(result.status in RUNAWAY for result in row):
                    # A limit that was broken may end the list for cases that are known.
                    [rows[program]] = run([program], cases)
                else:
                    new = dict(zip(left, row, strict=True))
                    rows[program] = [new.get(c) or self._known[program, c] for c in cases]
        return [rows[program] for program in programs]

    def within(self, limits: Limits) -> SharedRuns:
        """Returns runs within other limits, which know the same shared results.

        Those were found within `SHARED_CPU_S`, or less where the limits here are shorter.
        """
        other = SharedRuns(self._sandbox, limits)
        other._known, other._tried = self._known, self._tried
        return other

    def share(self, programs: Sequence[str], cases: Sequence[Case]) -> None:
        """Runs the simple ones among the programs in shared processes, and keeps what is beyond doubt.

        Raises:
            SandboxUnavailable: as `Sandbox.run`.
        """
        left = [
            program
            for program in dict.fromkeys(programs)
            if not self._tried.issuperset((program, case) for case in cases) and is_simple(program)
        ]
        alike = len({case.function for case in cases}) == 1
        # A single run gains nothing.
        if not alike or len(left) * len(cases) < 2:
            return
        within = replace(self._limits, cpu_s=min(self._limits.cpu_s, SHARED_CPU_S))
        # Not tried twice, whatever comes of it.
        self._tried |= {(program, case) for program in left for case in cases}
        # As many as fit whatever they are: a simple program has at most `_PROGRAM_CHARS`.
        size = sum(len(case.stdin) + len(case.args) for case in cases)
        at_once = min(MOST_RUNS // len(cases), (MOST_CHARS - size) // _PROGRAM_CHARS)
        while left and at_once > 0:
            now, left = left[:at_once], left[at_once:]
            whole, rows = gatherer_of(self._sandbox)(self._sandbox, now, cases, within)
            for program, row in zip(now, rows, strict=False):
                for case, run in zip(cases, row, strict=False):
                    if result := _result(run, whole, self._limits, case):
                        self._known[program, case] = result
            if len(rows) < len(now):
                # The process ended early: an endless loop, or no memory left. Programs of one task
                # tend to do so together, and each try costs up to SHARED_CPU_S.
                return


Raw = tuple[bytes, bytes, bytes, float] | None
"""Output, error, value and CPU seconds of a run, as the driver gives them; None where in doubt."""


def _rows_of(output: bytes) -> list[list[Raw]]:
    """The runs of each program, as far as they are complete; another service may have said anything."""
    rows: list[list[Raw]] = []
    with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
        for line in output.split(b"\n"):
            rows.append([None if run is None else _raw(*run) for run in json.loads(line)])
    return rows


def _raw(out: str, err: str, value: str, cpu_s: float) -> Raw:
    if not 0 <= cpu_s < math.inf:
        raise ValueError("not a time")
    return out.encode("latin-1"), err.encode("latin-1"), value.encode("latin-1"), cpu_s


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


Output = tuple[RunResult, list[list[Raw]]]
"""A process, and a row for each program of one request; fewer where the process ended early."""


@dataclass(eq=False)
class _Request:
    """Programs and cases of one caller; compared by identity."""

    programs: Sequence[str]
    cases: Sequence[Case]
    limits: Limits
    alone: bool = False
    """It was in a process that did not come to its end, and is not put at risk by others again."""
    output: Future[Output | None] = field(default_factory=Future)
    """None where it has to be tried alone."""

    def __post_init__(self) -> None:
        cases = [(_sent(case.stdin), _sent(case.args)) for case in self.cases]
        function = self.cases[0].function
        self.text = json.dumps([function and _sent(function), self.programs, cases])
        self.runs = len(self.programs) * len(self.cases)


def _sent(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


class Gatherer:
    """Runs `_DRIVER` for all threads of one sandbox."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places = threading.Semaphore(max(1, (os.cpu_count() or 1) // 2))
        self._waiting: list[_Request] = []

    def __call__(
        self, sandbox: Sandbox, programs: Sequence[str], cases: Sequence[Case], limits: Limits
    ) -> Output:
        """Runs programs on cases, which call one function or none, perhaps with those of other threads.

        Raises:
            SandboxUnavailable: as `Sandbox.run`.
        """
        output, alone = None, False
        while output is None:
            request = _Request(programs, cases, limits, alone)
            self._waiting.append(request)
            # Ctrl-C interrupts the main thread anywhere, so that callers only wait.
            threading.Thread(target=self._run, args=(sandbox, request), daemon=True).start()
            output, alone = request.output.result(), True
        return output

    def _run(self, sandbox: Sandbox, request: _Request) -> None:
        """Runs a request, and others with it, unless it ran with another one."""
        with self._places:
            batch = self._batch(request)
            try:
                outputs = _outputs(sandbox, batch) if batch else []
            except BaseException as error:  # noqa: BLE001 - it is raised again by the thread that waits
                # It says nothing about the others.
                request.output.set_exception(error)
                batch = batch[1:]
                outputs = [None for _ in batch]
        for member, output in zip(batch, outputs, strict=True):
            member.output.set_result(output)

    def _batch(self, request: _Request) -> list[_Request]:
        """Takes a request that waits, and those that fit into one process with it."""
        with self._lock:
            waiting = [*self._waiting]
            if request not in waiting:
                return []
            batch, runs, chars = [request], request.runs, len(request.text)
            for other in [] if request.alone else waiting:
                fits = runs + other.runs <= MOST_RUNS and chars + len(other.text) <= MOST_CHARS
                alike = other.limits == request.limits and not other.alone
                if fits and alike and other is not request:
                    batch.append(other)
                    runs, chars = runs + other.runs, chars + len(other.text)
            for member in batch:
                self._waiting.remove(member)
            return batch


def _outputs(sandbox: Sandbox, batch: Sequence[_Request]) -> list[Output | None]:
    """What each request has of one process; None for those that shared it and miss something."""
    stdin = f"[{','.join(request.text for request in batch)}]\n"
    [[whole]] = sandbox.run([_DRIVER], [Case(stdin)], limits=batch[0].limits)
    rows, outputs = _rows_of(whole.stdout_bytes), list[Output | None]()
    for request in batch:
        count = len(request.programs)
        complete = len(rows) >= count or len(batch) == 1
        outputs.append((whole, rows[:count]) if complete else None)
        rows = rows[count:]
    return outputs


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
