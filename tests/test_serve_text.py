"""Text that comes in pieces is the text of the whole, whatever the tokens cut through."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.policies.chat import Chat
from pettingllms.samplers.base import SamplingParams
from pettingllms.samplers.continuous import Token
from pettingllms.serving.completing import Choice, Stops, TextStream
from pettingllms.serving.requests import MESSAGES, CompletionRequest
from pettingllms.serving.wire import Writer
from tests.tiny_lm import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
CHAT = Chat(TOKENIZER, [2])
TEXTS = st.text(st.sampled_from("ab é€😀\ufffd\n"), max_size=20)


def pushed(ids):
    stream = TextStream(CHAT.decode)
    return [*map(stream.push, ids), stream.rest()]


@given(TEXTS)
def test_the_pieces_of_a_stream_are_the_text(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    pieces = pushed(ids)
    assert "".join(pieces) == text
    assert len(ids) == len(text.encode())


@given(st.lists(st.integers(0, 258), max_size=40))
def test_the_pieces_of_any_tokens_are_what_the_tokenizer_says_of_all(ids):
    ids = [token for token in ids if token != 2]
    assert "".join(pushed(ids)) == CHAT.decode(ids)


def test_half_a_character_is_never_sent():
    ids = TOKENIZER.encode("a😀b", add_special_tokens=False)
    assert pushed(ids) == ["a", "", "", "", "😀", "b", ""]


@given(TEXTS, st.lists(st.text("ab é", min_size=1, max_size=4), max_size=3), st.data())
def test_a_stop_string_is_found_wherever_the_pieces_are_cut(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    edges = [0, *cuts, len(text)]
    watch = Stops(stops)
    shown = "".join(watch.push(text[a:b]) for a, b in pairwise(edges))
    if not watch.found:
        shown += watch.rest()
    places = [text.find(stop) for stop in stops if stop in text]
    assert watch.found == bool(places)
    if places:
        # What ends first counts, which may begin later than a longer stop string.
        assert text.startswith(shown)
        assert not any(stop in shown for stop in stops)
    else:
        assert shown == text


def choice(stops=()):
    return Choice(TextStream(CHAT.decode), Stops(stops), frozenset([2]))


def test_the_end_of_a_completion_gives_out_what_was_held_back():
    growing = choice(["abc"])
    ids = TOKENIZER.encode("xab", add_special_tokens=False)
    for token in ids[:-1]:
        growing.push(Token(0, token, 0.0, (), None))
    growing.push(Token(0, ids[-1], 0.0, (), "length"))
    assert (growing.text, growing.finish) == ("xab", "length")


def test_an_end_token_has_no_text_and_a_stop_string_wins_over_what_follows():
    growing = choice(["b"])
    for token in TOKENIZER.encode("ab", add_special_tokens=False):
        growing.push(Token(0, token, 0.0, (), None))
    assert (growing.text, growing.finish) == ("a", "stop")
    plain = choice()
    plain.push(Token(0, 70, 0.0, (), None))
    plain.push(Token(0, 2, 0.0, (), "stop"))
    assert (plain.text, plain.finish) == (TOKENIZER.decode([70]), "stop")


@pytest.mark.parametrize(
    "written",
    [
        "<|tool_call>call:add{a:2}<tool_call|>",
        '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 2}',
    ],
)
def test_native_calls_of_tools_are_answered_as_calls(written: str) -> None:
    wanted = CompletionRequest("coder", MESSAGES, ((1,),), 1, SamplingParams(8), 0, tools=True)
    choice = Choice(TextStream(CHAT.decode), Stops(()), frozenset(), text=written)
    [answered] = Writer(wanted, CHAT).whole([choice], {})["choices"]
    assert answered["finish_reason"] == "tool_calls"
    [call] = answered["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 2}'}
