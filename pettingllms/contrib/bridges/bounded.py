"""Bounds what clients may ask of an ASGI application: the size of messages, the age of connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# Codes from 4000 on are an application's own (RFC 6455, section 7.4.2); 408 is HTTP's timeout.
TOO_OLD = 4408
"""Code with which a WebSocket that is too old is closed; 1009 is that of a message that is too large."""


class Bounded:
    """An application whose requests are bounded.

    Args:
        app: the application.
        age: most seconds of a WebSocket.
        message_bytes: most bytes of the body of a request. Those of a WebSocket's messages are
            bounded by the server (`ws_max_size` of uvicorn), before they are in memory.
    """

    def __init__(self, app: App, *, age: float, message_bytes: int) -> None:
        self._app, self._age, self._most = app, age, message_bytes

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] == "websocket":
            await self._session(scope, receive, send)
        elif scope["type"] == "http":
            await self._request(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _session(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        reason = f"this session is older than {self._age:g} s; connect again"
        ended: Message = {"type": "websocket.close", "code": TOO_OLD, "reason": reason}
        closed = False

        async def tell(message: Message) -> None:
            nonlocal closed
            if message["type"] == "websocket.close":
                closed = True
                # An application that is canceled closes by itself, and would give no reason.
                message = ended if limit.expired() else message
            await send(message)

        try:
            async with asyncio.timeout(self._age) as limit:
                await self._app(scope, receive, tell)
        except TimeoutError:
            if not closed:
                await send(ended)

    async def _request(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Reads the body before the application does, up to the bound."""
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client has gone
            # Counted as it comes, because a body in chunks does not announce its length.
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._most:
                await self._refuse(send)
                return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def read() -> Message:
            # After the body, an application may still wait for the message that the client is gone.
            return whole.pop() if whole else await receive()

        await self._app(scope, read, send)

    async def _refuse(self, send: Send) -> None:
        text = json.dumps({"detail": f"a message may have {self._most} bytes"}).encode()
        # The rest of the body stays unread, so that the connection cannot carry another request.
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": text})
