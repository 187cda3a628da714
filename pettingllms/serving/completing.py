"""A request for completions as the worker's job, and who waits for it.

The worker's thread turns tokens into text, so that stop strings end a row at once and the numbers of
tokens do not depend on how busy the event loop is.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pettingllms.errors import PettingLLMsError
from pettingllms.policies.chat import Chat
from pettingllms.samplers.base import SamplingParams
from pettingllms.samplers.continuous import Row, Token, rows_of
from pettingllms.serving.worker import Stopped
from pettingllms.types import Completion, Request

# ----------------------------------------------------------------------------- text from tokens
# Text from tokens as they come: pieces of a stream, stop strings, log-probabilities.
#
# A character may be spread over several tokens, and so may a stop string. What could still become part of one
# is held back, so that the pieces of a stream, joined, are the text of the whole completion.


_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_LONGEST_TAIL = 3
"""Bytes of a UTF-8 character that may be there before its last one."""


class TextStream:
    """Decodes a growing list of tokens, each only a few times."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        # Decoded again with each token: some tokenizers write a token in another way at the start
        # of a text, so that it needs the tokens before it.
        self._start = self._read = 0
        self._given = 0
        """Characters of the current window that have been given out."""

    def push(self, token: int) -> str:
        """The text that is certain now."""
        self._ids.append(token)
        text = self._decode(self._ids[self._start :])
        # An unfinished character is decoded as replacement characters, which the next token may
        # turn into another.
        tail = len(text) - len(text.rstrip(_UNFINISHED))
        # More of them than a character has bytes were written by the model itself.
        certain = text[: len(text) - min(tail, _LONGEST_TAIL)]
        new = certain[self._given :]
        if not tail:
            # The window keeps the tokens since the last certain place, as context for those that
            # come.
            self._start, self._read = self._read, len(self._ids)
            self._given = len(self._decode(self._ids[self._start :]))
        else:
            self._given = max(self._given, len(certain))
        return new

    def rest(self) -> str:
        """The text held back, when nothing more comes."""
        text = self._decode(self._ids[self._start :])
        new = text[self._given :]
        self._given = len(text)
        return new


class Stops:
    """Looks for stop strings in a text that comes in pieces.

    Args:
        stops: strings that end the text; they are not part of it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """Returns the text that can no longer be part of a stop string; after `found`, nothing."""
        if self.found:
            return ""
        text = self._held + piece
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            # The first stop string in the text counts, not the first in the list.
            return text[: min(places)]
        size = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - size :]
        return text[: len(text) - size]

    def rest(self) -> str:
        """Returns the text that was held back, once nothing more comes."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    # A whole stop string has been looked for already.
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


@dataclass(slots=True)
class Choice:
    """One completion as it grows."""

    stream: TextStream
    stops: Stops
    end_ids: frozenset[int]
    tokens: list[Token] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    """Why it ended: stop or length; None: not yet."""

    def push(self, token: Token) -> str:
        """Takes a token; returns the text that is certain now."""
        self.tokens.append(token)
        # A token that ends the turn is counted, and is no text.
        piece = "" if token.id in self.end_ids else self.stream.push(token.id)
        new = self.stops.push(piece)
        if self.stops.found:
            self.finish = "stop"
        elif token.end is not None:
            new += self._rest()
            # What was held back may complete a stop string with the last token.
            self.finish = "stop" if self.stops.found else token.end
        self.text += new
        return new

    def _rest(self) -> str:
        new = self.stops.push(self.stream.rest())
        return new if self.stops.found else new + self.stops.rest()


class Piece(NamedTuple):
    """The addition of one token to a choice."""

    number: int
    """Of the choice."""
    text: str
    token: Token
    finish: str | None


News = Sequence[Piece] | PettingLLMsError | None
"""New pieces, or None when all choices have ended, or why nothing more comes."""
MOST_UNREAD = 1024
"""Events that may wait for a client, beside those in the buffers of its connection."""
Listener = Callable[[News], None]
"""Hears of a job, in the worker's thread."""


class Completing:
    """Completions of prompts by one policy.

    Args:
        policy: samples them.
        prompts: token ids.
        n: completions of each prompt, numbered prompt by prompt.
        params: how tokens are chosen.
        seed: of the first prompt; the k-th has the k-th number after it.
        chat: decodes.
        listener: hears of every piece.
        stop: strings that end a completion.
        likeliest: how many tokens to report beside each one.
        score_prompts: report the log-probabilities of the prompts' tokens.
    """

    def __init__(
        self,
        policy: str,
        prompts: Sequence[tuple[int, ...]],
        n: int,
        params: SamplingParams,
        seed: int,
        chat: Chat,
        listener: Listener,
        *,
        stop: Sequence[str] = (),
        likeliest: int = 0,
        score_prompts: bool = False,
    ) -> None:
        self.policy, self._prompts, self._n = policy, prompts, n
        self._params, self._seed, self._listener = params, seed, listener
        self._likeliest, self._score = likeliest, score_prompts
        ends = frozenset(chat.end_ids)
        self.choices = [
            Choice(TextStream(chat.decode), Stops(stop), ends) for _ in range(n * len(prompts))
        ]
        self.scores: dict[int, Sequence[Token]] = {}
        """Number of a prompt -> its tokens from the second on."""
        self.size = self._open = len(self.choices)

    def rows(self) -> list[Row]:
        """A row for each choice."""
        return [row for number in range(len(self._prompts)) for row in self._rows(number)]

    def _rows(self, number: int) -> list[Row]:
        first = number * self._n
        return rows_of(
            self._prompts[number],
            self._n,
            self._params,
            # Wraps around at the ends of 64 bits: a client may have sent the largest seed.
            (self._seed + number + (1 << 63)) % (1 << 64) - (1 << 63),
            key=lambda k: (self, first + k),
            likeliest=self._likeliest,
            score_prompt=self._score,
        )

    def take(
        self, tokens: Sequence[tuple[int, Token]], prompts: Mapping[int, Sequence[Token]]
    ) -> Collection[int]:
        """Makes text of tokens; returns the choices that a stop string has ended."""
        for number, score in prompts.items():
            # Prompts are scored with the first of their completions.
            self.scores[number // self._n] = score
        pieces, stopped = [], []
        for number, token in tokens:
            choice = self.choices[number]
            text = choice.push(token)
            pieces.append(Piece(number, text, token, choice.finish))
            if choice.finish is not None:
                self._open -= 1
                # Rows with a token that ends them have left the batch by themselves.
                if token.end is None:
                    stopped.append(number)
        # Nothing is sampled, so that no token will close a choice: a prompt is done once it is
        # scored.
        if not self._params.max_new_tokens:
            self._open = (len(self._prompts) - len(self.scores)) * self._n
        if pieces:
            self._listener(pieces)
        if not self._open:
            self._listener(None)
        return stopped

    def fail(self, error: PettingLLMsError) -> None:
        """Passes the error on."""
        self._listener(error)


class Inbox:
    """The news of a job, passed on to an event loop.

    Args:
        pieces: whether the pieces are wanted, or the end alone.
        leave: called where a client does not read; what was sampled so far and an error await it.
    """

    def __init__(self, *, pieces: bool, leave: Callable[[], None] = lambda: None) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[News] = asyncio.Queue()
        self._wants_pieces, self._leave = pieces, leave
        self._given = self._taken = 0

    def __call__(self, news: News) -> None:
        """Takes news in the worker's thread."""
        # An event loop that waits for the whole would be woken for every token.
        if self._wants_pieces or not isinstance(news, Sequence):
            unread = self._given - self._taken
            if unread > MOST_UNREAD:
                return
            self._given += 1
            if unread == MOST_UNREAD:
                self._leave()
                news = Stopped(f"{unread} events were not read; read them as they come")
            with contextlib.suppress(RuntimeError):  # the loop is gone, and nobody listens
                self._loop.call_soon_threadsafe(self._queue.put_nowait, news)

    async def pieces(self) -> AsyncIterator[Sequence[Piece]]:
        """The pieces as they come, to the end; raises why there are no more."""
        while (news := await self._queue.get()) is not None:
            self._taken += 1
            if isinstance(news, PettingLLMsError):
                raise news
            yield news


def completed(
    request: Request,
    params: SamplingParams,
    chat: Chat,
    run: Callable[[Completing], None],
    leave: Callable[[Completing], None],
    heard: Callable[[str], None],
) -> Completion:
    """Waits in this thread for one completion of a request; an error of its job is raised.

    Args:
        request: what to sample.
        params: how.
        chat: decodes.
        run: submits the job.
        leave: takes it back.
        heard: called with each new piece of text; may raise to leave.
    """
    inbox: queue.SimpleQueue[News] = queue.SimpleQueue()
    job = Completing(request.policy, [request.prompt_ids], 1, params, request.seed, chat, inbox.put)
    run(job)
    try:
        while (news := inbox.get()) is not None:
            if isinstance(news, PettingLLMsError):
                raise news
            heard("".join(piece.text for piece in news))
    except BaseException:
        leave(job)
        raise
    [choice] = job.choices
    return Completion(
        request.prompt_ids,
        tuple(token.id for token in choice.tokens),
        tuple(token.logprob for token in choice.tokens),
        choice.text,
        truncated=choice.finish == "length",
        version=0,
    )
