"""Clusters of several nodes, dying clusters and clusters of other versions."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale import actors, nodes, run
from pettingllms.distributed import heart
from pettingllms.errors import ConfigError
from pettingllms.runs import read_config
from pettingllms.session import run_training as train
from tests import paused_env
from tests.forks import Fork
from tests.processes import alive, descendants, eventually
from tests.test_ray_commands import files, until
from tests.tiny_lm import save_tiny

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head that only drives: every worker and learner is on a node that a test adds."""
    with nodes() as made:
        yield made


@pytest.fixture(scope="module")
def quiet() -> Iterator[Any]:
    """One for all tests that leave it as it is: its processes cost as much as a short test."""
    with nodes() as made:
        yield made


@contextlib.contextmanager
def joined(cluster: Any) -> Iterator[Any]:
    import ray

    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def node_of(cluster: Any) -> Iterator[Any]:
    node = cluster.add_node(num_cpus=3)
    try:
        yield node
    finally:
        cluster.remove_node(node)


def process_of(node: Any, name: str) -> int:
    return node.all_processes[name][0].process.pid


def test_a_node_lost_with_all_workers_and_learners_changes_no_bit(cluster):
    lost = cluster.add_node(num_cpus=3)
    raylet = process_of(lost, "raylet")
    there: list[int] = []

    def removed() -> None:
        """Ends the node without a word, in the middle of a step; a smaller one has come."""
        there.extend(descendants(raylet))
        cluster.remove_node(lost, allow_graceful=False)

    def replaced() -> None:
        cluster.add_node(num_cpus=2)
        threading.Thread(target=removed).start()

    steps = iter((lambda: None, replaced, lambda: None))
    settings: dict[str, Any] = {"env": "coding", "policies": "shared", "tasks_per_step": 2}
    with joined(cluster) as ray:
        disturbed = run(ray, 2, lambda _: next(steps)(), workers=2, **settings)
        assert disturbed == run(None, 2, **settings)
        assert len(there) > 4
        assert eventually(lambda: not any(map(alive, there)))
        assert eventually(lambda: not actors("RolloutWorker", "Learner"))


def test_a_learner_that_cannot_start_is_reported_before_anything_is_evaluated(quiet, tmp_path):
    from pettingllms.assembly import build_policies, plan_run
    from pettingllms.session import trainer_of
    from pettingllms.trainers.config import ATGRPOConfig

    model = save_tiny(tmp_path / "model")
    plan = plan_run(ATGRPOConfig(env="math", policies="shared", model=str(model), workers=1))
    policies = build_policies(plan.config, plan.roles_to_policies)
    shutil.rmtree(model)
    with node_of(quiet), joined(quiet) as ray:
        with (
            pytest.raises(ConfigError, match=r"model .* cannot be loaded") as raised,
            trainer_of(plan, policies, (), ray),
        ):
            pytest.fail("the trainer was handed out")
        assert "\n" not in str(raised.value)
        assert eventually(lambda: not actors("RolloutWorker", "Learner"))


def join_cluster(waits: float) -> Any:
    """Runs the command, which waits these seconds for the cluster to answer."""
    from pettingllms.cli.train import main
    from pettingllms.distributed import cluster

    cluster.ANSWER_SECONDS = waits
    return main(["--workers", "1", "--ray-address", "auto"])


def refused(tmp_path: Path, address: str, waits: float = 60.0, **variables: str) -> str:
    """The one line that the command writes when the cluster does not answer, or does not fit."""
    with Fork(join_cluster, waits, folder=tmp_path, RAY_ADDRESS=address, **variables) as process:
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 2, output
    assert not (tmp_path / "runs").exists()
    (line,) = output.strip().splitlines()
    return line


def test_nodes_with_another_version_of_the_package_are_refused(quiet, tmp_path, monkeypatch):
    other = tmp_path / "other" / "pettingllms"
    other.mkdir(parents=True)
    here = Path(__file__).parents[1] / "pettingllms"
    (other / "__init__.py").write_text(f"__version__ = '0.0.7'\n__path__.append({str(here)!r})\n")
    with contextlib.ExitStack() as stack:
        with monkeypatch.context() as changed:
            changed.setenv("PYTHONPATH", str(other.parent))
            stack.enter_context(node_of(quiet))
        line = refused(tmp_path, quiet.address, PYTHONPATH=str(here.parent))
    assert "of the cluster: pettingllms is 0.0.7, and " in line
    assert "make it the same on every node" in line


def test_a_cluster_of_another_python_is_refused(quiet, tmp_path):
    import ray
    from ray._common.usage import usage_constants
    from ray._private import ray_constants

    gcs = ray._raylet.GcsClient(address=quiet.address)
    place = usage_constants.CLUSTER_METADATA_KEY, ray_constants.KV_NAMESPACE_CLUSTER
    # What a head node writes about itself when it starts.
    told = gcs.internal_kv_get(*place)
    other = told.replace(b'"python_version": "3.', b'"python_version": "2.')
    gcs.internal_kv_put(place[0], other, True, place[1])
    try:
        line = refused(tmp_path, quiet.address)
    finally:
        gcs.internal_kv_put(place[0], told, True, place[1])
    assert "Version mismatch" in line
    assert "Python: 2." in line


def train_with_less_patience(*words: str) -> Any:
    """Runs the command, for which a head is dead after eight seconds, in place of half a minute."""
    from pettingllms.cli.train import main

    heart.SILENT_SECONDS = 8.0
    return main(words)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("gcs_server", heart.HEAD),
        ("raylet", heart.NODE),
    ],
    ids=["head", "node"],
)
def test_a_cluster_that_dies_ends_a_run_in_a_line_which_goes_on_to_the_same_bytes_and_nobody_joins_it(
    part, reason, cluster, tmp_path, monkeypatch
):
    # Until a dead head is noticed, as many steps as fit into the time would be computed.
    with monkeypatch.context() as paused:
        paused.setenv(paused_env.PAUSE, "3")
        node = cluster.add_node(num_cpus=3)
    # By its file, which the nodes find wherever they were started.
    options = ["--env", f"{paused_env.__file__}:env", "--policies", "shared"]
    options += ["--eval-steps", "0", "--save-steps", "1", "--num-generations", "8"]
    options += ["--tasks-per-step", "1", "--tasks-per-shard", "1", "--eval-tasks", "1"]
    # However many steps there are.
    options += ["--warmup-steps", "0", "--lr-scheduler-type", "constant"]
    folder, words = tmp_path / "run", ["--workers", "1", "--ray-address", "auto"]
    words += ["--max-steps", "300", "--output-dir", str(folder)]
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    words = [*options, *words]
    temporary = {"TMPDIR": str(tmp_path)}
    with Fork(train_with_less_patience, *words, folder=tmp_path, **temporary) as process:
        until(lambda: list(folder.glob("checkpoints/step-*")), process)
        os.kill(process_of(cluster.head_node, part), signal.SIGKILL)
        began = time.monotonic()
        output, _ = process.communicate(timeout=150)
    assert time.monotonic() - began < 60
    assert process.returncode == 2, output
    assert f"{reason}\nthe last checkpoint is in {folder}" in output
    assert "Traceback" not in output
    if part == "raylet":
        # The same cluster for the next who would join it.
        cluster.remove_node(node)
        assert "ray_address auto: " in refused(tmp_path, cluster.address, waits=8.0)
        os.kill(process_of(cluster.head_node, "gcs_server"), signal.SIGSTOP)
        line = refused(tmp_path, cluster.address, waits=8.0)
        assert "ray_address auto: the cluster did not answer within 8 seconds" in line
        return
    steps = 1 + max(int(path.name[5:]) for path in folder.glob("checkpoints/step-*"))
    alone = {"max_steps: 300": f"max_steps: {steps}", "workers: 1": "workers: 0"}
    text = (folder / "config.yaml").read_text()
    for before, after in {**alone, "ray_address: auto": "ray_address: null"}.items():
        assert before in text
        text = text.replace(before, after)
    (folder / "config.yaml").write_text(text)
    train(resume=folder)
    train(replace(read_config(folder), output_dir=str(tmp_path / "whole")))
    names = ("adapters/*/adapter_model.safetensors", "trajectories.jsonl")
    assert files(folder, names) == files(tmp_path / "whole", names)
