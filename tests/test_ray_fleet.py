"""Fleets and journaled actors: actors are killed, stopped and broken, and every job is done once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pettingllms.errors import ConfigError, SandboxUnavailable, WorkersLost
from tests.processes import alive, eventually, listening
from tests.ray_actors import Hand, Sum
from tests.test_ray_commands import command

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray as _imported_before  # noqa: F401 - as a user may have done

    from pettingllms.distributed.cluster import connected
    from pettingllms.trainers.config import ATGRPOConfig, resolve

    with connected(resolve(ATGRPOConfig(workers=4))) as module:
        yield module


@pytest.fixture
def fleet(ray: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    from pettingllms.distributed.fleet import Fleet

    made = []

    def make(size: int = 2, timeout: float = 60.0, ready: str = "") -> Fleet:
        hand = ray.remote(num_cpus=1)(Hand)
        made.append(Fleet(lambda: hand.remote(str(tmp_path), ready), size, timeout=timeout))
        return made[-1]

    yield make
    for opened in made:
        opened.close()


@pytest.fixture
def learner(ray: Any, tmp_path: Path) -> Iterator[Any]:
    from pettingllms.distributed.fleet import JournaledActor
    from pettingllms.distributed.pools import Share
    from pettingllms.distributed.ranks import Ranks

    made = JournaledActor(lambda: Ranks(Sum, Share(), str(tmp_path)), ray.put(100), timeout=60.0)
    yield made
    made.close()


def befall(folder: Path, job: str, *fates: str) -> None:
    for number, fate in enumerate(fates):
        (folder / f"{job}-{number}-{fate}").touch()


def test_jobs_of_killed_hung_and_broken_workers_are_done_by_others(fleet, tmp_path):
    hands = fleet(timeout=4.0)
    befall(tmp_path, "square-1", "kill")
    befall(tmp_path, "square-4", "stop")
    befall(tmp_path, "square-6", "fail")
    jobs = [hands.submit("square", number) for number in range(8)]
    assert [job.result() for job in jobs] == [number * number for number in range(8)]
    assert hands.lost == 3


def test_a_job_that_kills_every_worker_is_named(fleet, tmp_path):
    hands = fleet(size=1)
    befall(tmp_path, "square-3", *["kill"] * 8)
    with pytest.raises(WorkersLost, match=r"^square was given to 8 workers, .* task\.$"):
        hands.submit("square", 3).result()
    assert hands.submit("square", 4).result() == 16


def test_a_worker_that_cannot_be_made_says_why_in_a_line(fleet):
    says = r"^no worker can be started: ModuleNotFoundError: No module named 'my_game'$"
    with pytest.raises(WorkersLost, match=says):
        fleet(size=1, ready="unmade").submit("square", 3).result()


def test_a_sandbox_that_fails_twice_is_reported_as_in_one_process(fleet, tmp_path):
    befall(tmp_path, "square-3", "fail", "fail")
    with pytest.raises(SandboxUnavailable, match="the sandbox is gone"):
        fleet().submit("square", 3).result()


def test_a_worker_that_cannot_start_stops_the_run_with_its_message(fleet):
    hands = fleet(ready="no model here")
    jobs = [hands.submit("square", number) for number in range(3)]
    for job in jobs:
        with pytest.raises(ConfigError, match="no model here"):
            job.result()


def test_an_error_of_the_job_itself_is_passed_on_and_costs_no_worker(fleet):
    hands = fleet(size=1)
    before = hands.submit("process").result()
    with pytest.raises(ConfigError, match="this job cannot be done"):
        hands.submit("refuse").result()
    assert hands.submit("process").result() == before


def test_closing_ends_workers_also_hung_ones(fleet, tmp_path):
    hands = fleet(size=1)
    process = hands.submit("process").result()
    befall(tmp_path, "square-2", "stop")
    hung = hands.submit("square", 2)
    assert eventually(lambda: not list(tmp_path.iterdir()))
    hands.close()
    assert hung.exception() is not None
    assert eventually(lambda: not alive(process))


def test_a_killed_learner_repeats_what_it_had_done(learner, tmp_path):
    assert learner.do("add", 1).result() == 101
    assert learner.do("add", 2).result() == 103
    befall(tmp_path, "add-4", "kill")
    assert learner.do("add", 4).result() == 107
    assert learner.ask("state").result() == 107
    assert learner.lost == 1


def test_a_job_that_raises_has_not_happened(learner):
    assert learner.do("add", 1).result() == 101
    with pytest.raises(ConfigError, match="half of it is done"):
        learner.do("spoil").result()
    assert learner.do("add", 2).result() == 103


def test_jobs_since_a_mark_can_be_taken_back(learner):
    learner.do("add", 1).result()
    mark = learner.mark().result()
    learner.do("add", 2)
    learner.do("add", 4)
    learner.back(mark)
    assert learner.ask("state").result() == 101


def test_a_learner_goes_on_from_a_new_base(learner, ray, tmp_path):
    learner.do("add", 1).result()
    learner.rebase(ray.put(101), same=True)
    befall(tmp_path, "add-2", "kill")
    assert learner.do("add", 2).result() == 103
    process = learner.ask("process").result()
    learner.rebase(ray.put(7), same=False)
    assert learner.do("add", 1).result() == 8
    assert learner.ask("process").result() == process  # a start costs seconds


def test_only_a_learner_without_a_place_has_an_idle_worker_ended(fleet, ray, tmp_path, monkeypatch):
    from pettingllms.distributed import fleet as module
    from pettingllms.distributed.pools import Share
    from pettingllms.distributed.ranks import Ranks

    monkeypatch.setattr(module, "PATIENCE_SECONDS", 1)

    made: list[Ranks] = []

    def ranks() -> Ranks:
        made.append(Ranks(Sum, Share(), str(tmp_path)))
        return made[-1]

    def started(room: Callable[..., None]) -> None:
        befall(tmp_path, "ready", "late")
        learner = module.JournaledActor(ranks, ray.put(1), timeout=60.0, room=room)
        with contextlib.closing(learner):
            assert learner.do("add", 1).result() == 2

    def free() -> float:
        return float(ray.available_resources().get("CPU", 0))

    # Ray takes back the places of workers of the tests before when they have ended, and a busy
    # machine gives none for seconds: only then may room be asked for.
    assert eventually(lambda: free() == ray.cluster_resources()["CPU"])
    asked_with_a_place: list[bool] = []
    started(lambda *, needed: asked_with_a_place.append(needed and made[-1].placed(1)))
    # The place may be given in the moment of the last request. A learner that is only late has had
    # its place for three times the patience.
    assert asked_with_a_place
    assert sum(asked_with_a_place) <= 1
    hands = fleet(size=4)  # as many as there are places
    ready = [hands.submit("square", number) for number in range(8)]
    assert [job.result() for job in ready] == [number * number for number in range(8)]
    assert eventually(lambda: free() < 1)
    started(hands.spare)


def test_an_error_of_one_rank_is_raised_though_the_others_wait_for_it(ray, tmp_path, monkeypatch):
    from pettingllms.distributed import fleet as module
    from pettingllms.distributed.pools import Share
    from pettingllms.distributed.ranks import Ranks

    monkeypatch.setattr(module, "RANK_SECONDS", 1.0)
    team = module.JournaledActor(
        lambda: Ranks(Sum, Share(ranks=2), str(tmp_path)), ray.put(1), timeout=120.0
    )
    with contextlib.closing(team):
        assert team.do("add", 1).result() == 2
        befall(tmp_path, "add-2", "fail", "stop")
        with pytest.raises(SandboxUnavailable, match="the sandbox is gone"):
            team.do("add", 2).result(timeout=60)
        befall(tmp_path, "add-4", "kill")
        assert team.do("add", 4).result() == 6
        assert team.lost == 1


def test_a_learner_that_cannot_be_made_says_so_at_every_job(learner, ray):
    learner.rebase(ray.put(-1), same=False)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no such state"):
            learner.ask("state").result()


def test_nodes_that_differ_are_refused_by_the_first_difference(ray, monkeypatch):
    from pettingllms.distributed import cluster
    from pettingllms.trainers.config import ATGRPOConfig, resolve

    config = resolve(ATGRPOConfig(workers=1))
    cluster.check_nodes(ray, config)
    monkeypatch.setattr(cluster, "source", lambda _: "0123abcd")
    with pytest.raises(ConfigError, match=r"source of pettingllms is \w{12}, and 0123abcd where"):
        cluster.check_nodes(ray, config)
    monkeypatch.setattr(cluster, "__version__", "0.0.0")
    with pytest.raises(ConfigError, match=r"pettingllms is .*, and 0\.0\.0 where"):
        cluster.check_nodes(ray, config)


def test_a_process_starts_only_where_all_is_as_on_the_driver_and_names_its_node(
    tmp_path, monkeypatch
):
    from pettingllms.distributed.actors import Learner, RolloutWorker
    from pettingllms.distributed.cluster import check_same, versions
    from pettingllms.evaluation.config import EvalConfig
    from pettingllms.evaluation.elsewhere import EvalWorker
    from pettingllms.evaluation.run import plan_of
    from pettingllms.trainers.config import ATGRPOConfig, resolve

    late = versions(None, {}) | {"torch": "0.1"}
    spec: Any = SimpleNamespace(threads=1, versions=late, config=resolve(ATGRPOConfig()))
    plan = plan_of(EvalConfig.of(env="math", limit=1))
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "10.0.0.5")
    processes = (
        RolloutWorker(spec),
        Learner(spec, "coder", 1),
        EvalWorker((plan, late, 1), None, {}),
    )
    for process in processes:
        with pytest.raises(
            ConfigError, match=r"^on node 10\.0\.0\.5 .*: torch is .*, and 0\.1 where"
        ):
            process.ready()
    rows = tmp_path / "rows.jsonl"
    for name in ("dataset", "corpus"):
        rows.write_text("one\n")
        here = versions(None, {name: str(rows)})
        rows.write_text("two\n")
        with pytest.raises(ConfigError, match=f"data of {name} is "):
            check_same(here, versions(None, {name: str(rows)}))


def test_an_engine_that_was_killed_for_memory_is_lost_and_says_so(monkeypatch):
    from ray.exceptions import OutOfMemoryError

    from pettingllms.samplers import vllm_actors

    def killed(_: Any) -> None:
        raise OutOfMemoryError("The actor was killed: its node is low on memory.\nMore.")

    monkeypatch.setattr("ray.get", killed)
    answer, why = vllm_actors._next(iter([None]))
    assert answer is None
    assert why == (
        "The actor was killed: its node is low on memory. Its machine had no memory left."
    )


def test_workers_that_cannot_start_or_hang_in_it_end_every_wait(monkeypatch):
    from pettingllms.distributed import fleet as module

    def lost() -> None:
        raise WorkersLost("its head has not answered")

    never = threading.Event()
    with (
        contextlib.closing(module.Fleet(lost, 2, timeout=60.0)) as hands,
        pytest.raises(WorkersLost, match="its head has not answered"),
    ):
        hands.submit("square", 1).result(timeout=20)
    monkeypatch.setattr(module, "START_SECONDS", 0.0)
    with contextlib.closing(module.Fleet(never.wait, 1, timeout=0.0)) as hands:
        with pytest.raises(WorkersLost, match="no worker has been ready for 0 seconds"):
            hands.submit("square", 1).result(timeout=20)
        never.set()


def test_a_command_joins_a_cluster_and_refuses_more_gpus_than_it_has(ray, tmp_path):
    address = ray.get_runtime_context().gcs_address
    words = ["--workers", "1", "--ray-address", address, "--pools", '{"workers": {"gpus": 3}}']
    words += ["--output-dir", str(tmp_path / "run")]
    with command("train", *words, folder=tmp_path) as process:
        output, _ = process.communicate()
    assert process.returncode == 2, output
    assert "3 GPUs are wanted, and the cluster has 0" in output.strip().splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_cluster_of_this_machine_listens_on_the_loopback_address_alone(ray):
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
    assert listening(os.getpid()) == {"127.0.0.1"}
