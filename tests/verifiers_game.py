"""Plays one episode of each environment that is named, through verifiers; runs where verifiers is.

python verifiers_game.py URL ID@MODEL ...  prints a list of episodes as JSON
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import verifiers.v1 as vf


async def play(base: str, ident: str) -> dict[str, Any]:
    ident, _, model = ident.partition("@")
    taskset = {"id": ident, "env_args": {"max_turns": 2}}
    env = vf.load_environment(vf.resolve_env_config({"taskset": taskset}))
    *_, task = env.taskset.take(3)
    client = vf.EvalClientConfig(base_url=base, api_key_var="STUB_KEY")
    async with env.serving():
        [slot] = env.slots(task)
        episode = await env.run_slot(slot, vf.ModelContext(model=model, client=client))
    traces = [
        {
            "agent": trace.agent.name,
            "prompt": trace.task.data.prompt,
            "text": trace.assistant_messages[-1].content if trace.assistant_messages else None,
            "rewards": {name: reward.score for name, reward in trace.rewards.items()},
            "metrics": trace.metrics,
        }
        for trace in episode.traces
    ]
    errors = [error.message for error in episode.errors]
    agents = sorted(name for name, value in env.config if isinstance(value, vf.AgentConfig))
    seed = task.data.seed
    return {"ok": episode.ok, "errors": errors, "agents": agents, "seed": seed, "traces": traces}


os.environ["STUB_KEY"] = "none"
print(json.dumps([asyncio.run(play(sys.argv[1], ident)) for ident in sys.argv[2:]]))
