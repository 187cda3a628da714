"""The interface in front of another server, here one of our own; tests/test_vllm_serve.py has vLLM's."""

from __future__ import annotations

import json
import socket
import threading
from urllib.parse import urlsplit

import openai
import pytest
import torch

from pettingllms.envs import make
from pettingllms.models import EMBEDDED
from pettingllms.policies.loading import load_policies
from pettingllms.samplers.vllm_process import ServerError, VllmEndpoint, free_port
from pettingllms.serving.proxy import VllmServer, players_of
from pettingllms.serving.role_server import RoleServer
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
        assert players.context == inner.reader.players.context
        assert players.chat.end_ids == inner.reader.players.chat.end_ids
        with running(
            VllmServer(players, endpoint, 100, make("coding", prompt="compact")), OUTER
        ) as front:
            yield front


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key=OUTER, max_retries=0) as found:
        yield found


def said(text):
    return [{"role": "user", "content": text}]


SETTINGS = {"model": "coder", "messages": said("Print the sum."), "seed": 4, "max_tokens": 30}


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


def test_its_models_are_the_roles_and_the_team(client):
    assert [model.id for model in client.models.list()] == ["coder", "tester", "team"]
    assert client.models.retrieve("coder").role_prompt == "coder\n{question}"
    for name in ("base", "nobody"):
        with pytest.raises(openai.NotFoundError, match=f"no model '{name}'"):
            client.completions.create(model=name, prompt="x")


def test_errors_of_the_inner_server_are_passed_on(client):
    with pytest.raises(openai.BadRequestError, match="'min_tokens' is not supported"):
        client.chat.completions.create(**SETTINGS, extra_body={"min_tokens": 1})
    with pytest.raises(openai.BadRequestError, match="messages must be a list"):
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
