"""`Library`: the page's questions about runs and evaluations, and their answers.

An answer is a JSON value that follows from the files alone. Long answers are divided: one covers what
`PART` bytes of the file hold and returns where to ask next, so that a server never holds a file of
gigabytes in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.rollout.files import METRICS, RESULTS, STARTS, SUMMARY, TRAJECTORIES, EpisodeRow
from pettingllms.statistics import paired_difference
from pettingllms.viewer.episodes import (
    FLAT,
    NO_RECORD,
    Entry,
    EpisodeIndex,
    compared,
    facts,
    mentions,
    parsed,
    shown,
)
from pettingllms.viewer.folders import Source, sources_in

PART = 24 << 20
"""Bytes of lines that one answer is made from."""
Answer = dict[str, Any]


class Library:
    """The runs and episodes that the viewer shows.

    Args:
        roots: folders of runs and evaluations, or above them.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        # Once: `runs/latest` shows the run of now, also when another one begins.
        self._roots = [root.resolve() for root in roots]
        self._indices: dict[Path, EpisodeIndex] = {}
        self._lock = threading.Lock()

    def sources(self) -> list[Source]:
        """The runs and evaluations there are now."""
        return sources_in(self._roots)

    def source(self, name: str) -> Source:
        """The run or evaluation of a name.

        Raises:
            UnknownNameError: there is none.
        """
        sources = {source.name: source for source in self.sources()}
        if name not in sources:
            raise UnknownNameError(f"no run or evaluation {name!r}; {did_you_mean(name, sources)}")
        return sources[name]

    # -------------------------------------------------------------------------------- answers

    def listed(self) -> Answer:
        """All runs and evaluations, with their settings and states."""
        return {"sources": [source.about() for source in self.sources()]}

    def metrics(self, source: Source, start: int) -> Answer:
        """Rows of metrics.jsonl from byte `start` on, and the byte to ask from next.

        `restarted` where the file is shorter than that: then the rows are those from its start.
        """
        file = source.open(METRICS)
        if file is None:
            return {"rows": [], "next": 0, "restarted": start > 0, "broken": []}
        with file:
            restarted = start > file.seek(0, os.SEEK_END)
            file.seek(0 if restarted else start)
            data = file.read(PART)
        # The last row may still be on its way.
        complete = data[: data.rfind(b"\n") + 1]
        rows, broken = [], []
        for number, line in enumerate(complete.split(b"\n")[:-1], 1):
            try:
                rows.append(_with_shares(dict(json.loads(line))))
            except NO_RECORD as error:
                broken.append([number, str(error)])
        begun = 0 if restarted else start
        return {
            "rows": rows,
            "next": begun + len(complete),
            "restarted": restarted,
            "broken": broken,
        }

    def labels(self, source: Source) -> Answer:
        """The steps or teams with their numbers of episodes and successes."""
        index = self._index(source)
        labels = []
        for label in index.labels:
            verdicts = [entry.success for entry in index.entries(label)]
            said, won = len(verdicts) - verdicts.count(None), verdicts.count(True)
            counts = {"episodes": len(verdicts), "said": said, "solved": won}
            labels.append({"label": label, **counts, "share": won / said if said else None})
        return {"labels": labels, "broken": sorted(index.broken.items())[:100]}

    def tasks(self, source: Source) -> Answer:
        """The tasks of an evaluation with their texts and what each team did, hardest first."""
        index = self._index(source)
        rows = hardest({label: solved(index.entries(label)) for label in index.labels})
        return {"tasks": self._with_texts(source, rows)}

    def compare(self, one: tuple[Source, str], two: tuple[Source, str]) -> Answer:
        """Two teams, of one or of two evaluations, on the tasks of both."""
        sides = (solved(self._index(source).entries(label)) for source, label in (one, two))
        pair = compared_teams(*sides)
        lines = [{**row, "teams": {"": row["a"]}} for row in pair["rows"]]
        for row, told in zip(pair["rows"], self._with_texts(one[0], lines), strict=True):
            row["text"] = told["text"]
        return pair

    def _with_texts(self, source: Source, rows: list[Answer]) -> list[Answer]:
        """Rows with the part of their task's first prompt that is its own; of the first rows, where many."""
        index, prompts, read = self._index(source), list[str](), 0
        for row in rows:
            entry = index.entry(next(iter(row["teams"].values()))["lines"][0])
            read += 0 if entry is None else entry.end - entry.start
            if entry is None or (prompts and read > PART):
                break
            with contextlib.suppress(ValueError):
                decisions = parsed(index.text(entry))["decisions"]
                prompts.append(decisions[0]["prompt"] if decisions else "")
                continue
            prompts.append("")
        texts = [*own_parts(prompts), *[""] * (len(rows) - len(prompts))]
        return [{**row, "text": text} for row, text in zip(rows, texts, strict=True)]

    def facts(self, source: Source, label: str, after: int) -> Answer:
        """Rows of the table, from the first line above `after` on; `next` to go on, or null."""
        return self._part(source, label, after, self.facts_of(source, label))

    def search(self, source: Source, label: str, text: str, after: int) -> Answer:
        """The lines whose prompts or completions contain `text`, in parts like `facts`."""
        return self._part(
            source, label, after, lambda entry, row: entry.line if mentions(row, text) else None
        )

    def episode(self, source: Source, line: int) -> Answer:
        """An episode without token ids, and the other episodes of its task in the same step.

        Raises:
            UnknownNameError: the line holds no episode.
            ConfigError: the line is broken.
        """
        index = self._index(source)
        entry = index.entry(line)
        if entry is None:
            why = index.broken.get(line, "there is no such line yet")
            raise UnknownNameError(f"line {line} of {TRAJECTORIES} is no episode: {why}")
        try:
            row = parsed(index.text(entry))
        except ValueError as error:
            raise ConfigError(f"line {line} of {TRAJECTORIES} is broken: {error}") from error
        return self.page_of(source, entry, row)

    def page_of(self, source: Source, entry: Entry, row: EpisodeRow) -> Answer:
        """What the page of an episode shows; `compared` has the returns of the task's episodes."""
        entries = self._index(source).entries(entry.label)
        beside = [other for other in entries if other.task == entry.task]
        return {
            "line": entry.line,
            "label": entry.label,
            "beside": [[other.line, other.episode, other.success] for other in beside],
            "compared": compared([other.total for other in beside]),
            "row": shown(row, source.settings().get("alpha")),
        }

    def results(self, source: Source) -> Answer:
        """Scores of a finished run or evaluation, and how each start of a run was made."""
        return {
            "results": source.json(RESULTS if source.kind == "eval" else SUMMARY),
            "starts": source.json(STARTS),
        }

    def rows(self, source: Source, label: str) -> Iterator[tuple[Entry, EpisodeRow]]:
        """All readable episodes of a step or a team."""
        index = self._index(source)
        for entry in index.entries(label):
            with contextlib.suppress(ValueError):
                yield entry, parsed(index.text(entry))

    def facts_of(self, source: Source, label: str) -> Callable[[Entry, EpisodeRow], Answer]:
        """A function that makes the table's row of each episode of a step or a team."""
        returns = defaultdict[str, list[float]](list)
        for entry in self._index(source).entries(label):
            returns[entry.task].append(entry.total)
        flat = {
            t
            for t, totals in returns.items()
            if len(totals) > 1 and max(totals) - min(totals) <= FLAT
        }

        def made(entry: Entry, row: EpisodeRow) -> Answer:
            answer = facts(row) | {"success": entry.success}
            # Where replies to one prompt are compared, episodes are not.
            whole = all(group["width"] < 2 for group in answer["groups"])
            return {"line": entry.line, **answer, "flat": whole and entry.task in flat}

        return made

    # ---------------------------------------------------------------------------------- index

    def _part(
        self, source: Source, label: str, after: int, made_of: Callable[[Entry, EpisodeRow], Any]
    ) -> Answer:
        index = self._index(source)
        rows: list[Any] = []
        broken: list[list[Any]] = []
        read, last = 0, after
        for entry in index.entries(label, after):
            # At least one line, however long it is.
            if read and read + entry.end - entry.start > PART:
                return {"rows": rows, "next": last, "broken": broken}
            read, last = read + entry.end - entry.start, entry.line
            try:
                made = made_of(entry, parsed(index.text(entry)))
            except ValueError as error:
                broken.append([entry.line, str(error)])
                continue
            if made is not None:
                rows.append(made)
        return {"rows": rows, "next": None, "broken": broken}

    def _index(self, source: Source) -> EpisodeIndex:
        """The index of a source, brought up to date."""
        with self._lock:
            index = self._indices.get(source.path)
            if index is None:
                index = EpisodeIndex(lambda: source.open(TRAJECTORIES))
                self._indices[source.path] = index
        index.refresh()
        return index


def _with_shares(row: Answer) -> Answer:
    """A row of metrics.jsonl with the share that each activity had in the time of its step."""
    step = row.get("time/step")
    if not isinstance(step, int | float) or not step:
        return row
    times = {k: v for k, v in row.items() if k.startswith("time/") and isinstance(v, int | float)}
    return row | {f"time_share/{k.removeprefix('time/')}": v / step for k, v in times.items()}


# ---------------------------------------------------------------------------------------- tasks
# Episodes of evaluations by task: which tasks are hard, and which of them two teams solve.
#
# Every number that the pages of evaluations show about tasks is made here, or was when the evaluation ended.


Row = dict[str, Any]


def solved(entries: Iterable[Entry]) -> dict[str, Row]:
    """Task -> what one team did of it: episodes, those with a verdict, those solved, and their lines."""
    tasks: dict[str, Row] = {}
    for entry in entries:
        row = tasks.setdefault(entry.task, {"episodes": 0, "said": 0, "solved": 0, "lines": []})
        row["episodes"] += 1
        row["said"] += entry.success is not None
        row["solved"] += entry.success is True
        row["lines"].append(entry.line)
    for row in tasks.values():
        row["share"] = row["solved"] / row["said"] if row["said"] else None
    return tasks


def hardest(teams: Mapping[str, Mapping[str, Row]]) -> list[Row]:
    """The tasks of an evaluation, those that were solved least often first."""
    rows: list[Row] = []
    for task in dict.fromkeys(task for rows_of_team in teams.values() for task in rows_of_team):
        played = {
            team: rows_of_team[task] for team, rows_of_team in teams.items() if task in rows_of_team
        }
        verdicts = sum(team_row["said"] for team_row in played.values())
        share = (
            sum(team_row["solved"] for team_row in played.values()) / verdicts if verdicts else None
        )
        rows.append({"task": task, "share": share, "teams": played})
    return sorted(rows, key=lambda row: (row["share"] is None, row["share"] or 0.0))


def compared_teams(first: Mapping[str, Row], second: Mapping[str, Row]) -> Row:
    """Two teams on the tasks of both: each task, how many changed, and the paired difference."""
    rows: list[Row] = [
        {"task": t, "a": first_row, "b": second[t]} for t, first_row in first.items() if t in second
    ]
    pairs = []
    for row in rows:
        one, two = row["a"]["share"], row["b"]["share"]
        row["change"] = None if None in (one, two) else "same"
        if row["change"]:
            pairs.append((one, two))
            row["change"] = "right" if two > one else "wrong" if two < one else "same"
    counts = {how: sum(row["change"] == how for row in rows) for how in ("right", "wrong", "same")}
    several = any(row[side]["episodes"] > 1 for row in rows for side in "ab")
    difference = None
    if pairs:
        ones, twos = zip(*pairs, strict=True)
        difference = paired_difference(ones, twos, share=True, seed=0).row()
    return {"rows": rows, "counts": counts, "several": several, "difference": difference}


def own_parts(prompts: Sequence[str]) -> list[str]:
    """What each prompt has that not all have: without the lines with which all begin, and all end."""
    lines = [prompt.split("\n") for prompt in prompts]
    if len(set(prompts)) > 1:
        for _ in range(2):  # from the start, then from the end
            same = 0
            for row in zip(*lines, strict=False):
                if len(set(row)) > 1:
                    break
                same += 1
            lines = [text[same:][::-1] for text in lines]
    return ["\n".join(text).strip() for text in lines]
