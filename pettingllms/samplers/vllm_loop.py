"""A vLLM engine that many ask at the same time, each with the weights that it wants.

A thread runs the engine, and batches whatever is being asked (vLLM's continuous batching). With each
question come the weights to answer with: the engine remembers nothing that its replacement would
lack. An adapter is loaded where it is not held yet, beside those that others still ask for; a full
model replaces another once all that was asked of that one is answered.

Each answer says which version has made it, by what vLLM says of the request.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pettingllms.errors import ConfigError, SamplerUnavailable
from pettingllms.samplers.base import SampledTokens, SamplingParams
from pettingllms.samplers.vllm import (
    FAILURES,
    AdapterFolder,
    PublishedAdapter,
    enqueued,
    last_line,
    log_to,
    lora_request,
    replace_weights,
    sampled_tokens,
    started,
)
from pettingllms.samplers.vllm_args import check_requests
from pettingllms.types import Request

KEPT = 2
"""Versions of an adapter that are held although nobody asks for them: with `max_staleness`, two are
in use by turns."""

Files = Mapping[str, np.ndarray[Any, Any]]
"""Name -> content, of the folder that a policy is saved as."""


class Query(NamedTuple):
    """A request, and what it is to be answered with."""

    request: Request
    n: int
    params: SamplingParams
    version: int
    key: str
    """Tells these weights of the policy from all others, whatever their version."""
    files: Files
    on_tokens: Callable[[int, SampledTokens], object] | None = None
    """Called with the number of a completion and its tokens once it is there, in the engine's thread."""


class Completed(NamedTuple):
    """The completions of a request, and the version of the policy that has made them."""

    version: int
    completions: list[SampledTokens]


class _Running(NamedTuple):
    question: Query
    weights: PublishedAdapter
    answer: Future[Completed]
    done: dict[int, SampledTokens]
    """Its completions so far, by their numbers."""
    versions: dict[int, int]
    """The version that has made each of them."""
    left: dict[str, int]
    """vLLM's name for each of the others -> its number."""


class VllmLoop:
    """An engine in a thread of its own, which starts at once.

    Args:
        base: name or path of the base model.
        end_ids: tokens that end a completion.
        options: makes vLLM's, see `engine_options`; raises what `started` shall raise.
        folder: where weights are written for vLLM to read, and removed.
        log: folder of vLLM's log; None discards it.
    """

    def __init__(
        self,
        base: str,
        end_ids: tuple[int, ...],
        options: Callable[[], Mapping[str, Any]],
        *,
        folder: Path,
        log: Path | None,
    ) -> None:
        self._base, self._end_ids, self._options = base, end_ids, options
        self._folder, self._log = folder, log
        self.started: Future[None] = Future()
        """Done once the engine answers; raises a `ConfigError` that says why it cannot."""
        self._asked: queue.SimpleQueue[tuple[Query, Future[Completed]]] = queue.SimpleQueue()
        self._waiting: deque[tuple[Query, Future[Completed]]] = deque()
        self._running: dict[str, _Running] = {}
        self._held: dict[tuple[str, str], PublishedAdapter] = {}  # by policy and key, latest last
        self._busy, self._since, self._beat = 0.0, 0.0, time.monotonic()
        threading.Thread(target=self._run, name="vllm", daemon=True).start()

    def ask(self, *question: Any) -> Future[Completed]:
        """Has a request completed, whose parts are those of `Query`.

        The future raises `ConfigError` for a request that does not fit the engine, and
        `SamplerUnavailable` once vLLM has failed, as it does for all that is asked afterwards.
        """
        answer: Future[Completed] = Future()
        self._asked.put((Query(*question), answer))
        return answer

    def pulse(self) -> tuple[float, float]:
        """Seconds in which the engine had something to do, and since it last got anywhere in that."""
        now, since = time.monotonic(), self._since
        if not since:
            return self._busy, 0.0
        return self._busy + now - since, now - self._beat

    # ------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        try:
            log_to(self._log)
            options = self._options()
            self._full = "enable_lora" not in options
            self._adapters = AdapterFolder(self._write, self._folder)
            self._engine = started(self._base, options, self._end_ids)
            self._context = int(self._engine.llm_engine.model_config.max_model_len)
        except FAILURES as error:
            explained = isinstance(error, ConfigError)
            message = (
                f"vLLM cannot run the model {self._base!r}: {last_line(error)}; change --vllm.* "
                "options, or use --sampler transformers"
            )
            self.started.set_exception(error if explained else ConfigError(message))
            return
        self.started.set_result(None)
        try:
            while True:
                self._turn()
        except FAILURES as error:
            logging.getLogger("vllm").exception("the engine is given up")
            self._fail(SamplerUnavailable(f"vLLM failed: {last_line(error)}"))

    def _turn(self) -> None:
        """Takes in what was asked, computes a token of each request, answers what is complete."""
        if not (self._running or self._waiting):
            if self._since:
                self._busy, self._since = self._busy + time.monotonic() - self._since, 0.0
            self._waiting.append(self._asked.get())
            self._since = self._beat = time.monotonic()
        # Only this thread takes from the queue, so that it does not become empty in between.
        while not self._asked.empty():
            self._waiting.append(self._asked.get())
        # A request leaves the queue once vLLM has it: if `_begin` raises, `_fail` still finds it
        # here.
        while self._waiting and self._begin(*self._waiting[0]):
            self._waiting.popleft()
        if self._running:
            for output in self._engine.llm_engine.step():
                if output.finished:
                    self._finish(output)
        self._beat = time.monotonic()

    def _begin(self, question: Query, answer: Future[Completed]) -> bool:
        """Gives a request to vLLM; false if it has to wait for others to be completed."""
        request, params = question.request, question.params
        key = request.policy, question.key
        # Weights of a full model are replaced in place, under whatever is still being computed.
        if self._full and self._running and key not in self._held:
            return False
        try:
            check_requests([request], params, self._context)
        except ConfigError as error:
            answer.set_exception(error)
            return True
        # Taken out and put in again, so that the order says which weights were asked for last.
        weights = self._held.pop(key, None) or self._load(question)
        self._held[key] = weights
        adapter = None if self._full else weights
        names = enqueued(self._engine, request, question.n, params, self._end_ids, adapter)
        left = {name: k for k, name in enumerate(names)}
        running = _Running(question, weights, answer, {}, {}, left)
        self._running |= dict.fromkeys(names, running)
        return True

    def _finish(self, output: Any) -> None:
        question, weights, answer, done, versions, left = self._running.pop(output.request_id)
        # What has computed the tokens, not what was asked for: by vLLM's own word an adapter, or
        # the one full model that is loaded.
        number = None if self._full else output.lora_request.lora_int_id
        used = next(held for held in self._held.values() if number in (None, held.number))
        k = left.pop(output.request_id)
        done[k] = sampled_tokens(output.outputs[0], self._end_ids)
        versions[k] = used.version
        # Tokens of other weights are not handed out early, where no version goes with them.
        if question.on_tokens is not None and used is weights:
            question.on_tokens(k, done[k])
        if not left:
            completions = [done[k] for k in sorted(done)]
            repeats = question.n if question.params.greedy else 1
            # One completion of other weights is enough to make the whole answer theirs: whoever
            # asked compares one version.
            others = set(versions.values()) - {weights.version}
            version = min(others, default=weights.version)
            answer.set_result(Completed(version, completions * repeats))

    # -------------------------------------------------------------------------------- weights

    def _load(self, question: Query) -> PublishedAdapter:
        policy = question.request.policy
        self._files = question.files
        fresh = self._adapters.write(policy, question.version)
        if self._full:
            replace_weights(self._engine, fresh.path)
            self._held.clear()
            self._adapters.drop(fresh)  # it has been read
            return fresh
        self._make_room(policy)
        self._engine.llm_engine.add_lora(lora_request(fresh))
        return fresh

    def _make_room(self, policy: str) -> None:
        """Forgets the oldest versions of a policy that nobody asks for."""
        # An adapter has to stay while a request computes with it.
        used = {running.weights.number for running in self._running.values()}
        mine = [key for key in self._held if key[0] == policy]
        for key in mine[: len(mine) + 1 - KEPT]:
            if self._held[key].number not in used:
                old = self._held.pop(key)
                self._engine.llm_engine.remove_lora(old.number)
                self._adapters.drop(old)

    def _write(self, _policy: str, directory: Path) -> None:
        directory.mkdir()
        for name, content in self._files.items():
            content.tofile(directory / name)

    def _fail(self, error: SamplerUnavailable) -> None:
        """Gives all that was and will be asked the same answer."""
        # A request with several completions runs under several names and has one answer.
        for answer in {
            id(running.answer): running.answer for running in self._running.values()
        }.values():
            answer.set_exception(error)
        for _, answer in self._waiting:
            answer.set_exception(error)
        # The thread stays to refuse what is asked later, which would otherwise wait forever.
        while True:
            self._asked.get()[1].set_exception(error)
