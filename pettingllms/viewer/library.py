"""`Library`: the page's questions about runs and evaluations, and their answers.

An answer is a JSON value that follows from the files alone. Long work is divided: an answer covers
what `PART` bytes of the file hold and says where to ask on, so that a page never waits for a file
of gigabytes, and a server never holds one in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.rollout.files import METRICS, RESULTS, STARTS, SUMMARY, TRAJECTORIES, EpisodeRow
from pettingllms.viewer.episodes import facts, mentions, parsed, shown
from pettingllms.viewer.folders import Source, sources_in
from pettingllms.viewer.index import Entry, EpisodeIndex
from pettingllms.viewer.tasks import compared, hardest, own_parts, solved

PART = 24 << 20
"""Bytes of lines that one answer is made from."""
AT_ONCE = 64 << 20
"""Bytes that are indexed before an answer; more are indexed in the background."""
Answer = dict[str, Any]


class Library:
    """The runs and episodes that the viewer shows.

    Args:
        roots: folders of runs and evaluations, or above them.
        cache: folder for indices of large files; None for none.
    """

    def __init__(self, roots: Sequence[Path], cache: Path | None = None) -> None:
        # Once: `runs/latest` shows the run of now, also when another one begins.
        self._roots, self._cache = [root.resolve() for root in roots], cache
        self._indices: dict[Path, EpisodeIndex] = {}
        self._building: dict[Path, threading.Thread] = {}
        self._lock = threading.Lock()

    def sources(self) -> list[Source]:
        """The runs and evaluations there are now."""
        return sources_in(self._roots)

    def source(self, name: str) -> Source:
        """The run or evaluation of a name.

        Raises:
            UnknownNameError: there is none.
        """
        known = {source.name: source for source in self.sources()}
        if name not in known:
            raise UnknownNameError(f"no run or evaluation {name!r}; {did_you_mean(name, known)}")
        return known[name]

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
                rows.append(dict(json.loads(line)))
            except (ValueError, TypeError, RecursionError) as error:
                broken.append([number, str(error)])
        begun = 0 if restarted else start
        return {
            "rows": rows,
            "next": begun + len(complete),
            "restarted": restarted,
            "broken": broken,
        }

    def labels(self, source: Source) -> Answer:
        """The steps or teams with their numbers of episodes and successes; how far the index is."""
        index = self._index(source)
        return {
            "labels": [[label, *index.counts(label)] for label in index.labels],
            "done": index.upto,
            "total": index.size,
            "building": self._is_building(source),
            "generation": index.generation,
            "broken": sorted(index.broken.items())[:100],
        }

    def outcomes(self, source: Source, label: str) -> Answer:
        """The episodes of a step or team in columns: line, task, episode, success."""
        entries = list(self._index(source).entries(label))
        return {
            "lines": [entry.line for entry in entries],
            "tasks": [entry.task for entry in entries],
            "episodes": [entry.episode for entry in entries],
            "successes": [entry.success for entry in entries],
        }

    def tasks(self, source: Source) -> Answer:
        """The tasks of an evaluation with their texts and what each team did, hardest first."""
        index = self._index(source)
        rows = hardest({label: solved(index.entries(label)) for label in index.labels})
        return {"tasks": self._with_texts(source, rows)}

    def compare(self, one: tuple[Source, str], two: tuple[Source, str]) -> Answer:
        """Two teams, of one or of two evaluations, on the tasks of both."""
        sides = (solved(self._index(source).entries(label)) for source, label in (one, two))
        found = compared(*sides)
        lines = [{**row, "teams": {"": row["a"]}} for row in found["rows"]]
        for row, told in zip(found["rows"], self._with_texts(one[0], lines), strict=True):
            row["text"] = told["text"]
        return found

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
        return self._part(source, label, after, lambda line, row: {"line": line, **facts(row)})

    def search(self, source: Source, label: str, text: str, after: int) -> Answer:
        """The lines whose prompts or completions contain `text`, in parts like `facts`."""
        return self._part(
            source, label, after, lambda line, row: line if mentions(row, text) else None
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
        beside = [each for each in index.entries(entry.label) if each.task == entry.task]
        return {
            "line": line,
            "label": entry.label,
            "beside": [[each.line, each.episode, each.success] for each in beside],
            "row": shown(row),
        }

    def results(self, source: Source) -> Answer:
        """Scores of a finished run or evaluation, and how each start of a run was made."""
        return {
            "results": source.json(RESULTS if source.kind == "eval" else SUMMARY),
            "starts": source.json(STARTS),
        }

    def complete(self, source: Source) -> list[str]:
        """Indexes all of a source; returns its steps or teams."""
        return self._index(source, whole=True).labels

    def rows(self, source: Source, label: str) -> Iterator[tuple[Entry, EpisodeRow]]:
        """All readable episodes of a step or a team."""
        index = self._index(source)
        for entry in index.entries(label):
            with contextlib.suppress(ValueError):
                yield entry, parsed(index.text(entry))

    # ---------------------------------------------------------------------------------- index

    def _part(
        self, source: Source, label: str, after: int, made_of: Callable[[int, EpisodeRow], Any]
    ) -> Answer:
        index = self._index(source)
        found: list[Any] = []
        broken: list[list[Any]] = []
        read, last = 0, after
        for entry in index.entries(label, after):
            # At least one line, however long it is.
            if read and read + entry.end - entry.start > PART:
                return {"rows": found, "next": last, "broken": broken}
            read, last = read + entry.end - entry.start, entry.line
            try:
                made = made_of(entry.line, parsed(index.text(entry)))
            except ValueError as error:
                broken.append([entry.line, str(error)])
                continue
            if made is not None:
                found.append(made)
        return {"rows": found, "next": None, "broken": broken}

    def _index(self, source: Source, *, whole: bool = False) -> EpisodeIndex:
        """The index of a source, brought up to date as far as that is quick, or `whole`."""
        with self._lock:
            index = self._indices.get(source.path)
            if index is None:
                index = EpisodeIndex(lambda: source.open(TRAJECTORIES), self._cached(source))
                self._indices[source.path] = index
            # A thread that builds holds the index's lock; an answer must not wait for it.
            if self._is_building(source) and not whole:
                return index
        if whole:
            index.refresh()
        elif not index.refresh(AT_ONCE):
            with self._lock:
                # Another request may have begun to build it since.
                if not self._is_building(source):
                    # A daemon, so that stopping the viewer does not wait for gigabytes.
                    thread = threading.Thread(target=index.refresh, daemon=True)
                    self._building[source.path] = thread
                    thread.start()
        return index

    def _is_building(self, source: Source) -> bool:
        thread = self._building.get(source.path)
        return thread is not None and thread.is_alive()

    def _cached(self, source: Source) -> Path | None:
        if self._cache is None:
            return None
        name = hashlib.sha256(os.fsencode(source.path)).hexdigest()[:32]
        return self._cache / f"{name}.jsonl"
