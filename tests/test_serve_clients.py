"""The commands of docs/serving.md, run as they stand there with the clients' own packages.

The clients live in an environment of their own (`make test-clients`), because they talk HTTP only and
some of them bound versions that training needs otherwise. CI has no network: where a command names a data
set of the hub, a file of the same kind takes its place.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from pettingllms.envs import make
from pettingllms.models import EMBEDDED
from pettingllms.policies.loading import load_policies
from pettingllms.serving.role_server import RoleServer
from tests.served import running

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]
torch.set_num_threads(2)
ROOT = Path(__file__).parents[1]
BIN = Path(os.environ.get("CLIENTS_VENV", ROOT / ".venv-clients")).resolve() / "bin"
KEY = "a-key"
_BLOCK = re.compile(r"```(python|bash)\n(.*?)```", re.DOTALL)


def blocks(heading):
    """The blocks of one section of the page, as (language, text)."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    section = re.split(rf"^#+ {re.escape(heading)}\n", page, flags=re.MULTILINE)[1]
    return _BLOCK.findall(re.split(r"^#", section, flags=re.MULTILINE)[0])


@pytest.fixture(scope="module")
def url():
    policies = load_policies(EMBEDDED, {"coder": "coder", "tester": "tester"})
    with running(RoleServer(policies, 160, make("coding", prompt="compact")), KEY) as base:
        yield base


@pytest.fixture
def run(url, tmp_path):
    """Runs a command in the clients' environment; its output."""
    environment = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": KEY,
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }

    def command(language, text):
        words = (
            [str(BIN / "python"), "-c", text] if language == "python" else ["bash", "-euc", text]
        )
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    return command


@pytest.mark.parametrize("heading", ["Ask a role", "LiteLLM"])
def test_a_coder_answers_with_a_program(run, heading):
    [(language, text)] = blocks(heading)
    assert "```python" in run(language, text)


def test_a_team_streams_who_says_what(run):
    [(language, text)] = blocks("Ask the team")
    output = run(language, text)
    assert output.startswith("coder_0, turn 0:\n")
    assert "tester_0, turn 0:\n" in output


def test_inspect_evaluates_a_role(run, tmp_path):
    (_, task), (language, command) = blocks("inspect-ai")
    (tmp_path / "programs.py").write_text(task)
    output = run(language, command)
    assert re.search(r"accuracy:?\s+[01]\.", output), output
    [log] = (tmp_path / "logs").glob("*.eval")
    dumped = json.loads(run("bash", f"inspect log dump {log} 2>/dev/null"))
    assert dumped["status"] == "success"
    assert "```python" in dumped["samples"][0]["output"]["choices"][0]["message"]["content"]


def own_tasks(folder):
    """A multiple-choice task and one with free answers, as files."""
    rows = [
        {"question": f"What is {a} + {b}?", "choices": [str(a + b), "a program"], "label": 0}
        for a, b in ((1, 2), (3, 4), (5, 6))
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shared = f"""dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/rows.jsonl}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
    (folder / "chosen.yaml").write_text(
        f"task: chosen\noutput_type: multiple_choice\n{shared}"
        'doc_to_target: label\ndoc_to_choice: "{{choices}}"\n'
        "metric_list: [{metric: acc}]\n"
    )
    (folder / "free.yaml").write_text(
        f"task: free\noutput_type: generate_until\n{shared}"
        'doc_to_target: "{{choices[0]}}"\ngeneration_kwargs: {until: ["Q:"]}\n'
        "metric_list: [{metric: exact_match}]\n"
    )


def test_lm_eval_scores_choices_and_free_answers(run, tmp_path):
    own_tasks(tmp_path)
    [(language, commands)] = blocks("lm-eval")
    for theirs, ours in (("arc_easy", "chosen"), ("gsm8k", "free")):
        assert f"--tasks {theirs} " in commands
        commands = commands.replace(f"--tasks {theirs} ", f"--tasks {ours} --include_path . ")
    output = run(language, commands)
    assert re.search(r"\|chosen\s*\|.*\|acc\s*\|", output), output
    assert re.search(r"\|free\s*\|.*\|exact_match\|", output), output
