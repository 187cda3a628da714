"""How long clients wait for the server, when one asks and when fifty ask at the same time.

    python -m benchmarks.serving

A coder and a tester of the embedded model are served by `pettingllms-serve` as users start it, with the
transformers back end. Each client asks the coder a question of its own and waits for the whole answer; all ask at the
same moment, again and again. Seconds are wall-clock time, from a second process of the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from benchmarks.measure import publish
from benchmarks.options import Options
from pettingllms.envs import make
from pettingllms.samplers.vllm_process import free_port
from pettingllms.session import run_training as train
from pettingllms.trainers.config import ATGRPOConfig


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints; see `--help`."""
    options = Options(__doc__)
    options.add_argument("--clients", type=int, nargs="+", default=[1, 10, 50])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--max-tokens", type=int, default=192)
    options.add_argument(
        "--run", type=Path, help="a run to serve; made for the purpose if not given"
    )
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = options.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        run = arguments.run or _run(Path(folder) / "run")
        with _served(run) as (url, key):
            rows = asyncio.run(_rounds(url, key, arguments))
    publish("serving", arguments, rows)


def _run(folder: Path) -> Path:
    config = ATGRPOConfig(
        env="coding",
        policies="per-role",
        max_steps=1,
        tasks_per_step=1,
        num_generations=2,
        eval_tasks=1,
        eval_steps=0,
        output_dir=str(folder),
    )
    return train(config).folder


@contextlib.contextmanager
def _served(run: Path) -> Iterator[tuple[str, str]]:
    port = free_port("127.0.0.1")
    words = ["-m", "pettingllms.cli.serve", str(run), "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, *words, "--sampler", "transformers"],
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        key = next(line for line in process.stdout if line.startswith("key: "))
        yield f"http://127.0.0.1:{port}/v1", key.removeprefix("key: ").strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def _rounds(url: str, key: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    env = make("coding", prompt="compact", split="test")
    rows = []
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        await _ask(client, "Read integers on one line. Print the sum.", 0, 8)
        for clients in arguments.clients:
            waits: list[float] = []
            tokens, started = 0, time.monotonic()
            for number in range(arguments.rounds):
                questions = []
                for caller in range(clients):
                    env.reset(seed=1000 * number + caller)
                    # A compact prompt is the role in a line, and the question.
                    questions.append(env.observe("coder_0")["text"].partition("\n")[2])
                asked = (
                    _ask(client, question, seed, arguments.max_tokens)
                    for seed, question in enumerate(questions)
                )
                for wait, new in await asyncio.gather(*asked):
                    waits.append(wait)
                    tokens += new
            seconds = time.monotonic() - started
            waits.sort()
            rows.append(
                {
                    "clients": clients,
                    "p50 s": statistics.median(waits),
                    "p95 s": waits[int(0.95 * (len(waits) - 1))],
                    "tokens/s": tokens / seconds,
                }
            )
    return rows


async def _ask(client: AsyncOpenAI, question: str, seed: int, tokens: int) -> tuple[float, int]:
    started = time.monotonic()
    answer = await client.chat.completions.create(
        model="coder",
        messages=[{"role": "user", "content": question}],
        max_tokens=tokens,
        seed=seed,
    )
    new = answer.usage.completion_tokens if answer.usage else 0
    return time.monotonic() - started, new


if __name__ == "__main__":
    main()
