"""`pettingllms-eval`: evaluates the adapters of a run, or a model, on held-out tasks."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pettingllms.cli.guard import guarded
from pettingllms.errors import ConfigError

if TYPE_CHECKING:
    from pettingllms.evaluation.compare import Side
    from pettingllms.evaluation.config import EvalConfig
    from pettingllms.evaluation.run import EvalResult

# Torch is imported inside functions, so that --help and a misspelt option do not wait for it.

BELOW = 1
"""Exit code where the success is below `--fail-under`."""
EXAMPLES = (
    "pettingllms-eval --env coding --adapters runs/latest --out evals/mine",
    "pettingllms-eval --env coding --adapters runs/latest --swap all --samples 4",
    "pettingllms-eval --env coding --model Qwen/Qwen3-1.7B --limit 20 --dry-run",
    "pettingllms-eval --compare evals/mine evals/other",
    "pettingllms-eval --compare evals/mine:base evals/mine:adapters",
)


class EvalCommand(NamedTuple):
    """A parsed command line."""

    options: EvalConfig
    compare: tuple[str, str] | None
    """The two sides: folders of evaluations, or runs, which are evaluated first."""
    dry_run: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    0: done. 1: done, and the success is below `--fail-under`. 2: an error. 130: interrupted.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    return guarded(lambda: _run(parse(words)))


def parse(argv: Sequence[str]) -> EvalCommand:
    """Reads a command line.

    Raises:
        ConfigError: an option or value that cannot be used.
    """
    from pettingllms.cli.options import OptionParser, fields_of
    from pettingllms.evaluation.config import EvalConfig
    from pettingllms.trainers.config import ATGRPOConfig

    parser = OptionParser(
        [*fields_of(ATGRPOConfig, shared="shared"), *fields_of(EvalConfig)],
        prog="pettingllms-eval",
        description="Evaluates on held-out tasks, one completion a turn, and reports scores with "
        "intervals.",
        examples=EXAMPLES,
        shown=_shown,
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar="FOLDERS",
        help="The difference of two evaluations, paired by task: their --out folders, FOLDER:TEAM "
        "for one of their teams; a run folder is evaluated first, under the other options",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Print the resolved settings and the amount of work; load no model",
    )
    found = parser.read(argv)
    compare = None if found.compare is None else (found.compare[0], found.compare[1])
    for name in ("adapters", "fail_under", "dry_run") if compare else ():
        if name in found.given:
            option = name.replace("_", "-")
            raise ConfigError(f"--compare names both sides itself; leave out --{option}")
    options = EvalConfig.of(**parser.values(found, parser.fields))
    return EvalCommand(options, compare, found.dry_run)


def _shown(given: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults in the help: where there is no run, and that a run's go over them."""
    from pettingllms.evaluation.config import SHARED
    from pettingllms.trainers.config import ATGRPOConfig, resolve

    shared = {name: value for name, value in given.items() if name in SHARED}
    values = vars(resolve(ATGRPOConfig(**shared)))
    return {
        name: f"the run's, else {values[name]}" if by == "run" else values[name]
        for name, by in SHARED.items()
        if values[name] is not None
    }


def _run(command: EvalCommand) -> int:
    from pettingllms.cli.display import without_bars

    without_bars()
    if command.compare is not None:
        return _compare(command.options, command.compare)
    if command.dry_run:
        print(dry_run(command.options))
        return 0
    return _evaluate(command.options)


def _evaluated(options: EvalConfig) -> EvalResult:
    from pettingllms.cli.display import best_display
    from pettingllms.evaluation.run import run_evaluation

    with best_display() as display:
        return run_evaluation(options, display=display)


def _evaluate(options: EvalConfig) -> int:
    from pettingllms.evaluation import report
    from pettingllms.evaluation.folder import RESULTS

    result = _evaluated(options)
    gains = result.gains()
    print(f"\n{report.as_text(report.scores_table(result.shown(), short=True))}")
    if cells := result.matrix():
        print(f"\n{report.as_text(report.matrix_table(cells))}")
    print(f"\n{result.sizes()}")
    for gain in gains if len(gains) == 1 else ():
        print(f"\n{report.as_text(report.comparison_table(gain, short=True))}")
        print(f"\n{report.notes(gain)}")
    if options.out is not None:
        print(f"results: {Path(options.out) / RESULTS}")
    if options.fail_under is None:
        return 0
    if result.success is None:
        raise ConfigError("fail_under needs an environment with `success` in its infos")
    enough = result.success.mean >= options.fail_under
    how = "not below" if enough else "below"
    print(f"success {result.success.mean:.4f} is {how} {options.fail_under}")
    return 0 if enough else BELOW


def _compare(options: EvalConfig, specs: tuple[str, str]) -> int:
    """Prints and writes the difference of two sides, paired by task."""
    from pettingllms.evaluation import report
    from pettingllms.evaluation.compare import compared, settings_apart
    from pettingllms.evaluation.folder import write_file
    from pettingllms.evaluation.run import section

    first, second = (_side(options, spec, name) for spec, name in zip(specs, "ab", strict=True))
    found = compared(first, second, options.over.get("seed", 0))
    apart = settings_apart(first, second)
    for each in found:
        print(f"\n{report.as_text(report.comparison_table(each, short=True))}")
        print(f"\n{report.notes(each)}")
    differing = [f"{name}: {one!r}, {two!r}" for name, (one, two) in apart.items()]
    if differing:
        print("settings that differ: " + "; ".join(differing))
    if options.out is not None:
        rows = {"settings_apart": apart, "comparisons": [each.row() for each in found]}
        parts = [*map(section, found), *(f"Differs: {each}" for each in differing)]
        out = Path(options.out)
        write_file(out / "comparison.json", json.dumps(rows, indent=2) + "\n")
        write_file(out / "comparison.md", "\n\n".join(parts) + "\n")
        print(f"results: {out / 'comparison.json'}")
    return 0


def _side(options: EvalConfig, spec: str, name: str) -> Side:
    """An evaluation that has been made, or of a run that is evaluated now."""
    from pettingllms.evaluation.compare import Side, read_side
    from pettingllms.runs import CONFIG

    if not (Path(spec) / CONFIG).is_file():
        return read_side(spec)
    out = None if options.out is None else str(Path(options.out) / name)
    result = _evaluated(dataclasses.replace(options, adapters=spec, base=False, out=out))
    return Side(spec, result.plan.settings(), result.episodes)


def dry_run(options: EvalConfig) -> str:
    """The resolved settings as YAML, and the amount of work."""
    import yaml

    from pettingllms.cli.estimate import shape_of
    from pettingllms.evaluation.run import plan_of

    plan = plan_of(options)
    turns = getattr(plan.env.unwrapped, "max_turns", None)
    games = plan.games * len(plan.teams)
    replies = games * len(plan.env.possible_agents) * (turns or 1)
    tokens = replies * plan.sampling.max_new_tokens
    flops = 2 * shape_of(plan.config).parameters * tokens
    each = "at most" if turns else "for each turn, at most"
    return "\n".join(
        [
            yaml.safe_dump(plan.settings(), sort_keys=False).rstrip(),
            "",
            f"# Teams: {', '.join(team.title for team in plan.teams)}",
            f"# {games:>12,}  episodes",
            f"# {replies:>12,}  completions {each}",
            f"# {tokens:>12,}  sampled tokens {each}",
            f"# {flops / 1e12:>12,.3g}  TFLOP to sample them, prompts not counted",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
