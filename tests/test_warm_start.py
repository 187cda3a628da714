"""The warm start on form: what it refuses, and that training starts from what it writes."""

from __future__ import annotations

import json

import pytest

from pettingllms.cli.data import main
from pettingllms.errors import ConfigError
from pettingllms.policies.loading import load_policies
from pettingllms.trainers.warm_start import read_demonstrations
from tests.tiny_lm import save_tiny


def a_file(tmp_path, *rows):
    path = tmp_path / "forms.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def of(role, prompt, completion):
    return {"role": role, "prompt": prompt, "completion": completion}


@pytest.mark.slow
def test_each_role_gets_an_adapter_that_has_learned_and_training_loads_it(tmp_path):
    model = tmp_path / "model"
    save_tiny(model)
    forms = a_file(tmp_path, of("finder", "a b c", "b"), of("answerer", "a b", "a"))
    out = tmp_path / "warm"
    words = ["warm-start", str(forms), "--env", "read", "--model", str(model), "--out", str(out)]
    assert main([*words, "--steps", "1"]) == 0
    roles = {"finder": "finder", "answerer": "answerer"}
    policies = load_policies(model, roles, adapters=out)
    for role in roles:
        moved = [
            name for name, value in policies.state(role).items() if "lora_B" in name and value.any()
        ]
        assert moved


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (of("answerer", "Say the city: Bern.", "London."), "'London.' of answerer occurs in task"),
        (of("answerer", "Say the last word of: No note.", "Bern"), "'Bern' of answerer occurs in"),
    ],
)
def test_demonstrations_that_occur_in_tasks_of_any_split_are_refused(tmp_path, capsys, row, words):
    forms = a_file(tmp_path, of("answerer", "Say the city: Bern.", "Bern"), row)
    line = ["warm-start", str(forms), "--env", "read", "--model", "smollm2"]
    assert main([*line, "--out", str(tmp_path / "warm")]) == 2
    assert words in capsys.readouterr().err


def test_a_line_without_a_completion_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"line 1: KeyError\('completion'\)"):
        read_demonstrations(a_file(tmp_path, {"role": "a", "prompt": "b"}))
