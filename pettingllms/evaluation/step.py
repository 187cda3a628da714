"""STeP: which replies of recorded episodes to imitate, in the dataset format of TRL's `SFTTrainer`.

STeP, Chen et al. 2025, https://arxiv.org/abs/2505.20023, trains on episodes that succeed in spite of wrong steps, and
masks those: they stay in the context and out of the loss. A reply is a sample of its own here, so a mask is a filter:
a wrong reply is no sample, and later prompts show it as they did.

`pettingllms-eval --teacher` plays such episodes on purpose: after a wrong reply of an agent, the teacher gives its next one.
It is a model behind an API, or the environment's solver, which also judges: a reply that earns less than the solver's would
have is wrong. The paper's teacher begins a correction with a reflection on the error; a solver has none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pettingllms.errors import ConfigError
from pettingllms.names import check_policy_name, is_partner
from pettingllms.rollout.engine import BLANK, Routed
from pettingllms.rollout.episode import AnyEnv, Episode, score
from pettingllms.rollout.pairs import read_episodes, said, write_folder
from pettingllms.samplers.base import Sampler
from pettingllms.trainers.method import NEEDS, lacking
from pettingllms.types import Candidate

SOLVER, SOLVER_REWARD = "solver", "solver_reward"
"""The teacher on boards, and the entry of an info for what its reply would have earned."""
SEAT = "/teacher"
"""Whose prompts a teacher reads: no role of an environment, or it would play that."""


@dataclass
class Tally:
    """What is kept of a role, and why the rest is left out."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        decisions = len(self.samples) + self.left_out.total()
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.left_out.items()))
        return f"{len(self.samples)} of {decisions} decisions{'; left out: ' if reasons else ''}{reasons}"


def wrong(candidate: Candidate) -> str | None:
    """What is wrong with a reply; None where it is one to imitate.

    Rewards are differences of scores in the environments of this package: one below 0 says that the team's
    state, or what its author answers for, was better before. Where a solver judged, its reward in that state counts.
    """
    if candidate.info.get("parse_error") or candidate.completion.refused:
        return "unreadable"
    if (best := candidate.info.get(SOLVER_REWARD)) is not None:
        return "below the solver" if candidate.reward < best else None
    return "worse" if min(candidate.team_reward, candidate.local_reward) < 0 else None


@dataclass(frozen=True)
class Teacher:
    """Corrects a team: gives an agent's next reply after a wrong one; has the hooks of `Ensemble`."""

    policy: str

    @property
    def seats(self) -> dict[str, str]:
        """Its place beside those of the agents -> its policy; a solver needs none."""
        return {} if self.policy == SOLVER else {SEAT: self.policy}

    def described(self) -> dict[str, Any]:
        """Returns who corrects, as JSON has it."""
        return {"teacher": self.policy}

    def sampler(self, policies: Sampler) -> Sampler:
        """Returns `policies`, which have the teacher among them."""
        return policies

    def route(self, episode: Episode, policy: str) -> Routed:
        """Returns the teacher after a wrong reply of the agent's own policy, else that policy."""
        replies = [group.chosen for group in episode.groups if group.key.agent == episode.agent]
        # The teacher has one try: an agent that it cannot help goes on by itself.
        why = wrong(replies[-1]) if replies and "corrects" not in replies[-1].info else None
        notes: dict[str, Any] = {"corrects": why} if why else {}
        reply = None
        if self.policy == SOLVER:
            reply = episode.demonstration()
            (branch,) = score(episode, [replace(BLANK, text=reply)])
            notes[SOLVER_REWARD] = branch.result.reward
        return Routed(self.policy, notes, reply) if why else Routed(policy, notes)


def teacher_of(name: str | None, env: AnyEnv) -> Teacher | None:
    """Returns the teacher of that name, or None without a name.

    Raises:
        ConfigError: it is neither a model behind an API nor the environment's solver.
    """
    if name is None:
        return None
    if name == SOLVER:
        if lacking(("demonstrations",), env):
            raise ConfigError(f"teacher {SOLVER} {NEEDS['demonstrations'][1].format(env=env)}")
    elif not is_partner(name):
        raise ConfigError(f"teacher is {SOLVER}, or a model behind an API, api:MODEL; got {name!r}")
    check_policy_name(name)
    return Teacher(name)


def write_step(folder: Path, out: Path, *, keep_failed: bool = False) -> dict[str, Tally]:
    """Writes a line for each reply to imitate: `out/ROLE.jsonl`, or `out/TEAM/ROLE.jsonl` for evaluations.

    Args:
        folder: of a run or an evaluation.
        out: a folder that does not exist, written as a whole or not at all; has no file for a role without samples.
        keep_failed: also take what is not wrong from episodes that ended without success.

    Returns:
        Path of each file in `out`, without its ending -> what it keeps.

    Raises:
        ConfigError: `out` exists, nothing says which episodes succeed, or nothing is left.
        RunFolderError: no episodes there, a damaged line, or `out` cannot be written.
    """
    if out.exists():
        raise ConfigError(f"{out} exists; name a new folder")
    tallies = defaultdict[str, Tally](Tally)
    for labels, episode in read_episodes(folder):
        if episode.groups and episode.success is None and not keep_failed:
            raise ConfigError(
                "the environment does not say whether a task was solved (info `success`); keep all episodes "
                "with --keep-failed"
            )
        failed = None if episode.success or keep_failed else "in failed episodes"
        for group in episode.groups:
            # Quoted, because an environment may call its agents anything.
            names = filter(None, (labels.get("team"), group.key.role))
            path = "/".join(quote(str(name), safe=" ").replace(".", "%2E") for name in names)
            if reason := failed or wrong(group.chosen):
                tallies[path].left_out[reason] += 1
            else:
                reply = said("assistant", group.chosen.completion.text)
                sample = {"prompt": said("user", group.prompt), "completion": reply}
                tallies[path].samples.append(sample)
    files = {f"{path}.jsonl": tally.samples for path, tally in tallies.items() if tally.samples}
    if not files:
        why = "; ".join(f"{path}: {tally}" for path, tally in tallies.items()) or "no decisions"
        raise ConfigError(f"nothing of {folder} is left to imitate ({why})")
    write_folder(out, files)
    return tallies
