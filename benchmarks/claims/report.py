"""From cells to verdicts: what is supported, what is refuted, what is not decided, and what is left open either way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase
from typing import Any, NamedTuple

import numpy as np

from benchmarks.claims.cells import READINGS
from benchmarks.claims.difference import correlated
from benchmarks.claims.experiments import EXPERIMENTS, RATES, SEEDS, Claim
from benchmarks.claims.statistics import LEVEL, digits, interval, p_value
from benchmarks.evidence import CEILING, Table
from pettingllms.statistics import Estimate, holm

Runs = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""Ground and arm -> the cells of the seeds that count, in order, where all are there."""
TAUS = tuple(round(tau / 20, 2) for tau in range(21))

WORDS = ("supported", "refuted", "not decided")
"""What a verdict says."""
UNEQUAL = 1.1
"""Ratio of the tokens of two arms above which a verdict says so: a training ends with a whole step."""


class Judged(NamedTuple):
    """A claim on one ground."""

    experiment: str
    claim: Claim
    ground: str
    gains: Mapping[str, Estimate]
    """Reading -> the difference with its interval."""
    p: float
    """The larger one of the two readings, because a verdict needs both; doubled where seeds were added later."""


def judged(runs: Runs, names: Sequence[str]) -> list[Judged]:
    """All claims of these experiments of which both arms are there."""
    return [
        Judged(name, claim, ground, *_compared(claim, runs[ground, claim.arm], runs[ground, claim.over]))
        for name, claim, ground in _claims(names, sorted({ground for ground, _ in runs}))
        if (ground, claim.arm) in runs and claim.lineup in _lineups(runs.get((ground, claim.over)))
    ]  # fmt: skip


def _lineups(cells: Sequence[Any] | None) -> set[str]:
    """Who played of an arm, in any reading; nobody where it is not there."""
    return {name for reading in READINGS for name in cells[0][reading]} if cells else set()


def _claims(names: Sequence[str], grounds: Sequence[str]) -> Iterator[tuple[str, Claim, str]]:
    for name in names:
        experiment = EXPERIMENTS[name]
        for claim in experiment.claims:
            for ground in grounds:
                if ground in experiment.grounds:
                    yield name, claim, ground


def _compared(
    claim: Claim, ours: Sequence[Any], theirs: Sequence[Any]
) -> tuple[dict[str, Estimate], float]:
    gains, values = {}, []
    for name in READINGS:
        # An exchange is played at equal tokens alone.
        if claim.lineup != "own" and claim.lineup not in theirs[0][name]:
            continue
        one = digits([cell[name]["own"] for cell in ours])
        two = digits([cell[name][claim.lineup] for cell in theirs])
        gains[name] = interval(one - two)
        values.append(p_value(one - two, claim.least))
    # Seeds were added where the first five had been looked at: either look could have found it.
    looks = 1 if len(ours) == len(SEEDS) else 2
    return gains, min(1.0, looks * max(values))


def verdict(judgement: Judged, corrected: float) -> str:
    """Supported or refuted where both readings agree and the corrected p-value is below the level."""
    sides = {estimate.mean > judgement.claim.least for estimate in judgement.gains.values()}
    if corrected >= LEVEL or len(sides) > 1:
        return "not decided"
    return "supported" if sides == {True} else "refuted"


def decided_after_two_looks(result: Mapping[str, Any]) -> int:
    """How many verdicts are decided if the p-values of grounds with five seeds are doubled, too."""
    grounds, verdicts = result["settings"]["grounds"], result["verdicts"]
    corrected = holm(
        {
            str(place): row["p"] * (2 if len(grounds[row["ground"]]["seeds"]) == len(SEEDS) else 1)
            for place, row in enumerate(verdicts)
        }
    )
    return sum(
        row["verdict"] != "not decided" and corrected[str(place)] < LEVEL
        for place, row in enumerate(verdicts)
    )


def confounds(judgement: Judged, arms: Mapping[str, Any]) -> list[str]:
    """What could make the difference, or hide it, besides what is claimed."""
    pair = [arms[judgement.ground][name] for name in (judgement.claim.arm, judgement.claim.over)]
    remarks = [judgement.claim.confound]
    edges = [
        name
        for name, arm in zip((judgement.claim.arm, judgement.claim.over), pair, strict=True)
        if arm["scale"] in (RATES[0], RATES[-1])
    ]
    if edges:
        remarks.append(
            f"The best rate is at the edge of the grid: {', '.join(dict.fromkeys(edges))}."
        )
    spent = [arm["tokens"]["tokens"] for arm in pair]
    if max(spent) > UNEQUAL * min(spent):
        more = (judgement.claim.arm, judgement.claim.over)[spent.index(max(spent))]
        share = 100 * (max(spent) / min(spent) - 1)
        remarks.append(
            f"At equal tokens {more} has {share:.0f} % more, because its steps are large."
        )
    if all(arm["updates"]["success"][0] >= CEILING for arm in pair):
        remarks.append("Both are at the ceiling.")
    if any(arm["habits"] for arm in pair):
        remarks.append("The base was primed with bad habits, so that part of a gain is a habit overcome.")  # fmt: skip
    return remarks


def summary(runs: Runs, ground: str, arm: str, *, habits: bool) -> dict[str, Any]:
    """What an arm reached on a ground, and what that took."""
    cells = runs[ground, arm]
    figures: dict[str, Any] = {
        "rate": cells[0]["rate"],
        "scale": float(cells[0]["cell"].split("/")[2]),
        "seeds": [int(cell["cell"].split("/")[3]) for cell in cells],
        "habits": habits,
        "decisions": round(float(np.mean([_late(curve) for cell in cells for curve in cell["curves"]])), 2),
    }  # fmt: skip
    for name in READINGS:
        values = digits([cell[name]["own"] for cell in cells])
        figures[name] = {
            "success": [round(number, 4) for number in interval(values)],
            "by_seed": [round(float(number), 4) for number in values.mean(axis=1)],
            "steps": round(float(np.mean([cell[name]["steps"] for cell in cells])), 1),
            "tokens": round(float(np.mean([cell[name]["tokens"] for cell in cells]))),
        }
    return figures


def _late(curve: Sequence[Sequence[float]]) -> float:
    """Decisions of an episode in the last quarter of a training."""
    last = curve[-max(1, len(curve) // 4) :]
    return sum(decisions for _, decisions in last) / len(last)


def rliable_scores(runs: Runs) -> dict[str, Any]:
    """Interquartile means with intervals, and performance profiles, by the library of Agarwal et al. 2021.

    On each ground, and over all of them for the arms that are everywhere.

    Raises:
        SystemExit: the library is not installed.
    """
    try:
        from rliable import library, metrics
    except ImportError as error:
        raise SystemExit(
            f"{error}; rliable needs pandas below 3: make an environment of its own and install "
            "there: pip install -e '.[train]' -r benchmarks/requirements.txt"
        ) from error
    aggregates = {}
    for name in READINGS:
        for there in _sets(runs):
            arms = [arm for arm in dict.fromkeys(arm for _, arm in runs) if all((ground, arm) in runs for ground in there)]  # fmt: skip
            # As many seeds on each ground, because the library takes a matrix.
            least = min(len(runs[ground, arm]) for ground in there for arm in arms)
            scores = {
                arm: np.array([digits([cell[name]["own"] for cell in runs[ground, arm][:least]]).mean(axis=1) for ground in there]).T
                for arm in arms
            }  # fmt: skip
            rng = np.random.RandomState(0)
            means, bounds = library.get_interval_estimates(
                scores, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=2000, random_state=rng
            )
            profiles, _ = library.create_performance_profile(scores, np.array(TAUS), reps=200)
            aggregates[f"{name}/{', '.join(there)}"] = {
                arm: {
                    "iqm": [
                        round(float(number), 4) for number in (means[arm][0], *bounds[arm][:, 0])
                    ],
                    "profile": [round(float(number), 3) for number in profiles[arm]],
                }
                for arm in arms
            }
    return aggregates


def _sets(runs: Runs) -> list[tuple[str, ...]]:
    """Every ground, and all together where two arms or more are on all of them."""
    grounds = list(dict.fromkeys(ground for ground, _ in runs))
    everywhere = [arm for _, arm in runs if all((ground, arm) in runs for ground in grounds)]
    several = [tuple(grounds)] if len(grounds) > 1 and len(set(everywhere)) > 1 else []
    return [*((ground,) for ground in grounds), *several]


def published(
    runs: Runs, names: Sequence[str], habits: Mapping[str, bool]
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any] | None]:
    """The arms by ground, the verdicts, and the correlation over grounds, where there are enough.

    All p-values are corrected together.
    """
    arms: dict[str, Any] = {}
    for ground, arm in runs:
        arms.setdefault(ground, {})[arm] = summary(runs, ground, arm, habits=habits[ground])
    judgements = judged(runs, names)
    keys = [
        f"{judgement.experiment}/{judgement.claim.text}/{judgement.ground}"
        for judgement in judgements
    ]
    correlation = correlated(runs)
    values = {key: judgement.p for key, judgement in zip(keys, judgements, strict=True)}
    corrected = holm(values | ({"": correlation["p"]} if correlation else {}))
    if correlation:
        correlation["p_holm"] = float(f"{corrected['']:.2g}")
    verdicts = [
        {
            "experiment": judgement.experiment,
            "claim": judgement.claim.text,
            "ground": judgement.ground,
            "least": judgement.claim.least,
            "gains": {name: [round(number, 4) for number in gain] for name, gain in judgement.gains.items()},
            "p": float(f"{judgement.p:.2g}"),
            "p_holm": float(f"{corrected[key]:.2g}"),
            "verdict": verdict(judgement, corrected[key]),
            "confounds": confounds(judgement, arms),
        }
        for key, judgement in zip(keys, judgements, strict=True)
    ]  # fmt: skip
    return arms, verdicts, correlation


def missing(result: Mapping[str, Any]) -> dict[str, str]:
    """Experiment -> where it asks for something that nobody has run."""
    done = {(row["experiment"], row["ground"], row["claim"]) for row in result["verdicts"]}
    places = {}
    for name, experiment in EXPERIMENTS.items():
        lacking = {
            ground: sum((name, ground, claim.text) not in done for claim in experiment.claims)
            for ground in experiment.grounds
        }
        grounds = [
            f"`{ground}`"
            if count == len(experiment.claims)
            else f"`{ground}` ({count} of {len(experiment.claims)})"
            for ground, count in lacking.items()
            if count
        ]
        if grounds:
            places[name] = ", ".join(grounds)
    return places


def _shown(numbers: Sequence[float] | None) -> str:
    if numbers is None:
        return ""
    mean, low, high = numbers
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def of_experiment(result: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The verdicts of one experiment, a claim after the other."""
    order = [claim.text for claim in EXPERIMENTS[name].claims]
    rows = [row for row in result["verdicts"] if row["experiment"] == name]
    return sorted(rows, key=lambda row: order.index(row["claim"]))


def table(verdicts: Sequence[Mapping[str, Any]]) -> Table:
    """The verdicts; letters stand for what each leaves open, see `open_questions`."""
    letters = open_questions(verdicts)
    rows = [
        [
            f"{row['claim']}",
            f"`{row['ground']}`",
            *(_shown(row["gains"].get(name)) for name in READINGS),
            f"{row['p_holm']:.2g}",
            f"**{row['verdict']}**",
            ", ".join(letters[confound] for confound in letters if confound in row["confounds"]),
        ]
        for row in verdicts
    ]
    head = ["claim", "where", "difference at equal tokens", "at equal updates", "p (Holm)"]
    return [*head, "verdict", "leaves open"], rows


def open_questions(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Confound -> its letter in the table, in the order of their first verdicts."""
    remarks = dict.fromkeys(remark for row in verdicts for remark in row["confounds"])
    letters = (*ascii_lowercase, *(f"a{letter}" for letter in ascii_lowercase))
    return dict(zip(remarks, letters, strict=False))


def summary_table(result: Mapping[str, Any]) -> Table:
    """Where each question was decided, where not, and where nobody asked: a row for each experiment."""
    lacking = missing(result)
    rows = []
    # By the number of the paper's claim, and what the paper does not claim at the end.
    ordered = sorted(
        EXPERIMENTS.items(), key=lambda item: (not item[1].title.startswith("Claim"), item[1].title)
    )
    for name, experiment in ordered:
        verdicts = of_experiment(result, name)
        places = dict.fromkeys(row["ground"] for row in verdicts)
        cells = []
        for word in WORDS:
            with_it = [row["ground"] for row in verdicts if row["verdict"] == word]
            totals = {place: sum(row["ground"] == place for row in verdicts) for place in places}
            cells.append(
                ", ".join(
                    f"`{place}`"
                    if with_it.count(place) == totals[place]
                    else f"`{place}` ({with_it.count(place)} of {totals[place]})"
                    for place in places
                    if place in with_it
                )
            )
        rows.append([experiment.title, experiment.question, *cells, lacking.get(name, "")])
    return ["claim", "question", *WORDS, "not run"], rows


def arms(result: Mapping[str, Any]) -> Table:
    """Success and cost of every arm."""
    rows = []
    for ground, by_name in result["arms"].items():
        for name, arm in by_name.items():
            cells = []
            for reading, other in (("tokens", "steps"), ("updates", "tokens")):
                mean, low, high = arm[reading]["success"]
                count = arm[reading][other]
                shown = f"{count:.0f}" if other == "steps" else f"{count / 1e3:.0f}k"
                cells += [f"{mean:.2f} [{low:.2f}, {high:.2f}]", shown]
            rows.append(
                [f"`{ground}`", name, f"{arm['rate']:g}", *cells, f"{arm['decisions']:.1f}"]
            )
    head = ["where", "arm", "learning rate", "success at equal tokens", "updates then"]
    return [*head, "success at equal updates", "tokens then", "decisions of an episode"], rows


def complete(
    cells: Mapping[tuple[str, str], Sequence[Any]], seeds: Mapping[tuple[str, str], Sequence[int]]
) -> Runs:
    """Those with all seeds that count."""
    return {key: runs for key, runs in cells.items() if len(runs) == len(seeds[key])}
