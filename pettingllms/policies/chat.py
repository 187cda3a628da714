"""Renders observations with the chat template into prompt tokens, and decodes completions.

All formatting of conversations is here. Completions are decoded for the environment only; training
uses the sampled token ids.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pettingllms.errors import ConfigError
from pettingllms.types import TOOL_CALL, Conversation

logger = logging.getLogger(__name__)

_THOUGHT = ("<think>", "</think>")
"""The tags around a model's thought in what environments see."""
_TAGS = (
    _THOUGHT,
    ("<thinking>", "</thinking>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("[THINK]", "[/THINK]"),  # Mistral's Magistral
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),  # gpt-oss
)
_HARMONY = re.compile(r"<\|start\|>[a-z]*|<\|(?:channel|constrain|end|message|return)\|>")
"""What stands between the channels of gpt-oss: tokens, and the role behind one of them."""


REFUSALS = (TemplateError, TypeError)
"""What a template raises that does not take a conversation: `items` of arguments that are a list is a `TypeError`."""
_MARKS = re.compile(r"</?(?:think|tool_call|tool_response|tools)>")
"""Of chat templates, where they are texts and no tokens of control."""


def _broken(match: re.Match[str]) -> str:
    return f"{match[0][0]} {match[0][1:]}"


class Chat:
    """A tokenizer with its chat template and the template's settings.

    Args:
        tokenizer: has a chat template.
        end_ids: token ids that end the model's turn.
        template_kwargs: passed on to the template (`enable_thinking=False`, ...).

    Raises:
        ConfigError: the tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: Sequence[int],
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no chat template; use the "
                "model's instruct variant, or put a chat_template.jinja beside its tokenizer"
            )
        self.tokenizer = tokenizer
        self.end_ids = tuple(end_ids)
        self.pad_id = int(tokenizer.pad_token_id or 0)
        self._kwargs = dict(template_kwargs or {})
        for name in self._kwargs:
            if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
                # No error: a team has them for all of its models, of which some may think.
                logger.warning("the chat template of %s has no %s", tokenizer.name_or_path, name)
        # Llama 3 lists the tokens that open a turn here only, not among `all_special_tokens`.
        added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        specials = {*filter(None, tokenizer.all_special_tokens), *added}
        # Longest first, because an alternative that comes first wins, and one token may begin with
        # another.
        special = sorted(specials, key=lambda token: (-len(token), token))
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self.thought = self._own_tags()
        # Some tokenizers list these among the special tokens, which are left out of texts.
        self._thoughts = {
            number: str(token)
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special
            and (
                str(token) in (*self.thought, *TOOL_CALL, *GEMMA_MARKS)
                or (self._channels and _HARMONY.match(str(token)))
            )
        }

    def _own_tags(self) -> tuple[str, str]:
        """The tags that the template writes, or that are tokens; `<think>` where none is found."""
        tokens = {str(token) for token in self.tokenizer.added_tokens_decoder.values()}
        text = str(self.tokenizer.chat_template)
        for tags in _TAGS:
            # The template of gpt-oss puts the name of a channel together from parts.
            if tags[0].partition("analysis")[0] in text or tags[1] in text or tokens >= {*tags}:
                return tags
        return _THOUGHT

    @property
    def _channels(self) -> bool:
        """True if replies have channels, and end with the one that is called final."""
        return self.thought == _TAGS[-1]

    @cached_property
    def opens_thought(self) -> bool:
        """True if the template itself writes the tag of the thought that a completion continues."""
        text = str(self.tokenizer.decode(list(self.prompt_ids("?"))))
        opening, closing = self.thought
        return text.rfind(opening) > text.rfind(closing)

    def prompt_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of one user turn followed by the opening of the model's turn.

        Control tokens spelled out in `text` are broken up by a space, so that text written by one
        role cannot open or close a turn in the prompt of another. Lone surrogates become `?`.

        Raises:
            ConfigError: `text` is a `Conversation` that the chat template does not take.
        """
        if not isinstance(text, Conversation):
            return self.conversation_ids([{"role": "user", "content": text}])
        try:
            return self.conversation_ids(text.messages, text.tools)
        except REFUSALS as error:
            roles = ", ".join(message["role"] for message in text.messages)
            raise ConfigError(
                f"the chat template of {self.tokenizer.name_or_path!r} does not take this conversation "
                f"({roles}): {error}"
            ) from error

    def conversation_ids(
        self, turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Token ids of a conversation, as in OpenAI's chat completions, then the model's turn opens.

        Every text in it is treated as in `prompt_ids`, those of `tools` as well; marks of the template
        that are no control tokens (`</tool_response>`, `<think>`) are broken up in what users and tools say.

        Raises:
            ConfigError: there are tools, and the template has no place for them.
            REFUSALS: the template does not take such a conversation.
        """
        if tools and "tools" not in str(self.tokenizer.chat_template):
            raise ConfigError(
                f"the chat template of {self.tokenizer.name_or_path!r} has no place for tools; use a "
                "model that was trained to call them, or describe them in a message"
            )
        ids = self.tokenizer.apply_chat_template(
            [self._turn(turn) for turn in turns],
            tools=self._all_plain(tools) or None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **self._kwargs,
        )
        return tuple(ids)

    def _turn(self, turn: Mapping[str, Any]) -> Any:
        plain = self._all_plain(turn)
        if plain["role"] in ("user", "tool"):
            plain["content"] = _MARKS.sub(_broken, plain["content"])
        for call in plain.get("tool_calls", ()):
            # Templates write objects; clients send arguments as the text that they were given.
            with contextlib.suppress(ValueError, RecursionError):
                arguments = json.loads(call["function"]["arguments"])
                # Again: an escape such as \u003c can spell a control token.
                call["function"]["arguments"] = self._all_plain(arguments)
        return plain

    def _all_plain(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._plain(value)
        if isinstance(value, Mapping):
            return {self._plain(str(key)): self._all_plain(entry) for key, entry in value.items()}
        return [*map(self._all_plain, value)] if isinstance(value, list | tuple) else value

    def _plain(self, text: str) -> str:
        # Lone surrogates, which JSON can spell, are no UTF-8, and tokenizers refuse them.
        text = text.encode("utf-8", "replace").decode("utf-8")
        return self._special.sub(_broken, text)

    def completion_ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a completion that says `text` and ends the turn."""
        ids = self.tokenizer(self._plain(text), add_special_tokens=False)["input_ids"]
        end = self.tokenizer.eos_token_id
        return (*ids, end if end in self.end_ids else self.end_ids[0])

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a completion, without its end of turn and without special tokens."""
        ids = list(token_ids)
        # The sampler stops at the first one, so that only the last token can be one.
        if ids and ids[-1] in self.end_ids:
            del ids[-1]
        texts, first = list[str](), 0
        for place, number in enumerate(ids):
            if number in self._thoughts:
                texts += [self._text(ids[first:place]), self._thoughts[number]]
                first = place + 1
        return "".join([*texts, self._text(ids[first:])])

    def reply(self, text: str) -> str:
        """A decoded completion as environments read it: thoughts in `<think>`, calls in `<tool_call>`."""
        if self._channels:
            text = from_harmony(text)
        elif GEMMA_MARKS[0] in str(self.tokenizer.chat_template):
            text = from_gemma(text)
        if self.opens_thought:
            text = f"{self.thought[0]}{text}"
        for tag, common in zip(self.thought, _THOUGHT, strict=True):
            text = text.replace(tag, common)
        return _HARMONY.sub("", text) if self._channels else text

    def _text(self, ids: Sequence[int]) -> str:
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)


def end_of_turn_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Collects the token ids that end the model's turn: its generation config's and the tokenizer's.

    Raises:
        ConfigError: neither has one; sampling would never stop by itself.
    """
    config = model.generation_config
    listed = config.eos_token_id if config is not None else None
    ids = [listed] if isinstance(listed, int) else list(listed or [])
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    if not ids:
        raise ConfigError(
            f"model {model.name_or_path!r} names no end-of-turn token; set eos_token_id in its "
            "generation_config.json"
        )
    # Sorted: the order of a set must not reach a request.
    return tuple(sorted({int(token) for token in ids}))


# ------------------------------------------------------------------------ calls in native forms
# Calls of tools in the forms of gpt-oss and Gemma 4, rewritten as `<tool_call>{...}</tool_call>`.
#
#     <|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 2}      gpt-oss
#     to=functions.add<|channel|>commentary json<|message|>{"a": 2}                    its other order
#     <|tool_call>call:add{a:2,b:<|"|>text<|"|>}<tool_call|>                           Gemma 4
#
# A malformed call stays as it was written.


CHANNEL = r"(?:<\|channel\|>(?:commentary|analysis))?"
HARMONY_FINAL = "<|channel|>final<|message|>"
"""Ends the thought of gpt-oss, and opens its reply."""
_HARMONY_CALL = re.compile(
    CHANNEL
    + r"\s*to=functions\.(?P<name>[\w.-]+)\s*"
    + CHANNEL
    + r"\s*(?:<\|constrain\|>)?(?:json)?\s*<\|message\|>(?P<arguments>(?:[^<]|<(?!\|))*)"
)
GEMMA_MARKS = ("<|tool_call>", "<tool_call|>", '<|"|>')
_GEMMA_CALL = re.compile(
    r"<\|tool_call>call:(?P<name>[\w.-]+)(?P<arguments>\{.*?\})(?:<tool_call\|>|$)", re.DOTALL
)
_BARE_KEY = re.compile(r"([{,]\s*)([\w.-]+)(\s*:)")


def from_harmony(text: str) -> str:
    """A reply of gpt-oss, its calls in the common form, as its final channel."""

    def rewritten(match: re.Match[str]) -> str:
        call = _common(match["name"], match["arguments"])
        if call is None:
            return match[0]
        is_final = HARMONY_FINAL in text[: match.start()]
        return call if is_final else f"{HARMONY_FINAL}{call}"

    return _HARMONY_CALL.sub(rewritten, text)


def from_gemma(text: str) -> str:
    """A reply of Gemma 4, its calls in the common form."""
    return _GEMMA_CALL.sub(
        lambda match: _common(match["name"], _gemma_json(match["arguments"])) or match[0], text
    )


def _gemma_json(text: str) -> str:
    """Arguments as JSON: Gemma writes keys without quotes, and a token in place of each quote."""
    pieces = text.split(GEMMA_MARKS[2])
    strings = [json.dumps(piece) for piece in pieces[1::2]]
    pieces[::2] = [_BARE_KEY.sub(r'\1"\2"\3', piece) for piece in pieces[::2]]
    pieces[1::2] = strings
    return "".join(pieces)


def _common(name: str, arguments: str) -> str | None:
    try:
        value = json.loads(arguments)
        if not isinstance(value, dict):
            return None
        text = json.dumps({"name": name, "arguments": value}, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    # No argument may spell the closing tag, or that of a thought.
    escaped = text.replace("<", "\\u003c")
    return f"{TOOL_CALL[0]}{escaped}{TOOL_CALL[1]}"
