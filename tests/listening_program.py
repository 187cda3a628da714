"""Programs that exist already: one that plays Plan-Path by asking `tool` and `planner`, and a relay of two roles."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from pettingllms.envs import plan_path_v0, program_v0
from pettingllms.names import role_of


class Refused(Exception):
    """An answer that is an error: its status, and its message."""


def sent(url: str, body: Any, timeout: float = 60.0) -> bytes:
    """The answer to a POST, or to a GET where there is no body."""
    where = urlsplit(url)
    client = http.client.HTTPConnection(where.netloc, timeout=timeout)
    try:
        client.request("GET" if body is None else "POST", where.path, json.dumps(body))
        with client.getresponse() as reply:
            read = reply.read()
    finally:
        client.close()
    if reply.status != 200:
        raise Refused(reply.status, json.loads(read)["error"]["message"])
    return read


def asked(base_url: str, role: str, messages: list[dict[str, Any]], **more: Any) -> Any:
    """The message that a role replies with, by a plain HTTP client."""
    body = {"model": role, "messages": messages, **more}
    return json.loads(sent(f"{base_url}/chat/completions", body))["choices"][0]["message"]


ROLES = ("writer", "reader")


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def relay(task: int, base_url: str) -> dict[str, Any]:
    """A writer writes, a reader reads it; the team is right if the reader says the number."""
    task %= 10  # of seed 3 it is 4
    note = asked(base_url, "writer", user(f"write {task}"))["content"]
    reply = asked(base_url, "reader", user(f"read {note}"))["content"]
    return {"team": float(reply == str(task)), "writer": 0.25 * (note != "")}


def relay_env(**arguments: Any) -> Any:
    return program_v0.env(relay, roles=ROLES, **arguments)


def chat(task: int, base_url: str) -> float:
    """Three turns of one conversation; the third turn has another text in place of the second reply."""
    messages = [{"role": "system", "content": "Go on."}]
    letters = 0
    for number in range(3):
        messages += user(f"turn {number} of {task % 50}")
        messages.append(asked(base_url, "writer", messages))
        letters += len(messages[-1]["content"])
        if number == 1:
            messages[-1] = {"role": "assistant", "content": "(forgotten)"}
    return 0.01 * letters


def chat_env(**arguments: Any) -> Any:
    return program_v0.env(chat, roles="writer", settle=0, **arguments)


def relay_and_chat(task: int, base_url: str) -> dict[str, Any]:
    """A relay, and then the conversation of its writer."""
    paid = relay(task, base_url)
    return {**paid, "team": paid["team"] + chat(task, base_url)}


def relay_and_chat_env(**arguments: Any) -> Any:
    return program_v0.env(relay_and_chat, roles=ROLES, **arguments)


def play_of(arguments: dict[str, Any]) -> Callable[..., None]:
    template = plan_path_v0.env(**arguments)

    def play(task: int, base_url: str, pay: Callable[..., None]) -> None:
        env = template.clone()
        env.reset(seed=task)
        for agent in env.agent_iter():
            observation, _, termination, truncation, _ = env.last()
            if termination or truncation:
                env.step(None)
                continue
            assert observation is not None
            message = [{"role": "user", "content": observation["text"]}]
            env.step(asked(base_url, role_of(agent), message)["content"])
            info: Any = env.infos[agent]
            paid = {name: info[name] for name in ("success", "parse_error")}
            pay(team=info["team_reward"], local=info["local_reward"], **paid)

    return play


class env(program_v0.raw_env):
    """Declares what Plan-Path declares, so that the embedded model has the same settings."""

    metadata = {**program_v0.raw_env.metadata, "name": "plan_path_v0"}  # noqa: RUF012 - PettingZoo's
    embedded_model = "embedded:parts"
    embedded_parts = plan_path_v0.raw_env.embedded_parts
    embedded_parts_training = plan_path_v0.raw_env.embedded_parts_training

    def __init__(
        self,
        *,
        prompt: str = "full",
        height: int = 10,
        width: int = 10,
        walls: float = 0.22,
        moves: Any = None,
        max_turns: int = 4,
        split: str = "train",
        alpha: float = 1.0,
    ) -> None:
        arguments = {"prompt": prompt, "height": height, "width": width, "walls": walls}
        arguments |= {"moves": moves, "max_turns": max_turns, "split": split}
        super().__init__(
            play_of(arguments),
            roles=("tool", "planner"),
            pays="early",
            settle=0,
            split=split,
            alpha=alpha,
            max_turns=max_turns + 1,  # the program says itself when it ends
        )

    def _task(self, seed: int) -> int:
        return seed  # the program has splits of its own

    def __str__(self) -> str:
        return "plan_path_v0"  # seeds of samples follow from the names of tasks
