"""Runs an application until a signal asks the process to stop, and not much longer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

FINISH_SECONDS = 1.0
"""What requests in progress get to finish."""
STOP_SECONDS = 3
"""When connections that are still open are cut."""


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
        end_requests: called from the event loop to give the requests in progress an early end.
    """
    settings = uvicorn.Config(
        application, log_level="warning", timeout_graceful_shutdown=STOP_SECONDS
    )
    _Server(settings, end_requests).run(sockets=[listening])
