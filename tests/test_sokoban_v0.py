from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from pettingzoo.test.api_test import api_test
from pettingzoo.test.render_test import render_test
from pettingzoo.test.seed_test import seed_test

from pettingllms.data import sokoban
from pettingllms.data.sokoban import solve, split_of
from pettingllms.envs import check_env, sokoban_v0
from pettingllms.envs.sokoban_v0 import MOVE_COST, SOLVED_BONUS
from pettingllms.envs.team_env import FORMAT_PENALTY
from pettingllms.errors import ConfigError, DatasetError, UnknownNameError
from tests import sokoban_model as model
from tests.cpu_time import at_most

CORRIDOR = "########\n#@ $  .#\n#      #\n########"
BACK = {"U": "D", "D": "U", "L": "R", "R": "L"}
TEXT_WARNINGS = (
    "ignore:Observation is not a NumPy array:UserWarning",
    "ignore:Observation space for each agent probably should be:UserWarning",
    "ignore:Action space for each agent probably should be:UserWarning",
)
CHOICES: dict[str, dict[str, Any]] = {
    "two boxes, gym": {"boxes": 2, "rewards": "gym"},
    "alone, sparse": {"agents": "single", "rewards": "sparse", "size": 5, "boxes": 2},
    "compact": {"prompt": "compact", "size": 7},
    "few pushes": {"pushes": (1, 2)},
}


def make(seed=0, level=None, **kwargs):
    env = sokoban_v0.env(**kwargs)
    env.reset(seed=seed, options=None if level is None else {"level": level})
    return env


def board(env):
    return tuple(sokoban.rows(env._state.level.room, env._state.position))


def solution(env):
    solved = solve(env._state.level.room, env._state.position)
    assert solved is not None
    return solved.moves


def answer(moves):
    return f"#### [{', '.join(moves)}]"


# The rules.


class Episodes(RuleBasedStateMachine):
    """Plays texts of any kind, and compares with the model in `sokoban_model`."""

    @initialize(
        seed=st.integers(0, 10**6),
        choice=st.sampled_from([(6, 1), (6, 2), (5, 3)]),
        rewards=st.sampled_from(["paper", "sparse", "gym"]),
        prompt=st.sampled_from(["full", "compact"]),
        refused=st.sampled_from(["stop", "skip"]),
    )
    def start(self, seed, choice, rewards, prompt, refused):
        size, boxes = choice
        options = {"size": size, "boxes": boxes, "prompt": prompt, "refused": refused}
        self.env = make(seed, rewards=rewards, max_turns=6, **options)
        self.rows = board(self.env)

    def live(self):
        return not any((*self.env.terminations.values(), *self.env.truncations.values()))

    @precondition(lambda self: not self.live())
    @rule(seed=st.integers(0, 10**6))
    def again(self, seed):
        self.env.reset(seed=seed)
        self.rows = board(self.env)

    @precondition(lambda self: self.live())
    @rule(moves=st.lists(st.sampled_from("UDLR"), max_size=30), solving=st.integers(0, 9))
    def moves(self, moves, solving):
        solved = solve(self.env._state.level.room, self.env._state.position)
        if solving == 0 and solved is not None:
            moves = [*solved.moves, *moves]
        rows, refused, looked = model.play(self.rows, moves, self.env.refused == "stop")
        agent = self.env.agent_selection
        self.env.step(f"I think [U, x] and then\n{answer(moves)} is right")
        info = self.env.infos[agent]
        assert (info["illegal"], info["moves"]) == (refused, looked)
        assert info["answer_solves"] == model.solved(rows)
        assert info["boxes_on_goal"] == "".join(rows).count("*")
        if agent == "planner_0":
            self.rows = rows
            assert info["success"] == model.solved(rows)
            if info["deadlock"]:
                assert model.best(rows) is None
            ended = self.env.terminations[agent]
            assert ended == (info["success"] or info["deadlock"])

    @precondition(lambda self: self.live())
    @rule(text=st.text() | st.text(alphabet="[]UDLRudlr ,#\n", max_size=40))
    def text(self, text):
        before, agent = board(self.env), self.env.agent_selection
        self.env.step(text)
        if agent == "tool_0" or self.env.infos[agent]["parse_error"]:
            assert board(self.env) == before
        self.rows = board(self.env)

    def teardown(self):
        if hasattr(self, "env"):
            assert board(self.env) == self.rows
            shown = self.env.observe("planner_0")["text"]
            if self.env.prompt == "full":
                assert "\n".join(self.rows) in shown


Episodes.TestCase.settings = settings(max_examples=30, stateful_step_count=12, deadline=None)
TestEpisodes = Episodes.TestCase


def test_only_the_planners_answer_moves_boxes():
    env = make()
    before = board(env)
    env.step(answer(solution(env)))
    assert board(env) == before
    assert env.infos["tool_0"]["answer_solves"]
    assert not env.infos["tool_0"]["success"]
    env.step(answer(solution(env)))
    assert board(env) != before
    assert env.infos["planner_0"]["success"]
    assert all(env.terminations.values())
    assert not any(env.truncations.values())


def test_what_follows_the_solution_is_dropped():
    env = make(level=CORRIDOR, agents="single")
    env.step(answer("RRRR" + "LLUUU" * 3))
    assert env.infos["planner_0"]["success"]
    assert (env.infos["planner_0"]["moves"], env.infos["planner_0"]["illegal"]) == (4, 0)


@pytest.mark.parametrize(("rule", "refused"), [("stop", 1), ("skip", 3)])
def test_a_move_that_is_refused_changes_nothing_and_is_counted(rule, refused):
    env = make(level="#######\n#@$$..#\n#     #\n#######", agents="single", refused=rule)
    before = board(env)
    env.step(answer("RUL"))
    assert board(env) == before
    assert env.infos["planner_0"]["illegal"] == refused
    assert env.rewards["planner_0"] == 0.0
    assert f"{refused} refused (the first was number 1, R)" in env.observe("planner_0")["text"]


def test_an_answer_stops_at_its_first_refused_move_and_keeps_what_it_gained():
    env = make(level=CORRIDOR, agents="single")
    env.step(answer("RRU" + "R" * 9))  # up is a wall
    assert env.infos["planner_0"]["moves"] == 3
    assert env.rewards["planner_0"] == pytest.approx(0.5 / 3)
    env = make(level=CORRIDOR, agents="single", refused="skip")
    env.step(answer("RRU" + "R" * 9))
    assert env.infos["planner_0"]["success"]


@pytest.mark.parametrize("rewards", ["paper", "gym"])
def test_a_box_on_a_dead_square_ends_the_episode_without_success(rewards):
    level = "######\n#    #\n#@$ .#\n#    #\n######"
    env = make(level=level, rewards=rewards)
    env.step(answer("DRU"))
    assert env.infos["tool_0"]["deadlock"]
    assert not any(env.terminations.values())
    env.step(answer("DRU"))
    assert env.infos["planner_0"]["deadlock"]
    assert not env.infos["planner_0"]["success"]
    assert all(env.terminations.values())
    assert env.rewards["planner_0"] < 0


def test_infos_tell_the_optimum():
    env = make(boxes=2, pushes=(4, 4))
    env.step("[U]")
    assert env.infos["tool_0"]["optimal_pushes"] == 4


# Rewards.


def test_an_answer_earns_what_it_comes_nearer():
    env = make(level=CORRIDOR, agents="single")
    total = 0.0
    for moves, nearness in (("RR", 1 / 6), ("RU", 2 / 6), ("R", 1.0)):
        before, total = total, nearness
        env.step(answer(moves))
        earned = env.infos["planner_0"]["local_reward"]
        assert earned == pytest.approx(total - before)
    assert env.rewards["planner_0"] == pytest.approx(1.0 + earned)


def test_the_gym_scheme_pays_the_planner_as_gym_sokoban_does():
    env = make(level="########\n#@$ .  #\n#  $ . #\n########", agents="single", rewards="gym")
    env.step(answer("RRR"))
    assert env.infos["planner_0"]["local_reward"] == pytest.approx(1 - 1 - 3 * MOVE_COST)
    assert env.infos["planner_0"]["gym"] == env.infos["planner_0"]["local_reward"]
    env = make(level=CORRIDOR, rewards="gym")
    env.step(answer("RRRR"))
    assert env.infos["tool_0"]["local_reward"] == pytest.approx(11 - 4 * MOVE_COST)
    env.step(answer("RRRR"))
    assert env.infos["planner_0"]["local_reward"] == pytest.approx(1 + SOLVED_BONUS - 4 * MOVE_COST)


def test_an_unreadable_reply_costs_the_penalty_and_says_why():
    for rewards, cost in (("paper", FORMAT_PENALTY), ("gym", FORMAT_PENALTY), ("sparse", 0.0)):
        env = make(rewards=rewards)
        before = board(env)
        for agent in ("tool_0", "planner_0"):
            env.step("[jump]")
            assert "jump" in env.infos[agent]["parse_error"]
            assert env.rewards[agent] == -cost
        assert board(env) == before
        assert "not readable" in env.observe("tool_0")["text"]


def idle(moves):
    """Ways to be busy without solving anything, as one answer for each turn."""
    near = list(moves[:-1])
    return {
        "back and forth": [[moves[0], BACK[moves[0]]] * 50] * 4,
        "bumps": [["L"] * 99 + ["U"] * 99] * 4,
        "the same again": [near] * 4,
        "bit by bit": [near[:n] for n in range(1, 5)],
        "push and go round": [near, *[[BACK[move] for move in reversed(near)], near, near]],
        "nothing": [[]] * 4,
    }


def played(seed, options, answers):
    """What each agent earned in all, and whether the episode ended in success."""
    env = make(seed, **options)
    totals = dict.fromkeys(env.possible_agents, 0.0)
    for moves in answers:
        for agent in env.possible_agents:
            if not env.terminations[agent]:
                env.step(answer(moves))
                totals[agent] += env.rewards[agent]
    return totals, env.infos["planner_0"]["success"]


@pytest.mark.slow
@pytest.mark.parametrize("boxes", [1, 2])
@pytest.mark.parametrize("rewards", ["paper", "sparse", "gym"])
@pytest.mark.parametrize("agents", ["team", "single"])
def test_nothing_returns_more_than_solving(rewards, agents, boxes):
    options = {"rewards": rewards, "agents": agents, "boxes": boxes}
    most = {"paper": 2.0, "sparse": 1.0, "gym": 1 + boxes + SOLVED_BONUS}[rewards] + 1e-9
    idled = 0
    for seed in range(20):
        moves = solution(make(seed, **options))
        solved, success = played(seed, options, [moves])
        assert success
        for answers in idle(moves).values():
            others, success = played(seed, options, answers)
            idled += not success
            for agent, total in others.items():
                assert total <= most if success else total < solved[agent]
    assert idled > 60


def test_a_proposal_that_is_made_again_earns_nothing():
    for rewards, cost in (("paper", 0.0), ("gym", MOVE_COST)):
        env = make(level=CORRIDOR, rewards=rewards)
        earned = []
        for _ in range(3):
            env.step(answer("RR"))
            earned.append(env.rewards["tool_0"])
            env.step(answer(""))
        assert earned[0] > 0
        assert earned[1:] == pytest.approx([-2 * cost] * 2)


# What agents see.


def test_prompts_show_the_board_the_history_and_the_proposal():
    env = make(level=CORRIDOR)
    env.step("Look: [D]\n#### right, right")
    assert "The tool proposes: [D]" in env.observe("planner_0")["text"]
    env.step("[R, R]")
    text = env.observe("tool_0")["text"]
    assert "#  @$ .#" in text
    assert "#@ $  .#" not in text
    assert "the tool proposed [D]" in text
    assert "the planner answered [R, R]" in text
    assert "2 moves made, 0 refused; 0 of 1 boxes on goals" in text


def test_compact_prompts_are_short_and_name_every_cell():
    env = make(level="######\n#@ # #\n# $ .#\n#    #\n######", prompt="compact")
    start = "sokoban tool 5x6 player b2 boxes c3 goals c5 walls b4"
    assert env.observe("tool_0")["text"] == start
    env.step("[D, R, R, U]")
    proposed = "proposal [ D c2 R c3 R c4 U c4 ]"
    assert env.observe("planner_0")["text"] == f"{start.replace('tool', 'planner')} {proposed}"
    env.step("[ D c2 R c3 ]")
    moved = "sokoban tool 5x6 player c3 boxes c4 goals c5 walls b4"
    assert env.observe("tool_0")["text"] == moved
    assert (
        max(
            len(make(seed, prompt="compact").observe("tool_0")["text"].split())
            for seed in range(300)
        )
        < 25
    )


def test_what_is_shown_can_be_read_again():
    for prompt in ("full", "compact"):
        env = make(5, prompt=prompt)
        moves = tuple(solution(env))
        written = env._format_answer(env._state.level, env._state.position, moves)
        assert env._parse_answer(env._state.level, written) == moves


def test_pictures_show_every_kind_of_cell():
    env = make(level="######\n#+$ *#\n#  $.#\n######", render_mode="rgb_array")
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((4 * 48, 6 * 48, 3), np.uint8)
    tiles = {}
    for (row, column), sign in np.ndenumerate(np.array([list(row) for row in board(env)])):
        tiles[str(sign)] = picture[row * 48 : row * 48 + 48, column * 48 : column * 48 + 48]
    assert len({tile.tobytes() for tile in tiles.values()}) == len(tiles) == 6


# Levels from outside.


@pytest.fixture
def level_file(tmp_path):
    path = tmp_path / "000.txt"
    levels = [make(seed, split=split) for split in ("train", "val", "test") for seed in range(4)]
    path.write_text(
        "".join(f"; {n}\n" + "\n".join(board(e)) + "\n\n" for n, e in enumerate(levels))
    )
    return path


def test_a_file_is_divided_among_the_splits_by_room(level_file):
    for split in ("train", "val", "test"):
        env = sokoban_v0.env(dataset=f"{level_file}?divide", split=split)
        assert env.num_tasks == 4
        shown = set()
        for seed in range(8):
            env.reset(seed=seed)
            assert split_of(env._state.level.room) == split
            shown.add(board(env))
        assert len(shown) == 4
        assert board(env) == board(make(3, dataset=f"{level_file}?divide", split=split))


def test_levels_carry_the_ids_of_their_file(level_file):
    env = make(1, dataset=f"{level_file}?divide", split="val")
    for reply in ("[R]", "nothing to read"):
        agent = env.agent_selection
        env.step(reply)
        assert env.infos[agent]["id"].endswith("#5")
    assert "id" not in make(1).infos["tool_0"]


def test_a_file_that_names_a_split_is_played_whole(level_file):
    named = level_file.rename(level_file.parent / "test.txt")
    assert sokoban_v0.env(dataset=named.parent, split="test").num_tasks == 12
    with pytest.raises(DatasetError, match="no file for the split 'train', only for test"):
        sokoban_v0.env(dataset=named.parent)


def test_levels_are_also_taken_as_a_text():
    env = make(dataset=f"; mine\n{CORRIDOR}\n", split=split_of(sokoban.parse(CORRIDOR).room))
    assert board(env) == tuple(CORRIDOR.split("\n"))


def test_a_split_without_levels_is_refused(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("\n".join(board(make(0))))
    with pytest.raises(DatasetError, match="no task of the split 'val'"):
        sokoban_v0.env(dataset=f"{path}?divide", split="val")


def test_a_bad_file_is_refused_with_its_line(tmp_path):
    path = tmp_path / "000.txt"
    path.write_text("; 0\n######\n#@ $.#\n######\n\n; 1\n######\n# ..@#\n#    #\n######\n")
    with pytest.raises(DatasetError, match=r"000\.txt:7: .*line 7: found 0 boxes"):
        sokoban_v0.env(dataset=path)
    path.write_text("; nothing\n")
    with pytest.raises(DatasetError, match="has no rows"):
        sokoban_v0.env(dataset=path)
    with pytest.raises(DatasetError, match="no such file"):
        sokoban_v0.env(dataset=tmp_path / "absent.txt")
    with pytest.raises(UnknownNameError, match="did you mean 'boxoban'"):
        sokoban_v0.env(dataset="boxobann")


def test_settings_without_a_level_are_refused_when_the_environment_is_made():
    with pytest.raises(ConfigError, match="no level of"):
        sokoban_v0.env(size=5, boxes=1, pushes=(30, None))


def test_a_level_in_the_options_is_played_or_refused_and_leaves_the_rest_alone():
    env = make(1)
    before = board(env)
    with pytest.raises(DatasetError, match="line 1 column 1: 'n'"):
        env.reset(seed=2, options={"level": "nonsense"})
    assert board(env) == before
    env.reset(seed=1, options={"level": CORRIDOR})
    assert board(env) == tuple(CORRIDOR.split("\n"))


@pytest.mark.reasoning
def test_levels_of_reasoning_gym_are_played_to_the_end_with_their_solutions():
    from reasoning_gym.games.sokoban import SokobanConfig, SokobanDataset

    # At times it deals a level that is solved already.
    config = SokobanConfig(min_boxes=1, max_boxes=3, max_w=7, max_h=7, size=40, seed=7)
    solved = 0
    for item in SokobanDataset(config):
        rows = ["".join(row.split()) for row in item["metadata"]["gamestr"].strip().split("\n")]
        text = "\n".join(rows).translate(str.maketrans("*%@X$+-", "@+$.*# "))
        if "$" not in text:
            continue
        env = make(level=text, agents="single")
        best = solution(env)
        env.step(answer(item["answer"]))
        assert env.infos["planner_0"]["success"]
        assert len(best) > 0
        again = make(level=text, agents="single")
        again.step(answer(best))
        assert again.infos["planner_0"]["success"]
        solved += 1
    assert solved > 20


@pytest.mark.parametrize(
    "kwargs",
    [{"size": 12}, {"boxes": 0}, {"pushes": (3, 1)}, {"rewards": "gim"}],
)
def test_an_argument_out_of_range_is_refused(kwargs):
    with pytest.raises(ConfigError):
        sokoban_v0.env(**kwargs)


# The contract, beyond the defaults that the registry's tests play.


@pytest.mark.parametrize("choice", CHOICES)
def test_check_env_passes(choice):
    check_env(
        lambda **kwargs: sokoban_v0.env(**CHOICES[choice], **kwargs),
        episodes=2,
        replies=("[R, U, L, D]", "#### up up left", "[ D d3 R d4 ]", "DRDR"),
    )


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.filterwarnings(*TEXT_WARNINGS)
def test_pettingzoos_own_tests_pass(choice):
    def factory(**kwargs):
        return sokoban_v0.env(**CHOICES[choice], **kwargs)

    api_test(factory(), num_cycles=10)
    seed_test(factory, num_cycles=10)
    render_test(factory)


def test_hostile_texts_are_read_in_milliseconds():
    env = make()
    million = 10**6
    texts = [
        "[" * million,
        "]" * million,
        "[]" * (million // 2),
        "\0" * million,
        "\ud800" * million,
    ]
    texts += [
        "[" + "9" * million + "]",
        "[" + "U" * million + "]",
        "#### " + "U, " * (million // 3),
    ]
    for text in texts:
        env.reset(seed=0)
        with at_most(0.25, text[:2]):
            env.step(text)
            env.step(text)
            env.observe("tool_0")
        pickle.dumps(env.snapshot())


def test_a_tools_program_reads_the_board_and_prints_its_proposal():
    env = make(level=CORRIDOR, tool="python")
    program = "rows = [input() for _ in range(4)]\nprint('[' + 'R' * rows[1].index('.') + ']')"
    env.step(f"```python\n{program}\n```")
    assert env.infos["tool_0"]["answer_solves"]
