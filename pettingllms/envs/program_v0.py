"""A program that asks chat completions, as an environment: `--env program:my_team.py:solve`.

| | |
|---|---|
| agents | one for each role that the program asks, which is a request's `model`: `coder_0`, `tester_0` |
| actions | text: the reply to the request that waits; calls of tools as `<tool_call>{...}</tool_call>` |
| observations | `text`: a single user message as it is, else all messages, and the names of the tools; `turn` |
| rewards | what the program returns, and what it pays on the way |

The program is the user's own, with nothing of this package inside: a function, sync or async, or a script.
It asks `base_url`, and is answered when the environment is stepped. It returns a number, or a mapping:
`{"team": 1.0, "tester": 0.5, "success": True}`. A function has as arguments the task, and by name those that it
wants of `base_url`, `api_key`, `seed`, and `pay(role=None, team=0, local=0, success=None, parse_error=None)`, which pays
what the latest reply earned. A script has the task as JSON on its standard input, OPENAI_BASE_URL and OPENAI_API_KEY
set, and prints its reward as JSON in its last line; it pays with `POST $OPENAI_BASE_URL/pay`.

Copies. The state is the replies so far and the calls that wait; a run that waits there is only a cache
of it. The first reply to a state takes the run. Any other runs the program again, with the replies that it had, which
costs no tokens, and compares every request: programs that depend on more than their task, their seed, and replies are
found out (`CloneError`). Tools run again, too: `replay=False` declares side effects, and then only whole episodes are trained.

Calls that wait at the same time are decided in the order of the roles, then of their content, then of their connections.

Version history: v0.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import random
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from pettingllms.data.dataset import Kind, Schema, load_source
from pettingllms.data.rows import Row, label
from pettingllms.envs import arguments
from pettingllms.envs.base import TextEnv, metadata_of
from pettingllms.envs.program_calls import ChatCall
from pettingllms.envs.program_run import Program, ProgramRun
from pettingllms.envs.records import Outcome
from pettingllms.errors import CloneError, ConfigError, UnknownNameError
from pettingllms.names import role_of
from pettingllms.registry import resolve

# ------------------------------------------------------------------------------- files of tasks
# Tasks of a program: the rows of a file, unchanged.


@dataclass(frozen=True, slots=True)
class ProgramTask:
    """A row of a data set."""

    id: str
    row: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The row as JSON."""
        return json.dumps(self.row, sort_keys=True, default=str)


def _read(row: Row, name: str) -> ProgramTask:
    return ProgramTask(label(row, "id") or name, dict(row))


TASKS: Kind[ProgramTask] = Kind(
    name="program",
    schemas={"rows": Schema("any", _read, lambda _: True)},
    own="rows",
    text=lambda task: task.text,
    key=lambda task: task.text,
    prose=False,
)


load_rows = partial(load_source, TASKS)
"""Loads the tasks of a program; see `pettingllms.data.dataset.load_source`."""


_MOST_CALLS_SEEN = 64
"""Of the first task, played with empty replies to see which roles there are."""
_MOST_ATTEMPTS = 24
"""Replays of an episode that answered equal calls, until one asks what the episode asked."""
_NUMBERS = (Real, np.bool_)
_COUNTING = threading.Lock()  # not of each environment, which is pickled
_log = logging.getLogger(__name__)


class _Waits:
    """A run that waits at a state, for the first who replies; given up when the state is forgotten."""

    def __init__(self, run: ProgramRun | None = None) -> None:
        self._run, self._lock = run, threading.Lock()
        self._end = None if run is None else weakref.finalize(self, run.close)

    def take(self) -> ProgramRun | None:
        """The run, once; it then belongs to who has it."""
        with self._lock:
            run, self._run = self._run, None
            if self._end is not None:
                self._end.detach()
            return run

    def __reduce__(self) -> Any:
        return _Waits, ()


@dataclass(frozen=True, slots=True)
class ProgramState:
    """The replies so far, and the calls that wait; picklable, without its run."""

    seed: int
    replies: tuple[tuple[ChatCall, str], ...] = ()
    waiting: tuple[ChatCall, ...] = ()
    """In the order in which they are decided."""
    success: bool = False
    run: _Waits = field(default_factory=_Waits, compare=False, repr=False)


def _dealt(replies: Sequence[tuple[ChatCall, str]], attempt: int) -> list[tuple[ChatCall, str]]:
    """Replies with those of equal calls exchanged, at the first attempt not."""
    if not attempt:
        return list(replies)
    texts = defaultdict[str, list[str]](list)
    for call, text in replies:
        texts[call.digest].append(text)
    for several in texts.values():
        random.Random(attempt).shuffle(several)
    return [(call, texts[call.digest].pop()) for call, _ in replies]


class Replays:
    """How often a program was run again, which threads count side by side."""

    def __init__(self) -> None:
        self.runs = self.calls = 0
        self.seconds = 0.0
        """Until the programs were where they had been; of runs side by side, the sum."""

    def count(self, calls: int, seconds: float) -> None:
        """Counts a run in which so many calls were answered from the record."""
        with _COUNTING:
            self.runs, self.calls = self.runs + 1, self.calls + calls
            self.seconds += seconds


class raw_env(TextEnv):
    """A program as an environment; the module docstring says what is where.

    Args:
        program: `my_team.py:solve` or `my_package.my_team:solve`, a function; `my_team.py`, a script; or
            the function itself.
        roles: whom the program asks, in order, as a list or as `coder,tester`; None plays the first task with empty
            replies, and takes those that were asked.
        dataset: rows that are the tasks, unchanged: a file, folder, or hub id; None: a task is a number.
        pays: "late" if rewards come at the end, "early" if every reply is paid at once (`pay`), so that trees can
            compare the replies to one request.
        replay: whether the program may be run again with the replies that it had.
        settle: seconds without a further call after which those that wait are all; 0 for a program that
            asks one call at a time, which is then an error if it does not.
        seconds: from a reply to the next call or the end; then the episode ends as a hang.
        kwargs: as in `TextEnv`.

    Raises:
        ConfigError: the program cannot be had or fails before its first call, or a value that cannot be used.
        DatasetError: the data set cannot be read.
    """

    metadata = metadata_of("program_v0")
    divides_datasets = True
    default_turns = 64

    def __init__(
        self,
        program: str | Callable[..., Any],
        *,
        roles: str | Sequence[str] | None = None,
        dataset: str | Path | None = None,
        pays: str = "late",
        replay: bool = True,
        settle: float = 0.005,
        seconds: float = 60.0,
        **kwargs: Unpack[arguments.TextArguments],
    ) -> None:
        arguments.one_of("pays", pays, ("late", "early"))
        for name, value, least in (("settle", settle, 0.0), ("seconds", seconds, 0.001)):
            if arguments.finite(name, value) < least:
                raise ConfigError(f"{name} is a number of seconds, at least {least:g}; got {value}")
        self._program = _loaded(program, settle, seconds)
        split = kwargs.get("split", "train")
        tasks = None if dataset is None else load_rows(dataset, split).records
        self._tasks = None if tasks is None else [dict(task.row) for task in tasks]
        self.num_tasks = None if tasks is None else len(tasks)
        """Rows of the data set: task seeds wrap around here. None: a task is a number."""
        if isinstance(roles, str):
            roles = [role.strip() for role in roles.split(",")]
        self.asked = tuple(dict.fromkeys(roles or self._roles_seen()))
        late = {"outcome": "late"} if pays == "late" else {}
        self.metadata = {**self.metadata, **late}
        self._replay = replay
        self.replays = Replays()
        """Shared by copies."""
        self._failures: Counter[str] = Counter()
        super().__init__(roles=self.asked, **kwargs)

    def __str__(self) -> str:
        return f"program:{self._program.name}"

    def _roles_seen(self) -> list[str]:
        # Not `_task`, which asks the split that the roles come before.
        task = 0 if self._tasks is None else self._tasks[0]
        run, seen = ProgramRun(self._program, task, 0, None), list[str]()
        try:
            for _ in range(_MOST_CALLS_SEEN):
                run.settle()
                if run.over:
                    break
                seen.append(run.waiting[0].role)
                run.reply(run.waiting[0], "")
        except TimeoutError as error:
            asked = ", ".join(seen) or "nobody"
            raise ConfigError(
                f"{self}, run with empty replies to see its roles, asked {asked}, and then: {error}. If it works "
                "with other replies, name all roles, such as --env-args.roles coder,tester"
            ) from error
        finally:
            run.close()
        if not seen:
            raise self._silent(run, 0)
        roles = list(dict.fromkeys(seen))
        if run.error is not None:
            why = f"{type(run.error).__name__}: {run.error}"
            text = "%s, run with empty replies to see its roles, asked %s and ended with %s; if there are more, name all: --env-args.roles"
            _log.warning(text, self, ", ".join(roles), why)
        return roles

    def _silent(self, run: ProgramRun, seed: int) -> ConfigError:
        task = f"{self} with task {seed % (self.num_tasks or seed + 1)}"
        if run.error is None:
            return ConfigError(f"{task} ended and asked no model; does its client use base_url?")
        why = run.unserved or f"{run.error}; a function gets base_url and api_key as arguments"
        return ConfigError(f"{task} failed before its first call: {why}\n{run.trace}")

    def _task(self, seed: int) -> Any:
        if self._tasks is None:
            return self._random(seed).getrandbits(32)  # other numbers in each split
        return self._tasks[seed % len(self._tasks)]

    def _run(self, state: ProgramState, attempt: int = 0) -> ProgramRun:
        """The program at a state: the run that waits there, or one that is brought there."""
        if (run := state.run.take()) is not None:
            return run
        if not self._replay:
            raise ConfigError(
                f"{self} has replay=False and cannot be copied; train on whole episodes, --method grpo"
            )
        began = time.perf_counter()
        task, told = self._task(state.seed), _dealt(state.replies, attempt)
        run = ProgramRun(self._program, task, state.seed, self.asked, told, state.waiting)
        try:
            self._settle(run)
        except CloneError:
            # The client's threads decided which of equal calls has which reply: another way is tried.
            equal = len({call.digest for call, _ in told}) < len(told)
            if not equal or attempt == _MOST_ATTEMPTS:
                raise
            return self._run(state, attempt + 1)
        self.replays.count(len(state.replies), time.perf_counter() - began)
        return run

    def _settle(self, run: ProgramRun) -> None:
        try:
            run.settle()
        except BaseException as error:
            run.close(hangs=isinstance(error, TimeoutError))
            raise

    def _order(self, run: ProgramRun, before: Sequence[ChatCall] = ()) -> tuple[ChatCall, ...]:
        """The calls that wait: those that waited before, then the new ones."""
        new, kept = run.waiting, list[ChatCall]()
        for call in before:
            if call in new:
                new.remove(call)
                kept.append(call)
        return (*kept, *sorted(new, key=lambda call: (self.asked.index(call.role), call.digest)))

    # TextEnv's.

    def _start(self, seed: int, options: dict[str, Any]) -> ProgramState:
        del options  # a task is all that there is
        run = ProgramRun(self._program, self._task(seed), seed, self.asked)
        try:
            self._settle(run)
        except TimeoutError as error:
            raise ConfigError(f"{self} asks no model: {error}") from error
        if run.over:
            raise self._silent(run, seed)
        return ProgramState(seed, waiting=self._order(run), run=_Waits(run))

    def _next_agent(self, state: ProgramState, agent: str | None) -> str:
        del agent
        return f"{state.waiting[0].role}_0"

    def _text(self, state: ProgramState, agent: str) -> str:
        if not state.waiting or role_of(agent) != state.waiting[0].role:
            return ""
        return state.waiting[0].observation()

    def _view(self, state: ProgramState) -> str:
        lines = [f"{call.role}: {reply}" for call, reply in state.replies]
        return "\n".join([*lines, *(f"{call.role} is asked" for call in state.waiting)])

    def _act_all(self, state: ProgramState, agent: str, texts: Sequence[str]) -> list[Outcome]:
        if len(texts) == 1:
            return [self._act(state, agent, texts[0])]
        with ThreadPoolExecutor(len(texts)) as pool:  # they wait for the program, mostly
            return list(pool.map(lambda text: self._act(state, agent, text), texts))

    def _act(self, state: ProgramState, agent: str, text: str) -> Outcome:
        call, *others = state.waiting
        replies = (*state.replies, (call, text))
        try:
            run = self._run(state)
            run.reply(call, text)
            self._settle(run)
        except TimeoutError as error:
            return self._ended(state, replies, f"hang: {error}")
        if run.over and run.error is not None:
            why = f"{type(run.error).__name__}: {run.error}"
            return self._ended(state, replies, run.unserved or why, run.trace)
        team, earned, success, unread = self._earned(run, role_of(agent), success=state.success)
        waiting = () if run.over else self._order(run, others)
        after = ProgramState(
            state.seed, replies, waiting, success, _Waits(None if run.over else run)
        )
        local = earned.pop(agent, 0.0)
        return Outcome(
            after, team, local, success, done=run.over, parse_error=unread, others=earned
        )

    def _ended(self, state: ProgramState, replies: Any, why: str, trace: str = "") -> Outcome:
        """An episode that the program did not bring to its end: no reward for the reply that led there."""
        self._failures[why] += 1
        if self._failures[why] == 1 and len(self._failures) <= 5:
            _log.warning("%s: an episode ended early: %s\n%s", self, why, trace)
        return Outcome(
            ProgramState(state.seed, replies),
            0.0,
            0.0,
            success=False,
            done=True,
            parse_error=why[:300],
        )

    def _earned(
        self, run: ProgramRun, role: str, *, success: bool
    ) -> tuple[float, dict[str, float], bool, str | None]:
        """What the latest reply earned: the team, each agent, whether the task is solved, why it was not read."""
        team, earned, error = 0.0, Counter[str](), None
        for paid in [*run.paid, *([_reward(self, run, self.asked)] if run.over else [])]:
            team += _number(self, paid["team"])
            by_role = [(paid["role"] or role, paid["local"]), *paid.get("roles", {}).items()]
            for name, amount in by_role:
                if name not in self.asked:
                    raise ConfigError(
                        f"{self} pays the role {name!r}; its roles are {', '.join(self.asked)}"
                    )
                earned[f"{name}_0"] += _number(self, amount)  # type: ignore[assignment]
            if not isinstance(solved := paid["success"], bool | np.bool_ | None):
                raise ConfigError(f"{self} pays success {solved!r:.80}; it is true or false")
            success = success if solved is None else bool(solved)
            error = str(paid["parse_error"] or "") or error
        return (
            team,
            {agent: float(amount) for agent, amount in earned.items() if amount},
            success,
            error,
        )


def _reward(env: raw_env, run: ProgramRun, roles: Sequence[str]) -> dict[str, Any]:
    """What a program returned, as a payment."""
    result = run.result
    paid = {"role": None, "team": 0.0, "local": 0.0, "success": None, "parse_error": None}
    if result is None and run.has_paid:
        return paid
    if isinstance(result, _NUMBERS):
        return paid | {"team": (team := _number(env, result)), "success": team >= 1}
    if isinstance(result, Mapping) and not (unknown := result.keys() - {"team", "success", *roles}):
        by_role = {role: result[role] for role in roles if role in result}
        team = _number(env, result.get("team", 0.0))
        solved = result.get("success", None if "team" not in result else team >= 1)
        return paid | {"team": team, "success": solved, "roles": by_role}
    what = (
        f"an entry {min(map(str, unknown))!r}" if isinstance(result, Mapping) else f"{result!r:.80}"
    )
    raise ConfigError(
        f"{env} returned {what}; a reward is a number, or a mapping of team, success, and "
        f"{', '.join(roles)} to numbers"
    )


def _number(env: raw_env, value: Any) -> float:
    with contextlib.suppress(OverflowError):
        if isinstance(value, _NUMBERS) and math.isfinite(value):
            return float(value)
    raise ConfigError(f"{env} pays {value!r:.80}; a reward is a finite number")


def _loaded(program: str | Callable[..., Any], settle: float, seconds: float) -> Program:
    if not isinstance(program, str):
        return Program(getattr(program, "__qualname__", repr(program)), program, settle, seconds)
    if program.endswith(".py"):
        path = Path(program).expanduser().resolve()
        if not path.is_file():
            raise UnknownNameError(f"there is no script {path}")
        return Program(str(path), None, settle, seconds)
    function = resolve(program, "program")
    if not callable(function):
        raise ConfigError(f"{program} is a {type(function).__name__}; it must be a function")
    return Program(program, function, settle, seconds)


env = raw_env
