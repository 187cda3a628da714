"""How far constant answers get on boards that they never look at: `python -m benchmarks.blind`.

For each board game, with an answer that stops at its first refused part and with one that skips refused parts:
success and mean returns on test tasks of the constants that are shipped (`benchmarks.constant_answers`) and of
the best of a new hill climb on training tasks (`--search` seconds each; a text for each turn). Writes
`results/blind.json` and prints the table. CPU only; no model plays.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.constant_answers import ANSWERS, Blind, blind_baseline
from benchmarks.evidence import revision
from benchmarks.options import Options
from pettingllms.envs import TextEnv, make
from pettingllms.envs.aec import creator_of

GAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "plan_path 6x6, 6 to 36 moves": ("plan_path", {"height": 6, "width": 6, "moves": (6, 36)}),
    "plan_path 10x10": ("plan_path", {}),
    "plan_path of parts": ("plan_path", dict(creator_of("plan_path").embedded_parts)),
    "sokoban 6x6, 1 box": ("sokoban", {}),
    "sudoku 4x4": ("sudoku", {}),
}
RESULTS = Path(__file__).parent / "results" / "blind.json"
LONGEST = {"stop": 40, "skip": 200}
CLIMBED, TESTED = 300, 1000
"""Training tasks of the search, and test tasks of the result."""


def moves(rng: random.Random, old: str, longest: int) -> str:
    """A change of a list of moves: one replaced, put in or taken out, or a new pattern."""
    word, draw = list(old), rng.random()
    if draw < 0.3 and word:
        word[rng.randrange(len(word))] = rng.choice("UDLR")
    elif draw < 0.5:
        word.insert(rng.randint(0, len(word)), rng.choice("UDLR"))
    elif draw < 0.7 and word:
        del word[rng.randrange(len(word))]
    else:
        pattern = [rng.choice("UDLR") for _ in range(rng.randint(1, 5))]
        again = (pattern * longest)[: rng.randint(1, longest)]
        word = again if rng.random() < 0.5 else [*word, *again]
    return "".join(word[:longest])


def grids(rng: random.Random, old: str, longest: int) -> str:  # noqa: ARG001 - the same for all
    """A complete grid, from a shuffled pattern."""
    rows = [base + low for base in rng.sample((0, 2), 2) for low in rng.sample((0, 1), 2)]
    columns = [base + low for base in rng.sample((0, 2), 2) for low in rng.sample((0, 1), 2)]
    numbers = rng.sample("1234", 4)
    return "".join(numbers[(r % 2 * 2 + r // 2 + c) % 4] for r in rows for c in columns)


def climbed(env: TextEnv, change: Callable[..., str], longest: int, seconds: float) -> list[str]:
    """The texts that did best on training tasks when time was up."""
    rng, turns = random.Random(0), env.max_turns
    words = [change(rng, "", longest) for _ in range(turns)]
    best, until = -1.0, time.monotonic() + seconds
    while time.monotonic() < until:
        turn = rng.randrange(turns)
        new = [change(rng, word, longest) if n == turn else word for n, word in enumerate(words)]
        (baseline,) = blind_baseline(env, [[f"[{word}]" for word in new]], episodes=CLIMBED)
        if baseline.success >= best:
            best, words = baseline.success, new
    return [f"[{word}]" for word in words]


def measured(name: str, options: dict[str, Any], rule: str, seconds: float) -> Blind:
    """The best of the shipped and the found answers on test tasks, with both roles playing."""
    answers = [list(texts) for texts in ANSWERS[name]]
    if seconds:
        alone = make(name, agents="single", refused=rule, split="train", **options)
        change = grids if name == "sudoku" else moves
        answers.append(climbed(alone, change, LONGEST[rule], seconds))
    test = make(name, refused=rule, split="test", **options)
    return blind_baseline(test, answers, episodes=TESTED)[0]


def main() -> None:
    """Measures, prints, writes."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--search", type=float, default=0.0, help="seconds of each new search")
    chosen = parser.parse_args()
    rows = []
    for title, (name, options) in GAMES.items():
        for rule in ("stop", "skip"):
            baseline = measured(name, options, rule, chosen.search)
            rows.append({"game": title, "refused": rule, **baseline._asdict()})
            earned = ", ".join(f"{role} {value:.2f}" for role, value in baseline.returns.items())
            print(
                f"{title:30} {rule}  success {baseline.success:.3f}  returns {earned}", flush=True
            )
    settings = {"search_seconds": chosen.search, "test_tasks": TESTED}
    content = {"revision": revision(), **settings, "rows": rows}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
