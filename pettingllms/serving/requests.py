"""Bodies of requests: checked parameter by parameter, turned into prompts and settings.

A parameter is known, or has a value that changes nothing (clients send many such by default), or is
refused by its name. A plain question to a role becomes the role's prompt of training
(`pettingllms.envs.questions`): the first user turn is put in its place, what comes after follows by the chat
template. `"role_prompt": false` leaves the conversation as it is; text completions are always raw.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pettingllms.envs.program_calls import messages_of, role_named, stops_of, tools_of
from pettingllms.envs.questions import RolePrompt
from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.policies.chat import REFUSALS, Chat
from pettingllms.samplers.base import SamplingParams

TEAM = "team"
"""The model name of the whole team."""
MOST_CHOICES = 128
"""Completions of one request, those of all its prompts together."""
MOST_LIKELIEST = 20
MESSAGES, PROMPT = "messages", "prompt"

_COMMON = ("model", "n", "temperature", "top_p", "seed", "max_tokens", "stream", "stream_options")
_KNOWN = {
    MESSAGES: (
        *_COMMON,
        *("messages", "max_completion_tokens", "stop", "logprobs", "top_logprobs", "role_prompt"),
        *("tools", "tool_choice"),
    ),
    PROMPT: (*_COMMON, "prompt", "stop", "logprobs", "echo"),
}
_NOTED = ("user", "metadata", "safety_identifier", "prompt_cache_key")
"""Labels that ask for nothing."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("presence_penalty", "frequency_penalty", "min_p", "min_tokens", "priority"), (0,)
    ),
    **dict.fromkeys(("repetition_penalty", "length_penalty", "best_of"), (1,)),
    **dict.fromkeys(("logit_bias", "chat_template_kwargs"), ({},)),
    **dict.fromkeys(("functions", "bad_words", "stop_token_ids"), ([],)),
    **dict.fromkeys(
        (
            *("store", "ignore_eos", "add_special_tokens", "continue_final_message", "echo"),
            *("early_stopping", "include_stop_str_in_output", "return_token_ids"),
            *("return_tokens_as_token_ids", "use_beam_search"),
        ),
        (False,),
    ),
    **dict.fromkeys(
        (
            *("skip_special_tokens", "add_generation_prompt", "include_reasoning"),
            "spaces_between_special_tokens",
        ),
        (True,),
    ),
    "top_k": (0, -1),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "suffix": ("",),
}
"""Values with which a parameter changes nothing."""
_STREAMED = ("continuous_usage_stats", "include_obfuscation")
"""Options of streams that are not there, and may be false."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A checked request for completions of prompts."""

    role: str
    form: str
    """`MESSAGES` or `PROMPT`."""
    prompts: tuple[tuple[int, ...], ...]
    n: int
    """Completions of each prompt."""
    params: SamplingParams
    seed: int
    stop: tuple[str, ...] = ()
    likeliest: int | None = None
    """How many tokens to report log-probabilities of beside each chosen one; None: of none at all."""
    echo: bool = False
    stream: bool = False
    usage: bool = False
    """Whether a stream ends with the numbers of tokens."""
    tools: bool = False
    """Whether calls of tools are read from the reply."""


@dataclass(frozen=True, slots=True)
class TeamRequest:
    """A checked request for the whole team."""

    question: str
    params: SamplingParams
    seed: int
    stream: bool = False
    usage: bool = False


class Players(Protocol):
    """The roles of a team, as a `PolicySet` has them."""

    roles_to_policies: dict[str, str]
    contexts: dict[str, int]
    """Policy -> most tokens of a prompt and its completion together."""

    def chat_for(self, policy: str) -> Chat:
        """The policy's tokenizer and template."""

    def policy_for(self, role: str) -> str:
        """The policy that plays a role."""

    def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
        """The tokens of an observation."""


class RequestReader:
    """Reads the bodies of requests for roles of one team.

    Args:
        players: the roles, their tokenizers and contexts.
        prompts: role -> its prompt for a question, for those that have one.
        max_tokens: length of a completion if the request does not set it.
    """

    def __init__(
        self, players: Players, prompts: Mapping[str, RolePrompt], max_tokens: int
    ) -> None:
        self.players, self._max_tokens = players, max_tokens
        self.roles = tuple(players.roles_to_policies)
        self.prompts = {role: prompt for role, prompt in prompts.items() if role in self.roles}
        self._elsewhere = [role for role in prompts if role not in self.roles]
        """Roles that models behind an API play, without whom there is no team here."""

    @property
    def models(self) -> tuple[str, ...]:
        """The names that `model` may have."""
        whole = bool(self.prompts) and not self._elsewhere
        team_name = TEAM if whole and TEAM not in self.roles else None
        return self.roles if team_name is None else (*self.roles, team_name)

    def for_team(self, body: Mapping[str, Any]) -> bool:
        """Returns whether a body asks for the whole team; a role of that name takes precedence."""
        return role_named(body.get("model")) == TEAM and TEAM not in self.roles

    def chat(self, role: str) -> Chat:
        """The tokenizer and template of a role."""
        return self.players.chat_for(self.players.policy_for(role))

    def context(self, role: str) -> int:
        """Most tokens of a role's prompt and its completion; of the team, those of any role."""
        if role not in self.roles:
            return min(map(self.context, self.roles))
        return self.players.contexts[self.players.policy_for(role)]

    def role(self, body: Mapping[str, Any]) -> str:
        """The role that a body asks.

        Raises:
            UnknownNameError: there is none of that name.
        """
        model = body.get("model")
        if (role := role_named(model)) not in self.roles:
            raise UnknownNameError(f"no model {model!r}; {did_you_mean(role, self.models)}")
        return role

    def read(self, body: Mapping[str, Any], form: str) -> CompletionRequest:
        """Checks a body for a role; `form` is `MESSAGES` or `PROMPT`.

        Raises:
            UnknownNameError: no such role.
            ConfigError: a parameter that is missing, unsupported or out of range.
        """
        check_names(body, form)
        role = self.role(body)
        if form not in body:
            raise ConfigError(f"{form} is missing")
        prompts = self._prompts(role, body, form)
        n = number(body, "n", 1, 1, MOST_CHOICES, int)
        if n * len(prompts) > MOST_CHOICES:
            raise ConfigError(
                f"{len(prompts)} prompts with n={n} are more than {MOST_CHOICES} completions; "
                "send fewer at once"
            )
        echo = flag(body, "echo")
        stream = flag(body, "stream")
        tools = bool(tools_of(body))
        if stream and (echo or tools):
            what = "echo is" if echo else "tools are"
            raise ConfigError(f"{what} not supported in a stream; leave out one of the two")
        return CompletionRequest(
            role,
            form,
            prompts,
            n,
            self._params(body, max(map(len, prompts)), self.context(role), fewest=0 if echo else 1),
            seed_of(body),
            stop=stops_of(body.get("stop")),
            likeliest=_likeliest(body, form),
            echo=echo,
            stream=stream,
            usage=_usage(body),
            tools=tools,
        )

    def read_team(self, body: Mapping[str, Any], form: str) -> TeamRequest:
        """Checks a body for the whole team.

        Raises:
            ConfigError: as in `read`, or what asks for something that is not one question.
        """
        check_names(body, form)
        if form != MESSAGES:
            raise ConfigError("the team plays on a question; send messages to /v1/chat/completions")
        if not self.prompts:
            raise ConfigError(
                "this team's environment takes no free question, so that the team cannot play one; "
                f"ask one of {', '.join(self.roles)}"
            )
        if self._elsewhere:
            raise ConfigError(
                f"{', '.join(self._elsewhere)} of this team is played by a model behind an API, which "
                f"is not served here; ask one of {', '.join(self.roles)}"
            )
        for name in ("stop", "logprobs", "top_logprobs", "role_prompt", "tools"):
            if body.get(name):
                raise ConfigError(f"{name} is for a single role; the team plays by its own rules")
        number(body, "n", 1, 1, 1, int)
        turns = turns_of(body.get(MESSAGES))
        if [turn["role"] for turn in turns] != ["user"]:
            raise ConfigError(
                "the team plays on one question: send a single user message, without a system "
                f"prompt or earlier turns; got {', '.join(turn['role'] for turn in turns)}"
            )
        question = turns[0]["content"]
        if not question.strip():
            raise ConfigError("the question is empty")
        lengths = {
            role: len(self.players.prompt_ids(role, prompt.of(question)))
            for role, prompt in self.prompts.items()
        }
        # The first prompts only; later ones are checked when the team gets there.
        least = min(lengths, key=lambda role: self.context(role) - lengths[role])
        return TeamRequest(
            question,
            self._params(body, lengths[least], self.context(least), fewest=1),
            seed_of(body),
            stream=flag(body, "stream"),
            usage=_usage(body),
        )

    def _params(
        self, body: Mapping[str, Any], prompt: int, context: int, *, fewest: int
    ) -> SamplingParams:
        room = context - prompt
        # OpenAI's newer name goes before the older one.
        limit = number(body, "max_completion_tokens", None, fewest, 1 << 30, int)
        if limit is None:
            limit = number(body, "max_tokens", None, fewest, 1 << 30, int)
        if limit is None:
            # A default may shrink to what is left; a limit that was asked for is refused below.
            limit = max(1, min(self._max_tokens, room))
        if limit > room:
            raise ConfigError(
                f"{prompt} tokens of prompt and {limit} of completion exceed the context of "
                f"{context}; shorten the prompt or lower max_tokens"
            )
        temperature = number(body, "temperature", 1.0, 0.0, 10.0, float)
        return SamplingParams(
            limit,
            # Below this a logit divided by the temperature may overflow.
            float(temperature) if temperature >= 1e-4 else 1.0,
            greedy=temperature < 1e-4,
            top_p=float(number(body, "top_p", 1.0, 1e-6, 1.0, float)),
        )

    def _prompts(
        self, role: str, body: Mapping[str, Any], form: str
    ) -> tuple[tuple[int, ...], ...]:
        if form == MESSAGES:
            turns = turns_of(body[MESSAGES])
            if flag(body, "role_prompt", default=True):
                turns = asked(turns, self.prompts.get(role))
            try:
                return (self.chat(role).conversation_ids(turns, tools_of(body)),)
            except REFUSALS as error:
                raise ConfigError(
                    f"the chat template refuses this conversation: {error}"
                ) from error
        raw = body[PROMPT]
        # A list of numbers is one prompt in tokens, a list of anything else is several.
        several = isinstance(raw, list) and raw and not isinstance(raw[0], int)
        return tuple(self._raw(role, prompt) for prompt in (raw if several else [raw]))

    def _raw(self, role: str, prompt: Any) -> tuple[int, ...]:
        tokenizer = self.chat(role).tokenizer
        if isinstance(prompt, str):
            # Without special tokens: a raw prompt is what the client wrote, template included.
            prompt = tokenizer.encode(plain(prompt), add_special_tokens=False)
        size = len(tokenizer)
        if not (
            isinstance(prompt, list)
            and prompt
            # `type`, because true is an int as well.
            and all(type(token) is int and 0 <= token < size for token in prompt)
        ):
            raise ConfigError(
                "prompt must be text, a list of token ids, or a list of such prompts, none of them "
                f"empty and no id above {size - 1}"
            )
        return tuple(prompt)


def check_names(body: Mapping[str, Any], form: str) -> None:
    """Refuses parameters that are unknown, or known and asked for something that is not there.

    Raises:
        ConfigError: names the parameter.
    """
    for name, value in body.items():
        # null stands for a parameter that was left out, in OpenAI's interface.
        if name in _KNOWN[form] or name in _NOTED or value is None:
            continue
        if name not in _NEUTRAL:
            hint = did_you_mean(name, _KNOWN[form])
            raise ConfigError(f"parameter {name!r} is not supported; {hint}")
        # True equals 1 in Python, and would pass for a penalty.
        if not any(
            (type(value) is not bool and value == neutral) or value is neutral
            for neutral in _NEUTRAL[name]
        ):
            only = " or ".join(map(repr, _NEUTRAL[name]))
            raise ConfigError(
                f"parameter {name!r} is supported as {only} only, got {str(value)[:40]!r}"
            )


def asked(turns: Sequence[Mapping[str, Any]], prompt: RolePrompt | None) -> list[dict[str, Any]]:
    """The conversation with its first user turn in the role's prompt of training."""
    conversation = [dict(turn) for turn in turns]
    first = next((k for k, turn in enumerate(conversation) if turn["role"] == "user"), None)
    if prompt is not None and first is not None:
        conversation[first] = {
            **conversation[first],
            "content": prompt.of(conversation[first]["content"]),
        }
    return conversation


def turns_of(messages: Any) -> list[dict[str, Any]]:
    """Checks a conversation; joins the text parts of each message.

    Raises:
        ConfigError: no conversation of texts, calls of tools, and their results.
    """
    return [{**turn, "content": plain(turn["content"])} for turn in messages_of(messages)]


def plain(text: str) -> str:
    """The text with lone surrogates, which no tokenizer takes, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def flag(body: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """A parameter that is true or false."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, got {str(value)[:40]!r}")
    return value


def number(
    body: Mapping[str, Any], name: str, default: Any, low: Any, high: Any, kind: type
) -> Any:
    """A parameter that is a number between two others."""
    value = body.get(name)
    if value is None:
        return default
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (kind is float and isinstance(value, float))) or not low <= value <= high:
        raise ConfigError(f"{name} must be a number from {low} to {high}, got {str(value)[:40]!r}")
    return value


def seed_of(body: Mapping[str, Any]) -> int:
    """The request's seed, or a random one."""
    return int(number(body, "seed", secrets.randbits(62), -(1 << 63), (1 << 63) - 1, int))


def _usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options") or {}
    fits = isinstance(options, dict) and options.keys() <= {"include_usage", *_STREAMED}
    if not fits or any(options.get(name) for name in _STREAMED):
        raise ConfigError(
            f"stream_options may hold include_usage only, got {body['stream_options']!r:.80}"
        )
    return flag(options, "include_usage")


def _likeliest(body: Mapping[str, Any], form: str) -> int | None:
    if form == PROMPT:
        logprobs = number(body, "logprobs", None, 0, MOST_LIKELIEST, int)
        return None if logprobs is None else int(logprobs)
    wanted = flag(body, "logprobs")
    count = number(body, "top_logprobs", 0, 0, MOST_LIKELIEST, int)
    if count and not wanted:
        raise ConfigError("top_logprobs needs logprobs: true")
    return int(count) if wanted else None
