"""CURE: the matrix, what it pays, and that each different pair is run once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pettingllms as pl
from pettingllms.assembly import plan_run
from pettingllms.envs import coding_v0
from pettingllms.errors import ConfigError, SandboxUnavailable
from pettingllms.methods.cure import program_reward, rewards_of_tests
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.sandbox import Sandbox, open_sandbox
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.method import Method
from pettingllms.types import Group, Task
from tests.test_coding_v0 import a_row, checks, code
from tests.test_estimators_golden import cases, decision

torch.set_num_threads(1)
RIGHT, LIKE, WRONG, ENDLESS = (
    "print(abs(int(input())))",
    "print(max(n := int(input()), -n))",
    "print(int(input()))",
    "input()\nwhile True:\n    pass",
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


def made(tmp_path: Path, sandbox: Any, **changes: Any) -> Any:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(a_row(**changes)))
    return coding_v0.env(dataset=file, sandbox=sandbox, max_turns=1)


def replies(agent: str, texts: Sequence[str], infos: Sequence[Any], parent: int) -> Group:
    group = decision(*[0.5] * len(texts), agent=agent, parent=parent)
    candidates = tuple(
        replace(c, completion=replace(c.completion, text=text), info=info)
        for c, text, info in zip(group.candidates, texts, infos, strict=True)
    )
    return replace(group, candidates=candidates)


def paid(env: Any, programs: Sequence[str], tests: Sequence[str]) -> list[list[float]]:
    """What the programs and the tests of one turn earn, as they are played."""
    infos: list[list[Any]] = []
    for agent, texts in (("coder_0", programs), ("tester_0", tests)):
        env.reset(seed=0)
        if agent == "tester_0":
            env.step("nothing")
        infos.append([branch_info(env, agent, text) for text in texts])
    groups = [
        replies("coder", programs, infos[0], 0),
        replies("tester", tests, infos[1], 1),
    ]
    played = Trajectory.of(Task("q", 0), 0, groups, early={}, cooperative=True)
    method = Method.of(resolve(ATGRPOConfig(method="cure")))
    method.attach(env, None)
    (credited,) = method.credit([played])
    return [[c.reward for c in group.candidates] for group in credited.groups]


def branch_info(env: Any, agent: str, text: str) -> Any:
    twin = env.clone()
    twin.step(text)
    return dict(twin.infos[agent])


@pytest.mark.parametrize("name", list(cases("cure")))
def test_programs_and_tests_earn_what_the_table_says(name: str) -> None:
    case = cases("cure")[name]
    hidden, passes = case["inputs"]["true tests"], case["inputs"]["generated tests"]
    expected = case["expected"]
    right = [program_reward(row) == 1 for row in hidden]
    assert right == expected["right"]
    estimator = Method.of(resolve(ATGRPOConfig(method="cure")))
    sides = {
        "code": [program_reward(row) for row in hidden],
        "test": rewards_of_tests(passes, right),
    }
    for side, rewards in sides.items():
        if expected[f"{side}_reward"] is None or rewards is None:
            assert rewards is expected[f"{side}_reward"]
            continue
        assert rewards == pytest.approx(expected[f"{side}_reward"], abs=1e-6)
        if len(rewards) > 1:
            advantages = estimator.advantages([decision(*rewards)])
            assert advantages == pytest.approx(expected[f"{side}_advantage"], abs=1e-6)


def test_programs_and_tests_really_judge_each_other(tmp_path: Path, sandbox: Sandbox) -> None:
    env = made(tmp_path, sandbox)
    programs = [code(RIGHT), code(LIKE), code(WRONG), "no program"]
    tests = [
        checks(("-5", "5")),  # tells the wrong one
        checks(("7", "7")),  # passed by all
        checks(("-5", "-5")),  # wrong, and the wrong program passes it
        checks(("-5", "5"), ("7", "7")),
        "no test",
    ]
    earned = paid(env, programs, tests)
    assert earned[0] == [1.0, 1.0, 0.5, 0.0]
    assert earned[1] == [1.0, 0.0, -1.0, 0.5, -1.0]


def test_a_program_that_does_not_end_fails_and_spoils_no_other_pair(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    env = made(tmp_path, sandbox)
    env.reset(seed=0)
    matrix = env.cross([code(ENDLESS), code(RIGHT)], [checks(("7", "7")), checks(("-1", "1"))])
    assert matrix.passes == {0: (False, False), 1: (True, True)}
    assert matrix.tests == {0: (0,), 1: (1,)}


class Counting:
    """A sandbox that notes the pairs that it is asked to run."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.pairs = sandbox, list[tuple[str, str]]()

    def run(self, programs: Sequence[str], cases: Sequence[Any], **options: Any) -> Any:
        self.pairs += [(program, case.stdin) for program in programs for case in cases]
        return self.sandbox.run(programs, cases, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sandbox, name)


def test_every_different_pair_is_run_once(tmp_path: Path, sandbox: Sandbox) -> None:
    # Imports are run one by one, not in a shared process.
    programs = [f"import sys\n{text}" for text in (RIGHT, WRONG)]
    counting = Counting(sandbox)
    env = made(tmp_path, counting)
    env.reset(seed=0)
    counting.pairs.clear()
    written = [code(programs[n % 2]) for n in range(6)]
    asked = [checks(("7", "7")), checks(("-1", "1")), checks(("7", "7"), ("7", "8"))] * 2
    matrix = env.cross(written, asked)
    assert sorted(counting.pairs) == sorted((p, i) for p in programs for i in ("7", "-1"))
    assert matrix.passes[0] == (True, True, False)
    assert matrix.passes[1] == (True, False, False)
    assert matrix.tests[2] == matrix.tests[5] == (0, 2)


def test_without_a_right_program_no_test_earns_anything(tmp_path: Path, sandbox: Sandbox) -> None:
    env = made(tmp_path, sandbox)
    earned = paid(env, [code(WRONG), "none"], [checks(("-5", "5")), checks(("1", "2")), "none"])
    assert earned == [[0.5, 0.0], [0.0, 0.0, -1.0]]


def test_a_failing_sandbox_is_no_verdict(tmp_path: Path, sandbox: Sandbox) -> None:
    class Failing(Counting):
        def run(self, programs: Sequence[str], cases: Sequence[Any], **options: Any) -> Any:
            raise SandboxUnavailable("gone")

    env = made(tmp_path, sandbox)
    env.reset(seed=0)
    env.sandbox = Failing(sandbox)
    with pytest.raises(SandboxUnavailable, match="gone"):
        env.cross([code(RIGHT), code(WRONG)], [checks(("1", "1"))])


def test_judging_leaves_the_environment_as_it_was(tmp_path: Path, sandbox: Sandbox) -> None:
    env = made(tmp_path, sandbox)
    env.reset(seed=0)
    before = env.snapshot()
    paid(env, [code(RIGHT), code(WRONG)], [checks(("-5", "5"))])
    env.restore(before)
    env.cross([code(WRONG)], [checks(("1", "1"))])
    assert env.snapshot() == before


def test_an_environment_without_programs_and_tests_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="programs and tests that judge each other"):
        plan_run(ATGRPOConfig(env="math", method="cure"))
    alone = ATGRPOConfig(env="coding", env_args={"agents": "single"}, method="cure")
    with pytest.raises(ConfigError, match="coding with a team does"):
        plan_run(alone)


@pytest.mark.slow
def test_a_coder_and_a_tester_are_trained_by_each_other(tmp_path: Path) -> None:
    summary = pl.train(
        env="coding",
        method="cure",
        policies="per-role",
        num_generations=4,
        tasks_per_step=2,
        max_steps=1,
        eval_tasks=0,
        eval_steps=0,
        output_dir=str(tmp_path / "run"),
    )
    lines = (summary.folder / "trajectories.jsonl").read_text().splitlines()
    credited = [
        candidate.get("credited", candidate["reward"])
        for line in lines
        for made_by in json.loads(line)["decisions"]
        if made_by["agent"] == "tester_0"
        for candidate in made_by["candidates"]
    ]
    assert min(credited) >= -1
    assert max(credited) <= 1
