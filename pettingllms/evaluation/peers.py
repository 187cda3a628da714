"""Records what a team's members reply in an evaluation, for a leader that is trained on it (MLPO)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pettingllms.envs.recorded_peers import digest_of, kept
from pettingllms.errors import ConfigError
from pettingllms.evaluation.compare import read_side
from pettingllms.evaluation.folder import write_file
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.types import Group


class Recorded(NamedTuple):
    """Counts of what was written."""

    tasks: int
    kept: int
    """Tasks that are not too easy for a leader to learn from."""
    replies: int


def write_peers(spec: str, out: Path, *, leader: str = "judge") -> Recorded:
    """Writes a file for `peers` of an environment: the first replies of all members but the leader.

    Args:
        spec: folder of an evaluation, or FOLDER:TEAM for one of its teams.
        out: the file, which does not exist.
        leader: the role whose replies are left out.

    Raises:
        ConfigError: `out` exists, nobody is left, the environment does not say which answers are
            right, or the members were not asked apart.
        RunFolderError: no finished evaluation there.
    """
    if out.exists():
        raise ConfigError(f"{out} exists; name a new file")
    side = read_side(spec)
    if len(side.episodes) > 1:
        raise ConfigError(f"{spec} has the teams {', '.join(side.episodes)}; write {spec}:TEAM")
    (episodes,) = side.episodes.values()
    by_task: dict[int, list[Trajectory]] = defaultdict(list)
    for episode in episodes:
        # By seed, which is what training resets the environment with; ids differ between training
        # and evaluation.
        by_task[episode.task.seed].append(episode)
    rows = [
        _row(seed, episodes_of_task, side.settings["split"], leader)
        for seed, episodes_of_task in by_task.items()
    ]
    if not rows or not all(row["peers"] for row in rows):
        raise ConfigError(f"{spec} has no members beside the {leader}; record a team with peers")
    write_file(out, "".join(f"{json.dumps(row)}\n" for row in rows))
    replies = sum(len(peer["replies"]) for row in rows for peer in row["peers"].values())
    return Recorded(len(rows), sum(kept(row["right"]) for row in rows), replies)


def _row(seed: int, episodes: Sequence[Trajectory], split: str, leader: str) -> dict[str, Any]:
    firsts: dict[str, list[Group]] = defaultdict(list)
    for group in (group for episode in episodes for group in episode.groups):
        if group.key.role != leader and group.key.turn == 0:
            firsts[group.key.agent].append(group)
    right = [
        _right(group.chosen.info) for first_groups in firsts.values() for group in first_groups
    ]
    peers = {}
    for agent, first_groups in firsts.items():
        prompts = {group.prompt for group in first_groups}
        if len(prompts) > 1:
            raise ConfigError(
                f"{agent} was asked {len(prompts)} things in task {seed}, because it saw what others "
                "said; record with a topology in which members see only themselves, star"
            )
        (prompt,) = prompts
        replies = [group.chosen.completion.text for group in first_groups]
        # A digest tells whether a training asks the same thing that was answered here.
        peers[agent] = {"prompt": digest_of(prompt), "replies": replies}
    share = sum(right) / len(right) if right else 0.0
    return {"seed": seed, "split": split, "right": share, "peers": peers}


def _right(info: Mapping[str, Any]) -> float:
    if "right" not in info:
        raise ConfigError(
            "the environment does not say which answers are right (info `right`), so that easy tasks "
            "cannot be distinguished from others"
        )
    return float(info["right"])
