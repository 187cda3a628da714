"""Asks a server of ours with OpenEnv's own client; runs where openenv is.

python openenv_game.py play TEXT URL ...  two sessions side by side, every agent says TEXT
python openenv_game.py bounds URL         what the server refuses: prints what came of it
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
import websockets
from openenv.core import GenericEnvClient


def play(url: str, text: str) -> list[Any]:
    with GenericEnvClient(url).sync() as one, GenericEnvClient(url).sync() as other:
        clients = [one, other]
        episodes = [[client.reset(seed=3 + k)] for k, client in enumerate(clients)]
        while any(not episode[-1].done for episode in episodes):
            for client, episode in zip(clients, episodes, strict=True):
                if not episode[-1].done:
                    episode.append(client.step({"text": text}))
        return [
            {
                "steps": [[s.observation, s.reward, s.done] for s in episode],
                "state": client.state(),
            }
            for client, episode in zip(clients, episodes, strict=True)
        ]


async def bounds(url: str) -> dict[str, Any]:
    address, observed = url.replace("http", "ws", 1) + "/ws", {}
    async with httpx.AsyncClient(base_url=url) as http:
        observed["health"] = (await http.get("/health")).status_code
        observed["step"] = [
            (r := await http.post("/step", json={"action": {"text": "x"}})).status_code,
            r.text,
        ]
        observed["body"] = (await http.post("/reset", content=b" " * 5000)).status_code
    async with websockets.connect(address) as one, websockets.connect(address) as two:
        for session in (one, two):
            await session.send(json.dumps({"type": "reset", "data": {"seed": 1}}))
            assert json.loads(await session.recv())["type"] == "observation"
        async with websockets.connect(address) as third:
            observed["third"] = json.loads(await third.recv())["data"]
        for wrong in ("{", '{"type": "step", "data": {}}', '{"type": "dance"}'):
            await one.send(wrong)
            observed[wrong] = json.loads(await one.recv())["data"]["code"]
        await two.send(json.dumps({"type": "step", "data": {"text": "x" * 5000}}))
        observed["large"] = await code_of(two)
        observed["old"] = await code_of(one)
    async with websockets.connect(address) as again:  # the slots are free again
        await again.send(json.dumps({"type": "step", "data": {"text": "x"}}))
        observed["early"] = json.loads(await again.recv())["data"]["message"]
    return observed


async def code_of(session: Any) -> int | None:
    """With which code the server closes a session."""
    try:
        await session.recv()
    except websockets.ConnectionClosed as error:
        return error.rcvd.code if error.rcvd else None
    return None


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "play":
        print(json.dumps([play(url, words[0]) for url in words[1:]]))
    else:
        print(json.dumps(asyncio.run(bounds(*words))))
