"""The run folder: everything a run writes, and everything that a resumed run reads.

    config.yaml     the settings, resolved; usable as --config
    run.json        version of the format, versions, platform, isolation and command line of every start
    metrics.jsonl   one line a step ("kind": "train") and one an evaluation ("kind": "eval")
    trajectories.jsonl  one line an episode: decisions, candidates, rewards by part, advantages
    adapters/       one folder a policy, as PEFT saves it: of the last checkpoint, finally the result
    checkpoints/    step-000010/ and so on, the last two: what --resume needs
    console.log     what was shown while it ran
    advice.json     with `advise`: whether roles should share their policy
    summary.md      before -> after, with summary.json and curves.png, once the run is finished

`pettingllms.rollout.files` documents the lines of trajectories.jsonl, `pettingllms.trainers.metrics`
the numbers of a step in metrics.jsonl, and `pettingllms.evaluation` those of an evaluation.
"""

from __future__ import annotations

from pettingllms.rollout.files import CONFIG, METRICS, TRAJECTORIES
from pettingllms.runs.folder import (
    Folder,
    RunFolder,
    config_text,
    point_latest,
    read_config,
    versions,
)

__all__ = [
    "CONFIG",
    "METRICS",
    "TRAJECTORIES",
    "Folder",
    "RunFolder",
    "config_text",
    "point_latest",
    "read_config",
    "versions",
]
