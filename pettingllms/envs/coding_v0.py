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
answers with one fenced Python program; the tester with one to eight pairs of fenced blocks,
`input` and `output` (for a function: a JSON list of arguments and the JSON return value). Text
around the blocks is free. A reply that cannot be parsed, or is too long, leaves the program as it is, is scored
`-FORMAT_PENALTY`, and says why in `infos[agent]["parse_error"]`.

The episode ends when the program passes all of the tester's tests: agreement, which is not success.
A coder alone is shown its earlier programs, and the episode ends when it writes the same program again. Success is
that the current program passes all hidden tests. `infos[agent]` of a reply has the task's `difficulty`, if known; a coder's
has `passed`, and for each hidden test the status of the run in `statuses` and whether it passed in `verdicts`; a tester's has `tests`, `valid` (the precision below),
`caught` (the power) and `input_size`, the mean number of values in its inputs: how hard the tests are that it asks. The record of a run
also keeps the first hidden test that failed, `failing`, which no agent sees.

# Rewards

`reward = alpha * team + local`, both in `infos`. Both are *differences of scores* (`pettingllms.envs.team_env`), so that
the return of an episode holds the team's last score once and each agent's last score once, however long it takes.

| scheme | score of the team | score of a coder's reply | score of a tester's reply |
|---|---|---|---|
| `"paper"` (default) | 1 if the current program passes all hidden tests, else 0 | share of hidden tests that its program passes | `precision**2 * power - WRONG_COST * (1 - precision)` |
| `"sparse"` | the same | 0 | 0 |

The paper scores a tester by the reference alone, so that a trivial test is worth as much as a good one. Here
`power` is the share of known-wrong programs (mutants: the reference with one part changed, made for each task) that
the tester's right tests catch, of those that the examples in the problem statement do not catch, and `precision`
the share of its tests that are right (`pettingllms.envs.coding_judge` has the rules). What strategies earn, as
measured on 30 generated problems with an example in their statement (`tests/test_coding_judge.py` plays eight):

| reply of the tester | earns |
|---|---|
| eight right tests | 1.00 |
| one right test; the same fifty times; the same and the example | 0.75 |
| an example of the statement | 0.00 |
| a constant test (`1 2` gives `0`) | 0.11 |
| one right test and seven wrong ones | -0.03 |
| eight inputs, always `0` | -0.04 |
| eight outputs for one input, one of them right; a wrong test; a wrong output for an example | -0.05 |
| no readable test | -0.10 |

Where the examples catch every mutant, there is nothing to tell apart and no reply earns more than 0. In the
sparse scheme no reply of a tester earns anything by itself: AT-GRPO teaches the coder only. Where a data set has no
solution of a task, as in LiveCodeBench, it is not known which generated tests are right, and the tester's score is 0.

# Cost and determinism

A program may use 2 s of CPU and 256 MiB in each test, unless its data set or the settings of the sandbox say otherwise. A reply of a tester costs at most `15 * LIMITS.cpu_s` CPU seconds, whatever it says, and half a second for two
attempts to run simple programs in one process (`pettingllms.sandbox.together`); far less as a rule: it has at most 8 tests of 64 KiB together; the reference has 1/8 of a program's CPU limit for each; where it fails, the test is wrong and nothing else runs.
Where it does not end, the same holds for all later tests of this reply, which are not run. Six mutants and the coder's program have 1/4 of the limit each
on the other tests, and a program that uses a limit up is not run on the rest.

A step is a function of state and reply alone, as far as the programs are: the sandbox decides what a program sees of
randomness. A program that asks for the time or the system's entropy, or that needs about as much CPU time as it may
use, can differ from one run to the next.

# Other calls

`cross(programs, tests)` runs replies of coders on replies of testers, for methods in which they judge each other.
`reset(options={"question": text})` plays a problem without hidden tests and reference, for which nothing is paid;
`answer()` is the team's program.

# Version History

* v0: first version (0.1.0)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Unpack, cast, get_args

from pettingllms.data import coding
from pettingllms.data.asserts import Test
from pettingllms.data.coding import CodingTask
from pettingllms.data.coding_schemas import load_tasks
from pettingllms.data.rows import Source
from pettingllms.data.splits import Split
from pettingllms.envs import arguments, coding_judge, small_text
from pettingllms.envs.assertions import Run
from pettingllms.envs.base import Outcome, metadata_of
from pettingllms.envs.coding_judge import Matrix, Verdict, judged, passes, score, up_to_a_hang
from pettingllms.envs.coding_text import (
    Attempt,
    Disagreement,
    compact_prompt,
    disagreements_of,
    failure_note,
    full_prompt,
    parse_program,
    parse_tests,
    shown_episode,
    shown_to,
    small_prompt,
)
from pettingllms.envs.parsing import ParseError
from pettingllms.envs.team_env import FORMAT_PENALTY, Agents, Scores, TeamArguments, TeamEnv
from pettingllms.envs.thinking import without_thought
from pettingllms.errors import ConfigError
from pettingllms.sandbox import Limits, RunResult
from pettingllms.sandbox.together import SharedRuns

LIMITS = Limits(cpu_s=2.0, wall_s=10.0, memory_mib=256)
REFERENCE_SHARE, PROGRAM_SHARE = 1 / 8, 1 / 4
"""Parts of a program's CPU limit that a run on a generated test may take. A mutant has twice the time of
the reference, so that it is not caught for being as slow."""


_VALUE = re.compile(r"[\w.+-]+")


@dataclass(frozen=True, slots=True)
class State:
    """All that an episode knows: the task, the current program, the past, and what has been paid."""

    task: CodingTask
    program: str | None = None
    passed: float = 0.0
    """Share of hidden tests that the current program passes."""
    history: tuple[Attempt, ...] = ()
    scores: Scores = field(default_factory=Scores)

    def turned(self, disagreements: tuple[Disagreement, ...] = ()) -> State:
        """Returns the state at the end of the turn, with the current program in the history."""
        return replace(self, history=(*self.history, Attempt(self.program, disagreements)))


class raw_env(TeamEnv):
    """The coder-tester environment; the module's docstring is its manual.

    Args:
        dataset: None for generated tasks (`pettingllms.data.coding`), or a published set (`livecodebench`,
            `apps`, `code_contests`, `mbpp`, `humaneval`), a hub id, a file or folder
            (`pettingllms.data.coding_schemas`), or its rows.
        agents: "team", or "single" for the coder alone, the control of the team.
        steps: fewest and most steps of a generated problem, each equally likely; 2 to 6.
        families: what generated problems are about: any of "numbers", "words", "arithmetic".
        kwargs: as in `TeamEnv`.

    Raises:
        ConfigError: an unknown `agents`, `rewards` or `prompt`.
        DatasetError: the `dataset` cannot be had, has a bad row, or no task of `split`.
    """

    # Hardly two prompts of a task are equal after the first turn.
    metadata = metadata_of("coding_v0", states_recur=False)
    divides_datasets = True
    embedded = {"prompt": "compact"}
    smollm2 = {
        "prompt": "small",
        "steps": (2, 2),
        "families": ("arithmetic",),
        "max_turns": 1,
    }
    smollm2_training = {"max_completion_length": 96}
    # The base of parts was shown programs of one and two steps. Of arithmetic it never writes three.
    embedded_model = "embedded:parts"
    embedded_parts = {
        "prompt": "compact",
        "steps": (3, 3),
        "families": ("numbers",),
        "max_turns": 2,
    }
    # A tester learns more slowly than a coder, and from the same completions more with three steps of the
    # optimizer than with one. The wider clip range keeps its rare tests that catch something likely enough.
    embedded_parts_training = {
        "learning_rate": 3e-3,
        "max_steps": 60,
        "eval_steps": 10,
        "num_iterations": 3,
        "epsilon_high": 0.28,
    }
    reset_options = ("question",)
    default_limits = LIMITS
    team_roles: ClassVar[tuple[str, ...]] = ("coder", "tester")

    def __init__(
        self,
        *,
        dataset: Source | None = None,
        agents: Agents = "team",
        steps: tuple[int, int] = (3, 3),
        families: Sequence[str] = tuple(coding.SHARES),
        **kwargs: Unpack[TeamArguments],
    ) -> None:
        arguments.one_of("agents", agents, get_args(Agents))
        least, most = coding.STEPS
        if not (len(steps) == 2 and least <= steps[0] <= steps[1] <= most):
            raise ConfigError(f"steps must be two numbers {least} <= a <= b <= {most}, got {steps}")
        self.families = arguments.some_of("families", families, tuple(coding.SHARES))
        self.steps = steps[0], steps[1]
        self._team = agents == "team"
        if self._team and "tester" in self.team_roles:
            # The reward transform `cure` reads here whose programs meet whose tests.
            self.metadata = {**self.metadata, "cross_runs": self.team_roles}
        super().__init__(roles=self.team_roles if self._team else ("coder",), **kwargs)
        small = self.prompt == "small"
        self._program_of = small_text.program if small else parse_program
        self._tests_of = small_text.example if small else parse_tests
        self.tasks = None if dataset is None else load_tasks(dataset, self.split).records
        self.num_tasks = None if self.tasks is None else len(self.tasks)
        """Rows of the data set: task seeds wrap around here. None for the endless generator."""
        # Made once a task, shared by copies.
        self._prepared: dict[int, CodingTask] = {}

    def _start(self, seed: int, options: dict[str, Any]) -> State:
        if "question" in options:  # nobody knows its tests
            return State(CodingTask("question", str(options["question"]), (), reference=""))
        if self.tasks is None:
            split = cast(Split, self.split)
            return State(coding.generate(seed, split, self.steps, self.families))
        row = seed % len(self.tasks)
        if row not in self._prepared:
            task = coding_judge.prepared(self.tasks[row], self._runner(self.tasks[row]))
            self._prepared[row] = replace(task, mutants=self._unexposed(task))
        return State(self._prepared[row])

    def _unexposed(self, task: CodingTask) -> tuple[str, ...]:
        """Known-wrong programs that the examples in the problem statement do not tell from right ones."""
        mutants = list(coding_judge.known_wrong(task, self._runner(task)))
        shown = [t for t in task.tests if coding_judge.is_example(task.question, t, task.function)]
        if shown and mutants:
            examples = replace(task, tests=tuple(shown))
            results = coding_judge.run_tests(examples, mutants, self._runner(task))
            mutants = [
                mutant
                for mutant, row in zip(mutants, results, strict=True)
                if all(passes(t, r, task.function) for t, r in zip(shown, row, strict=True))
            ]
        # Spread over the program: neighbors in the list change neighboring places.
        stride = max(1, len(mutants) // coding.MUTANTS)
        return tuple(mutants[::stride][: coding.MUTANTS])

    def _text(self, state: State, agent: str) -> str:
        role = agent.removesuffix("_0")
        task = shown_to(role, state.task)
        if self.prompt == "compact":
            return compact_prompt(role, task.question, state.history)
        if self.prompt == "small":
            return small_prompt(role, task.question)
        return full_prompt(role, task, state.history, team=self._team)

    def _privileged(self, state: State, agent: str) -> str:  # noqa: ARG002 - the same for both
        # Published sets have tests of many pages, of which a few say what is asked.
        tests = (f"{test.input}\n{test.output}".strip() for test in state.task.tests[:3])
        return state.task.reference or "\n\n".join(tests)

    def _act_all(self, state: State, agent: str, texts: Sequence[str]) -> list[Outcome]:
        if agent == "coder_0":
            return self._code_all(state, texts)
        task = state.task
        replies = [self._tests_of(text, task.function) for text in texts]
        tests = [test for reply in replies if not isinstance(reply, ParseError) for test in reply]
        inputs = _inputs(tests)
        runs = self._runs_ahead(state, inputs)
        within = runs.within(self._limits_of(task, REFERENCE_SHARE))
        runs = runs.within(self._limits_of(task, PROGRAM_SHARE))
        results: dict[str, RunResult] = {}
        return [
            self._unread(state, agent, reply.why)
            if isinstance(reply, ParseError)
            else self._test(state, reply, self._reference_on(task, reply, results, within), runs)
            for reply in replies
        ]

    def _reference_on(
        self, task: CodingTask, tests: Sequence[Test], known: dict[str, RunResult], run: Run
    ) -> dict[str, RunResult]:
        inputs = _inputs(tests) if task.reference else []
        return up_to_a_hang(
            inputs, known, lambda new: self._outputs(task, task.reference, new, run)
        )

    def _code_all(self, state: State, texts: Sequence[str]) -> list[Outcome]:
        task = state.task
        runs = SharedRuns(self.sandbox, self._limits_of(task))
        programs = [self._program_of(text) for text in texts]
        if not (coding_judge.has_assertions(task) or coding_judge.is_contest(task)):
            cases = coding_judge.cases(task, [test.input for test in task.tests])
            runs.share([p for p in programs if not isinstance(p, ParseError)], cases)
        return [self._code(state, program, runs) for program in programs]

    def _code(self, state: State, program: str | ParseError, run: Run) -> Outcome:
        if isinstance(program, ParseError):
            return self._unread(state, "coder_0", program.why)
        tests = state.task.tests
        (results,) = coding_judge.run_tests(state.task, [program], run)
        verdicts = [
            passes(test, r, state.task.function) for test, r in zip(tests, results, strict=True)
        ]
        # A question of a user's own has no tests.
        share = sum(verdicts) / max(1, len(tests))
        # Not what a test asks, nor what the program printed: that could hold a hidden test.
        statuses = [result.status for result in results]
        info = {"passed": share, "statuses": statuses, "verdicts": verdicts}
        failed = [
            pair
            for pair, ok in zip(zip(tests, results, strict=True), verdicts, strict=True)
            if not ok
        ]
        notes = {"failing": failure_note(*failed[0])} if failed else {}
        after = replace(state, program=program, passed=share)
        if self._team:
            return replace(self._outcome(after, "coder_0", share, info=info), notes=notes)
        again = state.program is not None and program.strip() == state.program.strip()
        outcome = self._outcome(after.turned(), "coder_0", share, done=again, info=info)
        return replace(outcome, notes=notes)

    def _runs_ahead(self, state: State, inputs: list[str]) -> SharedRuns:
        """Tries the runs that the tests of all replies to one prompt may need in one process.

        Most of them are needed, and a small program costs a hundredth of a process.
        """
        task = state.task
        runs = SharedRuns(self.sandbox, self._limits_of(task, REFERENCE_SHARE))
        # Something else stands beside the programs of the others (`coding_judge.run_inputs`): other runs
        # than these.
        if not (coding_judge.has_assertions(task) or coding_judge.is_contest(task)):
            wanted = [task.reference, *task.mutants, state.program]
            runs.share([p for p in wanted if p], coding_judge.cases(task, inputs))
        return runs

    def _test(
        self,
        state: State,
        tests: tuple[Test, ...],
        reference: Mapping[str, RunResult],
        run: Run,
    ) -> Outcome:
        task = state.task
        if task.reference:
            verdict = judged(tests, reference, task.question, task.function)
            verdict, power = self._caught(task, verdict, run)
        else:  # no test is known to be right
            verdict, power = Verdict((), 0, 0), 0.0
        disagreements = self._disagreements(state, tests, reference, run)
        return self._outcome(
            state.turned(disagreements),
            "tester_0",
            score(verdict, power),
            done=state.program is not None and not disagreements,
            info={
                "tests": len(tests),
                "valid": verdict.precision,
                "caught": power,
                # Short inputs are easier to work out.
                "input_size": sum(len(_VALUE.findall(t.input)) for t in tests) / len(tests),
            },
        )

    def _caught(self, task: CodingTask, verdict: Verdict, run: Run) -> tuple[Verdict, float]:
        """Counts tests that mutants tell apart; also returns the share of mutants that fail one of them."""
        tests = verdict.telling
        if not tests or not task.mutants:
            return verdict, 0.0
        inputs = [test.input for test in tests]
        rows = coding_judge.run_inputs(task, task.mutants, inputs, run)
        caught = sum(
            not all(passes(t, r, task.function) for t, r in zip(tests, row, strict=True))
            for row in rows
        )
        return coding_judge.told_apart(verdict, rows, task.function), caught / len(task.mutants)

    def _disagreements(
        self,
        state: State,
        tests: tuple[Test, ...],
        reference: Mapping[str, RunResult],
        run: Run,
    ) -> tuple[Disagreement, ...]:
        """The tests that the coder's program fails; it is run on inputs that the reference handles."""
        task = state.task
        if state.program is None:
            return ()
        inputs = _inputs(tests)
        if task.reference:
            inputs = [text for text in inputs if reference[text].status == "ok"]
        if task.reference and state.program.strip() == task.reference.strip():
            results = reference  # the same program has just run
        else:
            results = self._outputs(task, state.program, inputs, run)
        ran = {text: results[text] for text in inputs}
        return disagreements_of(tests, ran, task.function)

    def _outputs(
        self, task: CodingTask, program: str, inputs: list[str], run: Run
    ) -> dict[str, RunResult]:
        """Runs a program, which may be empty, on each input."""
        if not inputs:
            return {}
        (results,) = coding_judge.run_inputs(task, [program], inputs, run)
        return dict(zip(inputs, results, strict=True))

    def _limits_of(self, task: CodingTask, share: float = 1.0) -> Limits:
        # Not of the clock, which says how busy the machine is: a right test would count as wrong.
        whole = self.limits
        if task.limits:
            whole = self._settings.limits_over(self.default_limits, task.limits)
        return replace(whole, cpu_s=share * whole.cpu_s)

    def cross(self, programs: Sequence[str], tests: Sequence[str]) -> Matrix:
        """Runs every program on every test of the episode's task; the episode stays as it is.

        Different programs are run once, and so are different inputs; a program that does not end within
        `REFERENCE_SHARE` of its CPU limit fails. So a tester's reply costs at most one CPU limit for each
        program, as it has at most eight tests.

        Raises:
            SandboxUnavailable: the sandbox failed, which says nothing about a program.
        """
        task = self._state.task
        written = [self._program_of(without_thought(text) or "") for text in programs]
        asked = [self._tests_of(without_thought(text) or "", task.function) for text in tests]
        columns = dict.fromkeys(t for one in asked if not isinstance(one, ParseError) for t in one)
        numbers = {test: number for number, test in enumerate(columns)}
        distinct = list(dict.fromkeys(p for p in written if not isinstance(p, ParseError)))
        inputs = list(dict.fromkeys(test.input for test in columns))
        rows: dict[str, tuple[bool, ...]] = dict.fromkeys(distinct, ())
        if distinct and inputs:
            limits = self._limits_of(task, REFERENCE_SHARE)
            # One tester's input must not bear on another's, so that none ends the list.
            run = SharedRuns(self.sandbox, limits, end_at_limit=False)
            for program, results in zip(
                distinct, coding_judge.run_inputs(task, distinct, inputs, run), strict=True
            ):
                ran = dict(zip(inputs, results, strict=True))
                rows[program] = tuple(passes(t, ran[t.input], task.function) for t in columns)
        return Matrix(
            {n: rows[p] for n, p in enumerate(written) if not isinstance(p, ParseError)},
            {
                n: tuple(numbers[test] for test in dict.fromkeys(one))
                for n, one in enumerate(asked)
                if not isinstance(one, ParseError)
            },
        )

    def _runner(self, task: CodingTask) -> Run:
        """Returns what runs programs on cases within the task's limits."""
        return SharedRuns(self.sandbox, self._limits_of(task))

    def _unread(self, state: State, agent: str, why: str) -> Outcome:
        """A reply that cannot be read leaves the program as it is; it may end a turn."""
        ends_turn = agent == "tester_0" or not self._team
        after = state.turned() if ends_turn else state
        return self._outcome(after, agent, -FORMAT_PENALTY, parse_error=why)

    def _outcome(
        self,
        state: State,
        agent: str,
        local: float,
        *,
        info: dict[str, Any] | None = None,
        **rest: Any,
    ) -> Outcome:
        success = state.program is not None and state.passed == 1.0
        difficulty = state.task.difficulty
        info = ({} if difficulty is None else {"difficulty": difficulty}) | (info or {})
        return self._paid(state, agent, local, success=success, info=info, **rest)

    def _situation(self, state: State) -> str:
        # Of the task alone: whether a program was tried depends on who played, and members of an
        # ensemble would be compared on different tasks.
        form = "program" if state.task.function is None else "function"
        return state.task.difficulty or form

    def _answer(self, state: State) -> str | None:
        return None if state.program is None else f"```python\n{state.program}\n```"

    def _view(self, state: State) -> str:
        return shown_episode(state.task, state.history, state.passed)


def _inputs(tests: Sequence[Test]) -> list[str]:
    return list(dict.fromkeys(test.input for test in tests))


env = raw_env
"""The environment as PettingZoo users make it."""
