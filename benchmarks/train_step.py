r"""A whole training step, against TRL's `GRPOTrainer`: generated tokens per CPU-second.

    python -m benchmarks.train_step

One role, one turn, so that both do the same work: the same model, an adapter of the same rank on the same modules, the
same prompts, K replies to each, one update with the same loss, and a reward that costs nothing. Replies all have the same number of tokens (none ends early, which is the worst case for
this package: it drops rows that have ended); with `--longest N` their lengths are log-normal around the mean and cut
at N, the same for both (`benchmarks/lengths.py`). TRL generates
with `generate` (its default without vLLM); gradient checkpointing, KL and logging are off. The two take turns in one
process, step by step; the median counts. TRL runs with several sizes of micro-batches; the ratio is against its
fastest. `working MiB` (GPU) is the most memory that a step takes beyond what is held between steps.

    python -m benchmarks.train_step --longest 384

On a machine with a GPU and no model hub, random weights of a real size do as well:

    python -m benchmarks.train_step --device cuda --model-config config.json --prompt-tokens 512 --k 8 --reply-tokens 512
"""

from __future__ import annotations

import argparse
import functools
import logging
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from datasets import Dataset
from peft import LoraConfig
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessorList,
    PrinterCallback,
    TrainerCallback,
)
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.lengths import LengthGenerator, Lengths, log_normal
from benchmarks.measure import parser, report
from benchmarks.one_turn import ROLE, OneTurn, rewards
from pettingllms.data.coding import WORDS
from pettingllms.models import EMBEDDED
from pettingllms.names import model_path
from pettingllms.policies.chat import Chat
from pettingllms.policies.loading import load_policies
from pettingllms.samplers.transformers import BatchGenerator, TransformersEngine
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig

OURS = "pettingllms"
RESULTS = Path(__file__).parent / "results" / "train_step.json"


class Steps(TrainerCallback):
    """Times the steps of a `GRPOTrainer`, and lets the other contestant take one after each."""

    def __init__(self, name: str, clock: Clock, other: Callable[[], object]) -> None:
        self.name, self.clock, self.other = name, clock, other

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Its prompts are drawn; replies, rewards and the update follow."""
        self.clock.start()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The weights have moved; what is logged now does not count."""
        self.clock.stop(self.name)
        self.clock.start()
        self.other()
        self.clock.stop(OURS)


class Clock:
    """Seconds and working memory of the steps of each contestant."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds: dict[str, list[float]] = {}
        self.working: dict[str, float] = {}
        self._started = self._held = 0.0

    def start(self) -> None:
        """A step begins."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._held = torch.cuda.memory_allocated()
        self._started = self._now()

    def stop(self, name: str) -> None:
        """It has ended."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
            peak = (torch.cuda.max_memory_allocated() - self._held) / 2**20
            self.working[name] = max(peak, self.working.get(name, 0.0))
        rounds = self.seconds.setdefault(name, [])
        rounds.append(self._now() - self._started)
        print(f"  round {len(rounds)}: {name} {rounds[-1]:.2f} s", file=sys.stderr)

    def median(self, name: str) -> float:
        """Of all rounds but the first."""
        return statistics.median(self.seconds[name][1:])

    def _now(self) -> float:
        return time.process_time() if self.device == "cpu" else time.perf_counter()


def model_folder(options: argparse.Namespace, parent: Path) -> Path:
    """The model to train: as given, with random weights of a given size, or the embedded one."""
    if options.model:
        return Path(model_path(options.model))
    if not options.model_config:
        return EMBEDDED
    torch.manual_seed(options.seed)
    config = AutoConfig.from_pretrained(options.model_config)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    # Only the sizes matter; the tokenizer that is at hand knows fewer tokens.
    config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    config.bos_token_id = None
    folder = parent / "model"
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def prompt_texts(options: argparse.Namespace, model: Path) -> list[str]:
    """Texts whose prompts have between half and one and a half times the tokens asked for."""
    rng, chat = random.Random(options.seed), Chat(AutoTokenizer.from_pretrained(model), (), None)
    texts = []
    for _ in range(options.prompts):
        low, high = (options.prompt_tokens * (1 + sign * options.spread) for sign in (-1, 1))
        wanted, words = rng.uniform(low, high), [rng.choice(WORDS)]
        while len(chat.prompt_ids(" ".join(words))) < wanted:
            words.append(rng.choice(WORDS))
        texts.append(" ".join(words))
    return texts


def reply_lengths(options: argparse.Namespace, count: int, mean: int) -> list[int]:
    """Tokens of every reply of a step."""
    if options.longest is None:
        return [mean] * count
    generator = torch.Generator().manual_seed(options.seed)
    return log_normal(count, mean, options.longest, generator)


def ours(
    options: argparse.Namespace, model: Path, texts: Sequence[str], k: int, length: int
) -> ATGRPO:
    """This package's trainer; no token ends a reply, or replies end where they are to end."""
    lengths = reply_lengths(options, len(texts) * k, length)
    config = ATGRPOConfig(
        env="one_turn",
        model=str(model),
        num_generations=k,
        tasks_per_step=len(texts),
        max_steps=(options.rounds + 1) * len(options.trl_rows),
        max_completion_length=max(lengths),
        learning_rate=1e-4,
        warmup_steps=0,
        tokens_per_batch=options.tokens_per_batch,
        scoring_threads=1,
        seed=options.seed,
    )
    policies = load_policies(
        model, {ROLE: ROLE}, device=options.device, dtype=options.dtype, seed=options.seed
    )
    generator = BatchGenerator((), 0)
    if options.longest is not None:
        end_id = int(policies.chat.tokenizer.eos_token_id)
        generator = LengthGenerator(lengths, end_id, options.longest)
    policies.bases[0].engine = TransformersEngine(policies.bases[0].weights, generator)
    policies.publish(ROLE, version=0)
    return ATGRPO(config, OneTurn(texts), policies)


def theirs(
    options: argparse.Namespace,
    model: Path,
    texts: Sequence[str],
    sizes: tuple[int, int, int],
    out: str,
    callback: TrainerCallback,
) -> GRPOTrainer:
    """TRL's trainer with the same settings; `sizes` are K, tokens of a reply, rows of a micro-batch."""
    k, length, rows = sizes
    lengths = reply_lengths(options, len(texts) * k, length)
    on_gpu = options.device != "cpu"
    config = GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=len(texts) * k // rows,
        num_generations=k,
        max_completion_length=max(lengths),
        generation_kwargs={} if options.longest is not None else {"min_new_tokens": length},
        max_steps=options.rounds + 1,
        learning_rate=1e-4,
        adam_beta2=0.95,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": options.dtype or ("bfloat16" if on_gpu else "float32")},
        bf16=on_gpu,
        use_cpu=not on_gpu,
        report_to="none",
        disable_tqdm=True,
        logging_steps=10**6,
        save_strategy="no",
        seed=options.seed,
    )
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=rewards,
        args=config,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": t}]} for t in texts]
        ),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=lora,
        callbacks=[callback],
    )
    if options.longest is not None:
        model_in, tokenizer = cast(Any, trainer.model), cast(Any, trainer.processing_class)
        end_id = int(tokenizer.eos_token_id)
        ends = LogitsProcessorList([Lengths(lengths, end_id, options.longest)])
        plain = model_in.get_base_model()
        plain.generate = functools.partial(plain.generate, logits_processor=ends)
    return trainer


def compare(
    options: argparse.Namespace, model: Path, texts: Sequence[str], k: int, length: int, out: str
) -> tuple[dict[str, Any], ATGRPO]:
    """One row of the table, and our trainer."""
    clock, trainer = Clock(options.device), ours(options, model, texts, k, length)
    rows_of_step = len(texts) * k
    tokens = sum(reply_lengths(options, rows_of_step, length))
    parts = list[dict[str, float]]()
    for rows in options.trl_rows:
        name = f"TRL {rows}"
        steps = Steps(name, clock, lambda: parts.append(trainer.train_step()[1]))
        other = theirs(options, model, texts, (k, length, rows), out, steps)
        other.remove_callback(PrinterCallback)
        other.train()
        lengths = set(other._metrics["train"]["completions/mean_length"])
        same = all(abs(mean * rows_of_step - tokens) < 0.5 for mean in lengths)
        if not same or {step["num_tokens"] for step in parts} != {float(tokens)}:
            raise AssertionError("the two did not generate the same number of tokens")
    medians = {name: clock.median(name) for name in clock.seconds}
    row: dict[str, Any] = {"K": k, "reply tokens": length}
    if options.longest is not None:
        row["longest"] = options.longest
    row |= {name: tokens / seconds for name, seconds in sorted(medians.items(), reverse=True)}
    row["ratio"] = min(s for name, s in medians.items() if name != OURS) / medians[OURS]
    row |= {f"{name} working MiB": value for name, value in clock.working.items()}
    for phase in ("sample", "update"):
        row[f"{phase} share"] = statistics.median(
            step[f"time/{phase}"] / step["time/step"] for step in parts[1:]
        )
    return row, trainer


def main() -> None:
    """Prints the table."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--tokens-per-batch", type=int, help="of our update; default: as for training this model"
    )
    arguments.add_argument(
        "--trl-rows", type=int, nargs="+", default=[32, 128], help="of TRL's micro-batches"
    )
    arguments.add_argument(
        "--longest", type=int, help="log-normal lengths, cut here; default: all of one length"
    )
    arguments.set_defaults(json=RESULTS)
    options = arguments.parse_args()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="train-step-") as scratch:
        model = model_folder(options, Path(scratch))
        texts = prompt_texts(options, model)
        for k, length in zip(options.k, options.reply_tokens, strict=True):
            print(f"K {k}, {length} tokens a reply", file=sys.stderr)
            row, trainer = compare(options, model, texts, k, length, scratch)
            rows.append(row)
    options.model = options.model or ("random" if options.model_config else "embedded")
    options.tokens_per_batch = trainer.config.tokens_per_batch
    options.json.parent.mkdir(exist_ok=True)
    report("whole step", options, trainer.policies.bases[0].weights.module(ROLE), rows)


if __name__ == "__main__":
    main()
