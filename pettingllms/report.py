"""Tables of evaluations side by side: before and after training, base and adapters, swapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pettingllms.evaluate import Estimate, Evaluation

Columns = Mapping[str, Sequence[Evaluation]]
"""Column title -> evaluations, one for each way of decoding, the same ways in every column."""

LABELS = {
    "success": "success",
    "first_passed": "hidden tests passed, first reply",
    "first_valid": "tests that are right, first reply",
    "first_caught": "wrong programs caught, first reply",
    "first_local_reward": "local reward, first reply",
    "reward": "reward of a reply",
    "parse_error": "replies not readable",
    "truncated": "replies cut at the limit",
    "tokens": "tokens of a reply",
}
"""Scores that a table shows, in this order, where they exist."""
SHORT = (
    "success",
    "first_passed",
    "first_valid",
    "first_caught",
    "first_local_reward",
    "parse_error",
)
"""What a terminal has room for."""


def rows(columns: Columns, names: Sequence[str] = tuple(LABELS)) -> list[list[str]]:
    """Header and body: who, what, how decoded, then a cell for each column."""
    body = [["", "", "", *columns]]
    first = next(iter(columns.values()))
    for who in ("team", *first[0].roles):
        for name in names:
            key = name if who == "team" else f"{who}/{name}"
            if (name == "success") != (who == "team"):
                continue
            for place, evaluation in enumerate(first):
                cells = [_cell(each[place].scores.get(key), name) for each in columns.values()]
                if any(cells):
                    how = "greedy" if evaluation.greedy else "sampled"
                    body.append([who, LABELS[name], how, *cells])
    return body


def as_text(columns: Columns) -> str:
    """The most important rows in aligned columns, repeated names left out."""
    table = rows(columns, SHORT)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines, before = [], ["", ""]
    for row in table:
        shown = ["" if row[:1] == before[:1] else row[0], "" if row[:2] == before else row[1]]
        before = row[:2]
        cells = zip([*shown, *row[2:]], widths, strict=True)
        lines.append("  ".join(cell.ljust(width) for cell, width in cells).rstrip())
    return "\n".join(lines)


def as_markdown(columns: Columns) -> str:
    """The table as GitHub shows it."""
    header, *body = rows(columns)
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def sizes(evaluation: Evaluation) -> str:
    """What the numbers are of."""
    games = f"{evaluation.tasks} held-out tasks"
    if evaluation.samples > 1:
        games += f", {evaluation.samples} games of each"
    return f"{games}; in brackets 95 % intervals (bootstrap over tasks)"


def _cell(estimate: Estimate | None, name: str) -> str:
    if estimate is None:
        return ""
    digits = 0 if name == "tokens" else 2
    return "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(*estimate, d=digits)
