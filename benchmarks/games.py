"""Which games of TextArena and PettingZoo work as environments?

    python -m benchmarks.games
    python -m benchmarks.games --only textarena:TicTacToe-v0   this game; the others stay as they were

Opens every game that TextArena registers (of variants with other numbers the plainest) and PettingZoo's classic
games. A game passes where `check_env` and PettingZoo's `api_test` and `seed_test` find nothing, two other processes with
other hashes of strings play the same episodes, and the game itself raises at no more than a few replies.
Writes `results/games.json`; `benchmarks.tables` makes its table.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.evidence import Table
from benchmarks.options import Options, known
from pettingllms.contrib.games.textarena_v0 import registry
from pettingllms.envs import check, load_env
from pettingllms.envs.aec import clone_env
from pettingllms.errors import PettingLLMsError
from pettingllms.runs import versions

RESULTS = Path(__file__).parent / "results" / "games.json"
CLASSIC = (
    "chess_v6",
    "connect_four_v3",
    "go_v5",
    "hanabi_v5",
    "leduc_holdem_v4",
    "rps_v2",
    "texas_holdem_no_limit_v6",
    "texas_holdem_v4",
    "tictactoe_v3",
)
REPLIES = (
    *(f"[{n}]" for n in range(10)),
    *(
        "[bet]",
        "[call]",
        "[check]",
        "[fold]",
        "[0 1]",
        "[1 2]",
        "[a1 a2]",
        "[up]",
        "[left]",
        "[yes]",
    ),
    *(
        "[pass]",
        "[A1]",
        "[roll]",
        "[hold]",
        "[cooperate]",
        "[heads]",
        "[rock]",
        "[Player 1]",
        "[5]",
    ),
)
"""Moves that some of the games take."""
RAISING = 0.2
"""Share of replies at which a game may raise an exception."""
SECONDS, EPISODES = 0.3, 20
"""For which steps are timed, at most."""
MIXED = partial(check.scripted, replies=REPLIES)


def games() -> list[str]:
    """A name for each game: `textarena:TicTacToe-v0`."""
    families: dict[str, list[str]] = {}
    for name, spec in registry().items():
        if not name.endswith(("-raw", "-train")):
            families.setdefault(spec.entry_point, []).append(name)
    plain = [
        next((name for name in names if re.fullmatch(r".+-v\d+", name)), names[0])
        for names in families.values()
    ]
    textarena_games = [f"textarena:{name}" for name in sorted(plain)]
    return textarena_games + [f"pettingzoo:classic/{name}" for name in CLASSIC]


def examined(name: str) -> dict[str, Any]:
    """Opens, checks and times a game."""
    row: dict[str, Any] = {"name": name, "players": None, "ms": None, "copy_ms": None, "why": None}
    try:
        env = load_env(name)
        row["players"] = len(env.possible_agents)
        subject = check.Subject(partial(load_env, name), None, False, 2, 0, REPLIES)
        for check_part in check.PARTS:
            if check_part not in (check.processes, check.splits):
                check_part(subject)
        _own_tests(name)
        row |= timed(name)
    except PettingLLMsError as error:
        row["why"] = f"{error}".removeprefix(f"{name.partition(':')[2]} ")
    if row["why"] is None and row["raised"] > RAISING:
        row["why"] = f"the game raises an exception at {row['raised']:.0%} of the replies"
    return row


def _own_tests(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pettingzoo.test.api_test import api_test
        from pettingzoo.test.seed_test import seed_test

        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - they print that they passed
        try:
            api_test(load_env(name), num_cycles=20)
            seed_test(partial(load_env, name), num_cycles=20)
        finally:
            sys.stdout = sys.__stdout__


def timed(name: str) -> dict[str, Any]:
    """CPU milliseconds of a reply, its observation included, and of a copy; shares of replies."""
    env, script = load_env(name), MIXED(1)
    steps = raised = 0
    spent, copying = 0.0, list[float]()
    for episode in range(EPISODES):  # some games take long to begin
        env.reset(seed=episode)
        while env.agents and not any({*env.terminations.values(), *env.truncations.values()}):
            agent, reply = env.agent_selection, next(script)
            started = time.process_time()
            env.observe(agent)
            env.step(reply)
            spent += time.process_time() - started
            steps += 1
            raised += "the game raised" in (env.infos[agent].get("parse_error") or "")
            if len(copying) < 20:
                started = time.process_time()
                clone_env(env)
                copying.append(time.process_time() - started)
            if spent > SECONDS:
                break
        if spent > SECONDS:
            break
    copy_ms = 1000 * sorted(copying)[len(copying) // 2]
    return {"ms": 1000 * spent / steps, "copy_ms": copy_ms, "raised": raised / steps}


def digests(names: Sequence[str]) -> dict[str, str]:
    """What two episodes of each game come to, for comparison between processes."""
    return {name: check.digest(name, 0, 2, REPLIES) for name in names}


def elsewhere(names: Sequence[str], hash_seed: int) -> dict[str, str]:
    """The same from another process, in which strings have other hashes."""
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.games", "--digests", *names],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    digest_by_game: dict[str, str] = json.loads(child.stdout)
    return digest_by_game


def table(result: Any) -> Table:
    """A row for each game: those that pass first."""
    rows = []
    for row in sorted(result["rows"], key=lambda row: row["why"] is not None):
        passes = row["why"] is None
        ms = f"{row['ms']:.2f}" if passes else ""
        copied = row.get("copy_ms")
        copy_ms = f"{copied:.2f}" if passes and copied is not None else ""
        why = "passes" if passes else _brief(row["why"])
        rows.append([f"`{row['name']}`", str(row["players"] or ""), why, ms, copy_ms])
    return ["game", "players", "", "ms a step", "ms a copy"], rows


def _brief(why: str) -> str:
    # Paths of the machine that it was measured on say nothing.
    why = re.sub(r"/\S*/site-packages/", "", why)
    return re.sub(r" \(tried with [^)]*\)", "", why).replace("|", "\\|")


def main() -> None:
    """Examines all games and writes the results."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", help="examine these games; default: all")
    parser.add_argument("--digests", nargs="+", help="only print what episodes come to, as JSON")
    options = parser.parse_args()
    if options.digests:
        print(json.dumps(digests(options.digests)))
        return
    rows, names = [], games()
    known("--only", options.only or (), names)
    for name in options.only or names:
        rows.append(examined(name))
        print(name, rows[-1]["players"], rows[-1]["why"] or f"{rows[-1]['ms']:.2f} ms", flush=True)
    passing = [row["name"] for row in rows if row["why"] is None]
    first, second = (elsewhere(passing, seed) for seed in (1, 2))
    for row in rows:
        if first.get(row["name"]) != second.get(row["name"]):
            row["why"] = "its episodes depend on the hashes of strings, which differ by process"
    if options.only and RESULTS.exists():
        earlier = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
        examined_now = {row["name"]: row for row in rows}
        rows = [examined_now.pop(row["name"], row) for row in earlier] + [*examined_now.values()]
    count = {
        library: sum(row["why"] is None and row["name"].startswith(library) for row in rows)
        for library in ("textarena", "pettingzoo")
    }
    print(f"{count} of {len(rows)} pass")
    result = {"versions": versions(), "passing": count, "rows": rows}
    RESULTS.write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
