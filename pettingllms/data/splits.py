"""The three splits, and the rules that assign a task or a text to one of them.

A task is assigned by its *canonical key*: a text that it shares with every task that is the same
problem in another guise (the steps of a story in another order, a board turned around, digits
renamed). All tasks with one key are in one split, so a test task is new in more than its wording.
The assignment needs no list: 70 % of all keys are train, 10 % val, 20 % test, by a hash.

Three domains keep the hash they had when the shipped base model was primed on their training
split, so that none of those tasks has moved into test: `coding` (CRC-32 of the key), `plan_path`
and `sokoban` (BLAKE2b of the bare key). Every other domain has a hash of its own.

Rows of a data set have the split that their publisher gave them: a field, or the name of a file
(`pettingllms.data.hub`). Where rows without a split are divided, a checksum does it (`checksum_split`).
"""

from __future__ import annotations

import hashlib
import zlib
from functools import lru_cache
from typing import Literal

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")


def split_of(key: str, *, domain: str) -> Split:
    """Assigns a canonical key to its split: the same in every process and version.

    Args:
        key: what all guises of a task have in common; any text.
        domain: the kind of task, at most 16 bytes. One key may be in two splits of two domains.
    """
    data = key.encode("utf-8", "surrogatepass")
    if domain == "coding":
        # Remainders of 3 and more were the training split when the shipped base model was primed.
        tenth = 9 - zlib.crc32(data) % 10
    else:
        # BLAKE2b takes 16 bytes here at most, which is the limit on names of domains.
        person = b"" if domain in ("plan_path", "sokoban") else domain.encode()
        digest = hashlib.blake2b(data, digest_size=8, person=person).digest()
        tenth = int.from_bytes(digest, "big") % 10
    return "train" if tenth < 7 else "val" if tenth == 7 else "test"


def checksum_split(text: str) -> Split:
    """Assigns a text to a split, whatever its case and spacing: 80 % train, 10 % val, 10 % test."""
    bucket = zlib.crc32(" ".join(text.lower().split()).encode(errors="replace")) % 10
    return "test" if bucket == 0 else "val" if bucket == 1 else "train"


@lru_cache(maxsize=64)
def symmetries(height: int, width: int) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Lists the eight ways to look at a board: its height and width then, and its cells row by row.

    Cells are numbered row by row.
    """
    views = []
    rows = [list(range(r * width, (r + 1) * width)) for r in range(height)]
    for _ in range(2):
        for _ in range(4):
            rows = [list(row) for row in zip(*rows[::-1], strict=True)]
            views.append((len(rows), len(rows[0]), tuple(cell for row in rows for cell in row)))
        rows = [row[::-1] for row in rows]
    return tuple(views)
