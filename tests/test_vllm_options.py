"""What of vLLM needs no vLLM: its options, the command line, and what is refused."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import torch

from pettingllms.assembly import sampler_settings
from pettingllms.cli.train import parse
from pettingllms.errors import ConfigError, SamplerUnavailable, UnknownNameError
from pettingllms.policies.loading import load_policies
from pettingllms.policies.packing import microbatches
from pettingllms.samplers import vllm_process, vllm_server
from pettingllms.samplers.base import SAMPLERS, SamplerSettings, SamplingParams
from pettingllms.samplers.vllm_args import (
    OPTIONS,
    RANKS,
    REFUSED,
    check_options,
    command_line,
    lora_options,
)
from pettingllms.samplers.vllm_process import BASE, RequestGuard, ServerError, VllmEndpoint
from pettingllms.samplers.vllm_server import completion_body, ignores_temperature
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.metrics import LossMeter
from pettingllms.types import Sample
from tests.tiny_lm import save_tiny

VALUES = {int: 2, float: 0.5, str: "bfloat16", bool: True}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_passes_through_and_a_misspelt_one_is_refused_with_what_was_meant(name):
    value = VALUES[OPTIONS[name]]
    assert check_options({name: value}) == {name: value}
    [flag, *rest] = command_line({name: value})
    assert flag == f"--{name.replace('_', '-')}"
    assert rest == ([] if value is True else [str(value)])
    wrong = name[:-2] + name[-1]
    with pytest.raises(ConfigError, match=f"unknown option vllm.{wrong}; did you mean .*{name}"):
        check_options({wrong: value})


@pytest.mark.parametrize("name", REFUSED)
def test_what_decides_the_distribution_cannot_be_set(name):
    with pytest.raises(ConfigError, match=f"vllm.{name} cannot be set: "):
        check_options({name: 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", "many"),
        ("max_num_seqs", 1.5),
        ("max_num_seqs", True),
        ("dtype", 3),
        ("enforce_eager", 1),
        ("gpu_memory_utilization", "half"),
    ],
)
def test_a_value_of_another_type_is_refused(name, value):
    with pytest.raises(ConfigError, match=rf"vllm\.{name} must be .*got"):
        check_options({name: value})


def test_a_switch_that_is_off_is_said_so():
    assert command_line({"enable_prefix_caching": False}) == ["--no-enable-prefix-caching"]
    assert check_options({"gpu_memory_utilization": 1}) == {"gpu_memory_utilization": 1}


@pytest.mark.parametrize("rank", [1, 4, 8, 9, 100, 512])
def test_the_engine_has_room_for_every_adapter_and_its_next_version(rank):
    options = lora_options(["a", "b", "c"], rank)
    assert options["max_loras"] == 3
    assert options["max_cpu_loras"] == 6
    assert options["max_lora_rank"] == min(known for known in RANKS if known >= rank)
    assert lora_options(["a"], None) == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": "vllm-server"}, "needs either a server's URL"),
        ({"sampler": "vllm-server", "server": "http://x", "serve": True}, "needs either"),
        ({"server": "http://x"}, "for sampler vllm-server, not for auto"),
        ({"sampler": "vllm", "serve": True}, "for sampler vllm-server, not for vllm"),
        ({"sampler": "vllm-server", "serve": True, "server_key": "f"}, "server_key is for"),
        ({"vllm": '{"max_num_seqs": 2}'}, r"settings of vLLM \(max_num_seqs\) are for sampler"),
        (
            {"sampler": "vllm-server", "server": "http://x", "vllm": '{"dtype": "float32"}'},
            "are for its own command line",
        ),
        ({"sampler": "vllm-server", "serve": True, "full": True}, "takes adapters only"),
        ({"sampler": "vllm", "vllm": "[1]"}, "vllm must be a JSON object"),
        ({"sampler": "vllm", "server_timeout": 0.0}, "server_timeout must be positive"),
    ],
)
def test_settings_of_sampling_that_do_not_belong_together_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        ATGRPOConfig(**options)


def config_of(words):
    found = parse(words).config
    assert found is not None
    return found


def test_options_with_a_dot_are_gathered_into_one(tmp_path):
    words = "--sampler vllm --vllm.max-num-seqs 4 --vllm.dtype=float32 --vllm.enforce_eager"
    config = config_of([*words.split(), "--env-args.max_turns", "2"])
    assert config.mapping("vllm") == {"max_num_seqs": 4, "dtype": "float32", "enforce_eager": True}
    assert config.mapping("env_args") == {"max_turns": 2}
    file = tmp_path / "c.yaml"
    file.write_text("sampler: vllm\nvllm: {max_num_seqs: 8}\n")
    assert config_of(["--config", str(file)]).mapping("vllm") == {"max_num_seqs": 8}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--vllm.tensor_paralel_size 2", "vllm.tensor_paralel_size; did you mean 'tensor_parallel"),
        ("--vllm.dtype float32 --vllm {}", "give either --vllm or --vllm.dtype, not both"),
        ("--vlm.dtype float32", "unknown option '--vlm.dtype'"),
    ],
)
def test_a_wrong_option_with_a_dot_says_what_to_do(words, error):
    with pytest.raises(ConfigError, match=error):
        parse(["--sampler", "vllm", *words.split()])


def test_a_resumed_run_takes_no_options_with_a_dot_either():
    with pytest.raises(ConfigError, match="leave out --vllm"):
        parse(["--resume", "runs/x", "--vllm.dtype", "float32"])


def test_the_servers_key_is_read_from_its_file(tmp_path):
    (tmp_path / "key").write_text("secret\n")
    settings: dict[str, Any] = {"sampler": "vllm-server", "server": "http://127.0.0.1:8000"}
    config = ATGRPOConfig(**settings, server_key=str(tmp_path / "key"))
    found = sampler_settings(config, tmp_path)
    assert found.key == "secret"
    with pytest.raises(ConfigError, match=r"server_key .*none cannot be read"):
        sampler_settings(ATGRPOConfig(**settings, server_key=str(tmp_path / "none")), tmp_path)
    assert sampler_settings(resolve(ATGRPOConfig()), tmp_path).name == "transformers"


def test_vllm_loads_the_revision_that_is_trained(tmp_path):
    config = ATGRPOConfig(model="x/y", revision="abc", sampler="vllm", vllm='{"dtype": "auto"}')
    assert sampler_settings(config, tmp_path).options == {"dtype": "auto", "revision": "abc"}


def test_every_sampler_opens_and_a_misspelt_one_is_refused_with_what_was_meant():
    assert all(callable(SAMPLERS.load(name)) for name in SAMPLERS.paths())
    with pytest.raises(UnknownNameError, match="unknown sampler 'vlm'; did you mean 'vllm'"):
        ATGRPOConfig(sampler="vlm")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
@pytest.mark.parametrize("name", ["vllm", "vllm-server"])
def test_where_vllm_is_missing_the_command_to_install_it_is_named(tmp_path, name):
    model_dir = save_tiny(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"not installed; pip install 'pettingllms\[vllm\]'"):
        load_policies(model_dir, {"coder": "a"}, sampler=SamplerSettings(name))


# ------------------------------------------------------------------------------- its parts


def test_a_request_leaves_nothing_that_shapes_the_distribution_to_the_server():
    body = completion_body("a@v1", (5, 6), 3, SamplingParams(7, 0.5, top_p=0.9), 11, (2,))
    neutral = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
    assert {name: body[name] for name in neutral} == neutral
    assert (body["n"], body["seed"], body["temperature"], body["top_p"]) == (3, 11, 0.5, 0.9)
    greedy = completion_body("a@v1", (5, 6), 3, SamplingParams(7, greedy=True), 11, (2,))
    assert (greedy["n"], greedy["seed"], greedy["temperature"]) == (1, None, 0.0)


@pytest.mark.parametrize(
    ("cold", "warm", "raw"), [(2.0, 1.0, False), (1.0, 1.0, True), (0.0, 0.0, False)]
)
def test_raw_log_probabilities_are_told_from_those_at_the_temperature(cold, warm, raw):
    assert ignores_temperature(cold, warm) is raw


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "", "http://"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="server must be a URL like"):
        VllmEndpoint(url)


def guarded(path, body=b"", method="POST", key=None, reads=True):
    """Status that the guard answers with; 0 where the request is let through."""
    sent, seen = [], []
    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]

    async def app(scope, receive, send):
        message = await receive()
        seen.append(message["body"])

    async def receive():
        assert reads
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "method": method, "headers": headers}
    asyncio.run(RequestGuard(app)(scope, receive, send))
    if seen:
        assert seen == [body]
        return 0
    return sent[0]["status"]


def test_the_guard_lets_published_adapters_through_and_nothing_else():
    def asking(model):
        return json.dumps({"model": model}).encode()

    assert guarded("/v1/completions", asking("coder@v1")) == 0
    assert guarded("/v1/models", method="GET") == 0
    assert guarded("/health", method="GET") == 0
    assert guarded("/v1/load_lora_adapter", b'{"lora_name": "x"}') == 0
    for body in (asking(BASE), b"{}", b"[]", b"\xff", b""):
        assert guarded("/v1/chat/completions", body) == 404
    for path in ("/metrics", "/invocations", "/adapters", "/v2/x", "/docs"):
        assert guarded(path, asking("coder@v1")) == 404


def test_the_guard_checks_the_key_before_it_reads_and_reads_no_more_than_a_bound(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "right")
    body = json.dumps({"model": "coder@v1"}).encode()
    assert guarded("/v1/completions", body, key="right") == 0
    for key in (None, "wrong"):
        assert guarded("/v1/completions", body, key=key, reads=False) == 401
    monkeypatch.setattr(vllm_process, "LARGEST_BODY", len(body) - 1)
    assert guarded("/v1/completions", body, key="right") == 413


@pytest.fixture
def web_server():
    """Any web server: it answers everything with a page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>welcome</html>")

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def foreign(server, model_dir):
    url = f"http://127.0.0.1:{server.server_address[1]}"
    sampler = SamplerSettings("vllm-server", url=url)
    return load_policies(model_dir, {"coder": "coder"}, lora_r=2, sampler=sampler)


def test_a_web_server_that_is_no_vllm_is_named(web_server, tmp_path):
    with pytest.raises(ConfigError, match=r"something else than JSON, '<html>.*no vLLM server"):
        foreign(web_server, save_tiny(tmp_path))


def test_a_failing_server_is_asked_again_after_growing_pauses(monkeypatch):
    pauses: list[float] = []
    tries: list[int] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    engine = object.__new__(vllm_server.VllmServerEngine)
    engine._process = None
    monkeypatch.setattr(engine, "_recover", lambda restart: None)

    def failing():
        tries.append(1)
        raise vllm_server._ServerTrouble(f"no {len(tries)}")

    with pytest.raises(SamplerUnavailable, match="failed 3 times: no 1; then no 2; then no 3;"):
        engine._with_retry(failing)
    assert pauses == list(vllm_server.RETRY_PAUSES)
    assert pauses == sorted(pauses)


def test_an_error_keeps_its_status():
    assert ServerError(404, "gone").status == 404


def test_the_log_has_how_far_the_trainer_is_from_the_sampler():
    samples = [Sample((1, 2), (3, 4), (-1.0, -2.0), 1.0, count=3)]
    [batch] = microbatches(samples, 100, packed=False)
    meter, bounds = LossMeter("a"), (0.8, 1.2)
    apart_BT = torch.tensor([[0.5, -0.25]])
    logp_BT = batch.old_logprobs_BT + apart_BT
    meter.add(bounds, batch, logp_BT, apart_BT.exp(), None, None, torch.zeros(()))
    found = meter.metrics(1.0, 0.0)
    expected = (torch.exp(apart_BT) - apart_BT - 1).mean().item()
    assert found["sampling/kl"] == pytest.approx(expected, rel=1e-5)
    assert found["sampling/sampling_logp_difference/max"] == pytest.approx(0.5)
    assert found["sampling/sampling_logp_difference/mean"] == pytest.approx(0.375)
