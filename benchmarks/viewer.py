"""How long the viewer takes for a large run, with how much memory, and how large an exported one is.

    python -m benchmarks.viewer --gigabytes 2
    python -m benchmarks.viewer --run runs/latest    # also exports this run

The large run is generated: episodes of four decisions with eight candidates each, texts of a few hundred
characters as a real model writes them. `pettingllms-view` runs in a process of its own, asked over HTTP as the
page asks. Its memory is the peak of the resident set. The file is in the page cache: the disk is not measured.
With Chromium installed, the first view is also timed in it, from the address to the last row.
"""

from __future__ import annotations

import gzip
import http.client
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from benchmarks.options import Options
from pettingllms.rollout.files import METRICS, STARTS, TRAJECTORIES
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.types import Candidate, Completion, Group, GroupKey, Task
from pettingllms.viewer.page import assets

EPISODES = 64
"""Of a step."""
SENTENCE = "the program reads a list of numbers and prints the sum of all that are even"
Ask = Callable[..., Any]


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints; see `--help`."""
    options = Options(__doc__)
    options.add_argument("--gigabytes", type=float, default=2.0)
    options.add_argument("--run", type=Path, help="also export this run, and time it in Chromium")
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = options.parse_args(argv)
    page = gzip.compress(b"".join(content for _, content in sorted(assets().items())))
    figures: dict[str, float] = {"page, gzipped, kB": len(page) / 1e3}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        figures |= large(place, int(arguments.gigabytes * 1e9))
        if arguments.run is not None:
            figures |= exported(place, arguments.run)
    for name, value in figures.items():
        print(f"{name:42} {value:10.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def large(place: Path, size: int) -> dict[str, float]:
    """Indexing, and the first view, of a generated run of `size` bytes."""
    run = place / "runs" / "large"
    steps = generate(run, size)
    written = (run / TRAJECTORIES).stat().st_size
    figures = {"trajectories.jsonl, GB": written / 1e9, "steps": float(steps)}
    with viewing(run) as (ask, process):
        started = time.perf_counter()
        answer = ask("labels", source="runs/large")
        seconds = time.perf_counter() - started
        assert len(answer["labels"]) == steps
        figures |= {
            "indexing, s": seconds,
            "indexing, MB/s": written / 1e6 / seconds,
            "indexing, memory, MB": peak(process),
        }
    started = time.perf_counter()
    with viewing(run) as (ask, process):
        figures["start of the server, s"] = time.perf_counter() - started
        asked = time.perf_counter()
        ask("sources")
        ask("metrics", source="runs/large", **{"from": 0})
        ask("labels", source="runs/large")
        rows = ask("facts", source="runs/large", label=str(steps), after=0)["rows"]
        ask("episode", source="runs/large", line=rows[0]["line"])
        figures["first run, step and tree, s"] = time.perf_counter() - asked
        if (seconds := in_chromium(f"{ask('address')}#/run?s=runs%2Flarge", ".steps a")) > 0:
            figures["first view in Chromium, s"] = seconds
        figures["first view, memory, MB"] = peak(process)
        searched, after = time.perf_counter(), 0
        while after is not None:
            after = ask("search", source="runs/large", label="1", q="nowhere", after=after)["next"]
        figures["search of a step, s"] = time.perf_counter() - searched
    return figures


def exported(place: Path, run: Path) -> dict[str, float]:
    """Size of the exported file of a run, the time to write it, and to open it."""
    target, started = place / "run.html", time.perf_counter()
    command = [sys.executable, "-m", "pettingllms.cli.view", str(run), "--export", str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    figures = {
        "exported run, s": time.perf_counter() - started,
        "exported run, MB": target.stat().st_size / 1e6,
    }
    name = quote("/".join(run.resolve().parts[-2:]), safe="")
    if (seconds := in_chromium(f"{target.as_uri()}#/run?s={name}", ".chart")) > 0:
        figures["exported run, opened, s"] = seconds
    return figures


def generate(run: Path, size: int) -> int:
    """Writes a run of at least `size` bytes; returns its steps. Steps repeat under other numbers."""
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("env: coding\nestimator: at_grpo\nalpha: 1.0\n")
    (run / STARTS).write_text("[]\n")
    draw = random.Random(0)
    rows = [episode(draw, number).row(step=0) for number in range(EPISODES)]
    heads = [json.dumps(row).replace('"step": 0', '"step": {}', 1).encode() for row in rows]
    step = written = 0
    with (run / TRAJECTORIES).open("wb") as file, (run / METRICS).open("w") as metrics:
        while written < size:
            step += 1
            number = str(step).encode()
            for line in heads:
                written += file.write(line.replace(b'"step": {}', b'"step": ' + number, 1) + b"\n")
            metrics.write(json.dumps({"kind": "train", "step": step, "success": 0.5}) + "\n")
    return step


def episode(draw: random.Random, number: int) -> Trajectory:
    """An episode of four decisions with eight candidates each."""
    words = SENTENCE.split()
    groups = []
    for depth in range(4):
        role = ("coder", "tester")[depth % 2]
        prompt_ids = tuple(draw.randrange(150_000) for _ in range(400))
        key = GroupKey(f"coding:{number}", 0, f"{role}_0", role, depth // 2, depth, "0" * 8)
        candidates = []
        for place in range(8):
            ids = tuple(draw.randrange(150_000) for _ in range(draw.randrange(100, 400)))
            text = " ".join(draw.choices(words, k=len(ids)))
            completion = Completion(prompt_ids, ids, (-0.5,) * len(ids), text, False, 1)
            worth = draw.random()
            info = {"success": worth > 0.9, "parse_error": None, "statuses": ["ok"] * 6}
            candidates.append(
                Candidate(completion, worth, 0.0, worth, place == 0, info, worth - 0.5)
            )
        prompt = " ".join(draw.choices(words, k=400))
        groups.append(Group(key, role, prompt, prompt_ids, tuple(candidates)))
    task = Task(f"coding:{number}", number)
    return Trajectory.of(task, 0, groups, early={}, cooperative=True)


@contextmanager
def viewing(run: Path) -> Iterator[tuple[Ask, subprocess.Popen[str]]]:
    """`pettingllms-view` for a run, and what asks it."""
    command = [sys.executable, "-m", "pettingllms.cli.view", "--port", "0", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        port = int(address.split(":")[2][:-1])

        def ask(name: str, **values: Any) -> Any:
            if name == "address":
                return address
            # One for each request: the server closes a connection that idles while a browser starts.
            with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
                connection.request("GET", f"/api/{name}?{urlencode(values)}")
                return json.load(connection.getresponse())

        yield ask, process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def peak(process: subprocess.Popen[str]) -> float:
    """Peak of the resident set, in MB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1.024e-3 for line in lines if line.startswith("VmHWM"))


def in_chromium(address: str, ready: str) -> float:
    """Seconds from an address to the first element `ready`; -1 without a browser."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        return -1.0
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(word)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        started = time.perf_counter()
        driver.get(address)
        wait = WebDriverWait(driver, 60, poll_frequency=0.01)
        wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, ready))
        return time.perf_counter() - started
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
