"""What a request of a program costs beside the sampling, what a replay costs, and the memory of waiting programs.

    python -m benchmarks.programs
    python -m benchmarks.programs --rounds 2 --waiting 4

The program asks `--calls` times, one call after another, with a plain HTTP client or with OpenAI's; the replies are
texts, so that nothing is sampled. CPU milliseconds are of the whole process: endpoint, environment, and client.
`branch` steps four different replies at the last call, of which three need a replay. The
waiting programs are threads that each wait at their first call; their memory is what the process has grown by.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai

from benchmarks.options import Options
from benchmarks.sandbox import report
from pettingllms.envs.program_v0 import env as program_env


def plain(base_url: str) -> Callable[[str], str]:
    """A function that asks with Python's own HTTP client."""
    where = urlsplit(base_url)

    def ask(text: str) -> str:
        body = {"model": "writer", "messages": [{"role": "user", "content": text}]}
        client = http.client.HTTPConnection(where.netloc)
        client.request("POST", f"{where.path}/chat/completions", json.dumps(body))
        with client.getresponse() as response:
            reply = json.load(response)
        client.close()
        return str(reply["choices"][0]["message"]["content"])

    return ask


def official(base_url: str) -> Callable[[str], str]:
    """A function that asks with OpenAI's client."""
    client = openai.OpenAI(base_url=base_url, api_key="local")

    def ask(text: str) -> str:
        messages: Any = [{"role": "user", "content": text}]
        reply = client.chat.completions.create(model="writer", messages=messages)
        return reply.choices[0].message.content or ""

    return ask


def asking(client: Callable[[str], Callable[[str], str]], calls: int) -> Any:
    """The environment of a program that asks so many times."""

    def solve(task: int, base_url: str) -> float:
        ask = client(base_url)
        for number in range(calls):
            ask(f"question {number} of {task}")
        return 1.0

    return program_env(solve, roles="writer", settle=0, max_turns=calls)


def requests(client: Callable[[str], Callable[[str], str]], calls: int, rounds: int) -> Any:
    """Milliseconds of a call after the first, and of a branch at the last."""
    env, wall, cpu = asking(client, calls), [], []
    branch_wall, branch_cpu = [], []
    for seed in range(rounds):
        env.reset(seed=seed)
        env.step("reply")
        began = time.perf_counter(), time.process_time()
        for _ in range(calls - 2):
            env.step("reply")
        wall.append((time.perf_counter() - began[0]) / (calls - 2))
        cpu.append((time.process_time() - began[1]) / (calls - 2))
        began = time.perf_counter(), time.process_time()
        env.branch(["a", "b", "c", "d"])
        branch_wall.append(time.perf_counter() - began[0])
        branch_cpu.append(time.process_time() - began[1])
    measured = zip(
        ("call", "call, CPU", "branch", "branch, CPU"),
        (wall, cpu, branch_wall, branch_cpu),
        strict=True,
    )
    medians = {name: f"{1000 * sorted(times)[rounds // 2]:.2f} ms" for name, times in measured}
    return {"client": client.__name__, **medians}


def _resident() -> float:
    """MiB of this process."""
    [line] = [
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line
    ]
    return int(line.split()[1]) / 1024


def waiting(client: Callable[[str], Callable[[str], str]], count: int) -> Any:
    """Memory of programs that wait at their first call, and the time until all have had a reply."""
    env = asking(client, 1)
    env.reset(seed=0)
    before, began = _resident(), time.perf_counter()
    copies = []
    for seed in range(count):
        copies.append(asking(client, 1))
        copies[-1].reset(seed=seed)
    started, grown = time.perf_counter(), _resident() - before
    threads = threading.active_count()
    for copy in copies:
        copy.step("reply")
    ended = time.perf_counter()
    return {
        "waiting": count,
        "memory": f"{grown:.0f} MiB",
        "threads": threads,
        "started": f"{started - began:.2f} s",
        "answered": f"{ended - started:.2f} s",
    }


def main() -> None:
    """Prints the table, and writes it as JSON where asked."""
    rows: list[dict[str, Any]] = []
    options = Options(__doc__.splitlines()[0])
    options.add_argument("--calls", type=int, default=16, help="of an episode, at least 3")
    options.add_argument("--rounds", type=int, default=20, help="episodes")
    options.add_argument("--waiting", type=int, default=256, help="programs that wait together")
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = options.parse_args()
    for client in (plain, official):
        row = requests(client, arguments.calls, arguments.rounds)
        rows.append(row | waiting(client, arguments.waiting))
    report("programs", arguments, rows)


if __name__ == "__main__":
    main()
