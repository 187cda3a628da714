"""A run or an evaluation as one HTML file: the page of the server with the answers in it.

The file needs no server and no network. What the server would be asked is answered when the file
is written: one block for everything but the episodes, and one for the episodes of each step or
team, compressed, so that the file opens at once and each step is unpacked when it is looked at.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pettingllms.errors import ConfigError
from pettingllms.types import JsonObject
from pettingllms.viewer.episodes import encoded
from pettingllms.viewer.folders import Source
from pettingllms.viewer.library import Library
from pettingllms.viewer.page import single_file

MAIN = "data-main"


def exported(
    library: Library,
    *,
    steps: Collection[str] | None = None,
    tasks: int | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> str:
    """The text of the file.

    Args:
        library: what to export.
        steps: the steps of runs whose episodes are included; None for all. Curves are always
            complete, and of evaluations all teams are included.
        tasks: of each step or team, the episodes of the first so many tasks; None for all.
        on_progress: called with finished and all blocks.

    Raises:
        ConfigError: no run has one of `steps`.
    """
    sources = library.sources()
    wanted = [
        (source, label)
        for source in sources
        for label in (row["label"] for row in library.labels(source)["labels"])
        if source.kind == "eval" or steps is None or label in steps
    ]
    if missing := sorted({*(steps or ())} - {label for _, label in wanted}):
        raise ConfigError(f"no run has step {missing[0]}; leave --steps out for all steps")
    blocks, places = dict[str, str](), dict[str, dict[str, str]]()
    lines = dict[str, dict[int, str]]()
    answers = {source.name: _answers(library, source) for source in sources}
    for number, (source, label) in enumerate(wanted):
        on_progress(number, len(wanted))
        places.setdefault(source.name, {})[label] = f"data-{number}"
        block = _episodes(library, source, label, tasks)
        lines.setdefault(source.name, {}).update(dict.fromkeys(block["episodes"], label))
        blocks[f"data-{number}"] = _packed(block)
    on_progress(len(wanted), len(wanted))
    main = {
        "sources": library.listed()["sources"],
        "answers": answers,
        "places": places,
        "lines": lines,
        "compared": _compared(library, [pair for pair in wanted if pair[0].kind == "eval"]),
    }
    return single_file({MAIN: _packed(main), **blocks})


def _answers(library: Library, source: Source) -> JsonObject:
    rows: list[Any] = []
    start = 0
    while True:
        answer = library.metrics(source, start)
        rows += answer["rows"]
        # Not at the end of the file: a last row that is still being written is left out.
        if answer["next"] == start:
            break
        start = answer["next"]
    labels = library.labels(source)
    return {
        "metrics": {"rows": rows, "next": start, "restarted": False, "broken": []},
        "labels": labels,
        "results": library.results(source),
        "tasks": library.tasks(source) if source.kind == "eval" else None,
    }


def _compared(library: Library, teams: Sequence[tuple[Source, str]]) -> JsonObject:
    """The comparisons of every two teams, as the page asks for them."""
    return {
        "\n".join((one[0].name, one[1], two[0].name, two[1])): library.compare(one, two)
        for one in teams
        for two in teams
    }


def _episodes(library: Library, source: Source, label: str, tasks: int | None) -> JsonObject:
    taken: dict[str, None] = {}
    table: list[JsonObject] = []
    episodes: dict[int, JsonObject] = {}
    facts_of = library.facts_of(source, label)
    for entry, row in library.rows(source, label):
        if tasks is not None and entry.task not in taken and len(taken) >= tasks:
            continue
        taken.setdefault(entry.task)
        table.append(facts_of(entry, row))
        episodes[entry.line] = library.page_of(source, entry, row)
    return {"facts": table, "episodes": episodes}


def _packed(value: Any) -> str:
    # Base64 has no `<`: whatever a model wrote, it cannot end the element that it is in.
    # Without a time stamp: the same run gives the same file.
    return base64.b64encode(gzip.compress(encoded(value), mtime=0)).decode()
