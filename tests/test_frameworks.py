"""The programs of docs/frameworks.md, trained as they stand there, with the frameworks themselves.

The frameworks live in a folder of their own (`make test-clients`), in front of this environment's packages.
"""

from __future__ import annotations

import json
import os
import re
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
TEMPLATE = """{% if tools %}<|im_start|>system
<tools>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>\
{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TOOLS = {
    "OpenAI client": (["solver", "critic"], []),
    "OpenAI Agents SDK": (["triage", "solver"], ["transfer_to_solver", "add"]),
    "LangGraph": (["solver", "checker"], ["add"]),
    "AutoGen": (["solver", "checker"], ["add"]),
    "smolagents": (["boss", "solver"], ["solver", "add", "final_answer"]),
}
"""Section -> its roles, and the tools that are called."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model, with a template that takes tools and a context for the prompts of smolagents."""
    folder = tmp_path_factory.mktemp("model") / "tools"
    shutil.copytree(EMBEDDED, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    return folder


def program(section: str) -> str:
    """The code of a section of the page."""
    page = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return str(code)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A run for each section, all trained in one process, because imports take most of the time."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [{"question": f"What is 2 + 3, for {n}?", "answer": 5} for n in range(20)]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings: dict[str, Any] = {
        "dataset": "sums.jsonl?divide",
        "policies": "per-role",
        "method": "look_ahead",
        "model": str(model),
        "sampler": "tests.calling_engine:open_engine",
        "max_steps": 2,
        "tasks_per_step": 1,
        "num_generations": 2,
        "eval_steps": 0,
        "eval_tasks": 1,
        "warmup_steps": 0,
    }
    lines = ["import pettingllms as pl"]
    for number, (section, (roles, _)) in enumerate(TOOLS.items()):
        (folder / f"team_{number}.py").write_text(program(section))
        env = f"program:team_{number}.py:solve"
        run = {"env": env, "env_args": {"roles": roles}, "output_dir": section}
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


@pytest.mark.parametrize("section", TOOLS)
def test_a_team_of_a_framework_trains_an_adapter_for_each_role(section: str, folder: Path) -> None:
    roles, tools = TOOLS[section]
    for role in roles:
        file = folder / section / "adapters" / role / "adapter_model.safetensors"
        assert any(bool(t.any()) for name, t in load_file(file).items() if "lora_B" in name)
    steps = (folder / section / "metrics.jsonl").read_text().splitlines()
    assert max(json.loads(step)["step"] for step in steps) == 2
    records = (folder / section / "trajectories.jsonl").read_text()
    for tool in tools:
        assert f'<tool_call>{{\\"name\\": \\"{tool}\\"' in records
