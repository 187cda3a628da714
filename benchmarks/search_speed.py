"""How fast passages are searched, how much memory that takes, and how long an index takes to open.

    python -m benchmarks.search_speed --passages 1000 100000
    python -m benchmarks.search_speed --passages 1000000 --words 12

Passages of 60 words, or `--words`, drawn as in English (the word of rank r with weight 1/r, half a million words). Queries are words of a
passage: 3 rare ones, as an agent writes names, or 10 as they come, as an agent copies a question; `worst` are the
32 most frequent words. Queries a second of CPU time on one thread, after the first hundred. Each size is built
in a folder of its own and opened in a new process, so that its memory is that of searching alone:
`own MiB` is what only this process has, `with pages` also the pages of the mapped index that it touched.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import Options
from benchmarks.sandbox import report
from pettingllms.data.retrieval import Index, open_corpus

WORDS = 500_000
TOP = 5


def main() -> None:
    """Prints the tables, and writes them as JSON where asked."""
    options = Options(__doc__.splitlines()[0])
    options.add_argument("--passages", type=int, nargs="+", default=[1_000, 100_000])
    options.add_argument("--words", type=int, default=60, help="of a passage, at least 12")
    options.add_argument("--queries", type=int, default=2_000, help="of each kind")
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    options.add_argument("--opened", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.opened:
        sys.stdout.write(json.dumps(searched(arguments.opened, arguments.queries)))
        return
    rows = [measured(size, arguments.words, arguments.queries) for size in arguments.passages]
    report("search_speed", arguments, rows)


def measured(size: int, length: int, queries: int) -> dict[str, Any]:
    """Builds a corpus of a size, and searches it from another process."""
    with tempfile.TemporaryDirectory() as place:
        corpus, cache = Path(place, "corpus.jsonl"), Path(place, "cache")
        with corpus.open("w", encoding="utf-8") as file:
            for number, text in enumerate(texts(size, length)):
                file.write(
                    json.dumps({"id": number, "title": f"title{number}", "text": text}) + "\n"
                )
        began = time.process_time()
        open_corpus(corpus, cache)
        built = time.process_time() - began
        (folder,) = (path for path in cache.iterdir() if path.is_dir())
        disk = sum(file.stat().st_size for file in folder.iterdir())
        command = [sys.executable, "-m", "benchmarks.search_speed"]
        command += ["--opened", str(folder), "--queries", str(queries)]
        timings = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {
        "passages": size,
        "words": length,
        "build, CPU s": built,
        "on disk, MiB": disk / 2**20,
        **timings,
    }


def texts(size: int, length: int) -> Iterator[str]:
    """Texts of words that are as frequent as their rank says."""
    rng = np.random.default_rng(0)
    weights = np.cumsum(1 / np.arange(1, WORDS + 1))
    for _ in range(0, size, 1_000):
        drawn = np.searchsorted(weights, rng.random((1_000, length)) * weights[-1])
        yield from (" ".join(f"w{word}" for word in row) for row in drawn)


def searched(folder: Path, queries: int) -> dict[str, Any]:
    """Opens an index and asks it."""
    began = time.perf_counter()
    index = Index.open(folder)
    opened = time.perf_counter() - began
    before = memory()
    rng = random.Random(1)
    timings: dict[str, Any] = {"open, ms": 1000 * opened}
    rare = [" ".join(sorted(words(index, rng), key=rank)[-3:]) for _ in range(queries)]
    copied = [" ".join(rng.sample(words(index, rng), 10)) for _ in range(queries)]
    worst = [" ".join(f"w{n}" for n in range(32))] * min(queries, 100)
    for name, asked in (("names", rare), ("copied", copied), ("worst", worst)):
        for query in itertools.islice(asked, 100):
            index.search(query, TOP)
        began = time.process_time()
        for query in asked:
            index.find(query, TOP)
        timings[f"{name}, queries/s"] = len(asked) / (time.process_time() - began)
    anonymous, whole = memory()
    return {**timings, "own MiB": anonymous - before[0], "with pages": whole - before[1]}


def words(index: Index, rng: random.Random) -> list[str]:
    """The words of a passage."""
    return index[rng.randrange(len(index))].text.split()


def rank(word: str) -> int:
    """How rare a word is."""
    return int(word[1:])


def memory() -> tuple[float, float]:
    """MiB of this process: what is its own, and all that is resident."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    anonymous, resident = (int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "VmRSS"))
    return anonymous, resident


if __name__ == "__main__":
    main()
