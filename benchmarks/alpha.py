"""How much should the team's reward weigh, where the local one agrees with it more or less? `duet`, with the embedded architecture.

    python -m benchmarks.priming.duet     the base: the form of replies, and no right answer
    python -m benchmarks.alpha            everything that is missing; --minutes 4 ends earlier and keeps what it has
    python -m benchmarks.alpha --dry-run  the trainings that are due

`agreement` is the correlation of the local rewards of `right` with being right. Every arm is trained on equally many generated tokens, with a
constant learning rate that is chosen from six on the seed `TUNING`, as the best mean over the agreements `TUNED`: a user does not know
the agreement. Success is the probability that both roles are right about a phrase, read from the policies. Writes `results/alpha.json`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import pyplot

from benchmarks.advice import COMMON, ROLES, chances, trainings
from benchmarks.cells import write
from benchmarks.evidence import Table, shown
from pettingllms.envs.duet_v0 import raw_env as Duet
from pettingllms.names import parse_policies
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.statistics import Estimate, over_seeds
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig

RESULTS = Path(__file__).parent / "results" / "alpha.json"
PICTURE = Path(__file__).parents[1] / "docs" / "alpha.png"
AGREEMENTS = (-1.0, -0.5, 0.0, 0.5, 1.0)
TUNED = (-0.5, 0.5)
RATES = (2.5e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
TUNING, SEEDS = 100, (0, 1, 2, 3, 4)
RANK = 16
ARMS: Mapping[str, Mapping[str, Any]] = {
    "alpha 0.5": {"alpha": 0.5},
    "alpha 1": {},
    "alpha 2": {"alpha": 2.0},
    "team alone": {"rewards": "sparse"},
    "gdpo": {"method": "gdpo"},
    "aligned, start 0": {"method": "aligned", "method_args": {"start": 0.0}},
    "aligned, start 1": {"method": "aligned"},
    "alpha 1, not scaled": {"scale_rewards": "none"},
    "alpha 2, not scaled": {"scale_rewards": "none", "alpha": 2.0},
    "aligned, start 1, not scaled": {"scale_rewards": "none", "method": "aligned"},
}
"""Arm -> settings; `rewards` is the environment's."""
BEST = "aligned, start 1, not scaled"
"""The arm with the highest mean, to which the others are compared."""
SHOWN = ("alpha 1", "alpha 1, not scaled", "alpha 2, not scaled", BEST)


class Cell(NamedTuple):
    """A training."""

    arm: str
    agreement: float
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Names it in the results."""
        return f"{self.arm}/agreement {self.agreement:g}/{self.rate:g}/{self.seed}"


def both(policies: PolicySet, env: Duet) -> float:
    """The probability that both roles are right, the mean over phrases."""
    left, right = (chances(policies, env)[role] for role in ROLES)
    return round((left * right).mean().item(), 4)


def train(base: Path, cell: Cell, tokens: int) -> dict[str, Any]:
    """Trains a cell; returns its success before and after, and what it cost."""
    started, settings = time.process_time(), dict(ARMS[cell.arm])
    env = Duet(
        rho=0.5,
        q=0.0,
        agreement=cell.agreement,
        key=cell.seed,
        rewards=settings.pop("rewards", "dense"),
        prompt="compact",
        alpha=settings.get("alpha", 1.0),
    )
    lora: dict[str, Any] = {"lora_r": RANK, "lora_alpha": 2 * RANK, "seed": cell.seed}
    config = ATGRPOConfig(
        env="duet",
        model=str(base),
        policies="per-role",
        learning_rate=cell.rate,
        **lora,
        **COMMON,
        **settings,
    )
    policies = load_policies(base, parse_policies("per-role", ROLES), **lora)
    trainer = ATGRPO(config, env, policies)
    before = both(policies, env)
    while trainer.tokens < tokens:
        trainer.train_step()
    roles = {
        role: round(chance.mean().item(), 4) for role, chance in chances(policies, env).items()
    }
    result = {"before": before, "both": both(policies, env), "roles": roles}
    result |= {"steps": trainer.step, "tokens": trainer.tokens}
    return result | {"cpu_s": round(time.process_time() - started, 1)}


def tuning() -> list[Cell]:
    """The trainings by which rates are chosen."""
    return [Cell(arm, at, rate, TUNING) for arm in ARMS for at in TUNED for rate in RATES]


def chosen_rate(runs: Mapping[str, Any], arm: str) -> float:
    """The rate with the best mean success on the tuning seed."""

    def success(rate: float) -> float:
        return fmean(runs[Cell(arm, at, rate, TUNING).name]["both"] for at in TUNED)

    return max(RATES, key=success)


def cells(runs: Mapping[str, Any]) -> list[Cell]:
    """All trainings that are due now; those of the results follow from those of the tuning."""
    if any(cell.name not in runs for cell in tuning()):
        return tuning()
    rates = {arm: chosen_rate(runs, arm) for arm in ARMS}
    fresh = [Cell(arm, at, rates[arm], seed) for seed in SEEDS for at in AGREEMENTS for arm in ARMS]
    return [*tuning(), *fresh]


def by_seed(runs: Mapping[str, Any], arm: str) -> dict[float, list[float]]:
    """Agreement -> success with each seed, at the arm's rate."""
    rate = chosen_rate(runs, arm)
    return {
        at: [runs[Cell(arm, at, rate, seed).name]["both"] for seed in SEEDS] for at in AGREEMENTS
    }


def interval(values: Sequence[float]) -> list[float]:
    """Mean, and Student's interval over seeds (95 %)."""
    estimate = over_seeds(np.array(values)[:, None], share=False)
    return [round(value, 4) for value in estimate]


def judged(runs: Mapping[str, Any]) -> dict[str, Any]:
    """Of each arm: success at each agreement and over all of them, and what the arm `BEST` gains over it."""
    successes = {arm: by_seed(runs, arm) for arm in ARMS}
    means = {
        arm: [fmean(seeds) for seeds in zip(*by_agreement.values(), strict=True)]
        for arm, by_agreement in successes.items()
    }
    return {
        arm: {
            "rate": chosen_rate(runs, arm),
            "at": {f"{at:g}": interval(seeds) for at, seeds in successes[arm].items()},
            "mean": interval(means[arm]),
            "gain": interval([a - b for a, b in zip(means[BEST], means[arm], strict=True)]),
        }
        for arm in ARMS
    }


def table(result: Mapping[str, Any]) -> Table:
    """Success of each arm by agreement, its mean with an interval over seeds, and what the arm `BEST` gains over it."""
    rows = []
    for arm, row in sorted(result["arms"].items(), key=lambda item: item[1]["mean"][0]):
        mean, gain = (Estimate(*row[name]) for name in ("mean", "gain"))
        shares = [f"{row['at'][f'{at:g}'][0]:.2f}" for at in AGREEMENTS]
        gained = "" if arm == BEST else f"{gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"
        rows.append([arm, f"{row['rate']:g}", *shares, shown(mean), gained])
    return ["", "rate", *(f"{at:g}" for at in AGREEMENTS), "mean", f"`{BEST}` gains"], rows


def draw(table: Mapping[str, Any], file: Path) -> None:
    """Draws success by agreement, of the arms `SHOWN`."""
    matplotlib.use("agg")  # chosen before the first figure
    figure, axes = pyplot.subplots(figsize=(5, 3.6), layout="constrained")
    for place, (arm, marker) in enumerate(zip(SHOWN, "osD^", strict=True)):
        points = [table[arm]["at"][f"{at:g}"] for at in AGREEMENTS]
        # Side by side, so that no interval hides another.
        across = [at + 0.04 * (place - 1.5) for at in AGREEMENTS]
        low_high = [
            [mean - low for mean, low, _ in points],
            [high - mean for mean, _, high in points],
        ]
        label = arm.replace(", start 1", "")
        axes.errorbar(
            across, [mean for mean, _, _ in points], low_high, marker=marker, capsize=2, label=label
        )
    axes.set_xticks(AGREEMENTS)
    axes.set_ylim(0, 1)
    axes.set_xlabel("correlation of the local reward with being right")
    axes.set_ylabel("probability that both roles are right")
    axes.set_title(f"At the end, {len(SEEDS)} seeds, intervals of 95 %", fontsize=10)
    axes.legend(fontsize=8)
    figure.savefig(file, dpi=110)


def main(argv: Sequence[str] | None = None) -> None:
    """Trains what is missing, judges, writes."""
    file, result = trainings(argv, __doc__.splitlines()[0], RESULTS, cells, train)
    result["settings"]["rates"] = RATES
    result["arms"] = judged(result["runs"])
    write(file, result)
    if file == RESULTS:
        draw(result["arms"], PICTURE)
    for arm, row in result["arms"].items():
        print(arm, row["rate"], row["mean"], row["gain"])


if __name__ == "__main__":
    main()
