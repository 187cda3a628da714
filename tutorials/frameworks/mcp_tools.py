"""An agent whose tools are those of an MCP server (`mcp` 2.3.0); sums.py is a server with a tool `add`."""

import json
import sys

from mcp import Client, StdioServerParameters
from openai import AsyncOpenAI

SERVER = StdioServerParameters(command=sys.executable, args=["sums.py"])


def as_function(tool):
    described = {"name": tool.name, "description": tool.description or ""}
    return {"type": "function", "function": described | {"parameters": tool.input_schema}}


async def solve(task, base_url, api_key):
    model = AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=3600)
    messages = [{"role": "user", "content": task["question"]}]
    async with Client(SERVER) as server:
        tools = [as_function(tool) for tool in (await server.list_tools()).tools]
        for _ in range(4):
            reply = await model.chat.completions.create(
                model="solver", messages=messages, tools=tools
            )
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return float((message.content or "").strip() == str(task["answer"]))
            for call in message.tool_calls:
                result = await server.call_tool(
                    call.function.name, json.loads(call.function.arguments)
                )
                content = "\n".join(block.text for block in result.content if block.type == "text")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return 0.0
