"""Streams of a container: the blocks of the engine's API, and TLS behind a plain socket.

Measured against the `docker` command's pipes, the engine's socket saves a process and two copies,
and it needs no command installed. The engine sends output in blocks, `u8 stream, 3 zeros, u32
length`, which are taken apart here; input goes to the container unchanged. The streams of frames
work on descriptors, which TLS does not have: there a thread moves the bytes to a plain socket. It
ends when either side is closed, and closes the other.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import weakref
from collections.abc import Callable

from pettingllms.sandbox.worker import frames

_BLOCK = struct.Struct(">BxxxI")
_STDERR = 2
_NOTES_BYTES = 2000


class AttachedStream(frames.Stream):
    """Frames from a container's standard output; what it says on standard error is kept aside."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, fd)
        self.notes = b""
        self._left = 0
        """Bytes of the present block that are still to be read."""

    def read_into(self, view: memoryview, deadline: float | None = None) -> None:
        """Fill `view` from the container's standard output."""
        filled = 0
        while filled < len(view):
            while not self._left:
                self._next_block(deadline)
            count = min(self._left, len(view) - filled)
            super().read_into(view[filled : filled + count], deadline)
            self._left -= count
            filled += count

    def _next_block(self, deadline: float | None) -> None:
        kind, size = _BLOCK.unpack(self._read_raw(_BLOCK.size, deadline))
        if kind > _STDERR:
            raise frames.FrameError(f"the engine sent a block of kind {kind}, expected 0 to 2")
        if kind == _STDERR:
            self.notes = (self.notes + self._read_raw(size, deadline))[-_NOTES_BYTES:]
        else:
            self._left = size

    def _read_raw(self, size: int, deadline: float | None) -> bytes:
        data = bytearray(size)
        with memoryview(data) as view:
            super().read_into(view, deadline)
        return bytes(data)


_CHUNK = 1 << 16
_HELD = 1 << 20
"""Bytes read from one side beyond what the other has taken, roughly."""


def plain_end(secure: ssl.SSLSocket, closed: Callable[[], object] = lambda: None) -> socket.socket:
    """A socket that reads and writes what `secure` does; closing it closes `secure`.

    `closed` is called after that, to let go of what else holds the connection.
    """
    ours, theirs = socket.socketpair()
    for end in (secure, ours):
        end.setblocking(False)
        _OPEN.add(end)
    threading.Thread(
        target=_move, args=(secure, ours, closed), name="tls relay", daemon=True
    ).start()
    return theirs


def _move(secure: ssl.SSLSocket, plain: socket.socket, closed: Callable[[], object]) -> None:
    up, down = bytearray(), bytearray()
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        stack.callback(closed)
        stack.enter_context(secure)
        stack.enter_context(plain)
        ended = False
        # What came before the end is still delivered.
        while not ended or down:
            _wait(secure, plain, up, down, ended)
            if len(up) < _HELD and _read(plain, up):
                return
            _write(secure, up)
            if not ended and len(down) < _HELD:
                ended = _read(secure, down)
            _write(plain, down)


def _wait(
    secure: ssl.SSLSocket, plain: socket.socket, up: bytearray, down: bytearray, ended: bool
) -> None:
    """Wait until one of the sockets can be read from or written to."""
    poll = select.poll()
    readable = len(down) < _HELD and not ended
    poll.register(secure, (select.POLLIN if readable else 0) | (select.POLLOUT if up else 0))
    taking = select.POLLIN if len(up) < _HELD else 0
    poll.register(plain, taking | (select.POLLOUT if down else 0))
    # What TLS has decrypted already is not seen by the kernel.
    poll.poll(0 if readable and secure.pending() else None)


def _read(end: socket.socket, into: bytearray) -> bool:
    """Read what is there; whether the other side has closed the connection."""
    try:
        data = end.recv(_CHUNK)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    into += data
    return not data


def _write(end: socket.socket, held: bytearray) -> None:
    """Write as much of `held` as `end` takes now, and drop that from it."""
    if held:
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            # TLS wants the same bytes again after a refusal; `held` only grows at its end.
            del held[: end.send(bytes(held[:_CHUNK]))]


def _close_all() -> None:
    """A forked process has no thread that would end with its parent's connections."""
    for end in list(_OPEN):
        end.close()


_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_all)
