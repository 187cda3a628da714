from __future__ import annotations

import json

import huggingface_hub.constants
import pytest

from pettingllms.envs import coding_v0
from pettingllms.errors import DatasetError
from tests.datasets_fixtures import FOLDER, LCB, LCB_CALL, write


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """LiveCodeBench in a cache of the hub, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "datasets--livecodebench--code_generation_lite"
    write(folder / "snapshots" / "abc" / "test.jsonl", LCB)
    write(folder / "snapshots" / "abc" / "test2.jsonl", LCB_CALL)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")


def play(env, seed, program, test):
    env.reset(seed=seed)
    env.step(f"```python\n{program}\n```")
    env.step("```input\n{}\n```\n```output\n{}\n```".format(*test))
    return env


def test_a_published_set_is_played_by_name(cache):
    env = coding_v0.env(dataset="livecodebench", split="test")
    assert env.num_tasks == 2
    play(env, 0, "print(sum(map(int, input().split())))", ("2 2", "4"))
    assert env.infos["coder_0"]["success"]
    assert (
        env.infos["tester_0"]["local_reward"] == 0
    )  # without a solution no test is known to be right
    program = "class Solution:\n    def total(self, a, n):\n        return sum(a) + n"
    play(env, 1, program, ("[[1], 1]", "2"))
    assert env.infos["coder_0"]["success"]


def test_a_set_without_training_rows_cannot_be_trained_on(cache):
    with pytest.raises(DatasetError, match="livecodebench has no split 'train'; it has test"):
        coding_v0.env(dataset="livecodebench")


def test_a_folder_of_published_rows_is_played_with_its_solutions(tmp_path):
    (tmp_path / "test.jsonl").write_text((FOLDER / "mbpp.jsonl").read_text())
    env = coding_v0.env(dataset=tmp_path, split="test")
    play(env, 1, "def half(n):\n    return n / 2", ("[6]", "3.0"))
    assert env.infos["coder_0"]["success"]
    assert env.infos["tester_0"]["local_reward"] > 0


STDIN = {
    "3.0 for 3": ("print(3.0)", "3", True),
    "no tolerance": ("print(3.0000001)", "3.0", False),
    "words": ("print('Yes')", "YES", False),
    "blank lines around": ("print('\\n 5 \\n')", "5", True),
    "a line more": ("print('5\\n5')", "5", False),
    "an end of its own": ("import sys\nprint(5)\nsys.exit(1)", "5", True),
    "an error after the output": ("print(5)\n1 / 0", "5", False),
    "deep recursion": ("def f(n):\n    return n and 1 + f(n - 1)\nprint(f(5000))", "5000", True),
    "no imports": ("print(defaultdict(int)[3] + comb(4, 2) - 1, sys.stdin.read())", "5 6", True),
}
CALLED = {
    "3.0 for 3": ("n / 2", "3", True),
    "1 for true": ("1", "true", True),
    "a tuple for a list": ("(n, 1)", "[6, 1]", True),
    "almost": ("3.0000001", "3.0", False),
    "another order": ("[1, n]", "[6, 1]", False),
}


def test_livecodebench_is_judged_as_its_own_harness_judges(tmp_path):
    """One task for each rule, so that the verdicts are of one environment."""
    verdicts, lines = [], []
    for called, rules in ((False, STDIN), (True, CALLED)):
        for name, (_, output, _) in rules.items():
            test = {"input": "6", "output": output, "testtype": "functional" if called else "stdin"}
            row = LCB_CALL | {"metadata": '{"func_name": "f"}'} if called else LCB
            question = f"{name} {called}"
            tests = {"public_test_cases": json.dumps([test]), "private_test_cases": "[]"}
            lines.append(row | tests | {"question_content": question, "question_id": question})
    env = coding_v0.env(dataset=write(tmp_path / "a.jsonl", *lines), split="test", agents="single")
    solution = "class Solution:\n    def f(self, n: int) -> Any:\n        return {}"
    programs = [text for text, _, _ in STDIN.values()]
    programs += [solution.format(text) for text, _, _ in CALLED.values()]
    for number, program in enumerate(programs):
        env.reset(seed=number)
        env.step(f"```python\n{program}\n```")
        verdicts.append(env.infos["coder_0"]["success"])
    env.close()
    assert verdicts == [right for rules in (STDIN, CALLED) for _, _, right in rules.values()]
