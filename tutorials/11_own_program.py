"""A program of your own: two roles that it asks through OpenAI's client, trained, evaluated and served as it is.

The program knows nothing of this package. A tool proposes, a planner decides; each request is a decision of the role
that it names, and the number that the program returns is the reward. The commands are beside the calls.
"""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from openai import APIConnectionError, OpenAI

import pettingllms as pl
from pettingllms.registry import resolve

PROGRAM = """
from openai import OpenAI


def solve(task, base_url, api_key):
    with OpenAI(base_url=base_url, api_key=api_key, timeout=600) as client:

        def ask(role, text):
            messages = [{"role": "user", "content": text}]
            reply = client.chat.completions.create(model=role, messages=messages, max_tokens=16)
            return reply.choices[0].message.content

        number = str(task % 10)
        proposal = ask("tool", f"Write the number {number}.")
        decision = ask("planner", f"The number is {number}. A tool says: {proposal}")
    return float(number in decision)
"""

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "my_team.py")
    file.write_text(PROGRAM)
    name = f"program:{file}:solve"

    env = pl.make(name)
    env.reset(seed=3)
    while not env.terminations[agent := env.agent_selection]:
        print(agent, "is asked:", env.text_for(agent))
        env.step("4" if agent == "tool_0" else "I say 4.")
    print("rewards:", env.rewards)

    # pettingllms-train --env program:my_team.py:solve --policies per-role --method look_ahead
    summary = pl.train(
        name,
        policies="per-role",
        method="look_ahead",  # its reward comes at its end
        max_steps=2,
        tasks_per_step=2,
        num_generations=4,
        max_completion_length=16,
        eval_steps=0,
        eval_tasks=2,
        output_dir=f"{folder}/run",
    )
    print("trained:", sorted(path.name for path in Path(folder, "run/adapters").iterdir()))

    # pettingllms-eval --adapters runs/latest
    result = pl.evaluate(adapters=summary.folder, limit=5)
    print(f"success on 5 new tasks: {result.success.mean:.1f}")

    # pettingllms-serve runs/latest, and the program runs against it with another base_url
    key_file = Path(folder, "key")
    key_file.write_text("a-key-of-ours")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--key-file", str(key_file), "--sampler", "transformers"]
    command = [sys.executable, "-m", "pettingllms.cli.serve", str(summary.folder), *options]
    server = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}/v1"
    try:
        with OpenAI(base_url=url, api_key="a-key-of-ours", max_retries=0) as client:
            while True:
                try:
                    print("served:", [model.id for model in client.models.list()])
                    break
                except APIConnectionError:
                    assert server.poll() is None, "the server ended"
                    time.sleep(0.5)  # it is still loading the model
        sys.path.append(folder)
        solve = resolve("my_team:solve", "program")
        print("the program, asking the served roles:", solve(7, url, "a-key-of-ours"))
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
