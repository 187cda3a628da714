"""Serve a team.

`pettingllms-serve RUN` puts a trained team behind OpenAI's chat interface: each role is a model name, and `team` is all of them. Here it serves a tiny run
on a free port, OpenAI's own client asks a role and then the team, and it is stopped.
"""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from openai import APIConnectionError, OpenAI

from pettingllms.session import run_training
from pettingllms.trainers.config import ATGRPOConfig

KEY = "a-key-of-ours"

with tempfile.TemporaryDirectory() as folder:
    run = run_training(
        ATGRPOConfig(
            env="coding",
            policies="per-role",
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
    options = ["--port", str(port), "--key-file", str(key_file), "--sampler", "transformers"]
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

            # A question takes its place in the prompt that the role was trained on.
            question = "Read integers on one line. Keep the positive numbers, double each, and print the first."
            messages = [{"role": "user", "content": question}]
            print("prompt:", repr(client.models.retrieve("coder").role_prompt))
            answer = client.chat.completions.create(
                model="coder", messages=messages, max_tokens=100, temperature=0
            )
            print(f"{question}\n\ncoder alone:\n{answer.choices[0].message.content}\n")

            # The team plays by the rules of its environment: programs and tests really run.
            stream = client.chat.completions.create(
                model="team", messages=messages, max_tokens=100, temperature=0, stream=True
            )
            for chunk in stream:
                delta = chunk.choices[0].delta
                if delta.content:
                    print("\n\nthe team's answer:")
                print(getattr(delta, "reasoning_content", None) or delta.content or "", end="")
            print()
            assert roles == ["coder", "tester", "team"]
    finally:
        server.send_signal(signal.SIGTERM)
        print("the server ended with exit code", server.wait(60))
