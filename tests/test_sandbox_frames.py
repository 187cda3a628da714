"""The frames between client and worker hold against any bytes."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.sandbox.worker import frames
from pettingllms.sandbox.worker.frames import FrameError

SOON = 0.05


@contextmanager
def stream_of(data: bytes, *, ended: bool = True) -> Iterator[frames.Stream]:
    """A stream whose other side has sent `data`."""
    read_fd, write_fd = os.pipe()
    os.write(write_fd, data)
    spare = os.dup(write_fd)
    if ended:
        os.close(write_fd)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, spare)
        os.close(null)
    try:
        yield frames.Stream(read_fd, spare)
    finally:
        os.close(read_fd)
        os.close(spare)
        if not ended:
            os.close(write_fd)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
headers = st.dictionaries(st.text(max_size=8), values, max_size=5)


@pytest.mark.slow
@given(headers, st.lists(st.binary(max_size=200), max_size=3))
def test_a_frame_comes_back_as_it_was_sent(header: dict[str, object], payload: list[bytes]):
    with stream_of(frames.encode(header, payload)) as stream:
        assert stream.read_header() == header
        assert stream.read(sum(map(len, payload))) == b"".join(payload)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_an_error(data: bytes):
    with stream_of(data) as stream:
        try:
            header = stream.read_header()
        except FrameError:
            header = {}
    assert isinstance(header, dict)


@given(st.binary(max_size=100), st.integers(0, 100))
def test_a_frame_that_is_cut_off_is_an_error(payload: bytes, kept: int):
    frame = frames.encode({"size": len(payload)}, [payload])
    kept = min(kept, len(frame) - 1)
    with stream_of(frame[:kept]) as stream, pytest.raises(FrameError):
        stream.read(stream.read_header()["size"] or 1)


@given(st.integers(0, 2**32 - 1))
def test_a_header_is_never_larger_than_its_limit(size: int):
    prefix = frames.PREFIX.pack(frames.MAGIC, size)
    if size <= frames.MAX_HEADER_BYTES:
        assert frames.header_size(prefix) == size
    else:
        with pytest.raises(FrameError, match="at most"):
            frames.header_size(prefix)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 100_000, b'{"a":NaN'], ids=repr
)
def test_a_header_that_is_no_object_is_an_error(text: bytes):
    with pytest.raises(FrameError):
        frames.decode_header(text)


def test_silence_ends_at_the_deadline():
    with stream_of(b"PL", ended=False) as stream:
        begun = time.monotonic()
        with pytest.raises(FrameError, match="in time"):
            stream.read_header(begun + SOON)
        assert time.monotonic() - begun >= SOON


def test_a_reader_that_takes_nothing_ends_the_write_at_the_deadline():
    with stream_of(b"", ended=False) as stream, pytest.raises(FrameError, match="in time"):
        stream.write(bytes(1 << 22), time.monotonic() + SOON)


@given(st.binary(min_size=1, max_size=5000), st.booleans())
def test_bytes_move_to_a_file_from_pipes_and_from_sockets(data: bytes, pipe: bool):
    if pipe:
        read_fd, write_fd = os.pipe()
    else:
        read_fd, write_fd = (end.detach() for end in socket.socketpair())
    file = os.memfd_create("file")
    try:
        os.write(write_fd, data + b"more")
        stream = frames.Stream(read_fd, write_fd, patient=True)
        stream.read_into_file(file, len(data))
        assert os.pread(file, 10_000, 0) == data
        assert stream.read(4) == b"more"
    finally:
        for fd in (read_fd, write_fd, file):
            os.close(fd)


def test_headers_are_plain_ascii():
    frame = frames.encode({"ä": "\ud800"})
    assert json.loads(frame[frames.PREFIX.size :].decode("ascii")) == {"ä": "\ud800"}
