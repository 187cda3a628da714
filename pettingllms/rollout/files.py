"""The files of a run and of an evaluation: their names, their version, the records of their lines.

Whoever writes them (`pettingllms.runs`, `pettingllms.evaluation`) and whoever reads them without
the training code (`pettingllms.viewer`) take names and records from here.

A line of trajectories.jsonl, `EpisodeRow`, is an episode. Training and evaluation write the same
lines, `FORMAT` 1; keys that only one of them has are marked:

    format          1
    step            training: the step, counted from 1
    team            evaluation: the line-up that played
    task, seed      the task's id, and the seed that `reset` was given
    episode         which of the task's parallel episodes
    success         of the team at the end; null where the environment does not say
    cooperative     whether the agents share one return
    returns         agent -> its return, late rewards included
    early           agent -> rewards paid to it before its first decision; absent if none
    overlong        the prompt that ended the episode because it left no room for a completion:
                    agent, prompt_tokens, longest; absent where there was none
    came_from       training: the candidate that a fork continued from: episode (of the same task),
                    depth, candidate; absent in all other episodes. `early` then has what was paid on
                    the way there
    without         training: how copies ended in which all replies of agents were blank: blanked (the
                    agents), outcome (F1 or success), tokens; absent where none was played
    decisions       in order; for each
        agent, role, policy, version    of the policy's weights
        turn            decisions that this agent took before
        depth           decisions that were taken before, by all agents
        state_hash      equal exactly where the prompt tokens are
        prompt          the observation, without the chat template
        prompt_ids      the prompt's tokens, chat template included
        late_reward     paid to the agent at other agents' steps, after this decision
        unplayed        training with a critic: policy and prompt_ids of the prompt that would have come
                        next, where the limit on turns ended the episode; else absent
        candidates      the completions that were sampled; for each
            completion      its text
            token_ids       its tokens, the end-of-turn token included
            truncated       whether it was cut at the token limit
            refused         true where a model behind an API refused or wrote no text; else absent
            logprob         sum over its tokens, in nats; null in a record that was read back
            reward          alpha * team_reward + local_reward
            team_reward, local_reward
            credited        training: the reward that the estimator saw; absent where it is the same
            advantage       training: a number, or one for each token; null where not compared
            chosen          whether an episode continued from it: this one from the first
            info            what else the environment said: success, parse_error, statuses, ...
            later           look-ahead trees and forests: what followed, as reward, rewards by decision,
                            and tokens generated to find out

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
    """The prompt that ended an episode early."""

    agent: str
    prompt_tokens: int
    longest: int


class OriginRow(TypedDict):
    """The candidate that a fork continued from."""

    episode: int
    depth: int
    candidate: int


class LaterRow(TypedDict):
    """Rewards and tokens that followed a candidate in a look-ahead tree or a forest."""

    reward: float
    tokens: int
    rewards: NotRequired[list[float]]


class CandidateRow(TypedDict):
    """A completion with its rewards."""

    completion: str
    token_ids: list[int]
    truncated: bool
    logprob: float | None
    reward: float
    team_reward: float
    local_reward: float
    advantage: float | Sequence[float] | None
    chosen: bool
    info: dict[str, Any]
    refused: NotRequired[bool]
    credited: NotRequired[float]
    later: NotRequired[LaterRow]


class UnplayedRow(TypedDict):
    """A prompt that nobody answered."""

    policy: str
    prompt_ids: list[int]


class DecisionRow(TypedDict):
    """A prompt, and the completions that answered it."""

    agent: str
    role: str
    policy: str
    version: int
    turn: int
    depth: int
    state_hash: str
    prompt: str
    prompt_ids: list[int]
    late_reward: float
    candidates: list[CandidateRow]
    unplayed: NotRequired[UnplayedRow]


class WithoutRow(TypedDict):
    """The end of a copy of an episode in which all replies of some agents were blank."""

    blanked: list[str]
    outcome: float
    tokens: int


class EpisodeRow(TypedDict):
    """A line of trajectories.jsonl."""

    format: int
    step: NotRequired[int]
    team: NotRequired[str]
    task: str
    seed: int
    episode: int
    success: bool | None
    cooperative: bool
    returns: dict[str, float]
    early: NotRequired[dict[str, float]]
    overlong: NotRequired[OverlongRow]
    came_from: NotRequired[OriginRow]
    without: NotRequired[list[WithoutRow]]
    decisions: list[DecisionRow]
