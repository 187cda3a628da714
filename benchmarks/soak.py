"""Does anything grow, hang or get lost when programs of all kinds run by the hundred thousand?

    python -m benchmarks.soak --runs 100000

Ten lines on the way say what the workers and this process hold: memory, processes, descriptors.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.options import Options
from benchmarks.sandbox import CASE, PROGRAM, report, worker_pids
from pettingllms.sandbox import Case, Limits
from pettingllms.sandbox.client import PooledSandbox
from pettingllms.sandbox.embedded import EmbeddedSandbox

CASES = (Case("3 1 2\n"), CASE)
SOAKED = (
    PROGRAM,
    "x = [int(v) for v in input().split()]\nprint(sorted(x))",
    "1 / 0",
    "import os; os.abort()",
    "print('x' * 100000)",
    "while True: pass",
    "import threading; t = threading.Thread(target=print, args=(1,)); t.start(); t.join()",
    "open('/tmp/x', 'w').write('y' * 1000)",
)


def main() -> None:
    """Prints the table, and writes it as JSON where asked."""
    options = Options(__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=100_000)
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = options.parse_args()
    report("soak", arguments, soak(arguments.runs))


def soak(runs: int) -> list[dict[str, Any]]:
    """So many runs of all kinds of programs: ten rows on what is held, and how long runs took."""
    rows: list[dict[str, Any]] = []
    limits = Limits(cpu_s=0.02, wall_s=30.0, output_kib=64)
    batch = len(SOAKED) * len(CASES)
    with EmbeddedSandbox(2) as sandbox:
        longest, done, begun = 0.0, 0, time.monotonic()
        first = set(sandbox._pool._all)
        while done < runs:
            started = time.monotonic()
            sandbox.run(SOAKED, CASES, limits=limits, end_at_limit=False)
            longest = max(longest, time.monotonic() - started)
            done += batch
            first = first or set(sandbox._pool._all)
            if done * 10 // runs > len(rows):
                rows.append(held(sandbox, done, longest, time.monotonic() - begun))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                longest = 0.0
        rows[-1]["workers lost"] = len(first - sandbox._pool._all)
    return rows


def held(sandbox: PooledSandbox, done: int, longest: float, elapsed: float) -> dict[str, Any]:
    """What the workers and this process hold now."""
    time.sleep(0.2)
    pids = [pid for pid in worker_pids(sandbox) if Path(f"/proc/{pid}/statm").exists()]
    return {
        "runs": done,
        "runs/s": done / elapsed,
        "worker MiB": sum(map(resident_mib, pids)),
        "client MiB": resident_mib(os.getpid()),
        "processes": len(pids),
        "worker descriptors": sum(map(descriptors, pids)),
        "client descriptors": descriptors(os.getpid()),
        "longest batch s": longest,
    }


def resident_mib(pid: int) -> float:
    """Memory that a process holds, shared pages counted in each process that shares them."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def descriptors(pid: int) -> int:
    """Open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


if __name__ == "__main__":
    main()
