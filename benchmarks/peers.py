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
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils import logging

from benchmarks.options import Options
from benchmarks.peers_report import TITLES, draw, sentence
from pettingllms.assembly import build_policies, make_env
from pettingllms.evaluation import evaluate, held_out, roles_of
from pettingllms.models import DEFAULT, EMBEDDED
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.episode import AnyEnv, Episode, score, tasks_of_step
from pettingllms.rollout.trajectory import success_rate
from pettingllms.runs import versions
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig, resolve
from pettingllms.types import Completion, Task

HERE = Path(__file__).parent
Adapter = dict[str, Any]
"""Weights by name."""


class Meter:
    """Wall and CPU seconds of the parts of training."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    @contextmanager
    def time(self, activity: str) -> Iterator[None]:
        """Adds the time of the block to `part`."""
        begun = self.now()
        yield
        self.add(activity, begun)

    def add(self, activity: str, begun: tuple[float, float]) -> None:
        """Adds the time since `begun` to `part`."""
        for which, (now, then) in enumerate(zip(self.now(), begun, strict=True)):
            self.spent[activity][which] += now - then

    def wrap(self, owner: object, method: str, activity: str) -> None:
        """Times a method of one object."""
        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.time(activity):
                return inner(*args, **kwargs)

        setattr(owner, method, timed)

    @staticmethod
    def now() -> tuple[float, float]:
        """Both clocks."""
        return time.perf_counter(), time.process_time()


class Progress:
    """The curve of a run, and the adapters along it."""

    def __init__(self, limit: int, every: int, state: Callable[[], Adapter]) -> None:
        self.meter, self.limit, self.every, self.state = Meter(), limit, every, state
        self.rows: list[dict[str, Any]] = [
            {"step": 0, "tokens": 0, "seconds": 0.0, "cpu_seconds": 0.0, "success": None}
        ]
        self.states = {0: state()}
        self.start_mib, self.peak_mib = memory("VmRSS"), 0.0
        self.begun = self.meter.now()

    def step(self, tokens: int, success: float, rate: float) -> bool:
        """Takes note of a finished step; whether that was the last."""
        self.meter.add("training", self.begun)
        last = self.rows[-1]
        seconds, cpu = self.meter.spent["training"]
        row = {"step": last["step"] + 1, "tokens": last["tokens"] + tokens}
        row |= {"seconds": seconds, "cpu_seconds": cpu, "success": success, "learning_rate": rate}
        self.rows.append(row)
        self.peak_mib, done = memory("VmHWM"), row["tokens"] >= self.limit
        if done or row["tokens"] // self.every > last["tokens"] // self.every:
            self.states[row["step"]] = self.state()
            print(f"  {row['tokens']:,} tokens, {cpu:.0f} CPU-s, {success:.2f}", flush=True)
        self.begun = self.meter.now()
        return done


def memory(field: str) -> float:
    """MiB of this process: `VmRSS` is what it has, `VmHWM` the most it had."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


# -------------------------------------------------------------------------------------- our trainer


def ours(config: ResolvedConfig, env: AnyEnv, policies: PolicySet, every: int) -> Progress:
    """Trains with this package's trainer."""
    trainer, (policy,) = ATGRPO(config, env, policies), policies.names
    record = Progress(config.max_tokens or 0, every, lambda: policies.state(policy))
    record.meter.wrap(trainer.policies, "sample", "sampling")
    record.meter.wrap(trainer, "rollout", "rollout")
    while trainer.step < config.max_steps:
        trajectories, row = trainer.train_step()
        rate = trainer.schedulers[policy].get_last_lr()[0]
        if record.step(int(row["num_tokens"]), success_rate(trajectories) or 0.0, rate):
            break
    spent = record.meter.spent
    spent["scoring"] = [
        all_s - sampling
        for all_s, sampling in zip(spent.pop("rollout"), spent["sampling"], strict=True)
    ]
    return record


# ------------------------------------------------------------------------------------ TRL's trainer


def theirs(
    config: ResolvedConfig,
    env: AnyEnv,
    policies: PolicySet,
    rows: int,
    every: int,
    *,
    paged: bool = False,
) -> Progress:
    """Trains with TRL's trainer, which starts from the same adapter."""
    # Not at the top: memory is compared, and the process of our run does not need TRL's trainer.
    from datasets import Dataset
    from trl.trainer.grpo_trainer import GRPOTrainer

    seeds, prompts = prompts_of(config, env)
    last: dict[str, float] = {}
    with ThreadPoolExecutor(config.scoring_threads) as pool, tempfile.TemporaryDirectory() as out:
        trainer: Any = GRPOTrainer(
            model=str(EMBEDDED),
            reward_funcs=reward_of(config, env, policies, pool, last),
            args=trl_settings(config, rows, out, paged=paged),
            train_dataset=Dataset.from_dict({"prompt": prompts, "task": seeds}),
            processing_class=AutoTokenizer.from_pretrained(EMBEDDED),
            peft_config=adapter_of(config),
        )
        set_peft_model_state_dict(trainer.model, policies.state(policies.names[0]))
        prompt_ids = [list(policies.chat.prompt_ids(prompt[0]["content"])) for prompt in prompts]
        if trainer._tokenize_prompts(prompts)[0] != prompt_ids:
            raise AssertionError("the prompts of the two have different tokens")

        def state() -> Adapter:
            tensors = get_peft_model_state_dict(trainer.model)
            return {name: tensor.detach().clone() for name, tensor in tensors.items()}

        record = Progress(config.max_tokens or 0, every, state)

        class Steps(TrainerCallback):
            def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                # As in pettingllms.trainers.budget: the schedule follows the tokens.
                share = (record.rows[-1]["tokens"] + last["tokens"]) / record.limit
                reached = int(config.max_steps * min(1.0, share))
                schedule = trainer.lr_scheduler
                schedule.last_epoch = max(schedule.last_epoch, reached - 1)

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - its names
                rate = trainer.lr_scheduler.get_last_lr()[0]
                ended = record.step(int(last["tokens"]), last["success"], rate)
                control.should_training_stop = control.should_training_stop or ended

            def on_train_begin(self, *_: Any, **__: Any) -> None:
                record.begun = record.meter.now()

        trainer.add_callback(Steps())
        trainer.remove_callback(PrinterCallback)
        record.meter.wrap(trainer, "_generate", "sampling")
        record.meter.wrap(trainer, "_calculate_rewards", "scoring")
        trainer.train()
    return record


def adapter_of(config: ResolvedConfig) -> LoraConfig:
    """The shape of the adapter that both trainers start from."""
    return LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        target_modules=config.lora_target_modules,
        task_type="CAUSAL_LM",
    )


def prompts_of(config: ResolvedConfig, env: AnyEnv) -> tuple[list[int], list[list[dict[str, str]]]]:
    """Task seeds and conversations of all steps, in the order in which our trainer plays them."""
    count = config.tasks_per_step
    tasks = [
        task
        for step in range(config.max_steps)
        for task in tasks_of_step(env, config.env, step, count, config.seed)
    ]
    texts = (Episode(env, task, 0).prompt() for task in tasks)
    return [task.seed for task in tasks], [[{"role": "user", "content": text}] for text in texts]


def reward_of(
    config: ResolvedConfig,
    env: AnyEnv,
    policies: PolicySet,
    pool: ThreadPoolExecutor,
    last: dict[str, float],
) -> Callable[..., list[float | None]]:
    """The environment's reward as TRL wants it; `last` receives the tokens and the success."""

    def reward(completion_ids: list[list[int]], task: list[int], **_: Any) -> list[float | None]:
        replies = [
            Completion((), tuple(ids), (), policies.chat.decode(ids), truncated=False, version=0)
            for ids in completion_ids
        ]
        starts = range(0, len(task), config.num_generations)
        games = [Episode(env, Task(str(task[at]), task[at]), 0) for at in starts]
        groups = [replies[at : at + config.num_generations] for at in starts]
        scored = [branch for branches in pool.map(score, games, groups) for branch in branches]
        last["tokens"] = sum(map(len, completion_ids))
        last["success"] = sum(bool(branch.result.info.get("success")) for branch in scored) / len(
            scored
        )
        return [branch.result.reward for branch in scored]

    return reward


def trl_settings(config: ResolvedConfig, rows: int, out: str, *, paged: bool = False) -> Any:
    """The same settings under TRL's names, and nothing that would cost time here."""
    from trl.trainer.grpo_config import GRPOConfig

    same = "num_generations max_completion_length max_steps temperature learning_rate loss_type"
    same += " lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 max_grad_norm"
    same += " scale_rewards epsilon epsilon_high beta num_iterations seed"
    return GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=config.tasks_per_step * config.num_generations // rows,
        shuffle_dataset=False,
        top_p=1.0,
        top_k=0,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
        bf16=False,
        use_cpu=True,
        use_transformers_continuous_batching=paged,
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        **{name: getattr(config, name) for name in same.split()},
    )


# ----------------------------------------------------------------------------------------- the runs


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run, in this process: training, then held-out tasks."""
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    config = settings(name, options)
    env = make_env(config, "train")
    (role,) = roles_of(env)
    policies = build_policies(config, {role: role})
    if name.startswith("trl"):
        record = theirs(
            config, env, policies, options.trl_rows, options.every, paged=options.trl_paged
        )
    else:
        record = ours(config, env, policies, options.every)

    def success(split: str, step: int, tasks: int) -> Any:
        policies.load_state(role, record.states[step])
        games = make_env(config, split)
        chosen, most = held_out(games, split, tasks), config.max_completion_length
        return evaluate(games, policies, tasks=chosen, max_new_tokens=most).scores["success"]

    # Training may also have ended at --max-steps.
    record.states.setdefault(record.rows[-1]["step"], record.state())
    for step in record.states:
        record.rows[step]["validation"] = success("val", step, options.tasks // 2)[0]
    spent = {
        activity: record.meter.spent[activity] for activity in ("training", "sampling", "scoring")
    }
    spent["updating"] = [
        step - sample - score for step, sample, score in zip(*spent.values(), strict=True)
    ]
    return {
        "settings": wanted(name, options),
        "tokens": record.rows[-1]["tokens"],
        "start_mib": record.start_mib,
        "peak_mib": record.peak_mib,
        **{f"{activity}_seconds": wall for activity, (wall, _) in spent.items()},
        **{f"{activity}_cpu_seconds": cpu for activity, (_, cpu) in spent.items()},
        "test": success("test", record.rows[-1]["step"], options.tasks),
        "curve": record.rows,
    }


def settings(name: str, options: argparse.Namespace) -> ResolvedConfig:
    """Of a run: what both trainers follow."""
    config = ATGRPOConfig(
        env=options.env,
        model=DEFAULT,
        env_args={"agents": "single", "max_turns": 1},
        method="grpo",
        seed=int(name.partition("-")[2]),
        max_tokens=options.tokens,
        max_steps=options.max_steps,
        tokens_per_batch=options.tokens_per_batch,
        learning_rate=options.trl_rate if name.startswith("trl") else options.rate,
    )
    return resolve(config)


def wanted(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All that a run follows from, so that a run with other settings is not taken for it."""
    values = {key: getattr(options, key) for key in ("every", "tasks")}
    if name.startswith("trl"):
        values |= {"trl_rows": options.trl_rows, "trl_paged": options.trl_paged}
    return {**dataclasses.asdict(settings(name, options)), **values}


def arguments() -> argparse.Namespace:
    """The command line; the sizes of the micro-batches are the fastest of those tried for each."""
    parser = Options(__doc__.splitlines()[0])
    parser.add_argument("--env", default="coding", help="one that takes agents='single'")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=30_000, help="to generate in a run")
    parser.add_argument("--max-steps", type=int, default=300, help="at most, and of the schedule")
    parser.add_argument("--every", type=int, default=5_000, help="tokens between validations")
    parser.add_argument("--tasks", type=int, default=100, help="of the test; a validation has half")
    parser.add_argument("--level", type=float, default=0.8, help="success to be reached")
    parser.add_argument("--trainers", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--rate", type=float, help="our learning rate; default: the environment's")
    parser.add_argument("--trl-rate", type=float, help="TRL's; default: the environment's")
    parser.add_argument("--trl-rows", type=int, default=16, help="of TRL's micro-batches")
    parser.add_argument(
        "--trl-paged", action="store_true", help="TRL samples with continuous batching"
    )
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
        record = json.dumps(run(options.only, options))
        kept(options.only, options).write_text(record, encoding="utf-8")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    runs = {}
    for turn, seed in enumerate(options.seeds):
        for trainer in options.trainers[:: -1 if turn % 2 else 1]:
            name = f"{trainer}-{seed}"
            print(f"{name}: {'to do' if finished(name, options) is None else 'done'}", flush=True)
            if finished(name, options) is None and not options.dry_run:
                command = [sys.executable, "-m", "benchmarks.peers", *sys.argv[1:], "--only", name]
                subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            runs[name] = finished(name, options)
    config = wanted(f"{options.trainers[0]}-{options.seeds[0]}", options)
    config["level"] = options.level
    config["seed"] = options.seeds
    if options.dry_run:
        print(json.dumps(config, indent=1))
        return
    results = {"config": config, "versions": versions(), "runs": runs}
    options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if set(options.trainers) == set(TITLES):
        draw(results, options.json.with_suffix(".png"))
        print(sentence(results))


def kept(name: str, options: argparse.Namespace) -> Path:
    """Where a finished run is."""
    return Path(options.out, f"{options.env}-{name}.json")


def finished(name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """The results of a run, if it has been made with these settings."""
    path = kept(name, options)
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"settings": None}
    had = record.pop("settings")
    # A setting that the package has got since then had no effect then.
    same = had and all(had.get(key, value) == value for key, value in wanted(name, options).items())
    return record if same else None


if __name__ == "__main__":
    main()
