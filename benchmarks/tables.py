"""The tables of the pages, made from `results/*.json`.

    python -m benchmarks.tables           print them
    python -m benchmarks.tables --write   put them between their markers in the pages

A table is made from a published result; a marker of a table whose result is not published is an
error, except for `outcomes`, `teams` and `teams_passes`, which have rows for each environment that has one.
A test holds the pages to the results.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import parts, peers_report, search_report, speed_tables
from benchmarks.claims import decisions, difference
from benchmarks.claims import report as claims_report
from benchmarks.claims.experiments import EXPERIMENTS as CLAIMS
from benchmarks.evidence import PASSES, Table, estimate, pass_cells, shown, spread
from benchmarks.method_table import EXPERIMENTS
from benchmarks.options import Options
from pettingllms.envs import ENVIRONMENTS

HERE = Path(__file__).parent
PAGES = (
    HERE.parent / "README.md",
    HERE.parent / "docs" / "results" / "pretrained.md",
    HERE / "results" / "tables.md",
    HERE.parent / "sandbox" / "README.md",
)
BLIND = {
    "plan_path": "plan_path 6x6, 6 to 36 moves",
    "sokoban": "sokoban 6x6, 1 box",
    "sudoku": "sudoku 4x4",
}
"""What `benchmarks.blind` calls the tasks that the embedded model is trained on."""
MISSING = "not measured"
UNPUBLISHED = "No results are published at the moment; `python -m benchmarks.learning --env coding` measures them."


def load(name: str) -> Any:
    """The results of one script."""
    return json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))


def published(name: str) -> bool:
    """Whether a script has results."""
    return (HERE / "results" / f"{name}.json").is_file()


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    head, *body = ("| " + " | ".join(line) + " |" for line in (header, *rows))
    return "\n".join([head, "|" + "---|" * len(header), *body])


# ------------------------------------------------------------------------------ what teams learn


def learned() -> dict[str, dict[str, list[Any]]]:
    """Environment -> how policies are shared -> the runs of all seeds, of what is published."""
    runs: dict[str, dict[str, list[Any]]] = {}
    for env in ENVIRONMENTS.own:
        name = f"learning_{env}"
        for run, result in load(name).items() if published(name) else ():
            policies = run.partition("at_grpo-")[0].rstrip("-") or "per-role"
            runs.setdefault(env, {}).setdefault(policies, []).append(result)
    return runs


def outcomes() -> str:
    """Success before and after training from the environment's default base, for the README."""
    worlds = load("parts")["environments"] if published("parts") else {}
    rows = [
        [f"`{env}`", "parts", *(f"{share:.2f}" for share in parts.success(world))]
        for env, world in sorted(worlds.items())
        # Another training of an environment is in the pages of the results alone.
        if parts.STORIES[env].env == env
    ]
    rows += [
        [
            f"`{env}`",
            "habits",
            *(f"{_mean(runs['per-role'], team):.2f}" for team in ("base", "adapters")),
        ]
        for env, runs in learned().items()
        if "per-role" in runs and env not in worlds
    ]
    if not rows:
        return UNPUBLISHED
    return markdown(["environment", "shown before", "success", "after training"], rows)


def _mean(runs: Sequence[Any], team: str, how: str = "sampled") -> float:
    """Success on the test tasks, over all seeds."""
    return float(np.mean([run[how]["results"][team][0]["eval/success"] for run in runs]))


def teams() -> str:
    """Success on test tasks with intervals, and what it has to be compared with."""
    columns = [
        [f"`{env}`", policies, *_team(env, runs)]
        for env, kinds in learned().items()
        for policies, runs in kinds.items()
    ]
    if not columns:
        return UNPUBLISHED
    names = ["", "policies", "base", "after training", "after, greedy", "swapped", "blind"]
    names += ["larger tasks", "base, larger", "after training, larger"]
    names += ["CPU-seconds", "seeds", "revision"]
    header, *rows = zip(names, *columns, strict=True)
    return markdown(header, rows)


def digits(runs: Sequence[Any], team: str, how: str = "sampled") -> np.ndarray:
    """Which test tasks a team solved, of shape (seeds, tasks)."""
    rows = [[float(digit) for digit in run[how]["solved"][team]] for run in runs]
    # The base plays the same for every seed of training: only its tasks are a sample.
    return np.array(rows[:1] if team == "base" else rows)


def larger_of(runs: Sequence[Any]) -> str | None:
    """What the tasks beyond training are called, where all of an environment's runs played them."""
    return runs[0]["beyond"]["size"] if all("beyond" in run for run in runs) else None


def _team(env: str, runs: Sequence[Any]) -> list[str]:
    swapped, blind = "swapped" in runs[0]["sampled"]["results"], blind_success(env)
    spent = [run["timing"]["cpu_seconds"] for run in runs if "cpu_seconds" in run["timing"]]
    revisions = dict.fromkeys(run["sampled"]["revision"]["commit"][:7] for run in runs)
    beyond = ["", MISSING, MISSING]
    if size := larger_of(runs):
        results = (digits(runs, team, "beyond") for team in ("base", "adapters"))
        beyond = [size, *(shown(estimate(solved)) for solved in results)]
    return [
        shown(estimate(digits(runs, "base"))),
        shown(estimate(digits(runs, "adapters"))),
        shown(estimate(digits(runs, "adapters", "greedy"))),
        shown(estimate(digits(runs, "swapped"))) if swapped else "",
        "" if blind is None else f"{blind:.2f}",
        *beyond,
        spread(spent, 0) if spent else MISSING,
        str(len(runs)),
        ", ".join(f"`{revision}`" for revision in revisions),
    ]


def teams_passes() -> str:
    """pass@k of the base and of the first seed's team."""
    rows = [
        [f"`{env}`, {name}", *pass_cells(run["passes"]["solved"][team])]
        for env, kinds in learned().items()
        for run in kinds["per-role"]
        if "passes" in run
        for name, team in (("base", "base"), ("trained", "adapters"))
    ]
    return markdown(["", *(f"pass@{k}" for k in PASSES)], rows) if rows else UNPUBLISHED


def blind_success(env: str) -> float | None:
    """The best success of constant answers, where it was measured."""
    for row in load("blind")["rows"] if published("blind") else ():
        if row["game"] == BLIND.get(env) and row["refused"] == "stop":
            return float(row["success"])
    return None


# --------------------------------------------------------------------------------- other tables


def paper(name: str) -> str:
    """The table of an experiment on methods, and its verdict below."""
    result = load(name)
    return f"{markdown(*EXPERIMENTS[name].table(result))}\n\n{result['verdict']}"


def claims(name: str) -> str:
    """The verdicts of one experiment on the claims of the AT-GRPO paper, and what each leaves open."""
    verdicts = claims_report.of_experiment(load("claims"), name)
    letters = claims_report.open_questions(verdicts)
    notes = "\n".join(f"- {letter}: {remark}" for remark, letter in letters.items())
    return f"{markdown(*claims_report.table(verdicts))}\n\n{notes}"


def claims_summary() -> str:
    """Where each claim was decided, and what that took."""
    result = load("claims")
    verdicts = result["verdicts"]
    edges = sum(
        any("edge of the grid" in remark for remark in row["confounds"]) for row in verdicts
    )
    return (
        f"{markdown(*claims_report.summary_table(result))}\n\n{len(verdicts)} verdicts, of which {edges} compare an "
        "arm whose best rate lies at the edge of its grid, so that a better one may lie beyond; "
        f"{sum(row['verdict'] != 'not decided' for row in verdicts)} are decided, and "
        f"{claims_report.decided_after_two_looks(result)} would be if every p-value were doubled. What was run took {result['cpu_minutes']:.0f} CPU-minutes."
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


SCRIPTS = (
    *("alone", "between", "ensemble", "games", "gate", "habits", "late_outcome", "leader", "malt"),
    *(
        "advice",
        "agentrl",
        "method_rates",
        "airl",
        "alpha",
        "crew",
        "distillation",
        "hindsight",
        "judged",
        "hindsight_training",
        "league",
        "parts",
        "peers_sweep",
        "prompts",
        "protocol",
        "reading",
        "rounds",
        "self_play",
        "step",
        "sweet",
        "trust",
    ),
)
"""Benchmarks with a function `table` of their own."""
SECOND = {
    "advice_signals": ("advice", "signals"),
    "agentrl_sweep": ("agentrl", "sweep"),
    "gate_ranks": ("gate", "ranking"),
    "hindsight_sweep": ("hindsight_training", "sweep"),
    "late_outcome_sweep": ("late_outcome", "sweep"),
    "league_versions": ("league", "versions_table"),
    "league_noughts": ("league", "noughts_table"),
    "league_noughts_versions": ("league", "noughts_versions"),
    **{f"parts_{name}": ("parts", name) for name in ("roles", "passes")},
    "protocol_controls": ("protocol", "controls"),
    **{
        f"reading_{name}": ("reading", name)
        for name in ("claims", "sweep", "strangers", "signals", "advice")
    },
}
"""Other tables of theirs: marker -> benchmark and function."""


def tables() -> dict[str, Callable[[], str]]:
    """Name of a marker -> what makes its table, for everything that is published."""
    speeds = {
        "boards": (speed_tables.boards, "boards"),
        "sudoku_speed": (speed_tables.sudoku, "sudoku_speed"),
        "vllm_sampling": (speed_tables.vllm_sampling, "sampling_vllm"),
        "refill": (speed_tables.refill, "refill"),
        "sandbox": (speed_tables.sandbox, "sandbox"),
        "sandbox_cores": (speed_tables.sandbox_cores, "sandbox"),
        "soak": (speed_tables.soak, "soak"),
    }
    makers: dict[str, Callable[[], str]] = {
        "outcomes": outcomes,
        "teams": teams,
        "teams_passes": teams_passes,
    }
    makers |= {
        n: partial(_of_rows, *arguments)
        for n, arguments in speeds.items()
        if published(arguments[1])
    }
    makers |= {name: partial(paper, name) for name in EXPERIMENTS if published(name)}
    makers |= {name: partial(_of_script, name) for name in SCRIPTS if published(name)}
    makers |= {
        marker: partial(_of_script, name, table)
        for marker, (name, table) in SECOND.items()
        if published(name)
    }
    if published("parts_pilots"):
        makers["parts_sweep"] = lambda: markdown(*parts.sweep(load("parts_pilots")))
    if published("search_team"):
        makers |= {"search_team": search_team, "search_norms": search_norms}
    if published("peers"):
        makers["peers"] = peers
    if published("claims"):
        makers["claims"] = claims_summary
        makers |= {f"claims_{name}": partial(claims, name) for name in CLAIMS}
        makers["claims_decisions"] = lambda: markdown(
            *decisions.table(load("claims"), load("between")["grounds"])
        )
        makers["claims_arms"] = lambda: markdown(*claims_report.arms(load("claims")))
        if load("claims")["difference"]:
            makers["claims_roles"] = claims_roles
    return makers


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
        old, marker, after = rest.partition(end)
        if not marker or "<!-- table " in old:
            raise SystemExit(f"the table {name!r} has no {end}")
        page = f"{before}{start}\n{made[name]()}\n{end}{after}"
    return page


def main() -> None:
    """Prints or writes the tables."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put them into the pages")
    if parser.parse_args().write:
        for path in PAGES:
            path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for name, table in tables().items():
            print(f"{name}\n\n{table()}\n")


if __name__ == "__main__":
    main()
