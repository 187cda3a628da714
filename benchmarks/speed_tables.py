"""Tables of speed and of the sandbox: header and rows from the results of six scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Not at run time: it imports torch, and a benchmark that forks would measure the size of torch.
    from benchmarks.evidence import Table

Rows = Sequence[dict[str, Any]]


def boards(rows: Rows) -> Table:
    """Times and rates of the board games, with the aims."""
    shown = [
        [
            row["what"],
            f"{row['value']:,.{2 if row['unit'] == 's' else 0 if row['value'] > 99 else 1}f} {row['unit']}",
            row["aim"],
        ]
        for row in rows
    ]
    return ["what", "measured", "at most"], shown


def sudoku(rows: Rows) -> Table:
    """Milliseconds for a puzzle with one solution, beside reasoning-gym."""
    puzzle_rows = [row for row in rows if "puzzles" in row]
    shown = [
        [
            row["puzzles"],
            f"{row['ms']:.2f}",
            f"{row['reasoning-gym ms']:.2f}",
            f"{row['ratio']:.1f}x",
        ]
        for row in puzzle_rows
    ]
    return ["puzzles", "ms", "reasoning-gym, ms", "faster"], shown


def vllm_sampling(rows: Rows) -> Table:
    """Tokens per CPU-second of the samplers."""
    names = ["sampler, adapter", "generate, adapter", "vllm, adapter"]
    names += [name.replace("adapter", "plain") for name in names]
    shown = [
        [
            f"{row['parameters'] / 1e6:.1f} M",
            f"{row['K']}, {row['reply tokens']}",
            *(f"{row[name]:,.0f}" for name in names),
        ]
        for row in rows
    ]
    return ["parameters", "K, tokens", *names], shown


def refill(rows: Rows) -> Table:
    """CPU time of sampling with refilled batches, over lock step."""
    shown = [
        [
            row["lengths of"],
            f"{row['passes a step']:,.0f}",
            f"{row['seconds a step']:.1f}",
            f"{row['refilled, per role']:.2f}x",
            f"{row['refilled, shared']:.2f}x",
        ]
        for row in rows
    ]
    header = ["lengths of", "passes a step", "seconds a step"]
    return [*header, "refilled, a policy for each role", "refilled, one policy"], shown


WAYS = {
    "python3 -I -S": "`python3 -I -S`, no isolation",
    "python3": "`python3`, no isolation",
    "embedded": "embedded, one run",
    "embedded, 6 tests": "embedded, 6 tests, a process each",
    "embedded, 6 tests, shared": "embedded, 6 tests of a simple program, one process",
    "docker pool": "docker pool, one run",
    "docker run --rm": "`docker run --rm`, one run",
    "python3 -X dev": "the paper's way: `python3 -X dev`, tracemalloc, in an environment without packages",
    "subprocess -X dev": "the paper's way, in our own development environment",
    "in process, 6 tests": "LiveCodeBench's way: 6 tests by `exec` in a fork, no isolation",
}

FROM_1_TO_2 = "embedded, from 1 core to 2"
KEPT, PLACED, TOGETHER = (
    f"{FROM_1_TO_2}, {how}" for how in ("a core each", "placed by the kernel", "many runs a call")
)
CORES = {
    KEPT: "runs/s, one run a call, each worker and its caller on a core of their own",
    PLACED: "runs/s, one run a call, workers keep to a core each, the kernel places callers",
    TOGETHER: "runs/s, one caller, many runs a call, workers keep to a core each",
}


def sandbox(rows: Sequence[dict[str, Any]]) -> Table:
    """What a run costs in the sandbox and elsewhere."""
    by_way = {row["way"]: row for row in rows}
    shown = [
        [
            title,
            _milliseconds(by_way[way]["wall p50 ms"]),
            _milliseconds(by_way[way]["CPU ms"]),
            _ratio(by_way[way], "wall / python3"),
            _ratio(by_way[way], "CPU / python3"),
        ]
        for way, title in WAYS.items()
        if way in by_way
    ]
    return ["way", "wall p50, ms", "CPU, ms", "wall against python3", "CPU against python3"], shown


def sandbox_cores(rows: Sequence[dict[str, Any]]) -> Table:
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
    per_test = f" ({row[name] / row['runs']:.2f} a test)" if row["runs"] > 1 else ""
    return f"{row[name]:.2f}{per_test}"
