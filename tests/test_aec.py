"""Any PettingZoo AEC environment with text can be found, copied, read and scored."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pettingzoo
import pytest
from pettingzoo.env_registry.spec import EnvSpec
from pettingzoo.utils import wrappers

from pettingllms.envs import (
    check_env,
    clone_env,
    load_env,
    next_agent,
    observe_text,
)
from pettingllms.errors import CloneError, ConfigError, UnknownNameError
from pettingllms.names import role_of
from pettingllms.rollout.episode import step_result
from tests import foreign_env, toy_env


def started(env, seed=1):
    env.reset(seed=seed)
    return env


def word(env):
    return observe_text(env, env.agent_selection).removeprefix("Say ").removesuffix(".")


def test_a_path_makes_an_environment_with_its_arguments():
    assert isinstance(load_env("tests.toy_env:env", max_turns=2), toy_env.raw_env)
    foreign = load_env("tests.foreign_env:env", rounds=7).unwrapped
    assert isinstance(foreign, foreign_env.raw_env)
    assert foreign.rounds == 7


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("toy", UnknownNameError, "unknown environment 'toy'"),
        ("codign", UnknownNameError, "did you mean 'coding'"),
        ("coding_v7", UnknownNameError, "did you mean 'coding"),
        ("pettingllms/codign-v0", UnknownNameError, "unknown environment"),
        ("tests.no_such:env", UnknownNameError, "no module 'tests.no_such'.*PYTHONPATH"),
        ("no_such.toy_env:env", UnknownNameError, "no module 'no_such'"),
        ("tests.toy_env:evn", UnknownNameError, "has no 'evn'; did you mean 'env'"),
        ("tests.toy_env:", ConfigError, "is not a `module:attribute` path"),
        (":env", ConfigError, "is not a `module:attribute` path"),
        ("./no_such.py:env", UnknownNameError, "no file .*/no_such.py"),
        ("tests.foreign_env:not_an_env", ConfigError, "is a int; it must be callable"),
        ("tests.foreign_env:makes_no_env", ConfigError, "made a dict"),
        ("tests.foreign_env:parallel", ConfigError, "parallel_to_aec"),
    ],
)
def test_what_cannot_be_found_or_used_is_explained(name, error, message):
    with pytest.raises(error, match=message):
        load_env(name)


@pytest.mark.slow
def test_an_environment_is_found_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_it_7d1.py").write_text("ROUNDS = 9\n")
    (tmp_path / "echo_env_7d1.py").write_text(
        "from beside_it_7d1 import ROUNDS\n"
        "from tests.foreign_env import raw_env\n\n\n"
        "def env(rounds=ROUNDS):\n    return raw_env(rounds)\n"
    )
    path = "./echo_env_7d1.py:env"
    made: list[Any] = [load_env(path), load_env(path, rounds=3)]
    assert [env.rounds for env in made] == [9, 3]
    with pytest.raises(ConfigError, match=r"echo_env_7d1.py:env has no argument 'round'; did you"):
        load_env(path, round=3)
    with pytest.raises(UnknownNameError, match="has no 'evn'; did you mean 'env'"):
        load_env(f"{tmp_path}/echo_env_7d1.py:evn")
    check_env(path, episodes=1, replies=foreign_env.WORDS)


def test_a_file_whose_name_is_taken_or_that_fails_is_explained(tmp_path):
    (tmp_path / "random.py").write_text("")
    with pytest.raises(ConfigError, match="module 'random' is loaded already; rename the file"):
        load_env(f"{tmp_path}/random.py:env")
    (tmp_path / "fails_7d1.py").write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            load_env(f"{tmp_path}/fails_7d1.py:env")


def test_an_import_that_fails_inside_a_module_keeps_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        load_env("half_installed:env")


@pytest.mark.parametrize(
    "make",
    [
        toy_env.env,
        foreign_env.env,
        foreign_env.raw_env,
        foreign_env.easily_pickled,
        foreign_env.badly_pickled,
    ],
)
def test_copies_play_on_alike_and_apart(make):
    env = started(make())
    env.step("5")
    shown = [observe_text(env, agent) for agent in env.agents]
    twin = clone_env(env)
    later = []
    for branch in (twin, env):
        if branch is env:
            assert [observe_text(env, agent) for agent in env.agents] == shown
        branch.step("fig")
        later.append([observe_text(branch, agent) for agent in branch.agents])
    assert later[0] == later[1]


def test_a_wrapper_is_copied_with_its_environment():
    env = started(wrappers.BaseWrapper(toy_env.env()))
    twin = clone_env(env)
    twin.step("5")
    assert isinstance(twin, wrappers.BaseWrapper)
    assert (env.agent_selection, twin.agent_selection) == ("guesser_0", "checker_0")


def test_an_environment_that_was_never_reset_can_be_copied():
    twin = clone_env(foreign_env.env())
    twin.reset(seed=1)
    assert next_agent(twin) == "speaker_1"


def test_a_copy_that_forgets_the_episode_is_refused():
    with pytest.raises(CloneError, match=r"not where the original is|has no attribute 'agents'"):
        clone_env(started(foreign_env.forgetful()))


def test_what_cannot_be_copied_is_refused_with_the_cure():
    with pytest.raises(CloneError, match=r"cannot be copied .*lock.*implement __deepcopy__"):
        clone_env(started(foreign_env.locked()))


def test_observations_without_text_are_refused():
    env = started(foreign_env.numbers())
    with pytest.raises(ConfigError, match="without text"):
        observe_text(env, "player_0")


def test_text_is_read_from_bare_strings_and_dicts():
    assert observe_text(started(foreign_env.env()), "speaker_1").startswith("Say ")
    assert observe_text(started(toy_env.env()), "guesser_0").startswith("Guess ")


@pytest.mark.parametrize(
    ("agent", "role"),
    [("coder_0", "coder"), ("tool_user_12", "tool_user"), ("north", "north"), ("a_b", "a_b")],
)
def test_a_role_is_an_agents_name_without_its_number(agent, role):
    assert role_of(agent) == role


def test_scores_of_a_text_env_come_in_parts():
    env = toy_env.env(alpha=0.5)
    env.reset(seed=1, options={"secret": 3})
    env.step("3")
    scores = step_result(env, "guesser_0")
    assert (scores.team, scores.local, scores.reward) == (1.0, 0.5, 1.0)
    assert scores.info["success"] is True
    assert (scores.others, scores.cooperative) == ({}, True)


def test_the_reward_of_a_foreign_environment_is_local():
    env = started(foreign_env.env())
    env.step(word(env))
    assert step_result(env, "speaker_1") == (0.0, 1.0, 1.0, {}, {}, False)


def test_finished_agents_are_stepped_out_until_nobody_is_left():
    env = started(foreign_env.env(rounds=1))
    acted = []
    while (agent := next_agent(env)) is not None:
        acted.append(agent)
        env.step("plum")
    assert acted == ["speaker_1", "speaker_2"]
    assert env.agents == []


def test_a_game_of_pettingzoos_registry_is_pickled_where_it_is(monkeypatch):
    """Also one that inherits EzPickle, which by itself begins anew."""
    monkeypatch.setitem(
        pettingzoo.aec_registry,
        "tests/numbered-v0",
        EnvSpec("tests/numbered-v0", foreign_env.numbered),
    )
    env = load_env("pettingzoo:tests/numbered-v0", game_args={"rounds": 3})
    pickle.loads(pickle.dumps(env)).reset(seed=1)
    env.reset(seed=4)
    for action in ("1", "2", "0", "3", "1", "2"):
        twin = pickle.loads(pickle.dumps(env))
        for game in (env, twin):
            game.step(action)
        for agent in env.possible_agents:
            assert twin.observe(agent) == env.observe(agent)
        assert (twin.rewards, twin.truncations) == (env.rewards, env.truncations)
