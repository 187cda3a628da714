"""Speed of the board games: `python -m benchmarks.boards [--peer DIR]`.

A step with its observation, a whole turn through PettingZoo's loop, snapshots, resets and level
generation; times are the medians of several rounds, in CPU-seconds of one process. With `--peer` levels are also made by
gym-sokoban in the same rounds (`pip install --target DIR --no-deps gym-sokoban`): only its
generator is loaded, without the rest of the package and what that needs. RAGEN's generator is a changed
copy of it and not on PyPI, so it is not measured here.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.options import Options
from pettingllms.data.sokoban import checked, generate
from pettingllms.envs import TextEnv, load_env

REPLY = "#### [R, U, L, D]"
LENGTHS = (len(REPLY), 2_000, 20_000)
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "sokoban": {"size": 6, "boxes": 1},
    "plan_path": {"height": 6, "width": 6},
}
PEER_SECONDS = 1.0
LEVELS = ((6, 1), (6, 2), (7, 2))


class Figure(NamedTuple):
    """A line of the table, and what measures it."""

    what: str
    unit: str
    aim: str
    run: Callable[[], float]


def made(name: str, **options: Any) -> TextEnv:
    """An environment of `ENVIRONMENTS`."""
    env = load_env(f"pettingllms.envs.{name}_v0:env", **{**ENVIRONMENTS[name], **options})
    assert isinstance(env, TextEnv)
    return env


def step_and_observe(name: str, calls: int) -> float:
    """Seconds for each step with the next agent's observation; resets are not counted."""
    env = made(name)
    spent, done, seed = 0.0, 0, 0
    while done < calls:
        env.reset(seed=seed)
        seed += 1
        began = time.process_time()
        while not (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(REPLY)
            env.observe(env.agent_selection)
            done += 1
        spent += time.process_time() - began
    return spent / done


def turn(name: str, length: int, calls: int) -> float:
    """Seconds for each round of PettingZoo's loop: `agent_iter`, `last` and `step`."""
    env = made(name)
    reply = REPLY.rjust(length, ".")
    spent, done, seed = 0.0, 0, 0
    while done < calls:
        env.reset(seed=seed)
        seed += 1
        began = time.process_time()
        for _ in env.agent_iter():
            _, _, terminated, truncated, _ = env.last()
            env.step(None if terminated or truncated else reply)
            done += 1
        spent += time.process_time() - began
    return spent / done


def snapshot_and_restore(name: str, calls: int) -> float:
    """Seconds for each pair, in the middle of an episode."""
    env = made(name)
    env.reset(seed=0)
    env.step(REPLY)
    began = time.process_time()
    for _ in range(calls):
        env.restore(env.snapshot())
    return (time.process_time() - began) / calls


def reset(name: str, calls: int, **options: Any) -> float:
    """Median seconds of a reset, each to another task."""
    env = made(name, **options)
    spent = []
    for seed in range(calls):
        began = time.process_time()
        env.reset(seed=seed)
        spent.append(time.process_time() - began)
    return statistics.median(spent)


def levels_a_second(size: int, boxes: int, calls: int) -> float:
    """Levels a second with a certified optimum."""
    settings = checked(size, boxes, None)
    began = time.process_time()
    for seed in range(calls):
        generate(seed, "train", settings)
    # A single level may be quicker than a tick of the clock.
    return calls / max(time.process_time() - began, 1e-9)


def peers_levels_a_second(peer: Any, size: int, boxes: int, seconds: float) -> float:
    """Levels a second of gym-sokoban's generator, with the settings of its environments."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - what it draws from
    levels, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        try:
            peer.generate_room((size, size), num_steps=int(1.7 * 2 * size), num_boxes=boxes)
            levels += 1
        except (RuntimeError, RuntimeWarning):
            continue  # its environments try again as well
    return levels / (time.process_time() - began)


def load_peer(folder: Path) -> Any:
    """gym-sokoban's module of level generation."""
    path = folder / "gym_sokoban" / "envs" / "room_utils.py"
    spec = importlib.util.spec_from_file_location("room_utils", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_seconds() -> float:
    """CPU-seconds that a new process needs for the import, less those of an empty one."""

    def spent(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return spent("import pettingllms.envs") - spent("pass")


def figures(peer: Any, calls: int) -> Iterator[Figure]:
    """All that is measured."""
    fewer = max(1, calls // 4)
    for name in ENVIRONMENTS:
        yield Figure(f"{name}: step + observe", "us", "20", partial(step_and_observe, name, calls))
        for length in LENGTHS:
            what = f"{name}: a turn of env(), {length:,} characters"
            yield Figure(what, "us", "30", partial(turn, name, length, calls))
        restored = partial(snapshot_and_restore, name, calls)
        yield Figure(f"{name}: snapshot + restore", "us", "10", restored)
        yield Figure(f"{name}: reset, 6x6", "us", "1000", partial(reset, name, fewer))
    two = partial(reset, "sokoban", fewer, boxes=2)
    yield Figure("sokoban: reset, 6x6, 2 boxes", "us", "1000", two)
    for size, boxes in LEVELS:
        what = f"levels, {size}x{size}, boxes: {boxes}"
        yield Figure(what, "/s", "", partial(levels_a_second, size, boxes, fewer))
        if peer is not None:
            peers = partial(peers_levels_a_second, peer, size, boxes, PEER_SECONDS)
            yield Figure(f"{what}, gym-sokoban", "/s", "", peers)
    yield Figure("import pettingllms.envs", "s", "0.3", import_seconds)


def main() -> None:
    """Measures, prints a table, and writes it as JSON where asked."""
    options = Options(__doc__)
    options.add_argument("--peer", type=Path, help="folder with gym-sokoban")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--calls", type=int, default=2_000, help="for each figure and round")
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = options.parse_args()
    peer = None if chosen.peer is None else load_peer(chosen.peer)
    measured = list(figures(peer, chosen.calls))
    readings: list[list[float]] = [[] for _ in measured]
    for number in range(chosen.rounds + 1):
        for values, figure in zip(readings, measured, strict=True):
            value = figure.run() * (1e6 if figure.unit == "us" else 1)
            if number:  # the first round warms up
                values.append(value)
    rows = []
    for values, (what, unit, aim, _) in zip(readings, measured, strict=True):
        value = statistics.median(values)
        rows.append({"what": what, "value": value, "unit": unit, "aim": aim})
        print(f"{what:46} {value:10,.2f} {unit:2}" + f"  (aim: at most {aim})" * bool(aim))
    if chosen.json:
        settings = {key: str(value) for key, value in vars(chosen).items() if key != "json"}
        versions = {name: importlib.metadata.version(name) for name in ("pettingzoo", "numpy")}
        content = {
            "title": "Speed of the board games",
            "settings": settings,
            "versions": versions,
            "rows": rows,
        }
        chosen.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
