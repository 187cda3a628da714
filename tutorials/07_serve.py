"""Serve a team.

`pettingllms-serve RUN` puts a trained team behind OpenAI's chat interface: each role is a model name. Here it serves a tiny run on a free port, answers
OpenAI's own client, and is stopped.
"""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from openai import APIConnectionError, OpenAI

from pettingllms.envs import make
from pettingllms.session import train
from pettingllms.trainers.config import ATGRPOConfig

KEY = "a-key-of-ours"

with tempfile.TemporaryDirectory() as folder:
    run = train(
        ATGRPOConfig(
            env="sokoban",
            num_generations=2,
            tasks_per_step=1,
            max_steps=1,
            eval_tasks=1,
            eval_steps=0,
            output_dir=f"{folder}/run",
        )
    ).folder

    # Without a key file the server makes a random key and prints it.
    key_file = Path(folder, "key")
    key_file.write_text(KEY)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--key-file", str(key_file), "--backend", "transformers"]
    server = subprocess.Popen([sys.executable, "-m", "pettingllms.cli.serve", str(run), *options])
    try:
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0) as client:
            while True:
                try:
                    roles = [model.id for model in client.models.list()]
                    break
                except APIConnectionError:
                    assert server.poll() is None, "the server ended"
                    time.sleep(0.5)  # it is still loading the model
            print("models:", roles)

            # A single user message is the prompt that the role was trained on for that text.
            env = make("sokoban", prompt="compact")
            env.reset(seed=0)
            text = env.last()[0]["text"]
            answer = client.chat.completions.create(
                model="tool",
                messages=[{"role": "user", "content": text}],
                max_tokens=48,
                temperature=0,
            )
            print(f"{text}\n\ntool: {answer.choices[0].message.content}")
            assert roles == ["tool", "planner"]
    finally:
        server.send_signal(signal.SIGTERM)
        print("the server ended with exit code", server.wait(60))
