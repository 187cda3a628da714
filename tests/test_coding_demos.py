from __future__ import annotations

import random

import pytest

from benchmarks.priming import coding as demos
from pettingllms.data import coding
from pettingllms.envs import coding_judge, coding_v0
from pettingllms.envs.coding_text import compact_prompt, parse_program, parse_tests
from pettingllms.envs.parsing import ParseError
from pettingllms.sandbox import Case, open_sandbox

TRAINING = coding.COMPOSITIONS["train"]
PROGRAMS = {
    composition.program(function=function): (composition, function)
    for composition in TRAINING
    for function in (True, False)
}
forms = pytest.mark.parametrize("function", [True, False], ids=["function", "stdin"])


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def drawn():
    """Demonstrations without and with the bad habits, by role."""

    def draw(habit):
        rng = random.Random(f"demos {habit}")
        sampled = [demos.demo(rng, habit) for _ in range(600)]
        return {
            role: [d for d in sampled if d.prompt.startswith(f"{role}\n")]
            for role in ("coder", "tester")
        }

    return {"good": draw(0.0), "bad": draw(1.0)}


def outputs(sandbox, program, tests, function):
    cases = [
        Case(function="solve", args=t.input) if function else Case(stdin=t.input) for t in tests
    ]
    ((*results,),) = sandbox.run([program], cases)
    return [
        coding_judge.passes(test, result, "solve" if function else None)
        for test, result in zip(tests, results, strict=True)
    ]


def is_call(prompt):
    return "solve(a" in prompt.split("\n")[1]


@pytest.mark.parametrize("kind", ["good", "bad"])
def test_every_demonstration_is_of_a_role_and_can_be_parsed(drawn, kind):
    assert sum(map(len, drawn[kind].values())) == 600
    assert all(len(of_role) > 100 for of_role in drawn[kind].values())
    assert all(isinstance(parse_program(demo.reply), str) for demo in drawn[kind]["coder"])
    for demo in drawn[kind]["tester"]:
        function = "solve" if is_call(demo.prompt) else None
        assert not isinstance(parse_tests(demo.reply, function), ParseError)


def test_a_good_coder_writes_the_reference_of_a_training_composition(drawn):
    for demo in drawn["good"]["coder"]:
        assert parse_program(demo.reply) in PROGRAMS


def test_a_hasty_coder_never_does(drawn):
    for demo in drawn["bad"]["coder"]:
        assert parse_program(demo.reply) not in PROGRAMS


@forms
def test_a_hasty_program_runs_and_is_wrong(function, sandbox):
    wrong = 0
    for composition in TRAINING[::25]:
        task = coding.from_composition(composition, random.Random(1), function=function, id="x")
        hasty = demos.hasty_program(composition, function=function)
        compile(hasty, "hasty", "exec")
        wrong += not all(outputs(sandbox, hasty, task.tests, function))
    assert wrong >= 0.8 * len(TRAINING[::25])


@forms
def test_worked_tests_are_valid_and_guessed_ones_often_not(function, sandbox):
    valid = {demos.worked_test: 0, demos.guessed_test: 0}
    chosen = TRAINING[::20]
    for composition in chosen:
        for write in valid:
            reply = write(composition, random.Random(composition.name), function=function)
            tests = parse_tests(reply, "solve" if function else None)
            assert not isinstance(tests, ParseError)
            program = composition.program(function=function)
            valid[write] += all(outputs(sandbox, program, tests, function))
    assert valid[demos.worked_test] == len(chosen)
    assert valid[demos.guessed_test] < 0.5 * len(chosen)


def test_the_working_ends_with_the_result():
    for composition in TRAINING[::7]:
        reply = demos.worked_test(composition, random.Random(3), function=False)
        working, _, blocks = reply.partition("\n```input")
        tests = parse_tests("```input" + blocks, None)
        assert not isinstance(tests, ParseError)
        assert working.endswith(tests[0].output)
        assert all(value in working for value in tests[0].input.split())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["good", "bad"])
def test_no_question_of_the_other_splits_is_demonstrated(drawn, kind):
    held_out = {
        coding.generate(seed, split).question for split in ("val", "test") for seed in range(1500)
    }
    shown = {demo.prompt.split("\n")[1] for of_role in drawn[kind].values() for demo in of_role}
    assert len(shown) > 300
    assert not shown & held_out


def test_only_training_compositions_are_drawn():
    sampler, rng = demos.Sampler(), random.Random(0)
    drawn = [sampler.draw(rng) for _ in range(3000)]
    assert {composition.split for composition in drawn} == {"train"}
    rare = sum(map(demos.is_rare, drawn)) / len(drawn)
    plain = sum(map(demos.is_rare, TRAINING)) / len(TRAINING)
    assert 0 < rare < 0.5 * plain
    assert {part.name for c in TRAINING for part in c.parts} >= demos.RARE


def test_prompts_are_those_of_the_environment(drawn, sandbox):
    env = coding_v0.env(prompt="compact", sandbox=sandbox)
    env.reset(seed=4)
    question = coding.generate(4, "train").question
    for role in ("coder", "tester"):
        assert env.observe(f"{role}_0")["text"] == compact_prompt(role, question, ())
    # After a turn, the environment's lines begin like those of a demonstration with a past.
    env.step("```python\nprint(1)\n```")
    env.step("```input\n[[1, 2]]\n```\n```output\n9\n```\n```input\n1\n```\n```output\n9\n```")
    later = {line.split()[0] for line in env.observe("coder_0")["text"].split("\n")[2:]}
    past = [
        d.prompt for of_role in drawn["good"].values() for d in of_role if "\ntried" in d.prompt
    ]
    assert len(past) > 50
    words = {line.split()[0] for prompt in past for line in prompt.split("\n")[2:] if line}
    assert later - {"print(1)"} == {"tried", "test"} <= words


def test_demonstrations_follow_from_the_seed():
    def draw(seed):
        rng = random.Random(seed)
        return [demos.demo(rng, 0.5) for _ in range(20)]

    assert draw(1) == draw(1) != draw(2)
