"""Files of rows, their rows one at a time, and the fields of a row checked for their type.

Parquet and Arrow files, and so folders of `save_to_disk`, are read by the library `datasets` (100,000 rows
in 0.2 s of CPU time, after 1.3 s for its import). JSONL, JSON (a list of objects), CSV and TSV
with a header are read by Python's own `json` and `csv`, also compressed with gzip, whatever their name,
because `datasets` changes their rows: in a list whose answers are `2` and `"x"` it makes the latter
`'"x"'`, and one short row of a CSV file costs the whole file. Text files of boards are read here, too.

A row is *refused* (`RowError`) when it does not fit its schema: a field is missing or of the wrong
type. It is *left out* (`UnsupportedRow`) when no task can be made of it: its question is blank, its
answer is NaN, one of its bytes is not UTF-8. A file that holds no rows at all (a Git LFS pointer, a
web page, an archive) raises an error that says what it is.
"""

from __future__ import annotations

import ast
import csv
import glob
import gzip
import hashlib
import io
import json
import math
import os
import re
import tempfile
import threading
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, cast
from uuid import UUID

import numpy as np

from pettingllms.data.splits import Split
from pettingllms.errors import DatasetError

Row = Mapping[str, Any]


class RowError(Exception):
    """A row does not fit its schema; the loader adds file and row."""

    fits = False

    def __init__(self, field: str, why: str) -> None:
        super().__init__(field, why)
        self.field = field
        self.why = why

    def at(self, file: str, row: int) -> RejectedRow:
        """Returns this error as an entry of the report."""
        return RejectedRow(file, row, self.field, self.why, self.fits)


class UnsupportedRow(RowError):
    """A row fits its schema, but no task can be made of it here."""

    fits = True


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that did not become a record."""

    file: str
    row: int
    """Counted from 1: the line of a text file, the row of any other."""
    field: str
    """Empty where the row as a whole cannot be read."""
    why: str
    fits: bool = False
    """True if the row fits its schema and was left out."""

    @property
    def reason(self) -> str:
        """The reason without the place."""
        return f"field '{self.field}' {self.why}" if self.field else self.why

    def __str__(self) -> str:
        return f"{self.file}:{self.row}: {self.reason}"


NumberedRows = Iterator[tuple[int, dict[str, Any] | RowError]]
"""The number of each row, and its fields or why it cannot be read."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN = 80


def shown(value: object) -> str:
    """Formats `value` for an error message, shortened to one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def checked_text(value: object, field: str) -> str:
    """Returns `value` if it is text that can be written as UTF-8.

    Raises:
        RowError: it is not.
    """
    if not isinstance(value, str):
        raise RowError(field, f"must be a string, got {shown(value)}")
    if surrogate := _LONE_SURROGATE.search(value):
        if "\udc80" <= surrogate[0] <= "\udcff":  # as files are decoded here
            raise UnsupportedRow(field, "has a byte that is not UTF-8")
        raise RowError(field, "has half of a surrogate pair, which is not a character")
    return value


def tree_of(program: str) -> ast.Module:
    """Returns `ast.parse(program)`, with its errors."""
    try:
        return ast.parse(program)
    except SystemError:  # before Python 3.11.8: a finalizer parsed something meanwhile (gh-106905)
        return ast.parse(program)


def text(row: Row, field: str) -> str:
    """Returns a field that must be text.

    Raises:
        RowError: it is absent or something else.
    """
    return checked_text(row.get(field), field)


def question(row: Row, *fields: str) -> str:
    """Returns the question: the first of the fields that is present, which must not be empty.

    Raises:
        RowError: all are absent, or it is not text.
        UnsupportedRow: it is empty.
    """
    field = next((name for name in fields if name in row), fields[0])
    asked = text(row, field)
    if is_blank(asked):
        raise UnsupportedRow(field, "is blank")
    return asked


def is_blank(text: str) -> bool:
    """Returns whether a text has only spaces and invisible characters."""
    return all(c.isspace() or unicodedata.category(c) in ("Cc", "Cf") for c in text)


def optional_text(row: Row, field: str) -> str:
    """Returns a text field, or "" where it is absent or null.

    Raises:
        RowError: it is something else than text.
    """
    return "" if row.get(field) is None else text(row, field)


def label(row: Row, *fields: str) -> str | None:
    """Returns the first nonempty field as text, such as an id or a difficulty."""
    for field in fields:
        value = row.get(field)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return checked_text(str(value), field)
    return None


def number_text(value: object, field: str) -> str | None:
    """Returns an answer that is a number as text, as JSON files and tables hold it; None for any other.

    Raises:
        UnsupportedRow: it is infinite, or NaN.
    """
    # `True` is an int in Python, and no answer.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        raise UnsupportedRow(field, f"is {value}, which is no answer")
    return str(value)


def parsed(row: Row, field: str) -> Any:
    """Parses a field of JSON text, as tables hold it; None where it is empty, else unchanged.

    Raises:
        RowError: it is not JSON.
    """
    value = row.get(field)
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        if "integer string conversion" in str(error):
            raise UnsupportedRow(field, "has an integer of more than 4300 digits") from error
        raise RowError(field, f"is not JSON: {str(error)[:_SHOWN]}") from error


def json_object(value: object, field: str) -> Mapping[str, Any]:
    """Returns an object, given as such or as JSON text.

    Raises:
        RowError: it is neither.
    """
    value = parsed({field: value}, field)
    if not isinstance(value, Mapping):
        raise RowError(field, f"must hold an object, got {shown(value)}")
    return value


# A row may hold all tests of a problem, which are tens of megabytes in some sets.
_ROWS_AT_ONCE = 16
_MOST_LINE = 1 << 30
_MOST_WHOLE = 64 << 20
"""Bytes of a file without rows that are parsed to say what it is."""
TABLES = (".jsonl", ".json", ".parquet", ".csv", ".tsv", ".arrow")
LEVELS = (".txt",)
Header = Callable[[list[str]], Sequence[str] | None]
"""Names the columns of a CSV file whose first line is a row already; None where it is a header."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows."""

    path: Path
    shown: str
    """Its name in errors and reports."""
    split: Split | None = None
    """The split of all its rows; None where each row has its own."""


@dataclass(frozen=True, slots=True)
class Located:
    """The files of a data set, and which of their rows are meant."""

    name: str
    files: tuple[DataFile, ...]
    schema: str | None = None
    """The schema of all files, if known."""
    lends_val: bool = False
    """True if a tenth of the training rows serves as the validation split, for lack of another."""
    alone: bool = False
    """True for a single file given by its path: row numbers then serve as ids."""
    divide: bool = False
    """True if rows without a split are divided into three; else each split has all of them."""
    dates: tuple[str, str] | None = None
    """First and last day of the rows that are meant, as `YYYY-MM-DD`."""


def ending_of(path: Path) -> str:
    """Returns the ending that says how a file is written: `.jsonl` of `a.jsonl.gz`."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def rows(file: DataFile, header: Header | None = None) -> NumberedRows:
    """Yields the number and fields of every row, or why it cannot be read.

    Args:
        file: the file.
        header: names the columns of CSV files without a header; text files are then such files.

    Raises:
        DatasetError: the file cannot be opened, holds no rows, or is damaged beyond its rows.
    """
    ending = ending_of(file.path)
    try:
        if ending in (".parquet", ".arrow"):
            yield from _columns(file.path, ending)
            return
        with _opened(file.path) as stream:
            if ending in (".csv", ".tsv") or (ending == ".txt" and header is not None):
                yield from _csv(stream, "\t" if ending == ".tsv" else ",", header)
            elif ending == ".txt":
                yield from boards(stream.read().decode("utf-8-sig"))
            else:
                yield from _json(stream)
    except (OSError, ValueError, EOFError, zlib.error) as error:  # ArrowInvalid is a ValueError
        raise DatasetError(f"cannot read {file.shown}: {error}") from error


_GZIP = b"\x1f\x8b"
_LFS = b"version https://git-lfs"
_STRANGE = {
    b"PK\x03\x04": "it is a zip archive; unpack it",
    b"\x28\xb5\x2f\xfd": "it is compressed with zstd; decompress it",
    b"BZh": "it is compressed with bzip2; decompress it",
    b"\xfd7zXZ": "it is compressed with xz; decompress it",
    b"PAR1": "it is parquet; name it .parquet",
    b"\xff\xfe": "it is UTF-16; save it as UTF-8",
    b"\xfe\xff": "it is UTF-16; save it as UTF-8",
    b"<!doctype": "it is a web page, perhaps the page of the file that was meant",
    b"<html": "it is a web page, perhaps the page of the file that was meant",
    b"<?xml": "it is XML",
}


def _opened(path: Path) -> IO[bytes]:
    """Opens a text file for reading bytes, decompressed.

    Raises:
        ValueError: it is something else; says what.
    """
    with path.open("rb") as plain:
        packed = plain.read(2) == _GZIP
    if not packed and path.suffix == ".gz" and path.stat().st_size:
        raise ValueError("it is named .gz and not compressed with gzip")
    stream = cast(IO[bytes], gzip.open(path) if packed else path.open("rb"))  # noqa: SIM115
    try:
        if why := _strange(stream.read(512)):
            raise ValueError(why)
        stream.seek(0)
    except BaseException:
        stream.close()
        raise
    return stream


def _strange(start: bytes) -> str | None:
    if not start:
        return "it is empty"
    bare = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if bare.startswith(_LFS):
        size = re.search(rb"\nsize (\d+)", bare)
        much = f" for {size[1].decode()} bytes" if size else ""
        return f"it is a Git LFS pointer{much}, not the file itself; get that with `git lfs pull`"
    for mark, what in _STRANGE.items():
        if start.startswith(mark) or bare.startswith(mark):
            return what
    return "it is a binary file" if b"\0" in start else None


def _text(line: bytes, start: int = 0) -> str:
    """Decodes a line.

    Raises:
        UnsupportedRow: one of its bytes is not UTF-8.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UnsupportedRow(
            "",
            f"has a byte that is not UTF-8: 0x{line[error.start]:02x} at byte "
            f"{start + error.start + 1} of the line",
        ) from None


def _json(stream: IO[bytes]) -> NumberedRows:
    """Yields the objects of a JSON list, or of lines."""
    start = stream.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    stream.seek(0)
    if start.startswith(b"["):
        value = _whole_json(stream)
        if not isinstance(value, list):
            raise ValueError(f"it holds {_kind_of(value)}, not a list of rows")
        yield from ((number, _object(row)) for number, row in enumerate(value, start=1))
        return
    first = True
    # In bytes: a line of text would also end at U+2028 and others, which JSON strings may hold.
    for number, line in enumerate(iter(lambda: stream.readline(_MOST_LINE), b""), start=1):
        if len(line) == _MOST_LINE:
            raise ValueError(f"line {number} has a gigabyte or more")
        bare = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not bare.strip():
            continue
        row = _object_of(bare)
        if first and isinstance(row, RowError):
            _check_json(stream, row)
        first = False
        yield number, row


def _whole_json(stream: IO[bytes]) -> Any:
    data = stream.read()
    try:
        # One damaged byte spoils its row, which `checked_text` refuses, and not the whole list.
        return json.loads(data.decode("utf-8-sig", "surrogateescape"))
    except RecursionError as error:
        raise ValueError(f"nested too deeply: {error}") from error


def _check_json(stream: IO[bytes], row: RowError) -> None:
    """Says what a file is whose first line is no row, where that explains more than the row does.

    Raises:
        ValueError: the file is one JSON value, which is no list of rows.
    """
    after = stream.tell()
    stream.seek(0)
    start = stream.read(_MOST_WHOLE + 1)
    stream.seek(after)
    if row.fits or len(start) > _MOST_WHOLE:
        return
    try:
        value = _whole_json(io.BytesIO(start))
    except ValueError:
        return
    raise ValueError(
        f"it holds {_kind_of(value)}; give a list of objects, or an object on each line"
    )


def _kind_of(value: object) -> str:
    if isinstance(value, dict):
        return f"one JSON object with the fields {', '.join(map(str, list(value)[:8]))}"
    return "null" if value is None else f"one JSON value ({type(value).__name__})"


def _object_of(line: bytes) -> dict[str, Any] | RowError:
    try:
        return _object(json.loads(_text(line)))
    except RowError as error:
        return error
    except (ValueError, RecursionError) as error:
        return RowError("", f"is not a JSON object: {error}")


def _object(row: object) -> dict[str, Any] | RowError:
    if isinstance(row, dict):
        return row
    return RowError("", f"is not a JSON object, but {type(row).__name__}")


def _columns(path: Path, ending: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the rows of a parquet file, or of one that `save_to_disk` of `datasets` wrote."""
    with path.open("rb") as plain:
        start = plain.read(512)
    magic = b"PAR1" if ending == ".parquet" else b"\xff\xff\xff\xff"
    if not start.startswith(magic) and (why := _strange(start)):
        raise ValueError(why)
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise DatasetError(
            f"{path} is {ending[1:]}, and the library `datasets` is not installed: "
            "pip install 'pettingllms[train]', or save the rows as JSONL"
        ) from error
    # The name may have signs of a pattern, which the library would look for.
    name = glob.escape(str(path.absolute()))
    # By default the library reads as many rows at once as the first group has, which may be none.
    options = {"batch_size": 1000} if ending == ".parquet" else {}
    # The library keeps a lock there, and its own folder may not be writable.
    with tempfile.TemporaryDirectory() as cache:
        table = datasets.load_dataset(
            ending[1:], data_files=name, split="train", streaming=True, cache_dir=cache, **options
        )
        batches = table.with_format("arrow").iter(_ROWS_AT_ONCE)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)


def _csv(stream: IO[bytes], delimiter: str, header: Header | None) -> NumberedRows:
    # A byte that is not UTF-8 becomes a lone surrogate, which spoils its row alone.
    # With newline="", line breaks inside of quoted fields stay as they are.
    lines = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
    # Strict, because an open quote would otherwise swallow all rows after it.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    names: Sequence[str] | None = None
    csv.field_size_limit(_MOST_LINE)  # a cell may hold all tests of a problem
    try:
        for fields in reader:
            if not fields:
                continue
            if names is None:
                names = header(fields) if header else None
                if names is None:
                    if twice := [name for name in fields if name and fields.count(name) > 1]:
                        raise ValueError(f"its header has the column {twice[0]!r} twice")
                    names = fields
                    continue
            yield reader.line_num, _fields(names, fields)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
    finally:
        lines.detach()  # who opened the stream closes it


def _fields(names: Sequence[str], fields: list[str]) -> dict[str, Any] | RowError:
    if any(map(_LONE_SURROGATE.search, fields)):
        return UnsupportedRow("", "has a byte that is not UTF-8")
    if len(fields) != len(names):
        return RowError("", f"has {len(fields)} fields and the header {len(names)}")
    return dict(zip(names, fields, strict=True))


def boards(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the boards in a text: first line, the name from a line `; name` before it, and rows.

    Boards are separated by blank lines or by lines that begin with `;`. The number is that of a
    board's first line.
    """
    name, board = "", list[str]()
    # The empty line at the end closes the last board.
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.strip() and not line.startswith(";"):
            board.append(line.rstrip())
            continue
        if board:
            first = number - len(board)
            yield first, {"id": name, "board": board, "line": first}
            name, board = "", []
        if line.startswith(";"):
            name = line[1:].strip()


# Rows that are given as objects, as files: a run names its data, and may be resumed or shared. They are a list of
# dicts, a `datasets.Dataset`, or a mapping of split -> rows such as a `DatasetDict`. Equal rows are one file below
# `CACHE`, so that the same objects give the same run.

CACHE = Path("~/.cache/pettingllms/rows")
Source = str | Path | Iterable[Mapping[str, Any]]
"""A name, hub id or path, or the rows themselves."""


def as_path(source: Any) -> Any:
    """Returns a file or folder of rows that are given as objects; a name, a path, or None as it is.

    Raises:
        DatasetError: it is neither, a row is no dict, or the rows cannot be written.
    """
    if source is None or isinstance(source, str | os.PathLike):
        return source
    if not isinstance(source, Iterable):
        raise DatasetError(f"a dataset is a name, a path, or rows, got {source!r:.80}")
    parts = source if isinstance(source, Mapping) else {"rows": source}
    texts = {f"{name}.jsonl": _as_lines(rows) for name, rows in parts.items()}
    if strange := [name for name in texts if name != Path(name).name]:
        raise DatasetError(f"{strange[0][:-6]!r} cannot name a split: it would name another folder")
    digest = hashlib.blake2b(json.dumps(texts, sort_keys=True).encode(), digest_size=12).hexdigest()
    folder = CACHE.expanduser() / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            # Under another name first, so that no other process reads half of it.
            temporary = folder / f"{name}.{os.getpid()}-{threading.get_ident()}"
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(folder / name)
    except (OSError, ValueError) as error:  # ValueError: a name that no file could have
        raise DatasetError(f"cannot write the rows of the dataset to {folder}: {error}") from error
    return folder if parts is source else folder / "rows.jsonl"


def is_table(value: object) -> bool:
    """Returns whether a value is an object of the `datasets` library."""
    return type(value).__module__.partition(".")[0] == "datasets"


def _as_lines(rows: Any) -> str:
    lines = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise DatasetError(f"row {number} of a dataset must be a dict, got {row!r:.80}")
        try:
            lines.append(json.dumps(dict(row), default=_plain) + "\n")
        except (TypeError, ValueError, RecursionError) as error:
            raise DatasetError(f"row {number} of a dataset cannot be written: {error}") from error
    return "".join(lines)


def _plain(value: object) -> object:
    """Makes arrays lists, and dates and decimals of a table text, as in a file."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "mM":
        return value.tolist()
    if isinstance(value, date | time | timedelta | np.datetime64 | Decimal | UUID | os.PathLike):
        return str(value)
    raise TypeError(f"it holds a {type(value).__name__}, {shown(value)}")


def digest(path: Path) -> str:
    """Sixteen hex digits of a file, or of all files of a folder with their names."""
    content = hashlib.sha256()
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        with file.open("rb") as data:
            # The names count as well: the same bytes under another name are another model.
            content.update(f"{file.relative_to(path)} ".encode())
            content.update(hashlib.file_digest(data, "sha256").digest())
    return content.hexdigest()[:16]


def data_digests(dataset: str | None, env_args: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the files and folders of data that settings name, which may be edited under the same name."""
    named = {"dataset": dataset, **env_args}
    paths = {
        name: Path(value.partition("?")[0]).expanduser()
        for name, value in named.items()
        if isinstance(value, str) and name.rpartition(".")[2] in ("dataset", "corpus")
    }
    return {name: digest(path) for name, path in paths.items() if path.exists()}
