"""The tables of the pages, made from `results/*.json`.

    python -m benchmarks.tables           print them
    python -m benchmarks.tables --write   put them between their markers in the pages

A table is made from a published result; a marker of a table whose result is not published is an
error, except for `outcomes` and `teams`, which have a row for each environment that has one.
A test holds the pages to the results.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import parts, peers_report, search_report, speed_tables
from benchmarks.claims import difference
from benchmarks.claims import report as claims_report
from benchmarks.evidence import Table, estimate, shown
from benchmarks.method_table import EXPERIMENTS
from pettingllms.envs import ENVIRONMENTS

HERE = Path(__file__).parent
PAGES = (
    HERE.parent / "README.md",
    HERE.parent / "docs" / "environments.md",
    HERE.parent / "docs" / "games.md",
    HERE.parent / "docs" / "methods.md",
    HERE.parent / "docs" / "results.md",
    HERE.parent / "sandbox" / "README.md",
)
BLIND = {
    "plan_path": "plan_path 6x6, 6 to 36 moves",
    "sokoban": "sokoban 6x6, 1 box",
    "sudoku": "sudoku 4x4",
}
"""What `benchmarks.blind` calls the tasks that the embedded model is trained on."""
UNPUBLISHED = "No results are published at the moment; `python -m benchmarks.learning --env coding` measures them."


def load(name: str) -> Any:
    """The results of one script."""
    return json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))


def published(name: str) -> bool:
    """Whether a script has results."""
    return (HERE / "results" / f"{name}.json").is_file()


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# ------------------------------------------------------------------------------ what teams learn


def learned() -> dict[str, dict[str, list[Any]]]:
    """Environment -> how policies are shared -> the runs of all seeds, of what is published."""
    found: dict[str, dict[str, list[Any]]] = {}
    for env in ENVIRONMENTS.own:
        name = f"learning_{env}"
        for run, result in load(name).items() if published(name) else ():
            policies = run.partition("at_grpo-")[0].rstrip("-") or "per-role"
            found.setdefault(env, {}).setdefault(policies, []).append(result)
    return found


def outcomes() -> str:
    """Success before and after training from the environment's default base, for the README."""
    own = load("parts")["environments"] if published("parts") else {}
    success = importlib.import_module("benchmarks.parts").success
    rows = [
        [f"`{env}`", "parts", *(f"{share:.2f}" for share in success(each))]
        for env, each in sorted(own.items())
    ]
    rows += [
        [
            f"`{env}`",
            "habits",
            *(f"{_mean(runs['per-role'], team):.2f}" for team in ("base", "adapters")),
        ]
        for env, runs in learned().items()
        if "per-role" in runs and env not in own
    ]
    if not rows:
        return UNPUBLISHED
    return markdown(["environment", "shown before", "success", "after training"], rows)


def _mean(runs: Sequence[Any], team: str, how: str = "sampled") -> float:
    """Success on the test tasks, over all seeds."""
    return float(np.mean([run[how]["results"][team][0]["eval/success"] for run in runs]))


def teams() -> str:
    """Success on test tasks with intervals, and what it has to be compared with."""
    rows = [
        [f"`{env}`", policies, *_team(env, runs)]
        for env, kinds in learned().items()
        for policies, runs in kinds.items()
    ]
    if not rows:
        return UNPUBLISHED
    header = ["environment", "policies", "base", "after training", "after, greedy", "swapped"]
    return markdown([*header, "blind", "seconds", "seeds"], rows)


def _team(env: str, runs: Sequence[Any]) -> list[str]:
    def digits(team: str, how: str = "sampled") -> np.ndarray:
        return np.array([[float(digit) for digit in run[how]["solved"][team]] for run in runs])

    # The base plays the same for every seed of training: only its tasks are a sample.
    base = digits("base")[:1]
    swapped, blind = "swapped" in runs[0]["sampled"]["results"], blind_success(env)
    seconds = np.mean([run["timing"]["time/step"] for run in runs])
    return [
        shown(estimate(base)),
        shown(estimate(digits("adapters"))),
        shown(estimate(digits("adapters", "greedy"))),
        shown(estimate(digits("swapped"))) if swapped else "",
        "" if blind is None else f"{blind:.2f}",
        f"{seconds:.0f}",
        str(len(runs)),
    ]


def blind_success(env: str) -> float | None:
    """The best success of constant answers, where it was measured."""
    for row in load("blind")["rows"] if published("blind") else ():
        if row["game"] == BLIND.get(env) and row["refused"] == "stop":
            return float(row["success"])
    return None


def seconds() -> str:
    """Where the wall time of training goes."""
    rows = []
    for run in learned()["coding"]["per-role"]:
        timing = run["timing"]
        parts = (timing[f"time/{part}"] for part in ("sample", "score", "update"))
        shares = [f"{part / timing['time/step']:.0%}" for part in parts]
        rows.append(
            [f"{timing['time/step']:.0f} s", f"{timing['num_tokens'] / 1e3:.0f} k", *shares]
        )
    header = ["training", "generated tokens", "sampling", "environment and sandbox", "update"]
    return markdown(header, rows)


# --------------------------------------------------------------------------------- other tables


def environments() -> str:
    """What the registry has, in the words of each environment's manual."""
    rows = []
    for name, entry_point in ENVIRONMENTS.own.items():
        manual = importlib.import_module(entry_point.partition(":")[0]).__doc__ or ""
        facts = dict(re.findall(r"^\| (\w+) \| (.+) \|$", manual, flags=re.MULTILINE))
        what = manual.split("\n")[2]
        env_id = re.search(r"pettingllms/[\w-]+", facts["Creation"])
        assert env_id is not None
        rows.append([f"`{name}`", what, facts["Agents"], facts["Action"], f"`{env_id[0]}`"])
    header = ["name", "what", "agents", "action", "in PettingZoo's registry"]
    return markdown(header, rows)


def paper(name: str) -> str:
    """The table of an experiment on methods, and its verdict below."""
    result = load(name)
    return f"{markdown(*EXPERIMENTS[name].table(result))}\n\n{result['verdict']}"


def claims() -> str:
    """The verdicts on the claims of the AT-GRPO paper, and what nobody has run."""
    result = load("claims")
    lacking = "; ".join(claims_report.missing(result))
    letters = claims_report.open_questions(result)
    notes = "\n".join(f"- {letter}: {part}" for part, letter in letters.items())
    return (
        f"{markdown(*claims_report.table(result))}\n\n{notes}\n\nNot run: {lacking}. What was run took "
        f"{result['cpu_minutes']:.0f} CPU-minutes."
    )


def claims_roles() -> str:
    """What a policy for each role gains, by how much an exchange loses."""
    result = load("claims")
    return f"{markdown(*difference.table(result))}\n\n{difference.sentence(result)}"


def peers() -> str:
    """TRL's trainer beside ours, and the comparison in a sentence."""
    results = load("peers")
    return f"{markdown(*peers_report.tables(results))}\n\n{peers_report.sentence(results)}"


def search_team() -> str:
    """What search teams reach, and whether a mean for each agent helps."""
    result = load("search_team")
    return f"{markdown(*search_report.table(result))}\n\n{search_report.verdict(result)}"


def search_norms() -> str:
    """Advantages and gradients of both means."""
    return markdown(*search_report.norms(load("search_team")))


def _of_script(name: str, table: str = "table") -> str:
    """A table of a script that makes its own."""
    made = getattr(importlib.import_module(f"benchmarks.{name}"), table)
    return markdown(*made(load(name)))


def _of_rows(table: Callable[[Any], Table], name: str) -> str:
    return markdown(*table(load(name)["rows"]))


def tables() -> dict[str, Callable[[], str]]:
    """Name of a marker -> what makes its table, for everything that is published."""
    speeds = {
        "boards": (speed_tables.boards, "boards"),
        "sudoku_speed": (speed_tables.sudoku, "sudoku_speed"),
        "vllm_sampling": (speed_tables.vllm_sampling, "sampling_vllm"),
        "refill": (speed_tables.refill, "refill"),
        "revisions": (speed_tables.revisions, "revisions"),
        "sandbox": (speed_tables.sandbox, "sandbox"),
        "sandbox_cores": (speed_tables.sandbox_cores, "sandbox"),
        "soak": (speed_tables.soak, "soak"),
    }
    found: dict[str, Callable[[], str]] = {
        "outcomes": outcomes,
        "teams": teams,
        "environments": environments,
    }
    found |= {n: partial(_of_rows, *each) for n, each in speeds.items() if published(each[1])}
    found |= {name: partial(paper, name) for name in EXPERIMENTS if published(name)}
    own: list[str] = [
        "alone",
        "ensemble",
        "late_outcome",
        "leader",
        "malt",
        "rounds",
        "trust",
        "skill",
        "habit_or_skill",
        "vllm_training",
        "games",
        "self_play",
        "parts",
        "protocol",
    ]
    found |= {name: partial(_of_script, name) for name in own if published(name)}
    if published("parts"):
        found |= {
            f"parts_{name}": partial(_of_script, "parts", name) for name in ("roles", "passes")
        }
        found["parts_sweep"] = lambda: markdown(*parts.sweep(load("parts_pilots")))
    if published("protocol"):
        found["protocol_controls"] = partial(_of_script, "protocol", "controls")
    if published("search_team"):
        found |= {"search_team": search_team, "search_norms": search_norms}
    if published("peers"):
        found["peers"] = peers
    if published("peers_sweep"):
        found["peers_sweep"] = partial(_of_script, "peers_sweep")
    if published("learning_coding"):
        found["seconds"] = seconds
    if published("claims"):
        found["claims"] = claims
        found["claims_arms"] = lambda: markdown(*claims_report.arms(load("claims")))
        if load("claims")["difference"]:
            found["claims_roles"] = claims_roles
    return found


def filled(page: str) -> str:
    """`page` with every marked table replaced by what the results say.

    Raises:
        SystemExit: a marker without an end, or of a table that has no published result.
    """
    made, end = tables(), "<!-- end of table -->"
    for name in re.findall(r"<!-- table (\w+) -->", page):
        if name not in made:
            raise SystemExit(f"the table {name!r} has no published result; remove its marker")
        start = f"<!-- table {name} -->"
        before, _, rest = page.partition(start)
        old, found, after = rest.partition(end)
        if not found or "<!-- table " in old:
            raise SystemExit(f"the table {name!r} has no {end}")
        page = f"{before}{start}\n{made[name]()}\n{end}{after}"
    return page


def main() -> None:
    """Prints or writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put them into the pages")
    if parser.parse_args().write:
        for path in PAGES:
            path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for name, table in tables().items():
            print(f"{name}\n\n{table()}\n")


if __name__ == "__main__":
    main()
