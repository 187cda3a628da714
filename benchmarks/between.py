"""How much of what a task's completions earn lies between its prompts, and how much between completions of one prompt?

    python -m benchmarks.between
    python -m benchmarks.between --only signal   this ground; the others stay as they were

AT-GRPO compares completions of one prompt. One baseline for a whole task would do as well if all its prompts paid alike;
the more their mean rewards differ, the more a completion is credited for where it was written rather than for what it says.
Measured on trees as AT-GRPO's trainings in `benchmarks.claims` begin with them, before any update. Writes `results/between.json`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.claims.cells import Cell, trainer_of
from benchmarks.claims.experiments import AT_GRPO, SHORT, TUNING, Ground
from benchmarks.evidence import Table, revision
from benchmarks.options import Options
from pettingllms.data.rows import digest
from pettingllms.rollout.episode import tasks_of_step
from pettingllms.runs import versions
from pettingllms.trainers.metrics import Clock

RESULTS = Path(__file__).parent / "results" / "between.json"
STEPS = 8
"""Steps' worth of tasks on each ground."""


Prompt = tuple[str, Sequence[float]]
"""The role that is asked, and what each completion earns."""


class Parts(NamedTuple):
    """Where the variance of the rewards within a task lies."""

    between: float
    """Between the means of its prompts."""
    role: float
    """Of that, between the means of its roles."""
    within: float
    """Between completions of one prompt."""

    @property
    def share(self) -> float:
        """Of the variance, that between prompts; 0 without any."""
        whole = self.between + self.within
        return max(0.0, self.between) / whole if whole else 0.0


def parts_of(prompts: Mapping[str, Sequence[Prompt]]) -> Parts:
    """The mean over tasks of the parts of their variance.

    Means of a few completions differ by chance, too; what their spread within prompts lets expect of that is taken off
    the parts between (the analysis of variance), which may then be negative where prompts pay alike.

    Args:
        prompts: task -> its prompts, each with as many completions, two or more.
    """
    return Parts(
        *(float(mean) for mean in np.mean([_of_task(task) for task in prompts.values()], 0))
    )


def _of_task(prompts: Sequence[Prompt]) -> tuple[float, float, float]:
    rewards_PK = np.array([rewards for _, rewards in prompts])
    roles = [role for role, _ in prompts]
    count, completions = rewards_PK.shape
    within = float(rewards_PK.var(axis=1, ddof=1).mean())
    means_P = rewards_PK.mean(axis=1)
    # The variance of the mean of all; a part has as many of it as degrees of freedom.
    chance = within / completions / count
    kinds = sorted(set(roles))
    role_P = np.array([means_P[[other == role for other in roles]].mean() for role in roles])
    between = float(means_P.var()) - (count - 1) * chance
    return between, float(role_P.var()) - (len(kinds) - 1) * chance, within


def measured(name: str, ground: Ground) -> dict[str, Any]:
    """Plays the tasks of the first steps with the untrained team."""
    trainer = trainer_of(Cell(name, AT_GRPO, 1.0, TUNING[0]), ground, {})
    config = trainer.config
    prompts = defaultdict[str, list[Prompt]](list)
    silent = total = 0
    for step in range(STEPS):
        tasks = tasks_of_step(trainer.env, config.env, step, config.tasks_per_step, config.seed)
        trajectories = trainer.method.credit(trainer.rollout(tasks, Clock()))
        for group in (group for episode in trajectories for group in episode.groups):
            rewards = [candidate.reward for candidate in group.candidates]
            prompts[group.key.task].append((group.key.role, rewards))
            silent += max(rewards) - min(rewards) < 1e-9
            total += 1
    parts = parts_of(prompts)
    return {
        **{key: round(value, 6) for key, value in parts._asdict().items()},
        "share": round(parts.share, 4),
        "silent": round(silent / total, 4),
        "decisions": round(total / len(prompts), 2),
        "tasks": len(prompts),
        "model": digest(ground.model),
    }


def table(result: Any) -> Table:
    """A row for each ground, by the number of decisions."""
    rows = [
        [
            f"`{name}`",
            f"{row['decisions']:.1f}",
            f"{row['share']:.2f}",
            f"{max(0.0, row['role']) / (row['between'] + row['within']):.2f}",
            f"{row['silent']:.2f}",
        ]
        for name, row in sorted(result["grounds"].items(), key=lambda one: one[1]["decisions"])
    ]
    head = ["where", "decisions of an episode", "share of the variance between prompts"]
    return [*head, "of the variance, that between roles", "silent groups"], rows


def main() -> None:
    """Plays on grounds of `benchmarks.claims --medium`.

    Raises:
        SystemExit: a base is missing, so that the results would lose a ground.
    """
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SHORT, help="measure these grounds")
    names = parser.parse_args().only or list(SHORT)
    if lacking := [str(SHORT[name].model) for name in names if not SHORT[name].model.exists()]:
        raise SystemExit(f"no {', '.join(lacking)}: python -m benchmarks.priming.protocol makes it")
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "revision": revision(),
        "versions": versions(),
        "steps": STEPS,
        "grounds": {},
    }
    if RESULTS.exists():
        result["grounds"] = json.loads(RESULTS.read_text(encoding="utf-8"))["grounds"]
    for name in names:
        result["grounds"][name] = measured(name, SHORT[name])
        print(name, result["grounds"][name], flush=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
