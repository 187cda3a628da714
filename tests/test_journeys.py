"""Data passes few files on its way, so that a reader who follows it has few to open.

The files are those whose functions really run, in this process. The bounds may shrink and not grow: where
a change needs one more file on a way, another file on it should go.
"""

from __future__ import annotations

import ast
import contextlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pettingllms
from pettingllms.data.coding_schemas import load_tasks
from pettingllms.envs import coding_v0
from pettingllms.rollout.episode import Episode, score
from pettingllms.types import Completion, Task

PACKAGE = Path(pettingllms.__file__).parent
PROGRAM = "```python\nprint(int(input()) * 2)\n```"
ROW = {
    "question": "Read a number and print its double.",
    "tests": [{"input": "4", "output": "8"}, {"input": "5", "output": "10"}],
    "reference": "print(int(input()) * 2)",
}


def files_entered(journey: Callable[[], object]) -> list[str]:
    """The package's files of which `journey` runs a function, in the order of their first use."""
    entered: dict[str, None] = {}

    def note(frame: FrameType, event: str, arg: Any) -> None:
        # Not the module's own level: a first import is no station of the data.
        if event == "call" and frame.f_code.co_name != "<module>":
            entered.setdefault(frame.f_code.co_filename)

    # On a thread of its own, as in training: for the main thread a sandbox works on one that is there
    # already, whose files would not be seen.
    threading.setprofile(note)
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(journey).result()
    finally:
        threading.setprofile(None)
    paths = [Path(name) for name in entered]
    return [path.relative_to(PACKAGE).as_posix() for path in paths if PACKAGE in path.parents]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("journeys") / "rows.jsonl"
    # Rows are divided into splits, so that one alone might leave the training split empty.
    lines = [{**ROW, "question": f"{ROW['question']} Number {n}."} for n in range(10)]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture(scope="module")
def env(rows: Path) -> coding_v0.raw_env:
    env = coding_v0.env(dataset=rows)
    env.reset(seed=0)
    env.step(PROGRAM)  # opens the sandbox, which the first program of a process does once
    return env


def test_a_completion_passes_at_most_10_files_on_its_way_to_its_reward(
    env: coding_v0.raw_env,
) -> None:
    episode = Episode(env, Task("t", 0), 0)
    completion = Completion((), (), (), PROGRAM, truncated=False, version=0)
    passed = files_entered(lambda: score(episode, [completion]))
    assert {"rollout/episode.py", "envs/coding_v0.py", "sandbox/worker/frames.py"} <= set(passed)
    assert len(passed) <= 10, passed


def test_a_setting_passes_at_most_15_files_from_the_command_line_to_a_plan() -> None:
    pytest.importorskip("torch")
    from pettingllms.assembly import plan_run
    from pettingllms.cli.train import parse

    def journey() -> None:
        config = parse(["--env", "coding", "--alpha", "0.5"]).config
        assert config is not None
        assert plan_run(config).config.alpha == 0.5

    journey()  # what is made once a process is made now
    passed = files_entered(journey)
    assert {"cli/options.py", "trainers/config.py", "envs/coding_v0.py"} <= set(passed)
    assert len(passed) <= 15, " ".join(passed)


def test_a_row_passes_at_most_15_files_on_its_way_to_prompt_tokens(
    env: coding_v0.raw_env, rows: Path
) -> None:
    pytest.importorskip("torch")
    from pettingllms.models import EMBEDDED
    from pettingllms.policies.loading import load_policies

    policies = load_policies(EMBEDDED, {"coder": "coder", "tester": "tester"})

    def journey() -> None:
        load_tasks(rows)
        assert policies.prompt_ids("coder", Episode(env, Task("t", 1), 0).prompt())

    passed = files_entered(journey)
    assert {"data/rows.py", "envs/coding_text.py", "policies/chat.py"} <= set(passed)
    assert len(passed) <= 15, " ".join(passed)


@pytest.mark.slow
def test_a_training_step_runs_in_at_most_29_files() -> None:
    pytest.importorskip("torch")
    from pettingllms.assembly import build_policies, plan_run
    from pettingllms.trainers.at_grpo import ATGRPO
    from pettingllms.trainers.config import ATGRPOConfig

    plan = plan_run(ATGRPOConfig(env="coding", policies="per-role", tasks_per_step=2))
    with contextlib.closing(build_policies(plan.config, plan.roles_to_policies)) as policies:
        trainer = ATGRPO(plan.config, plan.env, policies)
        trainer.train_step()  # opens the sandbox
        passed = files_entered(trainer.train_step)
    assert {"trainers/at_grpo.py", "envs/coding_judge.py", "trainers/losses.py"} <= set(passed)
    assert len(passed) <= 29, " ".join(passed)


def test_the_algorithm_is_read_with_few_other_files_open() -> None:
    tree = ast.parse((PACKAGE / "trainers" / "at_grpo.py").read_text())
    imports = [
        node
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pettingllms.")
    ]
    assert len(imports) <= 11
    assert sum(len(node.names) for node in imports) <= 25
