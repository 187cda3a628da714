"""Shares of a cluster: what is given, what is filled in, and what is refused before a model is loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys

import pytest
import torch

from pettingllms.assembly import plan_run
from pettingllms.distributed.cluster import connected
from pettingllms.distributed.guardian import processes_of
from pettingllms.distributed.pools import placed, pools_of
from pettingllms.errors import ConfigError
from pettingllms.policies.loading import load_policies
from pettingllms.trainer import ATGRPOTrainer
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig, resolve
from pettingllms.trainers.play import shards
from pettingllms.types import Task
from tests.tiny_lm import save_tiny

TEAM = ("coder", "tester")


def pools(**settings: object) -> ResolvedConfig:
    # A full model, whose learner may have ranks.
    full = {"coder": {"full": True}}
    return resolve(ATGRPOConfig(workers=4, pools=settings, policy_settings=full))


def test_gpus_that_nobody_claims_are_shared_equally():
    wanted = pools_of(pools(coder={"gpus": 1}), TEAM)
    shares = placed(wanted, 4, "auto", {"CPU": 16, "GPU": 2})
    assert {name: share.gpus for name, share in shares.items()} == {
        "workers": 0.2,
        "coder": 1,
        "tester": 0.2,
    }
    alone = placed(pools_of(pools(), TEAM), 4, "auto", {"CPU": 16, "GPU": 64})
    assert {share.gpus for share in alone.values()} == {1.0}
    without = placed(pools_of(pools(), TEAM), 4, "cpu", {"CPU": 16, "GPU": 64})
    assert {share.gpus for share in without.values()} == {0.0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"coderx": {"gpus": 1}}, "'coderx' has no process here; did you mean 'coder'"),
        ({"coder": {"gpu": 1}}, "coder has no 'gpu'; did you mean 'gpus'"),
        ({"coder": 2}, "coder must be like"),
        ({"coder": {"gpus": 1.5}}, "gpus of coder must be a whole number, or a share"),
        ({"workers": {"gpus": -1}}, "gpus of workers must be"),
        ({"workers": {"ranks": 2}}, "workers have no ranks, got 2; --workers is their number"),
        ({"coder": {"ranks": 0}}, "ranks of coder must be a whole number from 1 to 32, got 0"),
        ({"coder": {"ranks": 0.5}}, "ranks of coder must be a whole number from 1 to 32"),
    ],
    ids=["policy", "key", "number", "share", "negative", "worker-ranks", "no-rank", "half-a-rank"],
)
def test_pools_that_cannot_be_meant_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        pools_of(pools(**given), TEAM)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": {"gpus": 1}}, "4 GPUs are wanted, and the cluster has 2"),
        ({"coder": {"cpus": 8}}, "want 10 CPUs, and the cluster has 8"),
        ({"coder": {"cpus": 3, "ranks": 3}}, "want 11 CPUs, and the cluster has 8"),
        ({"coder": {"gpus": 1, "ranks": 3}}, "3 GPUs are wanted, and the cluster has 2"),
        ({"coder": {"gpus": 0.5, "ranks": 2}}, "2 ranks on 0.5 of a GPU each, and NCCL takes one"),
        ({"coder": {"ranks": 2}}, "2 ranks on 0.285 of a GPU each, and NCCL takes one"),
    ],
    ids=["gpus", "cpus", "cpus-of-ranks", "gpus-of-ranks", "parts-of-gpus", "open-parts-of-gpus"],
)
def test_more_than_the_cluster_has_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        placed(pools_of(pools(**given), TEAM), 4, "auto", {"CPU": 8, "GPU": 2})


def engines(vllm_options: dict[str, int] | None = None, **settings: object) -> ResolvedConfig:
    config = ATGRPOConfig(
        workers=4,
        sampler="vllm",
        model="m",
        vllm=vllm_options or {},
        pools=settings,
        policy_settings={"judge": {"full": True}},
    )
    return resolve(config)


def test_adapters_of_one_base_share_engines_and_workers_that_ask_them_have_no_gpu():
    config = engines(engines={"replicas": 2})
    wanted = pools_of(config, ("coder", "judge"), ("coder", "tester", "judge"))
    assert list(wanted) == [
        *("workers", "coder", "judge"),
        *("engines of coder, tester", "engines of judge"),
    ]
    shares = placed(wanted, 4, "auto", {"CPU": 16, "GPU": 8})
    assert {name: share.gpus for name, share in shares.items()} == {
        "workers": 0.0,
        **dict.fromkeys(list(shares)[1:], 1.0),
    }
    small = placed(wanted, 4, "auto", {"CPU": 16, "GPU": 3})
    assert {share.gpus for name, share in small.items() if name != "workers"} == {0.5}
    # Two learners, two engines of each kind, four workers; one worker is enough to begin.
    with pytest.raises(ConfigError, match=r"and engines and one worker want 7 CPUs, .* has 6"):
        placed(wanted, 4, "cpu", {"CPU": 6})


def test_an_engine_in_parts_has_a_gpu_for_each():
    wanted = pools_of(engines({"tensor_parallel_size": 2}), (), ("coder",))
    assert wanted["engines of coder"].gpus == 2
    with pytest.raises(ConfigError, match="2 GPUs are wanted, and the cluster has 1"):
        placed(wanted, 4, "auto", {"CPU": 16, "GPU": 1})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: engines(engines={"gpus": 2}), "an engine has 2 GPUs, and vLLM is .* 1 parts"),
        (lambda: engines(engines={"ranks": 2}), "engines have no ranks, got 2; replicas is their"),
        (lambda: engines(engines={"replicas": 0}), "replicas of engines must be a whole number"),
        (
            lambda: engines(engine={"gpus": 1}),
            "'engine' has no process here; did you mean 'engines'",
        ),
        (
            lambda: pools(engines={"gpus": 1}),
            "engines are for sampler vllm; with transformers each worker",
        ),
        (lambda: pools(coder={"replicas": 2}), "coder has no replicas, got 2; engines have"),
    ],
    ids=["parts", "ranks", "none", "name", "transformers", "replicas"],
)
def test_engines_that_cannot_be_meant_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        pools_of(config(), ("coder",), ("coder",))


def test_engines_without_vllm_are_refused_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr("pettingllms.samplers.vllm_args.installed", lambda: False)
    with (
        pytest.raises(ConfigError, match="vLLM is not installed; pip install"),
        connected(engines(), (), ("coder",)),
    ):
        pass


def test_ranks_divide_full_models_only():
    divided = pools(coder={"ranks": 2})
    for full, refused in (("tester", True), ("coder", False)):
        config = dataclasses.replace(divided, policy_settings={full: {"full": True}})
        expected = pytest.raises(ConfigError, match=r"coder has 2 ranks, which divide a full model")
        with expected if refused else contextlib.nullcontext():
            assert pools_of(config, TEAM)["coder"].ranks == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ray_address": "auto"}, "ray_address auto without workers"),
        ({"max_staleness": 1}, "max_staleness 1 without workers"),
        ({"pools": {"workers": {"gpus": 1}}}, r"pools .* without workers"),
        ({"workers": 1, "verify": True}, "verify checks adapters in this process"),
        ({"workers": 2, "max_staleness": 2}, "max_staleness must be from 0 to 1"),
        ({"workers": 2, "api_base": "http://127.0.0.1:1/v1"}, "behind an API"),
    ],
    ids=["address", "staleness", "pools", "verify", "too-stale", "api"],
)
def test_settings_that_workers_cannot_follow_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ATGRPOConfig(**settings)


def test_workers_refuse_policies_that_are_objects(tmp_path):
    torch.set_num_threads(1)
    with (
        contextlib.closing(
            load_policies(save_tiny(tmp_path), {"coder": "coder"}, lora_r=4)
        ) as policies,
        pytest.raises(ConfigError, match="workers 2 load the model by its name"),
    ):
        ATGRPOTrainer(policies=policies, args=ATGRPOConfig(workers=2, tasks_per_shard=1))


def test_workers_without_shards_are_refused_with_a_size():
    with pytest.raises(ConfigError, match="give --tasks-per-shard 4"):
        plan_run(ATGRPOConfig(workers=2, tasks_per_step=16))


def test_shards_hold_every_task_once_in_order():
    tasks = [Task(f"t:{n}", n) for n in range(7)]
    config = resolve(ATGRPOConfig(tasks_per_shard=3))
    assert [len(shard) for shard in shards(config, tasks)] == [3, 3, 1]
    assert [task for shard in shards(config, tasks) for task in shard] == tasks
    assert shards(resolve(ATGRPOConfig()), tasks) == [tasks]


def test_a_guardian_finds_no_process_of_others(tmp_path):
    assert processes_of(tmp_path / "nobody-names-this") == []


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_workers_without_ray_are_one_line(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["--env", "math", "--workers", "2"]
    words += ["--limit", "2"] if command == "evaluate" else ["--output-dir", str(tmp_path / "run")]
    words += ["--tasks-per-shard", "2"] if command == "train" else []
    assert importlib.import_module(f"pettingllms.cli.{command}").main(words) == 2
    assert "workers need Ray, which cannot be imported" in capsys.readouterr().err
