"""Folders of runs for the tests of the viewer: lines as the trainer writes them, with texts of any kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pettingllms.rollout.files import METRICS, SETTINGS, STARTS, TRAJECTORIES
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.types import Candidate, Completion, Group, GroupKey, Task

HOSTILE = [
    "<script>window.pwned = 1</script>",
    "</textarea><script>window.pwned = 2</script>",
    "</script><script>window.pwned = 3</script>",
    "<img src=x onerror='window.pwned = 4'>",
    "[click](javascript:window.pwned=5) javascript:alert(1)",
    '"><svg onload="window.pwned = 6">',
    "<!-- <b>not bold</b> -->",
    "\x1b[31mred\x1b[0m \x1b]8;;http://127.0.0.1:9/\x07link\x1b]8;;\x07",
    "if access\u202e\u2066 // check\u2069 \u2066begin",
    "nul \x00 and bell \x07",
    "lone \ud800 and \udc00 surrogates",
    "\ufeffzero\u200bwidth\u2060\u00ad",
    "tags \U000e0041\U000e007f",
    "a" * 5_000_000,
    "\n" * 5_000,
    "```python\n" + "(" * 5_000 + "\n```",
    "```" * 2_000,
    "{{constructor.constructor('window.pwned = 7')()}} ${window.pwned = 8}",
    "&lt;b&gt; &#60;script&#62; %3Cscript%3E",
    "<iframe srcdoc='<script>parent.pwned = 9</script>'></iframe><base href='http://127.0.0.1:9/'>",
    "<style>*{display:none}</style><link rel=stylesheet href=http://127.0.0.1:9/x.css>",
    "ข้อความ עברית العربية 漢字 👩‍👩‍👧‍👦 " + "e" + "\u0301" * 2_000,
]
"""What a model may write; none of it may do anything on the page."""


def candidate(text: str, *, reward: float = 0.0, chosen: bool = False, **more: Any) -> Candidate:
    """A candidate whose token ids are the characters of its text, up to eight."""
    tokens = tuple(range(1, 1 + min(8, len(text))))
    info = {"success": reward >= 1.0, "parse_error": None, **more.pop("info", {})}
    return Candidate(
        completion=Completion((1, 2, 3), tokens, (-0.5,) * len(tokens), text, False, 1),
        reward=reward,
        team_reward=float(reward >= 1.0),
        local_reward=reward - float(reward >= 1.0),
        chosen=chosen,
        info=info,
        advantage=more.pop("advantage", reward - 0.5),
    )


def episode(
    task: str, replies: Sequence[Sequence[str]], *, index: int = 0, prompt: str = "Do it."
) -> Trajectory:
    """An episode of a coder and a tester; of each decision the last reply is the best one."""
    groups = []
    for depth, texts in enumerate(replies):
        role = ("coder", "tester")[depth % 2]
        key = GroupKey(task, index, f"{role}_0", role, depth // 2, depth, "00000000")
        candidates = tuple(
            candidate(text, reward=(place + 1) / len(texts), chosen=place == len(texts) - 1)
            for place, text in enumerate(texts)
        )
        groups.append(Group(key, role, prompt, (1, 2, 3), candidates))
    return Trajectory.of(Task(task, 0), index, groups, early={}, cooperative=True)


def lines(episodes: Sequence[Trajectory], **labels: Any) -> bytes:
    """Lines of trajectories.jsonl."""
    return b"".join(
        json.dumps(trajectory.row(**labels)).encode() + b"\n" for trajectory in episodes
    )


def run_folder(path: Path, steps: int = 2, **settings: Any) -> Path:
    """A run of `steps` steps with two episodes each."""
    path.mkdir(parents=True)
    config = {"env": "coding", "alpha": 1.0, "estimator": "at_grpo", "max_steps": steps, **settings}
    (path / "config.yaml").write_text(json.dumps(config))
    (path / STARTS).write_text(json.dumps([{"format": 1, "started": "2026-01-01T00:00:00Z"}]))
    for step in range(1, steps + 1):
        add_step(path, step)
    return path


def add_step(path: Path, step: int) -> None:
    """Adds what a trainer writes after a step."""
    texts = [["x = 1", "print(2)"], ["one 1 2", "two 3 4"]]
    with (path / TRAJECTORIES).open("ab") as file:
        file.write(lines([episode(f"coding:{step}:{n}", texts) for n in range(2)], step=step))
    row = {"kind": "train", "step": step, "success": step / 10, "reward/coder": 0.1 * step}
    with (path / METRICS).open("ab") as file:
        file.write(json.dumps(row).encode() + b"\n")


def eval_folder(path: Path, teams: Sequence[str] = ("base", "adapters")) -> Path:
    """An evaluation of `teams` on three tasks."""
    path.mkdir(parents=True)
    settings = {"env": "coding", "split": "test", "tasks": 3, "samples": 1}
    (path / SETTINGS).write_text(json.dumps({"settings": settings, "versions": {}}))
    with (path / TRAJECTORIES).open("ab") as file:
        for team in teams:
            file.write(lines([episode(f"test:{n}", [["x"]]) for n in range(3)], team=team))
    return path
