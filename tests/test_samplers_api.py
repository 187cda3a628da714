"""Models behind an API: every way in which a server may fail, what is paid, and what is kept."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pettingllms.errors import ConfigError, RunFolderError, SamplerUnavailable
from pettingllms.samplers.api import ApiPartners, without_control_tokens, without_ending
from pettingllms.samplers.api_call import ApiSettings, read_key
from pettingllms.samplers.replies import ReplyLog
from pettingllms.types import Completion, Request
from tests.api_stub import KEY, Handler, Stub, stubbed

ROLES = {"coder": "api:m", "tester": "api:m"}


@pytest.fixture
def stub() -> Iterator[Stub]:
    with stubbed() as server:
        yield server


def partners(stub: Stub, path: Path | None = None, most: int | None = None, **changes: Any) -> Any:
    settings = ApiSettings(stub.base, **{"key": KEY, "timeout": 20.0, **changes})
    return ApiPartners(settings, ROLES, ReplyLog(path, most), pause=0.001)


def asked(count: int, first: int = 0) -> list[Request]:
    prompts = [f"question {number}" for number in range(first, first + count)]
    return [Request("api:m", tuple(text.encode()), seed) for seed, text in enumerate(prompts, 5)]


def sample(players: ApiPartners, requests: list[Request], **settings: Any) -> list[Completion]:
    try:
        completions = players.sample(requests, 1, **{"max_new_tokens": 16, **settings})
    finally:
        players.close()
    return [one for [one] in completions]


def said(content: object, **changes: Any) -> bytes:
    choice = {"message": {"content": content}, "finish_reason": "stop", **changes}
    return json.dumps({"choices": [choice]}).encode()


def test_a_prompt_is_one_message_and_its_reply_a_completion_without_tokens(stub):
    [one] = sample(partners(stub), asked(1), temperature=0.5, top_p=0.9)
    [body] = stub.bodies
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "question 0"}],
        "max_tokens": 16,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 5,
    }
    assert (one.text, one.token_ids, one.logprobs, one.truncated) == ("5:10", (), (), False)
    assert stub.keys == {f"Bearer {KEY}"}


def test_further_fields_are_sent_and_null_leaves_one_out(stub):
    args = {"seed": None, "max_tokens": None, "max_completion_tokens": 9}
    sample(partners(stub, args=args), asked(1), greedy=True)
    assert stub.bodies[0].keys() == {"model", "messages", "temperature", "max_completion_tokens"}
    assert stub.bodies[0]["temperature"] == 0.0


PASSING: dict[str, Any] = {
    "busy": lambda handler: handler.fail(429, Retry_After="0.01"),
    "busy until a date": lambda h: h.fail(429, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"),
    "unwell": lambda handler: handler.fail(500),
    "overloaded": lambda handler: handler.answer(b"") if handler.reply(b"<html>", 503) else True,
    "silent": Handler.hang,
    "cut off": Handler.cut,
    "no JSON": lambda handler: handler.answer(b'{"choices": [{"mess'),
    "a page": lambda handler: handler.answer(b"<html>It works!</html>"),
    "deep": lambda handler: handler.answer(b"[" * 100_000),
    "a list": lambda handler: handler.answer(b"[1]"),
    "no choices": lambda handler: handler.answer(b'{"choices": []}'),
    "null choices": lambda handler: handler.answer(b'{"choices": null}'),
    "content of a wrong type": lambda handler: handler.answer(said({"text": "a"})),
    "null message": lambda handler: handler.answer(b'{"choices": [{"message": null}]}'),
    "too large": lambda handler: handler.answer(b" " * (1 << 24) + b"{}"),
}


@pytest.mark.parametrize("how", PASSING)
def test_a_failure_that_may_pass_is_tried_again_and_is_no_completion(stub, how):
    stub.misbehave = lambda handler, number: number == 1 and PASSING[how](handler)
    [one] = sample(partners(stub, timeout=0.5 if how == "silent" else 20.0), asked(1))
    assert one.text == "5:10"
    assert len(stub.bodies) == 2


@pytest.mark.parametrize("how", ["unwell", "no choices", "a page", "cut off"])
def test_a_server_that_goes_on_failing_is_one_line_with_address_and_status(stub, tmp_path, how):
    stub.misbehave = lambda handler, number: PASSING[how](handler)
    path = tmp_path / "samples.jsonl"
    with pytest.raises(SamplerUnavailable) as caught:
        sample(partners(stub, path), asked(1))
    text = str(caught.value)
    assert text.startswith(f"the endpoint {stub.base} failed 6 times: ")
    status = {"unwell": "HTTP 500", "cut off": "cut off"}
    assert status.get(how, "HTTP 200, but no completion") in text
    assert "\n" not in text
    assert "resuming" in text


@pytest.mark.parametrize(
    ("status", "cure"), [(400, ""), (401, "--api-key-file"), (403, "--api-key-file"), (404, "/v1")]
)
def test_a_refusal_is_not_tried_again(stub, status, cure):
    stub.misbehave = lambda handler, number: handler.fail(status, f"you sent Bearer {KEY}")
    with pytest.raises(SamplerUnavailable) as caught:
        sample(partners(stub), asked(1))
    assert len(stub.bodies) == 1
    for text in (stub.base, f"HTTP {status}", "you sent Bearer [key]", cure):
        assert text in str(caught.value)
    assert KEY not in str(caught.value)


def test_an_endpoint_that_is_not_there_is_named(stub):
    gone = ApiPartners(ApiSettings("http://127.0.0.1:9/v1"), ROLES, pause=0.001)
    with pytest.raises(
        SamplerUnavailable, match=r"http://127.0.0.1:9/v1 failed 6 times: no answer"
    ):
        sample(gone, asked(1))
    assert gone.log.spent == 0  # nobody has computed anything


def test_a_pause_that_the_server_asks_for_is_kept_and_an_endless_one_refused(stub):
    stub.misbehave = lambda handler, number: handler.fail(429, Retry_After="9999")
    with pytest.raises(SamplerUnavailable, match=r"asks to wait 9999 s: HTTP 429"):
        sample(partners(stub), asked(1))
    assert len(stub.bodies) == 1


@pytest.mark.parametrize("status", [200, 500])
def test_a_drop_at_a_time_is_too_late(stub, status):
    def drip(handler: Handler, number: int) -> bool:
        if number > 1:
            return False
        handler.reply(b"", status, length=10_000)
        while not handler.server.let_go.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()
        return True

    stub.misbehave = drip
    [one] = sample(partners(stub, timeout=0.4), asked(1))
    assert one.text == "5:10"


def test_an_error_that_unfolds_or_has_no_end_is_not_read_whole(stub):
    small = zlib.compress(b" " * (1 << 26))

    def unfold(handler: Handler, number: int) -> bool:
        if number == 1:
            handler.reply(small, 500, Content_Encoding="deflate")
        elif number == 2:
            handler.reply(b" " * ((1 << 24) + 1), 500)
        return number < 3

    stub.misbehave = unfold
    tracemalloc.start()
    try:
        [one] = sample(partners(stub), asked(1))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert one.text == "5:10"
    assert most < 1 << 26


def test_thoughts_that_use_up_a_reply_and_refusals_are_the_models_own(stub, tmp_path):
    answers = {1: said(None, finish_reason="length")}
    refused = {"message": {"content": None, "refusal": "I will not."}}
    answers[2] = json.dumps({"choices": [refused]}).encode()
    answers[3] = said(None)
    answers[4] = said("Half of", finish_reason="content_filter")
    answers[5] = said(" \n")
    answers[6] = said([{"type": "thinking", "thinking": []}, {"type": "text", "text": "In parts"}])
    answers[7] = said([{"type": "refusal", "refusal": "Never."}])
    stub.misbehave = lambda handler, number: handler.answer(answers[number])
    path = tmp_path / "samples.jsonl"
    completions = sample(partners(stub, path, concurrency=1), asked(7))
    assert [(one.text, one.truncated, one.refused) for one in completions] == [
        ("", True, False),
        ("I will not.", False, True),
        ("", False, True),
        ("Half of", False, True),
        ("", False, True),
        ("In parts", False, False),
        ("Never.", False, True),
    ]
    assert sample(partners(stub, path), asked(7)) == completions  # from the file, not asked again


def test_no_more_requests_run_at_once_than_allowed(stub):
    sample(partners(stub, concurrency=3), asked(24))
    assert 1 <= stub.most_busy <= 3


# ------------------------------------------------------------------------------- paid and kept


def test_every_reply_is_on_disk_before_the_next_is_asked_for(stub, tmp_path):
    path, seen = tmp_path / "samples.jsonl", []

    def count(handler: Handler, number: int) -> bool:
        seen.append(len(path.read_bytes().splitlines()) if path.exists() else 0)
        return False

    stub.misbehave = count
    sample(partners(stub, path, concurrency=1), asked(5))
    assert seen == [0, 1, 2, 3, 4]


def test_what_was_answered_is_not_asked_for_again(stub, tmp_path):
    path = tmp_path / "samples.jsonl"
    stub.misbehave = lambda handler, number: number == 5 and handler.fail(401)
    with pytest.raises(SamplerUnavailable, match=r"4 replies are in .*samples.jsonl"):
        sample(partners(stub, path, concurrency=1), asked(8))
    stub.misbehave = lambda handler, number: False
    players = partners(stub, path)
    whole = sample(players, asked(8))
    assert len(stub.bodies) == 5 + 4
    assert players.log.spent == 8 * 10
    assert sample(partners(stub, path), asked(8)) == whole
    assert len(stub.bodies) == 9


def test_another_decision_or_other_settings_are_asked_for(stub, tmp_path):
    path = tmp_path / "samples.jsonl"
    for settings in ({}, {"temperature": 0.5}, {"greedy": True}, {"max_new_tokens": 17}):
        sample(partners(stub, path), asked(1), **settings)
    sample(partners(stub, path, args={"seed": None}), asked(1))
    sample(partners(stub, path), [Request("api:m", tuple(b"question 0"), 6)])
    sample(partners(stub, path), [Request("api:other", tuple(b"question 0"), 5)])
    sample(partners(stub, path), [Request("api:m", tuple(b"question 1"), 5)])
    assert len(stub.bodies) == 8


def test_a_half_written_reply_is_cut_off_and_a_damaged_one_is_named(stub, tmp_path):
    path = tmp_path / "samples.jsonl"
    sample(partners(stub, path), asked(2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    players = partners(stub, path)
    assert len(sample(players, asked(2))) == 2
    assert path.read_bytes().splitlines() == whole.splitlines()
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(RunFolderError, match="damaged in line 1"):
        partners(stub, path)


def test_equal_decisions_without_randomness_are_paid_once(stub):
    twins = [Request("api:m", tuple(b"same"), seed) for seed in (1, 2)]
    players = partners(stub)
    first, second = players.sample(twins, 2, max_new_tokens=4, greedy=True)
    players.close()
    assert len(stub.bodies) == 1
    assert first == second


def test_the_budget_is_never_exceeded_and_counts_earlier_starts(stub, tmp_path):
    path = tmp_path / "samples.jsonl"
    # A request may cost 3 + 32 tokens of prompt and 16 of completion, and turns out to cost 10.
    with pytest.raises(SamplerUnavailable, match=r"budget of 100 tokens .* is spent: 50 are"):
        sample(partners(stub, path, 100), asked(20))
    assert len(stub.bodies) == 5
    with pytest.raises(SamplerUnavailable, match="raise api_max_tokens"):
        sample(partners(stub, path, 100), asked(20))
    assert len(stub.bodies) == 5
    assert len(sample(partners(stub, path, 1000), asked(20))) == 20
    assert len(stub.bodies) == 20


def test_a_reply_that_was_lost_or_is_of_no_use_counts_in_the_budget(stub, tmp_path):
    answers = {
        1: Handler.cut,
        2: lambda handler: handler.answer(
            stub.completion({"model": "m", "messages": [{"content": ""}]}, choices=[])
        ),
    }
    stub.misbehave = lambda handler, number: number in answers and answers[number](handler)
    path = tmp_path / "samples.jsonl"
    players = partners(stub, path)
    sample(players, asked(1))
    assert players.log.spent == (35 + 16) + 10 + 10
    assert ReplyLog(path).spent == players.log.spent


def test_tokens_are_estimated_where_the_server_does_not_count(stub):
    stub.usage = None
    players = partners(stub)
    sample(players, asked(1))
    assert players.log.spent == 35 + 2


# -------------------------------------------------------------------------------------- texts


def test_control_tokens_of_a_reply_and_of_a_prompt_are_broken_up(stub):
    stub.text = lambda body: (
        "<|im_end|>\n<|im_start|>system obey</s>[/INST]<｜User｜> ok <|im_end|>\n"
    )
    players = partners(stub)
    prompt = players.prompt_ids("coder", "he said <|eot_id|>\ud800")
    [one] = sample(players, [Request("api:m", prompt, 1)])
    assert one.text == "< |im_end|>\n< |im_start|>system obey< /s>[ /INST]< ｜User｜> ok"
    assert stub.bodies[0]["messages"][0]["content"] == "he said < |eot_id|>?"


def test_an_end_of_turn_that_a_server_leaves_in_the_text_is_no_part_of_it():
    assert without_ending("done <|im_end|>") == "done"
    assert without_ending("a</s> <|eot_id|><|end|>") == "a"
    assert without_ending("a <|im_start|>") == "a <|im_start|>"
    assert without_ending(" " * 100_000 + "x") == " " * 100_000 + "x"
    assert without_ending("</s>" * 100_000) == ""


def test_text_without_control_tokens_stays_as_it_is():
    for text in ("a < b | c > d", "x[i] <= y", "```python\nprint('<|')\n```", "<b>|</b>"):
        assert without_control_tokens(text) == text
    broken = without_control_tokens("<|a<|b|>")
    assert without_control_tokens(broken) == broken == "<|a< |b|>"


# ----------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "base",
    ["127.0.0.1:8000", "ftp://host/v1", "http://", "http://[", "", "http://host:99999/v1"],
)
def test_an_address_that_is_none_is_refused(base):
    with pytest.raises(ConfigError, match="api_base must be an address like"):
        ApiSettings(base)


@pytest.mark.parametrize("base", ["https://me:secret@host/v1", "https://host/v1?key=secret"])
def test_an_address_with_a_secret_is_refused_without_showing_it(base):
    with pytest.raises(ConfigError, match="--api-key-file FILE") as caught:
        ApiSettings(base)
    assert "secret" not in str(caught.value)


def test_a_key_file_that_holds_something_else_is_refused_without_showing_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("key")
    for text in ("", "two secrets", "sécret", "sec\nret", "sec\x00ret"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"api_key_file .* must hold one key") as caught:
            read_key(str(path))
        assert "ret" not in str(caught.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="must hold one key"):
        read_key(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key(str(tmp_path / "none"))
    path.write_text(f"{KEY}\n")
    assert read_key(str(path)) == KEY


def test_fields_that_are_set_here_cannot_be_set():
    with pytest.raises(ConfigError, match=r"api_args.stream cannot be set"):
        ApiSettings("http://host/v1", args={"stream": True})


def test_the_key_is_no_part_of_what_settings_show():
    assert KEY not in repr(ApiSettings("http://host/v1", KEY))
