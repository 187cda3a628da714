"""Prompts of the math environment, and the parsing of replies.

No text that a model can write raises here or takes longer than its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pettingllms.data.math import MathProblem
from pettingllms.envs import small_text
from pettingllms.envs.coding_text import parse_program, prose
from pettingllms.envs.parsing import ParseError, shortened
from pettingllms.grading import boxed
from pettingllms.names import role_of
from pettingllms.sandbox import RunResult

MAX_ANSWER_CHARS = 1000
SHOWN_CHARS = 2000
# A program may print a whole line as its answer, which would fill a small model's context.
COMPACT_CHARS = 24
_INSIDE = r"[^{}]"
for _ in range(3):
    _INSIDE = rf"(?:[^{{}}]|\{{{_INSIDE}*+\}})"
_BOX = re.compile(rf"\\f?boxed\s*+\{{({_INSIDE}*+)\}}")
_BLANK = r"(?:[\s$,;&]|\\[,;:! &]|\\q?quad(?![a-z]))*+"
_JOINT = rf"{_BLANK}(?:(?<=\n)[-*] )?+(?:and|or|\\text\{{\s*(?:and|or)\s*\}})?+{_BLANK}(?:[A-Za-z]\w{{0,3}}\s*=\s*)?+"
_BOXES = re.compile(rf"{_BOX.pattern}(?:{_JOINT}{_BOX.pattern})*+")
"""Boxes that are one list of answers."""
SOLVER = "solver"
"""The role of an agent that works alone."""


class Message(NamedTuple):
    """A readable reply and its result."""

    turn: int
    agent: str
    said: str
    """The program of a tool, the text of the others."""
    answer: str | None
    """None where a program failed or printed nothing."""
    right: bool
    failure: str = ""
    """Reason why a program printed no answer; empty where it printed one."""
    printed: str | None = None
    """Answer that a program in the reply printed."""


class Reply(NamedTuple):
    """A parsed reply: a program, a boxed answer, or (of a solver) either or both."""

    said: str
    program: str | None = None
    answer: str | None = None


def parse_reply(role: str, text: str, *, small: bool = False) -> Reply | ParseError:
    """Parses a reply by the rules of its author's role; `small`: to a small prompt."""
    if small and role == "tool":
        program = small_text.formula(text)
        return program if isinstance(program, ParseError) else Reply(program, program)
    if small and not _BOX.search(text):
        number = small_text.number(text)
        return number if isinstance(number, ParseError) else Reply(text, None, str(number))
    if role == "tool":
        program = parse_program(text)
        return program if isinstance(program, ParseError) else Reply(program, program)
    if role != SOLVER:
        answer = parse_answer(prose(text))
        if isinstance(answer, ParseError):
            answer = parse_answer(text)
        return answer if isinstance(answer, ParseError) else Reply(text, None, answer)
    program = parse_program(text)
    # A `\boxed` inside of a program's own text is not an answer.
    answer = parse_answer(prose(text))
    if isinstance(answer, ParseError):  # behind a fence that this stands in one line with
        answer = parse_answer(text.rpartition("```")[2])
    if isinstance(program, ParseError) and isinstance(answer, ParseError):
        return ParseError(r"neither a closed ```python block with a program nor a \boxed{...}")
    return Reply(
        text,
        None if isinstance(program, ParseError) else program,
        None if isinstance(answer, ParseError) else answer,
    )


def parse_answer(text: str) -> str | ParseError:
    r"""The content of the last `\boxed{...}`, or of the last ones: `\boxed{1} and \boxed{2}` is `1, 2`."""
    answer = boxed(text)
    if answer is None or not answer.strip():
        return ParseError(r"no \boxed{...} with an answer")
    *_, last = [answer, *(match[0] for match in _BOXES.finditer(text))]
    # Boxes that repeat one another are one answer.
    several = list(dict.fromkeys(filter(None, map(str.strip, _BOX.findall(last)))))
    answer = ", ".join(several) if several[-1:] == [answer.strip()] else answer.strip()
    if len(answer) > MAX_ANSWER_CHARS:
        return ParseError(f"the answer is longer than {MAX_ANSWER_CHARS} characters")
    return answer


def printed_answer(result: RunResult) -> str | None:
    """The last line that a program printed; None where it failed or printed nothing.

    Standard error is not looked at, so that no traceback or warning can become an answer.
    """
    # What a program printed before it failed is no answer.
    if result.status != "ok":
        return None
    # Earlier lines are the program's working-out.
    answer = result.stdout.strip().rpartition("\n")[2].strip()
    return answer if 0 < len(answer) <= MAX_ANSWER_CHARS else None


def failure(result: RunResult) -> str:
    """Reason why a program has no answer, in a line; empty where it has one."""
    if printed_answer(result) is not None:
        return ""
    if result.status == "ok":
        return "printed no answer"
    return result.failure[:SHOWN_CHARS]


def compact_prompt(
    role: str, question: str, earlier: Iterable[Message], now: Sequence[Message]
) -> str:
    """Prompt in few tokens, for the embedded model: role, problem, answers so far, programs.

    A reasoner sees programs, too. The embedded model has not been primed as a solver, which is
    therefore shown what a tool is shown.
    """
    lines = ["tool" if role == SOLVER else role, question]
    if before := _answers(earlier):
        lines.append(f"before: {before}")
    programs = [m for m in now if role == "reasoner" and role_of(m.agent) == "tool"]
    if others := _answers(m for m in now if m not in programs):
        lines.append(f"now: {others}")
    for message in programs:
        lines += [message.said.strip(), f"gives {_brief(message)}"]
    return "\n".join(lines)


def small_prompt(role: str, question: str, now: Sequence[Message]) -> str:
    """Prompt of one instruction, for small pretrained models: a formula of the tool, a number of the others."""
    if role == "tool":
        return f"{question} Write the sum:"
    heard = [f"{role_of(m.agent)} says {_brief(m)}." for m in now if m.answer is not None]
    return " ".join([question, *(f"The {text}" for text in heard), "Say the number:"])


def _answers(messages: Iterable[Message]) -> str:
    """Each author's answers in the order of their turns: `tool 12 7, reasoner 7`."""
    by_agent: dict[str, list[str]] = {}
    for message in messages:
        agent = message.agent.replace(SOLVER, "tool").removesuffix("_0")
        by_agent.setdefault(agent, []).append(_brief(message))
    return ", ".join(" ".join([name, *answers]) for name, answers in by_agent.items())


def _brief(message: Message) -> str:
    return "nothing" if message.answer is None else message.answer[:COMPACT_CHARS]


_TOOL = """You are the tool user of a team that solves a mathematics problem. Write a Python program that computes the \
answer and prints it, and nothing else, in its last line of output. It is run without input.
Think first if you like, then end your reply with exactly one fenced block:
```python
<your program>
```"""
_REASONER = """You are the reasoner of a team that solves a mathematics problem. Where you are shown a tool's program and its \
output, check whether it does what the problem asks: it may be wrong. Reason step by step, then end your reply with your \
answer as \\boxed{<answer>}."""
_JUDGE = """You are the judge of a team that solves a mathematics problem. You are shown the replies of its members, who may \
be wrong. Weigh them, check them where you can, and decide. End your reply with the team's answer as \\boxed{<answer>}."""
_SOLVER = """Solve the mathematics problem below. In each reply you may write a Python program in one fenced ```python block, \
which is run without input and whose output you are shown in the next turn; or give your answer as \\boxed{<answer>}; or do \
both. You are finished when your answer is what your program printed, or what you answered in the turn before."""
_RULES = {"tool": _TOOL, "reasoner": _REASONER, "judge": _JUDGE, SOLVER: _SOLVER}


def full_prompt(
    role: str, problem: MathProblem, earlier: Sequence[Message], now: Sequence[Message]
) -> str:
    """Prompt of rules, problem, and the messages that the reader sees, for real language models."""
    parts = [_RULES[role], f"Problem:\n{problem.question}"]
    if len(problem.answers) > 1:
        parts.append(f"It has {len(problem.answers)} answers; give all, with commas between them.")
    if earlier:
        parts.append("Earlier turns:")
        parts += [f"Turn {m.turn}, {m.agent}:\n{shown_message(m)}" for m in earlier]
    if now:
        parts.append("This turn:")
        parts += [f"{m.agent}:\n{shown_message(m)}" for m in now]
    return "\n\n".join(parts)


def shown_message(message: Message) -> str:
    """A reply and its result, for people and large models."""
    lines = [shortened(message.said, SHOWN_CHARS)]
    if message.failure:
        lines.append(f"The program gives no answer: {message.failure}")
    elif message.printed is not None:
        lines.append(f"The program prints: {message.printed}")
    if message.answer is not None and message.answer != message.printed:
        lines.append(f"Answer: {message.answer}")
    return "\n".join(lines)
