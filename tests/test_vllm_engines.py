"""vLLM engines on Ray: versions, kills and hangs in mid-run, and nothing left behind.

A run needs vLLM and Ray, and is marked `vllm`: `make test-vllm` installs both.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from benchmarks.scale import actors
from pettingllms.errors import ConfigError
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.run import run_evaluation
from pettingllms.samplers.base import SamplerSettings, SamplingParams, ServedPolicies
from pettingllms.samplers.vllm_args import engine_options
from pettingllms.session import run_training as train
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.callbacks import Callback
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.types import Completion, Request
from tests.processes import alive, descendants, eventually, started
from tests.vllm_policies import OPTIONS, differences, requests_for, save_model, stir, team, told

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
torch.set_num_threads(1)
HALVES = {"cpus": 0.5}
TIMEOUT = 150.0
"""Of workers; an engine that says nothing for a tenth of it hangs."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("engines") / "tiny")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster that the runs of this file share."""
    from pettingllms.distributed.cluster import connected

    with connected(resolve(ATGRPOConfig(workers=6))) as module:
        yield module


def settings(model_dir: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "env": "tests.letters_env:env",
        "model": str(model_dir),
        "output_dir": str(folder),
        "max_steps": 4,
        "tasks_per_step": 4,
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 0.001,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "eval_steps": 0,
        "eval_tasks": 0,
        "save_steps": 1,
        "lora_r": 4,
        "scoring_threads": 1,
        "sampler": "vllm",
        "vllm": json.dumps(OPTIONS),
        "tasks_per_shard": 2,
        "workers": 2,
        "worker_timeout": TIMEOUT,
        "pools": json.dumps({"workers": HALVES, "engines": {**HALVES, "replicas": 2}}),
        **changes,
    }


def engines() -> list[int]:
    """Processes of engines."""
    workers = actors("EngineWorker")
    return [pid for pid in actors("Engine") if pid not in workers]


class Listen(Callback):
    """Samples from the engines after the last step, and hears what comes early."""

    def __init__(self) -> None:
        self.early, self.answers = dict[Any, Any](), dict[Any, Any]()

    def on_step(self, trainer: ATGRPO, row: Any) -> None:
        del row
        if trainer.step == 4:
            trainer.publish()
            ids = trainer.policies.prompt_ids("writer", "hello")
            asked = [Request("writer", ids, 10 * seed) for seed in range(5)]
            self.early, self.answers = told(trainer.policies, 6, asked)


class Hit(Callback):
    """Sends an engine a signal while the step after `step` is played."""

    def __init__(self, hits: dict[int, signal.Signals]) -> None:
        self._hits, self.struck = hits, list[int]()

    def on_step(self, trainer: ATGRPO, row: Any) -> None:
        del row
        if trainer.step in self._hits:
            # The older process: one that has just replaced another may not have started, and has longer.
            self.struck.append(min(engines(), key=started))
            threading.Timer(0.2, os.kill, (self.struck[-1], self._hits[trainer.step])).start()


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    # Of a run that was killed, the last line may be a part of one.
    whole, _, _ = (folder / name).read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def check_versions(folder: Path, expected: Callable[[int], int]) -> None:
    """Every completion of the first four steps was made by the weights that the schedule says."""
    played = [
        (row["step"], decision["version"])
        for row in rows(folder, "trajectories.jsonl")
        if row["step"] <= 4
        for decision in row["decisions"]
    ]
    assert {step for step, _ in played} == {1, 2, 3, 4}
    assert all(version == expected(step) for step, version in played)


def check_weights(folder: Path) -> None:
    """What was sampled from were the trainer's weights, in each step: the two agree on likelihoods."""
    steps = [row for row in rows(folder) if row["kind"] == "train"]
    assert len(steps) == 4
    for row in steps:
        for policy in ("writer", "reader"):
            assert abs(row[f"{policy}/sampling/kl"]) < 1e-6
            assert 0 < row[f"{policy}/sampling/sampling_logp_difference/max"] < 1e-3
        assert 0 <= row["engines/idle"] <= 1
        assert 0 < row["learners/idle"] < 1
        assert row["workers/lost"] == 0


def test_a_killed_and_a_hanging_engine_are_replaced_and_nothing_is_lost(
    ray, model_dir, tmp_path, caplog
):
    caplog.set_level(logging.WARNING)
    hit, listen = Hit({1: signal.SIGKILL, 2: signal.SIGSTOP}), Listen()
    run = tmp_path / "two"
    config = ATGRPOConfig(**settings(model_dir, run, eval_tasks=2))
    assert train(config, callbacks=[hit, listen]).finished
    assert listen.early == listen.answers
    assert len(listen.early) == 30
    assert list(listen.early) != list(listen.answers)
    assert len(hit.struck) == 2
    assert eventually(lambda: not any(map(alive, hit.struck)))
    assert "an engine hangs, and is ended" in caplog.text
    assert caplog.text.count("an engine was replaced") >= 1
    check_versions(run, lambda step: step - 1)
    check_weights(run)
    records = rows(run, "trajectories.jsonl")
    assert {
        row["step"]: sum(r["step"] == row["step"] for r in records) for row in records
    } == dict.fromkeys(range(1, 5), 4)
    assert eventually(lambda: not actors("Engine", "Learner"))


def saved(folder: Path) -> list[int]:
    """Steps after which there is a checkpoint: the last two."""
    return [int(path.name[5:]) for path in folder.glob("checkpoints/step-*")]


class Killed(NamedTuple):
    """A command that was killed after its fourth step, and what was left of it."""

    folder: Path
    engines: list[int]
    """How many there were after each step."""
    started: list[int]
    """Its processes."""
    alive: list[int]
    files: list[Path]
    """In its temporary folder."""
    memory: set[Path]
    """Shared, and not there before."""


@pytest.fixture(scope="module")
def killed(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Each engine that a run starts costs as much as a short test: two tests look at this one."""
    run, shm = tmp_path_factory.mktemp("killed") / "run", set(Path("/dev/shm").iterdir())
    config = settings(
        model_dir,
        run,
        workers=1,
        max_steps=50,
        max_staleness=1,
        policy_settings=json.dumps({"reader": {"full": True, "learning_rate": 0.0001}}),
        pools=json.dumps({"workers": HALVES, "engines": HALVES}),
    )
    words = [
        f"--{name.replace('_', '-')}={value}" for name, value in config.items() if name != "vllm"
    ]
    words += [f"--vllm.{name}={value}" for name, value in OPTIONS.items()]
    counts = list[int]()
    # Its path has to leave room for those of Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="p-", ignore_cleanup_errors=True) as short:
        with (
            subprocess.Popen(
                [sys.executable, "-m", "pettingllms.cli.train", *words],
                env=os.environ | {"TMPDIR": short},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as process,
            contextlib.ExitStack() as stack,
        ):
            stack.callback(process.kill)
            deadline = time.monotonic() + 300
            for step in range(1, 5):
                while max(saved(run), default=0) < step:
                    assert process.poll() is None, process.communicate()[0]
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                counts.append(len(set(engines()) & set(descendants(process.pid))))
            started = descendants(process.pid)
        eventually(lambda: not any(map(alive, started)))
        eventually(lambda: not list(Path(short).iterdir()))
        left = list(Path(short).iterdir())
    memory = set(Path("/dev/shm").iterdir()) - shm
    return Killed(run, counts, started, [pid for pid in started if alive(pid)], left, memory)


def test_stale_weights_are_those_of_one_update_before_with_engines_for_each_full_model(killed):
    assert killed.engines == [2, 2, 2, 2]
    check_versions(killed.folder, lambda step: max(0, step - 2))


def test_a_killed_driver_leaves_no_engine_and_no_file(killed):
    assert len(killed.started) > 4
    assert not killed.alive
    assert not killed.files
    assert not killed.memory


@pytest.mark.parametrize("full", [False, True], ids=["adapters", "full-model"])
def test_an_engine_answers_with_the_weights_that_it_is_asked_for_however_versions_alternate(
    model_dir, tmp_path, full
):
    from pettingllms.samplers.vllm_loop import VllmLoop

    policies = team(model_dir, {"coder": "coder"}, full=full, sampler=SamplerSettings())
    with contextlib.closing(policies):
        rank = None if full else 4
        served = ServedPolicies(
            policies.bases[0].weights, ("coder",), policies.chat.end_ids, 0, rank, torch.float32
        )
        options = engine_options(served, SamplerSettings("vllm", OPTIONS), engines=1)
        loop = VllmLoop(
            str(model_dir), served.end_ids, lambda: options, folder=tmp_path, log=tmp_path
        )
        loop.started.result(timeout=300)
        folders = []
        for version in range(3):
            folders.append(tmp_path / f"v{version}")
            policies.save("coder", folders[-1])
            stir(policies, "coder", seed=version)
        files = [{f.name: np.fromfile(f, np.uint8) for f in folder.iterdir()} for folder in folders]
        requests, params = requests_for(policies), SamplingParams(12)
        order = [1, 0, 2, 0, 1, 2, 0]
        asked = [
            (v, [loop.ask(request, 2, params, v, f"key {v}", files[v]) for request in requests])
            for v in order
        ]
        for version, answers in asked:
            completed = [answer.result(timeout=120) for answer in answers]
            assert {answer.version for answer in completed} == {version}
            policies.load("coder", folders[version])
            replies = [
                [
                    Completion(
                        request.prompt_ids, c.token_ids, c.logprobs, "", c.truncated, version
                    )
                    for c in answer.completions
                ]
                for request, answer in zip(requests, completed, strict=True)
            ]
            assert differences(policies, requests, replies)["coder"] < 1e-4
            policies.load("coder", folders[(version + 1) % 3])
            assert differences(policies, requests, replies)["coder"] > 1e-2
        too_long = Request("coder", (5,) * 2000, 0)
        with pytest.raises(ConfigError, match="a prompt of 2000 tokens"):
            loop.ask(too_long, 1, params, 0, "key 0", files[0]).result(timeout=60)
        assert loop.pulse()[1] == 0


def test_an_evaluation_on_engines_plays_each_line_up_with_its_weights(ray, model_dir, tmp_path):
    roles = {"writer": "writer", "reader": "reader"}
    with contextlib.closing(team(model_dir, roles, sampler=SamplerSettings())) as policies:
        for number, name in enumerate(roles):
            stir(policies, name, seed=number)
            policies.save(name, tmp_path / "adapters" / name)

    def played(**changes: Any) -> dict[str, list[Any]]:
        options = EvalConfig.of(
            env="tests.letters_env:env",
            model=str(model_dir),
            policies="per-role",
            adapters=str(tmp_path / "adapters"),
            base=True,
            greedy=True,
            limit=6,
            max_completion_length=8,
            **changes,
        )
        by_team = run_evaluation(options).episodes
        return {
            title: [
                (group.policy, candidate.completion.token_ids, sum(candidate.completion.logprobs))
                for episode in episodes
                for group in episode.groups
                for candidate in group.candidates
            ]
            for title, episodes in by_team.items()
        }

    pools = json.dumps({"workers": HALVES, "engines": HALVES})
    options = {"vllm": json.dumps(OPTIONS), "worker_timeout": TIMEOUT, "pools": pools}
    rows_by_team = played(sampler="vllm", workers=1, **options)
    expected = played(sampler="transformers")
    assert rows_by_team.keys() == expected.keys() == {"base", "adapters"}
    for title, rows_ in expected.items():
        assert [row[:2] for row in rows_by_team[title]] == [row[:2] for row in rows_]
        assert [row[2] for row in rows_by_team[title]] == pytest.approx(
            [r[2] for r in rows_], abs=1e-3
        )
    assert rows_by_team["base"] != rows_by_team["adapters"]
    assert eventually(lambda: not actors("Engine", "EvalWorker"))
