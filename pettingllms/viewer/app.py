"""The viewer's HTTP interface: the page, and the answers of a `Library` as JSON.

It answers requests that name this machine by a loopback name alone: a site elsewhere that points
its own name at 127.0.0.1 (DNS rebinding) gets nothing. Every request is a GET, and nothing is written.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pettingllms.errors import ConfigError, PettingLLMsError, UnknownNameError
from pettingllms.viewer.episodes import encoded
from pettingllms.viewer.library import Library
from pettingllms.viewer.page import INDEX, POLICY, TYPES, assets

HOSTS = ("localhost", "127.0.0.1")
LONGEST_QUERY = 1000
"""Characters of a text that is searched for."""
_NUMBERS = ("from", "after", "line")
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def application(library: Library) -> Starlette:
    """The ASGI application of a viewer."""
    # A handler that is not a coroutine runs on a thread: reading never stops other requests.
    routes = [
        Route("/", lambda _: _asset(INDEX), methods=["GET"]),
        Route("/static/{name:path}", lambda ask: _asset(ask.path_params["name"]), methods=["GET"]),
        *(
            Route(f"/api/{name}", _answering(library, answer), methods=["GET"])
            for name, answer in ANSWERS.items()
        ),
    ]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)
    return Starlette(routes=routes, middleware=[guard])


def serve(library: Library, listening: socket.socket) -> None:
    """Serves until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        application(library),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
    # uvicorn raises SIGINT once more after it has shut down.
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


def _about(answer: Callable[..., Any], *names: str) -> Callable[[Library, Request], Any]:
    """Has the library answer about the source that a request names, with these other words of it."""

    def ask(library: Library, request: Request) -> Any:
        source = library.source(_text(request, "source"))
        return answer(library, source, *(_word(request, name) for name in names))

    return ask


ANSWERS: dict[str, Callable[[Library, Request], Any]] = {
    "sources": lambda library, _: library.listed(),
    "metrics": _about(Library.metrics, "from"),
    "labels": _about(Library.labels),
    "tasks": _about(Library.tasks),
    "compare": lambda library, request: library.compare(
        *((library.source(_text(request, s)), _text(request, f"{s}l")) for s in "ab")
    ),
    "facts": _about(Library.facts, "label", "after"),
    "search": _about(Library.search, "label", "q", "after"),
    "episode": _about(Library.episode, "line"),
    "results": _about(Library.results),
}
"""What can be asked, by the last part of its path."""


def _asset(name: str) -> Response:
    # A look-up, not a path: there is nothing to leave.
    content = assets().get(name)
    if content is None:
        return Response("not found", 404, HEADERS, "text/plain")
    return Response(content, media_type=TYPES[name.rpartition(".")[2]], headers=HEADERS)


def _answering(
    library: Library, answer: Callable[[Library, Request], Any]
) -> Callable[[Request], Response]:
    def handler(request: Request) -> Response:
        try:
            value, status = answer(library, request), 200
        except PettingLLMsError as error:
            value = {"error": str(error)}
            status = 404 if isinstance(error, UnknownNameError) else 400
        return Response(encoded(value), status, HEADERS, "application/json")

    return handler


def _text(request: Request, name: str) -> str:
    return request.query_params.get(name, "")


def _word(request: Request, name: str) -> str | int:
    text = _text(request, name)
    if name not in _NUMBERS:
        return text[:LONGEST_QUERY]
    digits = text or "0"
    # Every number of that length fits into 64 bits.
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 19):
        raise ConfigError(f"{name} must be a number, got {digits[:40]!r}")
    return int(digits)
