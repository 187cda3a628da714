"""Problems of other lengths, and the demonstrations that show only their parts."""

from __future__ import annotations

import random

import pytest

from benchmarks.priming import coding_parts, plan_path_parts
from pettingllms.data import coding
from pettingllms.data.splits import SPLITS
from pettingllms.envs import coding_judge, coding_v0
from pettingllms.envs.coding_text import parse_program, parse_tests
from pettingllms.envs.parsing import ParseError
from pettingllms.errors import ConfigError
from pettingllms.sandbox import Case, open_sandbox

FAMILIES = [family.name for family in coding.FAMILIES]
lengths = pytest.mark.parametrize("steps", [1, 2, 4, 5])


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


@pytest.mark.parametrize("family", FAMILIES)
@lengths
def test_a_chain_computes_what_its_program_computes(family, steps, sandbox):
    rng = random.Random(f"{family} {steps}")
    for function in (True, False):
        chain = coding.draw(rng, family, steps, "train")
        task = coding.from_composition(chain, rng, function=function, id="task")
        forms = {
            chain.program(function=function, short=short, long=long)
            for short in (True, False)
            for long in (True, False)
        }
        for results in coding_judge.run_tests(task, sorted(forms), sandbox.run):
            for test, result in zip(task.tests, results, strict=True):
                assert coding_judge.passes(test, result, task.function), (chain.name, test, result)


@pytest.mark.parametrize("steps", [2, 4, 6])
@pytest.mark.parametrize("split", SPLITS)
def test_a_generated_task_has_the_steps_and_the_split_that_were_asked_for(split, steps):
    for seed in range(20):
        task = coding.generate(seed, split, (steps, steps))
        assert task == coding.generate(seed, split, (steps, steps))
        assert task.mutants
        assert task.reference not in task.mutants
    rng = random.Random(0)
    for family in FAMILIES:
        chain = coding.draw(rng, family, steps, split)
        assert (len(chain.links), chain.split) == (steps, split)


@pytest.mark.parametrize("steps", [(1, 3), (3, 7), (4, 3), (3,)])
def test_numbers_of_steps_that_no_problem_has_are_refused(steps):
    with pytest.raises(ConfigError, match=r"steps must be two numbers 2 <= a <= b <= 6, got \("):
        coding_v0.env(steps=steps)


def test_the_environment_plays_problems_of_the_steps_that_it_is_given():
    env = coding_v0.env(split="test", prompt="compact", steps=(5, 6))
    env.reset(seed=3)
    assert coding.generate(3, "test", (5, 6)).question in env.observe("coder_0")["text"]


@pytest.fixture(scope="module")
def shown():
    rng = random.Random("parts")
    return [coding_parts.demo(rng) for _ in range(600)]


@pytest.mark.slow
def test_no_demonstration_of_parts_has_a_problem_of_three_steps(shown):
    longer = {
        coding.generate(seed, split).question.rstrip(".")
        for split in SPLITS
        for seed in range(3000)
    }
    assert not longer & {demo.prompt.split("\n")[1].rstrip(".") for demo in shown}
    for demo in shown:
        program = parse_program(demo.reply)
        if not isinstance(program, ParseError):
            # Reading, at most two steps, the result; a number may get a name.
            lines = [line for line in program.split("\n") if line.strip() != "x = a"]
            assert len(lines) <= 4


def test_demonstrations_of_parts_are_right(shown, sandbox):
    for demo in shown[:150]:
        role, question = demo.prompt.split("\n")[:2]
        function = "solve" if "Write solve(a" in question else None
        if role == "coder":
            assert not isinstance(parse_program(demo.reply), ParseError)
            continue
        tests = parse_tests(demo.reply, function)
        assert not isinstance(tests, ParseError)
        assert len(tests) == 1


def test_workings_of_parts_end_in_what_the_chain_computes(sandbox):
    rng = random.Random(5)
    for _ in range(40):
        chain = coding_parts.draw(rng)
        values = coding.random_values(rng, chain.family, 4)
        text = coding.input_text(chain.family, values, function=False)
        ((result,),) = sandbox.run([chain.program(function=False)], [Case(stdin=text)])
        output = coding.output_text(chain.run(values), function=False)
        assert result.stdout.split() == output.split()
        words = coding_parts.working(chain, values, short=False).split()
        if chain.arithmetic:
            assert words[-1] == output


@pytest.mark.slow
def test_the_planner_is_shown_nothing_about_the_proposal():
    rng = random.Random(2)
    demos = [plan_path_parts.demo(rng) for _ in range(6000)]
    planner = [demo for demo in demos if demo.prompt.startswith("path planner")]
    followed = sum(
        demo.reply.split()[1] == demo.prompt.split("proposal [ ")[1][0] for demo in planner
    )
    # Of the two to four moves that stay on the board, one: as often as chance has it.
    assert 0.25 < followed / len(planner) < 0.33


def test_the_tool_is_shown_straight_ways_only():
    rng = random.Random(4)
    for _ in range(300):
        prompt = plan_path_parts.demo(rng).prompt.split()
        if prompt[1] == "tool":
            at, goal = prompt[4], prompt[6]
            assert at[0] == goal[0] or at[1:] == goal[1:]


def test_tasks_are_about_the_chosen_families():
    env = coding_v0.env(split="val", families=["words"])
    for seed in range(20):
        env.reset(seed=seed)
        assert "words" in env.observe("coder_0")["text"]
    every = [coding.generate(seed, "val") for seed in range(50)]
    chosen = [
        coding.generate(seed, "val", (3, 3), ("numbers", "words", "arithmetic"))
        for seed in range(50)
    ]
    assert chosen == every


@pytest.mark.parametrize(
    ("families", "why"),
    [
        (["number"], "did you mean 'numbers'"),
        ([], "one or more of numbers, words, arithmetic"),
        ("numbers", "must be a list"),
        (3, "must be a list"),
    ],
)
def test_families_that_no_task_is_about_are_refused(families, why):
    with pytest.raises(ConfigError, match=why):
        coding_v0.env(families=families)
