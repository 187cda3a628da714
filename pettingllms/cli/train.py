"""`pettingllms-train`: trains a team of language models."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from pettingllms.cli.guard import INTERRUPTED, TERMINATED, parsed_and_run, typed, viewing
from pettingllms.errors import ConfigError
from pettingllms.registry import names_in

if TYPE_CHECKING:
    from pettingllms.cli.options import OptionParser
    from pettingllms.trainers.config import ATGRPOConfig

EXAMPLES = (
    "pettingllms-train --env coding --policies per-role",
    "pettingllms-train --env coding --model Qwen/Qwen3-1.7B --policies shared --report-to wandb",
    "pettingllms-train --config runs/latest/config.yaml --seed 1",
    "pettingllms-train --resume runs/latest",
)

RARE = names_in(
    "revision attn_implementation long_context adapter_dtype dtype lora_target_modules api_key_file "
    "api_max_tokens api_concurrency api_timeout api_args mask_truncated_completions silent_groups "
    "loss_norm importance_sampling_level epsilon_high delta entropy_coef train_turns policy_settings "
    "lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 max_grad_norm "
    "gradient_checkpointing compare_roles verify require_isolation scoring_threads tasks_per_shard "
    "max_staleness worker_timeout ray_address vllm_importance_sampling_correction "
    "vllm_importance_sampling_mode vllm_importance_sampling_clip_max "
    "vllm_importance_sampling_clip_min"
)
"""Settings that `--help` leaves to `--help-all`."""


class TrainCommand(NamedTuple):
    """A parsed command line."""

    config: ATGRPOConfig | None
    resume: Path | None
    dry_run: str | None
    """The GPU to estimate for."""
    probe: int | None = None
    """Completions of each role to look at, in place of a training."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    0: done. 2: an error. 130 or 143: stopped by Ctrl-C or SIGTERM, and saved.
    """
    return parsed_and_run(parse, _run, argv)


def parser() -> OptionParser:
    """The options of this command."""
    from pettingllms.cli.options import OptionParser, fields_of
    from pettingllms.trainers.config import ATGRPOConfig, resolve

    options = OptionParser(
        fields_of(ATGRPOConfig),
        prog="pettingllms-train",
        description="Trains a team of language models with AT-GRPO, with one adapter for each role.",
        examples=EXAMPLES,
        defaults=lambda given: vars(resolve(ATGRPOConfig(**given))),
        rare=RARE,
    )
    options.add_argument(
        "--resume", metavar="RUN", help="Continue the run in this folder, with its own settings"
    )
    options.add_argument(
        "--dry-run",
        nargs="?",
        const="here",
        metavar="DEVICE",
        help="Print the resolved settings, an estimate of memory and work, and the prompts of one task played "
        "with empty replies; load no model. DEVICE is rtx-4090, l40s, a100, h100, or h200; without "
        "it, this machine's GPU, else an h100. cpu loads the model and times a small step",
    )
    options.add_argument(
        "--probe",
        nargs="?",
        const=64,
        type=int,
        metavar="N",
        help="Sample N replies (64) of each role at temperatures 0.7 and 1; report how many are parsable and "
        "right, whether training has a signal, and what to change; train nothing",
    )
    return options


def parse(argv: Sequence[str]) -> TrainCommand:
    """Reads a command line.

    Raises:
        ConfigError: an option or value that cannot be used.
    """
    from pettingllms.trainers.config import ATGRPOConfig

    options = parser()
    namespace = options.read(argv)
    if namespace.resume is None:
        config = ATGRPOConfig(**options.values(namespace, options.fields))
        if namespace.probe is not None and namespace.probe < 1:
            raise ConfigError(f"probe must be at least 1, got {namespace.probe}")
        return TrainCommand(config, None, namespace.dry_run, namespace.probe)
    if others := sorted(namespace.given - {"resume"}):
        named = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise ConfigError(f"--resume uses the run's own settings; leave out {named}")
    return TrainCommand(None, Path(namespace.resume), dry_run=None)


def _run(command: TrainCommand) -> int:
    if command.dry_run and command.config is not None:
        from pettingllms.cli.estimate import dry_run

        print(dry_run(command.config, command.dry_run))
    if command.probe and command.config is not None:
        print(_probed(command.config, command.probe))
    if command.dry_run or command.probe:
        return 0
    return _train(command)


def _probed(config: ATGRPOConfig, completions: int) -> str:
    """What `--probe` prints."""
    from pettingllms.assembly import build_policies, plan_run
    from pettingllms.cli.display import without_bars
    from pettingllms.evaluation.probe import probe, report

    without_bars()
    plan = plan_run(config)
    with contextlib.closing(build_policies(plan.config, plan.roles_to_policies)) as policies:
        return report(probe(plan.config, plan.env, policies, completions))


def _train(command: TrainCommand) -> int:
    # Here and not above, so that --help and a misspelt option do not wait for torch.
    from pettingllms.cli.display import best_display, without_bars
    from pettingllms.session import run_training

    without_bars()
    with best_display() as display, stop_signals() as stop:
        summary = run_training(command.config, resume=command.resume, display=display, stop=stop)
    run = summary.folder
    if not summary.finished:
        again = typed(shlex.join(["pettingllms-train", "--resume", str(run)]))
        print(f"stopped after step {summary.step}; resume with: {again}")
        return TERMINATED if stop.signal == signal.SIGTERM else INTERRUPTED
    print(f"adapters: {run / 'adapters'}, curves: {run / 'curves.png'}")
    print(f"view the episodes: {viewing(run)}")
    print(f"next: {typed(summary.next)}")
    return 0


@contextlib.contextmanager
def stop_signals() -> Iterator[StopAsked]:
    """Lets the first SIGINT or SIGTERM ask for an orderly stop, and the second stop at once."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    asked = StopAsked(reading)
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, asked.ask) for number in numbers]
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield asked
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


# The signals of a forked process are not presses of this one.
os.register_at_fork(after_in_child=functools.partial(signal.set_wakeup_fd, -1))


SAME_SECONDS = 0.5
"""In which a batch system's signal may come to this process from it, and from the one before it."""


class StopAsked:
    """A request to stop, made by a signal; callable, as `train` expects it.

    Args:
        arrived: a pipe to which Python writes the number of every signal. It calls the handler once for all that
            came during one call of C, such as the start of Ray.
    """

    def __init__(self, arrived: int) -> None:
        self._arrived = arrived
        self.signal: int | None = None
        """The first that came."""
        self._since = 0.0

    def __call__(self) -> bool:
        """Returns True once a signal has asked for a stop."""
        return self.signal is not None

    def ask(self, number: int, frame: FrameType | None) -> None:
        """A signal handler."""
        del frame
        try:
            presses = os.read(self._arrived, 1024).count(signal.SIGINT)
        except BlockingIOError:
            presses = 0
        if self.signal is not None or presses > 1:
            # Ctrl-C comes once for each press, and not by way of another process.
            if number == signal.SIGINT or time.monotonic() - self._since > SAME_SECONDS:
                raise KeyboardInterrupt
            return
        self.signal, self._since = number, time.monotonic()
        # Not print: the signal may have come in the middle of one.
        os.write(2, b"\nstopping after this step; once more stops at once\n")


if __name__ == "__main__":
    sys.exit(main())
