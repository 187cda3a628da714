"""# Coding.

A coder writes a program and a tester writes tests for it; both really run, in a sandbox.

| | |
|---|---|
| Creation | `coding_v0.env()`, `pettingzoo.make("aec", "pettingllms/coding-v0")` |
| Agents | `coder_0`, then `tester_0`, in this order each turn; `agents="single"`: `coder_0` alone |
| Action | `FreeText`: a reply with fenced blocks |
| Observation | `Dict(text: FreeText, turn: Discrete)` |
| Turns | 4 by default, then truncation |

Turn 0 shows both roles the problem. Later turns add, for every earlier turn, the program and the
generated tests on which program and tester disagree. The hidden tests are never shown. The coder
answers with one fenced Python program; the tester with one or more pairs of fenced blocks,
`input` and `output` (for a function: a JSON list of arguments and the JSON return value). Text
around the blocks is free. What cannot be parsed leaves the program as it is, costs `FORMAT_PENALTY`, and says why in
`infos[agent]["parse_error"]`.

The episode ends when the program passes all of the tester's tests: agreement, which is not success.
A coder alone is shown its earlier programs, and the episode ends when it writes the one before again. Success is
that the current program passes all hidden tests. `infos[agent]` of a reply has the task's `difficulty`, if known.

# Rewards

`reward = alpha * team + local`, both in `infos`.

| scheme | team | local of the coder | local of the tester |
|---|---|---|---|
| `"paper"` (default) | 1 if the current program passes all hidden tests, else 0 | share of hidden tests that its program passes | half the share of its tests that the reference passes, plus half the share of mutants that the valid ones catch |
| `"sparse"` | the same | 0 | 0 |

The paper scores a tester by the reference alone, so that a trivial test is worth as much as a good one. Here half
of the score asks that tests tell right from wrong: a mutant is a known-wrong program, the reference with one part
changed, made for each task. Only tests that the reference passes can catch one, so a wrong test earns nothing. In the
sparse scheme the candidates of a tester share one program and so one reward: it teaches the coder only.

# Arguments

`dataset`: `None` for the seeded generator (`pettingllms.data.grammar`), or a JSONL file
(`pettingllms.data.coding`), a published set by name (`livecodebench`, `apps`, `code_contests`, `mbpp`, `humaneval`),
a hub id (`org/name`), or a folder (`pettingllms.data.tasks`). Where a set has no solution of a task, as in
LiveCodeBench, nobody can say which generated tests are right: the local reward of the tester is 0 there.
`agents`: `"team"`, or `"single"` for the coder alone, the control of the team. `split`: `train`, `val` or `test`.
`rewards`, `alpha`, `max_turns` (alias `max_cycles`). `prompt`: `"full"` for real language models, `"compact"` for the
embedded one. `sandbox`: `"embedded"` or `"docker"`, shared by all environments of the process, or a `Sandbox` of your own.

# Version History

* v0: first version (0.1.0)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast, get_args

from pettingllms.data import coding, mutation
from pettingllms.data.coding import CodingTask, Test, passes
from pettingllms.data.grammar import Split
from pettingllms.data.tasks import load_tasks
from pettingllms.envs import arguments
from pettingllms.envs.base import Outcome
from pettingllms.envs.coding_text import (
    Attempt,
    Disagreement,
    compact_prompt,
    disagreements_of,
    full_prompt,
    parse_program,
    parse_tests,
    shown_episode,
)
from pettingllms.envs.lists import ParseError
from pettingllms.envs.team_env import Agents, TeamEnv
from pettingllms.sandbox import Case, Limits, RunResult

FORMAT_PENALTY = 0.1
LIMITS = Limits(cpu_s=2.0, wall_s=10.0, memory_mib=256)
INTERPRETS = re.compile(r"\b(eval|exec|compile|pickle|marshal|shelve|import_module|__import__)\b")
"""Words of programs that may run what they read."""


@dataclass(frozen=True, slots=True)
class State:
    """All that an episode knows: the task, the current program and how it fares, the past."""

    task: CodingTask
    program: str | None = None
    passed: float = 0.0
    """Share of hidden tests that the current program passes."""
    history: tuple[Attempt, ...] = ()

    def turned(self, disagreements: tuple[Disagreement, ...] = ()) -> State:
        """At the end of the turn: the program, as it now is, is in the history."""
        return replace(self, history=(*self.history, Attempt(self.program, disagreements)))


class Ran(NamedTuple):
    """What each program did with the inputs of the tests: input -> result."""

    reference: Mapping[str, RunResult] | None
    """None where the task has no reference."""
    mutants: Sequence[Mapping[str, RunResult]]
    program: Mapping[str, RunResult] | None
    """None where the coder has not written any."""


class raw_env(TeamEnv):
    """The coder-tester environment; the module's docstring is its manual.

    Raises:
        ConfigError: an unknown `agents`, `rewards` or `prompt`.
        DatasetError: the `dataset` cannot be had, has a bad row, or no task of `split`.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - PettingZoo's class attribute
        "name": "coding_v0",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
    }
    embedded: ClassVar[Mapping[str, Any]] = {"prompt": "compact"}

    def __init__(
        self,
        *,
        dataset: str | Path | None = None,
        agents: Agents = "team",
        **kwargs: Any,
    ) -> None:
        arguments.one_of("agents", agents, get_args(Agents))
        self._team = agents == "team"
        super().__init__(roles=("coder", "tester") if self._team else ("coder",), **kwargs)
        self.tasks = None if dataset is None else load_tasks(dataset, self.split).records
        self.num_tasks = None if self.tasks is None else len(self.tasks)
        """Rows of the data set: task seeds wrap around here. None for the endless generator."""
        self._mutants: dict[int, tuple[str, ...]] = {}  # made once a task, shared by copies

    def _start(self, seed: int, options: dict[str, Any]) -> State:  # noqa: ARG002 - has none
        if self.tasks is None:
            return State(coding.generate(seed, cast(Split, self.split)))
        row = seed % len(self.tasks)
        task = self.tasks[row]
        if row not in self._mutants:
            self._mutants[row] = mutation.known_wrong(task, self._outputs, coding.MUTANTS)
        return State(replace(task, mutants=self._mutants[row]))

    def _text(self, state: State, agent: str) -> str:
        role = agent.removesuffix("_0")
        if self.prompt == "compact":
            return compact_prompt(role, state.task.question, state.history)
        return full_prompt(role, state.task, state.history, team=self._team)

    def _act(self, state: State, agent: str, text: str) -> Outcome:
        (outcome,) = self._act_all(state, agent, [text])
        return outcome

    def _code(self, state: State, text: str) -> Outcome:
        program = parse_program(text)
        if isinstance(program, ParseError):
            unread = state if self._team else state.turned()
            return self._outcome(unread, -FORMAT_PENALTY, parse_error=program.why)
        tests = state.task.tests
        (results,) = self._outputs(state.task, [program], [test.input for test in tests])
        passed = sum(
            passes(test, r, state.task.function) for test, r in zip(tests, results, strict=True)
        )
        share = passed / len(tests)
        info = {"passed": share, "statuses": [result.status for result in results]}
        after = replace(state, program=program, passed=share)
        if self._team:
            return self._outcome(after, share, info=info)
        again = state.program is not None and program.strip() == state.program.strip()
        return self._outcome(after.turned(), share, done=again, info=info)

    def _act_all(self, state: State, agent: str, texts: Sequence[str]) -> list[Outcome]:
        if agent == "coder_0":
            return [self._code(state, text) for text in texts]
        replies = [parse_tests(text, state.task.function) for text in texts]
        tests = [test for reply in replies if not isinstance(reply, ParseError) for test in reply]
        ran = self._ran(state, list(dict.fromkeys(test.input for test in tests)))
        return [self._test(state, reply, ran) for reply in replies]

    def _ran(self, state: State, inputs: list[str]) -> Ran:
        """Run reference, mutants and program on the inputs of all replies to one prompt."""
        if not inputs:
            return Ran({}, [], None)
        task = state.task
        reference, mutants = None, []
        if task.reference:
            programs = [task.reference, *task.mutants]
            # The inputs are of several replies: one on which a program hangs must not spoil the rest.
            known = self._outputs(task, programs, inputs, end_at_limit=False)
            reference, *mutants = [dict(zip(inputs, row, strict=True)) for row in known]
        if state.program is None:
            return Ran(reference, mutants, None)
        if reference is not None and state.program.strip() == task.reference.strip():
            return Ran(reference, mutants, reference)  # the same program has just run
        # A model wrote it: it must not share a process with the reference.
        (own,) = self._outputs(task, [state.program], inputs, end_at_limit=False)
        return Ran(reference, mutants, dict(zip(inputs, own, strict=True)))

    def _test(self, state: State, tests: tuple[Test, ...] | ParseError, ran: Ran) -> Outcome:
        if isinstance(tests, ParseError):
            return self._outcome(state.turned(), -FORMAT_PENALTY, parse_error=tests.why)
        function = state.task.function

        def failed(results: Mapping[str, RunResult], among: Sequence[Test]) -> list[Test]:
            return [test for test in among if not passes(test, results[test.input], function)]

        # Without a reference no test is known to be right.
        wrong = list(tests) if ran.reference is None else failed(ran.reference, tests)
        valid = [test for test in tests if test not in wrong]
        # Only a valid test can catch a mutant: a wrong one fails every program.
        caught = sum(bool(failed(mutant, valid)) for mutant in ran.mutants)
        power = caught / len(ran.mutants) if ran.mutants else 0.0
        validity = len(valid) / len(tests)
        disagreements = disagreements_of(tests, ran.program, function) if ran.program else ()
        return self._outcome(
            state.turned(disagreements),
            0.5 * validity + 0.5 * power,
            done=bool(ran.program) and not disagreements,
            info={"tests": len(tests), "valid": validity, "caught": power},
        )

    def _outputs(
        self,
        task: CodingTask,
        programs: list[str],
        inputs: list[str],
        end_at_limit: bool = True,
    ) -> list[list[RunResult]]:
        """Run every program on every input, in one process where that is safe.

        That is one fork instead of many. Programs of one request cannot gain from each other (a
        model's program never shares a request with another's or with the reference), and no expected
        output is ever in the sandbox. But where a program runs its input as code, a tester could
        reach the mutants through the reference: there every run has a process of its own.
        """
        fresh = any(INTERPRETS.search(program) for program in programs)
        if task.function is None:
            cases = [Case(stdin=text) for text in inputs]
        else:
            cases = [Case(function=task.function, args=text) for text in inputs]
        return self.sandbox.run(
            programs, cases, limits=LIMITS, fresh_process=fresh, end_at_limit=end_at_limit
        )

    def _outcome(
        self,
        state: State,
        local: float,
        *,
        done: bool = False,
        parse_error: str | None = None,
        info: dict[str, Any] | None = None,
    ) -> Outcome:
        success = state.program is not None and state.passed == 1.0
        return Outcome(
            state=state,
            team=float(success),
            local=local if self.rewards_scheme == "paper" else 0.0,
            success=success,
            done=done,
            parse_error=parse_error,
            info=_difficulty(state.task) | (info or {}),
        )

    def _too_long(self, state: State, agent: str, reason: str) -> Outcome:
        return replace(super()._too_long(state, agent, reason), info=_difficulty(state.task))

    def _view(self, state: State) -> str:
        return shown_episode(state.task, state.history, state.passed)


def _difficulty(task: CodingTask) -> dict[str, Any]:
    return {} if task.difficulty is None else {"difficulty": task.difficulty}


def env(**kwargs: Any) -> raw_env:
    """The environment as PettingZoo users make it; see the module's docstring."""
    return raw_env(**kwargs)
