"""`train` and `evaluate`: whole runs from Python, equal to those of the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pettingllms.assembly import EnvSource, name_of_env
from pettingllms.errors import ConfigError
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.run import EvalResult, run_evaluation
from pettingllms.runs.folder import check_unused
from pettingllms.session import Summary, run_training
from pettingllms.trainers.callbacks import Callback, Display
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.method import Method, path_of


def train(
    env: EnvSource | None = None,
    *,
    resume: str | Path | Summary | None = None,
    method: str | type[Method] | None = None,
    callbacks: Sequence[Callback] = (),
    display: Display | None = None,
    **settings: Any,
) -> Summary:
    """Trains a team and writes a run folder, as `pettingllms-train` does.

    Args:
        env: a name or path, an environment, or a function or class that makes one. An environment
            with a data set must be passed as the function or class, because training and evaluation use
            different splits. Default: coding.
        resume: folder of a run to continue with its own settings; pass no others, and `env` only if the
            run was started with an object.
        method: a name or path, or a class that can be imported.
        callbacks: called after steps, evaluations, and checkpoints; one that returns True ends training.
        display: receives progress; without one, nothing is printed.
        settings: fields of `ATGRPOConfig`; JSON settings may be Python objects.

    Returns:
        The run folder, and the evaluations before and after training.

    Raises:
        ConfigError, UnknownNameError: settings that cannot be used; nothing was written.
        RunFolderError: a folder that cannot be used.
    """
    source = None if isinstance(env, str) else env
    if resume is not None:
        names = [*settings, *(["method"] if method is not None else [])]
        if names or isinstance(env, str):
            raise ConfigError(
                f"resume uses the run's own settings; leave out {(names or ['env'])[0]}"
            )
        run = Path(resume.folder if isinstance(resume, Summary) else resume)
        return run_training(resume=run, env=source, callbacks=callbacks, display=display)
    settings["env"] = name_of_env("coding" if env is None else env)
    if isinstance(method, type) and "<locals>" in method.__qualname__:
        raise ConfigError(
            f"method {method.__name__} is defined inside a function, where a resumed run cannot "
            "import it; define it at the top level of a module"
        )
    if method is not None:
        settings["method"] = path_of(method)
    config = ATGRPOConfig(**settings)
    if config.output_dir is not None:
        check_unused(config.output_dir)
    return run_training(config, env=source, callbacks=callbacks, display=display)


def evaluate(
    env: EnvSource | None = None,
    *,
    adapters: str | Path | Mapping[str, str | Path] | Summary | None = None,
    display: Display | None = None,
    **settings: Any,
) -> EvalResult:
    """Evaluates a team on held-out tasks, as `pettingllms-eval` does.

    Args:
        env: as in `train`. Default: the run's, else coding.
        adapters: a run or its folder, a folder with one adapter for each policy or one for all roles, a
            hub id, or a mapping from roles to these. Default: the base model.
        display: receives progress; without one, nothing is printed.
        settings: fields of `EvalConfig`, such as `limit`, `samples`, `greedy`, `swap`, and `out`, and the
            fields of `ATGRPOConfig` that `pettingllms-eval` has.

    Returns:
        `success` (mean, low, high; None if the environment reports none), the scores of every team,
        and all episodes.

    Raises:
        ConfigError, UnknownNameError, DatasetError: settings that cannot be used.
    """
    if adapters is not None:
        settings["adapters"] = adapters.folder if isinstance(adapters, Summary) else adapters
    if isinstance(env, str):
        settings["env"] = env
    return run_evaluation(EvalConfig.of(**settings), None if isinstance(env, str) else env, display)
