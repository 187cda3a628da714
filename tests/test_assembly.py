"""From settings to environment, policies and folder: only what each one takes, and nothing ignored."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pettingzoo import AECEnv

from pettingllms.assembly import default_folder, located, make_env
from pettingllms.envs import sokoban_v0
from pettingllms.errors import ConfigError
from pettingllms.models import EMBEDDED, SHIPPED
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.trackers import numbers_only, tracker_names
from tests import rows_env


class Foreign(AECEnv[str, str, str]):
    """Somebody else's environment: no splits, no alpha, an argument of its own."""

    metadata: dict[str, Any] = {"name": "foreign"}  # noqa: RUF012 - PettingZoo's class attribute

    def __init__(self, colour: str = "red") -> None:
        self.colour = colour
        self.possible_agents = ["painter"]


def foreign(**kwargs: Any) -> Foreign:
    return Foreign(**kwargs)


def made(*, split: str = "val", embedded: bool = False, **settings: Any) -> Any:
    model = None if embedded else "some/model"
    return make_env(ATGRPOConfig(model=model, **settings), split).unwrapped


def test_an_environment_gets_split_alpha_and_the_prompts_of_its_model() -> None:
    env = made(embedded=True, alpha=0.25)
    assert (env.split, env.alpha, env.prompt) == ("val", 0.25, "compact")
    assert made().prompt == "full"
    assert made(embedded=True, env_args='{"prompt": "full", "max_turns": 2}').prompt == "full"
    assert made(env_args='{"max_turns": 2}').max_turns == 2


def test_the_split_of_a_run_is_not_an_argument_of_its_environment() -> None:
    with pytest.raises(ConfigError, match=r"env-args.split 'test'.*leave it out"):
        made(env_args='{"split": "test"}')


def test_a_partial_of_an_environment_is_fitted_to_the_embedded_model_as_its_class_is() -> None:
    maker = functools.partial(sokoban_v0.env, size=6, boxes=1)
    env = make_env(ATGRPOConfig(), "val", maker).unwrapped
    assert isinstance(env, sokoban_v0.raw_env)
    assert (env.prompt, env.split) == ("compact", "val")
    chosen = [resolve(ATGRPOConfig(), source).num_generations for source in (maker, sokoban_v0.env)]
    assert chosen == [16, 16]


def test_a_foreign_environment_gets_only_what_it_takes() -> None:
    name = "tests.test_assembly:foreign"
    assert made(env=name, embedded=True, env_args='{"colour": "blue"}').colour == "blue"
    with pytest.raises(ConfigError, match=r"alpha=0\.5"):
        made(env=name, alpha=0.5)
    with pytest.raises(ConfigError, match="dataset="):
        made(env=name, dataset="x.jsonl")
    with pytest.raises(ConfigError, match="color"):
        made(env=name, env_args='{"color": "blue"}')


def test_the_embedded_model_is_known_by_default_and_by_path(tmp_path: Path) -> None:
    assert ATGRPOConfig().embedded
    assert ATGRPOConfig(model=str(EMBEDDED)).embedded
    assert not ATGRPOConfig(model="Qwen/Qwen3-1.7B").embedded


def test_local_paths_become_absolute_and_names_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "adapters").mkdir(parents=True)
    (tmp_path / "tasks.jsonl").write_text("")
    config = located(ATGRPOConfig(model="Qwen/Qwen3-1.7B", dataset="tasks.jsonl", adapters="run"))
    assert config.model == "Qwen/Qwen3-1.7B"
    assert config.policies == "per-role"
    assert config.dataset == str(tmp_path / "tasks.jsonl")
    assert config.adapters == str(tmp_path / "run" / "adapters")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            ("policies", word)
            for word in ("per-role", "per-agent", "shared", "base", "api:m", "a=b")
        ],
        *[("model", word) for word in SHIPPED],
        ("dataset", "gsm8k"),
    ],
)
def test_a_word_means_the_same_where_a_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(value).mkdir()
    settings: dict[str, Any] = {name: value}
    config = located(ATGRPOConfig(**settings))
    assert getattr(config, name) == value
    nested = located(ATGRPOConfig(policy_settings={"a": {name: value}}))
    assert nested.policy_settings == {"a": {name: value}}


def test_code_in_files_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a+b"
    folder.mkdir()
    for place in (tmp_path, folder):
        (place / "own_parts.py").write_text(
            "from pettingllms.methods.dr_mas import OfEpisodes\ndef score(**_): return [0.0]\n"
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    given = ATGRPOConfig(
        method="swap+./own_parts.py:OfEpisodes", reward_funcs="own_parts.py:score,m:f"
    )
    config = located(given)
    assert config.method == f"swap+{tmp_path}/own_parts.py:OfEpisodes"
    assert config.reward_funcs == f"{tmp_path}/own_parts.py:score,m:f"
    assert located(ATGRPOConfig()).reward_funcs is None
    # `+` joins methods, so a folder with that name stays unnamed.
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "own_parts")
    assert located(given).method == given.method


def test_folders_of_runs_started_in_the_same_second_differ(tmp_path: Path) -> None:
    config = ATGRPOConfig(env="my_package.my_env:env", policies="coder=a,tester=b")
    first = default_folder(config, tmp_path)
    first.mkdir()
    second = default_folder(config, tmp_path)
    assert first.name.startswith("my_env-coder-a-tester-b-")
    assert not second.exists()


def test_trackers_are_checked_before_anything_starts() -> None:
    assert tracker_names("none") == []
    assert tracker_names("tensorboard, none") == ["tensorboard"]
    with pytest.raises(ConfigError, match="tensorboard"):
        tracker_names("tensorbord")
    numbers = numbers_only({"a": 1, "b": 0.5, "c": True, "d": "x", "e": float("nan"), "f": None})
    assert numbers == {"a": 1.0, "b": 0.5}


@pytest.mark.parametrize("where", ["dataset", "env_args"])
def test_a_data_set_is_read_once(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "tasks.jsonl"
    (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rows_env, "READ", [])
    spelled = {"dataset": name, "env_args": json.dumps({"dataset": name})}
    settings: dict[str, Any] = {where: spelled[where]}
    env = made(env="tests.rows_env:env", **settings)
    assert [name] == rows_env.READ
    assert env.num_tasks == 3
