"""Settings in YAML: whatever the one reader returns has plain types alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pettingllms.cli import evaluate, guard, train
from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.plain_yaml import read_yaml
from pettingllms.runs import config_text, read_config
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.viewer.episodes import encoded
from pettingllms.viewer.library import Library
from tests.viewer_runs import run_folder

TEXTS = ["2024-01-01", "2024-13-45", "2024-01-01 10:00:00", "<<", "=", "on the way"]
"""Text in YAML, whatever else other readers make of it."""
REFUSED = {
    "set": "!!set {a}",
    "binary": "!!binary aGk=",
    "pairs": "!!pairs [a: 1]",
    "integer of 5000 digits": "9" * 5000,
    "hexadecimal of 5000 digits": "0x" + "f" * 5000,
    "sexagesimal beyond a float": ":".join(["59"] * 400) + ".5",
    "integer without digits": "0x_",
    "int": "!!int abc",
    "float": "!!float abc",
    "empty float": "!!float ''",
    "bool": "!!bool abc",
    "timestamp": "!!timestamp abc",
    "object": "!!python/object:os.system {}",
    "cycle": "&a [*a]",
    "alias": "[&a 1, *a]",
    "depth": "[" * 1000,
    "escape beyond unicode": r'"\UFFFFFFFF"',
    "key": "{[a]: 1}",
}


@pytest.mark.parametrize("text", TEXTS)
def test_dates_and_signs_of_other_readers_stay_text(text: str) -> None:
    assert read_yaml(f"note: {text}\n{text}: 1".encode()) == {"note": text, text: 1}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_json_cannot_say_is_refused_in_one_line(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_folder(tmp_path / "run")
    (run / "config.yaml").write_text(f"seed: 1\nnote: {value}\n")
    with pytest.raises(ConfigError) as caught:
        read_yaml((run / "config.yaml").read_bytes())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    with pytest.raises(RunFolderError, match="damaged"):
        read_config(run)
    for command in (train, evaluate):
        words = ["--config", str(run / "config.yaml"), "--dry-run"]
        assert command.main(words) == guard.FAILED
        assert "is not YAML: " in capsys.readouterr().err
    (adapters := run / "adapters").mkdir()
    assert train.main(["--resume", str(run)]) == guard.FAILED
    assert evaluate.main(["--adapters", str(adapters.parent), "--dry-run"]) == guard.FAILED
    assert capsys.readouterr().err.count("\n") == 2
    # The viewer shows the run, without settings.
    [shown] = json.loads(encoded(Library([tmp_path]).listed()))["sources"]
    assert shown["settings"] == {}


def test_a_refusal_names_its_line() -> None:
    with pytest.raises(ConfigError, match=r"line 2, column 6: 'abc' is no int that can be read"):
        read_yaml(b"a: 1\nbc:  !!int abc")
    with pytest.raises(ConfigError, match=r"line 2, column 4: aliases are not read"):
        read_yaml(b"a: &a 1\nb: *a")


def test_settings_that_this_package_writes_are_read_as_they_were() -> None:
    odd = {"texts": [*TEXTS, "0x_", "1:30", "*a", "&a", "!!int 1", "", "null", "\ud7ff\n"]}
    config = ATGRPOConfig(env_args=odd | {"numbers": [1, -2.5, 1e-30, True, None]})
    text = config_text(resolve(config))
    assert read_yaml(text.encode()) == yaml.safe_load(text)
    assert read_yaml(text.encode())["env_args"] == config.env_args
