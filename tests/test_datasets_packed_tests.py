from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import pickletools
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.data import coding_schemas
from pettingllms.data.coding_schemas import unpacked
from pettingllms.data.rows import RowError
from tests.datasets_fixtures import PRIVATE, pack

WRITTEN = json.dumps(PRIVATE)


def squeezed(data):
    return base64.b64encode(zlib.compress(data)).decode()


class Evil:
    """Its pickle makes a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "text", [WRITTEN, json.dumps([{"input": "é\u2028" * 200}], ensure_ascii=False)]
)
def test_packed_tests_of_every_protocol_are_read(protocol, text):
    assert unpacked(pack(text, protocol), "f") == json.loads(text)


def test_plain_json_is_read_as_it_is():
    assert unpacked(f" {WRITTEN}", "f") == PRIVATE


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(protocol, tmp_path):
    target = tmp_path / "made"
    with pytest.raises(RowError, match="is a pickle of more than a string"):
        unpacked(pack(Evil(str(target)), protocol), "f")
    assert not target.exists()
    pickle.loads(pickle.dumps(Evil(str(target)), protocol))
    assert target.exists()  # it would have


@pytest.mark.parametrize("value", [[WRITTEN], (WRITTEN,), {"a": WRITTEN}, b"[]", 3, None, 1.5])
def test_a_pickle_of_anything_but_a_string_is_refused(value):
    with pytest.raises(RowError, match="is a pickle of"):
        unpacked(pack(value), "f")


def test_a_pickle_with_a_huge_memo_index_costs_nothing():
    data = pickle.dumps(WRITTEN, 2)
    assert data[-3:-1] == b"q\x00"  # BINPUT 0, replaced by LONG_BINPUT of the largest index
    huge = data[:-3] + b"r" + struct.pack("<I", 2**32 - 1) + b"."
    assert unpacked(squeezed(huge), "f") == PRIVATE


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x05\x8d" + struct.pack("<Q", 2**62) + b"[]\x94.",  # a string longer than the data
        b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b".",  # a bytearray, likewise
        b"\x80\x05X\x02\x00\x00\x00[]",  # no STOP
        b"I" + b"9" * 10_000 + b"\n.",
        b"",
        b".",
        b"\xff",
    ],
)
def test_a_broken_pickle_is_refused(data):
    with pytest.raises(RowError):
        unpacked(squeezed(data), "f")


def test_a_bomb_is_refused_before_it_is_inflated(monkeypatch):
    monkeypatch.setattr(coding_schemas, "MAX_INFLATED", 1 << 20)
    bomb = base64.b64encode(zlib.compress(bytes(1 << 24))).decode()
    with pytest.raises(RowError, match="inflates to more than 1048576 bytes"):
        unpacked(bomb, "f")
    monkeypatch.setattr(coding_schemas, "MAX_PACKED", 100)
    with pytest.raises(RowError, match="at most 100 are read"):
        unpacked("e" * 101, "f")


def test_a_text_just_below_the_bound_is_read(monkeypatch):
    data = pickle.dumps(WRITTEN)
    monkeypatch.setattr(coding_schemas, "MAX_INFLATED", len(data))
    assert unpacked(squeezed(data), "f") == PRIVATE
    monkeypatch.setattr(coding_schemas, "MAX_INFLATED", len(data) - 1)
    with pytest.raises(RowError, match="inflates to more"):
        unpacked(squeezed(data), "f")


@pytest.mark.parametrize(
    "packed",
    [
        "x",
        "[",
        "{}",
        "",
        "[" * 100_000,
        pack("[" * 100_000),
        pack("{}"),
        pack("3"),
        base64.b64encode(b"no zlib").decode(),
        base64.b64encode(zlib.compress(b"x" * 500)[:-8]).decode(),
        "é" * 8,
    ],
)
def test_what_is_not_packed_tests_is_refused_with_a_short_reason(packed):
    with pytest.raises(RowError) as error:
        unpacked(packed, "f")
    assert error.value.field == "f"
    assert len(error.value.why) < 300


@given(st.binary(max_size=200))
def test_any_bytes_give_a_list_or_a_refusal(data):
    for text in (squeezed(data), base64.b64encode(data).decode(), data.decode("latin-1")):
        with contextlib.suppress(RowError):
            assert isinstance(unpacked(text, "f"), list)


def test_every_opcode_that_is_accepted_exists():
    opcodes = {opcode.name for opcode in pickletools.opcodes}
    assert opcodes >= coding_schemas._AROUND | coding_schemas._STRINGS
