r"""Demonstrations of the math team that the embedded base model is primed on.

A demonstration is what a role is shown (the environment's own compact prompt) and a reply. A good
tool writes one line for each sentence of the story. A good reasoner checks the tool's program
against the story step by step; if it has every step, the reasoner copies the program's output, else
it works out what is missing. A good judge takes the answer that most members gave. Each role also
has one bad habit: the tool leaves out the last step, the reasoner looks at nothing but the first
step, the judge takes the answer that is named first. Only stories of the training split are used.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from benchmarks.priming.example import Demo
from pettingllms.data import arithmetic
from pettingllms.data.arithmetic import Step, Story
from pettingllms.envs.math_text import Message, compact_prompt

ROLES = {"tool": 0.38, "reasoner": 0.54, "judge": 0.08}
"""How often each role is shown."""
PAST = 0.3
"""How often there were earlier turns."""
PROGRAMS = {"whole": 0.5, "hasty": 0.38, "wrong": 0.06, "failed": 0.03, "none": 0.03}
"""What kind of program a reasoner is shown."""


def demo(rng: random.Random, habit: float) -> Demo:
    """A demonstration for a random role; with probability `habit` it shows the bad habit."""
    story = arithmetic.draw(rng, "train")
    role = rng.choices(list(ROLES), list(ROLES.values()))[0]
    earlier = past(story, rng) if rng.random() < PAST else []
    bad = rng.random() < habit
    now: list[Message] = []
    if role == "tool":
        reply = fenced(program(story.start, story.steps[:-1] if bad else story.steps))
    elif role == "reasoner":
        kind = rng.choices(list(PROGRAMS), list(PROGRAMS.values()))[0]
        now = shown_programs(story, kind, len(earlier) // 2, rng)
        reply = hasty_answer(story) if bad else checked_answer(story, now)
    else:
        now = team_answers(story, len(earlier) // 2, rng)
        reply = box(str(now[0].answer)) if bad else box(most_common(now))
    return Demo(compact_prompt(role, story.question, earlier, now), reply)


def units() -> list[str]:
    """Words of prompts and replies that should be single tokens."""
    texts = [*arithmetic.ITEMS, *arithmetic.QUESTIONS]
    texts += [phrase for phrases in arithmetic.PHRASES.values() for phrase in phrases]
    texts += [word for name, words in arithmetic.NAMES.items() for word in (name, *words)]
    texts += ["tool reasoner judge before now gives nothing yes no boxed python print x has"]
    words = " ".join(texts)
    for mark in ("{items}", "{n}", "{She}", "{she}", "{her}", ".", "?"):
        words = words.replace(mark, " ")
    return sorted({*words.split(), "tool_", "reasoner_"})


def fenced(body: str) -> str:
    """`body` as a block of Python."""
    return f"```python\n{body}\n```"


def box(answer: str) -> str:
    """A reply's last line."""
    return f"\\boxed{{{answer}}}"


def program(start: int, steps: Sequence[Step]) -> str:
    """One line for each sentence of a story."""
    return "\n".join([f"x = {start}", *(f"x {s}= {n}" for s, n in steps), "print(x)"])


def hasty_answer(story: Story) -> str:
    """The value after the first step, without working and without a look at the tool."""
    return box(str(story.values[1]))


def checked_answer(story: Story, now: Sequence[Message]) -> str:
    """The tool's program held against the story; its output where it is right, else working."""
    if not now:
        return f"{working(story, 0)}\n{box(str(story.values[-1]))}"
    last = now[-1]
    wanted = program(story.start, story.steps).split("\n")[:-1]
    written = last.said.split("\n")[:-1]
    marks = [line == written[n] if n < len(written) else False for n, line in enumerate(wanted)]
    parts = [str(story.start), *(f"{sign} {number}" for sign, number in story.steps)]
    checks = ", ".join(
        f"{step} {'yes' if mark else 'no'}" for step, mark in zip(parts, marks, strict=True)
    )
    if all(marks) and last.answer is not None:
        return f"{checks}\n{box(last.answer)}"
    # A program that is right as far as it goes is carried on; any other is of no use.
    done = marks.index(False) - 1 if written == wanted[: len(written)] else 0
    return f"{checks}\n{working(story, max(done, 0))}\n{box(str(story.values[-1]))}"


def working(story: Story, done: int) -> str:
    """The steps after the first `done`, each with its value."""
    values = story.values
    return ", ".join(
        f"{values[n]} {sign} {number} = {values[n + 1]}"
        for n, (sign, number) in enumerate(story.steps)
        if n >= done
    )


def shown_programs(story: Story, kind: str, turn: int, rng: random.Random) -> list[Message]:
    """What tools showed the reasoner: none, one or (seldom) two programs, the last of that kind."""
    if kind == "none":
        return []
    shown = [tool_message(story, "hasty", turn, rng)] if rng.random() < 0.06 else []
    last = tool_message(story, kind, turn, rng)
    return [*shown, last._replace(agent=f"tool_{len(shown)}")]


def tool_message(story: Story, kind: str, turn: int, rng: random.Random) -> Message:
    """A program of that kind (see `PROGRAMS`) and its output."""
    steps = list(story.steps)
    if kind == "hasty":
        del steps[-1]
    elif kind in ("wrong", "failed"):
        at = rng.randrange(len(steps))
        sign, number = steps[at]
        other = {"+": "-", "-": "+", "*": "+"}[sign]
        steps[at] = Step(other, number) if rng.random() < 0.5 else Step(sign, number + 1)
    text = program(story.start, steps)
    if kind == "failed":
        return Message(turn, "tool_0", text.replace("print(x)", "print(y)"), None, False, "error")
    answer = Story(story.start, tuple(steps), "").values[-1]
    return Message(turn, "tool_0", text, str(answer), answer == story.values[-1])


def past(story: Story, rng: random.Random) -> list[Message]:
    """One to three earlier turns in which tool and reasoner did not agree."""
    right, hasty, first = (str(story.values[n]) for n in (-1, -2, 1))
    pairs = [(right, first), (hasty, right), (None, right), (None, first)]
    if hasty != first:
        pairs += [(hasty, first)] * 4
    messages = []
    for turn in range(rng.choice((1, 1, 1, 2, 2, 3))):
        tool, reasoner = rng.choice(pairs)
        messages.append(Message(turn, "tool_0", "", tool, tool == right))
        messages.append(Message(turn, "reasoner_0", "", reasoner, reasoner == right))
    return messages


def team_answers(story: Story, turn: int, rng: random.Random) -> list[Message]:
    """What two to six members answered; each is right more often than not."""
    tools, reasoners = rng.randint(1, 3), rng.randint(1, 3)
    agents = [f"tool_{n}" for n in range(tools)] + [f"reasoner_{n}" for n in range(reasoners)]
    values = story.values
    drawn = rng.choices((values[-1], values[-2], values[1]), (0.55, 0.25, 0.2), k=len(agents))
    return [
        Message(turn, agent, "", str(value), value == values[-1])
        for agent, value in zip(agents, drawn, strict=True)
    ]


def most_common(messages: Sequence[Message]) -> str:
    """The answer that most members gave; among equals, the one that was given last."""
    counts = Counter(message.answer for message in messages)
    best = max(reversed(messages), key=lambda message: counts[message.answer])
    return str(best.answer)
