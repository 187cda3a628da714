"""One thread that samples for all requests at once.

Completions wait in a queue of bounded length. Before every step the thread takes a row of each request in turn
as long as they fit into the cache. A part of the cache is kept for requests without a row, so that one with
many completions holds up nobody. Rows leave with their last token, with a stop string, or when whoever asked
has gone. Policies have a batch each, whose steps take turns.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

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
FURTHER = 0.75
"""Share of the cache that rows of requests with other rows in it may fill."""


class QueueFull(PettingLLMsError, RuntimeError):
    """So many completions are waiting that more are refused."""


class Stopped(PettingLLMsError, RuntimeError):
    """The server is stopping, or its engine failed."""


class Job(Protocol):
    """A request: rows of one policy, and who takes their tokens. Called by the worker's thread."""

    policy: str
    size: int
    """Number of rows."""

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


class Worker:
    """Samples for jobs in a thread of its own, until it is closed.

    Args:
        model: policy -> the model that samples it, in evaluation mode.
        chats: policy -> its tokens that end a completion.
        most_waiting: completions that may wait for their first token, those of all jobs together;
            where none waits, a job of any size may.
        tokens_per_batch: bound on the positions in the caches at one time, of all policies together.
    """

    def __init__(
        self,
        model: Callable[[str], PreTrainedModel],
        chats: Mapping[str, Chat],
        *,
        most_waiting: int,
        tokens_per_batch: int = DEFAULT_TOKENS_PER_BATCH,
    ) -> None:
        self._model, self._chats = model, chats
        self._batches = {policy: self._batch(policy) for policy in chats}
        self._most_waiting, self._tokens = most_waiting, tokens_per_batch
        # Shared with other threads, under the lock of `_changed`.
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._left: list[Job] = []
        self._closed = False
        self.waiting = 0
        """Completions that are in no batch yet."""
        # The thread's own.
        self._entering: dict[Job, deque[Row]] = {}
        """Jobs and their rows that are in no batch yet, in the order of their turns."""
        self._live: set[Key] = set()
        """The rows in the batches, and those on their way into one."""
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    @property
    def rows(self) -> int:
        """Completions in progress; those of waiting jobs do not count."""
        return len(self._live)

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
            if self.waiting and self.waiting + job.size > self._most_waiting:
                raise QueueFull(f"{self.waiting} completions are waiting already; try again later")
            self.waiting += job.size
            self._waiting.append(job)
            self._changed.notify()

    def leave(self, job: Job) -> None:
        """Takes a job's rows out of the queue and the batch; a job that has ended is ignored."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self.waiting -= job.size
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
                lambda: self._closed or self._waiting or self._left or self._live or self._entering
            )
            return not self._closed

    def _drop(self) -> None:
        """Takes out what belongs to jobs that have left."""
        with self._changed:
            left, self._left = self._left, []
        for job in left:
            self._remove([key for key in self._live if key[0] is job])
            self._count(-len(self._entering.pop(job, ())))

    def _step(self, policy: str) -> None:
        self._hand_out(self._batches[policy].step())

    def _next_rows(self) -> None:
        """Lets rows join, one of each job in turn, as many as fit."""
        with self._changed:
            new, self._waiting = self._waiting, deque()
            # The jobs first: should their rows fail, they are among those that learn of it.
            self._entering.update((job, deque()) for job in new)
        for job in new:
            self._entering[job].extend(job.rows())
        joining: dict[str, list[Row]] = {}
        full: set[Job] = set()
        while turn := [job_waiting for job_waiting in self._entering if job_waiting not in full]:
            job = turn[0]
            rows = self._entering.pop(job)
            if not self._fits(job, rows[0], joining):
                # In its place: who has no row yet waits in front of all who came later.
                self._entering = {job: rows, **self._entering}
                if not self._has_row(job):
                    break
                full.add(job)
                continue
            row = rows.popleft()
            # Before it is computed, so that a failure finds the jobs of all rows on their way.
            self._live.add((job, row.key[1]))
            self._count(-1)
            joining.setdefault(job.policy, []).append(row)
            if rows:
                self._entering[job] = rows  # at the end
        for policy, ready in joining.items():
            added = self._batches[policy].add(ready)
            # Only scored: such a row has no token that could end it.
            ended = [row.key for row in ready if not row.params.max_new_tokens]
            self._hand_out(added.drawn, added.prompts, ended)

    def _count(self, more: int) -> None:
        with self._changed:
            self.waiting += more

    def _has_row(self, job: Job) -> bool:
        return any(owner is job for owner, _ in self._live)

    def _fits(self, job: Job, row: Row, joining: Mapping[str, Sequence[Row]]) -> bool:
        """Returns whether one more row of a job may join before the next step."""
        policy = job.policy
        new = [*joining.get(policy, ()), row]
        prompts = {other.prompt_ids for other in new}
        limit = SCORED_TOKENS if any(other.score_prompt for other in new) else PROMPT_TOKENS
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
        most = self._tokens * (FURTHER if self._has_row(job) else 1)
        return used <= most or len(self._live) == 0

    def _hand_out(
        self,
        tokens: Iterable[Token],
        prompts: Mapping[Any, Sequence[Token]] | None = None,
        ended: Iterable[Key] = (),
    ) -> None:
        """Gives the jobs their tokens; rows that need no more leave."""
        by_job: dict[Job, list[tuple[int, Token]]] = {}
        scored: dict[Job, dict[int, Sequence[Token]]] = {}
        for job, number in ended:
            by_job.setdefault(job, [])
            self._live.discard((job, number))
        for token in tokens:
            by_job.setdefault(token.key[0], []).append((token.key[1], token))
            if token.end is not None:
                self._live.discard(token.key)
        for (job, number), score in (prompts or {}).items():
            scored.setdefault(job, {})[number] = score
        enough = [
            (job, number)
            for job, its in by_job.items()
            for number in job.take(its, scored.get(job, {}))
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
            self._count(-sum(map(len, self._entering.values())))
            self._entering.clear()
            # A batch that failed in the middle of a step has rows of different lengths in its
            # cache.
            self._batches = {policy: self._batch(policy) for policy in self._batches}

    def _batch(self, policy: str) -> ContinuousBatch:
        chat = self._chats[policy]
        return ContinuousBatch(partial(self._model, policy), chat.end_ids, chat.pad_id)

    def _jobs(self) -> list[Job]:
        """The jobs that have rows in the batch, or are about to."""
        return list(dict.fromkeys([*self._entering, *(job for job, _ in self._live)]))

    def _fail(self, jobs: Iterable[Job], error: PettingLLMsError) -> None:
        for job in jobs:
            job.fail(error)


def _length(row: Row) -> int:
    return len(row.prompt_ids) + row.params.max_new_tokens
