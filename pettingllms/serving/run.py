"""Runs an application until a signal asks the process to stop, and not much longer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.auto import AutoHTTPProtocol

FINISH_SECONDS = 1.0
"""What requests in progress get to finish."""
STOP_SECONDS = 3
"""When connections that are still open are cut."""


HEADER_SECONDS = 10.0
"""Time for the headers of a request to arrive, from the connection or its first byte on."""


class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
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
        http=Protocol,
        lifespan="off",  # a second signal would show its cancellation as a traceback
        log_level="warning",
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    try:
        _Server(settings, end_requests).run(sockets=[listening])
    finally:
        end_requests()
