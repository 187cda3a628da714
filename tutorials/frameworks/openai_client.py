"""Two roles are asked at once with OpenAI's client, then one of them again."""

import asyncio

from openai import AsyncOpenAI


async def solve(task, base_url, api_key):
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=3600)

    async def ask(role, text):
        messages = [{"role": "user", "content": text}]
        stream = await client.chat.completions.create(model=role, messages=messages, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    drafts = await asyncio.gather(ask("solver", task["question"]), ask("critic", "How do you add?"))
    answer = await ask("solver", f"{task['question']} Notes: {drafts}")
    return float(answer.strip() == str(task["answer"]))
