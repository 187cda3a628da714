"""STeP: which replies of recorded episodes to imitate, in the dataset format of TRL's `SFTTrainer`.

STeP, Chen et al. 2025, https://arxiv.org/abs/2505.20023, trains on episodes that succeed in spite of wrong steps, and
masks those: they stay in the context and out of the loss. A reply is a sample of its own here, so a mask is a filter:
a wrong reply is no sample, and later prompts show it as they did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.evaluation.compare import folder_and_team
from pettingllms.evaluation.folder import read_settings
from pettingllms.rollout.files import SETTINGS
from pettingllms.rollout.pairs import read_episodes, said, write_folder
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.types import Candidate

Wrong = Literal["unreadable", "worse"]


@dataclass
class Tally:
    """Decisions of a role, and why some of them are left out."""

    file: Path
    decisions: int = 0
    kept: int = 0
    episodes: int = 0
    """In which the role acted."""
    kept_episodes: int = 0
    """Of which a decision was kept."""
    left_out: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        text = (
            f"{self.file}: {self.kept} of {self.decisions} decisions, from {self.kept_episodes} of "
            f"{self.episodes} episodes"
        )
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.left_out.items()))
        return f"{text}; left out: {reasons}" if reasons else text


def wrong(candidate: Candidate) -> Wrong | None:
    """What is wrong with a reply; None where it is one to imitate.

    Rewards are differences of scores in the environments of this package: one below 0 says that the team's
    state, or what its author answers for, was better before.
    """
    if candidate.info.get("parse_error") or candidate.completion.refused:
        return "unreadable"
    return "worse" if min(candidate.team_reward, candidate.local_reward) < 0 else None


def write_step(
    source: str, out: Path, *, roles: Sequence[str] = (), keep_failed: bool = False
) -> dict[str, Tally]:
    """Writes `out/ROLE.jsonl`, a line for each reply to imitate, from the episodes of a run or an evaluation.

    Args:
        source: its folder, or FOLDER:TEAM for one team of an evaluation.
        out: a folder that does not exist, written as a whole or not at all.
        roles: only these; empty for all.
        keep_failed: also take what is not wrong from episodes that ended without success.

    Returns:
        Role -> what was kept. A role of which nothing is kept has no file.

    Raises:
        ConfigError: `out` exists, the environment does not say which episodes succeed, nothing is left, or
            there are several teams.
        UnknownNameError: a role or a team that did not act.
        RunFolderError: no episodes there, a damaged line, or `out` cannot be written.
    """
    if out.exists():
        raise ConfigError(f"{out} exists; name a new folder")
    folder, team = folder_and_team(source)
    tallies: dict[str, Tally] = {}
    samples: dict[str, list[Any]] = defaultdict(list)
    teams: dict[str, None] = {}
    for labels, episode in read_episodes(folder):
        title = labels.get("team")
        teams |= {} if title is None else {title: None}
        if not team or title == team:
            _take(episode, out, tallies, samples, keep_failed=keep_failed)
    if team and team not in teams:
        raise UnknownNameError(f"{folder} has no team {team!r}; {did_you_mean(team, teams)}")
    if not team and len(teams) > 1:
        raise ConfigError(f"{source} has the teams {', '.join(teams)}; write {source}:TEAM")
    for role in roles:
        if role not in tallies:
            raise UnknownNameError(f"{source} has no role {role!r}; {did_you_mean(role, tallies)}")
    chosen = {role: tally for role, tally in tallies.items() if not roles or role in roles}
    if not any(tally.kept for tally in chosen.values()):
        why = "; ".join(map(str, chosen.values())) or "no episode has a decision"
        raise ConfigError(f"nothing of {source} is left to imitate ({why})")
    write_folder(out, {tallies[role].file.name: samples[role] for role in chosen if samples[role]})
    return chosen


def split_of(source: str) -> str | None:
    """The split whose tasks an evaluation plays; None for a run, which plays training tasks."""
    folder, _ = folder_and_team(source)
    return read_settings(folder).get("split") if (folder / SETTINGS).is_file() else None


def _take(
    episode: Trajectory,
    out: Path,
    tallies: dict[str, Tally],
    samples: dict[str, list[Any]],
    *,
    keep_failed: bool,
) -> None:
    if episode.groups and episode.success is None and not keep_failed:
        raise ConfigError(
            "the environment does not say whether a task was solved (info `success`); keep all episodes "
            "with --keep-failed"
        )
    kept: Counter[str] = Counter()
    for group in episode.groups:
        role = group.key.role
        # Quoted, because an environment may call its agents anything.
        tally = tallies.setdefault(role, Tally(out / f"{quote(role, safe=' ')}.jsonl"))
        failed = not (episode.success or keep_failed)
        reason = "in failed episodes" if failed else wrong(group.chosen)
        if reason is None:
            kept[role] += 1
            reply = said("assistant", group.chosen.completion.text)
            samples[role].append({"prompt": said("user", group.prompt), "completion": reply})
        else:
            tally.left_out[reason] += 1
        tally.decisions += 1
    for role in {group.key.role for group in episode.groups}:
        tallies[role].episodes += 1
        tallies[role].kept += kept[role]
        tallies[role].kept_episodes += kept[role] > 0
