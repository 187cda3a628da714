"""Several environments: as many evaluations, each in a folder of its own below `out`.

One table over all of them is beside these folders.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.evaluation import report
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.folder import write_file
from pettingllms.evaluation.run import EvalResult, plan_of, run_plan
from pettingllms.rollout.files import RESULTS, SETTINGS
from pettingllms.trainers.callbacks import Display


def run_each(
    options: EvalConfig, envs: Sequence[str], display: Display | None = None
) -> dict[str, EvalResult]:
    """Evaluates several environments, each with a folder of its own below `out`.

    All plans are made first, so that a mistake in the last one does not cost the others.

    Args:
        options: the settings, which all environments share.
        envs: names or paths of environments.
        display: receives progress.

    Returns:
        Environment -> its result; `out` has them in one table as well.

    Raises:
        PettingLLMsError: settings, a model or a folder that cannot be used.
    """
    out = None if options.out is None else Path(options.out)
    if len({folder_name(env) for env in envs}) < len(envs):
        raise ConfigError(
            "env names an environment twice, or two whose folders would be the same: "
            f"{', '.join(envs)}; evaluate them one by one"
        )
    # Its own results would be overwritten by the table of all.
    if out is not None and (out / SETTINGS).exists():
        raise RunFolderError(
            f"{out} holds the evaluation of one environment; choose another --out for several"
        )
    plans = {
        env: plan_of(dataclasses.replace(options, over={**options.over, "env": env}))
        for env in envs
    }
    results = {
        env: run_plan(plan, None if out is None else str(out / folder_name(env)), display)
        for env, plan in plans.items()
    }
    if out is not None:
        table = report.as_markdown(report.joint_table({e: r.teams for e, r in results.items()}))
        successes = {env: result.success for env, result in results.items()}
        rows = {
            "success": {
                env: None if found is None else found._asdict() for env, found in successes.items()
            },
            "folders": {env: folder_name(env) for env in envs},
        }
        write_file(out / "results.md", f"{table}\n\n{sizes(results)}\n")
        write_file(out / RESULTS, json.dumps(rows, indent=2) + "\n")
    return results


def sizes(results: Mapping[str, EvalResult]) -> str:
    """A line for each environment: what was sampled, and what the intervals are."""
    return "\n".join(f"- {env}: {result.sizes()}" for env, result in results.items())


def folder_name(env: str) -> str:
    """The name of an environment as that of a folder."""
    plain = env.rpartition("/")[2].removesuffix(":env").removesuffix(".py")
    return "".join(char if char.isalnum() or char in "-_." else "-" for char in plain)
