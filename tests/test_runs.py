"""The run folder: nothing is lost, nothing is mixed, nobody else's files are touched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.rollout.episode import plain
from pettingllms.runs import (
    METRICS,
    RunFolder,
    config_text,
    point_latest,
    read_config,
)
from pettingllms.trainers.config import ATGRPOConfig, resolve

CONFIG = resolve(
    ATGRPOConfig(
        env="tests.letters_env:env",
        num_generations=4,
        tasks_per_step=2,
        max_steps=6,
        max_completion_length=6,
        learning_rate=0.01,
    )
)


def new_folder(path: Path) -> RunFolder:
    folder = RunFolder.create(path)
    folder.describe(CONFIG)
    return folder


def test_two_runs_cannot_use_one_folder(tmp_path: Path) -> None:
    with new_folder(tmp_path / "run"):
        # Not --output-dir, which a run that is resumed cannot change.
        with pytest.raises(RunFolderError, match=r"in use .* or choose another folder"):
            RunFolder.reopen(tmp_path / "run")
        with pytest.raises(RunFolderError, match="in use"):
            RunFolder.create(tmp_path / "run")
    RunFolder.reopen(tmp_path / "run").close()


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib\n"
        "from pettingllms.runs import RunFolder\n"
        "from pettingllms.trainers.config import ATGRPOConfig\n"
        "RunFolder.create(pathlib.Path(sys.argv[1])).describe(ATGRPOConfig())\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False)
    assert killed.returncode == -9
    RunFolder.reopen(tmp_path / "run").close()


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(RunFolderError, match=r"not empty .*thesis\.tex"):
        RunFolder.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_finished_or_killed_run_is_not_overwritten(tmp_path: Path) -> None:
    new_folder(tmp_path / "run").close()
    with pytest.raises(RunFolderError, match="--resume"):
        RunFolder.create(tmp_path / "run")


def test_a_run_that_never_began_leaves_no_folder(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "deep" / "run").close()
    assert not (tmp_path / "deep" / "run").exists()


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no run folder"):
        RunFolder.reopen(tmp_path / "missing")
    with pytest.raises(RunFolderError, match="no run folder"):
        read_config(tmp_path)


def test_an_unwritable_place_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be"):
        RunFolder.create(tmp_path / "file" / "run")
    with pytest.raises(RunFolderError, match="cannot be"):
        RunFolder.create(tmp_path / "file")


def test_logs_that_lost_lines_are_noticed(tmp_path: Path) -> None:
    with new_folder(tmp_path / "run") as folder:
        folder.append(METRICS, [{"step": 1}])
        lengths = folder.lengths()
        (tmp_path / "run" / METRICS).write_text("")
        with pytest.raises(RunFolderError, match="lost lines"):
            folder.cut(lengths)


def test_files_are_replaced_as_a_whole(tmp_path: Path) -> None:
    with new_folder(tmp_path / "run") as folder:
        folder.write("summary.md", "old")
        folder.write("summary.md", "new")
    path = tmp_path / "run" / "summary.md"
    assert path.read_text() == "new"
    assert [file.name for file in path.parent.glob(".*")] == [".lock"]


def test_the_settings_come_back_as_they_were(tmp_path: Path) -> None:
    config = resolve(
        ATGRPOConfig(
            model="a/b", learning_rate=1e-5, env_args={"max_turns": 2}, output_dir="x", full=True
        )
    )
    with RunFolder.create(tmp_path / "run") as folder:
        folder.describe(config)
        folder.describe(config)
    restored = read_config(tmp_path / "run")
    assert restored.output_dir is None
    restored.output_dir = "x"
    assert restored == config
    starts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert len(starts) == 2
    assert starts[0]["versions"]["torch"] == torch.__version__
    assert starts[0]["command"] == sys.argv


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds None in place of settings"),
        (b"- a", r"holds \['a'\] in place of settings"),
        (b"env: [", "damaged: line 1, column 7: expected the node content"),
        (b"\xff\xfe\x00", "damaged: "),
        (b"max_steps: many", "max_steps must be a whole number, got 'many'"),
        (b"learning_rate: .inf", "learning_rate must be a finite number"),
        (b"1: 2", "unknown key 1"),
    ],
)
def test_broken_settings_of_a_run_are_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises((RunFolderError, ConfigError), match=says) as caught:
        read_config(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "config.yaml") in str(caught.value) or "must be" in str(caught.value)


def test_a_broken_record_of_a_run_is_named_with_its_place(tmp_path: Path) -> None:
    with new_folder(tmp_path / "run") as folder:
        folder.append(METRICS, [{"step": 1}])
        for line in ("[1]\n", "nonsense\n", "\udcff\n"):
            (tmp_path / "run" / METRICS).write_bytes(
                b'{"step": 1}\n' + line.encode("utf-8", "surrogateescape")
            )
            with pytest.raises(RunFolderError, match=r"metrics\.jsonl is damaged in line 2"):
                folder.rows(METRICS)
        for text in ("", "{}", "[1"):
            (tmp_path / "run" / "run.json").write_text(text)
            with pytest.raises(RunFolderError, match=r"run\.json is damaged: .*remove it"):
                folder.describe(CONFIG)


def test_settings_of_another_version_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(config_text(CONFIG) + "max_stps: 3\n")
    with pytest.raises(ConfigError, match=r"max_stps.*max_steps"):
        read_config(tmp_path)


def test_latest_leads_to_the_newest_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        point_latest(tmp_path / name)
    assert (tmp_path / "latest").resolve() == (tmp_path / "two").resolve()


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_every_row_is_json_that_any_reader_knows(value: object) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(json.dumps(plain(value), allow_nan=False), parse_constant=refuse)


def test_a_setting_that_is_unset_where_its_default_is_not_comes_back_unset(tmp_path):
    bounds: dict[str, Any] = {"vllm_importance_sampling_clip_max": None}
    bounds |= {"model": "embedded", "vllm_importance_sampling_correction": True}
    config = ATGRPOConfig(**bounds)
    (tmp_path / "config.yaml").write_text(config_text(config))
    assert read_config(tmp_path) == config
