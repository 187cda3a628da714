"""A team that is sampled in this process, by one worker for all requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from pettingllms.envs.questions import role_prompts
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.episode import AnyEnv
from pettingllms.samplers.base import SamplingParams
from pettingllms.samplers.continuous import prompt_cache
from pettingllms.serving.completing import Completing, Inbox, completed
from pettingllms.serving.http import EventStream, unless_gone
from pettingllms.serving.requests import RequestReader
from pettingllms.serving.team import TeamPlayer
from pettingllms.serving.wire import Writer
from pettingllms.serving.worker import Worker
from pettingllms.types import Completion, Request

MOST_WAITING = 256
"""Completions that may wait for their first token."""
_READERS = 2
"""Threads that turn bodies into tokens, which may take a moment for a long one."""
_CLOSE_SECONDS = 0.5


class RoleServer:
    """Answers requests to the roles of a team.

    Args:
        policies: the roles and their weights; sampled from a thread of this server alone.
        max_tokens: length of a completion if the request does not set it.
        env: the team's environment, for the prompts of its roles; None: the chat template alone.
        most_waiting: completions that may wait; more are refused with 429.

    Raises:
        ConfigError: requests that come and go cannot share a batch of this model.
    """

    def __init__(
        self,
        policies: PolicySet,
        max_tokens: int,
        env: AnyEnv | None = None,
        *,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        for name in policies.names:
            prompt_cache(policies.sampling_model(name))  # not at the first request
        self.policies = policies
        prompts = {} if env is None else role_prompts(env)
        self.reader = RequestReader(policies, prompts, max_tokens)
        self.worker = Worker(
            policies.sampling_model,
            {name: policies.chat_for(name) for name in policies.names},
            most_waiting=most_waiting,
        )
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="read")
        self.team = None
        if env is not None and prompts:
            self.team = TeamPlayer(env, policies, self._speak)

    def close(self) -> None:
        """Ends all requests."""
        self.worker.close(_CLOSE_SECONDS)
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _speak(
        self,
        role: str,
        request: Request,
        params: SamplingParams,
        heard: Callable[[str], None],
    ) -> Completion:
        del role
        chat = self.policies.chat_for(request.policy)
        return completed(request, params, chat, self.worker.submit, self.worker.leave, heard)

    # ------------------------------------------------------------------------------ answers

    async def answer(self, request: HttpRequest, body: Mapping[str, Any], form: str) -> Response:
        """The answer of a role to a body of this form."""
        loop = asyncio.get_running_loop()
        # Off the event loop: tokenizing a long prompt would hold up all other clients.
        wanted = await loop.run_in_executor(self._readers, self.reader.read, body, form)
        inbox = Inbox(pieces=wanted.stream, leave=lambda: self.worker.leave(job))
        policy = self.policies.policy_for(wanted.role)
        chat = self.policies.chat_for(policy)
        job = Completing(
            policy,
            wanted.prompts,
            wanted.n,
            wanted.params,
            wanted.seed,
            chat,
            inbox,
            stop=wanted.stop,
            likeliest=wanted.likeliest or 0,
            score_prompts=wanted.echo
            and (wanted.likeliest is not None or not wanted.params.max_new_tokens),
        )
        writer = Writer(wanted, chat)
        self.worker.submit(job)
        if wanted.stream:
            events = _events(job, inbox, writer)
            return EventStream(events, lambda: self.worker.leave(job))
        try:
            return await unless_gone(request, _answer(job, inbox, writer))
        finally:
            self.worker.leave(job)


async def _answer(job: Completing, inbox: Inbox, writer: Writer) -> Response:
    async for _ in inbox.pieces():
        pass
    return JSONResponse(writer.whole(job.choices, job.scores))


async def _events(job: Completing, inbox: Inbox, writer: Writer) -> AsyncIterator[bytes]:
    for opening in writer.opening():
        yield opening
    async for pieces in inbox.pieces():
        if written := writer.pieces(pieces):
            yield written
    yield writer.closing(job.choices)
