"""The streams of a container over one socket of the engine's API.

Measured against the `docker` command's pipes, the socket saves a process and two copies, and it
needs no command installed. The engine sends output in blocks, `u8 stream, 3 zeros, u32 length`,
which are taken apart here; what it receives goes to the container as it is.
"""

from __future__ import annotations

import struct

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
