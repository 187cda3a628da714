"""`model="team"`: the whole team plays on a question, and says who says what.

An episode of the team's own environment, with the question in place of a task: the environment's
rules decide who acts, what they are shown, what runs in the sandbox, and when the team is done. Nothing
is scored, because nobody knows the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from pettingllms.envs.questions import OPTION
from pettingllms.envs.team_env import TeamEnv
from pettingllms.errors import PettingLLMsError
from pettingllms.rollout.episode import AnyEnv, Episode, score
from pettingllms.samplers.base import SamplingParams
from pettingllms.serving import wire
from pettingllms.serving.requests import MESSAGES, TEAM, TeamRequest
from pettingllms.serving.worker import QueueFull, Stopped
from pettingllms.types import Candidate, Completion, Group, Request, Task

if TYPE_CHECKING:
    from pettingllms.policies.policy_set import PolicySet
    from pettingllms.serving.proxy import VllmPlayers


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
    """Plays questions."""

    def __init__(self, env: AnyEnv, players: PolicySet | VllmPlayers, speak: Speak) -> None:
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


# ----------------------------------------------------------------------------------- the answer
# The team's play as an answer: its turns as reasoning, its answer as the content.
#
# Reasoning models stream what leads to an answer as `reasoning_content` beside the answer's `content`, and clients
# know how to show it. Each chunk of a turn also has `turn`, with the agent, its role and its turn's number.


MOST_TEAMS = 32
"""Questions that are played at the same time; each has a thread and runs programs."""
_places = threading.BoundedSemaphore(MOST_TEAMS)

News = tuple[Said, str] | Played | PettingLLMsError


class TeamAnswer:
    """One play, begun at once in a thread of its own.

    Raises:
        QueueFull: as many questions as possible are being played.
    """

    def __init__(self, player: TeamPlayer, wanted: TeamRequest) -> None:
        # Refused at once: a question that waits would hold its connection until another one is
        # done.
        if not _places.acquire(blocking=False):
            raise QueueFull(f"{MOST_TEAMS} questions are being played already; try again later")
        self._player, self._wanted = player, wanted
        self._header = wire.Header(TEAM, MESSAGES, stream=wanted.stream)
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[News] = asyncio.Queue()
        self._gone = threading.Event()
        # A daemon, because a program in the sandbox may outlast the patience of who stops the server.
        threading.Thread(target=self._play, name="team", daemon=True).start()

    def leave(self) -> None:
        """Ends the play at its next token, if it has not ended."""
        self._gone.set()

    async def whole(self) -> Response:
        """The answer at once."""
        texts: list[str] = []
        while isinstance(news := await self._next(), tuple):
            texts.append(_shown(*news, first=not texts))
        message = {
            "role": "assistant",
            "content": news.answer or "",
            "reasoning_content": "".join(texts),
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(news)}
        turns = [asdict(turn) for turn in news.turns]
        return JSONResponse(self._header.body([choice], turns=turns, usage=_usage(news)))

    async def events(self) -> AsyncIterator[bytes]:
        """The events of a stream."""
        yield self._event({"role": "assistant", "content": ""})
        first = True
        while isinstance(news := await self._next(), tuple):
            utterance, text = news
            turn = {"agent": utterance.agent, "role": utterance.role, "turn": utterance.turn}
            yield self._event(
                {"reasoning_content": _shown(utterance, text, first=first)}, turn=turn
            )
            first = False
        if news.answer:
            yield self._event({"content": news.answer})
        turns = [asdict(utterance) for utterance in news.turns]
        yield self._event({}, finish=_finish(news), turns=turns)
        if self._wanted.usage:
            yield wire.event(self._header.body([], usage=_usage(news)))
        yield wire.DONE

    async def _next(self) -> tuple[Said, str] | Played:
        news = await self._news.get()
        if isinstance(news, PettingLLMsError):
            raise news
        return news

    def _event(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return wire.event(self._header.body([choice], **more))

    # ------------------------------------------------------------------------------ the thread

    def _play(self) -> None:
        # For errors that are not ours, which the thread raises after the client has heard of them.
        last: News = Stopped("the play failed; the server's log says why")
        try:
            last = self._player.play(
                self._wanted, lambda said, text: self._tell((said, text)), self._gone
            )
        except PettingLLMsError as error:
            last = error
        finally:
            # Before the client hears of the end, so that its next question finds the place free.
            _places.release()
            self._tell(last)

    def _tell(self, news: News) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and nobody listens
            self._loop.call_soon_threadsafe(self._news.put_nowait, news)


def _shown(said: Said, text: str, *, first: bool) -> str:
    """A piece of the transcript; the first piece of a turn, which is empty, becomes its heading."""
    return text or f"{'' if first else chr(10) * 2}{said.agent}, turn {said.turn}:\n"


def _finish(played: Played) -> str:
    return "stop" if played.complete else "length"


def _usage(played: Played) -> dict[str, int]:
    return wire.usage(played.prompt_tokens, sum(turn.tokens for turn in played.turns))
