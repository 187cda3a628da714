"""`Lab`: trains and plays what the scripts of the paper's tables ask for, unless that was done before.

Every training is `pettingllms-train`, every evaluation `pettingllms-eval`, each in a process of its own; what is
under `benchmarks/out/paper/` is not repeated, and what was stopped goes on. Scripts that need the same training share it.
All trainings that are compared generate the same number of tokens (`--tokens`; the last step may overshoot), and their
learning rates fall over these tokens. Then each team plays the same test tasks, one sampled reply a turn.

Options that a script does not know go to `pettingllms-train`: `--model Qwen/Qwen3-1.7B --tokens 20000000`
makes the same table of a real model.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.evidence import Record
from pettingllms.evaluate.folder import read_games
from pettingllms.evaluate.games import scores_by_task
from pettingllms.runs import versions

HERE = Path(__file__).parent
TOKENS = {
    "coding": 150_000,
    "math": 120_000,
    "sudoku": 120_000,
    "sokoban": 140_000,
    "plan_path": 140_000,
}
"""Generated tokens of a training of the embedded model: a fifth of what its defaults take, where methods still differ."""
ROLES = {
    "coding": ("coder", "tester"),
    "math": ("tool", "reasoner"),
    **dict.fromkeys(("sudoku", "sokoban", "plan_path"), ("tool", "planner")),
}
"""Of each environment's team of two, in turn order."""
VALIDATION = {"eval_tasks": 60, "eval_steps": 5}


class Wanted(NamedTuple):
    """One arm in one environment."""

    env: str
    arm: str
    settings: Mapping[str, Any] | None = None
    """Of the training; None where the base model plays as it is."""
    words: tuple[str, ...] = ()
    """More words for `pettingllms-eval`."""
    team: str | None = None
    """The team of the evaluation that counts, where it has several."""
    combine: tuple[Mapping[str, Any], ...] = ()
    """Instead of `settings`: trainings of single roles, whose adapters play together."""


class Lab:
    """Trains and plays, once; `benchmarks/out/paper/` is its memory."""

    def __init__(self, description: str | None, envs: Sequence[str]) -> None:
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--envs", nargs="+", default=list(envs), choices=sorted(TOKENS))
        parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
        parser.add_argument("--tokens", type=int, help="of each training; default: by environment")
        parser.add_argument("--tasks", type=int, default=200, help="test tasks")
        parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
        parser.add_argument("--model", help="a Hugging Face model; default: the embedded one")
        parser.add_argument("--name", help="of the result; default: that of the script")
        parser.add_argument("--dry-run", action="store_true", help="say what would be done")
        self.options, self.extra = parser.parse_known_args()
        if self.options.model:
            self.extra += ["--model", self.options.model]
        self.name: str = self.options.name or Path(sys.argv[0]).stem
        self._locks: dict[Path, threading.Lock] = defaultdict(threading.Lock)

    @property
    def envs(self) -> list[str]:
        """Which environments are asked for."""
        return list(self.options.envs)

    # ------------------------------------------------------------------------------ what is done

    def collect(self, wanted: Sequence[Wanted]) -> list[Record]:
        """The records of all arms and seeds."""
        work = [(each, seed) for each in wanted for seed in self.options.seeds]
        if self.options.dry_run:
            for each, seed in work:
                print(each.env, each.arm, f"seed {seed}", *self._plan(each, seed))
            sys.exit(0)
        started, done = time.monotonic(), 0

        def one(item: tuple[Wanted, int]) -> Record:
            nonlocal done
            record = self._record(*item)
            done += 1
            each, seed = item
            minutes = (time.monotonic() - started) / 60
            print(
                f"[{done}/{len(work)}, {minutes:.0f} min] {each.env}, {each.arm}, seed {seed}: "
                f"{record['scores']['success']:.2f}",
                flush=True,
            )
            return record

        with ThreadPoolExecutor(self.options.jobs) as pool:
            return list(pool.map(one, work))

    def _plan(self, each: Wanted, seed: int) -> list[str]:
        trainings = each.combine or ([] if each.settings is None else [each.settings])
        return [str(self._folder(each.env, seed, each_one)) for each_one in trainings]

    def _record(self, each: Wanted, seed: int) -> Record:
        trained = [self._train(each.env, seed, settings) for settings in each.combine]
        if each.settings is not None:
            trained = [self._train(each.env, seed, each.settings)]
        adapters = self._combined(each, trained) if each.combine else next(iter(trained), None)
        played = self._play(each, seed, adapters)
        record = {"env": each.env, "arm": each.arm, "seed": seed, **played}
        if trained:
            record |= _training(trained)
        return record

    def _train(self, env: str, seed: int, settings: Mapping[str, Any]) -> Path:
        """The run folder of a training, which is done unless it was."""
        folder = self._folder(env, seed, settings)
        with self._locks[folder]:
            if (folder / "summary.json").exists():
                return folder
            words = ["--resume", str(folder)]
            if not (folder / "config.yaml").exists():
                given = {"max_tokens": self.tokens(env)} | VALIDATION | dict(settings)
                words = ["--env", env, "--seed", str(seed), "--output-dir", str(folder)]
                for name, value in given.items():
                    text = json.dumps(value) if isinstance(value, Mapping) else str(value)
                    words += [f"--{name.replace('_', '-')}", text]
                words += self.extra
            self._run(["pettingllms.cli.train", *words], folder.with_suffix(".log"))
        return folder

    def _play(self, each: Wanted, seed: int, adapters: Path | None) -> Record:
        """Scores on the test tasks, and which of them were solved."""
        asked = ["--env", each.env, "--limit", str(self.options.tasks), "--seed", str(seed)]
        if adapters is not None:
            asked += ["--adapters", str(adapters), "--no-base"]
        elif self.options.model:
            asked += ["--model", self.options.model]
        if each.combine:
            asked += ["--policies", "per-role"]
        asked += each.words
        slug = _slug("-".join(["eval", str(self.options.tasks), *each.words]))
        parent = adapters or HERE / "out" / "paper" / each.env / f"base-{self._model()}-{seed}"
        out = parent / slug
        with self._locks[out]:
            if not (out / "results.json").exists():
                self._run(
                    ["pettingllms.cli.evaluate", *asked, "--out", str(out)], out.with_suffix(".log")
                )
            games = read_games(out)
        chosen = games[each.team] if each.team else next(iter(games.values()))
        tasks = scores_by_task(chosen)
        names = sorted({name for scores in tasks.values() for name in scores})
        means = {
            name: float(np.mean([scores[name] for scores in tasks.values() if name in scores]))
            for name in names
        }
        return {
            "scores": {name: round(mean, 5) for name, mean in means.items()},
            "tasks": "".join(f"{scores['success']:.0f}" for scores in tasks.values()),
        }

    def _combined(self, each: Wanted, trained: Sequence[Path]) -> Path:
        """A folder with the adapter of each role from the training that trained it."""
        parts = {
            str(settings["train_roles"]): path
            for settings, path in zip(each.combine, trained, strict=True)
        }
        folder = trained[0].with_name(f"{trained[0].name}-combined")
        folder.mkdir(exist_ok=True)
        for role, path in parts.items():
            if not (folder / role).exists():
                (folder / role).symlink_to(path / "adapters" / role)
        return folder

    def _run(self, words: Sequence[str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            print("python -m", shlex.join(words), file=file, flush=True)
            ended = subprocess.run([sys.executable, "-m", *words], stdout=file, stderr=file)
        if ended.returncode:
            raise SystemExit(f"failed: {shlex.join(words)}\n{log.read_text()[-2000:]}\nlog: {log}")

    def _folder(self, env: str, seed: int, settings: Mapping[str, Any]) -> Path:
        tokens = settings.get("max_tokens", self.tokens(env))
        named = {name: value for name, value in settings.items() if name != "max_tokens"}
        parts = [f"{name}={json.dumps(value)}" for name, value in named.items()]
        slug = _slug("-".join([str(tokens), *parts, *self.extra]))
        return HERE / "out" / "paper" / env / f"{slug}-s{seed}"

    def tokens(self, env: str) -> int:
        """The budget of a training in this environment."""
        return int(self.options.tokens or TOKENS[env])

    def _model(self) -> str:
        return _slug(self.options.model or "embedded")

    # -------------------------------------------------------------------------- what is published

    def publish(
        self,
        wanted: Sequence[Wanted],
        verdict_of: Callable[[Sequence[Record]], str],
        draw: Callable[[Sequence[Record], Path], None],
    ) -> None:
        """Does what is wanted; writes `results/<name>.json` and `.png`, and prints the verdict."""
        records = self.collect(wanted)
        verdict = verdict_of(records)
        path = HERE / "results" / f"{self.name}.json"
        result = {
            "settings": {
                "seeds": self.options.seeds,
                "tasks": self.options.tasks,
                "tokens": {env: self.tokens(env) for env in self.envs},
                "model": self.options.model or "embedded",
                "extra": self.extra,
            },
            "versions": versions(),
            "verdict": verdict,
            "runs": records,
        }
        text = re.sub(r"\n {4,}", " ", json.dumps(result, indent=1))
        path.write_text(text.replace(f"{HERE.parent}/", "") + "\n", encoding="utf-8")
        draw(records, path.with_suffix(".png"))
        print(f"\n{verdict}\n\nwrote {path} and {path.with_suffix('.png')}")


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
