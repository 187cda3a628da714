"""Tests as LiveCodeBench packs them: JSON, or JSON in a pickled string in zlib in base64.

Unpickling executes code, so nothing is unpickled: the only pickle that is accepted is one string, read
opcode by opcode with `pickletools`, which builds no object. Sizes are bounded before anything is
inflated or parsed. For any text the result is a list or a `RowError`.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickletools
import zlib
from typing import Any

from pettingllms.data.rows import RowError

MAX_PACKED = 128 << 20
"""Characters of base64; all tests of the largest problems are a few tens of millions."""
MAX_INFLATED = 512 << 20
"""Bytes after zlib."""
# What a pickled string has around it: none of it builds an object or calls anything.
_AROUND = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"}
_STRINGS = {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}


def unpacked(packed: str, field: str) -> list[Any]:
    """Unpacks the list of tests in `packed`.

    Raises:
        RowError: it holds none, is too large, or the pickle is more than a string.
    """
    # No base64 begins with a bracket.
    if packed.lstrip()[:1] in ("[", ""):
        written = packed
    else:
        written = _pickled_text(_inflated(packed, field), field)
    try:
        tests = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise RowError(field, f"does not hold JSON: {str(error)[:80]}") from error
    if not isinstance(tests, list):
        raise RowError(field, f"must hold a list of tests, not {type(tests).__name__}")
    return tests


def _inflated(packed: str, field: str) -> bytes:
    if len(packed) > MAX_PACKED:
        raise RowError(field, f"has {len(packed)} characters; at most {MAX_PACKED} are read")
    try:
        # One byte more than allowed tells a text that is too long from one that just fits.
        inflater = zlib.decompressobj()
        # Without `validate`, characters that are not base64 would be skipped.
        data = inflater.decompress(base64.b64decode(packed, validate=True), MAX_INFLATED + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise RowError(field, f"is neither JSON nor zlib in base64: {error}") from error
    if len(data) > MAX_INFLATED:
        raise RowError(field, f"inflates to more than {MAX_INFLATED} bytes")
    if not inflater.eof:
        raise RowError(field, "is neither JSON nor zlib in base64: it ends too early")
    return data


def _pickled_text(data: bytes, field: str) -> str:
    string: str | None = None
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
            # A second string is refused below: a pickle of one string has no other.
            if opcode.name in _STRINGS and string is None:
                string = str(argument)
            elif opcode.name == "STOP" and string is not None:
                return string
            elif opcode.name not in _AROUND:
                raise RowError(field, f"is a pickle of more than a string: {opcode.name}")
    except (ValueError, MemoryError, OverflowError) as error:
        raise RowError(field, f"is not a pickle: {str(error)[:80]}") from error
    raise RowError(field, "is a pickle without a string")
