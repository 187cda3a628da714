"""Environments of this package as an OpenEnv (0.3) server: HTTP and WebSocket, an episode a session.

Whoever acts next is in the observation, with its prompt; an action is a text. A session is a WebSocket
connection, with an environment of its own; the HTTP calls `/reset` and `/step` of OpenEnv hold no
session, so `/step` there is refused. Sessions are limited in number and age, messages in size
(`pettingllms_openenv`). What a client sends is text of a model: nothing of it is bad input.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.types import ConcurrencyConfig, EnvironmentMetadata
from pydantic import Field

from pettingllms import __version__
from pettingllms.envs.aec import AnyEnv, clone_env, load_env, observe_text
from pettingllms.envs.base import next_agent
from pettingllms.errors import ConfigError, PettingLLMsError
from pettingllms.names import role_of
from pettingllms.rollout.episode import step_result


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits on the sessions and messages of a server."""

    sessions: int = 16
    """At the same time."""
    age: float = 3600.0
    """Seconds after which a session is ended, whatever it does; and without a message, too."""
    message_bytes: int = 1 << 20
    """Of a message of a client."""


class TextAction(Action):  # type: ignore[misc]
    """The reply of the agent whose turn it is."""

    text: str


class TextObservation(Observation):  # type: ignore[misc]
    """The observation of the agent whose turn it is, and the rewards of the step before it.

    `reward` is that of the agent that took the step; `rewards` has all agents'.
    """

    agent: str | None = Field(None, description="Who acts next; null at the end of the episode")
    role: str | None = Field(None, description="The role of that agent")
    prompt: str = Field("", description="Its observation, a whole prompt")
    acted: str | None = Field(None, description="Who took the step")
    rewards: dict[str, float] = Field(default_factory=dict, description="Of every agent, this step")
    info: dict[str, Any] = Field(default_factory=dict, description="What else is known of the step")


class TextState(State):  # type: ignore[misc]
    """The state of an episode."""

    agents: list[str] = Field(default_factory=list)
    returns: dict[str, float] = Field(default_factory=dict)
    done: bool = False


class TextEnvironment(Environment[TextAction, TextObservation, TextState]):  # type: ignore[misc]
    """An episode of a multi-agent environment, one agent after the other.

    Args:
        template: copied, and never stepped itself.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, template: AnyEnv) -> None:
        super().__init__()
        self._env = clone_env(template)
        self._state = TextState()
        self._started = False

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> TextObservation:
        """Starts an episode; the first agent's observation.

        Raises:
            ConfigError: options that the environment does not read.
        """
        arguments = {} if options is None else {"options": options}
        self._env.reset(seed=0 if seed is None else seed, **arguments)
        names = list(map(str, self._env.possible_agents))
        self._state = TextState(
            episode_id=episode_id or str(uuid.uuid4()),
            agents=names,
            returns=dict.fromkeys(names, 0.0),
        )
        self._started = True
        return self._observed()

    def step(self, action: TextAction, timeout_s: float | None = None) -> TextObservation:
        """Lets the agent to act say a text; the next agent's observation.

        Raises:
            ConfigError: there is no episode, or it is over.
        """
        del timeout_s  # the sandbox has limits of its own
        if not self._started:
            raise ConfigError(
                "no episode has begun in this session; send reset first, over the WebSocket /ws"
            )
        agent = next_agent(self._env)
        if agent is None:
            raise ConfigError("the episode is over; send reset for another one")
        self._env.step(action.text)
        result = step_result(self._env, agent)
        rewards = {agent: result.reward, **result.others}
        for name, paid in rewards.items():
            self._state.returns[name] = self._state.returns.get(name, 0.0) + paid
        self._state.step_count += 1
        return self._observed(agent, rewards, result.info)

    @property
    def state(self) -> TextState:
        """The state of the episode."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Describes the environment that is served: its name, agents and version."""
        plain: Any = self._env.unwrapped
        name = str(plain.metadata.get("name", type(plain).__name__))
        about = f"{name} of pettingllms; agents in turn: {', '.join(self._env.possible_agents)}"
        return EnvironmentMetadata(name=name, description=about, version=__version__)

    def close(self) -> None:
        """Ends the episode. The template's sandbox, which all sessions share, keeps running."""
        self._started = False

    def _observed(
        self,
        acted: str | None = None,
        rewards: Mapping[str, float] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> TextObservation:
        agent = next_agent(self._env)
        self._state.done = agent is None
        return TextObservation(
            done=agent is None,
            reward=None if acted is None else (rewards or {}).get(acted, 0.0),
            agent=agent,
            role=None if agent is None else role_of(agent),
            prompt="" if agent is None else observe_text(self._env, agent),
            acted=acted,
            rewards=dict(rewards or {}),
            info=plain_info(info or {}),
        )


async def _refused(request: Request, error: Exception) -> Response:
    """Answers a request that our environment refuses."""
    del request
    return JSONResponse({"detail": str(error)}, status_code=400)


def plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of an info that JSON holds."""
    return {str(key): value for key, value in info.items() if isinstance(value, _PLAIN)}


_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Served:
    """An application, and the environment that its sessions are copies of."""

    app: Any
    template: AnyEnv
    limits: ServerLimits = field(default_factory=ServerLimits)


def served(name: str, limits: ServerLimits | None = None, **env_args: Any) -> Served:
    """An ASGI application that serves an environment.

    Args:
        name: of the environment, or its path.
        limits: what the server bears.
        env_args: arguments of the environment.

    Raises:
        UnknownNameError: no environment of that name.
        ConfigError: an argument that it does not take.
    """
    limits = limits or ServerLimits()
    template = load_env(name, **env_args)

    def make() -> TextEnvironment:
        return TextEnvironment(template)

    inner: FastAPI = create_fastapi_app(
        make,
        TextAction,
        TextObservation,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=limits.sessions, session_timeout=limits.age
        ),
    )
    inner.add_exception_handler(PettingLLMsError, _refused)
    app = Bounded(inner, age=limits.age, message_bytes=limits.message_bytes)
    return Served(app, template, limits)


# --------------------------------------------------------------------------------------- bounds
# Bounds what clients may ask of an ASGI application: the size of messages, the age of connections.


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# Codes from 4000 on are an application's own (RFC 6455, section 7.4.2); 408 is HTTP's timeout.
TOO_OLD = 4408
"""Code with which a WebSocket that is too old is closed; 1009 is that of a message that is too large."""


class Bounded:
    """An application whose requests are bounded.

    Args:
        app: the application.
        age: most seconds of a WebSocket.
        message_bytes: most bytes of the body of a request. Those of a WebSocket's messages are
            bounded by the server (`ws_max_size` of uvicorn), before they are in memory.
    """

    def __init__(self, app: App, *, age: float, message_bytes: int) -> None:
        self._app, self._age, self._most = app, age, message_bytes

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] == "websocket":
            await self._session(scope, receive, send)
        elif scope["type"] == "http":
            await self._request(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _session(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        reason = f"this session is older than {self._age:g} s; connect again"
        ended: Message = {"type": "websocket.close", "code": TOO_OLD, "reason": reason}
        closed = False

        async def tell(message: Message) -> None:
            nonlocal closed
            if message["type"] == "websocket.close":
                closed = True
                # An application that is canceled closes by itself, and would give no reason.
                message = ended if limit.expired() else message
            await send(message)

        try:
            async with asyncio.timeout(self._age) as limit:
                await self._app(scope, receive, tell)
        except TimeoutError:
            if not closed:
                await send(ended)

    async def _request(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Reads the body before the application does, up to the bound."""
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client has gone
            # Counted as it comes, because a body in chunks does not announce its length.
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._most:
                await self._refuse(send)
                return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def read() -> Message:
            # After the body, an application may still wait for the message that the client is gone.
            return whole.pop() if whole else await receive()

        await self._app(scope, read, send)

    async def _refuse(self, send: Send) -> None:
        text = json.dumps({"detail": f"a message may have {self._most} bytes"}).encode()
        # The rest of the body stays unread, so that the connection cannot carry another request.
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": text})
