from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pettingllms.data import plan_path
from pettingllms.envs import plan_path_v0
from pettingllms.envs.boards import WORST
from pettingllms.envs.team_env import FORMAT_PENALTY
from pettingllms.errors import ConfigError, DatasetError

DELTA = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


def make(seed=0, **kwargs):
    env = plan_path_v0.env(**{"height": 6, "width": 6, "moves": (4, 20), **kwargs})
    env.reset(seed=seed)
    return env


def board(env):
    return env._board(env._state.level, env._state.position).split("\n")


def shortest(env):
    """A shortest path from where the agent is, by following the distances down."""
    level, cell, moves = env._state.level, env._state.position, []
    table = plan_path.neighbours(level.height, level.width)
    while cell != level.goal:
        move = next(
            m
            for m, near in table[cell].items()
            if level.distances[near] == level.distances[cell] - 1
        )
        moves.append(move)
        cell = table[cell][move]
    return moves


def reference(rows, moves, stop):
    """The rules once more, on characters: the rows afterwards, and how many moves were refused."""
    cells = {(r, c): mark for r, row in enumerate(rows) for c, mark in enumerate(row)}
    at = next(cell for cell, mark in cells.items() if mark == "@")
    goal = next(cell for cell, mark in cells.items() if mark == "G")
    refused = 0
    for move in moves:
        if at == goal:
            break
        to = (at[0] + DELTA[move][0], at[1] + DELTA[move][1])
        if cells.get(to, "#") == "#":
            refused += 1
            if stop:
                break
        else:
            at = to
    return at, refused


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.lists(st.lists(st.sampled_from("UDLR"), max_size=12), max_size=8),
    st.sampled_from(["stop", "skip"]),
)
def test_boards_follow_an_independent_model_of_the_rules(seed, answers, rule):
    env = make(seed, max_turns=8, agents="single", refused=rule)
    for moves in answers:
        if env.terminations["planner_0"]:
            break
        at, refused = reference(board(env), moves, rule == "stop")
        env.step(f"#### {moves}")
        assert env._state.position == at[0] * 6 + at[1]
        assert env.infos["planner_0"]["illegal"] == refused
        assert env.infos["planner_0"]["success"] == (env._state.position == env._state.level.goal)


@settings(max_examples=60)
@given(st.text())
def test_no_reply_raises(text):
    env = make()
    env.step(text)
    env.step(text)


def test_only_the_planners_answer_moves_the_agent():
    env = make()
    before = board(env)
    env.step(f"#### {shortest(env)}")
    assert board(env) == before
    assert env.infos["tool_0"]["answer_solves"]
    assert not env.infos["tool_0"]["success"]
    assert "[" in env.observe("planner_0")["text"].rsplit("proposes:", 1)[1]
    env.step("#### []")
    assert board(env) == before


def test_a_shortest_path_ends_the_episode_and_is_success():
    env = make()
    path = shortest(env)
    env.step(f"[{', '.join(path)}]")
    assert env.rewards["tool_0"] == pytest.approx(1.0)
    env.step(f"[{', '.join(path)}, U, U]")
    assert env.rewards["planner_0"] == pytest.approx(2.0)
    assert all(env.terminations.values())
    assert env.infos["planner_0"]["success"]
    assert not any(env.truncations.values())


def test_later_turns_show_the_board_as_it_is_now_and_what_was_said():
    env = make()
    first = shortest(env)[0]
    env.step("#### [L, L, L, L, L, L]")
    env.step(f"#### [{first}]")
    text = env.observe("tool_0")["text"]
    assert "\n".join(board(env)) in text
    assert "the tool proposed [L, L, L, L, L, L]" in text
    assert f"the planner answered [{first}]" in text


def test_an_unreadable_reply_costs_the_penalty_and_changes_nothing():
    env = make()
    env.step("I do not know")
    assert env.infos["tool_0"]["parse_error"]
    assert env.rewards["tool_0"] == -FORMAT_PENALTY
    before = board(env)
    env.step("[jump]")
    assert "jump" in env.infos["planner_0"]["parse_error"]
    assert env.rewards["planner_0"] == -FORMAT_PENALTY
    assert board(env) == before


def idle(env):
    """Ways to be busy without solving anything, as one answer for each turn."""
    path = shortest(env)
    back = {"U": "D", "D": "U", "L": "R", "R": "L"}
    near = path[:-1]
    return {
        "to and fro": [[path[0], back[path[0]]] * 50] * 4,
        "bumps": [["L"] * 99 + ["U"] * 99] * 4,
        "the same again": [near] * 4,
        "there and back": [near, [back[m] for m in reversed(near)]] * 2,
    }


@pytest.mark.parametrize("rewards", ["paper", "sparse"])
@pytest.mark.parametrize("agents", ["team", "single"])
def test_nothing_returns_more_than_solving(rewards, agents):
    idled = 0
    for seed in range(20):
        solved, _ = played(seed, rewards, agents, [shortest(make(seed))])
        for answers in idle(make(seed)).values():
            others, success = played(seed, rewards, agents, answers)
            idled += not success
            for agent, total in others.items():
                assert total <= solved[agent] if success else total < solved[agent]
    assert idled > 40


def test_a_solution_that_is_proposed_again_and_again_is_paid_once():
    solution = shortest(make())
    assert played(0, "paper", "team", [solution] * 4, planner="[]")[0]["tool_0"] == pytest.approx(
        1.0
    )


def played(seed, rewards, agents, answers, planner=None):
    env = make(seed, rewards=rewards, agents=agents)
    totals = dict.fromkeys(env.possible_agents, 0.0)
    for agent in env.agent_iter():
        _, reward, termination, truncation, info = env.last()
        success = info["success"]
        totals[agent] += reward
        answer = answers[min(env.turn, len(answers) - 1)]
        reply = planner if planner and agent == "planner_0" else f"#### {answer}"
        env.step(None if termination or truncation else reply)
    return totals, success


def refused_at_once(env):
    """A move that is refused where the agent is."""
    rows = board(env)
    row, column = next(
        (r, c) for r, line in enumerate(rows) for c, m in enumerate(line) if m == "@"
    )
    for move, (down, right) in DELTA.items():
        to = (row + down, column + right)
        if not (0 <= to[0] < 6 and 0 <= to[1] < 6) or rows[to[0]][to[1]] == "#":
            return move
    return None


def test_an_answer_stops_at_the_first_refused_move_and_keeps_what_it_gained():
    seeds = [s for s in range(40) if refused_at_once(make(s))]
    assert len(seeds) > 10
    for seed in seeds:
        env = make(seed, agents="single")
        wall, path, start = refused_at_once(env), shortest(env), env._state.position
        env.step(f"[{wall}, {', '.join(path)}]")
        assert env._state.position == start
        assert env.rewards["planner_0"] == 0.0
        assert f"1 refused (number 1, {wall})" in env.observe("planner_0")["text"]
        env = make(seed, agents="single", refused="skip")
        env.step(f"[{wall}, {', '.join(path)}]")
        assert env.infos["planner_0"]["success"]


@pytest.mark.parametrize("rule", ["stop", "skip"])
def test_a_full_prompt_says_what_a_refused_move_does(rule):
    text = make(refused=rule).observe("planner_0")["text"]
    assert ("the rest is dropped" in text, "is skipped" in text) == (
        rule == "stop",
        rule == "skip",
    )


def test_no_answer_loses_more_than_the_bound():
    least = 0.0
    for seed in range(60):
        env = make(seed, agents="single", moves=(1, 2), height=10, width=10)
        level = env._state.level
        worst = max(range(100), key=lambda cell: level.distances[cell])
        back = plan_path.distances(10, 10, level.walls, worst)
        cell, moves = env._state.position, []
        while cell != worst and cell != level.goal:
            move, cell = next(
                (m, near)
                for m, near in plan_path.neighbours(10, 10)[cell].items()
                if near not in level.walls and back[near] == back[cell] - 1
            )
            moves.append(move)
        env.step(f"[{', '.join(moves)}]")
        least = min(least, env.rewards["planner_0"])
    assert least == WORST / 2


def test_a_tool_may_answer_with_a_program():
    env = make(tool="python")
    assert "standard input" in env.observe("tool_0")["text"]
    program = (
        "import sys\nrows = sys.stdin.read().split()\n"
        "print('moves', ['R'] * len(rows), file=sys.stderr)\nprint([m for m in 'RL'])"
    )
    env.step(f"```python\n{program}\n```")
    assert env._state.proposal == "[R, L]"
    env.step("[]")
    env.step("```python\n1 / 0\n```")
    assert "ZeroDivisionError" in env.infos["tool_0"]["parse_error"]
    env.step("[]")
    env.step("#### [U]")
    assert env._state.proposal == "[U]"


def test_candidates_of_one_node_are_played_as_steps_are():
    env = make(tool="python")
    replies = ["[R]", "```python\nprint('[D]')\n```", "nothing", "```python\nprint(1)\n```"]
    for twin, reply in zip(env.branch(replies), replies, strict=True):
        alone = env.clone()
        alone.step(reply)
        assert alone.snapshot() == twin.snapshot()


def test_the_compact_prompt_names_cells():
    env = make(prompt="compact")
    text = env.observe("tool_0")["text"]
    assert text.startswith("path tool 6x6 at ")
    env.step("[ " + " ".join(shortest(env)) + " ]")
    proposal = env.observe("planner_0")["text"].partition(" proposal ")[2]
    goal = text.split(" goal ")[1].split()[0]
    assert proposal.endswith(f"{goal} ]")


def test_pictures_differ_from_move_to_move():
    env = make(render_mode="rgb_array", agents="single")
    first = env.render()
    assert first.shape == (6 * 48, 6 * 48, 3)
    env.step(f"[{shortest(env)[0]}]")
    assert (env.render() != first).any()


@pytest.mark.parametrize(
    "arguments",
    [
        {"height": 1},
        {"width": 27},
        {"walls": 0.9},
        {"walls": float("nan")},
        {"moves": (5, 2)},
        {"height": 2, "width": 2, "walls": 0.0, "split": "val"},
        {"height": 3, "width": 3, "moves": (9, 9)},
        {"agents": "both"},
        {"tool": "bash"},
        {"rewards": "gym"},
        {"prompt": "long"},
    ],
)
def test_an_unusable_argument_is_refused(arguments):
    with pytest.raises(ConfigError):
        plan_path_v0.env(**arguments)


GRIDS = """; first
@.#
..G

; second
.@
G.
#.
"""


def test_grids_are_taken_from_a_text_or_a_file_with_their_ids(tmp_path):
    path = tmp_path / "grids.txt"
    path.write_text(GRIDS)
    shown: dict[str, tuple[str, list[str]]] = {}
    for dataset in (GRIDS, f"{path}?divide"):
        for split in ("train", "val", "test"):
            try:
                env = plan_path_v0.env(dataset=dataset, split=split)
            except DatasetError:  # neither grid is of this split
                continue
            for seed in range(env.num_tasks or 0):
                env.reset(seed=seed)
                env.step("[]")
                name = env.infos["tool_0"]["id"].rpartition("#")[2]
                assert shown.setdefault(name, (split, board(env))) == (split, board(env))
    assert {name: rows for name, (_, rows) in shown.items()} == {
        "first": ["@.#", "..G"],
        "second": [".@", "G.", "#."],
    }


def test_a_file_that_names_a_split_is_that_split(tmp_path):
    (tmp_path / "test.txt").write_text(GRIDS)
    env = plan_path_v0.env(dataset=tmp_path, split="test", prompt="compact")
    assert env.num_tasks == 2
    env.reset(seed=1)
    assert env.observe("tool_0")["text"] == "path tool 3x2 at a2 goal b1 walls c1"
    env.step("[]")
    env.step("[D b2 L b1]")
    assert env.infos["planner_0"]["success"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("@.\n.", "line 2: the row has 1 cells, others have 2"),
        ("@.\n.x", "line 2: 'x' is no cell of a grid"),
        ("@.\n..", r"line 1: expected one goal \(G\), found 0"),
        ("@@\n.G", r"line 1: expected one start \(@\), found 2"),
        ("@#\n#G", "line 1: no path leads from the start to the goal"),
        ("; a\n\n@G\n", "line 3: a grid has 2 to 26 rows and columns, got 1x2"),
        ("\n", "no board of the split"),
    ],
)
def test_a_bad_grid_is_refused_with_its_line(text, why):
    with pytest.raises(DatasetError, match=why):
        plan_path_v0.env(dataset=text)


@given(st.text(alphabet="#.@G;\n ", max_size=60))
def test_any_text_is_a_data_set_or_refused(text):
    try:
        env = plan_path_v0.env(dataset=f"{text}\n")
    except DatasetError:
        return
    env.reset(seed=0)
    assert env._state.level.optimum > 0
