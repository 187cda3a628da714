"""Runs an experiment on methods: trains and plays its arms, judges its claims.

    python -m benchmarks.paper methods [--envs coding math] [--seeds 0 1 2] [--jobs 2]
    python -m benchmarks.paper --list

`benchmarks.method_table` has the experiments; the claims of the AT-GRPO paper are judged by `benchmarks.claims`. Every training is `pettingllms-train`, every evaluation
`pettingllms-eval`, each in a process of its own. What is finished under `benchmarks/out/paper/` is
not repeated, what was interrupted is resumed, and experiments that need the same training share it.
`--arms` runs some of an experiment's arms; the published runs of the others stay as they are.
All trainings that are compared generate the same number of tokens (`--tokens`; the last step may
overshoot), and their learning rates decay over these tokens. Then each team plays the same test
tasks, one sampled completion a turn.

Unknown options are passed to `pettingllms-train`: `--model Qwen/Qwen3-1.7B --tokens 20000000`
makes the same table of a real model.
"""

from __future__ import annotations

import argparse
import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.evidence import Record, envs_of, solved_digits
from benchmarks.experiments import Arm, Experiment
from benchmarks.method_table import EXPERIMENTS
from benchmarks.options import Options
from benchmarks.warm import run as run_module
from pettingllms.errors import did_you_mean
from pettingllms.evaluation.folder import read_trajectories
from pettingllms.evaluation.scores import scores_by_task
from pettingllms.models import DEFAULT
from pettingllms.runs import versions

HERE = Path(__file__).parent
TOKENS = {
    "coding": 150_000,
    "math": 120_000,
    "sudoku": 120_000,
    "sokoban": 140_000,
    "plan_path": 140_000,
    "search": 100_000,
    "benchmarks.calling:env": 40_000,
}
"""Generated tokens of a training of the embedded model: a fifth of what its defaults take, where methods still differ."""
VALIDATION = {"eval_tasks": 60, "eval_steps": 5}


class Job(NamedTuple):
    """One arm in one environment with one seed."""

    env: str
    arm: Arm
    seed: int


class Lab:
    """Trains and plays; what is finished under `benchmarks/out/paper/` is not done again.

    Args:
        options: of the command line, see `parse`.
        extra: options that are passed to `pettingllms-train`.
    """

    def __init__(self, options: argparse.Namespace, extra: Sequence[str] = ()) -> None:
        self.options, self.extra = options, list(extra)
        if options.model:
            self.extra += ["--model", options.model]
        self._locks: dict[Path, threading.Lock] = defaultdict(threading.Lock)

    def run(self, jobs: Sequence[Job]) -> list[Record]:
        """The records of all jobs, in order."""
        started, done = time.monotonic(), 0

        def one(job: Job) -> Record:
            nonlocal done
            record = self._record(job)
            done += 1
            minutes = (time.monotonic() - started) / 60
            print(
                f"[{done}/{len(jobs)}, {minutes:.0f} min] {job.env}, {job.arm.name}, "
                f"seed {job.seed}: {record['scores']['success']:.2f}",
                flush=True,
            )
            return record

        with ThreadPoolExecutor(self.options.jobs) as pool:
            return list(pool.map(one, jobs))

    def trainings(self, job: Job) -> list[Path]:
        """The run folders that a job needs; none where the base model plays."""
        return [self.folder(job.env, job.seed, settings) for settings in self._settings(job)]

    def _settings(self, job: Job) -> list[dict[str, Any]]:
        """Settings of the trainings of a job, which together generate the tokens of one."""
        arm, tokens = job.arm, self.tokens(job.env)
        return [] if arm.settings is None else [{**arm.settings, "max_tokens": tokens}]

    def _record(self, job: Job) -> Record:
        trained = [self._train(job.env, job.seed, settings) for settings in self._settings(job)]
        adapters = next(iter(trained), None)
        record = {"env": job.env, "arm": job.arm.name, "seed": job.seed}
        record |= self._play(job, adapters)
        return record | (_training(trained) if trained else {})

    def _train(self, env: str, seed: int, settings: Mapping[str, Any]) -> Path:
        """The run folder of a training, which is run unless it is finished."""
        folder = self.folder(env, seed, settings)
        with self._locks[folder]:
            if (folder / "summary.json").exists():
                return folder
            words = ["--resume", str(folder)]
            if not (folder / "config.yaml").exists():
                options = VALIDATION | {"model": DEFAULT} | dict(settings)
                words = ["--env", env, "--seed", str(seed), "--output-dir", str(folder)]
                for name, value in options.items():
                    text = json.dumps(value) if isinstance(value, Mapping) else str(value)
                    words += [f"--{name.replace('_', '-')}", text]
                words += self.extra
            run_module(["pettingllms.cli.train", *words], folder.with_suffix(".log"))
        return folder

    def _play(self, job: Job, adapters: Path | None) -> Record:
        """Scores on the test tasks, and which of them were solved."""
        arm = job.arm
        asked = ["--env", job.env, "--limit", str(self.options.tasks), "--seed", str(job.seed)]
        if adapters is not None:
            asked += ["--adapters", str(adapters), "--no-base"]
        elif "--model" not in arm.options:
            asked += ["--model", self.options.model or DEFAULT]
        asked += arm.options
        slug = _slug("-".join(["eval", str(self.options.tasks), *arm.options]))
        model = _slug(self.options.model or DEFAULT)
        parent = adapters or HERE / "out" / "paper" / job.env / f"base-{model}-{job.seed}"
        out = parent / slug
        with self._locks[out]:
            if not (out / "results.json").exists():
                run_module(
                    ["pettingllms.cli.evaluate", *asked, "--out", str(out)], out.with_suffix(".log")
                )
            episodes = read_trajectories(out)
        chosen = next(iter(episodes.values()))
        tasks = scores_by_task(chosen)
        names = sorted({name for scores in tasks.values() for name in scores})
        means = {
            name: float(np.mean([scores[name] for scores in tasks.values() if name in scores]))
            for name in names
        }
        return {
            "scores": {name: round(mean, 5) for name, mean in means.items()},
            "tasks": solved_digits(chosen),
        }

    def folder(self, env: str, seed: int, settings: Mapping[str, Any]) -> Path:
        """Where a training is, from everything that it depends on."""
        tokens = settings["max_tokens"]
        named = {name: value for name, value in settings.items() if name != "max_tokens"}
        parts = [f"{name}={json.dumps(value)}" for name, value in named.items()]
        slug = _slug("-".join([str(tokens), *parts, *self.extra]))
        return HERE / "out" / "paper" / env / f"{slug}-s{seed}"

    def tokens(self, env: str) -> int:
        """The budget of a training in this environment."""
        return int(self.options.tokens or TOKENS[env])

    def kept(self, name: str, envs: Collection[str]) -> tuple[list[Record], dict[str, int]]:
        """The published runs that stay when these environments are published, and their tokens by environment.

        Raises:
            ValueError: other arms of an environment are published with another number of tokens.
        """
        path = HERE / "results" / f"{name}.json"
        old = json.loads(path.read_text()) if path.exists() else {"runs": []}
        arms = self.options.arms
        others = [
            run
            for run in old["runs"]
            if run["env"] not in envs or (arms and run["arm"] not in arms)
        ]
        before = {env: old["settings"]["tokens"][env] for env in envs_of(others)}
        for env in before.keys() & set(envs):
            if before[env] != self.tokens(env):
                raise ValueError(
                    f"{path.name} has arms of {env} with {before[env]} tokens, and these have "
                    f"{self.tokens(env)}: give --tokens {before[env]}, or run all arms again"
                )
        return others, before

    def publish(self, name: str, experiment: Experiment, records: Sequence[Record]) -> str:
        """Writes `results/<name>.json` and `.png`, with what is there of other environments and arms; returns the verdict.

        Raises:
            ValueError: as `kept`.
        """
        options, path = self.options, HERE / "results" / f"{name}.json"
        tokens = {env: self.tokens(env) for env in envs_of(records)}
        others, before = self.kept(name, tokens)
        if others:
            arms = {env: [arm.name for arm in experiment.arms(env)] for env in before | tokens}
            records = sorted(
                [*others, *records],
                key=lambda run: (run["env"], arms[run["env"]].index(run["arm"])),
            )
            tokens = before | tokens
        verdict = experiment.verdict(records)
        result = {
            "settings": {
                "seeds": options.seeds,
                "tasks": options.tasks,
                "tokens": tokens,
                "model": options.model or DEFAULT,
                "extra": self.extra,
            },
            "versions": versions(),
            "verdict": verdict,
            "runs": records,
        }
        text = re.sub(r"\n {4,}", " ", json.dumps(result, indent=1))
        path.write_text(text.replace(f"{HERE.parent}/", "") + "\n", encoding="utf-8")
        experiment.draw(records, path.with_suffix(".png"))
        print(f"\n{verdict}\n\nwrote {path} and {path.with_suffix('.png')}")
        return verdict


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=]+", "-", text).strip("-")


def _training(folders: Sequence[Path]) -> Record:
    """What the trainings of a team generated, took and showed, together."""
    rows = [
        json.loads(line)
        for folder in folders
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    steps = [row for row in rows if row["kind"] == "train"]
    late = steps[-max(1, len(steps) // 4) :]
    tokens, curve = 0.0, []
    for row in rows:
        if row["kind"] == "train":
            tokens += row["num_tokens"]
        elif row["when"] == "validation":
            first = {
                name.removeprefix("eval/"): round(value, 4)
                for name, value in row.items()
                if name == "eval/success" or name.endswith("/first_local_reward")
            }
            curve.append({"tokens": tokens, **first})
    norms = {
        name.removesuffix("/grad_norm"): [round(row[name], 4) for row in steps if name in row]
        for name in sorted({name for row in steps for name in row if name.endswith("/grad_norm")})
    }
    return {
        "config": (folders[0] / "config.yaml").read_text(),
        "tokens": sum(row["num_tokens"] for row in steps),
        "seconds": round(sum(row["time/step"] for row in steps), 1),
        "curve": curve,
        "grad_norm": norms,
        "late": {
            name: float(np.mean([row[name] for row in late if row.get(name) is not None]))
            for name in ("success", "turns", "num_tokens")
        },
    }


def parse(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Options of this command, and those of `pettingllms-train`."""
    parser = Options(__doc__)
    parser.add_argument("experiment", nargs="?", choices=EXPERIMENTS, help="see --list")
    parser.add_argument("--list", action="store_true", help="print the experiments")
    parser.add_argument("--envs", nargs="+", choices=sorted(TOKENS))
    parser.add_argument("--arms", nargs="+", default=[], help="these arms alone; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, help="of each training; default: by environment")
    parser.add_argument("--tasks", type=int, default=200, help="test tasks")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--model", help="a Hugging Face model; default: the embedded one")
    parser.add_argument("--name", help="of the result; default: that of the experiment")
    parser.add_argument("--dry-run", action="store_true", help="print the trainings; run nothing")
    options, extra = parser.parse_known_args(argv)
    if options.experiment is None and not options.list:
        parser.error("name an experiment, or --list them")
    return options, extra


def jobs_of(
    experiment: Experiment, envs: Sequence[str], arms: Sequence[str], seeds: Sequence[int]
) -> list[Job]:
    """What is to be run: every arm, or these, in every environment with every seed.

    Raises:
        ValueError: none of the environments has an arm of that name.
    """
    there = {env: experiment.arms(env) for env in envs}
    names = list(dict.fromkeys(arm.name for several in there.values() for arm in several))
    for name in arms:
        if name not in names:
            raise ValueError(f"no arm {name!r} here; {did_you_mean(name, names)}")
    return [
        Job(env, arm, seed)
        for env, several in there.items()
        for arm in several
        if not arms or arm.name in arms
        for seed in seeds
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing, and publishes."""
    options, extra = parse(argv)
    if options.list:
        for name, record in EXPERIMENTS.items():
            print(f"{name:22} {record.question}")
        return
    experiment, lab = EXPERIMENTS[options.experiment], Lab(options, extra)
    envs, name = options.envs or experiment.envs, options.name or options.experiment
    try:
        jobs = jobs_of(experiment, envs, options.arms, options.seeds)
        lab.kept(name, envs)  # now, and not only when all is trained
    except ValueError as error:
        raise SystemExit(str(error)) from error
    if options.dry_run:
        for job in jobs:
            print(job.env, job.arm.name, f"seed {job.seed}", *lab.trainings(job))
        return
    lab.publish(name, experiment, lab.run(jobs))


if __name__ == "__main__":
    main()
