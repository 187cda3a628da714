"""`POST /responses` of OpenAI's API as chat completions: what the OpenAI Agents SDK asks by default.

A request becomes the body of a chat completion, so that both are the same decision, and the reply becomes
a response. What has no counterpart (`previous_response_id`, streams, tools of OpenAI's servers) is left in
the body, where it is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_IGNORED = ("include", "max_output_tokens", "reasoning", "truncation")
"""Of sampling or of OpenAI's servers; what chat completions name alike is ignored there."""


def chat_body(body: Any) -> Any:
    """The body of the chat completion that asks the same."""
    if not isinstance(body, Mapping):
        return body
    chat = {name: value for name, value in body.items() if name not in _IGNORED}
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


def response(completion: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion in the form of a response."""
    [choice], ident = completion["choices"], completion["id"].removeprefix("chatcmpl-")
    message, output = choice["message"], list[dict[str, Any]]()
    if message["content"] or "tool_calls" not in message:
        text: dict[str, Any] = {
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
