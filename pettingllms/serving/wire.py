"""Answers in the form of OpenAI's API: whole, or in the chunks of a stream."""

from __future__ import annotations

import codecs
import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pettingllms.envs.program_calls import message_of
from pettingllms.policies.chat import Chat, from_gemma, from_harmony
from pettingllms.samplers.continuous import Token
from pettingllms.serving.completing import Choice, Piece
from pettingllms.serving.requests import MESSAGES, CompletionRequest
from pettingllms.types import JsonObject

DONE = b"data: [DONE]\n\n"
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_UTF8 = codecs.getincrementaldecoder("utf-8")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""A token of one byte, of tokenizers that fall back to bytes."""
_PLAIN = (*range(33, 127), *range(161, 173), *range(174, 256))
_LETTERS = {chr(byte): byte for byte in _PLAIN} | {
    chr(256 + place): byte for place, byte in enumerate(sorted({*range(256)} - {*_PLAIN}))
}
"""The letter that stands for each byte in the tokens of byte-level tokenizers (GPT-2's table)."""
_LEAST = -9999.0
"""Stands for a log-probability of minus infinity, which JSON does not know."""


def event(content: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def error(message: str, status: int) -> JsonObject:
    """The body of an error."""
    error_type = {
        401: "authentication_error",
        404: "not_found_error",
        429: "rate_limit_error",
        500: "server_error",
        503: "server_error",
    }.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": error_type, "param": None, "code": None}}


def usage(prompt: int, new: int) -> dict[str, int]:
    """Numbers of tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


class Header:
    """The fields that all parts of one answer have in common."""

    def __init__(self, model: str, form: str, *, stream: bool) -> None:
        chat = form == MESSAGES
        object_type = (
            ("chat.completion.chunk" if stream else "chat.completion")
            if chat
            else "text_completion"
        )
        self._fields = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": object_type,
            "created": int(time.time()),
            "model": model,
        }

    def body(self, choices: Sequence[Mapping[str, Any]], **more: Any) -> JsonObject:
        """An answer or a chunk."""
        return {**self._fields, "choices": list(choices), **more}


class Writer:
    """Writes the answer to one request for completions."""

    def __init__(self, wanted: CompletionRequest, chat: Chat) -> None:
        self._wanted, self._chat = wanted, chat
        self._header = Header(wanted.role, wanted.form, stream=wanted.stream)
        self._messages = wanted.form == MESSAGES
        self._offsets: dict[int, tuple[codecs.IncrementalDecoder, int]] = {}
        """Number of a choice -> what decodes the bytes of its tokens, and their characters so far."""

    def whole(self, choices: Sequence[Choice], scores: Mapping[int, Sequence[Token]]) -> JsonObject:
        """The answer at once."""
        written = [self._choice(k, choice, scores) for k, choice in enumerate(choices)]
        return self._header.body(written, usage=self._usage(choices))

    def opening(self) -> list[bytes]:
        """The first events of a stream."""
        if not self._messages:
            return []
        opened = {"role": "assistant", "content": ""}
        count = self._wanted.n * len(self._wanted.prompts)
        return [
            event(self._header.body([{"index": k, "delta": opened, "finish_reason": None}]))
            for k in range(count)
        ]

    def pieces(self, pieces: Sequence[Piece]) -> bytes:
        """The events of new pieces; those that bring nothing to see are left out."""
        events = b""
        for piece in pieces:
            # A token that is half of a character brings no text yet, but has log-probabilities to
            # report.
            if not piece.text and piece.finish is None and self._wanted.likeliest is None:
                continue
            choice: JsonObject = {"index": piece.number}
            if self._messages:
                choice["delta"] = {"content": piece.text} if piece.text else {}
            else:
                choice["text"] = piece.text
            choice["logprobs"] = self._logprobs(piece.number, [piece.token])
            choice["finish_reason"] = piece.finish
            events += event(self._header.body([choice]))
        return events

    def closing(self, choices: Sequence[Choice]) -> bytes:
        """The last events of a stream."""
        last = DONE
        if self._wanted.usage:
            last = event(self._header.body([], usage=self._usage(choices))) + last
        return last

    def _usage(self, choices: Sequence[Choice]) -> dict[str, int]:
        return usage(
            sum(map(len, self._wanted.prompts)), sum(len(choice.tokens) for choice in choices)
        )

    def _choice(
        self, number: int, choice: Choice, scores: Mapping[int, Sequence[Token]]
    ) -> JsonObject:
        # Choices are numbered prompt by prompt.
        prompt = number // self._wanted.n
        finish = choice.finish or "length"
        if self._messages:
            text = choice.text
            if self._wanted.tools:
                text = from_gemma(from_harmony(text))
            message = message_of(text, uuid.uuid4().hex[:16], tools=self._wanted.tools)
            finish = "tool_calls" if "tool_calls" in message else finish
            content: JsonObject = {"message": message}
            logprobs = self._logprobs(number, choice.tokens)
        else:
            ids = self._wanted.prompts[prompt] if self._wanted.echo else ()
            content = {"text": self._text(ids) + choice.text}
            logprobs = self._logprobs(number, choice.tokens, ids, scores.get(prompt, ()))
        return {"index": number, **content, "logprobs": logprobs, "finish_reason": finish}

    # ------------------------------------------------------------------------ log-probabilities

    def _logprobs(
        self,
        number: int,
        tokens: Sequence[Token],
        prompt: Sequence[int] = (),
        scores: Sequence[Token] = (),
    ) -> JsonObject | None:
        if self._wanted.likeliest is None:
            return None
        if self._messages:
            return {"content": [self._of_chat(token) for token in tokens], "refusal": None}
        scored = [*scores, *tokens]
        ids = [*prompt[:1], *(token.id for token in scored)]
        nothing = [None] * len(prompt[:1])  # of the first token there is no distribution
        offsets = []
        # Kept between the chunks of a stream, whose offsets count from the start of the completion.
        decoder, offset = self._offsets.get(number) or (_UTF8("replace"), 0)
        for token in ids:
            offsets.append(offset)
            offset += len(decoder.decode(self._bytes(token)))
        self._offsets[number] = decoder, offset
        return {
            "tokens": [*map(self._name, ids)],
            "token_logprobs": [*nothing, *(max(token.logprob, _LEAST) for token in scored)],
            "top_logprobs": [*nothing, *map(self._table, scored)],
            "text_offset": offsets,
        }

    def _of_chat(self, token: Token) -> JsonObject:
        likeliest = [self._named(*pair) for pair in token.likeliest]
        return {**self._named(token.id, token.logprob), "top_logprobs": likeliest}

    def _named(self, token: int, logprob: float) -> JsonObject:
        data = list(self._bytes(token))
        return {"token": self._name(token), "logprob": max(logprob, _LEAST), "bytes": data}

    def _table(self, token: Token) -> dict[str, float]:
        """The likeliest tokens and the chosen one; others that look like it have their ids as names."""
        table = {self._name(token.id): max(token.logprob, _LEAST)}
        for other, logprob in token.likeliest:
            if other != token.id:
                name = self._name(other)
                table[f"token_id:{other}" if name in table else name] = max(logprob, _LEAST)
        return table

    def _name(self, token: int) -> str:
        """The text of a token; of a part of a character its bytes, as OpenAI writes them."""
        text = self._text([token])
        data = self._bytes(token)
        whole = data == text.encode()
        return text if whole else "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _bytes(self, token: int) -> bytes:
        """The bytes that a token stands for, which need not be whole characters."""
        text = self._text([token])
        if _UNFINISHED not in text:
            return text.encode()
        piece = str(self._chat.tokenizer.convert_ids_to_tokens(token))
        if _BYTE.fullmatch(piece):
            return bytes.fromhex(piece[3:5])
        decodable = all(letter in _LETTERS for letter in piece)
        return bytes(_LETTERS[letter] for letter in piece) if decodable else text.encode()

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._chat.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))
