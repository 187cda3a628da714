"""Data sets: rows become frozen records, and a report accounts for every row.

A row that does not fit its schema raises an error unless `skip_bad` is set; an unsupported row is
always left out, because the user cannot fix it. The report lists both with file, row and field, and
a warning is logged, so nothing disappears silently. Of rows with the same question and the same
answer the first is kept, and the others are counted. Of rows of one file with the same id and
different contents the first is kept, and the others are left out.

The split of a row is its `split` field (own schemas only), else the split in the name of its file. A
source with training rows and no validation rows lends a tenth of the former, chosen by a checksum,
as `val`. A source in which nothing has a split is what it is asked for: all of it is `test` where
it is evaluated. Training needs tasks to hold out, so it asks for such a source to be *divided*: by
what its publisher says of single rows (MBPP), by the record up to its symmetries (boards), else by a
checksum of the question (80 % train, 10 % val, 10 % test). Rows without a split beside others that
have one are divided in the same way, but go where a row that is the same task has its split.
"""

from __future__ import annotations

import difflib
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from pettingllms.data.catalog import benchmark_of
from pettingllms.data.hub import locate
from pettingllms.data.rows import (
    TABLES,
    DataFile,
    Header,
    Located,
    RejectedRow,
    Row,
    RowError,
    Source,
    UnsupportedRow,
    rows,
)
from pettingllms.data.splits import SPLITS, Split, checksum_split
from pettingllms.errors import DatasetError, UnknownNameError, did_you_mean

T_co = TypeVar("T_co", covariant=True)

_SHOWN_REASONS = 20


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Counts of the rows of a data set, or of one of its splits, and the rejected rows."""

    source: str
    split: str | None = None
    kept: int = 0
    repeated: int = 0
    """Rows that repeat an earlier row, which is kept."""
    refusals: tuple[RejectedRow, ...] = ()
    outside: int = 0
    """Rows outside the dates that were asked for."""
    note: str = ""
    """The fate of a source without splits, or what is wrong with training on it."""

    @property
    def read(self) -> int:
        """All rows read; a refused row counts although its split is unknown."""
        return self.kept + self.repeated + len(self.refusals) + self.outside

    @property
    def refused(self) -> int:
        """Rows that do not fit their schema."""
        return sum(not refusal.fits for refusal in self.refusals)

    @property
    def counts(self) -> str:
        """The counts in one line."""
        split = f", {self.split} split" if self.split else ""
        return (
            f"{self.source}{split}: {self.read} rows: {self.kept} kept, {self.repeated} repeated, "
            f"{len(self.refusals) - self.refused} left out, {self.refused} refused"
            + (f", {self.outside} outside the dates" if self.outside else "")
        )

    def __str__(self) -> str:
        """The counts, then the most frequent reasons, each with the first row that has it."""
        reasons = Counter(refusal.reason for refusal in self.refusals)
        # Backwards, so that the first row with a reason is the one that stays.
        first = {refusal.reason: refusal for refusal in reversed(self.refusals)}
        lines = [
            f"  {count} x {reason}, first at {first[reason].file}:{first[reason].row}"
            for reason, count in reasons.most_common(_SHOWN_REASONS)
        ]
        if len(reasons) > _SHOWN_REASONS:
            lines.append(f"  and {len(reasons) - _SHOWN_REASONS} other reasons")
        return "\n".join([self.counts, *lines, *([f"  {self.note}"] if self.note else [])])


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T_co]):
    """Records in the order of their rows, and the report on all rows."""

    records: tuple[T_co, ...]
    report: LoadReport


class Named(Protocol):
    """The interface that all records share."""

    @property
    def id(self) -> str:
        """Appears in logs."""


Record = TypeVar("Record", bound=Named)

_NEEDLESS_SPACE = re.compile(r" (?!\w)|(?<!\w) ")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Schema(Generic[Record]):
    """The row format of one publisher, and its reader."""

    fields: str
    """The fields that its rows have, with commas between them."""
    read: Callable[[Row, str], Record]
    """Makes a record of a row; the second argument is the default id. Raises `RowError`."""
    looks_like: Callable[[Row], bool] | None = None
    """Whether a file's first row looks like this schema; None: it has all `fields`."""
    split_of: Callable[[Record], Split] | None = None
    """The split that the publisher gave to a record, where a file has all rows."""
    about: Mapping[str, str] = field(default_factory=dict)
    """All fields with their meaning, of files of a user's own: `docs/data.md` lists them."""

    def fits(self, row: Row) -> bool:
        """Returns whether a file's first row looks like this schema."""
        if self.looks_like is not None:
            return self.looks_like(row)
        return row.keys() >= {*self.fields.split(", ")}


@dataclass(frozen=True, slots=True)
class Kind(Generic[Record]):
    """One type of record and the schemas it is read from."""

    name: Literal["coding", "math", "plan_path", "search", "sudoku", "sokoban", "program"]
    schemas: Mapping[str, Schema[Record]]
    """By name; the first that fits is taken where the caller names none."""
    text: Callable[[Record], str]
    """The question; its checksum decides the split where nothing else does."""
    key: Callable[[Record], str]
    """The same, normalized: two records with one key are the same task to a model."""
    answer: Callable[[Record], Hashable] = lambda _: None
    """The expected answer: two records with equal key and answer are duplicates."""
    own: str = ""
    """The schema whose rows may have a `split` field."""
    endings: tuple[str, ...] = TABLES
    """Of files that hold such rows."""
    split_of: Callable[[Record], Split] | None = None
    """The split of a record, up to its symmetries, where rows without a split are divided.

    Raises `RowError`, as the reader does, where it first has to solve the record.
    """
    prose: bool = True
    """Whether the question is a text in which words can be compared."""
    header: Header | None = None
    """Names the columns of files without a header."""


def load(
    kind: Kind[Record],
    located: Located,
    split: str | None = None,
    *,
    schema: str | None = None,
    skip_bad: bool = False,
) -> Loaded[Record]:
    """Read the files of a data set.

    Args:
        kind: what its records are.
        located: its files.
        split: `train`, `val` or `test`; None for all rows.
        schema: name of a schema of `kind`; by default what each file's first row looks like.
        skip_bad: report rows that do not fit instead of raising.

    Raises:
        DatasetError: a file cannot be read, a row does not fit (unless `skip_bad`), or nothing
            is left of the split.
        UnknownNameError: `schema` is none of the kind's.
    """
    if schema is not None and schema not in kind.schemas:
        raise UnknownNameError(
            f"no {kind.name} schema is called {schema!r}; {did_you_mean(schema, kind.schemas)}"
        )
    if split is not None and split not in SPLITS:
        raise DatasetError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    read = _Reading(kind, located, split, schema, skip_bad)
    # All of them first, because the counts below are complete after the last row.
    records = tuple(read.records())
    kept, refused = len(records), tuple(read.refusals)
    note = read.note(kept)
    report = LoadReport(located.name, split, kept, read.repeated, refused, read.outside, note)
    if not records:
        raise DatasetError(_nothing(located, report, read.splits))
    return Loaded(records, report)


def load_source(
    kind: Kind[Record],
    source: Source,
    split: str | None = None,
    *,
    schema: str | None = None,
    skip_bad: bool = False,
) -> Loaded[Record]:
    """Loads what a name, hub id, file or folder stands for, as `load` does; logs what is missing.

    Raises:
        DatasetError: also where the files cannot be found or downloaded.
        UnknownNameError: also where `source` is no name, id or path (`pettingllms.data.hub`).
    """
    located = locate(source, split, kind.endings, kind.name)
    loaded = load(kind, located, split, schema=schema, skip_bad=skip_bad)
    report = loaded.report
    if report.kept < report.read - report.outside:
        _log.warning("%s", report)
    elif report.note and report.split is not None:
        _log.warning("%s: %s", report.source, report.note)
    return loaded


def is_known(kind: Kind[Record], located: Located, *, own: bool = True) -> bool:
    """Returns whether the first readable row fits a schema of this kind; `own`: one's own counts, too.

    Raises:
        DatasetError: a file holds no rows, or none of them can be read.
    """
    unread: RejectedRow | None = None
    for file in located.files:
        for number, row in rows(file, kind.header):
            if not isinstance(row, RowError):
                schemas = (s for name, s in kind.schemas.items() if own or name != kind.own)
                return any(schema.fits(row) for schema in schemas)
            unread = unread or row.at(file.shown, number)
    raise DatasetError(str(unread) if unread else f"{located.name} has no rows")


def normal_text(text: str) -> str:
    """Normalizes what does not change a question: case, letter width, spaces, dollar signs.

    A blank stays between two letters or digits only, so that `$2+2$` and `2 + 2` are one.
    """
    folded = unicodedata.normalize("NFKC", text).casefold().replace("$", "")
    return _NEEDLESS_SPACE.sub("", " ".join(folded.split()))


def _nothing(located: Located, report: LoadReport, splits: Counter[str]) -> str:
    published = {file.split for file in located.files}
    there = next((name for name in SPLITS if name in published or splits[name]), None)
    hint = f"; give --split {there} (split={there!r})" if there and report.split == "test" else ""
    if report.outside and not splits:
        return f"no row of {report.source} is within the dates that were asked for\n{report}"
    if not splits and not report.refusals:
        if published and None not in published and report.split not in (None, *published):
            names = ", ".join(sorted(map(str, published)))
            return f"{report.source} has no file for the split {report.split!r}, only for {names}{hint}"
        return f"{report.source} has no rows"
    if not splits:
        return f"no row of {report.source} can be used\n{report}"
    names = " and ".join(f"{count} of {name}" for name, count in splits.items())
    return (
        f"{report.source} has no task of the split {report.split!r}; add rows, a split field, or "
        f"a file of that name: it has {names}{hint}"
    )


@dataclass(slots=True)
class _Item(Generic[Record]):
    """A record that was read, and where."""

    record: Record
    schema: Schema[Record]
    split: Split | None
    file: DataFile
    row: int
    named: bool
    """Whether its row has an id."""


class _Reading(Generic[Record]):
    """One pass over the files of a data set: its records, and the counts of all rows."""

    def __init__(
        self,
        kind: Kind[Record],
        located: Located,
        split: str | None,
        schema: str | None,
        skip_bad: bool,
    ) -> None:
        self.kind, self.located, self.split, self.skip_bad = kind, located, split, skip_bad
        self.schema = schema or located.schema
        self.refusals: list[RejectedRow] = []
        self.splits: Counter[str] = Counter()
        self._firsts: dict[Hashable, Split] = {}
        self.repeated = self.outside = self.unsplit = 0
        self.schemas: set[str] = set()
        self.ignored: set[str] = set()
        """Fields that no schema knows."""
        self.has_splits = any(file.split for file in located.files)
        self._lacks = any(file.split is None for file in located.files)

    def records(self) -> Iterator[Record]:
        """Yields the records of the split in the order of their rows, each once."""
        seen: set[tuple[str, Hashable]] = set()
        ids: dict[tuple[DataFile, str], int] = {}
        for item in self._of_split():
            identity = (self.kind.key(item.record), self.kind.answer(item.record))
            if identity in seen:
                self.repeated += 1
                continue
            first = ids.setdefault((item.file, item.record.id), item.row)
            if item.named and first != item.row:
                twin = UnsupportedRow("id", f"{item.record.id!r} is the id of row {first}, too")
                self.refusals.append(twin.at(item.file.shown, item.row))
                continue
            seen.add(identity)
            yield item.record

    def note(self, kept: int) -> str:
        """Returns what a user should know who asked for this split."""
        names = ", ".join(sorted(self.ignored))
        notes = [f"unknown fields are ignored: {names}"] if names else []
        whole = self.unsplit and not self.has_splits
        if self.split is None and whole and not self.located.divide:
            notes.append("nothing in it has a split: evaluated whole, divided for training")
        if self.split in (None, "test"):
            return "; ".join(notes)
        if name := benchmark_of(self.located, self.schemas):
            notes.append(
                f"this is the benchmark {name} or looks like it: it cannot measure a model that "
                "was trained on it"
            )
        if whole:
            among = sum(self.splits.values())
            notes.append(
                f"nothing in it has a split: {kept} of its {among} tasks are held as {self.split}"
                if self.located.divide
                else f"nothing in it has a split: all {kept} tasks are {self.split}, and all would "
                f"be test; {self.located.name}?divide divides them"
            )
        return "; ".join(notes)

    def _of_split(self) -> Iterator[_Item[Record]]:
        """Yields the rows of the split, in order.

        Where a file has no split, only the last row tells whether any row has one, and which.
        """
        waiting: list[_Item[Record]] = []
        for item in self._read():
            self.unsplit += item.split is None
            self.has_splits |= item.split is not None
            if self._lacks:
                waiting.append(item)
            elif self._is_wanted(item):
                yield item
        for item in waiting:
            if not (self.has_splits or self.located.divide):
                self.splits["no split"] += 1
            elif not self._is_wanted(item):
                continue
            yield item

    def _is_wanted(self, item: _Item[Record]) -> bool:
        try:
            split = item.split or self._divided(item)
        except RowError as bad:
            self._refuse(bad, item.file, item.row)
            return False
        self.splits[split] += 1
        return self.split in (None, split)

    def _divided(self, item: _Item[Record]) -> Split:
        if item.schema.split_of:
            return item.schema.split_of(item.record)
        # Texts that differ in spaces or marks alone are one task, and go where the first of them goes.
        key = self.kind.key(item.record)
        if key not in self._firsts:
            self._firsts[key] = (self.kind.split_of or self._checksum)(item.record)
        return self._firsts[key]

    def _checksum(self, record: Record) -> Split:
        return checksum_split(self.kind.text(record))

    def _read(self) -> Iterator[_Item[Record]]:
        located = self.located
        wanted = {None, self.split}
        # Training rows are read as well for `val`, where a tenth of them is lent to it, and for a
        # split that no file has, because a row may state its own.
        nowhere = wanted.isdisjoint(file.split for file in located.files)
        if located.lends_val and (self.split == "val" or nowhere):
            wanted.add("train")
        if self._lacks:  # in any file, a row may have the split of one that has none
            wanted.update(SPLITS)
        for file in located.files:
            if self.split is not None and file.split not in wanted:
                continue
            name = self.schema
            for number, row in rows(file, self.kind.header):
                try:
                    if isinstance(row, RowError):
                        raise row
                    name = name or _recognized(self.kind, row, file)
                    item = self._item(name, file, number, row)
                except RowError as bad:
                    self._refuse(bad, file, number)
                else:
                    if item is not None:
                        yield item
            self.schemas.add(name or "")

    def _item(self, name: str, file: DataFile, number: int, row: Row) -> _Item[Record] | None:
        """Reads a row; None where it is outside the dates."""
        located, schema = self.located, self.kind.schemas[name]
        # ISO dates are in order as texts.
        if located.dates and not located.dates[0] <= _day(row) <= located.dates[1]:
            self.outside += 1
            return None
        stem = file.path.name.partition(".")[0]
        default_id = str(number) if located.alone else f"{stem}:{number}"
        record = schema.read(row, default_id)
        # A file of the catalog has what fields its publisher gave it.
        if schema.about and located.schema is None:
            self._check_fields(row, schema.about)
        split: Split | None = row.get("split") if name == self.kind.own else None
        if split not in (*SPLITS, None, ""):
            raise RowError("split", f"must be train, val or test, got {split!r}")
        split = split or None  # an empty cell of a table is no split
        lends = located.lends_val and file.split == "train"
        key = self.kind.key(record) if lends or self._lacks else None
        if split is None and file.split is not None:
            lent = lends and (self._firsts.get(key) or self._checksum(record)) == "val"
            split = "val" if lent else file.split
        if split is not None and key is not None:
            self._firsts.setdefault(key, split)
        return _Item(record, schema, split, file, number, record.id != default_id)

    def _check_fields(self, row: Row, known: Mapping[str, str]) -> None:
        for name in sorted(row.keys() - known.keys() - self.ignored):
            close = difflib.get_close_matches(name.lower(), known.keys() - row.keys(), 1, 0.8)
            if close and len(name) > 3:
                raise RowError(name, f"is unknown; did you mean {close[0]!r}?")
            self.ignored.add(name)

    def _refuse(self, bad: RowError, file: DataFile, row: int) -> None:
        rejected = bad.at(file.shown, row)
        if not (rejected.fits or self.skip_bad):
            raise DatasetError(str(rejected))
        self.refusals.append(rejected)


_DATES = ("contest_date", "date")


def _day(row: Row) -> str:
    """Returns the day of a row as `YYYY-MM-DD`."""
    for name in _DATES:
        day = str(row.get(name) or "")[:10]
        if re.fullmatch(r"\d{4}-\d\d-\d\d", day):
            return day
    raise UnsupportedRow(_DATES[0], "is no date, and a time window was asked for")


def _recognized(kind: Kind[Record], row: Row, file: DataFile) -> str:
    for name, schema in kind.schemas.items():
        if schema.fits(row):
            return name
    schemas = "; ".join(f"{name} ({schema.fields})" for name, schema in kind.schemas.items())
    raise DatasetError(
        f"{file.shown} is in no known {kind.name} schema: its fields are "
        f"{', '.join(map(str, row))}. Known: {schemas}"
    )
