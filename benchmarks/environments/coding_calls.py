"""A coder that calls a debugger: what they are shown, how their replies are read, and the state of a call.

The environment is `debugging_v0`. No text that a model can write raises here or takes longer than its length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pettingllms.data.asserts import Test
from pettingllms.envs.coding_text import blocks, is_call
from pettingllms.envs.parsing import ParseError

MAX_SAID_CHARS = 500
"""Of a question and of a report."""
SHOWN_CHARS = 300
"""Of an input and of what a program gave."""


class Trial(NamedTuple):
    """An input that a debugger ran the program on."""

    input: str
    gave: str
    wrong: bool | None
    """Whether the reference gives something else, None where it fails; no agent is shown it."""


class Call(NamedTuple):
    """A question of the coder to the debugger, about a program."""

    asked: str
    program: str
    trials: tuple[Trial, ...] = ()
    report: str | None = None
    """What the debugger said of it in the end; None while it is at work."""


class Calls(NamedTuple):
    """All calls of an episode, and who is next."""

    due: str = "coder"
    made: tuple[Call, ...] = ()
    acted: int = 0
    """Replies of the debugger."""
    turns: int = 0
    """Replies of the coder."""

    def possible(self, max_turns: int) -> bool:
        """Returns whether both have the turns that a call takes: a trial, a report, an answer."""
        return self.acted + 2 <= max_turns and self.turns + 1 < max_turns

    def called(self, question: str, program: str) -> Calls:
        """Returns the calls after the coder has asked."""
        made = (*self.made, Call(question, program))
        return self._replace(due="debugger", made=made, turns=self.turns + 1)

    def tried(self, trial: Trial) -> Calls:
        """Returns the calls after the debugger has run the program; it is next again."""
        *before, now = self.made
        now = now._replace(trials=(*now.trials, trial))
        return self._replace(made=(*before, now), acted=self.acted + 1)

    def reported(self, report: str) -> Calls:
        """Returns the calls after a report; an empty one stands for a reply that cannot be read."""
        *before, now = self.made
        made = (*before, now._replace(report=report))
        return self._replace(due="coder", made=made, acted=self.acted + 1)


def parse_question(text: str) -> str | None:
    """The last ```debug block of a coder's reply, cut to `MAX_SAID_CHARS`; None for a final program."""
    asked = [block.body.strip() for block in blocks(text) if block.tag == "debug"]
    # The last block counts, as of programs: those before it are drafts.
    return asked[-1][:MAX_SAID_CHARS] if asked and asked[-1] else None


def parse_debugger(
    text: str, function: str | None
) -> tuple[Literal["input", "report"], str] | ParseError:
    """Reads what a debugger does: the last ```input or ```report block of its reply."""
    answers = [block for block in blocks(text) if block.tag in ("input", "report")]
    if not answers:
        return ParseError("no ```input block and no ```report block")
    tag, body = answers[-1]
    if tag == "report":
        report = body.strip()[:MAX_SAID_CHARS]
        return ("report", report) if report else ParseError("the report is empty")
    if function is not None and not is_call(Test(body, "null")):
        return ParseError("an input of a function is a JSON list of arguments")
    return "input", body


def quotes(report: str, text: str) -> bool:
    """Returns whether a report gives an input: its words in their order, of a long one the first 20."""
    words = r"\s+".join(map(re.escape, text.split()[:20]))
    return bool(words) and bool(re.search(rf"(?<![\w.+-]){words}(?!\w)", report))


_CODER = """You solve a problem with a Python program. A debugger can run your program for you; it knows neither the problem nor \
what it did before, so ask one question that can be understood by itself. {form}
Think first if you like, then end your reply with your program:
```python
<your program>
```
If you want it examined, add your question; without one the program is final.
```debug
<your question>
```"""
_DEBUGGER = """You examine a program for its author. In each reply you either run it on one input, or end the examination with \
a short report. {form}
Think first if you like, then end your reply with one block:
```input
<input of the program>
```
or
```report
<right, if nothing is wrong; else the input that shows it, and what is wrong>
```"""


def shown(
    role: str, question: str, calls: Calls, *, function: str | None, compact: bool, left: int
) -> str:
    """Returns what the coder or the debugger sees.

    The debugger sees its own call alone, the coder the problem, its programs and the reports.

    Args:
        role: of the reader.
        question: the problem.
        calls: of the episode.
        function: that a program has to define; None for one that reads standard input.
        compact: few tokens, for the embedded model.
        left: trials that the debugger may still make.
    """
    if role == "debugger":
        # A prompt may be asked for at any time, also before there is a call.
        now = calls.made[-1] if calls.made else Call("", "")
        lines = [now.asked, now.program.rstrip(), *_trials(now.trials)]
        if compact:
            return "\n".join([role, *lines])
        form = "It reads standard input." if function is None else "Inputs are JSON lists."
        return "\n\n".join([_DEBUGGER.format(form=form), *lines, f"Trials left: {left}."])
    ended = [call for call in calls.made if call.report is not None]
    told = [
        line
        for call in ended
        for line in (call.program.rstrip(), call.asked, call.report or "(no report)")
    ]
    if compact:
        return "\n".join([role, question, *told])
    form = "It reads standard input and prints the answer."
    if function is not None:
        form = f"Define the function `{function}`; it returns the answer."
    return "\n\n".join([_CODER.format(form=form), f"Problem:\n{question}", *told])


def _trials(trials: Sequence[Trial]) -> list[str]:
    return [f"input {t.input[:SHOWN_CHARS]} gives {t.gave[:SHOWN_CHARS]}" for t in trials]
