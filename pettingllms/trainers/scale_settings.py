"""The settings of runs of more than one process, as fields of `ATGRPOConfig`."""

from __future__ import annotations

from functools import partial
from typing import Any

from pettingllms.errors import ConfigError
from pettingllms.trainers.settings import setting

_scale = partial(setting, "Scale")

TASKS_PER_SHARD = _scale(
    None, "Tasks that share batches; part of the results. Default: all of a step", at_least=1
)
WORKERS = _scale(
    0, "Processes on Ray that play; 0: all in this process", at_least=0, shared="default"
)
MAX_STALENESS = _scale(
    0,
    "Updates by which the weights that play may be older than those that learn: 1 plays the "
    "next step during an update, and is part of the results",
    at_least=0,
    # The driver keeps the weights of one update before, and engines two versions of an adapter.
    at_most=1,
)
RAY_ADDRESS = _scale(
    None, "Ray cluster: auto, or HOST:PORT. Default: one on this machine", shared="default"
)
POOLS = _scale(
    None,
    "CPUs and GPUs of workers, of a policy's learner, and of vLLM's engines, as JSON: "
    '{"workers": {"gpus": 0.5}, "coder": {"gpus": 1}, "engines": {"gpus": 1, "replicas": 4}}',
    shared="default",
    json=True,
)
WORKER_TIMEOUT = _scale(
    600.0, "Seconds after which a worker counts as hung", positive=True, shared="default"
)


def check_scale(settings: Any) -> None:
    """Compares the settings of `--workers` with each other.

    Raises:
        ConfigError: workers that would have nothing to do, or cannot sample.
    """
    for name in ("max_staleness", "stream_gradients"):
        if settings.max_num_gen_batches > 1 and getattr(settings, name):
            raise ConfigError(
                f"max_num_gen_batches {settings.max_num_gen_batches} with {name}: whether a step samples more is "
                f"known only when all of it has been played; leave {name} out"
            )
    if not settings.workers:
        if settings.ray_address is not None:
            raise ConfigError(
                f"ray_address {settings.ray_address} without workers: everything would run in this "
                "process; give --workers as well"
            )
        if settings.max_staleness:
            raise ConfigError(
                f"max_staleness {settings.max_staleness} without workers: one process plays and "
                "updates in turns; give --workers as well"
            )
        return
    if settings.api_base is not None:
        raise ConfigError(
            f"workers {settings.workers} with api_base {settings.api_base}: the replies of a model "
            "behind an API are counted and kept by one process; leave --workers out"
        )
