"""Files of rows, their rows one at a time, and the fields of a row checked for their type.

JSONL, JSON (a list of objects), parquet (pyarrow), CSV with a header, and text files of boards.
The `datasets` library is not used to read them: it casts all rows of a set to one type first, and
fails on a row that does not fit without naming its file and number.

A row is *refused* (`RowError`) when it does not fit its schema: a field is missing or of the wrong
type. It is *left out* (`UnsupportedRow`) when it is valid but cannot become a task here: a set as
an expected value, a task without tests.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

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
    if _LONE_SURROGATE.search(value):
        raise RowError(field, "has half of a surrogate pair, which is not a character")
    return value


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
    if not asked.strip():
        raise UnsupportedRow(field, "is empty")
    return asked


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


def parsed(row: Row, field: str) -> Any:
    """Parses a field of JSON text; any other value is returned unchanged.

    Raises:
        RowError: it is not JSON.
    """
    value = row.get(field)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError(field, f"is not JSON: {str(error)[:_SHOWN]}") from error


class _LongInteger(str):
    """An integer beyond Python's limit for parsing digits, kept as text."""


def _whole(digits: str) -> Any:
    try:
        return int(digits)
    except ValueError:
        return _LongInteger(digits)


def json_object(value: object, field: str) -> Mapping[str, Any]:
    """Returns an object, given as such or as JSON text; it may hold integers of any length.

    Raises:
        RowError: it is neither.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_int=_whole)
        except (ValueError, RecursionError) as error:
            raise RowError(field, f"is not JSON: {str(error)[:_SHOWN]}") from error
    if not isinstance(value, Mapping):
        raise RowError(field, f"must hold an object, got {shown(value)}")
    return value


def dumped(value: object, field: str) -> str:
    """Formats a value of `json_object` as JSON text.

    Raises:
        UnsupportedRow: it has an integer that programs could not read.
    """
    if _has_digits(value):
        raise UnsupportedRow(field.partition("[")[0], "has an integer of more than 4300 digits")
    return json.dumps(value)


def _has_digits(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_digits, value))
    if isinstance(value, dict):
        return any(map(_has_digits, value.values()))
    return isinstance(value, _LongInteger)


_SPLIT_WORDS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
}
_WORD = re.compile(rf"(?<![a-z])({'|'.join(_SPLIT_WORDS)})(?![a-z])")
_NOT_ROWS = (
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
    "LICENSE.txt",
)
_ROWS_AT_ONCE = 16
TABLES = (".jsonl", ".json", ".parquet", ".csv")
LEVELS = (".txt",)


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
    """The files of a data set, and where they come from."""

    name: str
    files: tuple[DataFile, ...]
    schema: str | None = None
    """The schema of all files, if known."""
    lends_val: bool = False
    """True if a tenth of the training rows serves as the validation split, for lack of another."""
    alone: bool = False
    """True for a single file given by its path: row numbers then serve as ids."""


def local(path: Path, endings: tuple[str, ...]) -> Located:
    """Finds a file, or all files in and below a folder that have one of the endings.

    Raises:
        DatasetError: there is no such file.
    """
    known = ", ".join(endings)
    if path.is_dir():
        found = data_files(path, endings)
        if not found:
            raise DatasetError(f"{path} has no files of rows; known endings: {known}")
        return of_files(str(path), path, found)
    if path.suffix not in endings:
        raise DatasetError(
            f"{path} has an unsupported ending; supported: {known}, or a folder of such files"
        )
    if not path.exists():
        raise DatasetError(f"cannot read {path}: there is no such file")
    return replace(of_files(str(path), path.parent, [path]), alone=True)


def data_files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Lists the files of rows in and below a folder, sorted by name."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in endings and path.name not in _NOT_ROWS and path.is_file()
    )


def of_files(name: str, root: Path, found: Iterable[Path]) -> Located:
    """Makes a data set of files below `root`; each name may state a split."""
    files = tuple(DataFile(p, str(p), split_of_name(p.relative_to(root))) for p in found)
    splits = {file.split for file in files}
    return Located(name, files, lends_val="train" in splits and "val" not in splits)


def split_of_name(path: Path) -> Split | None:
    """Returns the split in a file's name (`train.jsonl`, `data/test-00000-of-00001.parquet`), or its folder's."""
    for part in reversed(path.with_suffix("").parts):
        if found := _WORD.search(part.lower()):
            return _SPLIT_WORDS[found[1]]
    return None


def rows(file: DataFile) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yields the number and fields of every row, or the reason why it cannot be read.

    Raises:
        DatasetError: the file cannot be opened, or is damaged beyond its rows.
    """
    try:
        yield from _READERS[file.path.suffix](file.path)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError, too
        raise DatasetError(f"cannot read {file.shown}: {error}") from error


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yields the number and object of every nonempty line, or the reason why it has none."""
    with path.open("rb") as file:
        yield from _objects(file)


def _objects(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | str]]:
    # In bytes: a line of text would also end at U+2028 and others, which JSON strings may hold.
    for number, line in enumerate(file, start=1):
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        if text.strip():
            yield number, _object(text)


def _object(text: str) -> dict[str, Any] | str:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"is not a JSON object: {error}"
    return _checked(row)


def _checked(row: object) -> dict[str, Any] | str:
    return row if isinstance(row, dict) else f"is not a JSON object, but {type(row).__name__}"


def _json(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    with path.open("rb") as file:
        if not file.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            yield from _objects(file)
            return
        try:
            found = json.loads(file.read().decode("utf-8-sig"))
        except RecursionError as error:
            raise ValueError(f"nested too deeply: {error}") from error
    for number, row in enumerate(found, start=1):
        yield number, _checked(row)


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise DatasetError(
            f"{path} is parquet, and pyarrow is not installed: pip install 'pettingllms[train]'"
        ) from error
    with pyarrow.parquet.ParquetFile(path) as file:
        number = 0
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                number += 1
                yield number, row


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    yield reader.line_num, "has not as many fields as the header"
                else:
                    yield reader.line_num, row
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error


def _text_boards(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    yield from boards(path.read_text(encoding="utf-8-sig"))


def boards(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the boards in a text: first line, the name from a line `; name` before it, and rows.

    Boards are separated by blank lines or by lines that begin with `;`. The number is that of a board's first line.
    """
    name, board = "", list[str]()
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


_READERS: dict[str, Callable[[Path], Iterator[tuple[int, dict[str, Any] | str]]]] = {
    ".jsonl": json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": _csv,
    ".txt": _text_boards,
}
