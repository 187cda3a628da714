"""A trained team behind OpenAI's interface, asked by OpenAI's own client."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path

import pytest
import torch

from pettingllms.cli import serve
from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.policies.loading import load_policies
from pettingllms.samplers.vllm_process import ServerError, VllmEndpoint, free_port
from pettingllms.types import Request
from tests.served import serving, trained

openai = pytest.importorskip("openai")
uvicorn = pytest.importorskip("uvicorn")
http = pytest.importorskip("pettingllms.serving")
torch.set_num_threads(1)
ROLES = {"writer": "writer", "reader": "reader"}
KEY = "a-key"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def policies(run):
    return load_policies(run.parent / "model", ROLES, adapters=run / "adapters")


@pytest.fixture(scope="module")
def url(policies):
    """The interface in a thread of this process."""
    port = free_port("127.0.0.1")
    settings = uvicorn.Config(
        http.application(http.RoleServer(policies, 12, {}), KEY), port=port, log_level="warning"
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    base = f"http://127.0.0.1:{port}"
    while True:
        try:
            if VllmEndpoint(base).healthy(1.0):
                break
        except OSError:
            assert thread.is_alive()
    yield base
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as found:
        yield found


def said(text):
    return [{"role": "user", "content": text}]


def test_there_is_a_model_for_each_role(client):
    assert [model.id for model in client.models.list()] == ["writer", "reader"]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_answers_as_its_own_policy_does(client, policies, role):
    settings = {"max_tokens": 10, "temperature": 0.8, "seed": 7, "n": 3}
    answer = client.chat.completions.create(model=role, messages=said("hello"), **settings)
    expected, other = (
        policies.sample(
            [Request(policy, policies.prompt_ids(role, "hello"), 7)],
            3,
            max_new_tokens=10,
            temperature=0.8,
        )[0]
        for policy in (ROLES[role], next(name for name in ROLES if name != role))
    )
    found = [choice.message.content for choice in answer.choices]
    assert found == [reply.text for reply in expected]
    assert found != [reply.text for reply in other]
    reasons = [choice.finish_reason for choice in answer.choices]
    assert reasons == ["length" if reply.truncated else "stop" for reply in expected]
    assert answer.model == role
    assert answer.usage.completion_tokens == sum(len(reply.token_ids) for reply in expected)
    assert answer.usage.prompt_tokens == len(expected[0].prompt_ids)


def test_temperature_zero_takes_the_likeliest_tokens(client):
    answer = client.chat.completions.create(
        model="writer", messages=said("hello"), temperature=0, n=3
    )
    assert len({choice.message.content for choice in answer.choices}) == 1


def test_a_conversation_and_parts_of_text_are_rendered_by_the_template(client, policies):
    turns = [
        {"role": "system", "content": "be brief"},
        *said("hello"),
        {"role": "assistant", "content": "yes"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "and "}, {"type": "text", "text": "now"}],
        },
    ]
    answer = client.chat.completions.create(model="reader", messages=turns, max_tokens=2)
    plain = [*turns[:3], {"role": "user", "content": "and now"}]
    ids = policies.chat.tokenizer.apply_chat_template(
        plain, add_generation_prompt=True, return_dict=False
    )
    assert answer.usage.prompt_tokens == len(ids)


def test_plain_completions_take_text_or_token_ids(client):
    settings = {"model": "writer", "max_tokens": 5, "seed": 1}
    text = client.completions.create(prompt="ab", **settings)
    ids = client.completions.create(prompt=[68, 69], **settings)
    assert text.usage.prompt_tokens == 2
    assert text.object == "text_completion"
    assert len({text.choices[0].text, ids.choices[0].text}) in (1, 2)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"model": "writr"}, 404, "no model 'writr'; did you mean 'writer'"),
        ({"model": "base"}, 404, "no model 'base'"),
        ({"stream": True}, 400, "stream is not supported"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "'tools' is not"),
        ({"stop": "x"}, 400, "parameter 'stop' is not supported"),
        ({"logprobs": True}, 400, "parameter 'logprobs' is not supported"),
        ({"n": 0}, 400, "n must be a number from 1 to 128, got '0'"),
        ({"n": True}, 400, "n must be a number"),
        ({"temperature": -1}, 400, "temperature must be a number from 0.0"),
        ({"max_tokens": 2000}, 400, "exceed the context of 1024"),
        ({"messages": []}, 400, "messages must be a list of messages, and not empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "a message needs a role"),
        ({"messages": [{"role": "user", "content": 3}]}, 400, "a message needs a role"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client, changes, status, words):
    settings = {"model": "writer", "messages": said("x"), **changes}
    with pytest.raises(openai.APIStatusError) as error:
        client.chat.completions.create(**settings)
    assert error.value.status_code == status
    assert words in error.value.message


@pytest.mark.parametrize("body", [b"{", b"[]", b"[" * 100_000, b" " * ((1 << 20) + 1)])
def test_a_broken_or_huge_body_is_refused(client, body):
    with pytest.raises(openai.BadRequestError):
        client.post(
            "/chat/completions",
            cast_to=object,
            content=body,
            options={"headers": {"Content-Type": "application/json"}},
        )


@pytest.mark.parametrize("key", [None, "wrong", "a-key-and-more"])
def test_a_wrong_key_gets_nothing(url, key):
    endpoint = VllmEndpoint(url, key)
    with pytest.raises(ServerError, match="401: wrong or missing API key"):
        endpoint.get("/v1/models", 10)
    for path in ("/v1/chat/completions", "/v1/completions"):
        with pytest.raises(ServerError, match="401: wrong or missing API key"):
            endpoint.post(path, {"model": "writer"}, 10)


# -------------------------------------------------------------------------------- the command


@pytest.mark.timeout(300)
def test_the_command_serves_a_run_with_a_random_key_and_stops_when_told(run):
    with serving(run, "--backend", "transformers") as (base, key):
        assert len(key) > 20
        with openai.OpenAI(base_url=base, api_key=key, max_retries=0) as asking:
            answer = asking.chat.completions.create(model="reader", messages=said("hello"))
        assert 0 < answer.usage.completion_tokens <= 12
        with pytest.raises(ServerError, match="401"):
            VllmEndpoint(base.removesuffix("/v1"), "no").get("/v1/models", 10)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "name the run first: pettingllms-serve runs/latest"),
        (["--port", "8000"], "name the run first"),
        (["runs/x", "--prot", "8000"], "unknown option '--prot'; did you mean '--port'"),
        (["runs/x", "--backend", "vlm"], "backend must be one of auto, vllm, transformers"),
        (["runs/x", "--port", "0"], "port must be from 1 to 65535, got 0"),
    ],
)
def test_a_wrong_command_line_says_what_to_do(words, error):
    with pytest.raises(ConfigError, match=error):
        serve.parse(words)


def test_a_folder_without_a_run_and_a_wrong_key_file_are_named(run, tmp_path, capsys):
    assert serve.main([str(tmp_path)]) == 2
    assert "is no run folder" in capsys.readouterr().err
    assert serve.main([str(run), "--key-file", str(tmp_path / "no")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    with pytest.raises(RunFolderError):
        serve._run(tmp_path, serve.ServeOptions())


def test_full_models_are_refused_for_vllm(run):
    from pettingllms.runs import read_config
    from pettingllms.trainers.config import resolve

    config = resolve(dataclasses.replace(read_config(run), full=True))
    with pytest.raises(ConfigError, match=r"full models, .* use --backend transformers"):
        serve.vllm_process(config, ROLES, serve.ServeOptions(), KEY, Path("log"))


def test_options_of_vllm_may_be_given_one_by_one():
    _, options = serve.parse(["RUN", "--vllm.max-num-seqs", "8", "--vllm.enforce_eager"])
    assert json.loads(options.over["vllm"]) == {"max_num_seqs": 8, "enforce_eager": True}
