"""A program of your own: two roles that it asks through OpenAI's client, trained as it is.

The program knows nothing of this package. A tool proposes, a planner decides; each request is a decision of the role
that it names, and what the program returns is the reward. After two steps, the same program is evaluated with the trained adapters.
"""

import tempfile
from functools import partial
from pathlib import Path

from openai import OpenAI

import pettingllms as pl
from pettingllms.envs import program_v0


def solve(task: int, base_url: str, api_key: str) -> dict[str, float]:
    with OpenAI(base_url=base_url, api_key=api_key, timeout=600) as client:

        def ask(role: str, text: str) -> str:
            messages = [{"role": "user", "content": text}]
            reply = client.chat.completions.create(model=role, messages=messages)  # type: ignore[arg-type]
            return reply.choices[0].message.content or ""

        number = task % 10
        proposal = ask("tool", f"Write the number {number}.")
        decision = ask("planner", f"The number is {number}. A tool says: {proposal}")
    return {"team": float(str(number) in decision), "tool": float(str(number) in proposal)}


team = partial(program_v0.env, solve, roles="tool,planner")

env = team()
env.reset(seed=3)
while (agent := env.agent_selection) and not env.terminations[agent]:
    print(agent, "is asked:", env.text_for(agent))
    env.step("4" if agent == "tool_0" else "I say 4.")
print("rewards:", env.rewards)

with tempfile.TemporaryDirectory() as folder:
    summary = pl.train(
        team,
        policies="per-role",
        method="look_ahead",  # its reward comes at its end
        max_steps=2,
        tasks_per_step=2,
        num_generations=4,
        max_completion_length=16,
        eval_steps=0,
        eval_tasks=5,
        output_dir=f"{folder}/run",
    )
    print("trained:", sorted(path.name for path in Path(folder, "run/adapters").iterdir()))
    result = pl.evaluate(team, adapters=summary.folder, limit=5)
    print(f"success on 5 new tasks: {result.success.mean:.1f}")
    assert summary.finished
