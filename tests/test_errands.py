"""The errands for SmolLM2: what each role sees and earns, and that splits and demonstrations share nothing."""

from __future__ import annotations

import pytest

from benchmarks import errands
from benchmarks.errands import Desk, Prices, Rooms
from pettingllms.trainers.warm_start import check_form_only, read_demonstrations


def rewards(env, text):
    """The local and the team's reward of a reply."""
    agent = env.agent_selection
    env.step(text)
    return env.infos[agent]["local_reward"], env.infos[agent]["team_reward"]


@pytest.fixture
def desk():
    env = Desk()
    env.reset(seed=0)
    return env, env._state


@pytest.mark.parametrize(
    ("sorted_to", "answer", "earned"),
    [
        ("The {thing} is in the {room}.", "{owner}.", ((1.0, 0.0), (0.0, 1.0))),
        ("{room}", "Ask {owner}", ((1.0, 0.0), (0.3, 0.0))),
        ("{room} or {other}", "{owner}", ((0.0, 0.0), (0.0, 1.0))),
        ("{other}", "The {room} belongs to {owner}", ((0.0, 0.0), (0.0, 0.0))),
    ],
)
def test_the_sorter_earns_for_one_room_and_the_speaker_for_a_name(desk, sorted_to, answer, earned):
    env, state = desk
    other = next(room for room in errands.ROOMS if room != state.room)
    owner = state.register[state.room]
    words = {"thing": state.thing, "room": state.room, "other": other, "owner": owner}
    assert owner not in env.observe("sorter_0")["text"]
    assert rewards(env, sorted_to.format(**words)) == earned[0]
    assert rewards(env, answer.format(**words)) == earned[1]


@pytest.mark.parametrize(
    ("reply", "line"),
    [
        ("{room}", "The {room} belongs to {owner}"),
        ("kitchen, garden or bathroom", errands.NOTHING),
        ("", errands.NOTHING),
    ],
)
def test_the_speaker_sees_one_line_of_the_register_alone(desk, reply, line):
    env, state = desk
    words = {"room": state.room, "owner": state.register[state.room]}
    env.step(reply.format(**words))
    shown = env.observe("speaker_0")["text"]
    assert shown == f"Say the last word of: {line.format(**words)}"


def test_splits_share_no_word_that_is_asked_for():
    splits = [
        {thing for things in errands.THINGS[split].values() for thing in things}
        for split in ("train", "val", "test")
    ]
    tasks = (Rooms.subjects, Rooms.answers, Prices.subjects, Prices.answers)
    for train, val, test in (splits, *([set(words[s]) for s in words] for words in tasks)):
        assert not train & val | train & test | val & test


@pytest.mark.slow
@pytest.mark.parametrize("task", [Rooms, Prices])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_demonstrations_show_the_form_alone(task, split, tmp_path):
    errands.write(tmp_path / "forms.jsonl")
    demonstrations = read_demonstrations(tmp_path / "forms.jsonl")
    assert {role: len(pairs) for role, pairs in demonstrations.items()} == {
        "finder": 200,
        "answerer": 200,
    }
    check_form_only(demonstrations, task(split=split))


def test_a_strangers_answerer_is_asked_for_the_word_alone():
    env = Rooms()
    env.reset(seed=0)
    thing, room = env._state.notes[env._state.asked]
    sentence = f"The {thing} is in the {room}"
    assert rewards(env, f"{sentence}.") == (1.0, 0.0)
    assert env.observe("answerer_0")["text"] == f"{sentence}. Reply with the room only."
    assert rewards(env, room) == (0.0, 1.0)
