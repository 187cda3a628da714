"""The team's play as an answer: its turns as reasoning, its answer as the content.

Reasoning models stream what leads to an answer as `reasoning_content` beside the answer's `content`, and clients
know how to show it. Each chunk of a turn also has `turn`, with the agent, its role and its turn's number.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from starlette.responses import JSONResponse, Response

from pettingllms.errors import PettingLLMsError
from pettingllms.serving import wire
from pettingllms.serving.requests import MESSAGES, TEAM, TeamRequest
from pettingllms.serving.team import Played, Said, TeamPlayer
from pettingllms.serving.worker import QueueFull, Stopped

MOST_TEAMS = 32
"""Questions that are played at the same time; each has a thread and runs programs."""
_places = threading.BoundedSemaphore(MOST_TEAMS)

News = tuple[Said, str] | Played | PettingLLMsError


class TeamAnswer:
    """One play, begun at once in a thread of its own.

    Args:
        player: the team.
        wanted: the question.

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
