"""`model="team"`: the whole team plays on a question, and says who says what.

An episode of the team's own environment, with the question in place of a task: the environment's
rules decide who acts, what they are shown, what runs in the sandbox, and when the team is done. Nothing
is scored, because nobody knows the answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from pettingllms.envs.questions import OPTION
from pettingllms.envs.team_env import TeamEnv
from pettingllms.errors import PettingLLMsError
from pettingllms.rollout.episode import AnyEnv, Episode, score
from pettingllms.samplers.base import SamplingParams
from pettingllms.serving.requests import Players, TeamRequest
from pettingllms.types import Candidate, Completion, Group, Request, Task


class Left(PettingLLMsError, RuntimeError):
    """Whoever asked has gone."""


@dataclass(frozen=True, slots=True)
class Said:
    """One agent's turn."""

    agent: str
    role: str
    turn: int
    """Of this agent, from 0."""
    text: str = ""
    tokens: int = 0
    parse_error: str | None = None
    """Why the team could not read it."""


@dataclass(frozen=True, slots=True)
class Played:
    """The outcome of a question."""

    answer: str | None
    """In the form of a reply; None if the team has none that can be read."""
    turns: tuple[Said, ...]
    prompt_tokens: int
    """Of all turns together."""
    complete: bool
    """Whether the environment ended the play; else a prompt no longer fitted into the context."""


Speak = Callable[[str, Request, SamplingParams, Callable[[str], None]], Completion]
"""Completes a request of a role; tells each new piece of text."""
Hear = Callable[[Said, str], None]
"""Takes a turn as it is so far, and the new piece of its text."""


class TeamPlayer:
    """Plays questions.

    Args:
        env: takes questions; a template, never stepped itself.
        players: who plays which role.
        speak: samples.
    """

    def __init__(self, env: AnyEnv, players: Players, speak: Speak) -> None:
        self._env, self._players, self._speak = env, players, speak

    def play(self, wanted: TeamRequest, hear: Hear, gone: threading.Event) -> Played:
        """Plays to the end, in this thread.

        Args:
            wanted: the question and its settings.
            hear: called for the beginning of every turn and for each piece.
            gone: set when nobody listens any more.

        Raises:
            Left: `gone` was set.
            PettingLLMsError: the sampler or the sandbox failed.
        """
        # The question takes the place of what the seed would choose.
        task = Task("question", 0, {OPTION: wanted.question})
        episode = Episode(self._env, task, 0)
        turns: list[Said] = []
        asked = 0
        while not episode.over:
            ids = self._players.prompt_ids(episode.role, episode.prompt())
            room = self._players.contexts[self._players.policy_for(episode.role)] - len(ids)
            if room < 1:
                break
            asked += len(ids)
            # A late turn with a long prompt gets what is left, rather than no turn at all.
            limit = min(wanted.params.max_new_tokens, room)
            turns.append(
                self._turn(
                    episode, ids, replace(wanted.params, max_new_tokens=limit), wanted, hear, gone
                )
            )
        env = episode.env.unwrapped
        answer = env.answer() if isinstance(env, TeamEnv) else None
        return Played(answer, tuple(turns), asked, complete=episode.over)

    def _turn(
        self,
        episode: Episode,
        ids: tuple[int, ...],
        params: SamplingParams,
        wanted: TeamRequest,
        hear: Hear,
        gone: threading.Event,
    ) -> Said:
        key, role = episode.key(ids), episode.role
        utterance = Said(key.agent, role, key.turn)

        def heard(piece: str) -> None:
            if gone.is_set():
                raise Left("whoever asked has gone")
            if piece:
                hear(utterance, piece)

        # Asked before anything is sampled: a turn may have to wait for a program of the one before.
        heard("")
        # An empty piece announces the turn, so that a client sees at once who acts.
        hear(utterance, "")
        policy = self._players.policy_for(role)
        # By the place of the decision, so that the same request with a seed has the same answer.
        request = Request(policy, ids, episode.seed(wanted.seed))
        spoken = self._speak(role, request, params, heard)
        # The environment reads thoughts in its own tags; the client is shown what was written.
        completion = replace(spoken, text=self._players.chat_for(policy).reply(spoken.text))
        [branch] = score(episode, [completion])
        result = branch.result
        candidate = Candidate(
            completion, result.reward, result.team, result.local, chosen=True, info=result.info
        )
        episode.advance(Group(key, policy, episode.prompt(), ids, (candidate,)), branch)
        return replace(
            utterance,
            text=spoken.text,
            tokens=len(completion.token_ids),
            parse_error=result.info.get("parse_error"),
        )
