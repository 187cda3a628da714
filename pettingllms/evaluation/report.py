"""Tables for a terminal and in Markdown: before and after training, line-ups, swaps, differences."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pettingllms.evaluation.compare import Comparison, gains_of
from pettingllms.evaluation.rollouts import ADAPTERS, title_of_swap
from pettingllms.evaluation.scores import Evaluation
from pettingllms.statistics import Difference, Estimate, primary

TEAM = {
    "success": "success",
    "overlong": "episodes without room for a prompt",
    "pass@": "success in one of {}",
    "maj@": "success of the majority of {}",
    "env/": "success, {}",
    "difficulty/": "success, difficulty {}",
    "win/": "wins of {}",
    "draws": "draws",
    "return/": "return of {}",
    "return": "return of an episode",
    "turns": "turns",
    "decisions": "decisions of an episode",
    "tokens": "tokens of an episode",
}
"""Team scores in this order; a key that does not end in a letter is the prefix of several."""
FIRST = {
    "first_passed": "hidden tests passed, first completion",
    "first_valid": "tests that are right, first completion",
    "first_caught": "wrong programs caught, first completion",
    "first_local_reward": "local reward, first completion",
}
ROLE = FIRST | {
    "first_": "{}, first completion",
    "reward": "reward of a completion",
    "team_reward": "team reward of a completion",
    "local_reward": "local reward of a completion",
    "parse_error": "unparsable completions",
    "truncated": "truncated completions",
    "refused": "refused or empty answers",
    "tokens": "tokens of a completion",
    "turns": "completions in an episode",
    "status/": "program runs ended: {}",
}
"""Scores of a role, like `TEAM`."""


class Keys(NamedTuple):
    """A selection of `TEAM` and `ROLE`."""

    team: Sequence[str] = tuple(TEAM)
    role: Sequence[str] = tuple(ROLE)


_RESULT = ("success", "env/", "overlong", "win/", "draws", "return/")
ALL = Keys()
SHORT = Keys(
    ("success", "env/", "overlong", "pass@", "maj@", "difficulty/", "win/", "draws", "return/"),
    (*FIRST, "first_", "parse_error", "refused", "tokens"),
)
"""What a terminal has room for."""
TRAINING = Keys(_RESULT, (*FIRST, "reward", "parse_error", "truncated", "tokens"))
TRAINING_SHORT = Keys(_RESULT, (*FIRST, "parse_error"))
TESTED = (
    "differences are paired by task (Tango's interval for shares, else bootstrap). *: the interval leaves out "
    "0, and the exact test (McNemar's, or sign flips) has p < 0.05 after Holm's correction over the rows; "
    "without * a difference is not decided. The primary score, success or return, is tested alone"
)
INTERVALS = "brackets are 95 % intervals over tasks (Wilson for shares, else bootstrap)"
Evaluations = Mapping[str, Evaluation]
Table = list[list[str]]


def training_table(columns: Mapping[str, Sequence[Evaluation]], *, short: bool = False) -> Table:
    """Makes rows of team or role, score and decoding, then a cell for each column.

    Args:
        columns: title -> evaluations, one for each way of decoding, the same ways in every column; a
            column without any is left out.
        short: only the most important rows.
    """
    columns = {title: column for title, column in columns.items() if column}
    first, last = next(iter(columns.values())), [*columns.values()][-1]
    gains = gains_of(first, last)
    table = [["", "", "", *columns, *["difference"] * bool(gains)]]
    # Of every column: a base that never wrote a program has no score of programs, the team may.
    names = _names(itertools.chain(*columns.values()))
    for who, label, name in _rows(names, first[0].roles, TRAINING_SHORT if short else TRAINING):
        for place, evaluation in enumerate(first):
            estimates = [column[place].scores.get(name) for column in columns.values()]
            how = "greedy" if evaluation.greedy else "sampled"
            gain = signed(gains[place]) if name == primary(names) and place in gains else ""
            table.append([who, label, how, *map(interval, estimates), *[gain] * bool(gains)])
    return table


def training_notes(evaluation: Evaluation, steps: Sequence[Mapping[str, Any]] = ()) -> str:
    """Explains the numbers of a training table; adds the success in these steps."""
    episodes = f", {evaluation.samples} episodes of each" if evaluation.samples > 1 else ""
    tested = f"; {TESTED}" if primary(evaluation.scores) else ""
    return f"{evaluation.tasks} held-out tasks{episodes}; {INTERVALS}{tested}" + "".join(
        f"\nin step {row['step']} of training: success {row['success_mean']:.2f} as the mean of completions "
        f"(compare with `sampled`), {row['success']:.2f} as executed"
        for row in steps
        if row.get("success_mean") is not None
    )


def scores_table(teams: Evaluations, *, short: bool = False) -> Table:
    """Makes rows of team or role and score, then a cell with its interval for each line-up."""
    names = _names(teams.values())
    roles = next(iter(teams.values())).roles
    table = [["", "", *teams]]
    for who, label, name in _rows(names, roles, SHORT if short else ALL):
        estimates = [evaluation.scores.get(name) for evaluation in teams.values()]
        table.append([who, label, *map(interval, estimates)])
    return table


def joint_table(envs: Mapping[str, Evaluations]) -> Table:
    """A row for each environment: success of every line-up, or its returns without a success."""
    titles = dict.fromkeys(title for teams in envs.values() for title in teams)
    table = [["environment", "", *titles]]
    for env, teams in envs.items():
        names = dict.fromkeys(name for evaluation in teams.values() for name in evaluation.scores)
        shown = [name for name in names if name == "success"] or [
            name for name in names if name.startswith("return")
        ]
        for name in shown:
            estimates = [
                teams[title].scores.get(name) if title in teams else None for title in titles
            ]
            table.append([env, name, *map(interval, estimates)])
    return table


def matrix(teams: Evaluations, score: str = "success") -> dict[str, dict[str, Estimate]]:
    """Role -> other role -> the score with the other's policy in the role.

    `{role}` in `score` stands for the first role. The diagonal is the plain line-up, in which every
    role has its own policy. Empty unless roles were exchanged one at a time.
    """
    roles = teams[ADAPTERS].roles if ADAPTERS in teams else ()
    cells: dict[str, dict[str, Estimate]] = {}
    for role in roles:
        for other in roles:
            title = title_of_swap(role, other)
            evaluation = teams.get(ADAPTERS if role == other else title)
            if evaluation and (estimate := evaluation.scores.get(score.format(role=role))):
                cells.setdefault(role, {})[other] = estimate
    return cells if any(len(row) > 1 for row in cells.values()) else {}


def matrix_table(
    cells: Mapping[str, Mapping[str, Estimate]],
    swaps: Mapping[str, Mapping[str, Difference]] = MappingProxyType({}),
) -> Table:
    """Roles down, policies across; a cell is empty where the policy is the role's own anyway.

    Args:
        cells: of `matrix`.
        swaps: role -> other role -> its cell less that of the role's own policy.
    """

    def cell(role: str, other: str) -> str:
        gain = swaps.get(role, {}).get(other)
        shown = interval(cells[role].get(other))
        return shown if gain is None else f"{shown}, {signed(gain)}"

    others = dict.fromkeys(other for row in cells.values() for other in row)
    header = ["role \\ policy of", *others]
    return [
        header,
        *([role, *(cell(role, other) for other in others)] for role in cells),
    ]


def comparison_table(comparison: Comparison, *, short: bool = False) -> Table:
    """Makes a row for each score of the team and of every role.

    It has both means, the difference with its interval, and how many tasks rose and fell.
    """
    head = ["", "", comparison.first, comparison.second, "difference", "more", "less", "p"]
    table = [head]
    for who, label, name in _rows(
        comparison.differences, comparison.roles, SHORT if short else ALL
    ):
        one, two = comparison.means[name]
        gain = comparison.differences[name]
        cells = [number(one.mean), number(two.mean), signed(gain), str(gain.more), str(gain.less)]
        cells.append(f"{gain.p_holm:.2g}")
        table.append([who, label, *cells])
    return table


def coverage_table(comparison: Comparison) -> Table:
    """A row for each k: tasks that both, one or neither side solves within k samples."""
    one, two = comparison.first, comparison.second
    header = ["samples", "both", f"only {two}", f"only {one}", "neither", "ratio", "gained share"]
    table = [header]
    for covered in comparison.coverage:
        counts = map(
            str, (covered.preserved, covered.expansion, covered.shrinkage, covered.neither)
        )
        ratio = number(covered.ratio) if math.isfinite(covered.ratio) else "∞"
        gained = (covered.expansion - covered.shrinkage) / comparison.tasks
        bounds = f"{gained:+.2f} [{covered.low:+.2f}, {covered.high:+.2f}]"
        table.append([str(covered.k), *counts, ratio, bounds])
    return table


def notes(comparison: Comparison) -> str:
    """States the verdict on the primary score, and what the numbers are of."""
    left = f"; {comparison.alone} tasks of only one side are left out" if comparison.alone else ""
    scales = f"{comparison.tasks} tasks{left}; {TESTED}; more, less: tasks; p: corrected"
    score = comparison.primary
    if score is None:
        return scales
    verdict = comparison.differences[score].verdict
    return f"{score} of {comparison.second} against {comparison.first}: {verdict}\n{scales}"


def as_text(table: Table) -> str:
    """Aligned columns; of the first two cells, what repeats the row above is left out."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines, before = [], [""]
    for row in table:
        shown = ["" if row[:n] == before[:n] else row[n - 1] for n in (1, 2)] + row[2:]
        before = row
        padded = (cell.ljust(width) for cell, width in zip(shown, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def as_markdown(table: Table) -> str:
    """A table in GitHub's Markdown."""
    header, *body = ([cell.replace("|", "\\|") for cell in row] for row in table)
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def number(value: float) -> str:
    """Two decimals below 10, none from 100 on."""
    return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"


def _names(evaluations: Iterable[Evaluation]) -> dict[str, None]:
    """All scores, but the local rewards of a role that earned none in any of them."""
    scores = (item for evaluation in evaluations for item in evaluation.scores.items())
    return dict.fromkeys(n for n, score in scores if any(score) or not n.endswith("local_reward"))


def _rows(names: Iterable[str], roles: Sequence[str], keys: Keys) -> Iterator[tuple[str, str, str]]:
    """Yields team or role, label and name of each score, in the order of `TEAM` and `ROLE`."""
    scores = list(names)
    for who in ("team", *roles):
        labels, chosen = (TEAM, keys.team) if who == "team" else (ROLE, keys.role)
        start = "" if who == "team" else f"{who}/"
        rest = sorted(
            (n.removeprefix(start) for n in scores if n.startswith(start)), key=_by_number
        )
        for key in chosen:
            fits = str.__eq__ if key[-1].isalpha() else str.startswith
            for name in [name for name in rest if fits(name, key)]:
                rest.remove(name)  # a prefix matches only what has no row of its own
                yield who, _label(name, key, labels[key]), start + name


def _by_number(name: str) -> list[tuple[bool, int, str]]:
    """Sorts pass@8 before pass@16."""
    parts = re.split(r"(\d+)", name)
    return [(piece.isdigit(), int(piece) if piece.isdigit() else 0, piece) for piece in parts]


def _label(name: str, key: str, label: str) -> str:
    rest = name.removeprefix(key).removesuffix("/success")
    return label.format(rest if key in ("win/", "return/") else rest.replace("_", " "))


def interval(estimate: Estimate | None) -> str:
    """A score with its interval; empty where there is none."""
    return "" if estimate is None else "{} [{}, {}]".format(*map(number, estimate))


def signed(gain: Difference) -> str:
    """A difference with its sign and interval; * where it is decided."""
    mean, low, high = (f"{'+' if value > 0 else ''}{number(value)}" for value in gain[:3])
    return f"{mean} [{low}, {high}]{' *' if gain.clear else ''}"
