"""One thread that samples for all requests at once.

Requests stand in a queue of bounded length. Before every step the thread takes rows from its head as long as
they fit into the cache, so that a request with many completions does not hold up the steps of the others;
rows leave with their last token, with a stop string, or when whoever asked has gone. Policies have a batch each, whose
steps take turns.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

from transformers import PreTrainedModel

from pettingllms.errors import PettingLLMsError
from pettingllms.policies.chat import Chat
from pettingllms.samplers.base import DEFAULT_TOKENS_PER_BATCH
from pettingllms.samplers.continuous import ContinuousBatch, Row, Token

logger = logging.getLogger(__name__)

PROMPT_TOKENS = 4096
"""Prompts computed before one step, padding included: how long the others wait for who joins."""


SCORED_TOKENS = 1024
"""The same where prompts are scored, which takes memory for the whole vocabulary at each position."""


class QueueFull(PettingLLMsError, RuntimeError):
    """So many requests are waiting that one more is refused."""


class Stopped(PettingLLMsError, RuntimeError):
    """The server is stopping, or its engine failed."""


class Job(Protocol):
    """A request: rows of one policy, and who takes their tokens. Called by the worker's thread."""

    policy: str

    def rows(self) -> list[Row]:
        """The rows, made when their turn comes; the key of each is the job and a number."""

    def take(
        self, tokens: Sequence[tuple[int, Token]], prompts: Mapping[int, Sequence[Token]]
    ) -> Collection[int]:
        """Takes tokens by the number of their row; returns rows that need no more.

        `prompts` has the tokens of prompts that are scored.
        """

    def fail(self, error: PettingLLMsError) -> None:
        """Learns that nothing more comes."""


Key = tuple[Job, int]


class Ends(NamedTuple):
    """Tokens of a policy that are none of a text."""

    ids: tuple[int, ...]
    """End a completion."""
    pad_id: int
    """Any token; it is masked."""

    @classmethod
    def of(cls, chat: Chat) -> Self:
        """Those of its tokenizer."""
        return cls(chat.end_ids, chat.pad_id)


class Worker:
    """Samples for jobs in a thread of its own, until it is closed.

    Args:
        model: policy -> the model that samples it, in evaluation mode.
        ends: policy -> the tokens that end its completions.
        most_waiting: jobs that may wait for their first token.
        tokens_per_batch: bound on the positions in the caches at one time, of all policies together.
    """

    def __init__(
        self,
        model: Callable[[str], PreTrainedModel],
        ends: Mapping[str, Ends],
        *,
        most_waiting: int,
        tokens_per_batch: int = DEFAULT_TOKENS_PER_BATCH,
    ) -> None:
        self._model, self._ends = model, ends
        self._batches = {policy: self._batch(policy) for policy in ends}
        self._most_waiting, self._tokens = most_waiting, tokens_per_batch
        # Shared with other threads, under the lock of `_changed`.
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._left: list[Job] = []
        self._closed = False
        # The thread's own.
        self._head: tuple[Job, deque[Row]] | None = None
        """The job whose rows are being taken in, and those that are not yet."""
        self._live: set[Key] = set()
        """The rows in the batches, and those on their way into one."""
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    @property
    def rows(self) -> int:
        """Completions in progress; those of waiting jobs do not count."""
        return len(self._live)

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Puts a job at the end of the queue.

        Raises:
            QueueFull: too many are waiting.
            Stopped: the worker is closed.
        """
        with self._changed:
            if self._closed:
                raise Stopped("the server is stopping")
            if len(self._waiting) >= self._most_waiting:
                raise QueueFull(
                    f"{len(self._waiting)} requests are waiting already; try again later"
                )
            self._waiting.append(job)
            self._changed.notify()

    def leave(self, job: Job) -> None:
        """Takes a job's rows out of the queue and the batch; a job that has ended is ignored."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
            else:
                self._left.append(job)
                self._changed.notify()

    def close(self, seconds: float) -> None:
        """Ends the thread after the step that it is in, waiting for this long; fails all jobs."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    # ------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while self._wait():
                # First: rows that nobody waits for any more must not take part in a step.
                self._drop()
                # Before the steps: a request that joins gets its first token from its prompt, not
                # from a step.
                self._guarded(self._next_rows)
                for policy in self._batches:
                    self._guarded(self._step, policy)
        finally:
            with self._changed:
                self._closed = True
                # Closed and listed under one lock: a job that is submitted now is refused, and so
                # none is forgotten.
                jobs = list(self._waiting)
            self._fail([*self._jobs(), *jobs], Stopped("the server is stopping"))

    def _wait(self) -> bool:
        """Waits until there is something to do; False: the worker is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._waiting or self._left or self._live or self._head
            )
            return not self._closed

    def _drop(self) -> None:
        """Takes out what belongs to jobs that have left."""
        with self._changed:
            left, self._left = self._left, []
        for job in left:
            self._remove([key for key in self._live if key[0] is job])
            if self._head is not None and self._head[0] is job:
                self._head = None

    def _step(self, policy: str) -> None:
        self._hand_out(self._batches[policy].step())

    def _next_rows(self) -> None:
        """Lets rows from the head of the queue join, as many as fit."""
        joining: dict[str, list[Row]] = {}
        while self._take_head():
            assert self._head is not None
            job, rows = self._head
            if rows and not self._fits(job.policy, rows[0], joining):
                break
            if rows:
                row = rows.popleft()
                # Before it is computed, so that a failure finds the jobs of all rows on their way.
                self._live.add((job, row.key[1]))
                joining.setdefault(job.policy, []).append(row)
            if not rows:
                self._head = None
        for policy, new in joining.items():
            added = self._batches[policy].add(new)
            # Only scored: such a row has no token that could end it.
            ended = [row.key for row in new if not row.params.max_new_tokens]
            self._hand_out(added.drawn, added.prompts, ended)

    def _take_head(self) -> bool:
        """Makes the rows of the next job that waits, if the last one's are all taken in."""
        if self._head is None:
            with self._changed:
                if not self._waiting:
                    return False
                job = self._waiting.popleft()
            # The job first: should its rows fail, it is among those that learn of it.
            self._head = job, deque()
            self._head[1].extend(job.rows())
        return True

    def _fits(self, policy: str, row: Row, joining: Mapping[str, Sequence[Row]]) -> bool:
        """Returns whether one more row may join before the next step."""
        new = [*joining.get(policy, ()), row]
        prompts = {each.prompt_ids for each in new}
        limit = SCORED_TOKENS if any(each.score_prompt for each in new) else PROMPT_TOKENS
        # Prompts are padded to the longest. A single one joins however long it is.
        if len(prompts) > 1 and len(prompts) * max(map(len, prompts)) > limit:
            return False
        used = 0
        for name, batch in self._batches.items():
            more = new if name == policy else joining.get(name, ())
            # All rows of a batch have the columns of its longest.
            longest = max([batch.longest, *map(_length, more)])
            used += (len(batch) + len(more)) * longest
        # A row that alone exceeds the bound is computed alone; it would otherwise wait forever.
        return used <= self._tokens or len(self._live) == 0

    def _hand_out(
        self,
        tokens: Iterable[Token],
        prompts: Mapping[Any, Sequence[Token]] | None = None,
        ended: Iterable[Key] = (),
    ) -> None:
        """Gives the jobs their tokens; rows that need no more leave."""
        found: dict[Job, list[tuple[int, Token]]] = {}
        scored: dict[Job, dict[int, Sequence[Token]]] = {}
        for job, number in ended:
            found.setdefault(job, [])
            self._live.discard((job, number))
        for token in tokens:
            found.setdefault(token.key[0], []).append((token.key[1], token))
            if token.end is not None:
                self._live.discard(token.key)
        for (job, number), score in (prompts or {}).items():
            scored.setdefault(job, {})[number] = score
        enough = [
            (job, number)
            for job, own in found.items()
            for number in job.take(own, scored.get(job, {}))
        ]
        # Some of them may have ended by their last token in this very step.
        self._remove([key for key in enough if key in self._live])

    def _remove(self, keys: Collection[Key]) -> None:
        for policy in {job.policy for job, _ in keys}:
            self._batches[policy].remove(keys)
        self._live.difference_update(keys)

    # ------------------------------------------------------------------------------ failures

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        """Runs a part of the loop; if the engine fails, fails the jobs in it and starts it anew."""
        try:
            action(*arguments)
        except RuntimeError as error:  # what torch raises, out of memory included
            logger.exception("sampling failed; the requests in progress are lost")
            self._fail(self._jobs(), Stopped(f"sampling failed: {str(error)[:200]}"))
            self._live.clear()
            self._head = None
            # A batch that failed in the middle of a step has rows of different lengths in its
            # cache.
            self._batches = {policy: self._batch(policy) for policy in self._batches}

    def _batch(self, policy: str) -> ContinuousBatch:
        ends = self._ends[policy]
        return ContinuousBatch(partial(self._model, policy), ends.ids, ends.pad_id)

    def _jobs(self) -> list[Job]:
        """The jobs that have rows in the batch."""
        head = [] if self._head is None else [self._head[0]]
        return list(dict.fromkeys([*head, *(job for job, _ in self._live)]))

    def _fail(self, jobs: Iterable[Job], error: PettingLLMsError) -> None:
        for job in jobs:
            job.fail(error)


def _length(row: Row) -> int:
    return len(row.prompt_ids) + row.params.max_new_tokens
