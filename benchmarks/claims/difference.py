"""Does a policy for each role gain more over a shared one where the roles' policies differ more?

A point is a ground. How much policies differ there is what the team loses when they are exchanged; what a policy for
each role gains is its success over that of a shared one. One correlation of ranks over few grounds: it cannot
tell this difference from others between them, such as the base, the length of a training and the number of roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.claims.cells import READINGS
from benchmarks.claims.experiments import AT_GRPO, EXCHANGED, SHARED
from benchmarks.claims.statistics import LEVEL, digits, rank_correlation, rank_p_value
from benchmarks.evidence import Table

LEAST = 6
"""Grounds below which no correlation is computed: of five, even ranks in perfect order have a p-value of 0.017."""


def correlated(
    runs: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]],
) -> dict[str, Any] | None:
    """Spearman's correlation at both readings and its points; None where both arms are on too few grounds."""
    grounds = [ground for ground, arm in runs if arm == AT_GRPO and (ground, SHARED) in runs]
    if len(grounds) < LEAST:
        return None
    points = {ground: _point(runs[ground, AT_GRPO], runs[ground, SHARED]) for ground in grounds}
    losses = [points[ground]["loss"] for ground in grounds]
    result: dict[str, Any] = {"points": points}
    values = []
    for name in READINGS:
        gains = [points[ground][name] for ground in grounds]
        result[name] = [round(number, 4) for number in rank_correlation(losses, gains)]
        values.append(rank_p_value(losses, gains))
    result["p"] = float(f"{max(values):.2g}")
    return result


def _point(separate: Sequence[Any], shared: Sequence[Any]) -> dict[str, float]:
    """What is lost by the exchange, which is played at equal tokens, and what is gained at both readings."""
    first = READINGS[0]
    lost = _success(separate, first, "own") - _success(separate, first, EXCHANGED)
    gains = {n: _success(separate, n, "own") - _success(shared, n, "own") for n in READINGS}
    return {name: round(value, 4) for name, value in {"loss": lost, **gains}.items()}


def _success(cells: Sequence[Any], reading: str, lineup: str) -> float:
    return float(digits([cell[reading][lineup] for cell in cells]).mean())


def table(result: Mapping[str, Any]) -> Table:
    """The points, in the order of what is lost by the exchange."""
    points = sorted(result["difference"]["points"].items(), key=lambda item: item[1]["loss"])
    rows = [
        [f"`{ground}`", *(f"{point[name]:+.2f}" for name in ("loss", *READINGS))]
        for ground, point in points
    ]
    head = ["where", "lost by the exchange", "gain of a policy for each role at equal tokens"]
    return [*head, "at equal updates"], rows


def sentence(result: Mapping[str, Any]) -> str:
    """The correlation and its verdict."""
    difference = result["difference"]
    shown = [
        f"{difference[n][0]:+.2f} [{difference[n][1]:+.2f}, {difference[n][2]:+.2f}]"
        for n in READINGS
    ]
    sides = {difference[name][0] > 0 for name in READINGS}
    decided = difference["p_holm"] < LEVEL and len(sides) == 1
    word = ("supported" if sides == {True} else "refuted") if decided else "not decided"
    return (
        "A policy for each role gains more over a shared one where more is lost by an exchange: "
        f"**{word}**. Spearman's correlation over {len(difference['points'])} environments is {shown[0]} at "
        f"equal tokens and {shown[1]} at equal updates (p {difference['p']:.2g}, by Holm {difference['p_holm']:.2g})."
    )
