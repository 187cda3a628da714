"""What text that never looks at the problem reaches in coding and math, beside the embedded base.

The base: `pettingllms-eval --env coding --limit 100` and `--env math --limit 500` (test split, sampled), the
mean over games of the success and of the sum of all rewards. An episode's return holds the last scores
only, so that a team that repeats its constants has the same return in one turn as in four.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

from pettingllms.data import arithmetic
from pettingllms.envs import coding_v0, math_v0
from pettingllms.sandbox import open_sandbox


class Level(NamedTuple):
    """Success and mean return of a team."""

    success: float
    reward: float


BASE = {"coding": Level(0.37, 1.20), "math": Level(0.040, 0.148)}
ERROR = Level(0.017, 0.052)
"""Half of the 95 % interval of the base in math."""


def code(program):
    return f"```python\n{program}\n```"


def checks(*pairs):
    return "".join(f"```input\n{a}\n```\n```output\n{b}\n```\n" for a, b in pairs)


READS = """
try:
    words = input().split()
except EOFError:
    words = []
"""
CODERS = {
    "echo": code(f"def solve(a, *b):\n    return a\n{READS}\nprint(*words)"),
    "always 0": code("def solve(*a):\n    return 0\nprint(0)"),
    # The composition of each family that most training problems agree with, chosen by the type of the input.
    "the most frequent": code(f"""def solve(a, b=None):
    if b is not None:
        return max(a, b) - 1
    return sum('e' in x if isinstance(x, str) else x > 4 for x in a)
{READS}
try:
    words = list(map(int, words))
except ValueError:
    pass
print(solve(*words) if len(words) == 2 else solve(words))"""),
}
TESTERS = {
    "no values": checks((" ", "0")),
    "no values in a list": checks(("[[]]", "0")),
    "a list that is a word": checks(("[[]]", "0"), ("[[0]]", "0")),
    "small": checks(("1 2", "0"), ("0 0", "0")),
    "zeros": checks(("0", "0"), ("0 0", "0"), ("0 0 0", "0")),
    "one of each": checks(("1 2 3", "6"), ("1 2 3", "3"), ("1 2 3", "1")),
}


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("embedded", workers=1) as opened:
        yield opened


def blind(env, replies, episodes, before=None):
    """What constant replies reach, each played on every task by who is first, or next to `before`."""
    won: Counter[str] = Counter()
    earned: Counter[str] = Counter()
    for seed in range(episodes):
        env.reset(seed=seed)
        if before is not None:
            env.step(before)
        agent = env.agent_selection
        for name, twin in zip(replies, env.branch([*replies.values()]), strict=True):
            won[name] += twin.infos[agent]["success"]
            earned[name] += twin.rewards[agent]
    return {name: Level(won[name] / episodes, earned[name] / episodes) for name in replies}


def test_constant_programs_solve_nothing_and_earn_little(sandbox):
    env = coding_v0.env(sandbox=sandbox, split="test")
    levels = blind(env, CODERS, 40)
    assert max(level.success for level in levels.values()) <= 0.1 * BASE["coding"].success
    assert max(level.reward for level in levels.values()) <= 0.1 * BASE["coding"].reward


def test_constant_tests_earn_nothing(sandbox):
    env = coding_v0.env(sandbox=sandbox, split="test")
    assert (
        max(level.reward for level in blind(env, TESTERS, 20, before="no program").values()) <= 0.05
    )


@pytest.mark.slow
def test_a_constant_number_is_not_clearly_above_the_base_in_math(sandbox):
    def answers(split):
        problems = [
            arithmetic.problem(seed, split, depth=arithmetic.DEPTH, largest=arithmetic.LARGEST)
            for seed in range(3000)
        ]
        return Counter(problem.answers[0] for problem in problems)

    constant = answers("train").most_common(1)[0][0]
    share = answers("test")[constant] / 3000
    # Few numbers are answers, and the base was primed to be mostly wrong: it is hardly above a constant.
    assert share <= 0.055
    assert share <= BASE["math"].success + ERROR.success
    assert 3 * share <= BASE["math"].reward + ERROR.reward
    env = math_v0.env(sandbox=sandbox)
    earned = []
    for seed in range(20):
        env.reset(seed=seed)
        right = constant in env._state.problem.answers
        env.step(code(f"print({constant})"))
        first = env.rewards["tool_0"]
        env.step(rf"\boxed{{{constant}}}")
        assert all(env.terminations.values())
        earned.append(first + env.rewards["reasoner_0"])
        assert earned[-1] == 3.0 * right
