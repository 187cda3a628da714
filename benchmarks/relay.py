"""A program of two roles and a tool, for SmolLM2: a look-up each, and a register that only the first one's reply opens.

    pettingllms-train --env program:benchmarks/relay.py:solve --dataset benchmarks/out/relay.jsonl --env-args.pays early \
        --model smollm2 --policies per-role --max-completion-length 10

A searcher reads who works for whom, and copies one sentence. The tool looks up the person that this sentence
names last in a register of cities, and an answerer, who sees the register's line alone, says the city. Neither
role can do the other's part. The program calls the tool itself, with the searcher's words: the chat template of SmolLM2
has no place for tools, and a model of its size writes no calls in JSON.

`python -m benchmarks.relay` writes the tasks, with other people and cities in each split.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from openai import OpenAI

TASKS = Path(__file__).parent / "out" / "relay.jsonl"
COUNTS = {"train": 400, "val": 100, "test": 200}
"""Tasks of each split."""
LINES = 3
"""Sentences of a task, and lines of its register."""
PARTLY_FOUND, PARTLY_SAID = 0.5, 0.3
"""Local rewards of replies that name the right person or city, and no other, but not in the form asked for."""
_CLIENT = OpenAI(api_key="none", base_url="http://127.0.0.1", timeout=3600, max_retries=0)
"""Made once: a client costs more time than all its requests."""


def look_up(register: Mapping[str, str], sentence: str) -> str:
    """The tool: a line of the register about the one person of it that a sentence names."""
    named = [person for person in register if person in sentence]
    if len(named) != 1:
        return "Nothing was found"
    return f"{named[0]} lives in {register[named[0]]}"


def solve(task: Mapping[str, Any], base_url: str, api_key: str, pay: Callable[..., None]) -> None:
    """Plays a task; each reply is rewarded at once."""
    _solve(task, base_url, api_key, pay, "")


def solve_with_role_words(
    task: Mapping[str, Any], base_url: str, api_key: str, pay: Callable[..., None]
) -> None:
    """The same with the role in front of each prompt, for a policy that is shared."""
    _solve(task, base_url, api_key, pay, "{role}: ")


def _solve(
    task: Mapping[str, Any], base_url: str, api_key: str, pay: Callable[..., None], front: str
) -> None:
    client = _CLIENT.with_options(base_url=base_url, api_key=api_key)

    def ask(role: str, text: str) -> str:
        content = front.format(role=role.capitalize()) + text
        messages = [{"role": "user", "content": content}]
        reply = client.chat.completions.create(model=role, messages=messages)  # type: ignore[arg-type]
        return " ".join((reply.choices[0].message.content or "").split()).rstrip(".")

    worker, register = task["worker"], task["register"]
    boss = dict(task["works_for"])[worker]
    sentences = " ".join(f"{person} works for {other}." for person, other in task["works_for"])
    question = f"Whom does {worker} work for? Reply with the sentence that says it."
    sentence = ask("searcher", f"{sentences} {question}")
    line = look_up(register, sentence)
    names_boss = line.startswith(boss) and len(sentence.split()) <= 8
    exact = sentence == f"{worker} works for {boss}"
    pay(local=1.0 if exact else PARTLY_FOUND * names_boss)

    city = ask("answerer", f"Say the last word of: {line}")
    right = city == register[boss]
    others = [other for other in register.values() if other != register[boss]]
    named = register[boss] in city and not any(other in city for other in others)
    partly = named and not right and len(city.split()) <= 2
    pay(team=float(right), local=PARTLY_SAID * partly, success=right)


def tasks() -> list[dict[str, Any]]:
    """The tasks of all splits."""
    from pettingllms.envs.read_v0 import CITIES, PEOPLE

    rows = []
    for split, count in COUNTS.items():
        draw = random.Random(f"relay {split}")
        for number in range(count):
            people = draw.sample(PEOPLE[split], 2 * LINES)
            cities = draw.sample(CITIES[split], LINES)
            workers, bosses = people[:LINES], people[LINES:]
            rows.append(
                {
                    "id": f"{split}:{number}",
                    "split": split,
                    "works_for": list(zip(workers, bosses, strict=True)),
                    "register": dict(zip(bosses, cities, strict=True)),
                    "worker": draw.choice(workers),
                }
            )
    return rows


def write(rows: Sequence[Mapping[str, Any]], path: Path = TASKS) -> None:
    """Writes tasks, one a line."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def main() -> None:
    """Writes the tasks."""
    write(tasks())


if __name__ == "__main__":
    main()
