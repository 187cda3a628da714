"""A trained team behind OpenAI's interface, asked by OpenAI's own client."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import signal
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
import torch

from pettingllms.cli import serve
from pettingllms.envs.aec import load_env as make
from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.policies.loading import load_policies
from pettingllms.samplers import vllm_args
from pettingllms.samplers.vllm_process import ServerError, VllmEndpoint
from pettingllms.serving import app, http
from pettingllms.serving.role_server import RoleServer
from pettingllms.types import Request
from tests.served import running, serving, serving_in_a_fork, trained

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
def server(policies):
    return RoleServer(policies, 12, make("tests.letters_env:env"), most_waiting=3)


@pytest.fixture(scope="module")
def url(server):
    with running(server, KEY) as base:
        yield base


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as asking:
        yield asking


def said(text):
    return [{"role": "user", "content": text}]


@pytest.mark.slow
def test_there_is_a_model_for_each_role(client):
    assert [model.id for model in client.models.list()] == ["writer", "reader"]


@pytest.mark.slow
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
    texts = [choice.message.content for choice in answer.choices]
    assert texts == [reply.text for reply in expected]
    assert texts != [reply.text for reply in other]
    reasons = [choice.finish_reason for choice in answer.choices]
    assert reasons == ["length" if reply.truncated else "stop" for reply in expected]
    assert answer.model == role
    assert answer.usage.completion_tokens == sum(len(reply.token_ids) for reply in expected)
    assert answer.usage.prompt_tokens == len(expected[0].prompt_ids)


@pytest.mark.slow
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
        ({"model": "team"}, 400, "takes no free question"),
        ({"tools": [{"type": "function"}]}, 400, "tools must be a list of functions"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "no place for tools"),
        ({"presence_penalty": 0.5}, 400, "'presence_penalty' is supported as 0 only, got '0.5'"),
        ({"response_format": {"type": "json_object"}}, 400, "'response_format' is supported as"),
        ({"extra_body": {"min_tokens": 4}}, 400, "parameter 'min_tokens' is supported as 0 only"),
        ({"stop": [""]}, 400, "stop must be a text or a list of at most 16, none empty"),
        ({"top_logprobs": 2}, 400, "top_logprobs needs logprobs: true"),
        ({"extra_body": {"stream": "yes"}}, 400, "stream must be true or false, got 'yes'"),
        ({"n": 128, "extra_body": {"n": 129}}, 400, "n must be a number from 1 to 128"),
        ({"n": 0}, 400, "n must be a number from 1 to 128, got '0'"),
        ({"n": True}, 400, "n must be a number"),
        ({"temperature": -1}, 400, "temperature must be a number from 0.0"),
        ({"max_tokens": 2000}, 400, "exceed the context of 1024"),
        ({"messages": []}, 400, "messages are missing"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "a message has the role 'king'"),
        ({"messages": [{"role": "user", "content": 3}]}, 400, "a content must be text, got a int"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client, changes, status, words):
    settings = {"model": "writer", "messages": said("x"), **changes}
    with pytest.raises(openai.APIStatusError) as error:
        client.chat.completions.create(**settings)
    assert error.value.status_code == status
    assert words in error.value.message


@pytest.mark.parametrize("name", ["tools", "stream_options"])
def test_a_value_that_no_answer_can_spell_is_refused_by_name(client, name):
    body = {"model": "writer", "messages": said("x"), name: "\ud800"}
    with pytest.raises(openai.BadRequestError, match=name):
        client.post("/chat/completions", cast_to=object, content=json.dumps(body).encode())


@pytest.mark.parametrize("body", [b"{", b"[]", b"[" * 100_000, b"\xff", b"[" + b"1," * 9])
def test_a_broken_body_is_refused(client, body):
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
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        with pytest.raises(ServerError, match="401: wrong or missing API key"):
            endpoint.post(path, {"model": "writer"}, 10)


def test_what_clients_send_by_default_changes_nothing(client):
    settings = {"model": "writer", "messages": said("x"), "max_tokens": 3, "seed": 5}
    plain = client.chat.completions.create(**settings)
    defaults = {
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "user": "me",
        "stop": None,
        "logprobs": False,
        "top_p": 1,
        "stream": False,
    }
    decorated = client.chat.completions.create(
        **settings,
        **defaults,
        extra_body={
            "top_k": -1,
            "repetition_penalty": 1.0,
            "min_tokens": 0,
            "use_beam_search": False,
        }
        | {"stop_token_ids": [], "length_penalty": 1.0, "chat_template_kwargs": {}, "echo": False}
        | {"stream_options": {"include_usage": True, "continuous_usage_stats": False}},
    )
    assert decorated.choices[0].message.content == plain.choices[0].message.content


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_roles_and_choices_of_tools_are_read_as_in_training(client, choice):
    settings = {
        "messages": said("x"),
        "max_tokens": 3,
        "seed": 5,
        "extra_body": {"tool_choice": choice},
    }
    plain = client.chat.completions.create(model="writer", messages=said("x"), max_tokens=3, seed=5)
    as_framework = client.chat.completions.create(model="openai/writer", **settings)
    assert as_framework.choices[0].message.content == plain.choices[0].message.content
    assert as_framework.model == "writer"


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_has_the_same_text_and_numbers_as_the_whole_answer(client, seed):
    settings = {"model": "reader", "messages": said("x"), "seed": seed, "n": 2, "max_tokens": 40}
    whole = client.chat.completions.create(**settings, logprobs=True, top_logprobs=2)
    texts, reasons, usage = ["", ""], [None, None], None
    tokens: list[list[Any]] = [[], []]
    for chunk in client.chat.completions.create(
        **settings,
        logprobs=True,
        top_logprobs=2,
        stream=True,
        stream_options={"include_usage": True},
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            if choice.logprobs is not None:
                tokens[choice.index] += choice.logprobs.content
        usage = chunk.usage or usage
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage
    assert [[t.token for t in of_choice] for of_choice in tokens] == [
        [t.token for t in choice.logprobs.content] for choice in whole.choices
    ]


def test_a_stop_string_ends_a_completion_also_across_tokens(client, policies):
    settings = {"model": "writer", "messages": said("hello"), "seed": 11, "max_tokens": 60}
    whole = client.chat.completions.create(**settings).choices[0].message.content
    start = next(k for k in range(5, len(whole) - 4) if whole.find(whole[k : k + 4]) == k)
    stop = whole[start : start + 4]
    assert len(policies.chat.tokenizer.encode(stop)) >= 4
    stopped = client.chat.completions.create(**settings, stop=["never said", stop])
    assert stopped.choices[0].message.content == whole[:start]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens < 60
    pieces = client.chat.completions.create(**settings, stop=stop, stream=True)
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == whole[:start]


def test_log_probabilities_are_those_of_sampling(client, policies):
    settings = {"max_tokens": 6, "temperature": 0.7, "seed": 3}
    answer = client.completions.create(model="writer", prompt=[5, 6, 7], logprobs=4, **settings)
    [[expected]] = policies.sample(
        [Request("writer", (5, 6, 7), 3)], 1, max_new_tokens=6, temperature=0.7
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs.token_logprobs == pytest.approx(list(expected.logprobs), abs=1e-4)
    # Also of tokens that look alike each has its own entry, and the chosen one under its name.
    assert all(4 <= len(table) <= 5 for table in logprobs.top_logprobs)
    for name, value, table in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert table[name] == value <= max(table.values())
    chat = client.chat.completions.create(
        model="writer", messages=said("x"), logprobs=True, top_logprobs=3, max_tokens=2
    )
    for token in chat.choices[0].logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob <= token.top_logprobs[0].logprob <= 0


def test_parts_of_a_character_have_their_bytes_and_stand_where_it_does(client):
    text = "né日😀"
    completion = client.completions.create(
        model="writer", prompt=text, max_tokens=0, echo=True, logprobs=1
    )
    logprobs = completion.choices[0].logprobs
    named = [name.removeprefix("bytes:").replace("\\x", "") for name in logprobs.tokens]
    data = [
        bytes.fromhex(name) if spelled.startswith("bytes:") else name.encode()
        for name, spelled in zip(named, logprobs.tokens, strict=True)
    ]
    assert b"".join(data) == text.encode()
    assert len(data) > len(text)
    starts = [len(b"".join(data[:place]).decode(errors="ignore")) for place in range(len(data))]
    assert logprobs.text_offset == starts
    for seed in range(3):
        [choice] = client.chat.completions.create(
            model="writer", messages=said("x"), seed=seed, temperature=2.0, logprobs=True
        ).choices
        joined = b"".join(bytes(token.bytes) for token in choice.logprobs.content)
        assert joined.decode(errors="replace").startswith(choice.message.content)


def test_a_prompt_is_scored_token_by_token_for_evaluation_harnesses(client, policies):
    prompts = [[5, 6, 7, 8], [9, 10], [11]]
    for tokens in (0, 1):
        answer = client.completions.create(
            model="writer",
            prompt=prompts,
            echo=True,
            logprobs=1,
            max_tokens=tokens,
            temperature=0,
        )
        model = policies.sampling_model("writer")
        for choice, ids in zip(answer.choices, prompts, strict=True):
            with torch.no_grad():
                logprobs_PV = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            expected = [logprobs_PV[place, token].item() for place, token in enumerate(ids[1:])]
            scored = choice.logprobs
            assert scored.token_logprobs[0] is None
            assert scored.token_logprobs[1 : len(ids)] == pytest.approx(expected, abs=1e-4)
            assert len(scored.tokens) == len(ids) + tokens
            assert scored.top_logprobs[0] is None
            likeliest = [max(table.values()) for table in scored.top_logprobs[1 : len(ids)]]
            best = logprobs_PV.max(-1).values.tolist()[: len(ids) - 1]
            assert likeliest == pytest.approx(best, abs=1e-4)
        text = policies.chat.tokenizer.decode(prompts[0])
        assert answer.choices[0].text.startswith(text)


def test_a_tokenizer_is_served_as_vllm_does(url):
    endpoint = VllmEndpoint(url, KEY)
    assert endpoint.get("/tokenizer_info", 10)["eos_token"] == "<|end|>"
    tokens = endpoint.post("/tokenize", {"prompt": "añb", "add_special_tokens": False}, 10)
    assert tokens["count"] == len(tokens["tokens"]) == 4
    decoded = endpoint.post("/detokenize", {"tokens": tokens["tokens"]}, 10)
    assert decoded == {"prompt": "añb"}
    for path, body in (("/tokenize", {"prompt": 3}), ("/detokenize", {"tokens": [-1]})):
        with pytest.raises(ServerError, match="400"):
            endpoint.post(path, body, 10)


def test_a_role_without_a_prompt_of_its_own_says_so(client):
    model = client.models.retrieve("writer")
    assert model.role_prompt is None
    assert "takes no free question" in model.prompt
    with pytest.raises(openai.NotFoundError, match="did you mean 'writer'"):
        client.models.retrieve("writr")


def test_many_choices_are_all_there_and_drawn_apart(client):
    answer = client.chat.completions.create(model="writer", messages=said("x"), n=128, max_tokens=8)
    assert [choice.index for choice in answer.choices] == list(range(128))
    # The tiny model says some texts twice, so that 99 to 119 differ; choices that share random numbers would be 64 or fewer.
    assert len({choice.message.content for choice in answer.choices}) > 64


# ------------------------------------------------------------------------------ bad neighbors


def connected(url):
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=30)


def head(length, key=KEY, path="/v1/chat/completions"):
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def test_a_body_is_not_read_before_the_key_is_checked(url):
    with connected(url) as connection:
        connection.sendall(head(10 << 20, key="wrong"))  # and not a byte of the body
        assert connection.recv(200).startswith(b"HTTP/1.1 401")


def test_headers_that_never_come_end_the_connection_and_others_go_on(url, client, monkeypatch):
    monkeypatch.setattr(app, "HEADER_SECONDS", 0.2)
    begun = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    with connected(url) as silent, connected(url) as slow, connected(url) as kept:
        slow.sendall(begun)
        kept.sendall(begun + b"\r\n")
        assert kept.recv(200).startswith(b"HTTP/1.1 200")
        assert (silent.recv(1), slow.recv(1)) == (b"", b"")
        kept.sendall(begun + b"\r\n")  # between two requests a client may take longer
        assert kept.recv(200).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/v1/embeddings", "POST", 404), ("/", "GET", 404), ("/v1/completions", "GET", 405)],
)
def test_an_unknown_path_is_an_error_that_clients_can_read(url, path, method, status):
    with connected(url) as connection:
        line = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(line.encode())
        answer = b"".join(iter(lambda: connection.recv(4000), b"")).decode()
    assert answer.startswith(f"HTTP/1.1 {status}")
    message = json.loads(answer.partition("\r\n\r\n")[2])["error"]["message"]
    assert f"no {method} {path} here; there are GET /v1/models" in message


def test_the_name_of_the_scheme_may_be_written_in_any_case():
    assert all(http.authorized(f"{name} key", "key") for name in ("Bearer", "bearer", "BEARER"))
    assert not any(http.authorized(header, "key") for header in ("Basic key", "key", "", None))


def test_a_body_of_ten_megabytes_is_refused_before_it_is_sent(url):
    with connected(url) as connection:
        connection.sendall(head(10 << 20))
        assert connection.recv(200).startswith(b"HTTP/1.1 413")


def test_a_body_without_a_length_is_refused_where_it_gets_too_large(url):
    chunked = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with connected(url) as connection:
        connection.sendall(chunked)
        with contextlib.suppress(OSError):  # the server closes while we still send
            for _ in range(10):
                connection.sendall(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
        assert connection.recv(200).startswith(b"HTTP/1.1 413")


def test_a_body_that_never_comes_does_not_hold_others_up(url, client, monkeypatch):
    monkeypatch.setattr(http, "BODY_SECONDS", 0.5)
    with connected(url) as connection:
        connection.sendall(head(100) + b"{")
        answer = client.chat.completions.create(model="writer", messages=said("x"), max_tokens=2)
        assert answer.choices
        assert connection.recv(200).startswith(b"HTTP/1.1 408")


def endless(stream, n=1):
    """A request that goes on for as long as the context allows, as a body."""
    content = {"model": "writer", "prompt": [5], "max_tokens": 1000, "n": n, "stream": stream}
    return json.dumps(content | {"temperature": 10.0}).encode()


def until(condition):
    while not condition():
        threading.Event().wait(0.01)


@pytest.mark.parametrize("stream", [True, False])
def test_the_rows_of_a_client_that_leaves_leave_the_batch(url, server, stream):
    until(lambda: not server.worker.rows)
    body = endless(stream, n=20)
    with connected(url) as connection:
        connection.sendall(head(len(body), path="/v1/completions") + body)
        until(lambda: server.worker.rows > 10)  # a few may have ended by themselves
    until(lambda: not server.worker.rows)
    assert server.worker.running


def test_a_full_queue_is_said_at_once_and_when_to_come_back(url, server):
    body = endless(False, n=128)
    with contextlib.ExitStack() as stack:
        # It takes all room that it may, and more than the three completions that may wait do.
        connection = stack.enter_context(connected(url))
        connection.sendall(head(len(body), path="/v1/completions") + body)
        until(lambda: server.worker.rows > 10)
        assert server.worker.waiting > 3
        body = endless(False)
        last = stack.enter_context(connected(url))
        last.sendall(head(len(body), path="/v1/completions") + body)
        answer = last.recv(1000)
        assert answer.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 2" in answer.lower()
    until(lambda: not server.worker.rows)


# -------------------------------------------------------------------------------- the command


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.timeout(300)
def test_the_command_serves_a_run_and_stops_when_told_also_while_sampling(run, number, tmp_path):
    if number == signal.SIGTERM:  # of which engine the run was trained with nothing is left
        run = shutil.copytree(run, tmp_path / "run")
        config = run / "config.yaml"
        config.write_text(
            config.read_text().replace("sampler: transformers", "sampler: no.such:it")
        )
        assert "no.such" in config.read_text()
    with contextlib.ExitStack() as stack:
        # As it is typed, or with the same signals in a fork.
        start = serving if number == signal.SIGINT else serving_in_a_fork
        served = start(run, "--sampler", "transformers", end=number, seconds=20.0)
        base, key = stack.enter_context(served)
        assert number == signal.SIGTERM or len(key) > 20  # a random one
        with openai.OpenAI(base_url=base, api_key=key, max_retries=0) as asking:
            answer = asking.chat.completions.create(model="reader", messages=said("hello"))
        assert answer.usage is not None
        assert 0 < answer.usage.completion_tokens <= 12
        with pytest.raises(ServerError, match="401"):
            VllmEndpoint(base.removesuffix("/v1"), "no").get("/v1/models", 10)
        body = endless(True, n=128)
        connection = stack.enter_context(connected(base))
        connection.sendall(head(len(body), key, "/v1/completions") + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        served.__exit__(None, None, None)
        # Who was being answered learns why it ends there.
        rest = b""
        while chunk := connection.recv(1 << 16):
            rest += chunk
        assert b"the server is stopping" in rest


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "name the run first: pettingllms-serve runs/latest"),
        (["--port", "8000"], "name the run first"),
        (["runs/x", "--prot", "8000"], "unknown option '--prot'; did you mean '--port'"),
        (["runs/x", "--sampler", "vlm"], "sampler must be one of auto, vllm, transformers"),
        (["runs/x", "--api-key", "k"], "unknown option '--api-key'.* give --key-file FILE"),
        (["runs/x", "--api-key=k"], "unknown option '--api-key'.* give --key-file FILE"),
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
        serve._run(str(tmp_path), serve.ServeOptions())


def test_a_host_that_is_not_ours_and_a_port_that_is_taken_have_different_cures(run, capsys):
    words = [str(run), "--sampler", "transformers"]
    for host in ("300.1.1.1", "192.0.2.7"):
        assert serve.main([*words, "--host", host]) == 2
        assert "give an address of this machine to --host" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert serve.main([*words, "--port", str(taken.getsockname()[1])]) == 2
    assert "Address already in use; choose another --port" in capsys.readouterr().err


def test_without_vllm_the_advice_is_for_users_of_pip(run, capsys):
    if vllm_args.installed():
        pytest.skip("vLLM is installed here")
    assert serve.main([str(run), "--sampler", "vllm", "--port", "8941"]) == 2
    error = capsys.readouterr().err
    assert "pip install 'pettingllms[vllm]'" in error
    assert ".ci" not in error


def test_on_a_cpu_vllm_is_taken_only_where_it_is_asked_for(run, capsys, monkeypatch):
    monkeypatch.setattr(vllm_args, "installed", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = [str(run), "--port", str(taken.getsockname()[1])]
        for more in ([], ["--sampler", "vllm"], ["--vllm.max_num_seqs", "8"]):
            assert serve.main([*words, *more]) == 2
            assert ("serving with transformers: on a CPU" in capsys.readouterr().out) == (not more)


def test_full_models_are_refused_for_vllm(run):
    from pettingllms.runs import read_config
    from pettingllms.trainers.config import resolve

    config = resolve(dataclasses.replace(read_config(run), full=True))
    with pytest.raises(ConfigError, match=r"full models, .* use --sampler transformers"):
        serve.vllm_process(config, ROLES, serve.ServeOptions(), Path("log"))


def test_options_of_vllm_may_be_given_one_by_one():
    _, options = serve.parse(["RUN", "--vllm.max-num-seqs", "8", "--vllm.enforce_eager"])
    assert json.loads(options.over["vllm"]) == {"max_num_seqs": 8, "enforce_eager": True}
