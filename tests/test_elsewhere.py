"""Our environments in other libraries' forms, run by these libraries: verifiers and OpenEnv.

Each lives in an environment of its own (`make test-elsewhere`), because verifiers bounds versions that
the rest of this package needs otherwise. What they report is compared with the same game played here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pettingllms.envs.aec import load_env, observe_text
from pettingllms.envs.base import next_agent
from pettingllms.names import role_of
from pettingllms.rollout.episode import step_result
from pettingllms.samplers.vllm_process import free_port
from tests.api_stub import stubbed

pytestmark = [pytest.mark.elsewhere, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[1]
NAMES = ("coding", "math", "plan_path", "sokoban", "sudoku")
SAID = """
```python
print(int(input()) + 1)
```
**Test Input:**
```
1
```
**Test Output:**
```
2
```
The answer is #### [R, U]
"""
"""What every agent of every game says; each reads of it what it can."""


def python(library: str) -> str:
    """The interpreter of a library's environment."""
    folder = os.environ.get(f"{library.upper()}_VENV", str(ROOT / f".venv-{library}"))
    return str(Path(folder).resolve() / "bin" / "python")


def environment() -> dict[str, str]:
    folders = (ROOT, *(ROOT / "integrations" / name for name in ("verifiers", "openenv")))
    paths = os.pathsep.join(map(str, folders))
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": paths}


def told(library: str, script: str, *words: str) -> Any:
    """What a script prints as JSON, run where a library is."""
    done = subprocess.run(
        [python(library), str(ROOT / "tests" / script), *words],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def played(name: str, seed: int, texts: Sequence[str], **arguments: Any) -> list[dict[str, Any]]:
    """The same game, here: for each decision the agent, its prompt, and what it was paid."""
    env = load_env(name, **arguments)
    env.reset(seed=seed)
    decisions: list[dict[str, Any]] = []
    latest: dict[str, dict[str, Any]] = {}
    for text in texts:
        agent = next_agent(env)
        assert agent is not None
        decision = {"agent": agent, "prompt": observe_text(env, agent), "late": 0.0}
        env.step(text)
        result = step_result(env, agent)
        decision |= {"reward": result.reward, "others": result.others}
        latest[agent] = decision
        decisions.append(decision)
        for other, paid in result.others.items():
            latest[other]["late"] += paid
    assert next_agent(env) is None
    env.close()
    return decisions


# ----------------------------------------------------------------------------------- verifiers


def test_verifiers_plays_all_five_with_an_agent_for_each_role_and_scores_no_failure():
    with stubbed() as stub:
        stub.text = lambda body: SAID
        stub.misbehave = lambda handler, _: (
            handler.body["model"] == "gone" and handler.fail(400, "no such model")
        )
        idents = [f"pettingllms-{name.replace('_', '-')}@here" for name in NAMES]
        idents.append("pettingllms-sokoban@gone")
        *episodes, failed = told("verifiers", "verifiers_game.py", stub.base, *idents)
    for name, episode in zip(NAMES, episodes, strict=True):
        assert episode["errors"] == []
        assert episode["ok"]
        traces = episode["traces"]
        assert {trace["text"] for trace in traces} == {SAID}
        here = played(name, episode["seed"], [SAID] * len(traces), max_turns=2)
        assert episode["agents"] == sorted({role_of(decision["agent"]) for decision in here})
        for trace, decision in zip(traces, here, strict=True):
            assert trace["agent"] == role_of(decision["agent"])
            assert trace["prompt"] == decision["prompt"]
            assert trace["rewards"]["reward"] == decision["reward"]
            assert trace["rewards"].get("late_reward", 0.0) == pytest.approx(decision["late"])
    assert not failed["ok"]
    assert "tool_0 could not be asked" in failed["errors"][0]
    assert [trace["rewards"] for trace in failed["traces"]] == [{}]


# ------------------------------------------------------------------------------------- OpenEnv


@contextlib.contextmanager
def env_server(*options: str) -> Iterator[str]:
    """The address of `pettingllms-env-server`."""
    port = free_port("127.0.0.1")
    words = ["-m", "pettingllms_env_server", "--port", str(port), *options]
    process = subprocess.Popen(
        [python("openenv"), *words],
        env={**environment(), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving "), process.stderr.read()
        url = line.split()[-1]
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                break
            assert process.poll() is None, process.stderr.read()
        yield url
        process.terminate()
        process.wait(30)
    finally:
        process.kill()
        process.communicate()


def test_openenvs_client_plays_all_five_two_sessions_side_by_side():
    with contextlib.ExitStack() as servers:
        options = ("--env-args.max_turns", "2")
        urls = [servers.enter_context(env_server("--env", name, *options)) for name in NAMES]
        played_there = told("openenv", "openenv_game.py", "play", SAID, *urls)
    for name, episodes in zip(NAMES, played_there, strict=True):
        for seed, episode in zip((3, 4), episodes, strict=True):
            compare(name, seed, episode)


def compare(name: str, seed: int, episode: dict[str, Any]) -> None:
    """What OpenEnv's client saw, with the same game here."""
    steps = episode["steps"]
    here = played(name, seed, [SAID] * (len(steps) - 1), max_turns=2)
    returns = dict.fromkeys((decision["agent"] for decision in here), 0.0)
    for (seen, *_), (after, reward, done), decision in zip(steps, steps[1:], here, strict=False):
        assert (seen["agent"], seen["prompt"]) == (decision["agent"], decision["prompt"])
        assert seen["role"] == role_of(decision["agent"])
        assert (after["acted"], reward) == (decision["agent"], decision["reward"])
        assert after["rewards"] == {decision["agent"]: reward, **decision["others"]}
        assert done == (after["agent"] is None)
        for agent, paid in after["rewards"].items():
            returns[agent] += paid
    assert steps[-1][2]
    assert episode["state"]["returns"] == pytest.approx(returns)
    assert episode["state"]["step_count"] == len(here)


def test_sessions_are_bounded_in_number_age_and_the_size_of_messages():
    options = ("--max-sessions", "2", "--max-age", "3", "--max-message", "4096")
    with env_server("--env", "sokoban", *options) as url:
        observed = told("openenv", "openenv_game.py", "bounds", url)
    assert observed["health"] == 200
    status, text = observed["step"]
    assert status == 400
    assert "no episode has begun" in text
    assert observed["body"] == 413
    assert observed["third"]["code"] == "CAPACITY_REACHED"
    assert observed["{"] == "INVALID_JSON"
    assert observed['{"type": "step", "data": {}}'] == "VALIDATION_ERROR"
    assert observed['{"type": "dance"}'] == "UNKNOWN_TYPE"
    assert (observed["large"], observed["old"]) == (1009, 4408)
    assert "send reset first" in observed["early"]


def test_the_server_says_what_it_cannot_serve():
    for words, says in {
        ("--env", "sokobn"): "did you mean 'sokoban'",
        ("--env", "sokoban", "--env-args.sz", "8"): "did you mean 'size'?",
        ("--max-age", "0"): "max_age must be positive",
    }.items():
        done = subprocess.run(
            [python("openenv"), "-m", "pettingllms_env_server", *words],
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert says in done.stderr
        assert done.stderr.count("\n") == 1


def test_the_command_of_the_documentation_evaluates(tmp_path):
    page = (ROOT / "docs" / "elsewhere.md").read_text(encoding="utf-8")
    [line] = [line for line in page.splitlines() if line.startswith("vf-eval ")]
    command = str(Path(python("verifiers")).parent / "vf-eval")
    with stubbed() as stub:
        stub.text = lambda body: SAID
        words = [*shlex.split(line)[1:], "-m", "any", "--client.base-url", stub.base]
        done = subprocess.run(
            [command, *words, "--client.api-key-var", "STUB_KEY"],
            cwd=tmp_path,
            env={**environment(), "STUB_KEY": "none"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        # Two episodes of two turns of two agents, at most.
        assert 4 <= len(stub.bodies) <= 8
    assert list(tmp_path.rglob("traces.jsonl"))


def test_a_port_that_is_taken_is_said_before_anything_is_served():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        words = [
            "-m",
            "pettingllms_env_server",
            "--env",
            "sokoban",
            "--port",
            str(port),
        ]
        done = subprocess.run(
            [python("openenv"), *words], env=environment(), capture_output=True, text=True
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in done.stderr
    assert done.stderr.count("\n") == 1
