"""An episode as the page needs it: `facts` for a row of the table, `shown` for the tree.

Token ids are most of a line, and nobody reads them: only their number is kept. Everything
else of the record reaches the page as it is. An `info` is whatever an environment says, so nothing
is assumed of its values.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pettingllms.rollout.files import FORMAT, CandidateRow, DecisionRow, EpisodeRow

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
        # Reads all that the table needs, so that a line that lacks something is refused here.
        facts(row)
    except KeyError as error:
        raise ValueError(f"no {error.args[0]!r}") from error
    except (TypeError, AttributeError, LookupError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return row


def facts(row: EpisodeRow) -> dict[str, Any]:
    """The fields that the table shows and filters by, without texts."""
    groups = [_group(decision) for decision in row["decisions"]]
    return {
        "task": row["task"],
        "episode": row["episode"],
        "success": row["success"],
        "difficulty": _difficulty(row),
        "overlong": "overlong" in row,
        "returns": row["returns"],
        "tokens": sum(group["tokens"] for group in groups),
        "groups": groups,
    }


def shown(row: EpisodeRow) -> dict[str, Any]:
    """The whole record without token ids."""
    kept = {key: value for key, value in row.items() if key != "decisions"}
    return kept | {"decisions": [_decision(decision) for decision in row["decisions"]]}


def mentions(row: EpisodeRow, text: str) -> bool:
    """Returns whether a prompt or a completion contains `text`, in any case."""
    wanted = text.casefold()
    return any(
        wanted in part.casefold()
        for decision in row["decisions"]
        for part in (decision["prompt"], *(each["completion"] for each in decision["candidates"]))
    )


def encoded(value: Any) -> bytes:
    """JSON in ASCII: lone surrogates survive, and numbers that JSON does not know are null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        # Only here, because it brings the environments' libraries with it.
        from pettingllms.rollout.episode import plain

        return json.dumps(plain(value), allow_nan=False, separators=(",", ":")).encode()


def _group(decision: DecisionRow) -> dict[str, Any]:
    candidates = decision["candidates"]
    rewards = [float(each["reward"]) for each in candidates]
    chosen = next((each["reward"] for each in candidates if each["chosen"]), None)
    return {
        "role": decision["role"],
        "turn": decision["turn"],
        "width": len(candidates),
        # Without candidates this raises ValueError, with which `parsed` refuses the line.
        "low": min(rewards),
        "high": max(rewards),
        "chosen": chosen,
        "flat": len(rewards) > 1 and max(rewards) - min(rewards) <= FLAT,
        "unread": sum(each["info"].get("parse_error") is not None for each in candidates),
        "cut": sum(bool(each["truncated"]) for each in candidates),
        "solved": sum(bool(each["info"].get("success")) for each in candidates),
        "tokens": sum(len(each["token_ids"]) for each in candidates),
        "statuses": _statuses(candidates),
    }


def _statuses(candidates: list[CandidateRow]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in candidates:
        statuses = each["info"].get("statuses")
        found.update(map(str, statuses if isinstance(statuses, list) else ()))
    return dict(found)


def _difficulty(row: EpisodeRow) -> str | None:
    first = row["decisions"][0]["candidates"][0]["info"] if row["decisions"] else {}
    return None if first.get("difficulty") is None else str(first["difficulty"])


def _decision(decision: DecisionRow) -> dict[str, Any]:
    kept: dict[str, Any] = {key: value for key, value in decision.items() if key != "prompt_ids"}
    return kept | {
        "prompt_tokens": len(decision["prompt_ids"]),
        "candidates": [_candidate(each) for each in decision["candidates"]],
    }


def _candidate(candidate: CandidateRow) -> dict[str, Any]:
    kept: Mapping[str, Any] = candidate
    return {key: value for key, value in kept.items() if key != "token_ids"} | {
        "tokens": len(candidate["token_ids"])
    }
