"""CPUs and GPUs of a run's processes, compared with what the cluster has before a model is loaded.

    pools:                      # in config.yaml; --pools '{"workers": {"gpus": 0.5}}' on the command line
      workers: {cpus: 2, gpus: 0.5}
      coder: {gpus: 1}          # the learner of this policy
      tester: {gpus: 1, ranks: 2}
      engines: {gpus: 1, replicas: 4}   # vLLM's, with sampler vllm; those of each base model

What is not given: one CPU, and an equal share of the GPUs that are left, at most one, unless the device
is cpu; a worker that asks engines has none. A share below 1 is of one GPU's time and memory; several processes
then use that GPU. The `ranks` of a learner have such a share each, and add each other's gradients; a full model is
divided between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.settings import by_base, own_settings

WORKERS = "workers"
RANKS = 32
ENGINES = "engines"
REPLICAS = 1024
ENGINE_SHARE = 0.9
"""Of the memory of its part of a GPU, for an engine in a process of its own, unless set."""


class Share(NamedTuple):
    """The resources of one process, and the number of processes of its kind."""

    cpus: float = 1.0
    gpus: float | None = None
    """None: an equal share of what is left."""
    ranks: int = 1
    """Processes of a learner."""
    replicas: int = 1
    """Engines that serve the same policies."""

    @property
    def options(self) -> dict[str, float]:
        """The resources as options of a Ray actor."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus or 0.0}


def pools_of(
    config: ResolvedConfig, learners: Sequence[str] = (), policies: Sequence[str] = ()
) -> dict[str, Share]:
    """`workers`, each policy that learns, each kind of engine -> the share of one process.

    Raises:
        ConfigError: a pool that does not exist, a value that is not a share, or ranks of an adapter.
    """
    pools, names = config.pools, (WORKERS, *learners)
    engines = engine_pools(config, policies) if config.sampler == "vllm" else {}
    for name in pools:
        if name == ENGINES and not engines:
            raise ConfigError(
                f"pools: engines are for sampler vllm; with {config.sampler} each worker samples from "
                "its own copy of the model"
            )
        if name not in names and name != ENGINES:
            names = (*names, ENGINES) if engines else names
            raise ConfigError(f"pools: {name!r} has no process here; {did_you_mean(name, names)}")
    shares = {name: _share(name, pools.get(name, {})) for name in names}
    for name in learners:
        if (ranks := shares[name].ranks) > 1 and not own_settings(config, name).full:
            raise ConfigError(
                f"pools: {name} has {ranks} ranks, which divide a full model; leave ranks out for an adapter, or "
                "give --full"
            )
    # Workers that ask engines load no model, and would only take GPUs from them.
    if engines and shares[WORKERS].gpus is None:
        shares[WORKERS] = shares[WORKERS]._replace(gpus=0.0)
    return shares | engines


def engine_pool(policies: Sequence[str]) -> str:
    """The name of the pool of the engines that serve these policies."""
    return f"{ENGINES} of {', '.join(policies)}"


def engine_pools(config: ResolvedConfig, policies: Sequence[str]) -> dict[str, Share]:
    """The share of an engine of each kind: adapters of one base share engines, full models do not.

    Raises:
        ConfigError: a value that is not a share, or not what vLLM needs.
    """
    share, options = _share(ENGINES, config.pools.get(ENGINES, {})), config.vllm
    parts = options.get("tensor_parallel_size", 1) * options.get("pipeline_parallel_size", 1)
    if share.gpus is None and parts > 1 and config.device != "cpu":
        share = share._replace(gpus=float(parts))
    # A share below 1 is of one GPU, on which vLLM cannot be divided.
    if share.gpus and max(share.gpus, 1) != parts:
        raise ConfigError(
            f"pools: an engine has {share.gpus:g} GPUs, and vLLM is divided into {parts} parts; make "
            "vllm.tensor_parallel_size times vllm.pipeline_parallel_size the same"
        )
    return {
        engine_pool(names): share
        for settings, together in by_base(config, policies)
        for names in ([(name,) for name in together] if settings.full else [together])
    }


def _share(name: str, given: Any) -> Share:
    if not isinstance(given, Mapping):
        raise ConfigError(f'pools: {name} must be like {{"cpus": 1, "gpus": 1}}, got {given!r}')
    for key, value in given.items():
        if key not in Share._fields:
            raise ConfigError(f"pools: {name} has no {key!r}; {did_you_mean(key, Share._fields)}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not value >= 0 or (value > 1 and value != int(value)):
            raise ConfigError(
                f"pools: {key} of {name} must be a whole number, or a share from 0 to 1, got {value!r}"
            )
    share = Share(**given)
    if share.ranks > 1 and name in (WORKERS, ENGINES):
        cure = "--workers is their number" if name == WORKERS else "replicas is their number"
        raise ConfigError(f"pools: {name} have no ranks, got {share.ranks}; {cure}")
    if share.replicas != 1 and name != ENGINES:
        raise ConfigError(f"pools: {name} has no replicas, got {share.replicas}; engines have")
    for key, most in (("ranks", RANKS), ("replicas", REPLICAS)):
        count = getattr(share, key)
        if not 1 <= count <= most or count != int(count):
            raise ConfigError(
                f"pools: {key} of {name} must be a whole number from 1 to {most}, got {count!r}"
            )
    return share._replace(ranks=int(share.ranks), replicas=int(share.replicas))


def placed(
    pools: Mapping[str, Share], workers: int, device: str, cluster: Mapping[str, float]
) -> dict[str, Share]:
    """The pools with every share filled in.

    Args:
        pools: as from `pools_of`.
        workers: number of processes that have the share of `workers`.
        device: of the settings; "cpu" leaves GPUs alone.
        cluster: `CPU` and `GPU` -> how many there are.

    Raises:
        ConfigError: the cluster has fewer, or ranks would share a GPU.
    """
    counts = {
        name: workers if name == WORKERS else share.ranks * share.replicas
        for name, share in pools.items()
    }
    gpus, cpus = cluster.get("GPU", 0.0), cluster.get("CPU", 0.0)
    wanted = sum(counts[name] * (share.gpus or 0.0) for name, share in pools.items())
    if wanted > gpus:
        raise ConfigError(f"pools: {wanted:g} GPUs are wanted, and the cluster has {gpus:g}")
    # More workers than fit wait for nodes to come; the others and one worker have to fit.
    least = sum(share.cpus * share.ranks * share.replicas for share in pools.values())
    if least > cpus:
        raise ConfigError(
            f"pools: all learners and engines and one worker want {least:g} CPUs, and the cluster has "
            f"{cpus:g}"
        )
    open_ones = sum(counts[name] for name, share in pools.items() if share.gpus is None)
    rest = 0.0 if device == "cpu" or not open_ones else min(1.0, (gpus - wanted) / open_ones)
    rest = math.floor(rest * 1000) / 1000  # Ray counts in such parts
    filled = {
        name: share if share.gpus is not None else share._replace(gpus=rest)
        for name, share in pools.items()
    }
    for name, share in filled.items():
        if share.ranks > 1 and 0 < (share.gpus or 0) < 1:
            raise ConfigError(
                f"pools: {name} has {share.ranks} ranks on {share.gpus:g} of a GPU each, and NCCL takes "
                "one rank a GPU; give it gpus: 1 and fewer ranks, or leave ranks out"
            )
    return filled
