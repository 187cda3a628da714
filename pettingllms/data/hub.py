"""Data sets by name, hub id or path: found, downloaded, or taken from the cache.

Files come from the Hugging Face hub through `huggingface_hub` (its cache is used, with or without
a network; the `train` extra installs it). Nothing that is downloaded is ever run: only files of rows are taken.

A source may end in options: `livecodebench?from=2024-08-01&to=2025-01-31` has the problems of these
days, both included, and `my.jsonl?divide` is divided into three splits where it has none.
"""

from __future__ import annotations

import datetime
import logging
import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from pettingllms.data.catalog import CATALOG, DataSet
from pettingllms.data.rows import TABLES, DataFile, Located, Source, as_path, ending_of
from pettingllms.data.splits import Split
from pettingllms.errors import DatasetError, UnknownNameError, did_you_mean
from pettingllms.registry import names_in

_HUB_ID = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?(:(?P<part>[\w./-]+))?"
)
_OFFLINE = (
    "Without a network: fetch it where there is one (pettingllms-data fetch {name} --out DIR), "
    "copy the folder, and give its path instead of the name"
)


_WORDS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
}
# Whole words: `contest.jsonl` and `latest.jsonl` state no split.
_WORD = re.compile(rf"(?<![a-z])({'|'.join(_WORDS)})(?![a-z])")
_NOT_ROWS = names_in(
    "dataset_info.json dataset_infos.json dataset_dict.json state.json LICENSE.txt"
)
_OPTIONS = ("from", "to", "divide")

_log = logging.getLogger(__name__)


def locate(
    given: Source, split: str | None, endings: tuple[str, ...], kind: str | None = None
) -> Located:
    """Finds the files of a name of the catalog, of a hub id, or of a path, in this order, or of rows.

    A hub id is `org/name`, with `@revision` and `:folder` or `:file` where needed. An
    existing path goes before a hub id. Only the files that `split` needs are downloaded for a
    name; those of an id all are. The module's docstring has the options after a `?`.

    Raises:
        DatasetError: no such file, no such split, a bad option, or the files cannot be had.
        UnknownNameError: neither a name, nor an id, nor a path.
    """
    source = given if isinstance(given, str | Path) else as_path(given)
    # A file may have a question mark in its own name.
    if isinstance(source, Path) or "?" not in source or _exists(Path(source)):
        return _located(source, split, endings, kind)
    bare, _, query = source.partition("?")
    # An option without a value, as in `?divide`, has the empty text.
    options = dict(option.partition("=")[::2] for option in query.split("&") if option)
    for name in options:
        if name not in _OPTIONS:
            raise DatasetError(f"{source}: no option {name!r}; {did_you_mean(name, _OPTIONS)}")
    dates = (
        _date(source, options.get("from", "0001-01-01")),
        _date(source, options.get("to", "9999-12-31")),
    )
    if dates[0] > dates[1]:
        raise DatasetError(f"{source}: the window ends on {dates[1]}, before {dates[0]}")
    located = replace(
        _located(bare, split, endings, kind), divide=options.get("divide", "no") in ("", "yes")
    )
    if not options.keys() & {"from", "to"}:
        return located
    return replace(located, name=f"{located.name}, {dates[0]} to {dates[1]}", dates=dates)


def _date(source: str, text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise DatasetError(f"{source}: {text!r} is no date; write 2024-08-01") from None


def divided(given: Source) -> str | Path:
    """Returns a source that is divided into three splits where it has none.

    Names of the catalog have splits, and a text with line breaks is no file: both stay as they are.
    """
    source: str | Path = as_path(given)
    text = str(source)
    if text in CATALOG or "\n" in text or "divide" in text.partition("?")[2]:
        return source
    is_source = _exists(Path(text)) or _HUB_ID.fullmatch(text.partition("?")[0])
    if not is_source or ("?" in text and _exists(Path(text))):
        return source
    return f"{text}{'&' if '?' in text else '?'}divide"


def _located(
    source: str | Path, split: str | None, endings: tuple[str, ...], kind: str | None
) -> Located:
    text = str(source)
    if isinstance(source, str) and text in CATALOG:
        if kind is not None and CATALOG[text].kind != kind:
            raise DatasetError(f"{text} is a data set for {CATALOG[text].kind}, not for {kind}")
        if _exists(Path(text)):
            _log.warning("%s is the published data set; ./%s is the file or folder", text, text)
        return _named(text, split)
    path, hub_id = Path(source).expanduser(), _HUB_ID.fullmatch(text)
    # `my.jsonl` is a file even where there is none, so that the error is about the file.
    is_file = ending_of(path) in endings and not (hub_id and hub_id["part"])
    if _exists(path) or is_file or isinstance(source, Path):
        return local(path, endings)
    if hub_id:
        return _by_id(hub_id["repository"], hub_id["revision"] or "main", hub_id["part"], endings)
    raise UnknownNameError(
        f"no data set, hub id (org/name), file or folder is called {text!r}; "
        f"{did_you_mean(text, CATALOG)}"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long for a file
        return False


def local(path: Path, endings: tuple[str, ...]) -> Located:
    """Finds a file, or all files in and below a folder that have one of the endings.

    Raises:
        DatasetError: there is no such file.
    """
    supported = ", ".join(endings)
    if path.is_dir():
        files = data_files(path, endings)
        if not files:
            raise DatasetError(f"{path} has no files of rows; known endings: {supported}, and .gz")
        return _of_files(str(path), path, files)
    if ending_of(path) not in endings:
        raise DatasetError(
            f"{path} has an unsupported ending; supported: {supported}, each also with .gz, or a "
            "folder of such files"
        )
    if not path.exists():
        raise DatasetError(f"cannot read {path}: there is no such file")
    return replace(_of_files(str(path), path.parent, [path]), alone=True)


def data_files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Lists the files of rows in and below a folder, sorted by name."""
    # Sorted, because the order of rows must not depend on the file system.
    return sorted(
        path
        for path in folder.rglob("*")
        if ending_of(path) in endings
        and path.name not in _NOT_ROWS
        and not path.match("cache-*.arrow")  # what `datasets` keeps beside saved rows
        and path.is_file()
    )


def _of_files(name: str, root: Path, paths: Iterable[Path]) -> Located:
    """Makes a data set of files below `root`; each name may state a split."""
    files = tuple(DataFile(p, str(p), split_of_name(p.relative_to(root))) for p in paths)
    splits = {file.split for file in files}
    return Located(name, files, lends_val="train" in splits and "val" not in splits)


def split_of_name(path: Path) -> Split | None:
    """Returns the split in a file's name (`train.jsonl`, `data/test-00000-of-00001.parquet`), or its folder's."""
    # From the file upwards: its own name goes before its folders'.
    for component in reversed(path.with_suffix("").parts):
        if word := _WORD.search(component.lower()):
            return _WORDS[word[1]]
    return None


def splits_of(entry: DataSet) -> tuple[Split, ...]:
    """Lists the splits that can be asked for; `val` is lent by `train` where there is no other."""
    if "train" in entry.files and "val" not in entry.files:
        return ("train", "val", *(s for s in entry.files if s != "train"))
    return tuple(entry.files)


def entry_of(name: str) -> DataSet:
    """The entry of a name of the catalog.

    Raises:
        UnknownNameError: no such name.
    """
    if name not in CATALOG:
        raise UnknownNameError(f"no data set is called {name!r}; {did_you_mean(name, CATALOG)}")
    return CATALOG[name]


def fetch(name: str, out: Path | None) -> list[Path]:
    """Downloads a data set of the catalog; with `out`, as `out/SPLIT/SPLIT-FILE`, else into the cache.

    Returns:
        The files, in the order of splits and names.

    Raises:
        DatasetError: it cannot be downloaded.
        UnknownNameError: no such name.
    """
    entry_of(name)
    files = _named(name, None).files
    if out is None:
        return [file.path for file in files]
    copies = []
    for file in files:
        # With the folders in its name, since files of several folders may have one name. The split
        # comes first: `dev.jsonl` would be read back as validation, whatever its folder is.
        inner = file.shown.removeprefix(f"{name}/").replace("/", "-")
        copy = out / str(file.split) / f"{file.split}-{inner}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        # The contents, because the files of the hub's cache are links into it.
        shutil.copyfile(file.path, copy)
        copies.append(copy)
    return copies


def _named(name: str, split: str | None) -> Located:
    entry = CATALOG[name]
    if entry.folder:
        raise DatasetError(f"{name} is on GitHub: git clone {entry.page}, then give {entry.folder}")
    if split is not None and split not in splits_of(entry):
        raise DatasetError(
            f"{name} has no split {split!r}; it has {' and '.join(splits_of(entry))}"
        )
    # What is asked for and has no files is `val`, which `train` lends.
    wanted = [s for s in entry.files if split in (None, s)] or ["train"]
    patterns = [pattern for s in wanted for pattern in entry.files[s]]
    root = _snapshot(name, entry.repository, entry.revision, patterns)
    files = []
    for s in wanted:
        paths = [
            path
            for path in data_files(root, TABLES)
            if any(fnmatchcase(path.relative_to(root).as_posix(), one) for one in entry.files[s])
        ]
        if not paths:
            raise DatasetError(
                f"{entry.page} has no file like {' or '.join(entry.files[s])} (revision "
                f"{entry.revision}, here {root}); if it has moved, download it and give the path"
            )
        files += [DataFile(p, f"{name}/{p.relative_to(root)}", s) for p in paths]
    lends = "train" in entry.files and "val" not in entry.files
    return Located(f"{name} ({entry.repository}@{root.name})", tuple(files), entry.schema, lends)


def _by_id(repository: str, revision: str, part: str | None, endings: tuple[str, ...]) -> Located:
    inner = Path((part or "").strip("/"))
    if ending_of(inner) in endings:
        patterns = [inner.as_posix()]
    else:
        # The hub's `*` matches slashes as well, so that files in subfolders are found.
        names = [
            f"*{e}{packed}"
            for ending in endings
            for e in (ending, ending.upper())
            for packed in ("", ".gz")
        ]
        patterns = [f"{inner.as_posix()}/{name}".removeprefix("./") for name in names]
    root = _snapshot(repository, repository, revision, patterns)
    paths = [path for path in data_files(root, endings) if path.is_relative_to(root / inner)]
    if not paths:
        raise DatasetError(
            f"the data set {repository} has no files of rows ({', '.join(endings)}) "
            f"{f'in {part}' if part else ''}; a set that a script makes has none"
        )
    folders = {path.relative_to(root).parts[0] for path in paths if path.parent != root}
    configurations = sorted(
        name for name in folders - {"data", "default"} if split_of_name(Path(name)) is None
    )
    # Configurations are data sets of their own, whose rows must not be mixed.
    if len(configurations) > 1:
        choices = " or ".join(f"{repository}:{name}" for name in configurations)
        raise DatasetError(f"{repository} has several configurations; choose {choices}")
    return _of_files(f"{repository}@{root.name}", root, paths)


def _snapshot(name: str, repository: str, revision: str, patterns: list[str]) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError
    except ModuleNotFoundError as error:
        raise DatasetError(
            f"{name} is on the Hugging Face hub, and huggingface_hub is not installed: "
            "pip install 'pettingllms[train]'"
        ) from error
    # Where nothing answers, the hub's client would wait without end; its cache needs no answer.
    alone = not hub_answers()
    try:
        return Path(
            huggingface_hub.snapshot_download(
                repository,
                repo_type="dataset",
                revision=revision,
                allow_patterns=patterns,
                local_files_only=alone,
            )
        )
    except RepositoryNotFoundError as error:
        # Caught before OSError, which it is a kind of.
        raise DatasetError(
            f"there is no public data set https://huggingface.co/datasets/{repository}: {error}"
        ) from error
    except (OSError, EntryNotFoundError) as error:
        reason = silence() if alone else str(error).splitlines()[0].removeprefix("Got: ")
        raise DatasetError(
            f"cannot download {name} from https://huggingface.co/datasets/{repository}: "
            f"{reason}. {_OFFLINE.format(name=name)}"
        ) from error


# Whether the hub is within reach. Its own client waits without end for an answer, and behind many firewalls a
# connection is made, or seems to be, and nothing ever comes back.

HUB_SECONDS = 4.0
"""Until a hub that does not answer counts as out of reach."""


def hub_answers() -> bool:
    """Returns whether the hub's address answers, or refuses at once; True in offline mode.

    What is refused at once is left to the hub's client, which says why.
    """
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    from huggingface_hub import constants

    if constants.is_offline_mode():  # then it is not asked at all
        return True
    try:
        url = f"{constants.ENDPOINT}/api/whoami-v2"  # small, whoever asks
        urllib.request.urlopen(url, timeout=HUB_SECONDS).close()
    except TimeoutError:
        return False
    except urllib.error.URLError as error:
        # A status of 401 or 500 is an answer as well; its reason is a text.
        return not isinstance(error.reason, TimeoutError)
    except (OSError, HTTPException, ValueError):
        pass
    return True


def silence() -> str:
    """Says that the hub does not answer."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT} did not answer in {HUB_SECONDS:g} s"
