"""What would it give to refill the sampler's batch with the next prompts of episodes that are ahead?

    python -m benchmarks.refill runs/coding runs/sokoban runs/plan_path runs/math

The sampler takes one decision of all episodes of a step at a time (lock step): rows leave the batch as
they end, and the next decisions begin when the last row has ended. Refilled, an episode's next prompt
joins as soon as its own completions have ended, so that fewer passes of the model have more rows each.
But a pass is of one policy, so that episodes at different roles do not share it.

Measured: the CPU time of a pass of the embedded model by its number of rows. Counted: the passes, and
the rows of each, for the lengths that completions of the given runs had, and for log-normal lengths
(mean 48, cut at 384, four decisions, two roles by turns). Refilling is given everything for nothing:
scores are there at once, prompts cost no time, and the order is the better of two, all policies in turn or
always the one with most rows.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.lengths import log_normal
from benchmarks.measure import publish
from benchmarks.options import Options
from pettingllms.models import EMBEDDED
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.files import TRAJECTORIES
from pettingllms.samplers.transformers import SharedDecoding

Episode = Sequence[tuple[str, Sequence[int]]]
"""Policy, and tokens of each completion, of every decision."""
Passes = list[int]
"""Rows of each pass."""
RESULTS = Path(__file__).parent / "results" / "refill.json"
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


def costs(rounds: int) -> dict[int, float]:
    """Rows -> median CPU seconds of a pass; 8 rows a prompt of 100 tokens."""
    policies = load_policies(EMBEDDED, {"role": "role"}, device="cpu")
    model = policies.sampling_model("role")
    seconds: dict[int, list[float]] = {rows: [] for rows in _ROWS}
    with torch.no_grad():
        for _ in range(rounds):
            for rows in _ROWS:
                prompts = [tuple(range(5 + i, 105 + i)) for i in range(max(1, rows // 8))]
                decoding = SharedDecoding(model, prompts)
                owner_R = torch.arange(rows) // 8
                token_R = decoding.start().argmax(-1)[owner_R]
                decoding.keep(owner_R, rows)
                for _ in range(40):
                    started = time.thread_time()
                    decoding.step(token_R)
                    seconds[rows].append(time.thread_time() - started)
    return {rows: statistics.median(times) for rows, times in seconds.items()}


def lock_step(episodes: Sequence[Episode]) -> Passes:
    """Passes where every decision waits for all episodes."""
    passes: Passes = []
    for depth in range(max(map(len, episodes))):
        rows: dict[str, list[int]] = {}
        for policy, lengths in (
            decisions[depth] for decisions in episodes if depth < len(decisions)
        ):
            rows.setdefault(policy, []).extend(lengths)
        for mine in rows.values():
            passes += [sum(n > step for n in mine) for step in range(max(mine))]
    return passes


def refilled(episodes: Sequence[Episode], *, most: bool) -> Passes:
    """Passes where an episode waits for itself alone.

    Args:
        episodes: of a step.
        most: each pass is of the policy with most rows; otherwise all policies have passes in turn.
    """
    passes: Passes = []
    state = [(0, list(turns[0][1])) for turns in episodes]
    while True:
        rows: dict[str, int] = {}
        for episode, (depth, left) in zip(episodes, state, strict=True):
            if depth < len(episode):
                rows[episode[depth][0]] = rows.get(episode[depth][0], 0) + len(left)
        if not rows:
            return passes
        chosen = {max(rows, key=lambda name: rows[name])} if most else set(rows)
        passes += [rows[name] for name in sorted(chosen)]
        for place, (episode, (depth, left)) in enumerate(zip(episodes, state, strict=True)):
            if depth < len(episode) and episode[depth][0] in chosen:
                left = [n - 1 for n in left if n > 1]
                if not left:
                    depth += 1
                    left = list(episode[depth][1]) if depth < len(episode) else []
                state[place] = depth, left


def steps_of(run: Path) -> list[list[Episode]]:
    """The episodes of every step of a run."""
    steps: dict[int, list[Episode]] = {}
    for line in (run / TRAJECTORIES).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        decisions = [
            (decision["policy"], [len(one["token_ids"]) for one in decision["candidates"]])
            for decision in row["decisions"]
        ]
        steps.setdefault(row["step"], []).append(decisions)
    return list(steps.values())


def drawn(steps: int, episodes: int, k: int) -> list[list[Episode]]:
    """Steps with log-normal lengths."""
    generator = torch.Generator().manual_seed(0)
    return [
        [
            [("ab"[depth % 2], log_normal(k + 1, 48, 384, generator)[1:]) for depth in range(4)]
            for _ in range(episodes)
        ]
        for _ in range(steps)
    ]


def _row(
    name: str, steps: Sequence[Sequence[Episode]], seconds: Callable[[int], float]
) -> dict[str, Any]:
    shared = [
        [[("all", decision[1]) for decision in episode] for episode in step] for step in steps
    ]

    def total(passes: Callable[[Sequence[Episode]], Passes], of: Sequence[Any]) -> float:
        return sum(seconds(rows) for step in of for rows in passes(step))

    before = total(lock_step, steps)
    ways = [lambda step: refilled(step, most=True), lambda step: refilled(step, most=False)]
    return {
        "lengths of": name,
        "steps": len(steps),
        "passes a step": sum(len(lock_step(step)) for step in steps) / len(steps),
        "seconds a step": before / len(steps),
        "refilled, per role": min(total(way, steps) for way in ways) / before,
        "refilled, shared": min(total(way, shared) for way in ways) / total(lock_step, shared),
    }


def main() -> None:
    """Prints the table."""
    parser = Options(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of trainings")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured = costs(options.rounds)

    def seconds(rows: int) -> float:
        above = next((n for n in _ROWS if n >= rows), _ROWS[-1])
        below = max((n for n in _ROWS if n <= rows), default=1)
        if above <= below:
            return measured[below] * rows / below
        share = (rows - below) / (above - below)
        return measured[below] + share * (measured[above] - measured[below])

    table_rows = [_row(run.name, steps_of(run), seconds) for run in options.runs]
    table_rows += [_row(f"log-normal, K = {k}", drawn(4, 16, k), seconds) for k in (8, 16)]
    options.milliseconds = {rows: round(1e3 * ms, 2) for rows, ms in measured.items()}
    options.runs = [run.name for run in options.runs]
    publish("refilling", options, table_rows)


if __name__ == "__main__":
    main()
