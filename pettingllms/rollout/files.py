"""The files of a run and of an evaluation: their names, their version, the records of their lines.

Whoever writes them (`pettingllms.runs`, `pettingllms.evaluation`) and whoever reads them without
the training code (`pettingllms.viewer`) take names and records from here.

A line of trajectories.jsonl, `EpisodeRow`, is an episode. Training and evaluation write the same
lines, `FORMAT` 1; keys that are `NotRequired` are absent where there is nothing to say.

`decisions` is the last key of a line, so that a reader finds what a line is about in its first
bytes. Scores of an evaluation are computed from these records alone, so a file that is read back
has the scores that it had when it was played. Log-probabilities token by token are not written:
they would be most of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

# Raised when a key changes its meaning: readers refuse any other number.
FORMAT = 1
"""Of trajectories.jsonl; run.json has it, too."""
CONFIG, STARTS, SUMMARY = "config.yaml", "run.json", "summary.json"
"""Of a run: its settings, its starts, and the scores of a finished one."""
ADVICE = "advice.json"
"""Of a run with `advise`: whether roles should share their policy."""
METRICS, TRAJECTORIES = "metrics.jsonl", "trajectories.jsonl"
CONSOLE = "console.log"
"""What a run showed, as plain lines, of all its starts."""
SAMPLES = "samples.jsonl"
"""What models behind an API answered, in a run and in an evaluation: `pettingllms.samplers.replies`."""
SETTINGS, RESULTS = "settings.json", "results.json"
"""Of an evaluation: its settings, and the scores of a finished one."""
RUN_LOCK = ".lock"
"""The file that a training process holds locked; an evaluation locks its trajectories.jsonl."""


class OverlongRow(TypedDict):
    """The prompt that ended an episode because it left no room for a completion."""

    agent: str
    prompt_tokens: int
    longest: int


class OriginRow(TypedDict):
    """The candidate that a fork continued from."""

    episode: int  # of the same task
    depth: int
    candidate: int


class LaterRow(TypedDict):
    """What followed a candidate in a look-ahead tree or a forest."""

    reward: float
    tokens: int  # generated to find out
    rewards: NotRequired[list[float]]  # by decision


class CandidateRow(TypedDict):
    """A completion with its rewards."""

    completion: str
    token_ids: list[int]  # the end-of-turn token included
    truncated: bool  # cut at the token limit
    logprob: float | None  # sum over its tokens, in nats; null in a record that was read back
    reward: float  # alpha * team_reward + local_reward
    team_reward: float
    local_reward: float
    advantage: float | Sequence[float] | None  # one, or one a token; null where not compared
    chosen: bool  # whether an episode continued from it: this one from the first
    info: dict[str, Any]  # what else the environment said: success, parse_error, statuses, ...
    refused: NotRequired[bool]  # true where a model behind an API refused or wrote no text
    credited: NotRequired[float]  # the reward that the estimator saw, where it is another one
    later: NotRequired[LaterRow]


class UnplayedRow(TypedDict):
    """The prompt that would have come next, where the limit on turns ended the episode."""

    policy: str
    prompt_ids: list[int]


class DecisionRow(TypedDict):
    """A prompt, and the completions that answered it."""

    agent: str
    role: str
    policy: str
    version: int  # of the policy's weights
    turn: int  # decisions that this agent took before
    depth: int  # decisions that were taken before, by all agents
    state_hash: str  # equal exactly where the prompt tokens are
    prompt: str  # the observation, without the chat template
    prompt_ids: list[int]  # chat template included
    late_reward: float  # paid to the agent at other agents' steps, after this decision
    candidates: list[CandidateRow]
    unplayed: NotRequired[UnplayedRow]  # training with a critic


class WithoutRow(TypedDict):
    """The end of a copy of an episode in which all replies of some agents were blank."""

    blanked: list[str]  # the agents
    outcome: float  # F1 or success
    tokens: int


class EpisodeRow(TypedDict):
    """A line of trajectories.jsonl."""

    format: int
    step: NotRequired[int]  # training: counted from 1
    team: NotRequired[str]  # evaluation: the line-up that played
    task: str
    seed: int  # that `reset` was given
    size: NotRequired[str]  # which of several environments, or sizes, it is of
    episode: int  # which of the task's parallel episodes
    success: bool | None  # of the team at the end; null where the environment does not say
    cooperative: bool  # whether the agents share one return
    returns: dict[str, float]  # by agent, late rewards included
    early: NotRequired[
        dict[str, float]
    ]  # paid before an agent's first decision, or on the way to a fork
    overlong: NotRequired[OverlongRow]
    came_from: NotRequired[OriginRow]  # training
    without: NotRequired[list[WithoutRow]]  # training
    decisions: list[DecisionRow]  # in order


def verdict(success: bool | None, said: bool) -> bool | None:
    """Whether an overlong episode is a success: one without a decision fails, if any other has `said`."""
    return False if success is None and said else success
