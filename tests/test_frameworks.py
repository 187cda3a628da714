"""The programs of tutorials/frameworks, trained as they stand there, with the frameworks themselves.

The frameworks live in a folder of their own (`make test-clients`), in front of this environment's packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from pettingllms.models import EMBEDDED

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[1]
FRAMEWORKS = Path(os.environ.get("FRAMEWORKS_PATH", ROOT / ".venv-frameworks")).resolve()
STEPS = 2
"""With seed 1 every role plays in one of them; a first role can end the episode alone."""
TEMPLATE = """{% if tools %}<|im_start|>system
<tools>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>\
{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TOOLS = {
    "openai_client": (["solver", "critic"], []),
    "agents_sdk": (["triage", "solver"], ["transfer_to_solver", "add"]),
    "langgraph_team": (["solver", "checker"], ["add"]),
    "autogen_team": (["solver", "checker"], ["add"]),
    "smolagents_team": (["boss", "solver"], ["solver", "add", "final_answer"]),
}
"""Program -> its roles, and the tools that are called."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model, with a template that takes tools and a context for the prompts of smolagents."""
    folder = tmp_path_factory.mktemp("model") / "tools"
    shutil.copytree(EMBEDDED, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A run for each program, all trained in one process, because imports take most of the time."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [{"question": f"What is 2 + 3, for {n}?", "answer": 5} for n in range(20)]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings: dict[str, Any] = {
        "dataset": "sums.jsonl?divide",
        "policies": "per-role",
        "method": "look_ahead",
        "model": str(model),
        "sampler": "tests.calling_engine:open_engine",
        "max_steps": STEPS,
        "seed": 1,
        "tasks_per_step": 1,
        "num_generations": 2,
        "eval_steps": 0,
        "eval_tasks": 1,
        "warmup_steps": 0,
    }
    lines = ["import pettingllms as pl"]
    for name, (roles, _) in TOOLS.items():
        env = f"program:{ROOT}/tutorials/frameworks/{name}.py:solve"
        run = {"env": env, "env_args": {"roles": roles}, "output_dir": name}
        lines.append(f"pl.train(**{settings | run!r})")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{FRAMEWORKS}{os.pathsep}{ROOT}", "HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("name", TOOLS)
def test_a_team_of_a_framework_trains_an_adapter_for_each_role(name: str, folder: Path) -> None:
    roles, tools = TOOLS[name]
    for role in roles:
        file = folder / name / "adapters" / role / "adapter_model.safetensors"
        assert any(bool(t.any()) for key, t in load_file(file).items() if "lora_B" in key)
    steps = (folder / name / "metrics.jsonl").read_text().splitlines()
    assert max(json.loads(step)["step"] for step in steps) == STEPS
    records = (folder / name / "trajectories.jsonl").read_text()
    for tool in tools:
        assert f'<tool_call>{{\\"name\\": \\"{tool}\\"' in records
