"""First environment.

An environment has PettingZoo's interface: `reset`, then `last` and `step` for one agent after another. Observations and actions are text. The task here comes
from a file of our own; a scripted coder and tester solve it, and their program and test really run, in the sandbox.
"""

import json
import tempfile
from pathlib import Path

from pettingllms.envs import coding_v0

TASK = {
    "question": "Read a number and print its double.",
    "tests": [{"input": "4", "output": "8"}, {"input": "-1", "output": "-2"}],
    "reference": "print(int(input()) * 2)",
    "split": "train",
}
REPLIES = {
    "coder_0": "Read the number and double it.\n```python\nprint(int(input()) * 2)\n```",
    "tester_0": "Two and two is four.\n```input\n2\n```\n```output\n4\n```",
}

with tempfile.TemporaryDirectory() as folder:
    tasks = Path(folder, "tasks.jsonl")
    tasks.write_text(json.dumps(TASK) + "\n")
    env = coding_v0.env(dataset=tasks)

env.reset(seed=0)
for agent in env.agent_iter():
    observation, reward, termination, truncation, info = env.last()
    if termination or truncation:
        env.step(None)  # PettingZoo's way to remove a finished agent
        continue
    print(f"--- {agent} reads:\n{observation['text']}\n\n--- and answers:\n{REPLIES[agent]}\n")
    env.step(REPLIES[agent])
    paid, solved = env.infos[agent], env.infos[agent]["success"]
    print(f"team {paid['team_reward']:.2f}, local {paid['local_reward']:.2f}, solved: {solved}\n")
env.close()
assert solved
