"""The same training through TRL's `GRPOTrainer` and through ours: time, memory and success.

    python -m benchmarks.peers [--dry-run] [--env coding] [--seeds 0 1 2] [--tokens 30000]

One agent, one turn, K replies compared: all that both can do. Both start from one adapter on the
embedded model and play the same tasks in the same order, for the same rewards, with the settings
of one `ATGRPOConfig`, until they have generated `--tokens` tokens; in both the learning rate
follows the tokens. Each run has a process of its own, with one thread; finished runs are not
repeated. Writes `results/peers.json`, a picture beside it, and one sentence.

Time is that of the process on the CPU, and that on the wall. Sampling is TRL's `_generate` and our
`_sample`, from prompts to decoded replies. Scoring is TRL's `_calculate_rewards`, and the rest of
our `rollout`; programs in the sandbox have processes of their own and are not in the CPU time.
Updating is the rest of a step, from the end of the one before to its own; TRL computes all replies
there, ours none of a group that earned the same, and equal ones once. Peak memory is `VmHWM`
at the end of training (`ru_maxrss` would count the parent, too). Adapters are put aside during
training and play held-out tasks after it, outside all of these figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers_record import Record
from benchmarks.peers_report import TITLES, draw, sentence
from pettingllms.policies.policy_set import PolicySet
from pettingllms.runs import versions
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.episodes import AnyEnv

HERE = Path(__file__).parent


def ours(config: ATGRPOConfig, env: AnyEnv, policies: PolicySet, every: int) -> Record:
    """Trains with this package's trainer."""
    from pettingllms.trainers.at_grpo import ATGRPOTrainer
    from pettingllms.trees import success_of

    trainer, (policy,) = ATGRPOTrainer(config, env, policies), policies.names
    record = Record(config.max_tokens or 0, every, lambda: policies.state(policy))
    record.meter.wrap(trainer, "_sample", "sampling")
    record.meter.wrap(trainer, "rollout", "rollout")
    while trainer.step < config.max_steps:
        groups, row = trainer.train_step()
        rate = trainer.schedulers[policy].get_last_lr()[0]
        if record.step(int(row["num_tokens"]), success_of(groups) or 0.0, rate):
            break
    spent = record.meter.spent
    spent["scoring"] = [
        all_s - own for all_s, own in zip(spent.pop("rollout"), spent["sampling"], strict=True)
    ]
    return record


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run, in this process: training, then held-out tasks."""
    import torch
    from transformers.utils import logging

    from benchmarks.peers_trl import theirs
    from pettingllms.assembly import build_policies, make_env
    from pettingllms.evaluate import evaluate, held_out, roles_of

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    config = settings(name, options)
    env = make_env(config, "train", embedded=True)
    (role,) = roles_of(env)
    policies = build_policies(config, {role: role})
    if name.startswith("trl"):
        record = theirs(config, env, policies, options.trl_rows, options.every)
    else:
        record = ours(config, env, policies, options.every)

    def success(split: str, step: int, tasks: int) -> Any:
        policies.load_state(role, record.states[step])
        games = make_env(config, split, embedded=True)
        chosen, most = held_out(games, split, tasks), config.max_completion_length
        return evaluate(games, policies, tasks=chosen, max_new_tokens=most).scores["success"]

    # Training may also have ended at --max-steps.
    record.states.setdefault(record.rows[-1]["step"], record.state())
    for step in record.states:
        record.rows[step]["validation"] = success("val", step, options.tasks // 2)[0]
    spent = {part: record.meter.spent[part] for part in ("training", "sampling", "scoring")}
    spent["updating"] = [
        step - sample - score for step, sample, score in zip(*spent.values(), strict=True)
    ]
    return {
        "settings": wanted(name, options),
        "tokens": record.rows[-1]["tokens"],
        "start_mib": record.start_mib,
        "peak_mib": record.peak_mib,
        **{f"{part}_seconds": wall for part, (wall, _) in spent.items()},
        **{f"{part}_cpu_seconds": cpu for part, (_, cpu) in spent.items()},
        "test": success("test", record.rows[-1]["step"], options.tasks),
        "curve": record.rows,
    }


def settings(name: str, options: argparse.Namespace) -> ATGRPOConfig:
    """Of a run: what both trainers follow."""
    config = ATGRPOConfig(
        env=options.env,
        env_args=json.dumps({"agents": "single", "max_turns": 1}),
        estimator="grpo",
        seed=int(name.partition("-")[2]),
        max_tokens=options.tokens,
        max_steps=options.max_steps,
        tokens_per_batch=options.tokens_per_batch,
    )
    return resolve(config, embedded=True)


def wanted(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All that a run follows from, so that a run with other settings is not taken for it."""
    own = {key: getattr(options, key) for key in ("every", "tasks")}
    own |= {"trl_rows": options.trl_rows} if name.startswith("trl") else {}
    return {**dataclasses.asdict(settings(name, options)), **own}


def arguments() -> argparse.Namespace:
    """The command line; the sizes of the micro-batches are the fastest of those tried for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="coding", help="one that takes agents='single'")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=30_000, help="to generate in a run")
    parser.add_argument("--max-steps", type=int, default=300, help="at most, and of the schedule")
    parser.add_argument("--every", type=int, default=5_000, help="tokens between validations")
    parser.add_argument("--tasks", type=int, default=100, help="of the test; a validation has half")
    parser.add_argument("--level", type=float, default=0.8, help="success to be reached")
    parser.add_argument("--trl-rows", type=int, default=16, help="of TRL's micro-batches")
    parser.add_argument("--tokens-per-batch", type=int, default=1024, help="of our micro-batches")
    parser.add_argument("--out", type=Path, default=HERE / "out" / "peers", help="finished runs")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "peers.json")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # one run, in this process
    return parser.parse_args()


def main() -> None:
    """Run what is missing, in turns; write the results."""
    options = arguments()
    if options.only:
        found = json.dumps(run(options.only, options))
        kept(options.only, options).write_text(found, encoding="utf-8")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    runs = {}
    for turn, seed in enumerate(options.seeds):
        for trainer in list(TITLES)[:: -1 if turn % 2 else 1]:
            name = f"{trainer}-{seed}"
            print(f"{name}: {'to do' if finished(name, options) is None else 'done'}", flush=True)
            if finished(name, options) is None and not options.dry_run:
                command = [sys.executable, "-m", "benchmarks.peers", *sys.argv[1:], "--only", name]
                subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            runs[name] = finished(name, options)
    config = wanted(f"trl-{options.seeds[0]}", options) | {"level": options.level}
    config["seed"] = options.seeds
    if options.dry_run:
        print(json.dumps(config, indent=1))
        return
    results = {"config": config, "versions": versions(), "runs": runs}
    options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(results, options.json.with_suffix(".png"))
    print(sentence(results))


def kept(name: str, options: argparse.Namespace) -> Path:
    """Where a finished run is."""
    return Path(options.out, f"{options.env}-{name}.json")


def finished(name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """The results of a run, if it has been made with these settings."""
    path = kept(name, options)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"settings": None}
    had = found.pop("settings")
    # A setting that the package has got since then had no effect then.
    same = had and all(had.get(key, value) == value for key, value in wanted(name, options).items())
    return found if same else None


if __name__ == "__main__":
    main()
