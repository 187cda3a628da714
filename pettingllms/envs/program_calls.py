"""What a program asks and is answered: requests of OpenAI's chat completions, as decisions of a role.

    ChatCall.of(body)        a checked request and its digest, which a replay compares
    ChatCall.observation()   what the role sees of it
    answer(call, text)   the reply as OpenAI's clients read it: text, or calls of tools
    Front                HTTP on 127.0.0.1, a secret path for each run

Sampling is the trainer's: temperature, token limits, and seeds of a request are ignored, with one
warning. A parameter that would change what a reply means and is not built is refused.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import secrets
import select
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from pettingllms.envs.tool_calls import read_calls
from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.registry import names_in
from pettingllms.types import Conversation, JsonObject

_SAMPLING = names_in(
    "seed temperature top_p max_tokens max_completion_tokens verbosity reasoning_effort "
    "presence_penalty frequency_penalty"
)
"""Ignored, with a warning."""
_READ = names_in(
    "model messages n tools tool_choice response_format stop stream user metadata "
    "safety_identifier prompt_cache_key stream_options store service_tier parallel_tool_calls"
)
_DECISION = ("messages", "tools", "tool_choice", "response_format", "stop")
"""What makes two requests to one role the same."""
_ROLES = ("system", "developer", "user", "assistant", "tool")
MOST_STOPS = 16
LARGEST_BODY = 16 << 20
"""Bytes of a request."""

_log = logging.getLogger(__name__)


class NotServed(ConfigError):
    """A request that is answered with an error, in the form of OpenAI's API."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A request: who is asked, and what."""

    role: str
    request: Mapping[str, Any]
    """Of the fields in `_DECISION` those that are there; contents are text."""
    digest: str
    """Equal exactly where role and request are."""

    @classmethod
    def of(cls, body: Any, roles: Sequence[str] | None) -> ChatCall:
        """Checks the body of a request; `roles` are those that may be asked, None for any.

        Raises:
            NotServed: it names another role, lacks messages, or asks for what is not built.
        """
        if not isinstance(body, Mapping):
            raise NotServed(400, "the body is no JSON object")
        parameters = {
            name: value for name, value in body.items() if value not in (None, False, [], {}, "")
        }
        if unknown := parameters.keys() - {*_READ, *_SAMPLING}:
            raise NotServed(400, f"parameter {min(unknown)!r} is not supported here; leave it out")
        _warn_of(frozenset(name for name in _SAMPLING if body.get(name) is not None))
        if (n := parameters.get("n", 1)) != 1:
            raise NotServed(400, f"n={n} is not supported here; ask {n} times")
        role = role_named(parameters.get("model", ""))
        if roles is not None and role not in roles:
            hint = did_you_mean(role, roles)
            raise NotServed(
                404,
                f"no role {role!r} ({hint}); a request's model is the role that replies, and "
                "--env-args.roles names all roles",
            )
        request = {name: parameters[name] for name in _DECISION if name in parameters}
        request["messages"] = messages_of(request.get("messages"))
        stops_of(request.get("stop"))
        if not tools_of(request):
            request.pop("tools", None)
        text = json.dumps([role, request], sort_keys=True)
        return cls(role, request, hashlib.blake2b(text.encode(), digest_size=16).hexdigest())

    def observation(self) -> str:
        """What the role sees: the text of a single user message, or a `Conversation`."""
        messages, tools = self.request["messages"], self.request.get("tools", ())
        if len(messages) == 1 and messages[0]["role"] == "user" and not tools:
            return str(messages[0]["content"])
        return Conversation.of(messages, tools)


def role_named(model: Any) -> str:
    """The role that a request's model names; a prefix such as openai/coder is a framework's."""
    return str(model).rpartition("/")[2]


def stops_of(given: Any) -> tuple[str, ...]:
    """The stop strings of a request.

    Raises:
        NotServed: they are no texts, or too many.
    """
    stops = [given] if isinstance(given, str) else given or []
    if (
        not isinstance(stops, list)
        or len(stops) > MOST_STOPS
        or not all(isinstance(stop, str) and stop for stop in stops)
    ):
        raise NotServed(400, f"stop must be a text or a list of at most {MOST_STOPS}, none empty")
    return tuple(stops)


def tools_of(body: Mapping[str, Any]) -> list[Any]:
    """The functions that a request lets its role call.

    Raises:
        NotServed: they are no functions with names.
    """
    tools = (body.get("tool_choice") != "none" and body.get("tools")) or []
    if not isinstance(tools, list) or not all(map(_is_function, tools)):
        raise NotServed(400, f"tools must be a list of functions with names, got {tools!r:.80}")
    return tools


def _is_function(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def messages_of(given: Any) -> list[JsonObject]:
    """The messages of a request, contents and arguments of calls as text.

    Raises:
        NotServed: they are no conversation of texts, calls of tools, and their results.
    """
    if not isinstance(given, list) or not given:
        raise NotServed(400, "messages are missing: a list of objects with role and content")
    return [_message(message) for message in given]


def _message(given: Any) -> JsonObject:
    role = given.get("role") if isinstance(given, Mapping) else None
    if role not in _ROLES:
        raise NotServed(400, f"a message has the role {role!r}; known: {', '.join(_ROLES)}")
    content = given.get("content")
    if isinstance(content, list):  # parts, of which text alone can be read
        if not all(isinstance(piece, Mapping) and piece.get("type") == "text" for piece in content):
            raise NotServed(
                400, "a content has a part that is no text; images and audio are not read"
            )
        content = "".join(str(piece.get("text", "")) for piece in content)
    if not isinstance(content, str | None):
        raise NotServed(400, f"a content must be text, got a {type(content).__name__}")
    message = {"role": "system" if role == "developer" else role, "content": content or ""}
    if calls := given.get("tool_calls"):
        try:
            message["tool_calls"] = [
                {
                    "id": str(call.get("id", "")),
                    "type": "function",
                    "function": {
                        "name": str(call["function"]["name"]),
                        "arguments": str(call["function"].get("arguments") or "{}"),
                    },
                }
                for call in calls
            ]
        except (TypeError, KeyError, AttributeError):
            raise NotServed(400, "tool_calls must be a list of functions, with names") from None
    if given.get("tool_call_id"):
        message["tool_call_id"] = str(given["tool_call_id"])
    return message


@functools.cache  # once
def _warn_of(ignored: frozenset[str]) -> None:
    if ignored:
        text = "the program sends %s, ignored here; --temperature and --max-completion-length set how roles sample"
        _log.warning(text, ", ".join(sorted(ignored)))


def first_difference(was: Any, now: Any, at: str = "request") -> str:
    """Says where two JSON values differ first."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in sorted({*was, *now}):
            if was.get(key) != now.get(key):
                return first_difference(was.get(key), now.get(key), f"{at}.{key}")
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        place = next(k for k, pair in enumerate(zip(was, now, strict=True)) if pair[0] != pair[1])
        return first_difference(was[place], now[place], f"{at}[{place}]")
    if isinstance(was, str) and isinstance(now, str):
        pairs = enumerate(zip(was, now, strict=False))
        place = next((k for k, (a, b) in pairs if a != b), min(len(was), len(now)))
        start = max(0, place - 20)
        return (
            f"{at} was {was[start : place + 40]!r} and is {now[start : place + 40]!r}, from "
            f"character {place} on"
        )
    return f"{at} was {was!r:.80} and is {now!r:.80}"


def message_of(text: str, own: str, *, tools: bool) -> JsonObject:
    """A reply as a message, with the calls of tools in it; `own` makes their ids."""
    text, calls = read_calls(text) if tools else (text, [])
    message: JsonObject = {"role": "assistant", "content": text or (None if calls else "")}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{own}{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for number, (name, arguments) in enumerate(calls)
        ]
    return message


def answer(call: ChatCall, text: str, own: str) -> JsonObject:
    """A reply in the form of OpenAI's API; `own` makes its ids, so that a replay has the same."""
    message = message_of(text, own, tools=bool(call.request.get("tools")))
    for stop in stops_of(call.request.get("stop")):
        message["content"] = (message["content"] or "").partition(stop)[0]
    finish = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {
        "id": f"chatcmpl-{own}",
        "object": "chat.completion",
        "created": 0,
        "model": call.role,
        "choices": [choice],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _events(reply: Mapping[str, Any], *, usage: bool) -> bytes:
    """The same as a stream: the whole message in one piece."""
    head = {**reply, "object": "chat.completion.chunk"}
    counts, [choice] = head.pop("usage"), head.pop("choices")
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": k, **call} for k, call in enumerate(delta["tool_calls"])]
    pieces: list[Any] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
    ]
    if usage:
        pieces.append({**head, "choices": [], "usage": counts})
    lines = [f"data: {json.dumps(piece)}\n\n" for piece in pieces]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


class Asked(Protocol):
    """A run, as the front sees it."""

    roles: Sequence[str] | None
    unserved: str
    """The latest path that was asked in vain; not every client shows the answer."""

    def ask(self, body: Any, gone: Callable[[], bool], order: int) -> JsonObject:
        """Waits for the reply to a request; `gone` says whether its client has left, `order` when it connected."""

    @property
    def pay(self) -> Callable[..., None]:
        """Pays what the latest reply earned."""


class Front:
    """HTTP on 127.0.0.1 for all runs of a process, a thread for each request that waits."""

    def __init__(self) -> None:
        self._runs: weakref.WeakValueDictionary[str, Asked] = weakref.WeakValueDictionary()
        handler = type("Handler", (_Handler,), {"runs": self._runs})
        self._server = _FrontServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, name="programs", daemon=True).start()

    def add(self, run: Asked) -> str:
        """Returns the base URL of a run; its path has 192 random bits, so that no other finds it."""
        path = secrets.token_urlsafe(24)
        self._runs[path] = run
        return f"http://127.0.0.1:{self._server.server_port}/{path}/v1"


class _FrontServer(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True
    accepted = 0

    def get_request(self) -> tuple[socket.socket, Any]:
        """Numbers the connections: equal requests that come side by side differ in nothing else."""
        connection, address = super().get_request()
        self.accepted += 1
        return connection, (*address, self.accepted)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of clients that leave: a program may close its connections whenever it likes."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds, of reading a request
    runs: Mapping[str, Asked]

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps standard error for errors."""

    def do_GET(self) -> None:
        """Lists the roles as models."""
        self._handle("GET")

    def do_POST(self) -> None:
        """Waits for a reply, or takes a payment."""
        self._handle("POST")

    def _handle(self, method: str) -> None:
        try:
            self._send(200, self._reply(method))
        except NotServed as error:
            shown = {"message": str(error), "type": "invalid_request_error", "code": None}
            self._send(error.status, {"error": shown})

    def _send(self, status: int, payload: Any) -> None:
        is_stream = isinstance(payload, bytes)
        body = payload if is_stream else json.dumps(payload).encode()
        kind = "text/event-stream" if is_stream else "application/json"
        self.send_response(status)
        # A kept connection would outlive the event loop of a program; a refusal would be refused again.
        for name, value in (("content-type", kind), ("content-length", str(len(body)))):
            self.send_header(name, value)
        self.send_header("x-should-retry", "false")
        self.send_header("connection", "close")
        self.close_connection = True
        self.end_headers()
        self.wfile.write(body)

    def _reply(self, method: str) -> Any:
        _, path, version, *rest = [*self.path.partition("?")[0].split("/"), "", ""]
        body = self._body() if method == "POST" else None
        run = self.runs.get(path)
        if run is None or version != "v1":
            raise NotServed(410, "this episode is over, or was never here")
        route = "/".join(filter(None, rest))
        if (method, route) == ("GET", "models"):
            models = [{"id": n, "object": "model", "owned_by": "team"} for n in run.roles or ()]
            return {"object": "list", "data": models}
        if (method, route) == ("POST", "pay"):
            run.pay(**_payment(body))
            return {}
        if (method, route) == ("POST", "responses"):
            return response(self._ask(run, chat_body(body)))
        if (method, route) != ("POST", "chat/completions"):
            run.unserved = f"{method} /{route} is not served here: POST /chat/completions and "
            run.unserved += "/responses are, GET /models, POST /pay"
            raise NotServed(404, run.unserved)
        reply = self._ask(run, body)
        asked: Mapping[str, Any] = body or {}
        if not asked.get("stream"):
            return reply
        options = asked.get("stream_options")
        usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
        return _events(reply, usage=usage)

    def _ask(self, run: Asked, body: Any) -> JsonObject:
        return run.ask(body, lambda: _left(self.connection), self.client_address[-1])

    def _body(self) -> Any:
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > LARGEST_BODY:
            raise NotServed(413, f"a body of at most {LARGEST_BODY} bytes, with its content-length")
        try:
            # Half a surrogate pair, which JSON can spell, is no text: no digest and no token has it.
            text = self.rfile.read(int(length)).decode("utf-8", "replace")
            return json.loads(
                json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")
            )
        except (ValueError, RecursionError) as error:
            raise NotServed(400, f"the body is no JSON: {error}") from None


def _payment(body: Any) -> JsonObject:
    names = ("role", "team", "local", "success", "parse_error")
    if not isinstance(body, Mapping) or (unknown := [name for name in body if name not in names]):
        what = f"has {unknown[0]!r}" if isinstance(body, Mapping) else "is no object"
        raise NotServed(400, f"a payment {what}; it is an object of {', '.join(names)}")
    return dict(body)


def _left(connection: socket.socket) -> bool:
    """Whether a client has closed its side; it has sent all of its request."""
    with contextlib.suppress(OSError, ValueError):  # a closed one has a negative descriptor
        poll = select.poll()  # `select` ends at descriptor 1024
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0)) and not connection.recv(1, socket.MSG_PEEK)
    return True


# ------------------------------------------------------------------------------------ responses
# `POST /responses` of OpenAI's API as chat completions: what the OpenAI Agents SDK asks by default.
#
# A request becomes the body of a chat completion, so that both are the same decision, and the reply becomes
# a response. What has no counterpart (`previous_response_id`, streams, tools of OpenAI's servers) is left in
# the body, where it is refused by name.


_NOT_CHAT = ("include", "max_output_tokens", "reasoning", "truncation")
"""Of sampling or of OpenAI's servers; what chat completions name alike is ignored there."""


def chat_body(body: Any) -> Any:
    """The body of the chat completion that asks the same."""
    if not isinstance(body, Mapping):
        return body
    chat = {name: value for name, value in body.items() if name not in _NOT_CHAT}
    if chat.pop("stream", None):
        chat["stream of a response"] = True
    text = chat.pop("text", None)
    layout = text.get("format") if isinstance(text, Mapping) else None
    if isinstance(layout, Mapping) and layout.get("type") != "text":
        chat["response_format"] = layout
    if isinstance(chat.get("tools"), list):
        chat["tools"] = [*map(_tool, chat["tools"])]
    asked, instructions = chat.pop("input", None), chat.pop("instructions", None)
    chat["messages"] = _messages(asked)
    if instructions and isinstance(chat["messages"], list):
        chat["messages"].insert(0, {"role": "system", "content": instructions})
    return chat


def _tool(tool: Any) -> Any:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        return tool
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def _messages(items: Any) -> Any:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list):
        return items
    messages = list[Any]()
    for item in items:
        item_type = item.get("type", "message") if isinstance(item, Mapping) else None
        if item_type == "function_call":
            # Calls of one reply are items of their own here, and one message there.
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = {name: item.get(name) for name in ("name", "arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        elif item_type == "function_call_output":
            result = {"role": "tool", "tool_call_id": item.get("call_id")}
            messages.append({**result, "content": _content(item.get("output"))})
        elif item_type == "message":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"))})
        elif item_type != "reasoning":
            messages.append({"role": item_type})  # refused by this name
    return messages


def _content(content: Any) -> Any:
    """Texts of a list as those of chat completions."""
    if not isinstance(content, list):
        return content
    return [
        {**chunk, "type": "text"}
        if isinstance(chunk, Mapping) and chunk.get("type") in ("input_text", "output_text")
        else chunk
        for chunk in content
    ]


def response(completion: Mapping[str, Any]) -> JsonObject:
    """A chat completion in the form of a response."""
    [choice], ident = completion["choices"], completion["id"].removeprefix("chatcmpl-")
    message, output = choice["message"], list[JsonObject]()
    if message["content"] or "tool_calls" not in message:
        text: JsonObject = {
            "type": "output_text",
            "text": message["content"] or "",
            "annotations": [],
        }
        output.append({"type": "message", "id": f"msg_{ident}", "role": "assistant"})
        output[-1] |= {"content": [text], "status": "completed"}
    for number, call in enumerate(message.get("tool_calls", ())):
        output.append({"type": "function_call", "id": f"fc_{ident}{number}", **call["function"]})
        output[-1] |= {"call_id": call["id"], "status": "completed"}
    return {
        "id": f"resp_{ident}",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": completion["model"],
        "output": output,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        },
    }
