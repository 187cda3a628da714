"""The reading environment: what each role sees, what is paid, and that splits share nothing."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.constant_answers import blind_baseline
from pettingllms.envs import make
from pettingllms.envs.read_v0 import CITIES, MOST_SHOWN, PEOPLE, SILENCE
from pettingllms.errors import ConfigError


def task(**arguments):
    """An environment after reset, the person asked for, and the city."""
    env = make("read", **arguments)
    env.reset(seed=3)
    return env, *env._state.notes[env._state.asked]


def paid(env, text):
    """The local and the team's reward of a reply, and whether the episode is over."""
    agent = env.agent_selection
    env.step(text)
    info = env.infos[agent]
    return info["local_reward"], info["team_reward"], any(env.terminations.values())


def test_the_answerer_sees_what_the_finder_wrote_and_nothing_else():
    env, who, city = task()
    assert f"{who} lives in {city}." in env.observe("finder_0")["text"]
    assert env.observe("answerer_0")["text"] == f"Say the last word of: {SILENCE}"
    env.step("a\nnote. " + "x" * MOST_SHOWN)
    shown = ("a note. " + "x" * MOST_SHOWN)[:MOST_SHOWN]
    assert env.observe("answerer_0")["text"] == f"Say the last word of: {shown}"


def test_the_finder_is_paid_for_the_sentence_and_less_for_another_with_the_right_city():
    _, who, city = task()
    notes = task()[0]._state.notes
    other = next(town for _, town in notes if town != city)
    every = " ".join(town for _, town in notes)
    for text, local in {
        f"{who} lives in {city}.": 1.0,
        f" {who} lives\nin {city}": 1.0,
        f"It is {city}.": 0.5,
        f"{who} lives in {other}.": 0.0,
        every: 0.0,
        f"{city} " * 9: 0.0,
        "": 0.0,
    }.items():
        assert paid(task()[0], text) == (local, 0.0, False), text


def test_the_team_succeeds_with_the_city_alone():
    for text, local, team, over in (
        ("{city}", 0.0, 1.0, True),
        (" {city}.\n", 0.0, 1.0, True),
        ("In {city}.", 0.3, 0.0, True),
        ("{who} lives in {city}.", 0.0, 0.0, True),
        ("{city} {other}", 0.0, 0.0, True),
        ("{other}", 0.0, 0.0, True),
        ("...", 0.0, 0.0, False),
    ):
        env, who, city = task()
        other = next(town for _, town in env._state.notes if town != city)
        env.step(f"{who} lives in {city}.")
        reply = text.format(who=who, city=city, other=other)
        assert paid(env, reply)[:2] == (local, team), reply
        assert env.infos["answerer_0"]["success"] == bool(team)
        assert any(env.terminations.values()) == over


def test_the_outcome_alone_is_paid_where_rewards_are_sparse():
    env, who, city = task(rewards="sparse")
    assert paid(env, f"{who} lives in {city}.")[0] == 0.0
    assert paid(env, f"In {city}")[:2] == (0.0, 0.0)


def test_splits_share_no_person_and_no_city():
    for table in (PEOPLE, CITIES):
        assert all(len({*names}) == len(names) for names in table.values())
        for one, other in itertools.combinations(table.values(), 2):
            assert not {*one} & {*other}


def test_a_constant_text_succeeds_as_often_as_one_city_is_right():
    [best, *_] = blind_baseline(make("read", split="test"), episodes=400)
    assert best.success == pytest.approx(1 / len(CITIES["test"]), abs=0.05)


@pytest.mark.parametrize("sentences", [1, 7, True, 2.0])
def test_a_number_of_sentences_that_is_out_of_range_is_refused(sentences):
    with pytest.raises(ConfigError, match="sentences must be a whole number from 2 to 6"):
        make("read", sentences=sentences)
