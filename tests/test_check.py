"""check_env accepts environments that keep their promises and names the broken one."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from pettingllms.envs import check, check_env
from pettingllms.errors import CloneError, ConfigError, ConformanceError, SandboxUnavailable
from tests import broken_envs, foreign_env, letters_env, toy_env

WORDS = ("5", "3", "0", "higher", "lower", "right")

BROKEN = {
    "Impure": "copies are where the original is|observing changes nothing",
    "Draining": "observing changes nothing: step 0, observation of checker_0",
    "Shared": "copies",
    "Clock": "reset.seed. decides everything",
    "GlobalRandom": "global random generators are left alone",
    "OneSplit": "splits are distinct: train and val",
    "Crashing": "no reply raises: a hundred thousand digits, replied by guesser_0, raised ValueError",
    "Returning": "step returns None",
    "NumpyBools": "terminations are bool: guesser_0 has np.False_",
    "Infinite": "rewards are finite",
    "Unmixed": "reward = alpha",
    "Endless": "truncation comes exactly at max_turns",
    "Outside": "observations lie in their space",
    "NewSpaces": "spaces stay the same objects",
    "NarrowSpaces": "any text is an action: a million brackets",
    "Masked": "observations have text and turn.*action_mask",
    "Nameless": "agents have names",
    "LostInfo": "infos has the keys of agents",
    "NoInfo": "infos are dicts",
    "Numbered": "parse_error is a str or None: guesser_0 has 3",
    "Drawn": "the state lies in its space",
    "Forgiving": "over-long replies are parse errors",
}


def without_processes(env, **kwargs):
    """check_env of a factory that other processes cannot import, which saves their start."""
    check_env(partial(env, max_turns=3), replies=WORDS, **kwargs)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_named(name):
    with pytest.raises(ConformanceError, match=BROKEN[name]):
        without_processes(getattr(broken_envs, name))


def test_a_sandbox_that_is_down_is_not_the_environments_fault():
    with pytest.raises(SandboxUnavailable):
        without_processes(broken_envs.NoSandbox)


def test_a_team_that_shares_its_rewards_passes():
    check_env(letters_env.env(share_team_reward=True), episodes=1, replies=("eeee", "aeiou"))


def test_an_episode_of_one_turn_passes():
    check_env(toy_env.env(max_turns=1), replies=WORDS)


def test_a_slow_reply_is_named(monkeypatch):
    monkeypatch.setattr(check, "HOSTILE_CPU_S", 0.02)
    with pytest.raises(ConformanceError, match=r"bounded time: a million brackets.*of CPU"):
        without_processes(broken_envs.Slow)


def test_hashes_of_strings_are_found_in_other_processes():
    with pytest.raises(ConformanceError, match="all processes have the same episodes"):
        check_env("tests.broken_envs:Hashed", replies=WORDS)


@pytest.mark.slow
def test_a_sound_environment_passes_every_part(caplog):
    check_env(toy_env.env, replies=WORDS)
    assert caplog.records == []


def test_a_sound_environment_passes_by_path(caplog):
    check_env("tests.toy_env:env", episodes=1, seed=9, replies=WORDS)
    assert caplog.records == []


def test_an_instance_is_checked_and_left_as_it_was(caplog):
    env = toy_env.env()
    env.reset(seed=5)
    env.step("7")
    before = (env.observe("checker_0"), env.transcript)
    with caplog.at_level(logging.WARNING):
        check_env(env, replies=WORDS)
    assert (env.observe("checker_0"), env.transcript) == before
    skipped = [record.getMessage() for record in caplog.records]
    assert ["splits" in skipped[0], "processes" in skipped[1]] == [True, True]


def test_a_foreign_environment_passes(caplog):
    check_env("tests.foreign_env:env", replies=foreign_env.WORDS)
    assert ["splits" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("make", [foreign_env.easily_pickled, foreign_env.badly_pickled])
def test_an_environment_that_inherits_ezpickle_passes(make):
    check_env(partial(make), replies=foreign_env.WORDS)
    env = make()
    env.reset(seed=1)
    env.step("fig")
    check_env(env, replies=foreign_env.WORDS)


def test_a_foreign_copy_with_other_random_numbers_is_named():
    with pytest.raises(ConformanceError, match="continues like its copies"):
        check_env(partial(broken_envs.forgetful_late, 6), replies=foreign_env.WORDS)


def test_a_foreign_environment_that_refuses_text_is_named():
    with pytest.raises(ConformanceError, match="no reply raises"):
        check_env(partial(foreign_env.picky), replies=foreign_env.WORDS)


def test_a_foreign_environment_without_copies_or_text_is_refused():
    with pytest.raises(CloneError, match="implement __deepcopy__"):
        check_env(foreign_env.forgetful)
    with pytest.raises(ConfigError, match="without text"):
        check_env(foreign_env.numbers)
