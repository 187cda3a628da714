"""The rules for every request: the key, the body's size and time, errors, a client that leaves.

The key is checked before a byte of the body is read. A body that is too large or comes too slowly
is refused, and never kept. A handler does not learn that a client leaves: it is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pettingllms.envs.program_calls import NotServed
from pettingllms.errors import ConfigError, PettingLLMsError, UnknownNameError
from pettingllms.serving import wire
from pettingllms.serving.worker import QueueFull

LARGEST_BODY = 4 << 20
BODY_SECONDS = 30.0
"""Time for a request's body to arrive."""
RETRY_SECONDS = 2
"""Wait that a client is asked for when the queue is full."""

Handler = Callable[[Request], Awaitable[Response]]


def guarded(handler: Handler, key: str | None) -> Handler:
    """A handler that asks for the key, and whose errors are answers."""

    async def guard(request: Request) -> Response:
        if not authorized(request.headers.get("authorization"), key):
            return refused(401, "wrong or missing API key")
        try:
            return await handler(request)
        except NotServed as error:
            return refused(error.status, str(error))
        except PettingLLMsError as error:
            return refused(status_of(error), str(error))
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it

    return guard


def authorized(header: str | None, key: str | None) -> bool:
    """Checks a request's `Authorization` for the key, in a time that does not depend on the key."""
    scheme, _, token = (header or "").strip().partition(" ")
    # The name of a scheme may be written in any case (RFC 9110, section 11.1).
    is_bearer = scheme.lower() == "bearer"
    return key is None or (
        is_bearer and secrets.compare_digest(token.strip().encode(), key.encode())
    )


def status_of(error: PettingLLMsError) -> int:
    """The HTTP status of an error of ours."""
    if isinstance(error, UnknownNameError):
        return 404
    if isinstance(error, QueueFull):
        return 429
    return 400 if isinstance(error, ConfigError) else 503


def refused(status: int, message: str) -> Response:
    """An error as an answer."""
    headers = {"Retry-After": str(RETRY_SECONDS)} if status in (429, 503) else None
    return JSONResponse(wire.error(message, status), status_code=status, headers=headers)


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that a request holds.

    Raises:
        NotServed: too large, or too slow.
        ConfigError: no JSON object.
    """
    too_large = f"the request is larger than {LARGEST_BODY} bytes"
    length = request.headers.get("content-length", "0")
    # Refused unread where the client says its length; counted below, because it need not be true.
    if length.isdecimal() and int(length) > LARGEST_BODY:
        raise NotServed(413, too_large)
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > LARGEST_BODY:
                    raise NotServed(413, too_large)
                parts.append(chunk)
    except TimeoutError as error:
        raise NotServed(408, f"the body did not arrive in {BODY_SECONDS:.0f} s") from error
    try:
        value = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the request is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("the request must be a JSON object")
    return value


async def unless_gone(request: Request, answer: Awaitable[Response]) -> Response:
    """The answer, or its cancellation when the client leaves; its body must have been read."""
    task = asyncio.ensure_future(answer)
    # A client that leaves is seen only by who receives.
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        await _cancelled(task, gone)


class Streamed(StreamingResponse):
    """An answer that comes in parts; `close` is called when the last one is sent, or the client leaves.

    Args:
        parts: what is sent.
        close: frees their source.
        status: the HTTP status.
        kind: the content type.
    """

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None] | None],
        *,
        status: int,
        kind: str,
    ) -> None:
        # Proxies must neither keep events back nor change them.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(parts, status, headers, kind)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the parts; a client that has left gets no error."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Not in the source itself, which may not even have begun.
            if (closing := self._close()) is not None:
                await closing

    async def stream_response(self, send: Send) -> None:
        """Sends the parts, and an error of ours as the last of them."""
        try:
            await super().stream_response(send)
        except PettingLLMsError as error:
            # The status has been sent; clients look for `error` in the events.
            event = wire.event(wire.error(str(error), status_of(error)))
            await send({"type": "http.response.body", "body": event, "more_body": False})


class EventStream(Streamed):
    """Server-sent events."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(events, close, status=200, kind="text/event-stream")


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancels tasks and waits until they have cleaned up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
