"""The sandbox's contract: what to run, within which limits, and what came of it.

`Sandbox.run` is the whole of it. A back end of this package carries out a `RunPlan`, which is what one
call asks for, and adds to a `RunProgress`, which keeps the rules that hold for all results of a call.

`SandboxSettings` is everything that a user decides, in one record. It is written as a back end alone (`docker`) or
as an object of keys, and it travels unchanged from the command line or YAML to `shared_sandbox` and `open_sandbox`:

    --sandbox docker --sandbox.packages numpy,sympy --sandbox.cpu_s 6
    sandbox: {backend: docker, packages: [numpy, sympy], cpu_s: 6}

Every field of `Limits` is a key. Such a limit replaces the environment's default and the data set's own limit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Protocol, Self, get_args

from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.registry import Registry
from pettingllms.types import LIMITS, MAX_INPUT_BYTES

Status = Literal[
    "ok",
    "error",
    "cpu_limit",
    "wall_limit",
    "memory_limit",
    "output_limit",
    "process_limit",
    "killed",
    "forbidden",
]
STATUSES: tuple[str, ...] = get_args(Status)
RUNAWAY: tuple[Status, ...] = ("cpu_limit", "wall_limit")
"""Statuses of programs that used up a limit, and would use it up again on the next case."""

MAX_OUTPUT_BYTES = 128 << 20
"""Bytes of all results of one call to `Sandbox.run`, shared equally between its programs."""
MAX_PROGRAM_BYTES = 1 << 20
_REQUEST_BYTES = 64 << 20
_REQUEST_RUNS = 512
_LEAST_RUNS = 2
"""Runs of a request where several workers share them: less is not worth a request."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run. Exceeding a limit has a status of its own where the kernel tells.

    Raises:
        ConfigError: a limit is not positive, or larger than any machine's.
    """

    cpu_s: float = 5.0
    """User and system seconds of all threads together: the verdict `cpu_limit`."""
    wall_s: float = 15.0
    """Seconds by the clock, generous because the machine may be busy: `wall_limit`."""
    memory_mib: int = 512
    """Address space beside the interpreter's own, thread stacks included: `memory_limit`."""
    output_kib: int = 1024
    """KiB of each of standard output, standard error and a returned value: `output_limit`."""
    processes: int = 64
    """Threads. New processes are always refused; both give `process_limit`, where the error ends the
    program."""
    tmp_mib: int = 16
    """Files in /tmp, the only folder that can be written; more fails with ENOSPC."""
    open_files: int = 64
    """Descriptors beside the standard three; more fails with EMFILE."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            seconds, (least, most) = field.name.endswith("_s"), LIMITS[field.name]
            if not seconds and isinstance(value, float) and value.is_integer():  # as in tables
                value = int(value)
                object.__setattr__(self, field.name, value)
            fits = isinstance(value, int | float if seconds else int) and value is not True
            if not (fits and least <= value <= most):
                bounds = f"between {least} and {most}{'' if seconds else ' and whole'}"
                raise ConfigError(f"{field.name} must be {bounds}, got {value!r:.40}")


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to run a program on: an input, or a function call.

    With `function`, the program's `Solution.function` or plain `function` is called with the
    JSON list `args`, and `RunResult.value` is the JSON text of what it returned. JSON has no
    tuples (they come back as lists), no sets and no keys but strings; a value that it cannot
    express is an `error` that says so.
    """

    stdin: str = ""
    function: str | None = None
    args: str = "[]"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one program on one case. Everything but the numbers was made by the program.

    Outputs are kept as bytes and decoded when they are read: as `str`, one emoji makes each
    character of a text take four bytes.
    """

    status: Status
    stdout_bytes: bytes
    stderr_bytes: bytes
    exit_code: int
    """-N where signal N ended the process."""
    cpu_s: float
    wall_s: float
    memory_mib: float
    """Peak resident memory of the process, the interpreter's own included."""
    isolation: str
    """Layers around the program, as in `namespaces+landlock+seccomp`; `none` for an unsafe back end."""
    value_bytes: bytes | None = None

    @property
    def stdout(self) -> str:
        """Standard output. Bytes that are not UTF-8 are replaced by U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error, decoded in the same way."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def value(self) -> str | None:
        """JSON text that the called function returned, as claimed by the program."""
        return self.value_bytes.decode("utf-8", "replace") if self.value_bytes else None

    @property
    def failure(self) -> str:
        """The status, and the last line of standard error, which names the exception."""
        last = self.stderr.strip().splitlines()[-1:] or [""]
        return f"{self.status} {last[0]}".strip()

    @property
    def output_bytes(self) -> int:
        """Length of standard output, standard error and the value together."""
        return len(self.stdout_bytes) + len(self.stderr_bytes) + len(self.value_bytes or b"")

    def to_dict(self) -> dict[str, object]:
        """The result with its outputs as text, for JSON."""
        numbers = ("status", "exit_code", "cpu_s", "wall_s", "memory_mib", "isolation")
        texts = {"stdout": self.stdout, "stderr": self.stderr, "value": self.value}
        return {name: getattr(self, name) for name in numbers} | texts


_NOTHING = RunResult("error", b"", b"", 1, 0.0, 0.0, 0.0, "not run")
DEFAULT_LIMITS = Limits()


class Sandbox(Protocol):
    """Runs untrusted Python programs. Any number of threads may call it at once."""

    def run(
        self,
        programs: Sequence[str],
        cases: Sequence[Case],
        *,
        limits: Limits = DEFAULT_LIMITS,
        end_at_limit: bool = True,
    ) -> list[list[RunResult]]:
        """Run every program on every case; `result[p][c]`.

        Every pair has a process of its own, which inherits nothing of any other run, so that the
        order and company of the pairs make no difference to what they do.

        With `end_at_limit`, a program that breaks its CPU or wall limit is not run on its later
        cases: an endless loop costs its limit once, not once a case (where the runs are spread, at
        most once a worker). The results of these cases have the same status, no output, and a
        standard error that says so. What counts is the order of `cases`, not who was first, so
        that programs that do the same get the same results; other programs continue. Turn it off
        where cases must not bear on each other, as where they come from different authors.

        The outputs of a program on all cases together have at most its share of
        `MAX_OUTPUT_BYTES`. The first result that exceeds the share, in the order of `cases`, and
        all later ones of this program are `output_limit` without output (a broken CPU or wall
        limit keeps its status), however the runs were spread over workers; other programs are not
        affected.

        Raises:
            SandboxUnavailable: the sandbox failed, twice, and says nothing about any program.
        """
        ...

    def close(self) -> None:
        """End all workers. Afterwards `run` raises `SandboxUnavailable`."""
        ...


class OpenSandbox(Sandbox, Protocol):
    """A `Sandbox` that a `with` statement closes."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


Pair = tuple[int, int]
"""A program's and a case's number."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that the requests of one call to `run` have in common."""

    programs: tuple[bytes, ...]
    calls: tuple[bytes, ...]
    stdins: tuple[bytes, ...]
    limits: Limits
    end_at_limit: bool

    @classmethod
    def of(
        cls,
        programs: Sequence[str],
        cases: Sequence[Case],
        limits: Limits,
        *,
        end_at_limit: bool,
    ) -> RunPlan:
        """The plan for these texts, as bytes."""
        return cls(
            tuple(map(_encode, programs)),
            tuple(map(_call, cases)),
            tuple(_encode(case.stdin) for case in cases),
            limits,
            end_at_limit,
        )

    def request(self, pairs: Sequence[Pair]) -> tuple[dict[str, Any], list[bytes]]:
        """Header and payload of a request for `pairs` alone."""
        # Each text is sent once, however many runs need it.
        programs = sorted({program for program, _ in pairs})
        cases = sorted({case for _, case in pairs})
        program_at = {program: at for at, program in enumerate(programs)}
        case_at = {case: at for at, case in enumerate(cases)}
        sources = [self.programs[program] for program in programs]
        calls = [self.calls[case] for case in cases]
        stdins = [self.stdins[case] for case in cases]
        header = {
            "programs": [len(text) for text in sources],
            "calls": [len(text) for text in calls],
            "stdins": [len(text) for text in stdins],
            "runs": [n for p, c in pairs for n in (program_at[p], case_at[c])],
            "end": self.end_at_limit,
            "limits": asdict(self.limits),
        }
        return header, [*sources, *calls, *stdins]

    def requests(self, pairs: Sequence[Pair], workers: int) -> Iterator[list[Pair]]:
        """Cut `pairs` into requests for at most so many workers, none too large.

        Later requests are smaller, so that all workers are done at about the same time.
        """
        request: list[Pair] = []
        size, left = 0, len(pairs)
        spread = min(workers, left // _LEAST_RUNS) > 1
        for pair in pairs:
            program, case = pair
            more = len(self.programs[program]) + len(self.calls[case]) + len(self.stdins[case])
            share = max(_LEAST_RUNS, left // (2 * workers)) if spread else _REQUEST_RUNS
            full = len(request) >= min(_REQUEST_RUNS, share) or size + more > _REQUEST_BYTES
            if request and full:
                yield request
                left -= len(request)
                request, size = [], 0
            request.append(pair)
            size += more
        if request:
            yield request


class RunProgress:
    """The results of a plan so far. Several threads may add to it."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._results: dict[Pair, RunResult] = {}
        self._last: dict[int, int] = {}
        """Program -> the case that ended its list."""
        self._share = MAX_OUTPUT_BYTES // max(1, len(plan.programs))
        self._sizes: dict[int, dict[int, int]] = {p: {} for p in range(len(plan.programs))}
        """Program -> case -> bytes that it put out, also where they were dropped."""
        self._totals = dict.fromkeys(self._sizes, 0)
        self._lock = threading.Lock()
        self._stops: set[Callable[[], None]] = set()
        self.given_up = False
        """The caller no longer waits for results."""
        for pair in self.pairs():
            refusal = _refusal(plan, pair)
            if refusal is not None:
                self.add(pair, refusal)

    def pairs(self) -> list[Pair]:
        """All pairs of the plan."""
        cases = range(len(self._plan.calls))
        return [(program, case) for program in range(len(self._plan.programs)) for case in cases]

    def add(self, pair: Pair, result: RunResult) -> None:
        """Keep a result, and note whether it ends its program's list."""
        with self._lock:
            self._results[pair] = result
            self._sizes[pair[0]][pair[1]] = result.output_bytes
            self._totals[pair[0]] += result.output_bytes
            self._drop_excess(pair)
            self._note_end(pair)

    def _note_end(self, pair: Pair) -> None:
        program, case = pair
        if self._plan.end_at_limit and self._results[pair].status in RUNAWAY:
            # Results come in any order, and the earliest case counts.
            self._last[program] = min(case, self._last.get(program, case))

    def _drop_excess(self, changed: Pair) -> None:
        """Drop the outputs beyond the share of a program, of whose results `changed` is new.

        What exceeds the share before all earlier results are there exceeds it all the more
        afterwards, so it is dropped at once and the outcome does not depend on who was first.
        """
        program, first = changed
        sizes = self._sizes[program]
        if self._totals[program] <= self._share:
            return
        total = 0
        for case in sorted(sizes):
            total += sizes[case]
            # Earlier results were within the share, or have lost their output already.
            if case >= first and total > self._share:
                result = self._results[program, case]
                note = f"dropped: the program's outputs exceed {self._share} bytes on all cases\n"
                self._results[program, case] = replace(
                    result,
                    status=result.status if result.status in RUNAWAY else "output_limit",
                    stdout_bytes=b"",
                    stderr_bytes=note.encode(),
                    value_bytes=None,
                )
                self._note_end((program, case))

    @contextlib.contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Let `give_up` call `stop` while the body runs."""
        with self._lock:
            self._stops.add(stop)
        try:
            yield
        finally:
            with self._lock:
                self._stops.discard(stop)

    def give_up(self) -> None:
        """Have the caller's remaining work not be done: its call ends, perhaps by Ctrl-C."""
        with self._lock:
            self.given_up = True
            stops = list(self._stops)
        # Without the lock: to kill a container takes a request to its engine, and meanwhile other
        # threads report results.
        for stop in stops:
            stop()

    def left(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Those of `pairs` that are still to be run."""
        with self._lock:
            if self.given_up:
                return []
            return [
                (program, case)
                for program, case in pairs
                # Where nothing has ended the program's list, a case is compared with itself.
                if (program, case) not in self._results and case <= self._last.get(program, case)
            ]

    def rows(self) -> list[list[RunResult]]:
        """Every program's results, in the order of the cases."""
        return [self._row(program) for program in range(len(self._plan.programs))]

    def _row(self, program: int) -> list[RunResult]:
        cases = len(self._plan.calls)
        ran = min(cases, self._last.get(program, cases) + 1)
        row = [self._results[program, case] for case in range(ran)]
        if ran < cases:
            message = f"not run: {row[-1].status} on an earlier case\n"
            skipped = replace(_NOTHING, status=row[-1].status, stderr_bytes=message.encode())
            row += [skipped] * (cases - ran)
        return row


def _refusal(plan: RunPlan, pair: Pair) -> RunResult | None:
    """The result of what is too long to be sent: an error of the program or the case."""
    program, case = pair
    for what, size, most in (
        ("program", len(plan.programs[program]), MAX_PROGRAM_BYTES),
        ("input", len(plan.stdins[case]), MAX_INPUT_BYTES),
        ("argument list", len(plan.calls[case]), MAX_INPUT_BYTES),
    ):
        if size > most:
            text = f"the {what} has {size} bytes; the sandbox takes at most {most}\n"
            return replace(_NOTHING, stderr_bytes=text.encode())
    return None


def _encode(text: str) -> bytes:
    """UTF-8; a lone surrogate, which no file could hold, travels as its own three bytes."""
    return text.encode("utf-8", "surrogatepass")


def _call(case: Case) -> bytes:
    if case.function is None:
        return b""
    return json.dumps([case.function, case.args]).encode("ascii")


# ------------------------------------------------------------------------------------- settings

BACKENDS = ("embedded", "docker")
SANDBOXES = Registry("sandbox", {})
"""Back ends by name that other packages offer as `pettingllms.sandboxes`: what makes an object with
`run` and `close`, as in `module:factory`."""
# Names become parts of pip's command line and of an image's name.
_PACKAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_NOT_EVERYWHERE = {
    "workers": ("embedded", "docker"),
    "packages": ("embedded", "docker"),
    "runtime": ("docker",),
}


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The back end that runs programs, and the limits of a run.

    Raises:
        ConfigError: a value that cannot be used, or one that the back end does not take.
    """

    backend: str = "embedded"
    """`embedded`, `docker` or `module:factory`."""
    workers: int | None = None
    """Programs that run at the same time; None: the back end's default."""
    packages: tuple[str, ...] = ()
    """Third-party packages that programs may import."""
    runtime: str | None = None
    """OCI runtime of the containers, as Docker's own option; None: the engine's default."""
    # Pairs and not a mapping, because settings are the key under which a sandbox is shared.
    limits: tuple[tuple[str, float], ...] = ()
    """Limits that replace those of the environment and the data set: name and value, sorted."""

    def __post_init__(self) -> None:
        kind = _kind(self.backend)
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"sandbox.workers must be at least 1, got {self.workers}")
        for name in self.packages:
            if not _PACKAGE.fullmatch(name):
                raise ConfigError(f"sandbox.packages: {name!r} is not the name of a package")
        for name, kinds in _NOT_EVERYWHERE.items():
            if getattr(self, name) and kind not in kinds:
                raise ConfigError(
                    f"sandbox.{name} is for {', '.join(kinds)}, not for {self.backend!r}; leave it out"
                )
        try:
            Limits(**dict(self.limits))  # type: ignore[arg-type]
        except ConfigError as error:
            raise ConfigError(f"sandbox.{error}") from None

    @classmethod
    def of(cls, value: Self | Mapping[str, Any] | str, **changes: Any) -> Self:
        """The settings that `value` describes, with `changes` by key over them.

        Args:
            value: settings, a mapping of keys, a back end, or the text of a JSON object.
            changes: keys and their values; None leaves a key unchanged.

        Raises:
            ConfigError: not such a value, an unknown key, or a value that cannot be used.
        """
        keys = value.keys() if isinstance(value, SandboxSettings) else _keys(value)
        keys |= {name: setting for name, setting in changes.items() if setting is not None}
        allowed = [*(field.name for field in fields(cls) if field.name != "limits"), *LIMITS]
        for name in keys:
            if name not in allowed:
                raise ConfigError(f"unknown key sandbox.{name}; {did_you_mean(str(name), allowed)}")
        checked = {
            name: _typed(name, setting) for name, setting in keys.items() if setting is not None
        }
        limits = tuple(sorted((name, checked.pop(name)) for name in LIMITS if name in checked))
        return cls(**checked, limits=limits)

    def keys(self) -> dict[str, Any]:
        """The back end and every key that differs from its default, as JSON values."""
        rest = {"workers": self.workers, "packages": list(self.packages), "runtime": self.runtime}
        changed = {name: value for name, value in rest.items() if value}
        return {"backend": self.backend, **changed, **dict(self.limits)}

    @property
    def text(self) -> str:
        """The shortest text that `of` reads as these settings."""
        keys = self.keys()
        return self.backend if len(keys) == 1 else json.dumps(keys)

    def under(self, given: str) -> Self:
        """These settings with the keys of the text `given` over them.

        Another back end drops `runtime`, which belongs to the old one.
        """
        mine, over = self.keys(), _keys(given)
        if over.get("backend", self.backend) != self.backend:
            mine.pop("runtime", None)
        return self.of({**mine, **over})

    def limits_over(self, default: Limits, own: Iterable[tuple[str, float]] = ()) -> Limits:
        """The limits of a run: the user's over the data set's `own` over the environment's."""
        return _replaced(_replaced(default, dict(own)), dict(self.limits))

    @property
    def pool(self) -> Self:
        """The same settings for all runs that can share workers: without limits.

        A container's memory is fixed when it starts, so docker keeps the limits that it follows
        from.
        """
        kept = ("memory_mib", "tmp_mib") if self.backend == "docker" else ()
        limits = tuple((name, value) for name, value in self.limits if name in kept)
        return dataclasses.replace(self, limits=limits)


_OPTIONS = [f.name for f in fields(SandboxSettings) if f.name not in ("backend", "limits")]
HELP = (
    "Where programs run: embedded (Linux, no daemon), docker, or module:factory (returns your own "
    "object with run and close, such as a client for a service). Its settings one by one: "
    + ", ".join(f"--sandbox.{name}" for name in [*_OPTIONS, *LIMITS])
    + ", as in --sandbox.packages numpy,sympy"
)
"""Help of the option `--sandbox`."""


def _kind(backend: str) -> str:
    """One of `BACKENDS`, or `module:` for an object of the user's."""
    if not isinstance(backend, str):
        raise ConfigError(f"sandbox.backend must be a text, got {backend!r}")
    if backend in BACKENDS:
        return backend
    if ":" in backend or backend in SANDBOXES:
        return "module:"
    raise ConfigError(
        f"sandbox must be one of {', '.join(BACKENDS)} or module:factory, got "
        f"{backend!r}; {did_you_mean(backend, [*BACKENDS, *SANDBOXES.paths()])}"
    )


def _keys(value: Mapping[str, Any] | str) -> dict[str, Any]:
    """The keys that a value gives, unchecked."""
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, str):
        raise ConfigError(f"sandbox must be a back end or an object of settings, got {value!r}")
    if not value.lstrip().startswith("{"):
        return {"backend": value}
    try:
        keys = json.loads(value)
    except ValueError as error:
        raise ConfigError(f"sandbox must be a JSON object, got {value!r}: {error}") from None
    return dict(keys)


def _typed(name: str, value: Any) -> Any:
    if name == "packages":
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise ConfigError(f"sandbox.packages must be names, as in numpy,sympy, got {value!r}")
        return tuple(stripped for package in names if (stripped := package.strip()))
    if name in ("backend", "runtime"):
        if not isinstance(value, str):
            raise ConfigError(f"sandbox.{name} must be a text, got {value!r}")
        return value
    seconds = name.endswith("_s")
    # bool is a subclass of int in Python, and True is no number of seconds or workers.
    fits = isinstance(value, int | float if seconds else int) and not isinstance(value, bool)
    if not fits:
        raise ConfigError(
            f"sandbox.{name} must be a {'number' if seconds else 'whole number'}, got {value!r}"
        )
    return value


def _replaced(limits: Limits, changes: Mapping[str, float]) -> Limits:
    """`limits` with `changes`; more CPU time without a wall limit of its own scales the latter."""
    more = changes.get("cpu_s", 0.0) / limits.cpu_s
    if more > 1 and "wall_s" not in changes:
        # No more than `Limits` takes.
        changes = {**changes, "wall_s": min(limits.wall_s * more, 86_400)}
    return dataclasses.replace(limits, **changes)  # type: ignore[arg-type]
