"""An OpenAI-compatible HTTP interface for a trained team, sampled with transformers.

`model` names a role. Supported are `/v1/models`, chat and plain completions, several choices,
temperature, top_p and seed. Everything else, streaming included, is refused by name, never ignored.
One request is computed at a time; if vLLM is installed, `pettingllms-serve` uses vLLM's own server in
place of this one.

A conversation of one user message becomes the prompt that the role was trained on for that text.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from pettingllms.errors import ConfigError, PettingLLMsError, UnknownNameError, did_you_mean
from pettingllms.policies.policy_set import PolicySet
from pettingllms.types import Completion, Request

LARGEST_BODY = 1 << 20
MOST_CHOICES = 128
_COMMON = ("model", "n", "temperature", "top_p", "seed", "max_tokens", "stream", "user")
_KNOWN = {
    "messages": (*_COMMON, "messages", "max_completion_tokens"),
    "prompt": (*_COMMON, "prompt"),
}


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A checked request."""

    role: str
    prompt_ids: tuple[int, ...]
    n: int
    max_tokens: int
    temperature: float
    top_p: float
    seed: int


class RoleServer:
    """Completes requests to the roles of a team.

    Args:
        policies: sample the completions.
        max_tokens: length of a completion if the request does not set it.
        template: arguments of the chat template.
    """

    def __init__(self, policies: PolicySet, max_tokens: int, template: Mapping[str, Any]) -> None:
        self.policies, self._max_tokens, self._template = policies, max_tokens, dict(template)

    @property
    def roles(self) -> tuple[str, ...]:
        """The names that `model` may have."""
        return tuple(self.policies.roles_to_policies)

    def parse(self, body: Mapping[str, Any], form: str) -> CompletionRequest:
        """Checks a request's body; `form` is `messages` or `prompt`.

        Raises:
            UnknownNameError: no such role.
            ConfigError: a parameter that is missing, unsupported or out of range.
        """
        for name, value in body.items():
            if name not in _KNOWN[form] and value is not None:
                raise ConfigError(
                    f"parameter {name!r} is not supported; {did_you_mean(name, _KNOWN[form])}"
                )
        if body.get("stream"):
            raise ConfigError("stream is not supported; leave it out, or serve with vLLM")
        role = body.get("model")
        if not isinstance(role, str) or role not in self.roles:
            raise UnknownNameError(f"no model {role!r}; {did_you_mean(str(role), self.roles)}")
        if form not in body:
            raise ConfigError(f"{form} is missing")
        limit = _number(body, "max_completion_tokens", 0, 1, 1 << 30, int)
        limit = limit or _number(body, "max_tokens", self._max_tokens, 1, 1 << 30, int)
        ids = self._ids(role, body[form], form)
        if len(ids) + limit > self.policies.context:
            raise ConfigError(
                f"{len(ids)} tokens of prompt and {limit} of completion exceed the context of "
                f"{self.policies.context}; shorten the prompt or lower max_tokens"
            )
        return CompletionRequest(
            role,
            ids,
            n=_number(body, "n", 1, 1, MOST_CHOICES, int),
            max_tokens=limit,
            temperature=_number(body, "temperature", 1.0, 0.0, 10.0, float),
            top_p=_number(body, "top_p", 1.0, 1e-6, 1.0, float),
            seed=_number(body, "seed", secrets.randbits(62), -(1 << 63), (1 << 63) - 1, int),
        )

    def complete(self, wanted: CompletionRequest) -> list[Completion]:
        """Samples the choices from the role's own policy."""
        policy = self.policies.policy_for(wanted.role)
        request = Request(policy, wanted.prompt_ids, wanted.seed)
        [completions] = self.policies.sample(
            [request],
            wanted.n,
            max_new_tokens=wanted.max_tokens,
            temperature=wanted.temperature or 1.0,
            greedy=wanted.temperature == 0,
            top_p=wanted.top_p,
        )
        return completions

    def _ids(self, role: str, given: Any, form: str) -> tuple[int, ...]:
        chat, ids = self.policies.chat, given
        if form == "messages":
            turns = _turns(given)
            if [turn["role"] for turn in turns] == ["user"]:
                return self.policies.prompt_ids(role, turns[0]["content"])
            settings = {"add_generation_prompt": True, "return_dict": False, **self._template}
            try:
                ids = chat.tokenizer.apply_chat_template(turns, tokenize=True, **settings)
            except TemplateError as error:
                raise ConfigError(
                    f"the chat template refuses this conversation: {error}"
                ) from error
        elif isinstance(given, str):
            ids = chat.tokenizer.encode(_plain(given), add_special_tokens=False)
        vocabulary = len(chat.tokenizer)
        if not (
            isinstance(ids, list)
            and ids
            and all(type(each) is int and 0 <= each < vocabulary for each in ids)
        ):
            raise ConfigError(f"{form} must be text or a list of token ids, and not empty")
        return tuple(ids)


def application(team: RoleServer, key: str | None) -> Starlette:
    """Builds the HTTP interface; a key, if given, is required everywhere but at `/health`."""
    worker = ThreadPoolExecutor(1, thread_name_prefix="sample")
    created = int(time.time())

    async def models(request: HttpRequest) -> Response:
        if refused := _unauthorized(request, key):
            return refused
        cards = [{"id": role, "object": "model", "created": created} for role in team.roles]
        data = [card | {"owned_by": "pettingllms"} for card in cards]
        return JSONResponse({"object": "list", "data": data})

    async def complete(request: HttpRequest) -> Response:
        if refused := _unauthorized(request, key):
            return refused
        form = "messages" if request.url.path.endswith("/chat/completions") else "prompt"
        try:
            wanted = team.parse(await _body(request), form)
            loop = asyncio.get_running_loop()
            sampled = await loop.run_in_executor(worker, team.complete, wanted)
        except UnknownNameError as error:
            return _error(404, str(error))
        except PettingLLMsError as error:
            return _error(400, str(error))
        return JSONResponse(_completion(wanted, sampled, form))

    async def health(_: HttpRequest) -> Response:
        return PlainTextResponse("")

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/chat/completions", complete, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
        ]
    )


async def _body(request: HttpRequest) -> dict[str, Any]:
    size, parts = 0, []
    async for part in request.stream():
        size += len(part)
        if size > LARGEST_BODY:
            raise ConfigError(f"the request is larger than {LARGEST_BODY} bytes")
        parts.append(part)
    try:
        value = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the request is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("the request must be a JSON object")
    return value


def _completion(
    wanted: CompletionRequest, sampled: Sequence[Completion], form: str
) -> dict[str, Any]:
    chat = form == "messages"
    choices = []
    for index, one in enumerate(sampled):
        said: dict[str, Any] = (
            {"message": {"role": "assistant", "content": one.text}} if chat else {"text": one.text}
        )
        reason = "length" if one.truncated else "stop"
        choices.append({"index": index, **said, "finish_reason": reason, "logprobs": None})
    prompt, new = len(wanted.prompt_ids), sum(len(one.token_ids) for one in sampled)
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": wanted.role,
        "choices": choices,
        "usage": {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new},
    }


def _unauthorized(request: HttpRequest, key: str | None) -> Response | None:
    given = request.headers.get("authorization", "").encode()
    if key is None or secrets.compare_digest(given, f"Bearer {key}".encode()):
        return None
    return _error(401, "wrong or missing API key")


def _error(status: int, message: str) -> Response:
    kind = {401: "authentication_error", 404: "not_found_error"}.get(
        status, "invalid_request_error"
    )
    content = {"message": message, "type": kind, "param": None, "code": None}
    return JSONResponse({"error": content}, status_code=status)


def _turns(messages: Any) -> list[dict[str, str]]:
    """Checks a conversation; joins the text parts of each message."""
    if not isinstance(messages, list) or not messages:
        raise ConfigError("messages must be a list of messages, and not empty")
    turns = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            texts: list[Any] = [
                part.get("text") if isinstance(part, dict) else None for part in content
            ]
            content = "".join(texts) if all(isinstance(text, str) for text in texts) else None
        if not isinstance(content, str) or message.get("role") not in _ROLES:
            raise ConfigError(
                f"a message needs a role ({', '.join(_ROLES)}) and a text, got {str(message)[:80]}"
            )
        turns.append({"role": message["role"], "content": _plain(content)})
    return turns


_ROLES = ("system", "user", "assistant")


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _number(
    body: Mapping[str, Any], name: str, default: Any, low: Any, high: Any, kind: type
) -> Any:
    value = body.get(name)
    if value is None:
        return default
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (kind is float and isinstance(value, float))) or not low <= value <= high:
        raise ConfigError(f"{name} must be a number from {low} to {high}, got {str(value)[:40]!r}")
    return value
