"""Train two roles.

A tool and a planner play Sokoban, each with a LoRA adapter of its own on the embedded model. A run of a few steps is enough to see every part: test tasks
before, steps of training, the same test tasks after, and the files of the run. It is too short to learn much; `pettingllms-train --env sokoban` is the
same run with the settings that do.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from pettingllms.session import run_training
from pettingllms.trainers.config import ATGRPOConfig


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def spread(decision: dict[str, Any]) -> float:
    """How far apart the rewards of a decision's completions are."""
    rewards = [candidate["reward"] for candidate in decision["candidates"]]
    return max(rewards) - min(rewards)


with tempfile.TemporaryDirectory() as folder:
    config = ATGRPOConfig(
        env="sokoban",
        policies="per-role",  # one adapter for each role; "shared" trains one for both
        num_generations=4,  # K: completions of one prompt, which are compared with each other
        tasks_per_step=4,
        max_steps=3,
        eval_tasks=10,
        eval_steps=0,  # no validation between before and after
        output_dir=f"{folder}/run",
    )
    summary = run_training(config)

    # Both are lists: completions sampled at temperature 1, then greedy ones.
    for when, (sampled, _greedy) in (("before", summary.before), ("after", summary.after)):
        mean, low, high = sampled.scores["success"]
        print(f"{when}: {mean:.2f} of {sampled.tasks} test tasks solved [{low:.2f}, {high:.2f}]")

    print("\nthe run leaves behind:")
    for path in sorted(summary.folder.iterdir()):
        print(f"  {path.name}{'/' if path.is_dir() else ''}")

    # metrics.jsonl has a line for each step and each evaluation.
    rows = lines_of(summary.folder / "metrics.jsonl")
    for row in (row for row in rows if row["kind"] == "train"):
        print(f"step {row['step']}: {row['num_tokens']:.0f} tokens, success {row['success']:.2f}")

    # trajectories.jsonl has every prompt, completion, reward and advantage. Here is the decision
    # whose completions earned most differently: where all earn the same, there is nothing to learn.
    episodes = lines_of(summary.folder / "trajectories.jsonl")
    decisions = [decision for episode in episodes for decision in episode["decisions"]]
    decision = max(decisions, key=spread)
    print(f"\n{decision['agent']}, after reading {len(decision['prompt_ids'])} tokens:")
    for candidate in decision["candidates"]:
        executed = "  <- executed" if candidate["chosen"] else ""
        reward, advantage = candidate["reward"], candidate["advantage"]
        print(f"  reward {reward:.2f}, advantage {advantage:+.2f}{executed}")
    assert summary.finished
    assert len(decision["candidates"]) == 4
    assert sum(candidate["chosen"] for candidate in decision["candidates"]) == 1
