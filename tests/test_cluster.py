"""What more than one process rests on, without Ray: digests, addresses, silence, and who cleans up."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pettingllms.distributed import cluster, heart
from pettingllms.errors import ConfigError
from pettingllms.samplers.base import SampledTokens, SamplingParams
from pettingllms.samplers.vllm import PublishedAdapter
from pettingllms.samplers.vllm_loop import Completed, Query, VllmLoop, _Running
from pettingllms.types import Request
from tests.processes import descendants, eventually


def test_the_silence_of_a_head_ends_when_it_answers(monkeypatch):
    monkeypatch.setattr(heart, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(heart, "SILENT_SECONDS", -1.0)
    over, seen = threading.Event(), list[bool]()
    with socket.socket(socket.AF_UNIX) as node:
        beating = heart._Heart(node)

        def ask(*_: object, timeout: float) -> None:
            seen.append(beating.silent)
            if len(seen) == 4:
                over.set()
            if len(seen) < 3:
                raise ConnectionError

        ray: Any = SimpleNamespace(exceptions=SimpleNamespace(RpcError=ConnectionError))
        gcs = SimpleNamespace(internal_kv_get=ask)
        worker = SimpleNamespace(gcs_client=gcs, node=SimpleNamespace(raylet_socket_name="/node"))
        heart._ask(ray, worker, beating, over)
    assert seen == [False, True, True, False]


def test_an_engine_without_memory_is_not_started_for_ever(monkeypatch):
    engines = pytest.importorskip("pettingllms.distributed.engines")

    def remote(**options: Any) -> Any:
        asked.update(options)
        raise InterruptedError

    asked: dict[str, Any] = {}
    share = SimpleNamespace(options={"num_gpus": 1}, replicas=1)
    monkeypatch.setattr(engines, "_engines", lambda *_: [(("a",), None, share)])
    monkeypatch.setattr(engines.ray, "remote", remote)
    with pytest.raises(InterruptedError):
        engines.Engines(None, SimpleNamespace(worker_timeout=1.0), {})
    assert 0 < asked["max_restarts"] < 100


def test_a_byte_of_the_source_and_the_place_of_a_file_change_its_digest(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    (one / "sub").mkdir(parents=True)
    (one / "sub" / "a.py").write_text("x = 1\n")
    shutil.copytree(one, other)
    (other / "sub" / "a.pyc").write_text("no source")
    assert cluster.source([str(one)]) == cluster.source([str(other)])
    (other / "sub" / "a.py").write_text("x = 2\n")
    assert cluster.source([str(one)]) != cluster.source([str(other)])
    (other / "sub" / "a.py").write_text("x = 1\n")
    (other / "sub" / "a.py").rename(other / "a.py")
    assert cluster.source([str(one)]) != cluster.source([str(other)])


def test_versions_that_nodes_compare_are_those_that_play_and_train():
    names = cluster.dependencies()
    assert {"torch", "transformers", "numpy", "ray", "vllm", "sympy"} <= names
    assert not {"ruff", "pytest", "openai"} & names
    assert {"source of pettingllms", "torch"} <= set(cluster.versions(None, {}))


def test_auto_never_takes_the_cluster_that_another_run_started_for_itself(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    other = ["--gcs-address=127.0.0.1:7001", "--temp_dir=/tmp/pllms-ray-x/session"]
    addresses = {"127.0.0.1:7001"}
    services: Any = SimpleNamespace(
        find_gcs_addresses=lambda: addresses, find_bootstrap_address=lambda _: "10.0.0.2:6379"
    )
    ray: Any = SimpleNamespace(_private=SimpleNamespace(services=services))
    waits = [sys.executable, "-c", "input()", *other]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as process:
        assert eventually(lambda: addresses <= cluster.private_addresses())
        with pytest.raises(ConfigError, match="belong to other runs") as refused:
            cluster._join(ray, "auto")
        assert "stop" not in str(refused.value)
        addresses |= {"10.0.0.1:6379", "10.0.0.2:6379"}
        assert cluster._shared(ray) == "10.0.0.2:6379"
        process.kill()


def test_a_guardian_has_no_stream_that_a_reader_could_close():
    with cluster._guarded_folder() as folder:
        [guardian] = eventually(
            lambda: [pid for pid in descendants(os.getpid()) if str(folder) in words_of(pid)]
        )
        streams = [Path(f"/proc/{guardian}/fd/{number}").readlink() for number in (1, 2)]
    assert [str(stream) for stream in streams] == [os.devnull] * 2
    assert not folder.exists()


def words_of(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_text()


def test_a_full_models_answer_has_the_version_that_was_loaded_not_that_asked_for():
    asked, loaded = (PublishedAdapter(f"p@v{n}", n, n, Path()) for n in (1, 2))
    loop = VllmLoop.__new__(VllmLoop)
    loop._full, loop._end_ids, loop._held = True, (0,), {("p", "key"): loaded}
    answer: Future[Completed] = Future()
    query = Query(Request("p", (5,), 0), 1, SamplingParams(4), 1, "key", {})
    loop._running = {"0": _Running(query, asked, answer, {}, {}, {"0": 0})}
    token = SimpleNamespace(token_ids=[0], logprobs=[{0: SimpleNamespace(logprob=-1.0)}])
    loop._finish(SimpleNamespace(request_id="0", outputs=[token], lora_request=None))
    assert answer.result(timeout=0) == Completed(2, [SampledTokens((0,), (-1.0,), False)])
