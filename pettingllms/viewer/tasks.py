"""Episodes of evaluations by task: which tasks are hard, and which of them two teams solve.

Every number that the pages of evaluations show about tasks is made here, or was when the evaluation ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pettingllms.statistics import paired_difference
from pettingllms.viewer.index import Entry

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
    """The tasks of an evaluation, those that were solved least often first.

    Args:
        teams: team -> what `solved` says of it.
    """
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
