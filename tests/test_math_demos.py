"""Demonstrations of the math team are what they claim: good ones right, bad ones wrong."""

from __future__ import annotations

import random
import re

import pytest

from benchmarks.priming import math as math_demos
from benchmarks.priming.prime import UNITS
from pettingllms.data import arithmetic
from pettingllms.envs import math_v0
from pettingllms.envs.math_text import Message, Reply, compact_prompt, parse_reply
from tests.test_arithmetic import solved

ROLES = ("tool", "reasoner", "judge")


@pytest.fixture(scope="module")
def drawn():
    """Demonstrations without and with the bad habits, by role."""

    def draw(habit):
        rng = random.Random(f"math demos {habit}")
        sampled = [math_demos.demo(rng, habit) for _ in range(1500)]
        return {role: [d for d in sampled if d.prompt.startswith(f"{role}\n")] for role in ROLES}

    return {"good": draw(0.0), "bad": draw(1.0)}


def question(demo):
    return demo.prompt.split("\n")[1]


def printed(program):
    """What a demonstrated program prints; None where it fails."""
    if not program.endswith("print(x)"):
        return None
    value = 0
    for line in program.split("\n")[:-1]:
        ((sign, number),) = re.findall(r"^x ([+*-]?)= (\d+)$", line)
        value = {
            "": int(number),
            "+": value + int(number),
            "-": value - int(number),
            "*": value * int(number),
        }[sign]
    return value


def answer(role, demo):
    reply = parse_reply(role, demo.reply)
    assert isinstance(reply, Reply)
    return printed(reply.program) if role == "tool" else int(reply.answer or "")


@pytest.mark.parametrize("kind", ["good", "bad"])
def test_every_demonstration_is_of_a_role_and_can_be_read(drawn, kind):
    assert sum(map(len, drawn[kind].values())) == 1500
    for role, of_role in drawn[kind].items():
        assert len(of_role) > 70
        assert all(answer(role, demo) is not None for demo in of_role)


@pytest.mark.parametrize("role", ["tool", "reasoner"])
def test_good_replies_are_right_and_bad_ones_wrong(drawn, role):
    assert all(answer(role, demo) == solved(question(demo)) for demo in drawn["good"][role])
    assert not any(answer(role, demo) == solved(question(demo)) for demo in drawn["bad"][role])


def test_what_most_members_say_is_right_more_often_than_what_the_first_says():
    rng, most, first = random.Random(3), 0, 0
    for _ in range(2000):
        story = arithmetic.draw(rng, "train")
        messages = math_demos.team_answers(story, 0, rng)
        right = str(story.values[-1])
        most += math_demos.most_common(messages) == right
        first += messages[0].answer == right
    assert most > first + 40


def test_a_good_reasoner_follows_the_tool_exactly_where_it_is_whole(drawn):
    followed = declined = 0
    for demo in drawn["good"]["reasoner"]:
        shown = re.search(r"\ngives (\S+)$", demo.prompt)
        if not shown:
            continue
        checks = demo.reply.split("\n")[0]
        assert checks.count("yes") + checks.count("no") == len(re.findall(r"\d+", question(demo)))
        program = demo.prompt[: shown.start()].rpartition("x = ")[2]
        whole = f"{checks.replace(' yes', '').replace(',', '')} "
        steps = "x = " + whole.strip()
        expected = re.sub(r" ([+*-]) (\d+)", r"\nx \1= \2", steps) + "\nprint(x)"
        if "no" not in checks:
            assert f"x = {program}" == expected
            assert demo.reply.endswith(f"\\boxed{{{shown[1]}}}")
            followed += 1
        else:
            assert " = " in demo.reply
            declined += 1
    assert followed > 200
    assert declined > 200


def test_the_working_is_true(drawn):
    for demo in drawn["good"]["reasoner"]:
        for left, sign, right, value in re.findall(r"(-?\d+) ([+*-]) (\d+) = (-?\d+)", demo.reply):
            a, b = int(left), int(right)
            assert {"+": a + b, "-": a - b, "*": a * b}[sign] == int(value)


@pytest.mark.parametrize("kind", ["good", "bad"])
def test_no_problem_of_the_other_splits_is_demonstrated(drawn, kind):
    for of_role in drawn[kind].values():
        for demo in of_role:
            words = question(demo)
            numbers = list(map(int, re.findall(r"\d+", words)))
            signs = [
                "*" if "times" in s else "-" if re.search("loses|sells|away|takes", s) else "+"
                for s in re.split(r"(?<=[.?]) ", words)[1:-1]
            ]
            steps = tuple(arithmetic.Step(s, n) for s, n in zip(signs, numbers[1:], strict=True))
            assert arithmetic.Story(numbers[0], steps, "").split == "train"


def test_prompts_are_those_of_the_environment():
    env = math_v0.env(prompt="compact")
    rng = random.Random(0)
    for seed in range(20):
        env.reset(seed=seed)
        story = arithmetic.generate(seed, "train")
        earlier: list[Message] = []
        for turn in range(2):
            assert env.observe("tool_0")["text"] == compact_prompt(
                "tool", story.question, earlier, []
            )
            message = math_demos.tool_message(story, rng.choice(("hasty", "failed")), turn, rng)
            env.step(math_demos.fenced(message.said))
            assert env.observe("reasoner_0")["text"] == compact_prompt(
                "reasoner", story.question, earlier, [message]
            )
            env.step("\\boxed{999}")
            earlier += [message, Message(turn, "reasoner_0", "", "999", False)]


def test_demonstrations_are_short_and_of_few_words(drawn):
    words = set()
    for of_role in (*drawn["good"].values(), *drawn["bad"].values()):
        for demo in of_role:
            prompt, reply = (re.findall(UNITS, text) for text in demo)
            assert len(prompt) < 90
            assert len(reply) < 45
            words |= {unit.strip() for unit in (*prompt, *reply)}
    spelled = {word for word in words if re.fullmatch("[A-Za-z_]+", word)}
    assert spelled - {*math_demos.units()} <= {"y"}
    assert all(-100 <= int(word) < 200 for word in words if re.fullmatch(r"-?\d+", word))


def test_demonstrations_follow_from_the_seed():
    def draw(seed):
        rng = random.Random(seed)
        return [math_demos.demo(rng, 0.5) for _ in range(20)]

    assert draw(1) == draw(1) != draw(2)
