"""Preference pairs and completions from full trees, in the dataset formats of TRL's trainers.

MALT, Motwani et al. 2024, https://arxiv.org/abs/2412.01928, section 4: a value flows upwards from the
leaves of a full tree, and siblings on different sides of 1/2 are a pair.

A row is a conversation of one user turn, to which TRL applies the chat template. Where tokens merge
across the end of the prompt, as the embedded model's do, TRL then trains on others than were sampled, and
says so; `prompt_ids` and the like are those of the run, which TRL's trainers leave aside.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.rollout.files import TRAJECTORIES
from pettingllms.rollout.forest import flowing, place_of, used_by
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.types import Group, JsonObject

THRESHOLD = 0.5
"""A completion is good if its value is above it."""
PAIRS, SFT = "pairs.jsonl", "sft.jsonl"


class Judged(NamedTuple):
    """A decision whose candidates have values."""

    group: Group
    values: dict[str, float]
    """Completion -> value; the mean where the same text was sampled several times."""

    @property
    def good(self) -> list[str]:
        """The completions above the threshold."""
        return [text for text, value in self.values.items() if value > THRESHOLD]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every good completion with every other one."""
        rest = [text for text in self.values if text not in self.good]
        return list(itertools.product(self.good, rest))

    def ids(self, text: str) -> list[int]:
        """The tokens of a completion as they were sampled."""
        matches = (c.completion for c in self.group.candidates if c.completion.text == text)
        return list(next(matches).token_ids)


def judged(trajectories: Sequence[Trajectory]) -> list[Judged]:
    """Values of the candidates that were played on.

        V(leaf) = 1 for a success, else 0,    V(candidate) = mean V over the candidates that follow it

    Raises:
        ConfigError: the environment does not say whether a task was solved.
    """
    played = {
        place_of(group, k): candidate
        for trajectory in trajectories
        for group in trajectory.groups
        for k, candidate in enumerate(group.candidates)
        if candidate.chosen
    }
    used = used_by(trajectories)
    # Candidates that nothing continues from have no value, and must not count as failures in a
    # mean.
    users: dict[Hashable, list[Any]] = {
        place: [user for user in used[place] if user in played] for place in played
    }
    leaves: dict[Hashable, float] = {}
    for place, candidate in played.items():
        if not users[place]:
            if candidate.info.get("success") is None:
                raise ConfigError(
                    "the run's environment does not say whether a task was solved (info `success`), "
                    "so that no completion is better than another"
                )
            leaves[place] = float(bool(candidate.info["success"]))
    values = flowing(users, leaves)
    judgments = []
    for trajectory in trajectories:
        for group in trajectory.groups:
            by_text: dict[str, list[float]] = defaultdict(list)
            for k, candidate in enumerate(group.candidates):
                if (place := place_of(group, k)) in played:
                    by_text[candidate.completion.text].append(values[place])
            judgments.append(Judged(group, {t: sum(v) / len(v) for t, v in by_text.items()}))
    return judgments


def write_pairs(run: Path, out: Path, *, most: int = 8) -> dict[str, tuple[int, int]]:
    """Writes `out/POLICY/pairs.jsonl` and `sft.jsonl` from the full trees of a run.

    Args:
        run: its folder.
        out: a folder that does not exist, written as a whole or not at all.
        most: pairs of a task and a policy, so that no task dominates; drawn by the task's name.

    Returns:
        Policy -> pairs and good completions.

    Raises:
        ConfigError: `out` exists, `most` is below 1, or the run has no full trees.
        RunFolderError: `run` holds no run, or a line is damaged.
    """
    if most < 1:
        raise ConfigError(f"most must be at least 1, got {most}")
    if out.exists():
        raise ConfigError(f"{out} exists; name a new folder")
    pairs: dict[str, list[JsonObject]] = defaultdict(list)
    completions: dict[str, list[JsonObject]] = defaultdict(list)
    forked = False
    # A run appends its steps one after the other, so that a step's lines are neighbors.
    for _, lines in itertools.groupby(read_episodes(run), key=lambda read: read[0].get("step")):
        trajectories = [trajectory for _, trajectory in lines]
        forked |= any(trajectory.came_from is not None for trajectory in trajectories)
        by_task: dict[tuple[str, str], list[JsonObject]] = defaultdict(list)
        for judgment in judged(trajectories):
            policy = judgment.group.policy
            completions[policy] += [_row(judgment, completion=text) for text in judgment.good]
            by_task[judgment.group.key.task, policy] += [
                _row(judgment, chosen=chosen, rejected=rejected)
                for chosen, rejected in judgment.pairs
            ]
        for (task, policy), rows in by_task.items():
            # By task and policy, so that the same run always gives the same files.
            rng = random.Random(f"{task} {policy} pairs")
            pairs[policy] += rows if len(rows) <= most else rng.sample(rows, most)
    if not forked:
        raise ConfigError(
            f"{run} has no full trees, so that siblings have no values of their own; play some with "
            "--method malt"
        )
    policies = sorted({*pairs, *completions})
    kinds = ((PAIRS, pairs), (SFT, completions))
    write_folder(out, {f"{p}/{name}": rows[p] for p in policies for name, rows in kinds})
    return {policy: (len(pairs[policy]), len(completions[policy])) for policy in policies}


def _row(judged: Judged, **texts: str) -> JsonObject:
    """A prompt and completions of it, by what they are, each as a message and as tokens."""
    row: JsonObject = {"prompt": said("user", judged.group.prompt)}
    row |= {name: said("assistant", text) for name, text in texts.items()}
    row["prompt_ids"] = list(judged.group.prompt_ids)
    return row | {f"{name}_ids": judged.ids(text) for name, text in texts.items()}


def said(role: str, text: str) -> list[dict[str, str]]:
    """A conversation of one turn, as TRL's trainers take it."""
    # A model may have written halves of surrogate pairs, at which `datasets` refuses the whole file.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return [{"role": role, "content": whole}]


def read_episodes(folder: Path) -> Iterator[tuple[Mapping[str, Any], Trajectory]]:
    """The lines of a run's or an evaluation's trajectories.jsonl, each as it is and as a record.

    Raises:
        RunFolderError: there is no such file, or a line is damaged.
    """
    path = folder / TRAJECTORIES
    if not path.is_file():
        raise RunFolderError(f"{folder} holds no run and no evaluation: it has no {TRAJECTORIES}")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                episode = Trajectory.from_row(row)
            except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
                raise RunFolderError(f"{path}, line {number}: {error}") from error
            yield row, episode


def write_folder(out: Path, files: Mapping[str, Iterable[Any]]) -> None:
    """Writes a folder of JSONL files, by their paths in it, which appears when all are there.

    Raises:
        RunFolderError: it cannot be written.
    """
    draft = out.with_name(f".{out.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        for name, rows in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            text = "".join(f"{json.dumps(row)}\n" for row in rows)
            (draft / name).write_text(text, encoding="ascii")
        draft.rename(out)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {out}: {error.strerror}; name another folder"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
