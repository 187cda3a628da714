"""`pettingllms-eval`: plays held-out tasks with the adapters of a run, or with a model as it is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pettingllms.cli.guard import guarded
from pettingllms.errors import ConfigError, did_you_mean

SPLITS = ("train", "val", "test")


def _f(default: Any, text: str, *aliases: str) -> Any:
    more = {"aliases": list(aliases)} if aliases else {}
    return field(default=default, metadata={"help": text, **more})


@dataclass
class EvalOptions:
    """Settings of an evaluation. What is None is taken from the run, where there is one."""

    adapters: str | None = _f(
        None, "A run folder, or a folder with one adapter a policy. Default: the base model"
    )
    env: str | None = _f(
        None,
        "Environment: a name, or a path my_package.my_env:env. Default: the run's, else coding",
    )
    env_args: str | None = _f(None, "Arguments of the environment as JSON. Default: the run's")
    dataset: str | None = _f(None, "A data set or a file of tasks. Default: the run's")
    agents: str | None = _f(
        None, "single: one agent instead of a team, where the environment has such a form"
    )
    alpha: float | None = _f(None, "Weight of the team reward. Default: the run's, else 1")
    model: str | None = _f(None, "Base model. Default: the run's, else the embedded one")
    policies: str | None = _f(
        None,
        "shared, per-role, base, a map like coder=coder,tester=base. Default: the run's, else per-role",
    )
    full: bool | None = _f(None, "The policies are full models. Default: as in the run")
    chat_template_kwargs: str | None = _f(
        None, "Arguments of the chat template as JSON. Default: the run's"
    )
    split: str = _f("test", "train, val or test")
    limit: int | None = _f(
        None,
        "Tasks, the first of the split. Default: all of a data set, 100 where tasks never end",
        "--tasks",
    )
    samples: int = _f(1, "Games of each task; more than one also give pass@k")
    seed: int = _f(0, "Of sampling, and of the intervals")
    greedy: bool = _f(False, "Take the likeliest token always, in place of sampling")
    temperature: float = _f(1.0, "Sampling temperature")
    top_p: float = _f(1.0, "Sample from the likeliest tokens that together reach this probability")
    max_completion_length: int | None = _f(
        None, "Tokens of a reply at the most. Default: the run's"
    )
    swap: str | None = _f(
        None,
        "coder=tester lets these roles exchange their policies; all: every role by every other's policy",
    )
    base: bool = _f(True, "Leave out the base model, which is played beside the adapters")
    dtype: str = _f("auto", "auto, float32, bfloat16 or float16")
    device: str = _f("auto", "auto, cpu, cuda or mps")
    sandbox: str | None = _f(None, "Where programs run: embedded or docker. Default: the run's")
    scoring_threads: int | None = _f(None, "Replies that are scored at the same time")
    out: str | None = _f(
        None,
        "Folder for results and all games; the same command again goes on with an interrupted one",
    )
    fail_under: float | None = _f(
        None,
        "Exit with code 1 where the success of the adapters (without any, of the base) is below",
    )

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ConfigError(
                f"split must be one of {', '.join(SPLITS)}, got {self.split!r}; "
                f"{did_you_mean(self.split, SPLITS)}"
            )
        for name in ("limit", "samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.seed < 0:
            raise ConfigError(f"seed must not be negative, got {self.seed}")
        if not self.temperature > 0:
            raise ConfigError(
                f"temperature must be above 0, got {self.temperature}; use --greedy for 0"
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.fail_under is not None and not 0 <= self.fail_under <= 1:
            raise ConfigError(f"fail_under must be from 0 to 1, got {self.fail_under}")
        if self.greedy and (self.samples, self.temperature, self.top_p) != (1, 1.0, 1.0):
            raise ConfigError(
                "greedy plays every game of a task alike, from the likeliest tokens; leave out "
                "samples, temperature and top_p"
            )


GROUPS = {
    "What plays": (
        "adapters",
        "model",
        "policies",
        "full",
        "swap",
        "base",
        "chat_template_kwargs",
        "dtype",
        "device",
    ),
    "What is played": (
        "env",
        "env_args",
        "dataset",
        "agents",
        "alpha",
        "split",
        "limit",
        "samples",
    ),
    "How": (
        "greedy",
        "temperature",
        "top_p",
        "max_completion_length",
        "seed",
        "sandbox",
        "scoring_threads",
    ),
    "Results": ("out", "fail_under"),
}
EXAMPLES = (
    "pettingllms-eval --env coding --adapters runs/latest --out evals/mine",
    "pettingllms-eval --env coding --adapters runs/latest --swap all --samples 4",
    "pettingllms-eval --env coding --model Qwen/Qwen3-1.7B --limit 20 --dry-run",
    "pettingllms-eval --compare evals/mine evals/other",
    "pettingllms-eval --compare evals/mine:base evals/mine:adapters",
)


class Command(NamedTuple):
    """What a command line asks for."""

    options: EvalOptions
    compare: tuple[str, str] | None
    """The two sides: folders of evaluations, or runs, which are played first."""
    dry_run: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    0: done. 1: done, and the success is below `--fail-under`. 2: an error. 130: interrupted.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    return guarded(lambda: _run(parse(words)))


def parse(argv: Sequence[str]) -> Command:
    """Reads a command line.

    Raises:
        ConfigError: an option or value that cannot be used.
    """
    from pettingllms.cli.options import OptionParser

    parser = OptionParser(
        EvalOptions,
        prog="pettingllms-eval",
        description="Plays held-out tasks, one reply a turn, and reports scores with intervals.",
        groups=GROUPS,
        examples=EXAMPLES,
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar="FOLDERS",
        help="The difference of two evaluations, paired by task: their --out folders, FOLDER:TEAM "
        "for one team of theirs; a run folder is played first, under the other options",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Print the resolved settings and how much there is to play; load no model",
    )
    found = parser.read(argv)
    compare = None if found.compare is None else (found.compare[0], found.compare[1])
    for name in ("adapters", "fail_under", "dry_run") if compare else ():
        if name in found.given:
            option = name.replace("_", "-")
            raise ConfigError(f"--compare takes what it compares itself; leave out --{option}")
    return Command(parser.build(found, EvalOptions), compare, found.dry_run)


def _run(command: Command) -> int:
    # Here and not above, so that --help does not wait for torch.
    from pettingllms.cli import evaluate_run

    if command.compare is not None:
        return evaluate_run.compare(command.options, command.compare)
    if command.dry_run:
        print(evaluate_run.dry_run(command.options))
        return 0
    return evaluate_run.run(command.options)


if __name__ == "__main__":
    sys.exit(main())
