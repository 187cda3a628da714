"""Corpora of passages, and their indexes on disk: built once, and mapped by all processes that search them.

A corpus is a file, or a folder or hub id with files, of rows:

| fields | corpora |
|---|---|
| `text` (or `contents`, `paragraph_text`); `title` | files of your own |
| `contents`: the title in quotes, a line break, the text | Search-R1's and FlashRAG's Wikipedia of 2018 |

A row without text is left out and counted; the first such row is named with its number. An index is a folder of
the cache whose name is a digest of the corpus. It is written under another name and then renamed, under a lock:
of several processes one builds it and the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pettingllms.data.hub import locate
from pettingllms.data.retrieval import K1, B, Index, Passage
from pettingllms.data.rows import TABLES, Located, RowError, is_blank, rows
from pettingllms.errors import DatasetError

CACHE = Path("~/.cache/pettingllms/search")
VERSION = 2
_TEXT_FIELDS = ("text", "contents", "paragraph_text")

_log = logging.getLogger(__name__)


def open_corpus(source: str | Path, cache: Path | None = None) -> Index:
    """Opens the index of a corpus; the first time, builds it.

    Args:
        source: a file, a folder, or a hub id (`org/name`, `org/name:file`).
        cache: where indexes are; None for `CACHE`.

    Raises:
        DatasetError: the corpus cannot be had or has no text, or the cache cannot be written.
    """
    located = locate(source, None, TABLES)
    # By names, sizes and times: the contents of a large corpus take minutes to read.
    files = [
        (file.shown, stat.st_size, stat.st_mtime_ns)
        for file in located.files
        for stat in (file.path.stat(),)
    ]
    return _opened(json.dumps(files), lambda: read_corpus(located), located.name, cache)


def open_passages(name: str, passages: Sequence[Passage], cache: Path | None = None) -> Index:
    """Opens the index of passages that are in memory, shared by all processes that have the same.

    Raises:
        DatasetError: none of them has a word, or the cache cannot be written.
    """
    content = hashlib.blake2b(digest_size=16)
    for passage in passages:
        # As JSON, in which no text runs into the next: `ab`, `c` is not `a`, `bc`.
        content.update(json.dumps(passage).encode())
    return _opened(content.hexdigest(), lambda: passages, name, cache)


def read_corpus(located: Located) -> list[Passage]:
    """Reads the passages of a corpus; logs how many rows have none.

    Raises:
        DatasetError: a file cannot be read, or no row has a text.
    """
    passages: list[Passage] = []
    without, first = 0, ""
    for file in located.files:
        for number, row in rows(file):
            passage = None if isinstance(row, RowError) else _passage(row)
            if passage is None:
                without += 1
                first = first or f"{file.shown}:{number}"
            else:
                passages.append(passage)
    if not passages:
        raise DatasetError(
            f"{located.name} has no passages: none of its {without} rows has text in one of the fields "
            f"{', '.join(_TEXT_FIELDS)}"
        )
    if without:
        _log.warning(
            "%s: %d passages, %d without text left out, first at %s",
            located.name,
            len(passages),
            without,
            first,
        )
    return passages


def _passage(row: dict[str, Any]) -> Passage | None:
    text = next((row[field] for field in _TEXT_FIELDS if row.get(field)), None)
    if not isinstance(text, str) or is_blank(text):
        return None
    title = row.get("title")
    if not isinstance(title, str):
        title, _, rest = text.partition("\n") if text.startswith('"') else ("", "", text)
        # A text that is only a title is found by it all the same.
        title, text = title.strip().strip('"'), rest.strip() or title.strip('"')
    # Half a surrogate pair cannot be written; it is no reason to lose the passage.
    return Passage(*(value.encode(errors="replace").decode() for value in (text.strip(), title)))


def _opened(
    content: str, read: Callable[[], Sequence[Passage]], name: str, cache: Path | None
) -> Index:
    folder = (cache or CACHE).expanduser()
    # With all that stored scores depend on: another format or weighting gets another folder.
    digest = hashlib.blake2b(f"{VERSION} {K1} {B} {content}".encode(), digest_size=12).hexdigest()
    target = folder / digest
    try:
        # Without the lock first: a folder of this name is complete, because renaming comes last.
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            # Released by the kernel if this process dies.
            with (folder / f"{digest}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not target.exists():  # another process may have built it meanwhile
                    _build(target, read(), name)
        return Index.open(target)
    except OSError as error:
        raise DatasetError(
            f"the index of {name} cannot be kept in {folder} ({error}); give another folder: cache"
        ) from error


def _build(target: Path, passages: Sequence[Passage], name: str) -> None:
    _log.info("%s: building the index of %d passages", name, len(passages))
    began = time.monotonic()
    index = Index.of(passages)
    if not index.has_words:
        raise DatasetError(f"{name} has no passage with a word in it")
    # In the same folder as the target, since a rename works within one file system.
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        index.save(partial)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _log.info("%s: index built in %.0f s: %s", name, time.monotonic() - began, target)
