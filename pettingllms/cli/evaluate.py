"""`pettingllms-eval`: evaluates the adapters of a run, or a model, on held-out tasks."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pettingllms.cli.guard import parsed_and_run, terminable, viewing
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
    "pettingllms-eval --env math sudoku --model Qwen/Qwen3-1.7B --adapters my/peft-folder",
    "pettingllms-eval --env coding --model Qwen/Qwen3-1.7B --limit 20 --dry-run",
    "pettingllms-eval --env coding --policies api:MODEL --api-base http://127.0.0.1:8000/v1",
    "pettingllms-eval --compare evals/mine evals/other",
    "pettingllms-eval --compare evals/mine:base evals/mine:adapters",
    "pettingllms-eval --combine evals/seed1 evals/seed2 evals/seed3",
)


class EvalCommand(NamedTuple):
    """A parsed command line."""

    options: EvalConfig
    envs: Sequence[str]
    """The environments, where there are several; else none."""
    compare: tuple[str, str] | None
    """The two sides: folders of evaluations, or runs, which are evaluated first."""
    combine: Sequence[str]
    """Evaluations or runs of one method."""
    dry_run: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    0: done. 1: done, and the success is below `--fail-under`. 2: an error. 130: interrupted.
    143: terminated.
    """
    return parsed_and_run(parse, _act, argv)


def parse(argv: Sequence[str]) -> EvalCommand:
    """Reads a command line.

    Raises:
        ConfigError: an option or value that cannot be used.
    """
    from pettingllms.cli.options import OptionParser, fields_of
    from pettingllms.cli.train import RARE
    from pettingllms.evaluation.config import EvalConfig
    from pettingllms.trainers.config import ATGRPOConfig

    parser = OptionParser(
        [*fields_of(ATGRPOConfig, shared="shared"), *fields_of(EvalConfig)],
        prog="pettingllms-eval",
        description="Evaluates on held-out tasks, one completion a turn, and reports scores with "
        "intervals.",
        examples=EXAMPLES,
        defaults=_shown,
        rare=RARE,
        several=("env",),
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar="FOLDERS",
        help="The difference of two evaluations, paired by task: their --out folders, FOLDER:TEAM "
        "for one of their teams; a run folder is evaluated first, under the other options",
    )
    parser.add_argument(
        "--combine",
        nargs="+",
        metavar="FOLDERS",
        help="Evaluations or runs of one method, such as several seeds, with the same tasks: one "
        "interval over seeds and tasks",
    )
    about = "Print the resolved settings and the amount of work; load no model"
    parser.add_argument("--dry-run", action="store_true", help=about)
    namespace = parser.read(argv)
    compare = None if namespace.compare is None else (namespace.compare[0], namespace.compare[1])
    sides = "--compare" if compare else "--combine" if namespace.combine else None
    for name in ("adapters", "fail_under", "dry_run", *["combine"] * bool(compare)):
        if sides and name in namespace.given:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{sides} names its folders itself; leave out {option}")
    values = parser.values(namespace, parser.fields)
    envs = [name.strip() for name in values.get("env", "").split(",") if name.strip()]
    if len(envs) > 1:
        # `env` is one environment for an evaluation; `run_each` sets each of them in turn.
        del values["env"]
        if sides:
            raise ConfigError(f"{sides} is for one environment; name one with --env")
    return EvalCommand(
        EvalConfig.of(**values),
        envs if len(envs) > 1 else (),
        compare,
        tuple(namespace.combine or ()),
        namespace.dry_run,
    )


def _shown(given: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults in the help: where there is no run, and that a run's go over them."""
    from pettingllms.evaluation.config import SHARED
    from pettingllms.trainers.config import ATGRPOConfig, resolve

    shared = {name: value for name, value in given.items() if name in SHARED}
    if "env" in shared:
        shared["env"] = shared["env"].partition(",")[0]
    values = vars(resolve(ATGRPOConfig(**shared)))
    return {
        name: f"the run's, else {values[name]}" if by == "run" else values[name]
        for name, by in SHARED.items()
        if values[name] is not None
    }


def _act(command: EvalCommand) -> int:
    from pettingllms.cli.display import without_bars

    without_bars()
    if command.compare is not None:
        return _compare(command.options, command.compare)
    if command.combine:
        return _combine(command.options, command.combine)
    if command.dry_run:
        options, over = command.options, command.options.over
        variants = [dataclasses.replace(options, over={**over, "env": env}) for env in command.envs]
        print("\n\n".join(map(dry_run, variants or [options])))
        return 0
    if command.envs:
        return _evaluate_each(command.options, command.envs)
    return _evaluate(command.options)


def _evaluated(options: EvalConfig) -> EvalResult:
    from pettingllms.cli.display import best_display
    from pettingllms.evaluation.run import run_evaluation

    with terminable(), best_display() as display:
        return run_evaluation(options, display=display)


def _evaluate_each(options: EvalConfig, envs: Sequence[str]) -> int:
    from pettingllms.cli.display import best_display
    from pettingllms.evaluation import report
    from pettingllms.evaluation.run import run_each, sizes
    from pettingllms.rollout.files import RESULTS

    with terminable(), best_display() as display:
        results = run_each(options, envs, display)
    table = report.joint_table({env: result.teams for env, result in results.items()})
    print(f"\n{report.as_text(table)}\n\n{sizes(results)}")
    for env, result in results.items():
        for warning in result.warnings():
            print(f"warning: {env}: {warning}")
    if options.out is not None:
        print(f"results: {Path(options.out) / RESULTS}, and a folder for each environment")
        print(f"see every episode: {viewing(options.out)}")
    # Not `any`: every environment has its line printed, and the worst exit code counts.
    return max(_verdict(options, result, f"{env}: ") for env, result in results.items())


def _evaluate(options: EvalConfig) -> int:
    from pettingllms.evaluation import report
    from pettingllms.rollout.files import RESULTS

    result = _evaluated(options)
    gains = result.gains()
    print(f"\n{report.as_text(report.scores_table(result.shown(), short=True))}")
    if cells := result.matrix():
        print(f"\n{report.as_text(report.matrix_table(cells, result.swaps()))}")
    print(f"\n{result.sizes()}")
    for gain in gains if len(gains) == 1 else ():
        print(f"\n{report.as_text(report.comparison_table(gain, short=True))}")
        print(f"\n{report.notes(gain)}")
    for warning in result.warnings():
        print(f"\nwarning: {warning}")
    if options.out is not None:
        print(f"results: {Path(options.out) / RESULTS}")
        print(f"see every episode: {viewing(options.out)}")
    return _verdict(options, result)


def _verdict(options: EvalConfig, result: EvalResult, what: str = "") -> int:
    """Compares the success with `--fail-under`; returns the exit code."""
    if options.fail_under is None:
        return 0
    if result.success is None:
        raise ConfigError(f"{what}fail_under needs an environment with `success` in its infos")
    enough = result.success.mean >= options.fail_under
    how = "not below" if enough else "below"
    print(f"{what}success {result.success.mean:.4f} is {how} {options.fail_under}")
    return 0 if enough else BELOW


def _compare(options: EvalConfig, specs: tuple[str, str]) -> int:
    """Prints and writes the difference of two sides, paired by task."""
    from pettingllms.evaluation import report
    from pettingllms.evaluation.compare import compared, settings_apart
    from pettingllms.evaluation.run import section

    first, second = (_side(options, spec, name) for spec, name in zip(specs, "ab", strict=True))
    comparisons = compared(first, second, options.over.get("seed", 0))
    apart = settings_apart(first, second)
    for comparison in comparisons:
        print(f"\n{report.as_text(report.comparison_table(comparison, short=True))}")
        print(f"\n{report.notes(comparison)}")
        if comparison.coverage:
            print(f"\n{report.as_text(report.coverage_table(comparison))}")
    differing = [f"{name}: {one!r}, {two!r}" for name, (one, two) in apart.items()]
    if "env_args" in apart:
        differing.append(
            "tasks are paired by number: env_args that change them pair different ones"
        )
    if differing:
        print("settings that differ: " + "; ".join(differing))
    rows = {"settings_apart": apart, "comparisons": [c.row() for c in comparisons]}
    parts = [*map(section, comparisons), *(f"Differs: {setting}" for setting in differing)]
    return _written(options, "comparison", rows, parts)


def _combine(options: EvalConfig, specs: Sequence[str]) -> int:
    """Prints and writes the scores of one method, with intervals over seeds and tasks."""
    from pettingllms.evaluation import report
    from pettingllms.evaluation.compare import combined, settings_apart

    if not len(specs) == len({os.path.realpath(spec) for spec in specs}) > 1:
        raise ConfigError(
            "--combine takes at least two evaluations, each once: one alone says nothing about seeds"
        )
    sides = [_side(options, spec, str(n)) for n, spec in enumerate(specs, 1)]
    scores = combined(sides)
    tasks = next(iter(scores.values())).tasks
    played = {e.task.id for side in sides for team in side.episodes.values() for e in team}
    left = f" ({len(played) - tasks} others are left out)" if len(played) > tasks else ""
    notes = [
        f"{len(specs)} runs, {tasks} tasks of all{left}; in brackets 95 % intervals over runs and tasks"
    ]
    # Seeds and folders differ by design; whatever else does makes them runs of several methods.
    apart = {name for side in sides[1:] for name in settings_apart(sides[0], side)}
    for name in sorted(apart - {"seed", "adapters"}):
        values = ", ".join(repr(side.settings.get(name)) for side in sides)
        notes.append(f"settings that differ: {name}: {values}")
    print(f"\n{report.as_text(report.scores_table(scores, short=True))}\n\n" + "\n".join(notes))
    rows = {"folders": list(specs), "results": {t: [e.row()] for t, e in scores.items()}}
    return _written(
        options, "combined", rows, [report.as_markdown(report.scores_table(scores)), *notes]
    )


def _written(options: EvalConfig, name: str, rows: Any, parts: Sequence[str]) -> int:
    """Writes the records and their Markdown to `--out`, if given."""
    from pettingllms.evaluation.folder import write_file

    if options.out is not None:
        out = Path(options.out)
        write_file(out / f"{name}.json", json.dumps(rows, indent=2) + "\n")
        write_file(out / f"{name}.md", "\n\n".join(parts) + "\n")
        print(f"results: {out / name}.json")
    return 0


def _side(options: EvalConfig, spec: str, name: str) -> Side:
    """An evaluation that has been made, or of a run that is evaluated now."""
    from pettingllms.evaluation.compare import Side, read_side
    from pettingllms.runs import CONFIG

    if not (Path(spec) / CONFIG).is_file():
        return read_side(spec)
    out = None if options.out is None else str(Path(options.out) / name)
    # Without the base model: what the run is compared with is the other side.
    result = _evaluated(dataclasses.replace(options, adapters=spec, base=False, out=out))
    return Side(spec, result.plan.settings(), result.episodes)


def dry_run(options: EvalConfig) -> str:
    """The resolved settings as YAML, and the amount of work."""
    import yaml

    from pettingllms.cli.estimate import shape_of
    from pettingllms.envs.aec import longest
    from pettingllms.evaluation.run import plan_of
    from pettingllms.names import is_partner, own_names
    from pettingllms.trainers.settings import by_base

    plan = plan_of(options)
    turns, decisions = longest(plan.env)
    episodes = plan.episodes * len(plan.teams)
    replies = sum(getattr(team.ensemble, "replies", 1) for team in plan.teams)
    completions = plan.episodes * replies * decisions
    tokens = completions * plan.sampling.max_new_tokens
    players = list(plan.roles_to_policies.values())
    roles, paid = len(players), sum(map(is_partner, players))
    # Parameters of the models here, once for each role that one plays.
    computed = sum(
        shape_of(settings).parameters * sum(player in names for player in players)
        for settings, names in by_base(plan.config, own_names(plan.roles_to_policies))
    )
    bound = "at most" if turns else "for each turn, at most"
    return "\n".join(
        [
            yaml.safe_dump(plan.settings(), sort_keys=False).rstrip(),
            "",
            f"# Teams: {', '.join(team.title for team in plan.teams)}",
            f"# {episodes:>12,}  episodes",
            f"# {completions:>12,}  completions {bound}",
            f"# {tokens:>12,}  sampled tokens {bound}",
            # Two operations a parameter and token; each role samples an equal part of them.
            f"# {2 * computed * tokens / roles / 1e12:>12,.3g}  TFLOP to sample them, prompts not counted",
            *[f"# {paid} of {roles} roles are played at {plan.config.api_base}, and paid there"]
            * bool(paid),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
