"""Recorded replies of a team's other members, so that a leader learns to use them without playing them.

MLPO, https://arxiv.org/abs/2507.08960 (after its description): frozen peers answer first and apart, each several
times, once for all epochs. A training task of whose recorded answers three quarters or more are right is left
out, because there the leader has nothing to learn. `pettingllms-data peers` writes the file, a line a task:

    {"seed": 17, "split": "train", "right": 0.42,
     "peers": {"reasoner_0": {"prompt": "0f3a...", "replies": ["...", ...]}, ...}}
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pettingllms.errors import ConfigError

EASY = 0.75
"""Share of right peer answers from which on a training task is left out."""


class Peer(NamedTuple):
    """The digest of a member's prompt in a task, and its replies."""

    prompt: str
    """`digest_of` the prompt."""
    replies: tuple[str, ...]


class RecordedTask(NamedTuple):
    """A task with the replies of all peers."""

    seed: int
    split: str
    right: float
    """Share of their answers that are right."""
    peers: Mapping[str, Peer]
    """By agent, in turn order."""

    def drawn(self, draw: int) -> dict[str, str]:
        """One reply of each peer; the same for the same `draw`."""
        # By task and draw, so that the order in which tasks come makes no difference.
        rng = random.Random(f"{self.split} {self.seed} {draw} peers")
        return {agent: rng.choice(peer.replies) for agent, peer in self.peers.items()}


def digest_of(prompt: str) -> str:
    """Tells prompts apart: replies to other prompts are not those of this task."""
    # Eight bytes are enough to notice a change, and nobody gains anything by forging one.
    return hashlib.blake2b(prompt.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def kept(right: float) -> bool:
    """Returns whether a training task with this share of right answers is left in."""
    return right < EASY


def read_peers(path: str | Path, split: str, agents: Sequence[str]) -> tuple[RecordedTask, ...]:
    """The tasks of a split; those that are too easy left out of training.

    Raises:
        ConfigError: it cannot be read, has a damaged line, other peers, or no task for this split.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"peers {path} cannot be read: {error}") from error
    tasks = [_task(path, number, line) for number, line in enumerate(lines, 1)]
    # Of all splits: one file is of one team.
    for task in tasks:
        if set(task.peers) != set(agents):
            raise ConfigError(
                f"peers {path} has replies of {', '.join(task.peers)}, and the team's peers are "
                f"{', '.join(agents)}; give the team that was recorded"
            )
    in_split = [task for task in tasks if task.split == split]
    left = [task for task in in_split if split != "train" or kept(task.right)]
    if not left:
        splits = ", ".join(sorted({task.split for task in tasks})) or "none"
        why = f"{len(in_split)} tasks, all too easy" if in_split else f"no task (it has {splits})"
        raise ConfigError(
            f"peers {path} has {why} for the split {split}; record some with pettingllms-eval --split "
            f"{split}"
        )
    return tuple(left)


def _task(path: str | Path, number: int, line: str) -> RecordedTask:
    try:
        row = json.loads(line)
        peers = {
            str(agent): Peer(record["prompt"], tuple(map(str, record["replies"])))
            for agent, record in row["peers"].items()
        }
        if not all(peer.replies for peer in peers.values()):
            raise ValueError("a peer without a reply")
        return RecordedTask(int(row["seed"]), row["split"], float(row["right"]), peers)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"peers {path}, line {number}: {error!r}") from error


def check_prompt(path: str | Path, agent: str, task: RecordedTask, prompt: str) -> None:
    """Refuses replies to another prompt than the environment gives now.

    Raises:
        ConfigError: the prompts or the data have changed since they were recorded.
    """
    if task.peers[agent].prompt != digest_of(prompt):
        raise ConfigError(
            f"peers {path}: {agent} was asked something else in task {task.seed} of {task.split} than it "
            "would be now; record again with the same dataset, prompt and team, and topology star"
        )
