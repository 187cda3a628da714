"""`pettingllms-train`: trains a team of language models."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from pettingllms.cli.guard import INTERRUPTED, guarded
from pettingllms.errors import ConfigError

if TYPE_CHECKING:
    from pettingllms.cli.options import OptionParser
    from pettingllms.trainers.config import ATGRPOConfig

GROUPS = {
    "Task": ("env", "env_args", "dataset", "alpha"),
    "Policies": (
        "model",
        "policies",
        "train_roles",
        "adapters",
        "full",
        "lora_r",
        "lora_alpha",
        "lora_target_modules",
        "chat_template_kwargs",
        "dtype",
        "device",
    ),
    "Sampling": ("sampler", "server", "server_key", "serve", "server_timeout", "vllm"),
    "Algorithm": (
        "estimator",
        "num_generations",
        "tasks_per_step",
        "max_steps",
        "max_tokens",
        "branch",
        "temperature",
        "max_completion_length",
        "mask_truncated_completions",
        "loss_type",
        "scale_rewards",
        "epsilon",
        "epsilon_high",
        "delta",
        "beta",
        "entropy_coef",
        "num_iterations",
    ),
    "Optimization": (
        "learning_rate",
        "lr_scheduler_type",
        "warmup_steps",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "max_grad_norm",
        "tokens_per_batch",
    ),
    "Run": (
        "output_dir",
        "seed",
        "eval_steps",
        "eval_tasks",
        "save_steps",
        "report_to",
        "sandbox",
        "scoring_threads",
    ),
}
EXAMPLES = (
    "pettingllms-train --env coding --policies per-role",
    "pettingllms-train --env coding --model Qwen/Qwen3-1.7B --policies shared --report-to wandb",
    "pettingllms-train --config runs/latest/config.yaml --seed 1",
    "pettingllms-train --resume runs/latest",
)


class Command(NamedTuple):
    """What a command line asks for."""

    config: ATGRPOConfig | None
    resume: Path | None
    dry_run: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, 2 on an error, 130 when it was stopped."""
    words = sys.argv[1:] if argv is None else list(argv)
    return guarded(lambda: _run(parse(words)))


def parser() -> OptionParser:
    """The options of this command."""
    from pettingllms.cli.options import OptionParser
    from pettingllms.trainers.config import ATGRPOConfig

    options = OptionParser(
        ATGRPOConfig,
        prog="pettingllms-train",
        description="Trains a team of language models with AT-GRPO, an adapter for each role.",
        groups=GROUPS,
        examples=EXAMPLES,
    )
    options.add_argument(
        "--resume", metavar="RUN", help="Go on with the run in this folder, under its own settings"
    )
    options.add_argument(
        "--dry-run",
        action="store_true",
        help="Print the resolved settings and an estimate of memory and work; load nothing",
    )
    return options


def parse(argv: Sequence[str]) -> Command:
    """Reads a command line.

    Raises:
        ConfigError: an option or value that cannot be used.
    """
    from pettingllms.trainers.config import ATGRPOConfig

    options = parser()
    found = options.read(argv)
    if found.resume is None:
        return Command(options.build(found, ATGRPOConfig), None, found.dry_run)
    if others := sorted(found.given - {"resume"}):
        named = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise ConfigError(f"--resume goes on under the run's own settings; leave out {named}")
    return Command(None, Path(found.resume), dry_run=False)


def _run(command: Command) -> int:
    # Here and not above, so that --help and a misspelt option do not wait for torch.
    from pettingllms.cli.display import best_display, without_bars
    from pettingllms.session import train

    if command.dry_run and command.config is not None:
        from pettingllms.cli.estimate import dry_run

        print(dry_run(command.config))
        return 0
    without_bars()
    with best_display() as display, stop_signals() as stop:
        summary = train(command.config, resume=command.resume, display=display, stop=stop)
    run = summary.folder
    if not summary.finished:
        print(f"stopped after step {summary.step}; go on with: pettingllms-train --resume {run}")
        return INTERRUPTED
    print(f"adapters: {run / 'adapters'}, curves: {run / 'curves.png'}")
    print(f"next: {summary.next}")
    return 0


@contextlib.contextmanager
def stop_signals() -> Iterator[StopAsked]:
    """Lets the first SIGINT or SIGTERM ask for an orderly stop, and the second stop at once."""
    asked = StopAsked()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, asked.ask) for number in numbers]
    try:
        yield asked
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class StopAsked:
    """Whether somebody asked to stop; callable, as `train` wants it."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        """Whether to stop."""
        return self._asked

    def ask(self, number: int, frame: FrameType | None) -> None:
        """A signal handler."""
        del number, frame
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        # Not print: the signal may have come in the middle of one.
        os.write(2, b"\nstopping after this step; once more stops at once\n")


if __name__ == "__main__":
    sys.exit(main())
