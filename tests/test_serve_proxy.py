"""The interface in front of another server, here one of our own; tests/test_vllm_serve.py has vLLM's."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import openai
import pytest
import torch

from pettingllms.envs import make
from pettingllms.models import EMBEDDED
from pettingllms.policies.loading import load_policies
from pettingllms.samplers.base import SamplingParams
from pettingllms.samplers.vllm_process import ServerError, VllmEndpoint, free_port
from pettingllms.serving.proxy import VllmServer, players_of
from pettingllms.serving.role_server import RoleServer
from pettingllms.serving.team import Left
from pettingllms.serving.worker import Stopped
from pettingllms.types import Request
from tests.served import running

torch.set_num_threads(1)
ROLES = {"coder": "coder", "tester": "tester"}
INNER, OUTER = "key-of-the-inner-server", "a-key"


@pytest.fixture(scope="module")
def inner():
    """Without an environment it knows no prompts of roles, as vLLM does not."""
    return RoleServer(load_policies(EMBEDDED, ROLES), 100)


@pytest.fixture(scope="module")
def url(inner):
    with running(inner, INNER) as behind:
        endpoint = VllmEndpoint(behind, INNER)
        players = players_of(str(EMBEDDED), ROLES, endpoint)
        assert set(players.contexts.values()) == set(inner.reader.players.contexts.values())
        assert players.chat.end_ids == inner.policies.chat.end_ids
        with running(
            VllmServer(players, endpoint, 100, make("coding", prompt="compact")), OUTER
        ) as front:
            yield front


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key=OUTER, max_retries=0) as asking:
        yield asking


def said(text):
    return [{"role": "user", "content": text}]


SETTINGS = {"model": "coder", "messages": said("Print the sum."), "seed": 4, "max_tokens": 30}


@pytest.mark.slow
def test_a_role_is_asked_as_in_training_and_answers_as_it_came(client, inner):
    answer = client.chat.completions.create(**SETTINGS)
    ids = inner.policies.prompt_ids("coder", "coder\nPrint the sum.")
    assert answer.usage.prompt_tokens == len(ids)
    chunks = list(client.chat.completions.create(**SETTINGS, stream=True))
    assert len(chunks) > 2
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == answer.choices[0].message.content
    raw = client.chat.completions.create(**SETTINGS, extra_body={"role_prompt": False})
    plain = inner.policies.prompt_ids("coder", "Print the sum.")
    assert raw.usage.prompt_tokens == len(plain)
    parts = [{"type": "text", "text": "Print the sum."}]
    settings = {**SETTINGS, "messages": [{"role": "user", "content": parts}]}
    assert client.chat.completions.create(**settings).usage == answer.usage
    prefixed = client.chat.completions.create(**{**SETTINGS, "model": "openai/coder"})
    assert prefixed.usage == answer.usage


def test_its_models_are_the_roles_and_the_team(client):
    assert [model.id for model in client.models.list()] == ["coder", "tester", "team"]
    assert client.models.retrieve("coder").role_prompt == "coder\n{question}"
    for name in ("base", "nobody"):
        with pytest.raises(openai.NotFoundError, match=f"no model '{name}'"):
            client.completions.create(model=name, prompt="x")


def test_errors_of_the_inner_server_are_passed_on(client):
    with pytest.raises(openai.BadRequestError, match="'min_tokens' is supported as 0 only"):
        client.chat.completions.create(**SETTINGS, extra_body={"min_tokens": 1})
    with pytest.raises(openai.BadRequestError, match="messages are missing"):
        client.chat.completions.create(**{**SETTINGS, "messages": "x"})


def test_the_key_of_the_inner_server_is_none_of_the_outer(url):
    for key in (None, INNER):
        with pytest.raises(ServerError, match="401"):
            VllmEndpoint(url, key).post("/v1/completions", {"model": "coder", "prompt": "x"}, 10)


def test_a_client_that_leaves_ends_its_request_behind(url, inner):
    content = {"model": "coder", "prompt": [5], "max_tokens": 1500, "temperature": 10.0, "n": 20}
    body = json.dumps({**content, "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OUTER}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(head + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    while inner.worker.rows:
        threading.Event().wait(0.01)


def test_a_server_that_is_gone_is_said(inner):
    nobody = VllmEndpoint(f"http://127.0.0.1:{free_port('127.0.0.1')}", INNER)
    server = VllmServer(inner.reader.players, nobody, 100, make("coding", prompt="compact"))
    with running(server, None) as front:
        for body, path in (
            ({"model": "coder", "prompt": "x"}, "/v1/completions"),
            ({"model": "team", "messages": said("Print 1.")}, "/v1/chat/completions"),
        ):
            with pytest.raises(ServerError, match="503: vLLM's server"):
                VllmEndpoint(front).post(path, body, 30)


# ------------------------------------------------------------------- a team's turn, as it comes


def event(ids, finish=None):
    """A part of a completion as vLLM sends it."""
    choice = {"index": 0, "text": "", "token_ids": ids, "finish_reason": finish}
    choice["logprobs"] = {"token_logprobs": [-0.5] * len(ids)}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


@contextlib.contextmanager
def scripted(parts, status=200):
    """A server that answers everything with these bytes; a client that leaves sets `gone`."""
    gone = threading.Event()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            try:
                for chunk in parts:
                    self.wfile.write(chunk)
            except OSError:
                gone.set()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield VllmEndpoint(f"http://127.0.0.1:{server.server_address[1]}"), gone
        server.shutdown()
        thread.join()


def spoken(inner, endpoint, heard):
    server = VllmServer(inner.reader.players, endpoint, 100)
    return server._speak("coder", Request("coder", (5, 6), 3), SamplingParams(20), heard)


def test_a_turn_is_heard_piece_by_piece_and_known_whole_at_its_end(inner):
    chat = inner.policies.chat
    ids = [*chat.tokenizer.encode("größer ☃ than", add_special_tokens=False), chat.end_ids[0]]
    parts = [event(ids[:2]), b": a comment\n\n", event([])]
    parts += [event([token]) for token in ids[2:-1]]
    parts += [event(ids[-1:], "stop"), b"data: [DONE]\n\n"]
    pieces: list[str] = []
    with scripted(parts) as (endpoint, _):
        completion = spoken(inner, endpoint, pieces.append)
    assert completion.token_ids == tuple(ids)
    assert completion.logprobs == (-0.5,) * len(ids)
    assert not completion.truncated
    assert "".join(pieces) == completion.text == "größer ☃ than"
    assert len([piece for piece in pieces if piece]) > 3


def test_whoever_leaves_in_the_middle_of_a_turn_ends_it_behind(inner):
    def leave(_):
        raise Left("gone")

    with scripted(event([9]) for _ in itertools.count()) as (endpoint, gone):
        with pytest.raises(Left):
            spoken(inner, endpoint, leave)
        assert gone.wait(30)


@pytest.mark.parametrize(
    ("parts", "status", "says"),
    [
        ([event([9])], 200, "broke off in the middle"),
        ([event([], "stop")], 200, "broke off in the middle"),
        ([event([9]), b'data: {"error": {"message": "out of memory"}}\n\n'], 200, "out of memory"),
        ([b"data: <html>\n\n"], 200, "not JSON"),
        ([b'{"error": {"message": "no such adapter"}}'], 404, "404: no such adapter"),
    ],
    ids=["cut", "empty", "error-event", "no-json", "status"],
)
def test_a_turn_that_fails_says_why(inner, parts, status, says):
    with scripted(parts, status) as (endpoint, _), pytest.raises(Stopped, match=says):
        spoken(inner, endpoint, lambda _: None)
