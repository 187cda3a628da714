"""Data sets: rows become frozen records, and a report accounts for every row.

A row that does not fit its schema raises an error unless `skip_bad` is set; an unsupported row is
always skipped, because the user cannot fix it. The report lists both with file, row and field, and
a warning is logged, so nothing disappears silently. Of rows with the same question and the same
answer the first is kept, and the others are counted.

The split of a row is, in this order: its `split` field (own schemas only), the split in the name of
its file, the split of the record itself (boards: `Kind.split_of`), a checksum of its text (80 %
train, 10 % val, 10 % test). A source with training rows and no validation rows lends a tenth of the
former, chosen by the same checksum, as `val`.

`overlap` finds test tasks whose question is also in a training set.
"""

from __future__ import annotations

import logging
import re
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pettingllms.data.rows import DataFile, Located, RejectedRow, Row, RowError, rows
from pettingllms.data.splits import SPLITS, Split
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

    @property
    def read(self) -> int:
        """All rows read; a refused row counts although its split is unknown."""
        return self.kept + self.repeated + len(self.refusals)

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
        )

    def __str__(self) -> str:
        """The counts, then the most frequent reasons, each with the first row that has it."""
        reasons = Counter(refusal.reason for refusal in self.refusals)
        first = {refusal.reason: refusal for refusal in reversed(self.refusals)}
        lines = [
            f"  {count} x {reason}, first at {first[reason].file}:{first[reason].row}"
            for reason, count in reasons.most_common(_SHOWN_REASONS)
        ]
        if len(reasons) > _SHOWN_REASONS:
            lines.append(f"  and {len(reasons) - _SHOWN_REASONS} other reasons")
        return "\n".join([self.counts, *lines])


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T_co]):
    """Records in the order of their rows, and the report on all rows."""

    records: tuple[T_co, ...]
    report: LoadReport


Record = TypeVar("Record")

_NEEDLESS_SPACE = re.compile(r" (?!\w)|(?<!\w) ")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Schema(Generic[Record]):
    """The row format of one publisher, and its reader."""

    fields: str
    """The fields it reads, for messages."""
    fits: Callable[[Row], bool]
    """Whether a file's first row looks like this schema."""
    read: Callable[[Row, str], Record]
    """Makes a record of a row; the second argument is the default id. Raises `RowError`."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[Record]):
    """One type of record and the schemas it is read from."""

    name: Literal["coding", "math", "plan_path", "sudoku", "sokoban"]
    schemas: Mapping[str, Schema[Record]]
    """By name; the first that fits is taken where the caller names none."""
    own: str
    """The schema whose rows may have a `split` field."""
    endings: tuple[str, ...]
    """Of files that hold such rows."""
    text: Callable[[Record], str]
    """The question; its checksum decides the split where nothing else does."""
    key: Callable[[Record], str]
    """The same, normalised: two records with one key are the same task to a model."""
    answer: Callable[[Record], Hashable]
    """The expected answer: two records with equal key and answer are duplicates."""
    split_of: Callable[[Record], Split] | None = None
    """The split of a record, up to its symmetries, for files whose names state none.

    Raises `RowError`, as the reader does, where it first has to solve the record.
    """


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
    records: list[Record] = []
    refusals: list[RejectedRow] = []
    seen: set[tuple[str, Hashable]] = set()
    splits: Counter[str] = Counter()
    repeated = 0
    for item in _items(kind, located, split, schema):
        if isinstance(item, RejectedRow):
            if not (item.fits or skip_bad):
                raise DatasetError(str(item))
            refusals.append(item)
            continue
        splits[item.split] += 1
        if split not in (None, item.split):
            continue
        identity = (kind.key(item.record), kind.answer(item.record))
        repeated += identity in seen
        if identity not in seen:
            seen.add(identity)
            records.append(item.record)
    report = LoadReport(located.name, split, len(records), repeated, tuple(refusals))
    if not records:
        raise DatasetError(_nothing(located, report, splits))
    return Loaded(tuple(records), report)


def logged(loaded: Loaded[Record]) -> Loaded[Record]:
    """Returns `loaded`; logs a warning if rows are missing from it."""
    if loaded.report.kept < loaded.report.read:
        _log.warning("%s", loaded.report)
    return loaded


def is_known(kind: Kind[Record], located: Located) -> bool:
    """Returns whether the first row of the files fits a schema of this kind."""
    for file in located.files:
        for _, row in rows(file):
            return not isinstance(row, str) and any(s.fits(row) for s in kind.schemas.values())
    return False


def normal_text(text: str) -> str:
    """Normalizes what does not change a question: case, letter width, spaces, dollar signs.

    A blank stays between two letters or digits only, so that `$2+2$` and `2 + 2` are one.
    """
    folded = unicodedata.normalize("NFKC", text).casefold().replace("$", "")
    return _NEEDLESS_SPACE.sub("", " ".join(folded.split()))


def said_split(row: Row) -> Split | None:
    """The `split` field of a row; None where it has none.

    Raises:
        RowError: it is no split.
    """
    if "split" not in row:
        return None
    for split in SPLITS:
        if row["split"] == split:
            return split
    raise RowError("split", f"must be train, val or test, got {row['split']!r}")


def checksum_split(text: str) -> Split:
    """The split that a text belongs to for ever, whatever its case and spacing."""
    bucket = zlib.crc32(" ".join(text.lower().split()).encode(errors="replace")) % 10
    return "test" if bucket == 0 else "val" if bucket == 1 else "train"


def _nothing(located: Located, report: LoadReport, splits: Counter[str]) -> str:
    published = {file.split for file in located.files}
    if not splits and not report.refusals:
        if published and None not in published and report.split not in (None, *published):
            names = ", ".join(sorted(map(str, published)))
            return f"{report.source} has no file for the split {report.split!r}, only for {names}"
        return f"{report.source} has no rows"
    if not splits:
        return f"no row of {report.source} can be used\n{report}"
    names = " and ".join(f"{count} of {name}" for name, count in splits.items())
    return (
        f"{report.source} has no task of the split {report.split!r}; add rows, a split field, or "
        f"a file of that name: it has {names}"
    )


@dataclass(frozen=True, slots=True)
class _Item(Generic[Record]):
    record: Record
    split: Split


@dataclass(slots=True)
class _Reader(Generic[Record]):
    """Reads the rows of one file, with the schema that its first row shows."""

    kind: Kind[Record]
    file: DataFile
    wanted: str | None
    alone: bool
    name: str | None = None

    def read(self, number: int, row: Row | str) -> tuple[Record, Split | None]:
        if isinstance(row, str):
            raise RowError("", row)
        if self.name is None:
            self.name = self.wanted or _recognise(self.kind, row, self.file)
        name = str(number) if self.alone else f"{self.file.path.stem}:{number}"
        record = self.kind.schemas[self.name].read(row, name)
        return record, said_split(row) if self.name == self.kind.own else None


def _items(
    kind: Kind[Record], located: Located, split: str | None, schema: str | None
) -> Iterator[_Item[Record] | RejectedRow]:
    for file in located.files:
        if split is not None and file.split not in (None, split) and not _lends(located, file):
            continue
        reader = _Reader(kind, file, schema or located.schema, located.alone)
        for number, row in rows(file):
            try:
                record, said = reader.read(number, row)
                own = said or _split_of(kind, located, file, record)
            except RowError as bad:
                yield bad.at(file.shown, number)
                continue
            yield _Item(record, own)


def _lends(located: Located, file: DataFile) -> bool:
    return located.lends_val and file.split == "train"


def _split_of(kind: Kind[Record], located: Located, file: DataFile, record: Record) -> Split:
    if file.split is None and kind.split_of is not None:
        return kind.split_of(record)
    by_text = checksum_split(kind.text(record))
    if file.split is None or (_lends(located, file) and by_text == "val"):
        return by_text
    return file.split


def _recognise(kind: Kind[Record], row: Row, file: DataFile) -> str:
    for name, schema in kind.schemas.items():
        if schema.fits(row):
            return name
    known = "; ".join(f"{name} ({schema.fields})" for name, schema in kind.schemas.items())
    raise DatasetError(
        f"{file.shown} is in no known {kind.name} schema: its fields are "
        f"{', '.join(map(str, row))}. Known: {known}"
    )


@dataclass(frozen=True, slots=True)
class Shared(Generic[Record]):
    """A task of the test set and one of the training set with the same question."""

    test: Record
    train: Record
    same_answer: bool


@dataclass(frozen=True, slots=True)
class Overlap(Generic[Record]):
    """The tasks that two sets share."""

    train: str
    test: str
    of: int
    """Tasks of the test set."""
    shared: tuple[Shared[Record], ...]
    """At most one for each task of the test set."""

    def __str__(self) -> str:
        return f"{len(self.shared)} of {self.of} tasks of {self.test} are also in {self.train}"


def overlap(kind: Kind[Record], train: Loaded[Record], test: Loaded[Record]) -> Overlap[Record]:
    """Finds the tasks of `test` whose question is also in `train`.

    Questions are compared by `Kind.key`; paraphrases and translations are not found.
    """
    known: defaultdict[str, list[Record]] = defaultdict(list)
    for record in train.records:
        known[kind.key(record)].append(record)
    shared = []
    for record in test.records:
        answer = kind.answer(record)
        twins = known.get(kind.key(record), [])
        same = [twin for twin in twins if kind.answer(twin) == answer]
        if twins:
            shared.append(Shared(record, (same or twins)[0], bool(same)))
    return Overlap(train.report.source, test.report.source, len(test.records), tuple(shared))
