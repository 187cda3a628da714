"""`pettingllms-eval`: plays held-out tasks with the adapters of a run, or with a model as it is."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pettingllms.cli.guard import guarded
from pettingllms.errors import ConfigError

if TYPE_CHECKING:
    from pettingllms.evaluate import Evaluation
    from pettingllms.policies.policy_set import PolicySet
    from pettingllms.trainers.config import ATGRPOConfig
    from pettingllms.trainers.episodes import AnyEnv

SPLITS = ("train", "val", "test")


def _f(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


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
    dataset: str | None = _f(None, "A file of tasks. Default: the run's")
    alpha: float | None = _f(None, "Weight of the team reward. Default: the run's, else 1")
    model: str | None = _f(None, "Base model. Default: the run's, else the embedded one")
    policies: str | None = _f(
        None, "shared, per-role, a map like coder=a,tester=b. Default: the run's, else per-role"
    )
    full: bool | None = _f(None, "The policies are full models. Default: as in the run")
    chat_template_kwargs: str | None = _f(
        None, "Arguments of the chat template as JSON. Default: the run's"
    )
    split: str = _f("test", "train, val or test")
    tasks: int = _f(100, "Held-out tasks")
    samples: int = _f(1, "Games of each task")
    seed: int = _f(0, "Of sampling")
    greedy: bool = _f(False, "Take the likeliest token always, in place of sampling")
    temperature: float = _f(1.0, "Sampling temperature")
    max_completion_length: int | None = _f(
        None, "Tokens of a reply at the most. Default: the run's"
    )
    swap: str | None = _f(
        None,
        "coder=tester lets these roles exchange their policies; all: every role with every other's policy",
    )
    base: bool = _f(True, "Leave out the base model, which is played beside the adapters")
    dtype: str = _f("auto", "auto, float32, bfloat16 or float16")
    device: str = _f("auto", "auto, cpu, cuda or mps")
    scoring_threads: int | None = _f(None, "Replies that are scored at the same time")
    out: str | None = _f(None, "Folder for results.json and results.md")

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ConfigError(f"split must be one of {', '.join(SPLITS)}, got {self.split!r}")
        for name in ("tasks", "samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.seed < 0:
            raise ConfigError(f"seed must not be negative, got {self.seed}")


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
    "What is played": ("env", "env_args", "dataset", "alpha", "split", "tasks", "samples"),
    "How": ("greedy", "temperature", "max_completion_length", "seed", "scoring_threads", "out"),
}
EXAMPLES = (
    "pettingllms-eval --env coding --adapters runs/latest",
    "pettingllms-eval --env coding --adapters runs/latest --swap coder=tester --greedy",
    "pettingllms-eval --env coding --model Qwen/Qwen3-1.7B --tasks 20 --samples 4",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, 2 on an error, 130 when it was stopped."""
    words = sys.argv[1:] if argv is None else list(argv)
    return guarded(lambda: _run(parse(words)))


def parse(argv: Sequence[str]) -> EvalOptions:
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
    return parser.build(parser.read(argv), EvalOptions)


def _run(options: EvalOptions) -> int:
    # Here and not above, so that --help does not wait for torch.
    import torch

    from pettingllms import report
    from pettingllms.assembly import build_policies, is_embedded, located, make_env
    from pettingllms.cli.display import best_display, without_bars
    from pettingllms.evaluate import roles_of
    from pettingllms.policies.mapping import parse_policies

    without_bars()
    config = located(settings_of(options))
    embedded = is_embedded(config)
    if embedded:
        torch.set_num_threads(1)
    env = make_env(config, options.split, embedded=embedded)
    players = parse_policies(config.policies, roles_of(env))
    swaps = swaps_of(options.swap, roles_of(env))
    columns: dict[str, list[Evaluation]] = {}
    with best_display() as display:
        if options.base and config.adapters is not None:
            base = build_policies(dataclasses.replace(config, adapters=None), players)
            play = _player(options, config, env, base, display.playing)
            columns["base"] = [play("base", None)]
            del base
        policies = build_policies(config, players)
        play = _player(options, config, env, policies, display.playing)
        for title, swap in swaps.items():
            name = title or ("base" if config.adapters is None else "adapters")
            columns[name] = [play(name, swap)]
    first = next(iter(columns.values()))[0]
    print(f"\n{report.as_text(columns)}\n{options.split} split, {report.sizes(first)}")
    if options.out is not None:
        _write(Path(options.out), options, config, columns)
    return 0


def settings_of(options: EvalOptions) -> ATGRPOConfig:
    """The run's settings, if there is a run, with the options over them.

    Raises:
        ConfigError: no adapters where they should be.
    """
    from pettingllms.assembly import adapters_in, is_embedded
    from pettingllms.runs import CONFIG, read_config
    from pettingllms.trainers.config import ATGRPOConfig, resolve

    changes: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("dtype", "device", "seed", "temperature", *_FROM_RUN)
        if getattr(options, name) is not None
    }
    config = ATGRPOConfig()
    if options.adapters is not None:
        adapters = adapters_in(Path(options.adapters))
        changes["adapters"] = str(adapters)
        runs = [
            run for run in (Path(options.adapters), adapters.parent) if (run / CONFIG).is_file()
        ]
        config = read_config(runs[0]) if runs else config
    config = dataclasses.replace(config, **({"adapters": None} | changes))
    return resolve(config, embedded=is_embedded(config))


_FROM_RUN = (
    "env",
    "env_args",
    "dataset",
    "alpha",
    "model",
    "policies",
    "full",
    "chat_template_kwargs",
    "max_completion_length",
    "scoring_threads",
)


def swaps_of(spec: str | None, roles: Sequence[str]) -> dict[str, Mapping[str, str] | None]:
    """Title -> role -> the role whose policy answers for it; the plain team has no title.

    Raises:
        ConfigError: `spec` is neither `all` nor pairs of roles.
        UnknownNameError: a role that there is not.
    """
    from pettingllms.errors import UnknownNameError, did_you_mean

    swaps: dict[str, Mapping[str, str] | None] = {"": None}
    if spec == "all":
        for role, other in itertools.permutations(roles, 2):
            swaps[f"{role} by {other}"] = {role: other}
    elif spec is not None:
        exchanged: dict[str, str] = {}
        for pair in spec.split(","):
            one, equals, other = (part.strip() for part in pair.partition("="))
            if not equals:
                raise ConfigError(f"swap must be all, or pairs like coder=tester, got {spec!r}")
            for role in (one, other):
                if role not in roles:
                    raise UnknownNameError(
                        f"swap: unknown role {role!r}; {did_you_mean(role, roles)}"
                    )
            exchanged |= {one: other, other: one}
        swaps["swapped"] = exchanged
    return swaps


def _player(
    options: EvalOptions,
    config: ATGRPOConfig,
    env: AnyEnv,
    policies: PolicySet,
    progress: Callable[[str, int, int], None],
) -> Callable[[str, Mapping[str, str] | None], Evaluation]:
    from pettingllms.evaluate import evaluate, held_out

    def play(title: str, swap: Mapping[str, str] | None) -> Evaluation:
        return evaluate(
            env,
            policies,
            tasks=held_out(env, options.split, options.tasks),
            max_new_tokens=config.max_completion_length,
            samples=options.samples,
            greedy=options.greedy,
            temperature=options.temperature,
            seed=options.seed,
            swap=swap,
            scoring_threads=config.scoring_threads,
            on_progress=lambda done, total: progress(title, done, total),
        )

    return play


def _write(
    folder: Path,
    options: EvalOptions,
    config: ATGRPOConfig,
    columns: Mapping[str, Sequence[Evaluation]],
) -> None:
    from pettingllms import report
    from pettingllms.errors import RunFolderError
    from pettingllms.runs import versions

    results = {
        "options": dataclasses.asdict(options),
        "settings": {k: v for k, v in dataclasses.asdict(config).items() if v is not None},
        "versions": versions(),
        "results": {title: [each.row() for each in column] for title, column in columns.items()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        (folder / "results.md").write_text(report.as_markdown(columns) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            f"cannot write {folder}: {error.strerror}; choose another --out"
        ) from error
    print(f"results: {folder / 'results.json'}")


if __name__ == "__main__":
    sys.exit(main())
