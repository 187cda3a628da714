"""# Debugging.

A coder writes a program and calls a debugger as often as it likes; the debugger runs the program.

| | |
|---|---|
| Creation | `debugging_v0.env()`; in a checkout also `--env debugging` |
| Agents | `coder_0`, `debugger_0` |
| Action | `FreeText`: a reply with fenced blocks |
| Observation | `Dict(text: FreeText, turn: Discrete)` |
| Turns | 4 by default, then truncation |

Problems, hidden tests and the coder's scores are those of `coding_v0`. Who acts next depends on the replies:

| reply | leads to |
|---|---|
| coder: a program | the end: the program is final |
| coder: a program and a `debug` block with a question | the debugger |
| debugger: an `input` block | the program is run on it, and the debugger is next again |
| debugger: a `report` block | the coder, who is shown it |

The debugger's context is its own: it sees the question, the program, and what its runs of this call gave, not the problem
nor earlier calls. The coder sees the problem, and of each call its program, its question and the report. A call takes at least a run and a
report: where the turns do not allow both, a question is ignored and the program is final. A reply that cannot be read uses up the coder's
turn, and is an empty report of the debugger.

# Rewards

`reward = alpha * team + local`, both in `infos`, as *differences of scores* (`pettingllms.envs.team_env`).

| scheme | score of the team | score of a coder's reply | score of a debugger's reply |
|---|---|---|---|
| `"paper"` (default) | 1 if the current program passes all hidden tests, else 0 | share of hidden tests that its program passes, `-FORMAT_PENALTY` for none | of a report what the call was worth, of an input 0, `-FORMAT_PENALTY` if it cannot be read |
| `"sparse"` | the same | 0 | 0 |

What a call was worth is `expert` in `infos[agent]` of its report, 0 or 1, and methods for calls use it, too (`--method m_grpo`). Of a wrong
program it is 1 if an input of the call made it do something else than the reference, and the report gives that input. Of a program that
passes all hidden tests it is 1 if it was run on an input on which the reference does the same, and the report begins with `right`. Inputs on
which the reference fails count for neither.

# Version History

* v0: first version (0.1.0)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Unpack

from benchmarks.environments.coding_calls import (
    Calls,
    Trial,
    parse_debugger,
    parse_question,
    quotes,
    shown,
)
from pettingllms.data.asserts import Test
from pettingllms.data.rows import Source
from pettingllms.envs import coding_judge, coding_v0
from pettingllms.envs.base import Outcome
from pettingllms.envs.coding_judge import passes
from pettingllms.envs.coding_text import shown_result, shown_to
from pettingllms.envs.parsing import ParseError
from pettingllms.envs.team_env import FORMAT_PENALTY, TeamArguments
from pettingllms.sandbox.together import SharedRuns


@dataclass(frozen=True, slots=True)
class DebuggingState(coding_v0.State):
    """A coder's state, and its calls."""

    calls: Calls = field(default_factory=Calls)


class raw_env(coding_v0.raw_env):
    """The environment of a coder and a debugger; the module's docstring is its manual.

    Args:
        dataset: None for generated tasks, or a data set's name, hub id, file or folder, or its rows.
        steps: fewest and most steps of a generated problem, each equally likely; 2 to 6.
        kwargs: as in `TeamEnv`.

    Raises:
        ConfigError: an unknown `rewards` or `prompt`.
        DatasetError: the `dataset` cannot be had, has a bad row, or no task of `split`.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - PettingZoo's class attribute
        **coding_v0.raw_env.metadata,
        "name": "debugging_v0",
        "caller": "coder_0",
    }
    team_roles: ClassVar[tuple[str, ...]] = ("coder", "debugger")

    def __init__(
        self,
        *,
        dataset: Source | None = None,
        steps: tuple[int, int] = (3, 3),
        **kwargs: Unpack[TeamArguments],
    ) -> None:
        super().__init__(dataset=dataset, steps=steps, **kwargs)

    def _start(self, seed: int, options: dict[str, Any]) -> DebuggingState:
        plain = super()._start(seed, options)
        return DebuggingState(
            **{attribute.name: getattr(plain, attribute.name) for attribute in fields(plain)}
        )

    def _next_agent(self, state: DebuggingState, agent: str | None) -> str:
        del agent
        return f"{state.calls.due}_0"

    def _hears(self, agent: str) -> Collection[str]:
        # Thoughts would carry the problem to the debugger, and more than its report to the coder.
        del agent
        return ()

    def _text(self, state: DebuggingState, agent: str) -> str:  # type: ignore[override]
        role = agent.removesuffix("_0")
        return shown(
            role,
            shown_to(role, state.task).question,
            state.calls,
            function=state.task.function,
            compact=self.prompt == "compact",
            # One of the debugger's replies has to be the report.
            left=self.max_turns - 1 - state.calls.acted,
        )

    def _act_all(self, state: DebuggingState, agent: str, texts: Sequence[str]) -> list[Outcome]:  # type: ignore[override]
        if agent == "debugger_0":
            return [self._debugged(state, text) for text in texts]
        coded = self._code_all(state, texts)
        return [self._called(state, *pair) for pair in zip(texts, coded, strict=True)]

    def _called(self, state: DebuggingState, text: str, coded: Outcome) -> Outcome:
        """A program that has been scored is final, unless its author calls the debugger."""
        question, calls = parse_question(text), state.calls
        # Without a program there is nothing to examine, whatever the reply asks.
        if coded.parse_error is not None:
            return coded
        if question is None or not calls.possible(self.max_turns):
            return replace(coded, done=True)
        after = replace(coded.state, calls=calls.called(question, coded.state.program))
        return replace(coded, state=after)

    def _debugged(self, state: DebuggingState, text: str) -> Outcome:
        """Runs the program on a debugger's input, or hands on its report."""
        reply = parse_debugger(text, state.task.function)
        if isinstance(reply, ParseError):
            return self._unread(state, "debugger_0", reply.why)
        tag, body = reply
        if tag == "report":
            return self._reported(state, body)
        if state.calls.acted + 1 >= self.max_turns:
            return self._unread(state, "debugger_0", "no run is left; a report is due")
        after = replace(state, calls=state.calls.tried(self._trial(state, body)))
        return self._outcome(after, "debugger_0", 0.0)

    def _unread(self, state: DebuggingState, agent: str, why: str) -> Outcome:  # type: ignore[override]
        """A reply that cannot be read uses up the coder's turn, or ends the debugger's call."""
        if agent == "debugger_0":
            return self._reported(state, "", why)
        after = replace(state, calls=state.calls._replace(turns=state.calls.turns + 1))
        return self._outcome(after, agent, -FORMAT_PENALTY, parse_error=why)

    def _reported(self, state: DebuggingState, report: str, why: str | None = None) -> Outcome:
        trials = state.calls.made[-1].trials
        if state.passed == 1.0:
            verified = report.lower().startswith("right") and any(t.wrong is False for t in trials)
        else:
            verified = any(t.wrong and quotes(report, t.input) for t in trials)
        after = replace(state, calls=state.calls.reported(report))
        local = float(verified) if why is None else -FORMAT_PENALTY
        info = {"expert": float(verified)}
        return self._outcome(after, "debugger_0", local, parse_error=why, info=info)

    def _trial(self, state: DebuggingState, text: str) -> Trial:
        task, program = state.task, state.calls.made[-1].program
        run = SharedRuns(self.sandbox, self._limits_of(task, coding_v0.PROGRAM_SHARE))
        programs = [program, *filter(None, [task.reference])]
        (mine, *_), *others = coding_judge.run_inputs(task, programs, [text], run)
        wrong = None
        # Where the reference fails as well, nobody knows what is right.
        if others and others[0][0].status == "ok":
            right = others[0][0]
            output = right.stdout if task.function is None else right.value
            wrong = not passes(Test(text, output or ""), mine, task.function)
        return Trial(text, shown_result(mine, task.function), wrong)

    def _view(self, state: DebuggingState) -> str:  # type: ignore[override]
        lines = [super()._view(state)]
        for call in state.calls.made:
            lines += [
                f"debug: {call.asked}",
                *(f"  input {t.input}: {t.gave}" for t in call.trials),
            ]
            lines.append(f"  report: {call.report or '-'}")
        return "\n".join(lines)


env = raw_env
"""The environment as PettingZoo users make it."""
