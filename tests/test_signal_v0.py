"""The signaling game: what counts as a word, what is paid, what can be reached, and what its base was shown."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.constant_answers import blind_baseline
from benchmarks.environments import signal_v0
from benchmarks.environments.signal_v0 import DOORS, WORDS, chance, messages, optimum, parse_words
from pettingllms.envs import make
from pettingllms.envs.parsing import ParseError
from pettingllms.errors import ConfigError


def played(env, seed, word, opened):
    """Plays a round; returns the infos of scout and mover after their own steps."""
    env.reset(seed=seed)
    infos = {}
    for agent, text in zip(("scout_0", "mover_0"), (word, opened), strict=True):
        env.step(text)
        infos[agent] = env.infos[agent]
    return infos["scout_0"], infos["mover_0"]


def test_only_the_scout_is_shown_the_goal_and_only_the_mover_what_was_said():
    env = make("signal")
    for seed in range(8):
        env.reset(seed=seed)
        goal = env._state.goal
        assert goal in env.observe("scout_0")["text"]
        before = env.observe("mover_0")["text"]
        env.step("<say>wug</say>")
        after = env.observe("mover_0")["text"]
        assert after == before.replace("says: nothing", "says: wug") != before
        shown = [after.count(door) for door in env.doors]
        assert shown == [shown[0]] * 4  # all doors alike
        assert not set(env.words) & set(before.replace(",", " ").split())


def test_a_mover_is_shown_the_same_whatever_the_goal_is():
    env, shown = make("signal", prompt="compact"), set()
    for seed in range(16):
        env.reset(seed=seed)
        env.step("dax")
        shown.add(env.observe("mover_0")["text"])
    assert shown == {"mover dax"}


def test_a_mover_is_never_shown_what_the_scout_thought():
    env = make("signal", show_thinking=True)
    env.reset(seed=0)
    env.step(f"<think>it is the {env._state.goal} door</think><say>dax</say>")
    assert env.infos["scout_0"]["message"] == "dax"
    assert "it is the" not in env.observe("mover_0")["text"]


@pytest.mark.parametrize("goals", [2, 3, 4, 7])
def test_each_door_is_right_once_in_a_block_of_seeds(goals):
    for split in ("train", "val", "test"):
        env = make("signal", goals=goals, split=split)
        right = []
        for seed in range(goals * 6):
            env.reset(seed=seed)
            right.append(env._state.goal)
        blocks = [tuple(right[at : at + goals]) for at in range(0, len(right), goals)]
        assert all(sorted(block) == sorted(env.doors) for block in blocks)
        assert len(set(blocks)) > 1


def test_a_scout_sees_what_its_word_earned_where_the_teams_reward_is_shared():
    """As PettingZoo's loop hands it out: `last()` sums what an agent was paid since its last step."""
    for shared, word, opened, expected in (
        (True, "dax", "right", (2.0, 2.0)),
        (True, "?", "right", (1.9, 2.0)),
        (True, "dax", "wrong", (0.0, 0.0)),
        (False, "dax", "right", (0.0, 2.0)),
    ):
        env = make("signal", alpha=2.0, share_team_reward=shared)
        env.reset(seed=0)
        goal = env._state.goal
        wrong = next(door for door in env.doors if door != goal)
        replies = iter(
            (f"<say>{word}</say>", f"<open>{goal if opened == 'right' else wrong}</open>")
        )
        earned = dict.fromkeys(env.possible_agents, 0.0)
        for agent in env.agent_iter():
            _, reward, terminated, *_ = env.last()
            earned[agent] += reward
            env.step(None if terminated else next(replies))
        assert tuple(earned.values()) == pytest.approx(expected)


def test_the_right_door_pays_the_team_and_every_other_nothing():
    env = make("signal", alpha=2.0)
    for door in env.doors:
        scout, mover = played(env, 5, "<say>dax</say>", f"<open>{door}</open>")
        right = door == env._state.goal
        assert (scout["team_reward"], scout["local_reward"], scout["success"]) == (0.0, 0.0, False)
        assert (mover["team_reward"], mover["local_reward"]) == (float(right), 0.0)
        assert mover["success"] == right
        assert env.rewards["mover_0"] == 2.0 * right
        assert all(env.terminations.values())
        assert env.answer() == f"<open>{door}</open>"


@pytest.mark.parametrize(("scheme", "cost"), [("dense", -0.1), ("sparse", 0.0)])
def test_what_cannot_be_read_is_never_paid_and_says_nothing(scheme, cost):
    env = make("signal", rewards=scheme)
    for reply in ("", "dax", "<say>perhaps</say>", "<say></say>", "<say>dax wug</say>"):
        scout, mover = played(env, 1, reply, "<open>nowhere</open>")
        assert scout["parse_error"]
        assert mover["parse_error"]
        for info in (scout, mover):
            assert (info["team_reward"], info["local_reward"]) == (0.0, cost)
        assert "says: nothing" in env.transcript[1].text
        assert all(env.truncations.values())


def test_another_round_follows_an_unread_door_where_there_is_one():
    env = make("signal", max_turns=2)
    played(env, 3, "<say>dax</say>", "no door")
    assert env.agent_selection == "scout_0"
    assert "says: nothing" in env.observe("mover_0")["text"]  # of the new round
    env.step("<say>wug</say>")
    env.step(f"<open>{env._state.goal}</open>")
    assert env.infos["mover_0"]["success"]
    assert sum(record.team for record in env.transcript) == 1.0


def test_a_compact_reply_may_repeat_what_was_shown_and_nothing_else():
    env = make("signal", prompt="compact")
    env.reset(seed=0)
    goal = env._state.goal
    other = next(door for door in env.doors if door != goal)
    for reply, heard in (
        (f"{goal} dax", "dax"),
        ("dax", "dax"),
        (f"thinking\n{goal} DAX ", "dax"),
        (f"{other} dax", ""),
        (f"{goal} {goal} dax", ""),
        (goal, ""),
    ):
        scout, mover = played(env, 0, reply, f"{heard or 'nothing'} {goal}")
        assert scout["message"] == heard, reply
        assert mover["success"]


TEXTS = st.text() | st.lists(
    st.sampled_from(
        [*DOORS[:5], *WORDS[:5], "nothing", "\n", "<say>", "</say>", "<open>", "</open>", "<SAY>"]
    )
).map(" ".join)


@given(
    text=TEXTS,
    role=st.sampled_from(["scout", "mover"]),
    size=st.integers(1, 16),
    most=st.integers(1, 4),
    compact=st.booleans(),
)
def test_any_text_is_known_words_or_a_parse_error(text, role, size, most, compact):
    vocabulary = (WORDS if role == "scout" else DOORS)[:size]
    parsed = parse_words(text, role, vocabulary, most, ("red",), compact=compact)
    if isinstance(parsed, ParseError):
        assert parsed.why
        assert len(parsed.why) < 300
    else:
        assert 1 <= len(parsed) <= most
        assert set(parsed) <= set(vocabulary)
        spoken = (
            text.lower().split()
            if compact
            else text.lower().replace("<", " <").replace(">", "> ").split()
        )
        assert set(parsed) <= set(spoken)


@given(
    words=st.lists(st.sampled_from(WORDS[:8]), min_size=1, max_size=4),
    before=st.text(alphabet="abc ."),
)
def test_what_is_written_as_asked_is_read(words, before):
    written = f"{before}<say>{' '.join(words)}</say>"
    assert parse_words(written, "scout", WORDS[:8], 4, (), compact=False) == tuple(words)
    line = f"{before}\n{' '.join(words)}"
    assert parse_words(line, "scout", WORDS[:8], 4, ("red",), compact=True) == tuple(words)


# What can be reached, by trying every team.


def best(goals, signals):
    """The most episodes of a block that a team of fixed maps solves, by enumeration."""
    return max(
        sum(mover[scout[goal]] == goal for goal in range(goals))
        for scout in itertools.product(range(signals), repeat=goals)
        for mover in itertools.product(range(goals), repeat=signals)
    )


@pytest.mark.parametrize(
    ("goals", "words", "length"), [(2, 1, 1), (3, 1, 1), (4, 1, 1), (4, 2, 1), (3, 2, 1), (4, 1, 2)]
)
def test_chance_and_optimum_are_those_of_all_teams(goals, words, length):
    signals = messages(words, length) + 1  # silence is one
    assert best(goals, 1) / goals == chance(goals)
    assert best(goals, signals) / goals == optimum(goals, words, length)


@pytest.mark.parametrize("agents", ["team", "single"])
def test_constants_reach_chance_exactly_and_so_does_a_mover_alone(agents):
    env = make("signal", split="test", agents=agents)
    for baseline in blind_baseline(env, episodes=400):
        assert baseline.success == chance(4)
        assert baseline.returns["mover"] == chance(4)
        assert baseline.returns.get("scout", 0.0) == 0.0


def test_a_team_with_a_code_reaches_the_optimum():
    for length, goals in ((1, 8), (2, 16)):
        env = make("signal", goals=goals, words=8 if length == 1 else 4, length=length)
        codes = list(itertools.product(env.words, repeat=length))
        code = dict(zip(env.doors, codes, strict=False))
        for seed in range(goals):
            env.reset(seed=seed)
            goal = env._state.goal
            env.step(f"<say>{' '.join(code[goal])}</say>")
            heard = env.observe("mover_0")["text"].partition("says: ")[2].partition(".")[0]
            meant = next(door for door, message in code.items() if " ".join(message) == heard)
            env.step(f"<open>{meant}</open>")
            assert env.infos["mover_0"]["success"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"goals": 1}, "goals must be a whole number from 2 to 16, got 1"),
        ({"words": 17}, "words must be a whole number from 1 to 16, got 17"),
        ({"length": 2.0}, "length must be a whole number from 1 to 4, got 2.0"),
        ({"goals": True}, "goals must be a whole number from 2 to 16, got True"),
        ({"agents": "scout"}, "agents must be one of team, single"),
    ],
    ids=["goals", "words", "length", "bool", "agents"],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        signal_v0.env(**arguments)


def test_doors_and_words_have_nothing_in_common():
    assert len({*DOORS, *WORDS, signal_v0.SILENCE}) == len(DOORS) + len(WORDS) + 1
