"""A vLLM server, really run: of our own, and somebody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from pettingllms.errors import ConfigError, SamplerUnavailable
from pettingllms.policies.loading import load_policies
from pettingllms.samplers import vllm_server
from pettingllms.samplers.base import SamplerSettings
from pettingllms.samplers.vllm_process import ServerError, VllmEndpoint, VllmProcess, free_port
from tests.vllm_policies import ROLES, differences, sampled, save_model, stir, team

# Starting a server takes half a minute, and more where other processes want the cores.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
torch.set_num_threads(1)
AGREE = 1e-3


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("vllm") / "tiny")


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="session")
def policies(model_dir, run_folder):
    """A team whose server is its own."""
    found = team(model_dir, server=True, settings={"folder": run_folder, "timeout": 120.0})
    for number, name in enumerate(found.names):
        stir(found, name, seed=number)
    yield found
    process = found.bases[0].engine._process
    found.close()
    assert not alive(process.pid)
    assert [path.name for path in run_folder.iterdir()] == ["vllm.log"]


@pytest.fixture(scope="session")
def foreign(model_dir, tmp_path_factory):
    """A server that somebody else started: its address and its process."""
    port, log = free_port("127.0.0.1"), tmp_path_factory.mktemp("foreign") / "log"
    words = f"--port {port} --host 127.0.0.1 --dtype float32 --kv-cache-memory-bytes {1 << 28}"
    words += " --enable-lora --max-loras 3 --max-cpu-loras 6 --max-lora-rank 8 --block-size 32"
    words += " --logprobs-mode processed_logprobs --enforce-eager --no-enable-chunked-prefill --api-key secret"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    environment = {
        **os.environ,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--model", str(model_dir), *words.split()],
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        )
    try:
        endpoint = VllmEndpoint(f"http://127.0.0.1:{port}", "secret")
        while not well(endpoint):
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.2)
        yield endpoint, process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def well(endpoint):
    try:
        return endpoint.healthy(1.0)
    except OSError:
        return False


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def with_foreign(model_dir, url, key, timeout=120.0, **changes):
    settings = SamplerSettings("vllm-server", url=url, key=key, timeout=timeout)
    return load_policies(
        model_dir, ROLES, **{"lora_r": 4, "lora_alpha": 8, "sampler": settings, **changes}
    )


def agree(policies, **settings):
    requests, replies = sampled(policies, **settings)
    return max(differences(policies, requests, replies).values()) < AGREE


# --------------------------------------------------------------------------- a server of our own


def test_sampling_publishing_and_sampling_again_agree_with_the_trainer(policies):
    assert agree(policies, n=8)
    for number in range(3):
        stir(policies, "coder", seed=40 + number)
        assert agree(policies, n=8, seed=number)
    requests, replies = sampled(policies, temperature=0.6)
    assert max(differences(policies, requests, replies, temperature=0.6).values()) < AGREE
    assert sampled(policies, seed=3) == sampled(policies, seed=3)


def test_greedy_replies_over_http_are_all_the_same(policies):
    _, replies = sampled(policies, n=3, greedy=True)
    assert all(len(set(answers)) == 1 for answers in replies)


def test_it_listens_here_alone_and_asks_for_its_key_everywhere(policies):
    endpoint = policies.bases[0].engine._process.endpoint
    assert endpoint.url.startswith("http://127.0.0.1:")
    assert len(endpoint.key) > 20
    assert endpoint.key not in repr(endpoint)
    words = Path(f"/proc/{policies.bases[0].engine._process.pid}/cmdline").read_text()
    assert endpoint.url.rpartition(":")[2] in words
    assert endpoint.key not in words
    for key in (None, "wrong"):
        with pytest.raises(ServerError, match="401"):
            VllmEndpoint(endpoint.url, key).get("/v1/models", 10)
        for path in ("/metrics", "/tokenize", "/invocations", "/adapters"):
            with pytest.raises(ServerError, match="404: there is no /"):
                VllmEndpoint(endpoint.url, key).post(path, {"model": "base"}, 10)


@pytest.mark.parametrize("name", ["nobody", "base", None])
def test_an_unknown_adapter_and_the_bare_model_are_not_answered(policies, name):
    content = {"model": name, "prompt": [5, 6], "max_tokens": 1}
    with pytest.raises(ServerError, match="404"):
        policies.bases[0].engine._process.endpoint.post("/v1/completions", content, 60)


def test_an_adapter_that_the_server_lost_is_published_again(policies, caplog):
    engine, pid = policies.bases[0].engine, policies.bases[0].engine._process.pid
    content = {"lora_name": engine._held["coder"].name}
    engine._process.endpoint.post("/v1/unload_lora_adapter", content, 60)
    assert agree(policies)
    assert "trying again" in caplog.text
    assert engine._process.pid == pid


def test_a_server_killed_in_the_middle_of_a_batch_is_started_again(policies, caplog):
    engine, first = policies.bases[0].engine, policies.bases[0].engine._process.pid
    complete = engine._complete

    def killed(*arguments):
        engine._complete = complete
        os.kill(first, signal.SIGKILL)
        return complete(*arguments)

    engine._complete = killed
    before = policies.versions
    assert agree(policies)
    assert policies.versions == before
    assert "trying again" in caplog.text
    assert engine._process.pid != first
    assert not alive(first)
    stir(policies, "tester", seed=50)
    assert agree(policies)


def test_its_log_is_in_the_folder_and_an_error_shows_its_end(policies, run_folder, monkeypatch):
    assert (
        "vLLM" in (run_folder / "vllm.log").read_text()
        or "INFO" in (run_folder / "vllm.log").read_text()
    )
    monkeypatch.setattr(VllmProcess, "start", lambda self: None)
    monkeypatch.setattr(VllmProcess, "stop", lambda self: None)
    monkeypatch.setattr(vllm_server, "CONTROL_SECONDS", 0.001)
    monkeypatch.setattr(policies.bases[0].engine, "_timeout", 0.001)
    with pytest.raises(
        SamplerUnavailable, match=r"failed 3 times: no answer within .*vllm\.log"
    ) as e:
        sampled(policies)
    assert "  | " in str(e.value)


def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no memory left\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    process = VllmProcess("model", [], tmp_path / "vllm.log")
    with pytest.raises(
        SamplerUnavailable, match=r"ended while starting; the end of .*vllm\.log"
    ) as e:
        process.start()
    assert "  | no memory left" in str(e.value)
    assert not process.running


# ------------------------------------------------------------------------- somebody else's server


def test_a_foreign_server_samples_and_is_left_as_it_was(model_dir, foreign):
    endpoint, _ = foreign
    others = with_foreign(model_dir, endpoint.url + "/v1/", endpoint.key)
    stir(others, "coder", seed=1)
    assert agree(others, n=4)
    listed = {model["id"] for model in endpoint.get("/v1/models", 30)["data"]}
    assert {held.name for held in others.bases[0].engine._held.values()} < listed
    others.close()
    assert len(endpoint.get("/v1/models", 30)["data"]) == 1


def test_a_foreign_server_that_hangs_is_an_error_and_one_that_wakes_goes_on(
    model_dir, foreign, monkeypatch
):
    endpoint, process = foreign
    monkeypatch.setattr(vllm_server, "CONTROL_SECONDS", 30.0)
    others = with_foreign(model_dir, endpoint.url, endpoint.key)
    monkeypatch.setattr(vllm_server, "CONTROL_SECONDS", 1.0)
    others.bases[0].engine._timeout = 1.0
    os.killpg(process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(SamplerUnavailable, match=r"no answer within 1 s .* nothing of this"):
            sampled(others)
    finally:
        os.killpg(process.pid, signal.SIGCONT)
    monkeypatch.setattr(vllm_server, "CONTROL_SECONDS", 60.0)
    others.bases[0].engine._timeout = 60.0
    assert agree(others)
    others.close()


@pytest.mark.parametrize("key", [None, "wrong"])
def test_a_wrong_key_is_named(model_dir, foreign, key):
    with pytest.raises(ConfigError, match=r"refuses the key; .*--server-key FILE"):
        with_foreign(model_dir, foreign[0].url, key)


def test_a_foreign_server_of_another_model_is_refused(foreign, tmp_path):
    other = save_model(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"runs the model '.*tiny', but '.*other' is trained"):
        with_foreign(other, foreign[0].url, foreign[0].key)


def test_nothing_at_the_url_is_an_error_and_so_are_full_models(model_dir):
    with pytest.raises(
        ConfigError, match=r"cannot be used: no answer from http://127\.0\.0\.1:9/v1"
    ):
        with_foreign(model_dir, "http://127.0.0.1:9", None)
    with pytest.raises(ConfigError, match="takes adapters only, and these policies are full"):
        with_foreign(model_dir, "http://127.0.0.1:9", None, full=True)
    with pytest.raises(ConfigError, match=r"server must be a URL like .* got '127\.0\.0\.1:9'"):
        with_foreign(model_dir, "127.0.0.1:9", None)
