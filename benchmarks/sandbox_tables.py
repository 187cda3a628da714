"""The tables of sandbox/README.md from the results of `sandbox` and `soak`, and plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WAYS = {
    "python3 -I -S": "`python3 -I -S`, no isolation",
    "embedded": "embedded, one run",
    "embedded, 6 tests, one process": "embedded, 6 tests in one process",
    "docker pool": "docker pool, one run",
    "docker run --rm": "`docker run --rm`, one run",
    "subprocess -X dev": "the paper's code: `python3 -X dev`, tracemalloc, whole environment",
    "in process, 6 tests": "LiveCodeBench's way: 6 tests by `exec` in a fork, no isolation",
}

FROM_1_TO_2 = "embedded, from 1 core to 2"
KEPT, PLACED, TOGETHER = (
    f"{FROM_1_TO_2}, {how}" for how in ("a core each", "placed by the kernel", "many runs a call")
)
CORES = {
    FROM_1_TO_2: "runs/s",  # in results from before there were several ways
    KEPT: "runs/s, one run a call, each worker and its caller on a core of their own",
    PLACED: "runs/s, one run a call, the kernel places workers and callers",
    TOGETHER: "runs/s, one caller, many runs a call, the kernel places workers",
}

Table = tuple[list[str], list[list[str]]]


def speed(rows: Sequence[dict[str, Any]]) -> Table:
    """What a run costs in the sandbox and elsewhere."""
    found = {row["way"]: row for row in rows}
    shown = [
        [
            title,
            _milliseconds(found[way]["wall p50 ms"]),
            _milliseconds(found[way]["CPU ms"]),
            _ratio(found[way], "wall / python3"),
            _ratio(found[way], "CPU / python3"),
        ]
        for way, title in WAYS.items()
    ]
    return ["way", "wall p50, ms", "CPU, ms", "wall against python3", "CPU against python3"], shown


def cores(rows: Sequence[dict[str, Any]]) -> Table:
    """How runs a second grow with the cores, one row for each way of measuring it."""
    header = ["", "one worker, one core", "two workers, two cores", "ratio"]
    shown = []
    for row in rows:
        if "2 / 1" in row:
            values = (f"{row[f'runs/s, {n}']:.0f}" for n in ("1 core", "2 cores"))
            shown.append([CORES[row["way"]], *values, f"{row['2 / 1']:.2f}"])
    return header, shown


def soak(rows: Sequence[dict[str, Any]]) -> Table:
    """What is held in a long run, at its first tenth, its middle, and its end."""
    header = ["runs", "workers, MiB", "caller, MiB", "processes", "descriptors", "longest batch, s"]
    shown = []
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        held = row["worker descriptors"] + row["client descriptors"]
        sizes = [f"{row[f'{whose} MiB']:.1f}" for whose in ("worker", "client")]
        longest = f"{row['longest batch s']:.2f}"
        shown.append([f"{row['runs']:,}", *sizes, str(row["processes"]), str(held), longest])
    return header, shown


def text(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as text, those with other columns below."""
    lines: list[str] = []
    names: list[str] = []
    for row in rows:
        if list(row) != names:
            names = list(row)
            lines.append("  ".join(name.rjust(max(9, len(name))) for name in names))
        cells = (
            (
                "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
            ).rjust(max(9, len(name)))
            for name, value in row.items()
        )
        lines.append("  ".join(cells))
    return "\n".join(lines)


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _ratio(row: dict[str, Any], name: str) -> str:
    if row[name] is None:
        return ""
    each = f" ({row[name] / row['runs']:.2f} a test)" if row["runs"] > 1 else ""
    return f"{row[name]:.2f}{each}"
