"""Do gradients of the first tenth of a run tell whether roles should share their policy? `duet`, with the embedded architecture.

    python -m benchmarks.priming.duet      the base: the form of replies, and no right answer
    python -m benchmarks.advice            everything that is missing; --minutes 4 ends earlier and keeps what it has
    python -m benchmarks.advice --dry-run  the trainings that are due

Every setting (`rho`, `q`, rank of the adapters, `mass`) is trained with one shared policy and with a policy for each role, on equally many
generated tokens, with a constant learning rate that is chosen of six on the seed `TUNING` for each arm and rank. Success is the share of right decisions, read from
the policies' probabilities after a tenth and a third of the tokens and at the end. The first tenth of the shared run, at least eight steps, and its first third give the
signals: G, what it predicts, the plain cosine of gradients; the race is the difference of both arms after a tenth. Writes `results/advice.json`.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import torch
from matplotlib import pyplot

from benchmarks.cells import options_on, run_missing, write
from benchmarks.evidence import Table
from benchmarks.priming.duet import OUT
from pettingllms.data.rows import digest
from pettingllms.envs.duet_v0 import DuetState, best_decisions
from pettingllms.envs.duet_v0 import raw_env as Duet
from pettingllms.names import parse_policies
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.trainers.advice import BLOCKS, Sums
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.callbacks import Callback
from pettingllms.trainers.config import ATGRPOConfig

RESULTS = Path(__file__).parent / "results" / "advice.json"
PICTURE = Path(__file__).parents[1] / "docs" / "advice.png"
ROLES = ("left", "right")
SHARED, APART = "shared", "per-role"
RHOS, QS, RANKS, MASSES = (0.0, 0.5, 1.0), (0.0, 0.5, 1.0), (2, 16), (1, 3)
RATES = (5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2)
TUNING, SEEDS = 100, (0, 1, 2)
TUNED = ((0.5, 0.0), (0.5, 1.0))
"""The `rho` and `q` for which rates are chosen, with equal shares of the tokens."""
TOKENS = 80_000
READ_AT = {"tenth": 0.1, "third": 1 / 3, "end": 1.0}
"""Reading -> share of the tokens."""
COMMON: Mapping[str, Any] = {
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "max_completion_length": 3,
    "tokens_per_batch": 16_384,
    "gradient_checkpointing": False,
    "scoring_threads": 1,
    "max_steps": 100_000,
    "num_generations": 8,
    "tasks_per_step": 24,
    "num_iterations": 1,
    "silent_groups": "drop",
    "temperature": 1.0,
}


class Setting(NamedTuple):
    """The dials of a comparison."""

    rho: float
    q: float
    rank: int
    mass: int

    @property
    def name(self) -> str:
        """Names it in the results."""
        return f"rho {self.rho:g}, q {self.q:g}, rank {self.rank}, mass {self.mass}"


SETTINGS = tuple(Setting(*dials) for dials in product(RHOS, QS, RANKS, MASSES))


class Cell(NamedTuple):
    """A training."""

    setting: Setting
    arm: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Names it in the results."""
        return f"{self.setting.name}/{self.arm}/{self.rate:g}/{self.seed}"


class Watch(Callback):
    """Keeps what the gradients of the first part of a shared run say."""

    wants_gradients = True

    def __init__(self, roles: Sequence[str]) -> None:
        self.roles, self.sums, self.plain = roles, Sums(roles), list[float]()

    def on_gradients(
        self, trainer: ATGRPO, policy: str, gradients: Mapping[str, Any], samples: Sequence[Any]
    ) -> None:
        """Adds a step."""
        del trainer, policy
        self.sums.add(gradients, samples)
        if len(gradients) == len(self.roles) == 2:
            left, right = (gradients[role] for role in self.roles)
            cosine = torch.cosine_similarity(left, right, dim=0)
            self.plain.append(cosine.item())

    def signals(self) -> dict[str, Any]:
        """What the steps so far say."""
        reading = self.sums.read()
        plain = statistics.mean(self.plain) if self.plain else 0.0
        return reading.record() | {"error": reading.error, "plain": plain}


@torch.no_grad()
def chances(policies: PolicySet, env: Duet) -> dict[str, torch.Tensor]:
    """The probability that a role's reply is right, by role, for each phrase."""
    tokenizer, by_role = policies.chat.tokenizer, {}
    for role, right in env.right.items():
        model = policies.sampling_model(policies.policy_for(role))
        by_role[role] = torch.zeros(len(right))
        for named, weight in ((True, 1 - env.q), (False, env.q)):
            if not weight:
                continue
            rows, places = list[list[int]](), list[int]()
            for number, answer in enumerate(right):
                state = DuetState((number,), (named,), named)
                ids = list(policies.prompt_ids(role, env._text(state, f"{role}_0")))
                reply = tokenizer(env.answers[answer], add_special_tokens=False)["input_ids"]
                rows.append([*ids, *reply, tokenizer.eos_token_id])
                places.append(len(ids))
            width = max(map(len, rows))
            inputs = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
            logp = model(inputs).logits.float().log_softmax(-1)
            right_ones = [
                sum(logp[n, at - 1, row[at]].item() for at in range(places[n], len(row)))
                for n, row in enumerate(rows)
            ]
            by_role[role] += weight * torch.tensor(right_ones).exp()
    return by_role


def decisions(policies: PolicySet, env: Duet) -> float:
    """The probability of a right decision, the mean of both roles over phrases and prompts."""
    by_role = chances(policies, env)
    return sum(chance.mean().item() for chance in by_role.values()) / len(ROLES)


def train(base: Path, cell: Cell, tokens: int = TOKENS) -> dict[str, Any]:
    """Trains a cell; returns success at each reading, and for a shared policy the signals."""
    started, dials = time.process_time(), cell.setting
    env = Duet(rho=dials.rho, q=dials.q, mass=dials.mass, key=cell.seed, prompt="compact")
    config = ATGRPOConfig(
        env="duet",
        model=str(base),
        policies=cell.arm,
        seed=cell.seed,
        learning_rate=cell.rate,
        lora_r=dials.rank,
        lora_alpha=2 * dials.rank,
        **COMMON,
    )
    policies = load_policies(
        base,
        parse_policies(cell.arm, ROLES),
        seed=cell.seed,
        lora_r=dials.rank,
        lora_alpha=2 * dials.rank,
    )
    watch = Watch(ROLES)
    trainer = ATGRPO(config, env, policies, callbacks=[watch] if cell.arm == SHARED else [])
    readings, signals = {"start": round(decisions(policies, env), 4)}, dict[str, Any]()
    for name, share in READ_AT.items():
        while trainer.tokens < share * tokens:
            trainer.train_step()
        readings[name] = round(decisions(policies, env), 4)
        if cell.arm == SHARED and name != "end":
            while trainer.step < BLOCKS:  # as `--advise` does
                trainer.train_step()
            signals[name] = watch.signals()
        # Gradients of the rest are not read, as `--advise` does not read them.
        watch.wants_gradients = name == "tenth"
    result: dict[str, Any] = {"success": readings, "steps": trainer.step, "tokens": trainer.tokens}
    return result | {"signals": signals, "cpu_s": round(time.process_time() - started, 1)}


def cells(runs: Mapping[str, Any]) -> list[Cell]:
    """All trainings that are due now; those of the results follow from those of the tuning."""
    due = [
        Cell(setting, arm, rate, TUNING)
        for rank, arm, rate in product(RANKS, (SHARED, APART), RATES)
        for setting in tuning(rank)
    ]
    if any(cell.name not in runs for cell in due):
        return due
    return due + [
        Cell(setting, arm, chosen_rate(runs, setting.rank, arm), seed)
        for seed in SEEDS
        for setting, arm in product(SETTINGS, (SHARED, APART))
    ]


def tuning(rank: int) -> list[Setting]:
    """The settings for which the rates of a rank are chosen."""
    return [Setting(*dials, rank, mass=1) for dials in TUNED]


def chosen_rate(runs: Mapping[str, Any], rank: int, arm: str) -> float:
    """The rate with the best mean success on the tuning seed: one for all `rho`, `q`, and `mass`, because a user knows none."""

    def success(rate: float) -> float:
        cells = (Cell(setting, arm, rate, TUNING) for setting in tuning(rank))
        return statistics.mean(runs[cell.name]["success"]["end"] for cell in cells)

    return max(RATES, key=success)


class Row(NamedTuple):
    """A setting with one seed: what a policy for each role gained, and what predicted it."""

    setting: Setting
    seed: int
    gain: Mapping[str, float]
    """Reading -> success per role less success shared."""
    signals: Mapping[str, Any]


def rows(runs: Mapping[str, Any], when: str = "tenth") -> list[Row]:
    """The results, of all cells that are there in both arms; signals are those of a reading."""
    found = []
    for setting, seed in product(SETTINGS, SEEDS):
        apart, shared = (
            runs.get(Cell(setting, arm, chosen_rate(runs, setting.rank, arm), seed).name)
            for arm in (APART, SHARED)
        )
        if apart is not None and shared is not None:
            gain = {at: apart["success"][at] - shared["success"][at] for at in READ_AT}
            found.append(Row(setting, seed, gain, shared["signals"][when]))
    return found


SIGNALS: Mapping[str, Callable[[Row], float]] = {
    "expected difference": lambda row: row.signals["expected"],
    "G": lambda row: row.signals["G"],
    "minus the corrected cosine": lambda row: -(row.signals["cosines"]["left, right"] or [0.0])[0],
    "minus the plain cosine": lambda row: -row.signals["plain"],
    "race": lambda row: row.gain["tenth"],
    "always shared": lambda _: -1.0,
    "always per role": lambda _: 1.0,
}
"""Name -> what a row's run says; above 0 it says per role."""


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Correlation of ranks, with equal values at their mean rank; None without any variance."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [
            sum(other < value for other in values) + sum(other == value for other in values) / 2
            for value in values
        ]

    if len({*x}) < 2 or len({*y}) < 2:
        return None
    return statistics.correlation(ranks(x), ranks(y))


def interval(values: Sequence[Any], score: Callable[[Sequence[Any]], float | None]) -> list[float]:
    """95 % of a bootstrap over `values`."""
    rng = random.Random(0)
    draws = (score(rng.choices(values, k=len(values))) for _ in range(1000))
    kept = sorted(draw for draw in draws if draw is not None)
    return [kept[int(0.025 * len(kept))], kept[int(0.975 * len(kept))]]


def judged(found: Sequence[Row], at: str = "end") -> dict[str, Any]:
    """How well each signal tells what happens until a reading.

    Returns:
        By signal: the share of runs whose sign is right, success lost by following it, Spearman's correlation over settings with its
        interval; how often each recommendation was right; the mean error of the expected difference.
    """
    by_setting: dict[Setting, list[Row]] = {}
    for row in found:
        by_setting.setdefault(row.setting, []).append(row)
    gains = {
        setting: statistics.mean(row.gain[at] for row in several)
        for setting, several in by_setting.items()
    }
    table: dict[str, Any] = {}
    for name, signal in SIGNALS.items():
        says = [signal(row) > 0 for row in found]
        truths = [gains[row.setting] for row in found]
        wrong = [
            abs(gain) if (gain > 0) != apart else 0.0
            for gain, apart in zip(truths, says, strict=True)
        ]
        points = [
            (statistics.mean(map(signal, several)), gains[setting])
            for setting, several in by_setting.items()
        ]
        rank = spearman(*zip(*points, strict=True))
        table[name] = {
            "sign_right": sum(not loss for loss in wrong) / len(wrong),
            "lost": statistics.mean(wrong),
            "spearman": rank,
            "interval": None
            if rank is None
            else interval(points, lambda drawn: spearman(*zip(*drawn, strict=True))),
        }
    spoken: dict[str, Any] = {}
    for name in ("per-role", "shared", "undecided"):
        gain = [gains[row.setting] for row in found if row.signals["recommendation"] == name]
        above = sum(value > 0 for value in gain)
        right = {"per-role": above, "shared": len(gain) - above}.get(name)
        mean = statistics.mean(gain) if gain else None
        spoken[name] = {"runs": len(gain), "right": right, "mean_gain": mean}
    middle = statistics.mean(gains.values())
    return {
        "settings": {setting.name: gains[setting] for setting in by_setting},
        "signals": table,
        "recommendations": spoken,
        "leave_one_out": left_out(by_setting, gains),
        "mean_error": statistics.mean(
            abs(row.signals["expected"] - gains[row.setting]) for row in found
        ),
        "mean_error_of_the_mean": statistics.mean(abs(gain - middle) for gain in gains.values()),
    }


def left_out(by_setting: Mapping[Setting, Sequence[Row]], gains: Mapping[Setting, float]) -> Any:
    """Fits gain = a + b G + c overlap + d G overlap without each setting; Spearman and mean error on those left out."""
    features = {
        setting: [1.0, surplus, overlap, surplus * overlap]
        for setting, several in by_setting.items()
        for surplus in [statistics.mean(row.signals["G"] for row in several)]
        for overlap in [statistics.mean(row.signals["overlap"] for row in several)]
    }
    points = []
    for setting, here in features.items():
        others = [other for other in features if other != setting]
        matrix = torch.tensor([features[other] for other in others], dtype=torch.float64)
        truth = torch.tensor([gains[other] for other in others], dtype=torch.float64)
        fit = torch.linalg.lstsq(matrix, truth[:, None], driver="gelsd").solution[:, 0]
        points.append((float(torch.tensor(here, dtype=torch.float64) @ fit), gains[setting]))
    return {
        "spearman": spearman(*zip(*points, strict=True)),
        "mean_error": statistics.mean(abs(guess - gain) for guess, gain in points),
    }


def table(result: Mapping[str, Any]) -> Table:
    """Success of a policy for each role less that of a shared one at the end, the mean of the seeds, by setting."""
    by_setting: dict[Setting, list[float]] = {}
    for row in rows(result["runs"]):
        by_setting.setdefault(row.setting, []).append(row.gain["end"])
    lines = []
    for mass, rank in product(MASSES, RANKS):
        cells = [by_setting[Setting(rho, q, rank, mass)] for q, rho in product(QS, RHOS)]
        name = f"rank {rank}" + (f", {mass} phrases of `left`" if mass > 1 else "")
        lines.append([name, *(f"{statistics.mean(gains):+.2f}" for gains in cells)])
    return ["`rho`, `q`", *(f"{rho:g}, {q:g}" for q, rho in product(QS, RHOS))], lines


def signals(result: Mapping[str, Any]) -> Table:
    """What each signal of the first tenth, and of the first third, tells of the end."""
    lines, when = [], ("tenth for end", "third for end")
    tenth, third = (result["judged"][name] for name in when)
    for name, judgement in tenth["signals"].items():
        of_third = third["signals"][name]
        rank = "" if judgement["spearman"] is None else f"{judgement['spearman']:+.2f}"
        if judgement["interval"]:
            rank += " [{:+.2f}, {:+.2f}]".format(*judgement["interval"])
        numbers = (judgement["sign_right"], judgement["lost"])
        lines.append([name, *(f"{number:.2f}" for number in numbers), rank])
        lines[-1].append(f"{of_third['sign_right']:.2f}")
    return [
        "signal after a tenth",
        "right sign",
        "success lost",
        "rank correlation",
        "right sign after a third",
    ], lines


def draw(result: Mapping[str, Any], file: Path) -> None:
    """Draws for each setting the expected and the measured difference at the end, by share of prompts without the role's name."""
    # The non-interactive backend, chosen before the first figure.
    matplotlib.use("agg")
    figure, axes = pyplot.subplots(figsize=(5, 3.6), layout="constrained")
    for q, marker in zip(QS, "o^s", strict=True):
        points = [row for row in rows(result["runs"]) if row.setting.q == q]
        across = [row.signals["expected"] for row in points]
        label = f"{1 - q:.0%} of prompts name their role"
        axes.scatter(across, [row.gain["end"] for row in points], marker=marker, label=label)
    axes.axhline(0, color="gray", linewidth=0.8)
    axes.axline((0, 0), slope=1, color="gray", linewidth=0.8, linestyle=":")
    axes.set_xlabel("expected after a tenth of the shared run")
    axes.set_ylabel("measured: per role less shared")
    axes.set_title("Share of right decisions at the end", fontsize=10)
    axes.legend(fontsize=8)
    figure.savefig(file, dpi=110)


def trainings(
    argv: Sequence[str] | None,
    about: str,
    results: Path,
    cells: Callable[[Mapping[str, Any]], Sequence[Any]],
    train: Callable[[Path, Any, int], Mapping[str, Any]],
) -> tuple[Path, dict[str, Any]]:
    """The command line of an experiment on `duet`: trains the cells that its file lacks.

    Args:
        argv: the command line.
        about: says what it is.
        results: the file, unless another one is given.
        cells: all that can be named, by what is there.
        train: trains a cell on a base with so many tokens.

    Returns:
        The file and what is in it.

    Raises:
        SystemExit: something is missing, or was only listed.
    """
    options = options_on(OUT, "benchmarks.priming.duet", about, results, TOKENS, argv)
    facts: dict[str, Any] = {"settings": dict(COMMON) | {"tokens": options.tokens}}
    if options.base.is_dir():
        facts["base"] = digest(options.base)
    result = run_missing(
        options,
        lambda runs: [cell for cell in cells(runs) if cell.name not in runs],
        lambda cell: train(options.base, cell, options.tokens),
        facts,
        key="runs",
    )
    result["cpu_minutes"] = round(sum(run["cpu_s"] for run in result["runs"].values()) / 60, 1)
    return options.out, result


def main(argv: Sequence[str] | None = None) -> None:
    """Trains what is missing, judges, writes."""
    file, result = trainings(argv, __doc__.splitlines()[0], RESULTS, cells, train)
    result["settings"]["rates"] = RATES
    result |= {"tuning": TUNING, "seeds": SEEDS}
    # Signals of a third are read against the end only: what they are to foretell comes later.
    pairs = (("tenth", "third"), ("tenth", "end"), ("third", "end"))
    result["judged"] = {
        f"{when} for {at}": judged(found, at)
        for when, at in pairs
        if (found := rows(result["runs"], when))
    }
    result["bounds"] = {
        setting.name: best_decisions(setting.rho, setting.q, shared=True) for setting in SETTINGS
    }
    write(file, result)
    if file == RESULTS:
        draw(result, PICTURE)
    print(json.dumps(result["judged"], indent=1))


if __name__ == "__main__":
    main()
