"""The HTTP interface of a team.

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
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from pettingllms.envs.questions import PLACE, RolePrompt
from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.serving.http import EventStream, body_of, guarded, refused, unless_gone
from pettingllms.serving.requests import MESSAGES, PROMPT, TEAM, RequestReader, plain
from pettingllms.serving.team import TeamAnswer, TeamPlayer


class TeamServer(Protocol):
    """A server that answers requests: `RoleServer`, or `VllmServer`."""

    reader: RequestReader
    team: TeamPlayer | None

    async def answer(self, request: HttpRequest, body: Mapping[str, Any], form: str) -> Response:
        """The answer of a role to a body of this form."""

    def close(self) -> None:
        """Ends all requests."""


def card(
    model: str, prompts: Mapping[str, RolePrompt], created: int, context: int
) -> dict[str, Any]:
    """The entry of a model in `/v1/models`."""
    entry: dict[str, Any] = {"id": model, "object": "model", "created": created}
    entry |= {"owned_by": "pettingllms", "max_model_len": context}
    if model == TEAM:
        how = "a single user message is the question that the whole team plays on"
        return entry | {"prompt": how, "roles": list(prompts)}
    if model not in prompts:
        how = "the conversation by the chat template: the environment takes no free question"
        return entry | {"prompt": how, "role_prompt": None}
    how = "the first user message takes the place of {question} in role_prompt; then the chat template"
    return entry | {"prompt": how, "role_prompt": prompts[model].of(PLACE)}


class _Interface:
    """The handlers of the paths."""

    def __init__(self, server: TeamServer) -> None:
        self._server, self._reader = server, server.reader
        reader, created = self._reader, int(time.time())
        self._cards = {
            name: card(name, reader.prompts, created, reader.context(name))
            for name in reader.models
        }

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
        if not self._reader.for_team(body):
            return await self._server.answer(request, body, form)
        # In a thread: megabytes of text take seconds to tokenize.
        wanted = await asyncio.to_thread(self._reader.read_team, body, form)
        assert self._server.team is not None  # who reads a request for the team has one
        answer = TeamAnswer(self._server.team, wanted)
        if wanted.stream:
            return EventStream(answer.events(), answer.leave)
        try:
            return await unless_gone(request, answer.whole())
        finally:
            answer.leave()

    async def tokenizer_info(self, request: HttpRequest) -> Response:
        names = ("bos_token", "eos_token", "pad_token", "chat_template")
        tokenizer = self._reader.chat(self._counting(request.query_params)).tokenizer
        return JSONResponse({name: getattr(tokenizer, name, None) for name in names})

    async def tokenize(self, request: HttpRequest) -> Response:
        body = await body_of(request)
        role, text = self._counting(body), body.get("prompt")
        if not isinstance(text, str):
            raise ConfigError("prompt must be text")
        encode = self._reader.chat(role).tokenizer.encode
        ids = await asyncio.to_thread(encode, plain(text), add_special_tokens=False)
        context = self._reader.context(role)
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": context})

    async def detokenize(self, request: HttpRequest) -> Response:
        body = await body_of(request)
        tokenizer = self._reader.chat(self._counting(body)).tokenizer
        ids, size = body.get("tokens"), len(tokenizer)
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < size for i in ids):
            raise ConfigError(f"tokens must be a list of ids from 0 to {size - 1}")
        decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
        text = await asyncio.to_thread(decode, ids)
        return JSONResponse({"prompt": text})

    def _counting(self, asked: Mapping[str, Any]) -> str:
        """The role whose tokenizer counts: any where all have the same, else the one that is named.

        Raises:
            ConfigError: none is named.
            UnknownNameError: there is none of that name.
        """
        reader = self._reader
        # Policies on one base share one tokenizer object, so that equal ones need not be compared.
        tokenizers = {id(reader.chat(role).tokenizer) for role in reader.roles}
        if len(tokenizers) == 1:
            return reader.roles[0]
        if asked.get("model") is None:
            raise ConfigError(
                f"the roles have tokenizers of their own; name one as model: {', '.join(reader.roles)}"
            )
        return reader.role(asked)

    async def health(self, _: HttpRequest) -> Response:
        return PlainTextResponse("")


def application(server: TeamServer, key: str | None) -> Starlette:
    """Builds the HTTP interface; a key, if given, is required everywhere but at `/health`."""
    interface = _Interface(server)

    routes = [
        ("/v1/models", interface.models, "GET"),
        ("/v1/models/{name:path}", interface.model, "GET"),
        ("/v1/chat/completions", interface.complete, "POST"),
        ("/v1/completions", interface.complete, "POST"),
        ("/tokenizer_info", interface.tokenizer_info, "GET"),
        ("/tokenize", interface.tokenize, "POST"),
        ("/detokenize", interface.detokenize, "POST"),
    ]

    async def unknown(request: HttpRequest, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        what = f"no {request.method} {request.url.path} here" if status < 500 else "internal error"
        paths = ", ".join(f"{method} {path}" for path, _, method in routes)
        return refused(status, f"{what}; there are {paths}" if status < 500 else what)

    return Starlette(
        exception_handlers={HTTPException: unknown, Exception: unknown},
        routes=[
            Route("/health", interface.health),
            *(Route(path, guarded(do, key), methods=[method]) for path, do, method in routes),
        ],
    )


# ----------------------------------------------------------------------------------- the server
# Runs an application until a signal asks the process to stop, and not much longer.


FINISH_SECONDS = 1.0
"""What requests in progress get to finish."""
STOP_SECONDS = 3
"""When connections that are still open are cut."""


HEADER_SECONDS = 10.0
"""Time for the headers of a request to arrive, from the connection or its first byte on."""


class HeadersInTime(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Closes connections whose headers never come, which uvicorn would keep."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begins to wait for a request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Reads; of a request that has begun the handler decides."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the wait."""
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def _watch(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # between requests, or in headers
            if self._late is None:
                self._late = self.loop.call_later(HEADER_SECONDS, self.transport.close)
        elif self._late is not None:
            self._late.cancel()
            self._late = None


class _Server(uvicorn.Server):
    """Ends the requests in progress a while after it was asked to stop."""

    def __init__(self, config: uvicorn.Config, end_requests: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_requests = end_requests

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops listening, and waits for the requests to end."""
        # uvicorn waits for requests to end, and streams of long completions do not by themselves.
        asyncio.get_running_loop().call_later(FINISH_SECONDS, self._end_requests)
        await super().shutdown(sockets)


def serve(
    application: Starlette, listening: socket.socket, end_requests: Callable[[], None]
) -> None:
    """Serves until SIGINT or SIGTERM, which is raised again at the end.

    Args:
        application: what is served.
        listening: the socket.
        end_requests: called from the event loop to give the requests in progress an early end, and at the end.
    """
    settings = uvicorn.Config(
        application,
        http=HeadersInTime,
        lifespan="off",  # a second signal would show its cancellation as a traceback
        log_level="warning",
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    try:
        _Server(settings, end_requests).run(sockets=[listening])
    finally:
        end_requests()
