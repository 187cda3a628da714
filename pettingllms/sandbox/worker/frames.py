"""Frames: how the client and the worker talk, over any pair of byte streams.

    frame = b"PLS1" | u32 length of the header | header (JSON, numbers and flags) | payload

The header of a request or reply never holds a program's text, input or output. Those are raw
bytes in the payload, whose length follows from the header. Any bytes are legal in a payload.
Everything here raises `FrameError` on bytes that are no frame, and never reads more than the
header announces.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Iterable
from typing import Any

MAGIC = b"PLS1"
PREFIX = struct.Struct("<4sI")
MAX_HEADER_BYTES = 1 << 20
_CHUNK = 1 << 18
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class FrameError(Exception):
    """The bytes on the stream are not a frame, or the stream ended or fell silent inside one."""


def encode(header: dict[str, Any], payload: Iterable[bytes] = ()) -> bytes:
    """One frame as bytes; `payload` parts are joined in order."""
    text = _ENCODER.encode(header).encode("ascii")
    return b"".join((PREFIX.pack(MAGIC, len(text)), text, *payload))


def header_size(prefix: bytes) -> int:
    """Length of the header that follows `prefix`, in bytes."""
    if len(prefix) != PREFIX.size:
        raise FrameError(f"a frame starts with {PREFIX.size} bytes, got {len(prefix)}")
    magic, size = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise FrameError(f"a frame starts with {MAGIC!r}, got {magic!r}")
    # Before it is read: four bytes that are no length could ask for gigabytes.
    if size > MAX_HEADER_BYTES:
        raise FrameError(f"a header has at most {MAX_HEADER_BYTES} bytes, got {size}")
    return int(size)


def decode_header(text: bytes) -> dict[str, Any]:
    """The header's object."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a header is JSON text: {error}") from None
    if not isinstance(header, dict):
        raise FrameError(f"a header is a JSON object, got {type(header).__name__}")
    return header


class Stream:
    """Exact reads and writes on two descriptors, each with a deadline on the monotonic clock.

    A deadline of None waits without limit. Both descriptors are made non-blocking when `patient` is
    false; the worker keeps them blocking, because it has no deadline of its own.
    """

    def __init__(self, read_fd: int, write_fd: int, *, patient: bool = False) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        if not patient:
            os.set_blocking(read_fd, False)
            os.set_blocking(write_fd, False)

    def read(self, size: int, deadline: float | None = None) -> bytearray:
        """Exactly `size` bytes."""
        data = bytearray(size)
        with memoryview(data) as view:
            self.read_into(view, deadline)
        return data

    def read_into(self, view: memoryview, deadline: float | None = None) -> None:
        """Fill `view` from the stream."""
        filled = 0
        while filled < len(view):
            try:
                # Into the buffer itself, because a payload may have many megabytes.
                count = os.readv(self.read_fd, [view[filled : filled + _CHUNK]])
            except BlockingIOError:
                _wait(self.read_fd, select.POLLIN, deadline)
                continue
            if count == 0:
                raise FrameError("the other side closed the stream inside a frame")
            filled += count

    def read_into_file(self, fd: int, size: int) -> None:
        """Move exactly `size` bytes to the end of the file `fd`."""
        while size:
            data = self.read(min(size, _CHUNK))
            os.write(fd, data)
            size -= len(data)

    def read_header(self, deadline: float | None = None) -> dict[str, Any]:
        """The next frame's header; its payload, if any, is next on the stream."""
        size = header_size(bytes(self.read(PREFIX.size, deadline)))
        return decode_header(bytes(self.read(size, deadline)))

    def write(self, data: bytes, deadline: float | None = None) -> None:
        """All of `data`."""
        with memoryview(data) as view:
            sent = 0
            while sent < len(view):
                try:
                    sent += os.write(self.write_fd, view[sent : sent + _CHUNK])
                except BlockingIOError:
                    _wait(self.write_fd, select.POLLOUT, deadline)


def _wait(fd: int, event: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(fd, event)
    if deadline is None:
        poll.poll()
        return
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000 + 1):
        raise FrameError("the other side did not answer in time")
