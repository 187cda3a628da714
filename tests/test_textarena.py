"""Games of TextArena: exact copies, isolated randomness, seats that are paid at the end, and no text that breaks a game."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import random
import threading
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test.api_test import api_test
from pettingzoo.test.seed_test import seed_test

from benchmarks import kuhn_game
from pettingllms.contrib.games.game_env import private, seeded
from pettingllms.contrib.games.textarena_v0 import Eliminated, env
from pettingllms.envs import check_env, clone_env, load_env, next_agent
from pettingllms.envs.check import canonical, continued, scripted, view
from pettingllms.errors import ConfigError, UnknownNameError

pytestmark = [
    pytest.mark.games,
    pytest.mark.skipif(
        importlib.util.find_spec("textarena") is None, reason="TextArena is not installed"
    ),
]

BETS = ["[check]", "[bet]", "[call]", "[fold]"]
CELLS = [f"[{cell}]" for cell in range(9)]
if importlib.util.find_spec("textarena") is not None:
    kuhn_game.register()
GAMES = {
    "TicTacToe-v0": CELLS,
    "KuhnPoker-v0": BETS,
    "KuhnPoker-v1": BETS,
    "LiarsDice-v0": ["[Bid: 1, 3]", "[Bid: 3, 4]", "[Call]"],
    "Nim-v0": ["[0 1]", "[1 2]", "[2 3]"],
    "ThreePlayerTicTacToe-v0": ["[0 0]", "[1 1]", "[2 3]", "[4 4]"],
    "Taboo-v0": ["a thing", "[house]", "[tree]"],
    "Sudoku-v0": ["[1 1 5]", "[3 4 2]"],
    "PigDice-v0": ["[roll]", "[hold]"],
}


def played(game, *moves, seed=0, **arguments):
    made = env(game, **arguments)
    made.reset(seed=seed)
    for move in moves:
        made.step(move)
    return made


@pytest.mark.parametrize("game", ["TicTacToe-v0", "KuhnPoker-v0", "SecretMafia-v0"])
def test_a_game_given_by_name_keeps_all_promises(game):
    check_env(f"textarena:{game}", episodes=2, replies=GAMES.get(game, ("[1]", "[Player 2]")))


@pytest.mark.parametrize("game", sorted(GAMES))
def test_pettingzoos_own_tests_pass(game):
    with warnings.catch_warnings():
        # Text observations and actions are no arrays.
        warnings.simplefilter("ignore")
        api_test(env(game), num_cycles=60)
        seed_test(lambda: env(game), num_cycles=40)


@settings(max_examples=25, deadline=None)
@given(
    game=st.sampled_from(sorted(GAMES)),
    seed=st.integers(0, 99),
    before=st.integers(0, 12),
    turns=st.lists(st.integers(0, 2), max_size=40),
)
def test_copies_that_are_played_interleaved_continue_like_one_played_alone(
    game, seed, before, turns
):
    original, script = env(game), scripted(seed, GAMES[game])
    original.reset(seed=seed)
    for _ in range(before):
        if next_agent(original) is not None:
            original.step(next(script))
    copies = [clone_env(original) for _ in range(3)]
    futures = [scripted(seed + 1 + number, GAMES[game]) for number in range(3)]
    alone = [
        continued(clone_env(original), scripted(seed + 1 + number, GAMES[game]))
        for number in range(3)
    ]
    seen = [[view(replica)] for replica in copies]

    def advance(number):
        twin = copies[number]
        agent = twin.agent_selection
        over = twin.terminations[agent] or twin.truncations[agent]
        twin.step(None if over else next(futures[number]))
        seen[number].append(view(twin))

    rest = itertools.cycle(range(3))
    order = itertools.chain(turns, rest)
    while any(replica.agents and len(s) <= 200 for replica, s in zip(copies, seen, strict=True)):
        number = next(order)
        if copies[number].agents and len(seen[number]) <= 200:
            advance(number)
    assert seen == alone


def test_environments_in_threads_do_not_disturb_each_other():
    def traced(game):
        made, script = env(game), scripted(5, GAMES[game])
        made.reset(seed=5)
        return canonical(continued(made, script))

    games = ["PigDice-v0", "LiarsDice-v0", "KuhnPoker-v0"]
    expected, threaded = [traced(game) for game in games], {}
    threads = [
        threading.Thread(target=lambda g=game: threaded.update({g: traced(g)})) for game in games
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [threaded[game] for game in games] == expected


def generators():
    return canonical((random.getstate(), np.random.get_state()))  # noqa: NPY002


def test_the_global_generators_are_put_back_where_a_game_raises():
    before = generators()

    def game():
        with private(seeded(1)):
            random.random()
            np.random.rand()  # noqa: NPY002
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        game()
    assert generators() == before


def test_a_game_draws_the_same_whatever_others_draw_in_between():
    first = canonical(continued(played("PigDice-v0", seed=3), scripted(1, ["[roll]"])))
    made, script = played("PigDice-v0", seed=3), scripted(1, ["[roll]"])
    seen = [view(made)]
    while made.agents and len(seen) <= 200:
        random.random()
        agent = made.agent_selection
        made.step(None if made.terminations[agent] or made.truncations[agent] else next(script))
        seen.append(view(made))
    assert canonical(seen) == first


def test_seats_are_paid_at_the_end_and_not_before():
    made = played("TicTacToe-v0")
    for move in ("[0]", "[3]", "[1]", "[4]"):
        made.step(move)
        assert made.rewards == {"player_0": 0.0, "player_1": 0.0}
    made.step("[2]")
    assert made.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert made.terminations == {"player_0": True, "player_1": True}


def test_an_episode_begins_alike_however_many_were_played_before():
    fresh = played("KuhnPoker-v0", seed=4).observe("player_0")
    used = played("KuhnPoker-v0", "[bet]", "[call]", seed=1)
    used.reset(seed=4)
    assert used.observe("player_0") == fresh


def test_the_texts_that_textarena_shows_are_shown():
    import textarena

    theirs = textarena.make("TicTacToe-v0")
    theirs.reset(num_players=2, seed=0)
    ours = played("TicTacToe-v0")
    for move in ("4", "[nowhere]", "[0]", "[8]"):
        assert ours.observe(ours.agent_selection)["text"] == theirs.get_observation()[1]
        theirs.step(move)
        ours.step(move)


def test_the_compact_prompt_leaves_out_the_rules_and_old_boards():
    made = played("TicTacToe-v0", "[4]", prompt="compact")
    text = made.observe("player_1")["text"]
    assert "Your goal is" not in text
    assert text.count("Current Board") == 1
    assert "in cell 4" in text


@pytest.mark.parametrize("text", ["", "[9]", "no move", "<think>[1]", "x" * 30_000, "\ud800"])
def test_a_text_that_is_no_legal_move_follows_the_games_own_rule(text):
    made = played("TicTacToe-v0", text)
    assert made.agent_selection == "player_0"
    assert made.infos["player_0"]["parse_error"]
    assert made.rewards == {"player_0": 0.0, "player_1": 0.0}
    made.step(text)
    assert made.rewards == {"player_0": -1.0, "player_1": 1.0}
    assert made.infos["player_0"]["parse_error"]


def test_thoughts_are_not_read_and_not_shown_to_opponents():
    made = played("TicTacToe-v0", "<think>[1] or a fork</think>[4]")
    assert made.infos["player_0"]["parse_error"] is None
    text = made.observe("player_1")["text"]
    assert "fork" not in text
    assert "placed their symbol (O) in cell 4" in text


def test_a_game_that_raises_at_a_reply_counts_it_as_one_that_cannot_be_read():
    # TextArena's own mistake: this game passes on its players' words with too few arguments.
    made = played("CharacterConclave-v0", "hello")
    assert "raised TypeError" in made.infos["player_0"]["parse_error"]
    assert made.rewards == {"player_0": -1.0, "player_1": 0.0, "player_2": 0.0}


def test_a_game_that_goes_on_asking_a_player_who_is_out_ends():
    made = played("PublicGoodsGame-v0")
    for _ in range(20):
        if all(made.terminations.values()):
            break
        made.step("x")
    assert made.rewards == {"player_0": -1.0, "player_1": 0.0}


def test_looking_for_the_next_player_ends_where_all_are_out():
    out = copy.deepcopy(Eliminated([2, 0], 3))
    assert 1 not in out
    out.append(1)
    with pytest.raises(RuntimeError, match="all players are out"):
        _ = 0 in out


def test_max_turns_truncates_without_paying():
    made = played("PigDice-v0", max_turns=2)
    while not any(made.truncations.values()):
        made.step("[roll]")
    assert set(made.rewards.values()) == {0.0}
    assert not any(made.terminations.values())


def test_roles_name_the_seats():
    made = env("Taboo-v0", roles=["clue", "guess", "clue", "guess"])
    assert made.possible_agents == ["clue_0", "guess_0", "clue_1", "guess_1"]
    with pytest.raises(ConfigError, match="a role for each of 4 seats"):
        env("Taboo-v0", roles=["clue"])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: load_env("textarena:TicTacTo-v0"),
            UnknownNameError,
            "did you mean 'TicTacToe-v0'",
        ),
        (lambda: load_env("textarena:KuhnPoker-v7"), UnknownNameError, "did you mean 'KuhnPoker-v"),
        (lambda: env("TicTacToe-v0", num_players=3), ConfigError, "has to be 2, received 3"),
        (lambda: env("TicTacToe-v0", num_player=2), TypeError, "num_player"),  # type: ignore[call-arg]
        (
            lambda: load_env("textarena:Nim-v0", num_player=2),
            ConfigError,
            "did you mean 'num_players'",
        ),
        (lambda: env("Nim-v0", game_args={"pile": 3}), ConfigError, "cannot be made with"),
        (lambda: env("Debate-v0"), ConfigError, "OPENROUTER_API_KEY"),
        (lambda: env("UsedCar-v0-balanced"), ConfigError, "not a part of its package"),
    ],
    ids=["typo", "version", "players", "keyword", "argument", "game_args", "key", "missing"],
)
def test_what_cannot_be_opened_is_explained(make, error, message, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(error, match=message):
        make()


def test_a_game_without_its_word_list_says_how_to_fetch_it(monkeypatch):
    nltk: Any = pytest.importorskip("nltk")

    monkeypatch.setattr(nltk.data, "path", [])
    monkeypatch.setattr(nltk, "download", lambda *_, **__: False)  # no network in a test
    with pytest.raises(ConfigError, match=r"word lists of NLTK.*python -m nltk.downloader words"):
        env("WordChains-v0")


DEALS = list(itertools.permutations("JQK", 2))
LINES: dict[tuple[str, ...], int | str] = {
    ("check", "check"): 1,
    ("bet", "call"): 2,
    ("check", "bet", "call"): 2,
    ("bet", "fold"): "first",
    ("check", "bet", "fold"): "second",
}


@pytest.mark.parametrize("line", sorted(LINES), ids="-".join)
def test_kuhn_poker_pays_what_the_literature_says(line):
    seen = set()
    for seed in itertools.count():
        made = played("KuhnPoker-v1", seed=seed)
        first = made.agent_selection
        (second,) = set(made.agents) - {first}
        cards = [made._game.state.game_state["player_cards"][int(a[-1])] for a in (first, second)]
        for move in line:
            made.step(f"[{move}]")
        stake = LINES[line]
        won = stake == "first" if isinstance(stake, str) else cards[0] > cards[1]
        paid = (1 if isinstance(stake, str) else stake) * (1 if won else -1)
        assert made.rewards == {first: float(paid), second: float(-paid)}
        seen.add(tuple(cards))
        if len(seen) == len(DEALS):
            return


def test_breaking_the_rules_of_kuhn_poker_costs_as_much_as_its_worst_hand():
    made = played("KuhnPoker-v1", "[raise]", "[raise]")
    assert sorted(made.rewards.values()) == [-2.0, 2.0]


def test_a_command_trains_a_policy_that_plays_itself(tmp_path, capsys):
    pytest.importorskip("trl")
    from pettingllms.cli.train import main

    options = (
        "--max-steps 1 --tasks-per-step 2 --eval-tasks 2 --max-completion-length 4 --eval-steps 0"
    )
    command = ["--env", "textarena:KuhnPoker-v1", "--method", "rae", "--policies", "shared"]
    run = tmp_path / "run"
    assert main([*command, *options.split(), "--output-dir", str(run)]) == 0
    rows = (run / "trajectories.jsonl").read_text()
    assert "Your card is" in rows
    assert "Game Rules" not in rows  # the embedded model gets the compact prompt
    assert (run / "summary.md").is_file()
