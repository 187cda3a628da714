"""An HTTP client whose answers end, whatever a server sends.

The limits of HTTP clients are for each read, which a server that sends a drop at a time never exceeds;
and the `openai` client reads the body of an error to its end before it raises. Imported only where
the `openai` client is installed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx2
import openai


def bounded_client(seconds: float, most_bytes: int) -> httpx2.Client:
    """A client that gives an answer this long and this much, headers and all attempts apart."""

    def begin(request: httpx2.Request) -> None:
        # The client calls this for every request that it sends, redirects among them.
        request.extensions["until"] = time.monotonic() + seconds

    def bound(response: httpx2.Response) -> None:
        stream, until = response.stream, response.request.extensions["until"]
        if isinstance(stream, httpx2.SyncByteStream):
            response.stream = _Bounded(stream, until, most_bytes)
        if response.is_error:
            # Its body is read whole, so that a small one must not unfold into a large one.
            response.headers.pop("content-encoding", None)

    return openai.DefaultHttpxClient(event_hooks={"request": [begin], "response": [bound]})


class _Bounded(httpx2.SyncByteStream):
    def __init__(self, stream: httpx2.SyncByteStream, until: float, left: int) -> None:
        self._stream, self._until, self._left = stream, until, left

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            self._left -= len(chunk)
            late = time.monotonic() > self._until
            if late or self._left < 0:
                self.close()  # who reads an error does not close it when reading fails
                if late:
                    raise httpx2.ReadTimeout("the answer does not end")
                raise httpx2.ReadError("the answer has too many bytes")
            yield chunk

    def close(self) -> None:
        self._stream.close()
