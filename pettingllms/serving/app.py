"""The HTTP interface of a team that is sampled in this process.

GET   /health                 no key needed
GET   /v1/models              the roles, and `team` where it can play a question
GET   /v1/models/ROLE         how the role's prompt is made of a question
POST  /v1/chat/completions    a role, or the team
POST  /v1/completions         a role, raw
GET   /tokenizer_info         these three as vLLM has them: evaluation harnesses
POST  /tokenize, /detokenize  count tokens with the served model's own tokenizer
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from pettingllms.envs.questions import PLACE, RolePrompt, role_prompts
from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.episode import AnyEnv
from pettingllms.samplers.base import SamplingParams
from pettingllms.serving.completing import Completing, Inbox, completed
from pettingllms.serving.http import EventStream, body_of, guarded, unless_gone
from pettingllms.serving.requests import (
    MESSAGES,
    PROMPT,
    TEAM,
    CompletionRequest,
    RequestReader,
    TeamRequest,
    plain,
)
from pettingllms.serving.team import TeamPlayer
from pettingllms.serving.team_stream import TeamAnswer
from pettingllms.serving.wire import Writer
from pettingllms.serving.worker import Worker
from pettingllms.types import Completion, Request

MOST_WAITING = 256
"""Requests that may wait for their first token."""
_READERS = 2
"""Threads that turn bodies into tokens, which may take a moment for a long one."""
_CLOSE_SECONDS = 1.0


class RoleServer:
    """Answers requests to the roles of a team.

    Args:
        policies: the roles and their weights; sampled from a thread of this server alone.
        max_tokens: length of a completion if the request does not set it.
        env: the team's environment, for the prompts of its roles; None: the chat template alone.
        most_waiting: requests that may wait; one more is refused with 429.
    """

    def __init__(
        self,
        policies: PolicySet,
        max_tokens: int,
        env: AnyEnv | None = None,
        *,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self.policies = policies
        prompts = {} if env is None else role_prompts(env)
        self.reader = RequestReader(policies, prompts, max_tokens)
        self.worker = Worker(
            policies.sampling_model,
            policies.names,
            policies.chat.end_ids,
            policies.chat.pad_id,
            most_waiting=most_waiting,
        )
        self.team = None
        if env is not None and prompts:
            self.team = TeamPlayer(env, policies, self._speak)

    @property
    def models(self) -> tuple[str, ...]:
        """The names that `model` may have."""
        return self.reader.roles if self.team is None else (*self.reader.roles, TEAM)

    def close(self) -> None:
        """Ends all requests."""
        self.worker.close(_CLOSE_SECONDS)

    def _speak(
        self,
        role: str,
        request: Request,
        params: SamplingParams,
        heard: Callable[[str], None],
    ) -> Completion:
        del role
        chat = self.policies.chat
        return completed(request, params, chat, self.worker.submit, self.worker.leave, heard)

    # ------------------------------------------------------------------------------ answers

    async def complete(self, request: HttpRequest, wanted: CompletionRequest) -> Response:
        """The answer of a role."""
        inbox = Inbox(pieces=wanted.stream)
        job = Completing(
            self.policies.policy_for(wanted.role),
            wanted.prompts,
            wanted.n,
            wanted.params,
            wanted.seed,
            self.policies.chat,
            inbox,
            stop=wanted.stop,
            likeliest=wanted.likeliest or 0,
            score_prompts=wanted.echo
            and (wanted.likeliest is not None or not wanted.params.max_new_tokens),
        )
        writer = Writer(wanted, self.policies.chat)
        self.worker.submit(job)
        if wanted.stream:
            events = _events(job, inbox, writer)
            return EventStream(events, lambda: self.worker.leave(job))
        try:
            return await unless_gone(request, _answer(job, inbox, writer))
        finally:
            self.worker.leave(job)

    async def play(self, request: HttpRequest, wanted: TeamRequest) -> Response:
        """The answer of the team."""
        assert self.team is not None
        answer = TeamAnswer(self.team, wanted)
        if wanted.stream:
            return EventStream(answer.events(), answer.leave)
        try:
            return await unless_gone(request, answer.whole())
        finally:
            answer.leave()


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


def card(model: str, prompts: Mapping[str, RolePrompt], created: int) -> dict[str, Any]:
    """What `/v1/models` says of a model."""
    found = {"id": model, "object": "model", "created": created, "owned_by": "pettingllms"}
    if model == TEAM:
        how = "a single user message is the question that the whole team plays on"
        return found | {"prompt": how, "roles": list(prompts)}
    if model not in prompts:
        how = "the conversation by the chat template: the environment takes no free question"
        return found | {"prompt": how, "role_prompt": None}
    how = "the first user message takes the place of {question} in role_prompt; then the chat template"
    return found | {"prompt": how, "role_prompt": prompts[model].of(PLACE)}


class _Interface:
    """The handlers of the paths."""

    def __init__(self, server: RoleServer) -> None:
        self._server, self._tokenizer = server, server.policies.chat.tokenizer
        self.readers = ThreadPoolExecutor(_READERS, thread_name_prefix="read")
        created = int(time.time())
        self._cards = {name: card(name, server.reader.prompts, created) for name in server.models}

    async def models(self, _: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": list(self._cards.values())})

    async def model(self, request: HttpRequest) -> Response:
        name = request.path_params["name"]
        if name not in self._cards:
            raise UnknownNameError(f"no model {name!r}; {did_you_mean(name, self._cards)}")
        return JSONResponse(self._cards[name])

    async def complete(self, request: HttpRequest) -> Response:
        form = MESSAGES if request.url.path.endswith("/chat/completions") else PROMPT
        body = await body_of(request)
        loop = asyncio.get_running_loop()
        wanted = await loop.run_in_executor(self.readers, self._server.reader.read, body, form)
        if isinstance(wanted, TeamRequest):
            return await self._server.play(request, wanted)
        return await self._server.complete(request, wanted)

    async def tokenizer_info(self, _: HttpRequest) -> Response:
        names = ("bos_token", "eos_token", "pad_token", "chat_template")
        return JSONResponse({name: getattr(self._tokenizer, name, None) for name in names})

    async def tokenize(self, request: HttpRequest) -> Response:
        text = (await body_of(request)).get("prompt")
        if not isinstance(text, str):
            raise ConfigError("prompt must be text")
        ids = self._tokenizer.encode(plain(text), add_special_tokens=False)
        context = self._server.policies.context
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": context})

    async def detokenize(self, request: HttpRequest) -> Response:
        ids, size = (await body_of(request)).get("tokens"), len(self._tokenizer)
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < size for i in ids):
            raise ConfigError(f"tokens must be a list of ids from 0 to {size - 1}")
        text = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return JSONResponse({"prompt": text})

    async def health(self, _: HttpRequest) -> Response:
        return PlainTextResponse("")


def application(server: RoleServer, key: str | None) -> Starlette:
    """Builds the HTTP interface; a key, if given, is required everywhere but at `/health`."""
    interface = _Interface(server)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        server.close()
        interface.readers.shutdown(wait=False, cancel_futures=True)

    routes = [
        ("/v1/models", interface.models, "GET"),
        ("/v1/models/{name:path}", interface.model, "GET"),
        ("/v1/chat/completions", interface.complete, "POST"),
        ("/v1/completions", interface.complete, "POST"),
        ("/tokenizer_info", interface.tokenizer_info, "GET"),
        ("/tokenize", interface.tokenize, "POST"),
        ("/detokenize", interface.detokenize, "POST"),
    ]
    return Starlette(
        routes=[
            Route("/health", interface.health),
            *(Route(path, guarded(do, key), methods=[method]) for path, do, method in routes),
        ],
        lifespan=lifespan,
    )
