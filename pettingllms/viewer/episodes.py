"""Episodes as the page needs them: where each starts in its file, a row of the table, and the tree.

`EpisodeIndex` is in memory and grows with a trajectories.jsonl. Of a line only its head is parsed, which ends where
`decisions` begin; whole lines are parsed when they are shown. The index starts again when the bytes before
its end have changed: then the file was replaced, or cut and continued. A last line without an end is still being
written, and waits. A line that is not an episode is kept with its number and the reason, and skipped.

`facts` is a row of the table, `shown` the tree. Token ids are most of a line, and nobody reads them: only their number
is kept. Everything else of the record reaches the page as it is, with the numbers that the page shows beside it: the
page computes none. An `info` is whatever an environment says, so nothing is assumed of its values.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, BinaryIO, NamedTuple

from pettingllms.rollout.files import FORMAT, CandidateRow, DecisionRow, EpisodeRow, verdict
from pettingllms.types import JsonObject

HEAD = 64 << 10
"""Bytes of a line in which its decisions must begin for it to be indexed without parsing all of it."""
TAIL = 4096
"""Bytes before the end of the index by which a changed file is noticed."""
_DECISIONS = b'"decisions": ['
NO_RECORD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a line raises that is no record."""
LARGEST = 1e100
"""The largest sum of returns, and weight of the team's reward, with which the page computes."""


class Entry(NamedTuple):
    """An episode of the file."""

    line: int
    """Counted from 1."""
    start: int
    end: int
    label: str
    """The step, or the team that played."""
    task: str
    episode: int
    success: bool | None
    total: float
    """The returns of all agents together."""
    overlong: bool
    """Whether a prompt without room ended it, in an evaluation: the scores of a step leave out what has no verdict."""


class EpisodeIndex:
    """The episodes of one file. `refresh` reads what was added; everything else is a look-up.

    Args:
        open_file: opens the file; None while it does not exist.
    """

    def __init__(self, open_file: Callable[[], BinaryIO | None]) -> None:
        self._open = open_file
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._upto, self._lines, self._tail = 0, 0, b""
        self.broken: dict[int, str] = {}
        """Number of a line -> why it is no episode."""
        self._by_label: dict[str, list[Entry]] = {}
        self._by_line: dict[int, Entry] = {}

    @property
    def labels(self) -> list[str]:
        """The steps or teams, in the order of the file."""
        return list(self._by_label)

    def entries(self, label: str, after: int = 0) -> list[Entry]:
        """The episodes of a step or a team, with their verdicts, from the first line above `after` on."""
        entries = self._by_label.get(label, ())
        said = any(entry.success is not None for entry in entries)
        return [
            entry._replace(success=verdict(entry.success, said)) if entry.overlong else entry
            for entry in entries
            if entry.line > after
        ]

    def entry(self, line: int) -> Entry | None:
        """The episode in a line; None if it has none."""
        return self._by_line.get(line)

    def text(self, entry: Entry) -> bytes:
        """The line of an episode; empty where the file has become another one."""
        with self._opened() as file:
            if file is None:
                return b""
            return os.pread(file.fileno(), entry.end - entry.start, entry.start)

    def refresh(self) -> None:
        """Reads what was added to the file."""
        with self._lock, self._opened() as file:
            if file is None:
                self._clear()
                return
            start = self._upto - len(self._tail)
            if os.pread(file.fileno(), len(self._tail), start) != self._tail:
                self._clear()
            file.seek(self._upto)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._lines += 1
                try:
                    self._add(line)
                except NO_RECORD as error:
                    self.broken[self._lines] = _reason(error)
                self._upto += len(line)
                self._tail = line[-TAIL:]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO | None]:
        file = self._open()
        if file is None:
            yield None
            return
        with file:
            yield file

    def _add(self, text: bytes) -> None:
        # No text can feign it, because JSON puts a backslash before a quote inside of a string.
        place = text.find(_DECISIONS, 0, HEAD)
        if place >= 0 and text.startswith(b"{"):
            # What stands before the decisions, as an object by itself.
            row = json.loads(text[:place].rstrip(b", ") + b"}")
        else:  # not written by this package, or with a very long id
            row = json.loads(text)
            if not isinstance(row.get("decisions"), list):
                raise ValueError("it has no decisions")
        if row["format"] != FORMAT:
            raise ValueError(f"format {row['format']}, this version reads {FORMAT}")
        success = row["success"]
        if not isinstance(success, bool | None):
            raise ValueError(f"success is {success!r}")
        label = str(row["team"] if "team" in row else row.get("step", ""))
        end = self._upto + len(text)
        total = float(sum(row["returns"].values()))
        if not abs(total) <= LARGEST:  # nor NaN
            raise ValueError(f"the returns are {total} together")
        overlong = {"team", "overlong"} <= row.keys()
        about = (label, str(row["task"]), int(row["episode"]), success, total, overlong)
        entry = Entry(self._lines, self._upto, end, *about)
        self._by_label.setdefault(label, []).append(entry)
        self._by_line[entry.line] = entry


def _reason(error: Exception) -> str:
    text = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
    return " ".join(text.split())[:200] or type(error).__name__


FLAT = 1e-9
"""Rewards of a group within this range tell nothing apart."""


def parsed(text: bytes) -> EpisodeRow:
    """The record in a line.

    Raises:
        ValueError: the line is no episode; says why.
    """
    try:
        row: EpisodeRow = json.loads(text)
        if row["format"] != FORMAT:
            raise ValueError(f"format {row['format']}, this version reads {FORMAT}")
        # Reads all that the page needs, so that a line that lacks something is refused here.
        facts(row)
        shown(row, alpha=0.0)
        mentions(row, "")
    except NO_RECORD as error:
        raise ValueError(_reason(error)) from error
    return row


def facts(row: EpisodeRow) -> JsonObject:
    """The fields that the table shows and filters by, without texts."""
    groups = [_group(decision) for decision in row["decisions"]]
    statuses: Counter[str] = Counter()
    for group in groups:
        statuses.update(group["statuses"])
    return {
        "task": row["task"],
        "episode": row["episode"],
        "success": row["success"],
        "difficulty": _difficulty(row),
        "overlong": "overlong" in row,
        "returns": row["returns"],
        "tokens": sum(group["tokens"] for group in groups),
        "unread": sum(group["unread"] for group in groups),
        "cut": sum(group["cut"] for group in groups),
        "silent": sum(group["flat"] for group in groups),
        "statuses": dict(statuses),
        "rewards": _rewards(groups),
        "groups": groups,
    }


def shown(row: EpisodeRow, alpha: Any = None) -> JsonObject:
    """The whole record without token ids; `alpha` is the run's weight of the team's reward."""
    kept = {key: value for key, value in row.items() if key != "decisions"}
    return kept | {"decisions": [_decision(decision, alpha) for decision in row["decisions"]]}


def compared(values: Sequence[float]) -> JsonObject:
    """Values that are compared with each other, and what the page says of them."""
    low, high = min(values), max(values)
    flat = high - low <= FLAT
    # As the estimators compute it, with one degree of freedom less.
    deviation = 0.0 if flat else stdev(values)
    return {
        "values": [*values],
        "low": low,
        "high": high,
        "mean": fmean(values),
        "deviation": deviation,
        "flat": flat,
    }


def mentions(row: EpisodeRow, text: str) -> bool:
    """Returns whether a prompt or a completion contains `text`, in any case."""
    passages = [
        passage
        for decision in row["decisions"]
        for passage in (decision["prompt"], *(c["completion"] for c in decision["candidates"]))
    ]
    # Joined, so that every passage is read, wherever the text is found.
    return text.casefold() in "\0".join(passages).casefold()


def encoded(value: Any) -> bytes:
    """JSON in ASCII: lone surrogates survive, and numbers that JSON does not know are null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        # As deep as what was read, which a function that calls itself is not.
        known = json.loads(json.dumps(value), parse_constant=lambda _: None)
        return json.dumps(known, allow_nan=False, separators=(",", ":")).encode()


def _group(decision: DecisionRow) -> JsonObject:
    candidates = decision["candidates"]
    rewards = [float(candidate["reward"]) for candidate in candidates]
    chosen = next((float(c["reward"]) for c in candidates if c["chosen"]), None)
    return {
        "role": decision["role"],
        "turn": decision["turn"],
        "width": len(candidates),
        # Without candidates this raises ValueError, with which `parsed` refuses the line.
        "low": min(rewards),
        "high": max(rewards),
        "chosen": chosen,
        "flat": len(rewards) > 1 and max(rewards) - min(rewards) <= FLAT,
        "unread": sum(c["info"].get("parse_error") is not None for c in candidates),
        "cut": sum(bool(c["truncated"]) for c in candidates),
        "solved": sum(bool(c["info"].get("success")) for c in candidates),
        "tokens": sum(len(c["token_ids"]) for c in candidates),
        "statuses": _statuses(candidates),
    }


def _rewards(groups: Sequence[Mapping[str, Any]]) -> dict[str, JsonObject]:
    """Role -> the mean of its executed rewards, and the range that they were chosen from."""
    rewards: dict[str, JsonObject] = {}
    for role in dict.fromkeys(group["role"] for group in groups):
        decisions = [group for group in groups if group["role"] == role]
        executed = [group["chosen"] for group in decisions if group["chosen"] is not None]
        rewards[role] = {
            "mean": fmean(executed) if executed else None,
            "low": min(group["low"] for group in decisions),
            "high": max(group["high"] for group in decisions),
            "wide": any(group["width"] > 1 for group in decisions),
        }
    return rewards


def _statuses(candidates: Iterable[CandidateRow]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for candidate in candidates:
        statuses = candidate["info"].get("statuses")
        counts.update(map(str, statuses if isinstance(statuses, list) else ()))
    return dict(counts)


def _difficulty(row: EpisodeRow) -> str | None:
    first = row["decisions"][0]["candidates"][0]["info"] if row["decisions"] else {}
    return None if first.get("difficulty") is None else str(first["difficulty"])


def _decision(decision: DecisionRow, alpha: Any) -> JsonObject:
    kept: JsonObject = {key: value for key, value in decision.items() if key != "prompt_ids"}
    candidates = decision["candidates"]
    group = None
    if len(candidates) > 1:
        group = compared([c["reward"] + c.get("later", {}).get("reward", 0) for c in candidates])
    return kept | {
        "prompt_tokens": len(decision["prompt_ids"]),
        "compared": group,
        "candidates": [_candidate(candidate, alpha) for candidate in candidates],
    }


def _candidate(candidate: CandidateRow, alpha: Any) -> JsonObject:
    kept: Mapping[str, Any] = candidate
    tokens, logprob = len(candidate["token_ids"]), candidate["logprob"]
    advantage = kept["advantage"]
    team, local, reward = (kept[name] for name in ("team_reward", "local_reward", "reward"))
    # Other reward schemes combine the two otherwise.
    fits = isinstance(alpha, int | float) and abs(alpha) <= LARGEST
    fits = fits and abs(float(alpha) * team + local - reward) < 1e-6
    return {key: value for key, value in kept.items() if key != "token_ids"} | {
        "tokens": tokens,
        "alpha": alpha if fits else None,
        "logprob_per_token": None if logprob is None or not tokens else logprob / tokens,
        "advantage_mean": fmean(advantage)
        if advantage and isinstance(advantage, list)
        else advantage,
    }
