"""How much should the team's reward weigh, where the local one agrees with it more or less? `duet`, with the embedded architecture.

    python -m benchmarks.priming.duet     the base: the form of replies, and no right answer
    python -m benchmarks.alpha            everything that is missing; --minutes 4 ends earlier and keeps what it has
    python -m benchmarks.alpha --dry-run  the trainings that are due

`agreement` is the correlation of the local rewards of `right` with being right. Every arm is trained on equally many generated tokens, with a
constant learning rate that is chosen of three on the seed `TUNING`, as the best mean over the agreements `TUNED`: a user does not know
the agreement. Success is the probability that both roles are right about a phrase, read from the policies. Writes `results/alpha.json`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from benchmarks.advice import COMMON, ROLES, chances
from benchmarks.evidence import revision
from benchmarks.options import Options
from benchmarks.priming.duet import OUT
from pettingllms.envs.duet_v0 import raw_env as Duet
from pettingllms.evaluation.folder import digest
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.roles import parse_policies
from pettingllms.runs import versions
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig

RESULTS = Path(__file__).parent / "results" / "alpha.json"
AGREEMENTS = (-1.0, -0.5, 0.0, 0.5, 1.0)
TUNED = (-0.5, 0.5)
RATES = (2e-3, 5e-3, 1e-2)
TUNING, SEEDS = 100, (0, 1, 2)
TOKENS = 80_000
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


def table(runs: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Arm -> agreement -> success with each seed."""
    return {
        arm: {
            f"{at:g}": [
                runs[Cell(arm, at, chosen_rate(runs, arm), seed).name]["both"] for seed in SEEDS
            ]
            for at in AGREEMENTS
        }
        for arm in ARMS
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Trains what is missing, writes."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, default=OUT, help="what benchmarks.priming.duet wrote")
    parser.add_argument("--minutes", type=float, default=90.0, help="begin no run after so long")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="generated tokens of a training")
    parser.add_argument("--dry-run", action="store_true", help="print the trainings that are due")
    options = parser.parse_args(argv)
    result = json.loads(options.out.read_text()) if options.out.exists() else {"runs": {}}
    runs = result["runs"]
    if options.dry_run:
        due = [cell.name for cell in cells(runs) if cell.name not in runs]
        print("\n".join([*due, f"{len(due)} trainings of this stage"]))
        return
    if not options.base.is_dir():
        parser.error(f"no base in {options.base}; python -m benchmarks.priming.duet makes it")
    torch.set_num_threads(1)
    facts = {"versions": versions(), "revision": revision(), "base": digest(options.base)}
    result |= {**facts, "settings": dict(COMMON) | {"tokens": options.tokens, "rates": RATES}}
    until = time.monotonic() + 60 * options.minutes
    while missing := [cell for cell in cells(runs) if cell.name not in runs]:
        if time.monotonic() > until:
            print(f"{len(missing)} runs of this stage are missing; run again", flush=True)
            return
        cell = missing[0]
        run = runs[cell.name] = train(options.base, cell, options.tokens)
        run["revision"] = facts["revision"]
        print(cell.name, run["both"], run["roles"], run["cpu_s"], flush=True)
        options.out.write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")
    result["table"] = table(runs)
    result["rates"] = {arm: chosen_rate(runs, arm) for arm in ARMS}
    options.out.write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")
    print(json.dumps(result["table"]))


if __name__ == "__main__":
    main()
