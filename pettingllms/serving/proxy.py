"""The same interface in front of vLLM's own server, which listens on this machine alone, with a key of its own.

Roles are forwarded, with their prompt of training and otherwise as they came, so that whatever vLLM supports
works. What is ours stays here: the key, the limits, the list of models, the team. When a client leaves, its
connection to vLLM is closed, which ends its request there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from transformers import AutoTokenizer, GenerationConfig

from pettingllms.envs.questions import RolePrompt, role_prompts
from pettingllms.policies.chat import Chat
from pettingllms.rollout.episode import AnyEnv
from pettingllms.samplers.base import SamplingParams
from pettingllms.samplers.vllm_process import ServerError, VllmEndpoint, completion_body
from pettingllms.serving.completing import TextStream
from pettingllms.serving.http import Streamed, unless_gone
from pettingllms.serving.requests import MESSAGES, RequestReader, flag
from pettingllms.serving.team import TeamPlayer
from pettingllms.serving.worker import Stopped
from pettingllms.types import Completion, Request

CONTROL_SECONDS = 60.0
EVENT_SECONDS = 600.0
"""For the first token of a team's turn, and for each other."""
_PATHS = {True: "/v1/chat/completions", False: "/v1/completions"}


@dataclass
class VllmPlayers:
    """The roles of a team whose adapters a vLLM server holds under the roles' names."""

    chat: Chat
    roles_to_policies: dict[str, str]
    contexts: dict[str, int]

    def chat_for(self, policy: str) -> Chat:
        """The chat of the one model."""
        del policy
        return self.chat

    def policy_for(self, role: str) -> str:
        """The role itself: each has an adapter of its own name."""
        return self.roles_to_policies[role]

    def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
        """The tokens of an observation."""
        del role
        return self.chat.prompt_ids(text)


def players_of(
    model: str,
    roles: Mapping[str, str],
    endpoint: VllmEndpoint,
    template: Mapping[str, Any] | None = None,
) -> VllmPlayers:
    """The players of a server that runs.

    Args:
        model: the base model.
        roles: role -> policy.
        endpoint: the server.
        template: arguments of the chat template.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    # The model is vLLM's and not loaded here, so that its end tokens are read from its files.
    ends = {tokenizer.eos_token_id}
    try:
        listed = GenerationConfig.from_pretrained(model).eos_token_id
        ends |= {listed} if isinstance(listed, int) else set(listed or ())
    except OSError:  # it has none
        pass
    chat = Chat(tokenizer, sorted(end for end in ends if end is not None), template)
    served = endpoint.get("/v1/models", CONTROL_SECONDS)["data"]
    context = min(
        int(model_card["max_model_len"]) for model_card in served if model_card.get("max_model_len")
    )
    return VllmPlayers(chat, {role: role for role in roles}, dict.fromkeys(roles, context))


class VllmServer:
    """Answers requests to the roles of a team through a server that holds their adapters.

    Args:
        players: the roles.
        endpoint: the server, of HTTP.
        max_tokens: length of a team's turn if the request does not set it.
        env: the team's environment; None: the chat template alone.
    """

    def __init__(
        self,
        players: VllmPlayers,
        endpoint: VllmEndpoint,
        max_tokens: int,
        env: AnyEnv | None = None,
    ) -> None:
        self._endpoint = endpoint
        prompts = {} if env is None else role_prompts(env)
        self.reader = RequestReader(players, prompts, max_tokens)
        self.team = None
        if env is not None and prompts:
            self.team = TeamPlayer(env, players, self._speak)

    def close(self) -> None:
        """Does nothing: requests end with their connections."""

    async def answer(self, request: HttpRequest, body: Mapping[str, Any], form: str) -> Response:
        """The answer of a role, as the server gives it."""
        role = self.reader.role(body)
        sent = {**body, "model": role}
        if flag(sent, "role_prompt", default=True) and form == MESSAGES:
            sent[MESSAGES] = _asked(sent.get(MESSAGES), self.reader.prompts.get(role))
        # Ours alone; it means nothing to vLLM.
        sent.pop("role_prompt", None)
        content = json.dumps(sent).encode()
        path = _PATHS[form == MESSAGES]
        return await unless_gone(request, forwarded(self._endpoint, path, content))

    def _speak(
        self, role: str, request: Request, params: SamplingParams, heard: Callable[[str], None]
    ) -> Completion:
        chat = self.reader.chat(role)
        content = completion_body(role, request.prompt_ids, 1, params, request.seed, chat.end_ids)
        text, ids, logprobs = TextStream(chat.decode), list[int](), list[float]()
        finished = False
        events = self._endpoint.stream("/v1/completions", content | {"stream": True}, EVENT_SECONDS)
        try:
            with contextlib.closing(events):
                for choice in (
                    choice_of_event
                    for event in events
                    for choice_of_event in event.get("choices", ())
                ):
                    new = choice.get("token_ids") or []
                    ids += new
                    logprobs += (choice.get("logprobs") or {}).get("token_logprobs") or []
                    finished = choice.get("finish_reason") is not None
                    heard("".join(text.push(token) for token in new if token not in chat.end_ids))
        except (httpx2.HTTPError, ServerError) as error:
            raise Stopped(f"vLLM's server failed: {error}") from error
        # A stream that breaks off ends like one that is complete, except for the reason to finish.
        if not (finished and ids):
            raise Stopped("vLLM's server broke off in the middle of a turn; its log says why")
        heard(text.rest())
        truncated = ids[-1] not in chat.end_ids
        return Completion(
            request.prompt_ids,
            tuple(ids),
            tuple(logprobs),
            chat.decode(ids),
            truncated,
            version=0,
        )


def _asked(messages: Any, prompt: RolePrompt | None) -> Any:
    """The conversation with its first user message in the role's prompt; what vLLM will refuse stays."""
    if prompt is None or not isinstance(messages, list):
        return messages
    turns = list(messages)
    for place, message in enumerate(turns):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                turns[place] = {**message, "content": prompt.of(content)}
            elif isinstance(content, list):
                # A message in parts may hold images, which stay where they are between the halves
                # of the prompt.
                before, after = ({"type": "text", "text": half} for half in prompt)
                turns[place] = {**message, "content": [before, *content, after]}
            break
    return turns


async def forwarded(endpoint: VllmEndpoint, path: str, body: bytes) -> Response:
    """The answer of another server to a POST, passed on as it comes.

    Raises:
        Stopped: it does not answer.
    """
    # A client for each request, so that closing it ends that request alone; it knows no proxy, because
    # the server listens on this machine.
    client = httpx2.AsyncClient(timeout=None, trust_env=False)
    headers = {"Authorization": f"Bearer {endpoint.key}", "Content-Type": "application/json"}
    request = client.build_request("POST", endpoint.url + path, content=body, headers=headers)
    try:
        answer = await client.send(request, stream=True)
    except BaseException as error:
        await client.aclose()
        if isinstance(error, httpx2.HTTPError):
            raise Stopped(f"vLLM's server does not answer: {error}") from error
        raise
    return Streamed(
        _parts(answer),
        client.aclose,
        status=answer.status_code,
        kind=answer.headers.get("content-type", "application/json"),
    )


async def _parts(answer: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_bytes():
            yield chunk
    except httpx2.HTTPError as error:
        raise Stopped(f"vLLM's server broke off: {error}") from error
