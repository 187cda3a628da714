"""Runs of simple programs that share one process, with the results of processes of their own.

A process of its own costs a run about 2 ms, most of it the kernel's, and a small program a hundredth
of that. Programs that can leave nothing behind may therefore run one after the other in one process
of the sandbox, which is held like any other: what is shared is only shared between the programs
and cases of one call, and of calls that other threads make at the same time.

`is_simple` decides from the text which programs these are. It allows the names of pure functions
and of methods of texts, numbers and containers, and nothing else after a dot: no imports, no classes,
no handlers of exceptions, no private names. Such a program has no way to reach the interpreter, the
code around it, or another case. `_DRIVER` gives it a namespace and builtins of its own all the same.

A result is taken over only where it is beyond doubt that a fresh process would have given it. Any
other run, one that comes near a limit among them, is done again in a process of its own.

Requests of several threads share a process, too: completions of many prompts are scored at the same
time. At most half as many shared processes run at once as there are cores: the threads that read and judge
results need the other half. A request that finds a place free runs at once, by itself; those that
arrive while all are taken are gathered, and the first thread that is woken runs them all. So no request
waits for company, and the busier the scorers, the more share a process.
"""

from __future__ import annotations

import json
import os
import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pettingllms.sandbox.types import DEFAULT_LIMITS, RUNAWAY, Case, Limits, RunResult, Sandbox

SHARED_CPU_S = 0.25
"""CPU seconds of one shared process. What is not done by then runs on its own: an attempt costs this
at most beyond that, and there are two where the first was shared with other calls."""
_PROGRAM_CHARS = 1 << 13
MOST_RUNS, MOST_CHARS = 512, 1 << 20
"""Runs and characters of one process."""


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
def one(code, names, function, given):
    sys.stdin, sys.stdout = io.StringIO(given, newline="\\n"), io.StringIO(newline="\\n")
    space = {"__name__": "main" if function else "__main__", "__builtins__": dict(names)}
    begun, value, said = time.process_time(), None, ""
    try:
        arguments = json.loads(given) if function else []
        if type(arguments) is not list:
            return None
        exec(code, space)
        if function:
            value = json.dumps(space[function](*arguments))
    except (ArithmeticError, LookupError, TypeError, ValueError, EOFError) as error:
        first = last = error.__traceback__.tb_next
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        # Raised around the program, or by what this process has put in the place of a stream.
        if last is None or last.tb_frame.f_globals is not space or isinstance(error, UnicodeError):
            return None
        said = "".join(traceback.format_exception(type(error), error, first))
    except Exception:
        return None
    return [sys.stdout.getvalue(), value, said, time.process_time() - begun]
def all_of(text, names, function, cases):
    ended = text if text.endswith("\\n") else text + "\\n"
    linecache.cache["main.py"] = (len(text), None, ended.splitlines(True), "main.py")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            code = compile(text, "main.py", "exec", dont_inherit=True)
            said = None
        except SyntaxError as error:
            said = "".join(traceback.format_exception(type(error), error, None))
    if warned:
        return []
    if said is not None:
        return [["", None, said, 0.0] for _ in cases]
    return [one(code, names, function, given) for given in cases]
def main():
    asked, out = json.loads(sys.stdin.read()), sys.stdout
    warnings.simplefilter("error")
    names = {name: getattr(builtins, name) for name in NAMES}
    for job in asked["jobs"]:
        for text in job["programs"]:
            try:
                rows = all_of(text, names, job["function"], job["cases"])
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
    return _DETACHED.search(program) is None


_DETACHED = re.compile(r"\.(?![A-Za-z0-9])")
"""A dot whose attribute is somewhere else, behind a blank, a comment or a new line."""


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
            found = self._alone(those, left) if left else [[] for _ in those]
            for program, row in zip(those, found, strict=True):
                if len(left) < len(cases) and any(run.status in RUNAWAY for run in row):
                    # A limit that was broken may end the list for cases that are known.
                    [rows[program]] = self._alone([program], cases)
                else:
                    own = dict(zip(left, row, strict=True))
                    rows[program] = [own.get(c) or self._result(program, c) for c in cases]
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
        given = [_given(case) for case in cases]
        left = [program for program in dict.fromkeys(programs) if self._is_new(program, cases)]
        size = sum(map(len, given)) + len(cases)
        # A single run gains nothing.
        if len(functions) != 1 or len(left) * len(cases) < 2 or not all(map(_is_text, given)):
            return
        within = replace(self._limits, cpu_s=min(self._limits.cpu_s, SHARED_CPU_S))
        # Not tried twice, whatever comes of it.
        self._known |= dict.fromkeys((program, case) for program in left for case in cases)
        # As many as fit whatever they are: a simple program has at most `_PROGRAM_CHARS`.
        at_once = min(MOST_RUNS // len(cases), (MOST_CHARS - size) // _PROGRAM_CHARS)
        while left and at_once > 0:
            now = left[:at_once]
            asked = {"programs": now, "cases": given, "function": functions.copy().pop()}
            whole, lines = gatherer_of(self._sandbox, _DRIVER)(self._sandbox, asked, within)
            # There are fewer lines where the process ended early.
            for program, line in zip(now, lines, strict=False):
                for case, run in zip(cases, _rows(line), strict=False):
                    self._known[program, case] = _result(run, whole, self._limits, case)
            if len(lines) < len(now):
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
        found = self._known[program, case]
        assert found is not None
        return found


def _given(case: Case) -> str:
    return case.stdin if case.function is None else case.args


def _is_text(given: str) -> bool:
    """Returns whether UTF-8 can express it: what a stream does with other text is not imitated."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def _rows(line: str) -> list[Any]:
    """The runs of one program as the driver wrote them; none if another service wrote something else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _result(
    run: list[Any] | None, whole: RunResult, limits: Limits, case: Case
) -> RunResult | None:
    """The record that a process of its own would have given; None where that is in doubt."""
    match run:
        case [str(stdout), str() | None as value, str(stderr), int() | float() as cpu_s]:
            pass
        case _:
            return None
    if not (_is_text(stdout) and _is_text(stderr)):
        return None
    out, err = stdout.encode(), stderr.encode()
    returned = None if case.function is None else (value or "").encode()
    # At the limit it is open whether a process of its own would have ended there.
    if max(len(out), len(err), len(returned or b"")) >= limits.output_kib << 10:
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
        value_bytes=returned,
    )


# ---------------------------------------------------------------- threads that share a process


class ProcessOutput(NamedTuple):
    """The output of a process for one request."""

    whole: RunResult
    """The process itself."""
    lines: list[str]
    """One for each program; fewer where the process ended early."""


@dataclass(eq=False)
class _Request:
    """Programs and cases of one caller; compared by identity."""

    job: Mapping[str, Any]
    limits: Limits
    runs: int
    chars: int
    shared: ProcessOutput | None = None
    alone: bool = False
    """It was in a process that did not come to its end, and is not put at risk by others again."""


class Gatherer:
    """Runs a driver, a program that does the jobs of its standard input, for all threads of one sandbox.

    Args:
        driver: reads `{"jobs": [...]}`, a JSON object, and prints a line for each program of each job.
    """

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._changed = threading.Condition()
        self._waiting: list[_Request] = []
        self._busy, self._most = 0, max(1, (os.cpu_count() or 1) // 2)

    def __call__(self, sandbox: Sandbox, job: Mapping[str, Any], limits: Limits) -> ProcessOutput:
        """Has a job done, perhaps with those of other threads.

        Args:
            sandbox: where; the same for all threads.
            job: `programs` and `cases`, and what else the driver reads.
            limits: of the process; jobs with other limits have another one.

        Raises:
            SandboxUnavailable: as `Sandbox.run`.
        """
        texts = (*job["programs"], *job["cases"])
        runs = len(job["programs"]) * len(job["cases"])
        mine = _Request(job, limits, runs, sum(map(len, texts)))
        while True:
            with self._changed:
                batch = self._next(mine)
            if mine.shared is not None:
                return mine.shared
            try:
                self._run(sandbox, batch)
            finally:
                with self._changed:
                    self._busy -= 1
                    # An endless loop in one job says nothing about the others, nor does an error here.
                    for each in batch:
                        each.alone = True
                    self._waiting += [e for e in batch if e is not mine and e.shared is None]
                    self._changed.notify_all()

    def _next(self, mine: _Request) -> list[_Request]:
        """Waits until a request is done, which is an empty list, or until this thread is to do it with others."""
        if mine not in self._waiting:
            self._waiting.append(mine)
        try:
            self._changed.wait_for(lambda: mine.shared is not None or self._is_free(mine))
            if mine.shared is not None:
                return []
            batch = self._beside(mine)
            self._waiting = [each for each in self._waiting if each not in batch]
            self._busy += 1
        except BaseException:  # Ctrl-C
            self._waiting = [each for each in self._waiting if each is not mine]
            raise
        return batch

    def _is_free(self, mine: _Request) -> bool:
        return self._busy < self._most and mine in self._waiting

    def _beside(self, mine: _Request) -> list[_Request]:
        """A request and those that fit into one process with it."""
        batch, runs, chars = [mine], mine.runs, mine.chars
        for each in [] if mine.alone else self._waiting:
            fits = runs + each.runs <= MOST_RUNS and chars + each.chars <= MOST_CHARS
            if fits and each is not mine and not each.alone and each.limits == mine.limits:
                batch.append(each)
                runs, chars = runs + each.runs, chars + each.chars
        return batch

    def _run(self, sandbox: Sandbox, batch: Sequence[_Request]) -> None:
        asked = json.dumps({"jobs": [each.job for each in batch]})
        [[whole]] = sandbox.run([self._driver], [Case(asked)], limits=batch[0].limits)
        # A line without an end was cut off when the process ended.
        lines = [line for line in whole.stdout.splitlines(True) if line.endswith("\n")]
        for each in batch:
            count = len(each.job["programs"])
            mine, lines = lines[:count], lines[count:]
            # By itself a request has what there is, also where the process ended early.
            if len(mine) == count or len(batch) == 1:
                each.shared = ProcessOutput(whole, mine)


# Weak keys, so that this table keeps no sandbox and no worker alive.
_GATHERERS: weakref.WeakKeyDictionary[Sandbox, Gatherer] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def gatherer_of(sandbox: Sandbox, driver: str) -> Gatherer:
    """The gatherer of a sandbox, the same for all threads."""
    with _LOCK:
        try:
            return _GATHERERS.setdefault(sandbox, Gatherer(driver))
        except TypeError:  # an object of the user's without weak references gathers nothing
            return Gatherer(driver)
