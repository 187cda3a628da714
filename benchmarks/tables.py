"""The tables of the README files, made from `results/*.json`.

    python -m benchmarks.tables           print them
    python -m benchmarks.tables --write   put them between their markers in the README files

A test holds the README files to the results.
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

from benchmarks import peers_report, sandbox_tables, speed_tables
from benchmarks.evidence import spread
from pettingllms.envs import ENVIRONMENTS

HERE = Path(__file__).parent
PAGES = (
    HERE.parent / "README.md",
    HERE / "README.md",
    HERE.parent / "pettingllms" / "models" / "README.md",
    HERE.parent / "sandbox" / "README.md",
)
ROWS = (
    ("coder: hidden tests passed, first reply", "coder/first_passed"),
    ("tester: local reward, first reply", "tester/first_local_reward"),
    ("tester: tests that are right, first reply", "tester/first_valid"),
    ("tester: wrong programs caught, first reply", "tester/first_caught"),
    ("team: success within 4 turns", "success"),
)


def load(name: str) -> Any:
    """The results of one script."""
    return json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def learning() -> str:
    """Before and after training, sampled and greedy, and with the policies swapped."""
    runs = [run for name, run in load("learning_coding").items() if name.startswith("at_grpo-")]

    def cell(how: str, column: str, score: str) -> str:
        return spread([run[how]["results"][column][0][f"eval/{score}"] for run in runs])

    rows = [
        [
            title,
            *(cell(how, c, score) for c in ("base", "adapters") for how in ("sampled", "greedy")),
            cell("sampled", "swapped", score),
        ]
        for title, score in ROWS
    ]
    header = ["", "before, sampled", "before, greedy", "after, sampled", "after, greedy", "swapped"]
    return markdown(header, rows)


TEAMS = {
    "plan_path": "`plan_path` 6 x 6",
    "plan_path_10": "`plan_path` 10 x 10 (one seed)",
    "sudoku": "`sudoku` 4 x 4",
    "sokoban": "`sokoban` 6 x 6, 1 box",
    "math": "`math`",
    "math_team5": "`math`, 2 tools, 2 reasoners, judge (one seed)",
}


def teams() -> str:
    """Every environment but coding: team success, and first replies, before and after training."""
    rows = []
    for name, title in TEAMS.items():
        env = "math" if name.startswith("math") else name
        runs = load(f"learning_{name}")
        for policies in dict.fromkeys(name.partition("at_grpo")[0] for name in runs):
            chosen = [run for name, run in runs.items() if name.startswith(f"{policies}at_grpo")]
            rows.append([title, policies.rstrip("-") or "per-role", *_team(env, chosen)])
    header = [
        "",
        "policies",
        "before, sampled",
        "before, greedy",
        "after, sampled",
        "after, greedy",
    ]
    first = ["first reply, sampled", "first reply, greedy", "swapped", "training"]
    return markdown([*header, *first], rows)


def _team(env: str, runs: Sequence[Any]) -> list[str]:
    """One row: success of the base and of the teams, right first replies by role, seconds."""

    def values(how: str, column: str, score: str) -> list[float]:
        return [run[how]["results"][column][0][f"eval/{score}"] for run in runs]

    roles = ("tool", "reasoner") if env == "math" else ("tool", "planner")
    first = "first_right" if env == "math" else "first_answer_solves"
    cells = [
        spread(values(how, column, "success"))
        for column in ("base", "adapters")
        for how in ("sampled", "greedy")
    ]
    for how in ("sampled", "greedy"):
        means = [values(how, "adapters", f"{role}/{first}") for role in roles]
        cells.append(" / ".join(f"{sum(v) / len(v):.2f}" for v in means))
    swapped = "swapped" in runs[0]["sampled"]["results"]
    cells.append(spread(values("sampled", "swapped", "success")) if swapped else "")
    seconds = [run["timing"]["time/step"] for run in runs]
    return [*cells, f"{sum(seconds) / len(seconds):.0f} s"]


def trust() -> str:
    """When the reasoner of the math team follows the tool of the base."""
    found = load("trust")["reasoners"]
    teams = {"base": [found["base"]], "trained": [v for k, v in found.items() if k != "base"]}
    rows = [
        [f"{name} reasoner", *(spread([row[key] for row in runs]) for key in found["base"])]
        for name, runs in teams.items()
    ]
    return markdown(["beside the base's tool", *found["base"]], rows)


def skill() -> str:
    """What the checkpoint before the habits does, and what training adds to a half-primed one."""
    results = load("skill")
    rows = [
        [f"`{env}`, before the habits", *_played(env, [scores])]
        for env, scores in results["clean"].items()
    ]
    for env, runs in results["half"].items():
        teams = [scores for name, scores in runs.items() if name != "before"]
        rows.append([f"`{env}`, half primed", *_played(env, [runs["before"]])])
        rows.append([f"`{env}`, half primed, then trained", *_played(env, teams)])
    header = ["", "team, sampled", "team, greedy", "first reply, sampled", "first reply, greedy"]
    return markdown(header, rows)


def _played(env: str, runs: Sequence[Any]) -> list[str]:
    roles = ("tool", "reasoner") if env == "math" else ("tool", "planner")
    first = "first_right" if env == "math" else "first_answer_solves"
    cells = [spread([run[how]["eval/success"] for run in runs]) for how in ("sampled", "greedy")]
    for how in ("sampled", "greedy"):
        by_role = [spread([run[how][f"eval/{role}/{first}"] for run in runs]) for role in roles]
        cells.append(" / ".join(by_role))
    return cells


def seconds() -> str:
    """Where the wall time of training goes."""
    runs = [
        run["timing"]
        for name, run in load("learning_coding").items()
        if name.startswith("at_grpo-")
    ]
    rows = [
        [
            f"{run['time/step']:.0f} s",
            f"{run['num_tokens'] / 1e3:.0f} k",
            *(
                f"{run[f'time/{part}'] / run['time/step']:.0%}"
                for part in ("sample", "score", "update")
            ),
        ]
        for run in runs
    ]
    header = ["training", "generated tokens", "sampling", "environment and sandbox", "update"]
    return markdown(header, rows)


def habit_or_skill() -> str:
    """First replies before the habits, with them, and after training; rare parts apart."""
    results = load("habit_or_skill")["teams"]
    trained = [team for name, team in results.items() if name.startswith("at_grpo-")]
    rows = []
    for name in results["base"]["sampled"]:
        if "parts" not in name:
            continue
        row = [name]
        for how in ("sampled", "greedy"):
            row += [f"{results[team][how][name]:.2f}" for team in ("clean", "base")]
            row.append(spread([team[how][name] for team in trained]))
        rows.append(row)
    header = [
        f"{team}, {how}" for how in ("sampled", "greedy") for team in ("clean", "base", "trained")
    ]
    return markdown(["local reward, first reply", *header], rows)


def environments() -> str:
    """What the registry has, in the words of each environment's manual."""
    rows = []
    for name, entry_point in ENVIRONMENTS.items():
        manual = importlib.import_module(entry_point.partition(":")[0]).__doc__ or ""
        said = dict(re.findall(r"^\| (\w+) \| (.+) \|$", manual, flags=re.MULTILINE))
        what = manual.split("\n")[2]
        env_id = re.search(r"pettingllms/[\w-]+", said["Creation"])
        assert env_id is not None
        rows.append([f"`{name}`", what, said["Agents"], said["Action"], f"`{env_id[0]}`"])
    header = ["name", "what", "agents", "action", "in PettingZoo's registry"]
    return markdown(header, rows)


PAPER = (
    "main_table",
    "grouping",
    "joint_training",
    "role_swap",
    "shared_or_specialised",
    "alpha",
    "sparse_rewards",
    "branching",
    "team_size",
)
"""Scripts of the paper's tables and claims: each has a table and a verdict."""


def paper(name: str) -> str:
    """The table of a script, and its verdict below."""
    result = load(name)
    table = importlib.import_module(f"benchmarks.{name}").table(result)
    return f"{markdown(*table)}\n\n{result['verdict']}"


def claims() -> str:
    """What every script says at its end."""
    rows = [[f"[`{name}`](benchmarks/{name}.py)", load(name)["verdict"]] for name in PAPER]
    return markdown(["experiment", "on the embedded model"], rows)


def peers() -> str:
    """TRL's trainer beside ours, and the comparison in a sentence."""
    results = load("peers")
    return f"{markdown(*peers_report.tables(results))}\n\n{peers_report.sentence(results)}"


TABLES: dict[str, Callable[[], str]] = {
    "peers": peers,
    "claims": claims,
    **{name: partial(paper, name) for name in PAPER},
    "boards": lambda: markdown(*speed_tables.boards(load("boards")["rows"])),
    "sudoku_speed": lambda: markdown(*speed_tables.sudoku(load("sudoku_speed")["rows"])),
    "vllm_sampling": lambda: markdown(*speed_tables.vllm_sampling(load("sampling_vllm")["rows"])),
    "vllm_training": lambda: markdown(
        *speed_tables.vllm_training(load("vllm_training")["summary"])
    ),
    "environments": environments,
    "learning": learning,
    "teams": teams,
    "trust": trust,
    "skill": skill,
    "seconds": seconds,
    "habit_or_skill": habit_or_skill,
    "sandbox": lambda: markdown(*sandbox_tables.speed(load("sandbox")["rows"])),
    "sandbox_cores": lambda: markdown(*sandbox_tables.cores(load("sandbox")["rows"])),
    "soak": lambda: markdown(*sandbox_tables.soak(load("soak")["rows"])),
}


def filled(page: str) -> str:
    """`page` with every marked table replaced by what the results say."""
    for name, table in TABLES.items():
        start, end = f"<!-- table {name} -->", "<!-- end of table -->"
        if start in page:
            before, _, rest = page.partition(start)
            _, found, after = rest.partition(end)
            if not found:
                raise SystemExit(f"the table {name!r} has no {end}")
            page = f"{before}{start}\n{table()}\n{end}{after}"
    return page


def main() -> None:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put them into the README files")
    if parser.parse_args().write:
        for path in PAGES:
            path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for name, table in TABLES.items():
            print(f"{name}\n\n{table()}\n")


if __name__ == "__main__":
    main()
