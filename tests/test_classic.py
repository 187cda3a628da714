"""PettingZoo's classic games as text: legal actions by name or number, exact copies, outcomes at the end."""

from __future__ import annotations

import importlib.util
import itertools
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test.api_test import api_test
from pettingzoo.test.seed_test import seed_test

from pettingllms.contrib.games.classic_v0 import GameText, env, show_observation
from pettingllms.envs import check_env, clone_env, load_env
from pettingllms.envs.check import continued, scripted, view
from pettingllms.errors import CloneError, ConfigError, UnknownNameError

pytestmark = [
    pytest.mark.games,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("rlcard", "chess", "pygame")),
        reason="the packages of PettingZoo's classic games are not installed",
    ),
]

GAMES = {
    "connect_four_v3": [str(column) for column in range(7)],
    "tictactoe_v3": [str(cell) for cell in range(9)],
    "leduc_holdem_v4": ["call", "raise", "check"],
    "texas_holdem_v4": ["call", "raise", "check"],
    "texas_holdem_no_limit_v6": ["check_call", "raise_pot"],
    "chess_v6": ["e2e4", "e7e5", "g1f3", "b8c6", "a2a3", "a7a6"],
    "go_v5": ["2,2", "3,3", "4,4", "pass"],
    "rps_v2": ["rock", "paper", "[scissors]"],
}
SMALL = {"go_v5": {"board_size": 5}}


def made(game, **arguments):
    return env(game, game_args=SMALL.get(game), **arguments)


@pytest.mark.parametrize("game", sorted(GAMES))
def test_a_game_keeps_all_promises(game):
    check_env(lambda: made(game), episodes=1, replies=GAMES[game])


def test_a_game_given_by_name_is_the_same_in_every_process():
    check_env("pettingzoo:classic/leduc_holdem_v4", episodes=2, replies=GAMES["leduc_holdem_v4"])


@pytest.mark.parametrize("game", sorted(GAMES))
def test_pettingzoos_own_tests_pass(game):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # text observations and actions are no arrays
        api_test(made(game), num_cycles=30)
        seed_test(lambda: made(game), num_cycles=20)


def test_agents_have_spaces_of_their_own_and_unknown_options_are_refused():
    game = made("tictactoe_v3")
    one, other = game.possible_agents
    assert game.action_space(one) is not game.action_space(other)
    assert game.observation_space(one) is not game.observation_space(other)
    with pytest.raises(ConfigError, match="tictactoe_v3 has no reset option 'size'"):
        game.reset(seed=1, options={"size": 3})


@settings(max_examples=10, deadline=None)
@given(game=st.sampled_from(sorted(GAMES)), seed=st.integers(0, 99), before=st.integers(0, 3))
def test_copies_that_are_played_interleaved_continue_like_one_played_alone(game, seed, before):
    original, script = made(game), scripted(seed, GAMES[game])
    original.reset(seed=seed)
    for _ in range(before):
        if not any(original.terminations.values()):
            original.step(next(script))
    copies = [clone_env(original) for _ in range(2)]
    futures = [scripted(seed + number, GAMES[game]) for number in (1, 2)]
    alone = [
        continued(clone_env(original), scripted(seed + number, GAMES[game])) for number in (1, 2)
    ]
    seen = [[view(copy)] for copy in copies]
    for number in itertools.cycle(range(2)):
        twin = copies[number]
        if twin.agents and len(seen[number]) <= 200:
            agent = twin.agent_selection
            over = twin.terminations[agent] or twin.truncations[agent]
            twin.step(None if over else next(futures[number]))
            seen[number].append(view(twin))
        elif all(not copy.agents or len(s) > 200 for copy, s in zip(copies, seen, strict=True)):
            break
    assert seen == alone


def test_two_sizes_of_go_do_not_disturb_each_other():
    small = env("go_v5", game_args={"board_size": 5})
    small.reset(seed=0)
    env("go_v5", game_args={"board_size": 9}).reset(seed=0)
    for move in ("0,0", "4,4", "pass", "pass"):
        small.step(move)
    assert all(small.terminations.values())


@pytest.mark.parametrize(
    "reply", ["3", "[3]", " 3 ", "I take the middle: [3]", "first [1], no: [3]"]
)
def test_an_action_is_named_alone_or_in_brackets(reply):
    game = made("connect_four_v3")
    game.reset(seed=0)
    game.step(reply)
    assert game.infos["player_0"]["parse_error"] is None
    assert game.observe("player_0")["text"].count("\n. . . x . . .") == 1


def test_an_action_is_named_in_words_or_by_its_number():
    for reply in ("RAISE", "[raise]", "1"):
        game = made("leduc_holdem_v4")
        game.reset(seed=0)
        game.step(reply)
        assert "all chips: 4 2" in game.observe(game.agent_selection)["text"]


@pytest.mark.parametrize("reply", ["", "7", "the middle", "<think>[3]", "x" * 30_000, "[\ud800]"])
def test_a_reply_without_a_legal_action_loses_as_pettingzoo_has_it(reply):
    game = made("connect_four_v3")
    game.reset(seed=0)
    game.step(reply)
    assert game.rewards == {"player_0": -1.0, "player_1": 0.0}
    assert all(game.terminations.values())
    assert game.infos["player_0"]["parse_error"]


def test_winner_and_loser_are_paid_at_the_end():
    game = made("connect_four_v3", roles=["red", "yellow"])
    game.reset(seed=0)
    for column in "0101010":
        assert not any(game.rewards.values())
        game.step(column)
    assert game.rewards == {"red_0": 1.0, "yellow_0": -1.0}


def test_what_is_earned_on_the_way_is_paid_at_the_end():
    game = env("rps_v2", game_args={"max_cycles": 3})
    game.reset(seed=0)
    for moves in (("paper", "rock"), ("rock", "rock"), ("rock", "scissors")):
        for move in moves:
            assert not any(game.rewards.values())
            game.step(move)
    assert game.rewards == {"player_0": 2.0, "player_1": -2.0}


def test_an_opponents_choice_of_the_same_round_is_not_shown():
    game = made("rps_v2")
    game.reset(seed=0)
    before = game.observe("player_1")["text"]
    game.step("paper")
    assert game.observe("player_1")["text"].splitlines()[:2] == before.splitlines()[:2]


def test_a_players_cards_are_shown_to_it_alone():
    game = made("leduc_holdem_v4")
    game.reset(seed=0)
    hands = [game.observe(agent)["text"].split("hand: ")[1][:2] for agent in game.agents]
    for agent, other in zip(game.agents, reversed(hands), strict=True):
        assert other not in game.observe(agent)["text"]


SHORT = GameText(lambda game, agent: f"{agent} of {len(game.possible_agents)}", lambda *_: "go")


def test_a_text_of_ones_own_replaces_the_games():
    for given_text in (SHORT, "tests.test_classic:SHORT"):
        game = env("rps_v2", text=given_text)
        game.reset(seed=0)
        text = game.observe("player_0")["text"]
        assert "player_0 of 2" in text
        assert "[go]" in text


def test_any_observation_has_a_generic_text():
    game = made("chess_v6", text=GameText(show_observation))
    game.reset(seed=0)
    text = game.observe("player_0")["text"]
    assert "shape (8, 8, 111)" in text
    assert "[0]" not in text.splitlines()[0]


class cannot_be_copied:
    def __deepcopy__(self, memo):
        raise TypeError("it holds a socket")


def test_a_game_that_cannot_be_copied_is_refused_with_the_reason(monkeypatch):
    from pettingzoo.classic.tictactoe import tictactoe

    start = tictactoe.raw_env.__init__

    def init(self, *args, **kwargs):
        start(self, *args, **kwargs)
        self.socket = cannot_be_copied()

    monkeypatch.setattr(tictactoe.raw_env, "__init__", init)
    with pytest.raises(CloneError, match=r"cannot be copied.*it holds a socket"):
        made("tictactoe_v3")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: load_env("pettingzoo:classic/conect_four_v3"), UnknownNameError, "connect_four"),
        (lambda: env("chess_v6", game_args={"size": 3}), ConfigError, "cannot be made with"),
        (lambda: env("pettingllms/sokoban-v0"), ConfigError, "not discrete"),
        (lambda: env("rps_v2", text="tests.test_classic:GAMES"), ConfigError, "must be a GameText"),
        (lambda: env("rps_v2", roles=["a"]), ConfigError, "a role for each of 2 seats"),
        (lambda: load_env("pettingzoo:rps_v2", txt=""), ConfigError, "did you mean 'text'"),
    ],
    ids=["typo", "argument", "text actions", "text", "roles", "keyword"],
)
def test_what_cannot_be_opened_is_explained(make, error, message):
    with pytest.raises(error, match=message):
        make()
