"""Lists, checks, and downloads data sets, and writes training data from runs.

    pettingllms-data list
    pettingllms-data show livecodebench
    pettingllms-data fetch gsm8k --out data/gsm8k
    pettingllms-data check data/gsm8k --split train --against math500
    pettingllms-data check my.jsonl --as apps
    pettingllms-data check apps --split train --write apps_train.jsonl
    pettingllms-data pairs runs/latest --out pairs
    pettingllms-data step runs/latest --out step
    pettingllms-data peers evals/team --out peers.jsonl
    pettingllms-data warm-start forms.jsonl --env ./reading.py:Reading --model smollm2 --out warm

A data set is a name from `list`, a hub id (`org/name`, optionally with `@revision` and `:folder`),
or a file or folder of JSONL, JSON, parquet, CSV, or TSV files, also gzipped. Options follow a
question mark: `livecodebench?from=2024-08-01&to=2025-01-31`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pettingllms.cli.guard import dispatched
from pettingllms.cli.options import CommandParser
from pettingllms.data import hub
from pettingllms.data.board_files import GRID_FILES, LEVEL_FILES
from pettingllms.data.catalog import CATALOG, KindName
from pettingllms.data.coding import CodingTask
from pettingllms.data.coding_schemas import TASKS, as_row
from pettingllms.data.dataset import Kind, Loaded, is_known, load
from pettingllms.data.math import PROBLEMS
from pettingllms.data.overlap import NGRAM, overlap
from pettingllms.data.question_schemas import QUESTIONS
from pettingllms.data.rows import ending_of
from pettingllms.data.splits import SPLITS
from pettingllms.data.sudoku import PUZZLE_FILES
from pettingllms.envs.coding_judge import verified
from pettingllms.envs.coding_v0 import LIMITS
from pettingllms.errors import ConfigError, DatasetError, UnknownNameError, did_you_mean
from pettingllms.sandbox import SandboxSettings, open_sandbox
from pettingllms.sandbox.types import HELP

KINDS: dict[str, Kind[Any]] = {
    # The first schema that fits a row is taken, so the stricter kinds come first: a Sudoku is also
    # a question with an answer, and a grid is also a text of boards.
    kind.name: kind
    for kind in (TASKS, PUZZLE_FILES, PROBLEMS, QUESTIONS, GRID_FILES, LEVEL_FILES)
}
_SCHEMAS = {schema: kind.name for kind in KINDS.values() for schema in kind.schemas}
_SHOWN = 10


def _parser() -> CommandParser:
    parser = CommandParser(prog="pettingllms-data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", action=_list, help="list all named data sets")
    listing.add_argument("--kind", choices=get_args(KindName), help="list only this kind")
    show = commands.add_parser(
        "show", action=_show, help="show splits, size, license, and address of a data set"
    )
    show.add_argument("name")
    _add_check(commands)
    fetch = commands.add_parser("fetch", action=_fetch, help="download a named data set")
    fetch.add_argument("name")
    fetch.add_argument(
        "--out",
        type=Path,
        help="folder for OUT/SPLIT/SPLIT-FILE, for use in place of the name. Default: the cache of the "
        "Hugging Face hub, where the name also works offline",
    )
    pairs = commands.add_parser(
        "pairs",
        action=_pairs,
        help="write better and worse replies from a run's full trees, for TRL's DPOTrainer and SFTTrainer",
        description="Rates the replies of full trees (--method malt) by success at the leaves below them, as "
        "in MALT, and writes DIR/POLICY/pairs.jsonl (prompt, chosen, rejected: DPOTrainer) and sft.jsonl "
        "(prompt, completion: SFTTrainer).",
    )
    pairs.add_argument("run", type=Path, help="folder of a run")
    pairs.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    pairs.add_argument(
        "--most", type=int, default=8, help="most pairs per task and policy; default: %(default)s"
    )
    _add_step(commands)
    peers = commands.add_parser(
        "peers",
        action=_peers,
        help="write the replies of an evaluated team, to train a leader on them",
        description="Writes the first replies of all members except the leader, for --env-args.peers (method "
        "mlpo). Record several independent replies: pettingllms-eval --samples 4 --env-args.topology star.",
    )
    peers.add_argument("evaluation", help="folder of an evaluation, or FOLDER:TEAM")
    peers.add_argument("--out", type=Path, required=True, metavar="FILE", help="a new file")
    peers.add_argument("--leader", default="judge", help="role of the leader; default: %(default)s")
    warm = commands.add_parser(
        "warm-start",
        action=_warm_start,
        help="train adapters on examples of the right form, if it is never sampled",
        description="Fine-tunes an adapter for each role with TRL's SFTTrainer on lines of role, prompt, and "
        "completion. Then start training with pettingllms-train --adapters OUT. Lines that occur in the "
        "environment's tasks, in any split, are refused.",
    )
    warm.add_argument("demonstrations", type=Path, help="JSONL file")
    warm.add_argument("--env", required=True, help="as for pettingllms-train")
    warm.add_argument("--model", required=True, help="as for pettingllms-train")
    warm.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    warm.add_argument("--steps", type=int, default=30, help="training steps; default: %(default)s")
    return parser


def _add_step(commands: Any) -> None:
    step = commands.add_parser(
        "step",
        action=_step,
        help="write the right replies of successful episodes, for TRL's SFTTrainer",
        description="Writes DIR/ROLE.jsonl (prompt, completion), or DIR/TEAM/ROLE.jsonl of an evaluation, one line "
        "for each reply to imitate, as in STeP: all replies of successful episodes, except unparsable ones "
        "and those that lowered a score. Later prompts still contain these.",
    )
    step.add_argument("run", type=Path, help="folder of a run or an evaluation")
    step.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    step.add_argument(
        "--keep-failed", action="store_true", help="include right replies from failed episodes"
    )


def _add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        action=_check,
        help="count usable rows, and explain the others",
        description="Reads all rows of a data set, counts usable and repeated ones, and explains what is "
        "wrong with the rest. The exit code is 1 if a row does not fit its schema, or if --against finds a "
        "task in both sets. No program runs without --run.",
    )
    check.add_argument("source", help="name, hub id, file or folder")
    check.add_argument(
        "--as",
        dest="schema",
        metavar="SCHEMA",
        help=f"schema of the rows: {', '.join(_SCHEMAS)}, or a name from `list`. Default: detected "
        "from the first row",
    )
    check.add_argument("--split", choices=SPLITS, help="only this split. Default: all rows")
    check.add_argument(
        "--against",
        metavar="TRAIN",
        help="also list tasks that are in this training set (name, hub id, file, or folder): the same "
        f"question, or {NGRAM} consecutive words of it",
    )
    check.add_argument(
        "--run",
        action="store_true",
        help="coding: run every reference solution in the sandbox; the exit code is 1 if one fails",
    )
    check.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="like --run, and write the tasks whose reference passes as JSONL for --dataset. With --split "
        "they keep that split, else they have none",
    )
    check.add_argument("--all", action="store_true", help="list every unusable or repeated row")
    check.add_argument("--sandbox", metavar="...", help=f"--run: {HELP[0].lower()}{HELP[1:]}")


def _list(options: argparse.Namespace) -> int:
    for name, entry in CATALOG.items():
        if options.kind in (None, entry.kind):
            splits = ",".join(hub.splits_of(entry))
            print(f"{name:<16} {entry.kind:<8} {splits:<16} {entry.about}")
    return 0


def _show(options: argparse.Namespace) -> int:
    entry = hub.entry_of(options.name)
    lines = {
        "what": entry.about,
        "for": entry.kind,
        "page": entry.page,
        "license": entry.license or "see its page",
        "rows": entry.rows,
        "splits": ", ".join(hub.splits_of(entry)),
        "files": "; ".join(f"{s}: {' '.join(files)}" for s, files in entry.files.items()),
        "revision": entry.revision,
        "fields": KINDS[entry.kind].schemas[entry.schema].fields,
        "limits": ", ".join(f"{name} {value:g}" for name, value in entry.limits),
    }
    print(options.name)
    for what, text in lines.items():
        if text:
            print(f"  {what:<9} {text}")
    return 0


def _check(options: argparse.Namespace) -> int:
    if options.write is not None:
        _check_target(options.write)  # before all the work
    kind, schema = _reading(options.source, options.schema)
    loaded = _load(kind, options.source, schema, options.split)
    report = loaded.report
    print(report)
    if options.all:
        for refusal in report.refusals:
            print(f"{'left out' if refusal.fits else 'refused '} {refusal}")
    print(f"kind {kind.name}: {_described(loaded)}")
    failed = (options.run or options.write) and _run_references(kind, loaded, options)
    shared = options.against is not None and _compare(kind, loaded, options)
    return 1 if report.refused or failed or shared else 0


def _check_target(file: Path) -> None:
    if file.is_dir():
        raise DatasetError(f"--write {file}: that is a folder; give the name of a file")
    if not file.parent.is_dir():
        raise DatasetError(f"--write {file}: there is no folder {file.parent}; make it first")
    if not os.access(file.parent, os.W_OK):
        raise DatasetError(f"--write {file}: {file.parent} cannot be written")


def _compare(kind: Kind[Any], loaded: Loaded[Any], options: argparse.Namespace) -> bool:
    """Prints what a training set shares with `loaded`, and says whether it is anything."""
    train_kind, schema = _reading(options.against, None, kind)
    if train_kind is not kind:
        raise DatasetError(f"{options.against} is for {train_kind.name}, not {kind.name}")
    report = overlap(kind, _load(kind, options.against, schema, None), loaded)
    print(report)
    for pair in report.shared[: None if options.all else _SHOWN]:
        how = f"shares {pair.words} words in a row with" if pair.words else "is"
        differs = "" if pair.same_answer else " (with another answer or other tests)"
        print(f"  {pair.test.id} {how} {pair.train.id}{differs}")
    if len(report.shared) > _SHOWN and not options.all:
        print(f"  and {len(report.shared) - _SHOWN} others; --all lists them")
    return bool(report.shared)


def _run_references(kind: Kind[Any], loaded: Loaded[Any], options: argparse.Namespace) -> bool:
    """Prints which references fail, and says whether any does."""
    if kind is not TASKS:
        raise DatasetError(f"--run is for coding, and {options.source} is for {kind.name}")
    good: list[CodingTask] = []
    bare = failed = 0
    settings = SandboxSettings.of(options.sandbox or "embedded")
    with open_sandbox(settings) as sandbox:
        for task in loaded.records:
            result = verified(task, sandbox, settings.limits_over(LIMITS, task.limits))
            if isinstance(result, CodingTask):
                good.append(result)
            elif task.reference:
                failed += 1
                print(f"  {task.id}: {result}", flush=True)
            else:
                bare += 1
    print(f"{len(good)} references pass, {failed} fail, {bare} tasks have none")
    if options.write is not None:
        rows = [json.dumps(as_row(task, options.split)) + "\n" for task in good]
        # Renamed when it is whole: an interrupted write must not look like a set of tasks.
        beside = options.write.with_name(f"{options.write.name}.partial")
        beside.write_text("".join(rows), encoding="utf-8")
        beside.replace(options.write)
        print(f"{len(good)} tasks written to {options.write}")
    return bool(failed)


def _reading(
    source: str, wanted: str | None, other: Kind[Any] | None = None
) -> tuple[Kind[Any], str | None]:
    """Returns what kind of records a source has, and the schema of its rows if that is known."""
    if wanted is not None and wanted in CATALOG:
        return KINDS[CATALOG[wanted].kind], CATALOG[wanted].schema
    if wanted is not None:
        if wanted not in _SCHEMAS:
            names = [*_SCHEMAS, *CATALOG]
            raise UnknownNameError(f"no schema is called {wanted!r}; {did_you_mean(wanted, names)}")
        return KINDS[_SCHEMAS[wanted]], wanted
    name = source.partition("?")[0]
    if name in CATALOG:
        return KINDS[CATALOG[name].kind], None
    return other or _guess(source), None


def _guess(source: str) -> Kind[Any]:
    """Returns the kind whose schemas know the first row."""
    path = Path(source.partition("?")[0]).expanduser()
    errors: list[DatasetError] = []
    # Published schemas come first: they are easier to distinguish than those of a user's own files.
    for kind, custom in (
        *((kind, False) for kind in KINDS.values()),
        *((kind, True) for kind in KINDS.values()),
    ):
        fits = (
            hub.data_files(path, kind.endings) if path.is_dir() else ending_of(path) in kind.endings
        )
        readable = bool(fits) or not path.exists()
        try:
            if readable and is_known(kind, hub.locate(source, None, kind.endings), own=custom):
                return kind
        except DatasetError as error:  # a text of boards may be no CSV file of puzzles
            errors.append(error)
    if errors:
        raise errors[0]
    # Called for its error: where there is no such file, no schema is to blame.
    hub.local(path, tuple({ending: None for kind in KINDS.values() for ending in kind.endings}))
    raise DatasetError(
        f"the rows of {source} fit no known schema; name one with --as: {', '.join(_SCHEMAS)}"
    )


def _load(kind: Kind[Any], source: str, schema: str | None, split: str | None) -> Loaded[Any]:
    located = hub.locate(source, split, kind.endings, kind.name)
    # A report lists all bad rows, so that the first one must not end it.
    return load(kind, located, split, schema=schema, skip_bad=True)


def _described(loaded: Loaded[Any]) -> str:
    """Describes what the records hold, beside how many they are."""
    # There is one, because `load` raises where no record is left.
    first = loaded.records[0]
    parts = [f"first id {first.id}"]
    if isinstance(first, CodingTask):
        calls = sum(task.function is not None for task in loaded.records)
        tests = sum(len(task.tests) for task in loaded.records)
        bare = sum(not task.reference for task in loaded.records)
        parts.append(
            f"{calls} tasks of function calls and {len(loaded.records) - calls} of standard input, "
            f"{tests} tests, {bare} tasks without a reference solution"
        )
    return ", ".join(parts)


def _fetch(options: argparse.Namespace) -> int:
    files = hub.fetch(options.name, options.out)
    for file in files:
        print(file)
    # A name of the catalog goes before a folder of that name.
    shadowed = options.out is not None and str(options.out) in CATALOG
    where = f"./{options.out}" if shadowed else options.out or options.name
    print(f"{len(files)} files; check them with: pettingllms-data check {where}")
    print(f"use it as: --dataset {where}{'' if options.out else ' (in the cache)'}")
    return 0


def _pairs(options: argparse.Namespace) -> int:
    from pettingllms.rollout.pairs import write_pairs

    for policy, (pairs, good) in write_pairs(options.run, options.out, most=options.most).items():
        print(f"{options.out / policy}: {pairs} pairs, {good} completions")
    return 0


def _step(options: argparse.Namespace) -> int:
    from pettingllms.evaluation.folder import read_settings
    from pettingllms.evaluation.step import write_step
    from pettingllms.rollout.files import SETTINGS

    run, out = options.run, options.out
    split = read_settings(run).get("split") if (run / SETTINGS).is_file() else "train"
    for path, tally in write_step(run, out, keep_failed=options.keep_failed).items():
        print(f"{out}, {path}: {tally}")
    if split != "train":
        print(f"these tasks are in the split {split}: do not evaluate on it after training on them")
    return 0


def _peers(options: argparse.Namespace) -> int:
    from pettingllms.evaluation.peers import write_peers

    counts = write_peers(options.evaluation, options.out, leader=options.leader)
    print(
        f"{options.out}: {counts.replies} replies in {counts.tasks} tasks; training uses "
        f"{counts.kept}"
    )
    return 0


def _warm_start(options: argparse.Namespace) -> int:
    from pettingllms.envs import load_env
    from pettingllms.trainers.warm_start import check_form_only, read_demonstrations, warm_start

    demonstrations = read_demonstrations(options.demonstrations)
    try:
        envs = [load_env(options.env, split=split) for split in SPLITS]
    except ConfigError:  # an environment without splits, or without the name
        envs = [load_env(options.env)]
    for env in envs:
        check_form_only(demonstrations, env)
    warm_start(demonstrations, options.model, options.out, steps=options.steps)
    print(f"adapters of {', '.join(demonstrations)}: {options.out}")
    print(
        f"next: pettingllms-train --env {options.env} --model {options.model} --adapters {options.out}"
    )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 where all is well, 1 where something is not."""
    return dispatched(_parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
