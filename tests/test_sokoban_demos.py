from __future__ import annotations

import random
import re

import pytest

from benchmarks.priming import sokoban as demos
from pettingllms.data import sokoban
from pettingllms.data.sokoban import deltas, moved, solve, split_of
from pettingllms.envs import sokoban_v0
from pettingllms.envs.parsing import cell_name
from tests import sokoban_model as model

PROMPT = re.compile(
    r"sokoban (?P<role>tool|planner) 6x6 player (?P<player>\S+) boxes (?P<box>\S+) "
    r"goals (?P<goal>\S+) walls(?P<walls>[^pl]*?)(?: proposal (?P<proposal>.*?))?(?P<look> look)?"
)


def examples(habit, number=400, seed=0):
    rng = random.Random(seed)
    return [demos.demo(rng, habit) for _ in range(number)]


def answers(habit, **kwargs):
    return [d for d in examples(habit, **kwargs) if not d.prompt.endswith(" look")]


def board(prompt):
    """The rows that a prompt describes, from its words alone."""
    words = PROMPT.fullmatch(prompt)
    assert words is not None, prompt
    cells = {f"{'abcdef'[r]}{c + 1}": (r, c) for r in range(6) for c in range(6)}
    grid = [list("######"), *(list("#    #") for _ in range(4)), list("######")]

    def put(name, sign):
        row, column = cells[name]
        grid[row][column] = {"@.": "+", "$.": "*"}.get(sign + grid[row][column], sign)

    for wall in words["walls"].split():
        put(wall, "#")
    put(words["goal"], ".")
    put(words["box"], "$")
    put(words["player"], "@")
    return tuple("".join(row) for row in grid)


def role_and_proposal(prompt):
    words = PROMPT.fullmatch(prompt)
    assert words is not None, prompt
    return words["role"], words["proposal"]


def level_of(prompt):
    return sokoban.parse("\n".join(board(prompt)))


def cell(number):
    return cell_name(*divmod(number, 6))


def moves(reply):
    return [word for word in reply.rpartition("[")[2].split() if word in "UDLR"]


def test_prompts_are_those_of_the_environment():
    env = sokoban_v0.env(prompt="compact")
    for example in answers(0.5):
        env.reset(seed=0, options={"level": "\n".join(board(example.prompt))})
        role, proposal = role_and_proposal(example.prompt)
        if role == "planner":
            env.step(proposal)
        assert env.observe(env.agent_selection)["text"] == example.prompt


def test_good_replies_solve_the_board_with_the_fewest_pushes():
    for example in answers(0.0):
        rows = board(example.prompt)
        after, refused, looked = model.play(rows, moves(example.reply))
        assert model.solved(after)
        assert (refused, looked) == (0, len(moves(example.reply)))
        best = solve(*level_of(example.prompt)[:2])
        assert best is not None
        assert pushes(example.reply) == best.pushes


def test_the_trace_says_where_player_and_box_are_and_the_list_repeats_it():
    for example in answers(0.0):
        trace, _, listed = example.reply.rpartition(" [ ")
        room, here, _ = level_of(example.prompt)
        words, steps = trace.split(), list[str]()
        announced = direction = ""
        while words:
            word, name = words.pop(0), words.pop(0)
            if word == "push":
                direction, announced = name, words.pop(0)
            elif word == "box":
                assert name == cell(here.boxes.bit_length() - 1)
            else:
                before, after = here, moved(room, here, deltas(6)[word])
                assert after is not None
                here = after
                steps += (word, name)
                assert name == cell(here.player)
                if here.boxes != before.boxes:
                    assert word == direction
                    assert words[0] == "box"
                    assert announced in ("", cell(before.player))
                    announced = ""
        assert " ".join(steps) == listed.removesuffix(" ]")


def test_a_good_planner_keeps_the_pushes_of_a_good_proposal():
    kept = 0
    for example in answers(0.0, number=1500):
        proposal = role_and_proposal(example.prompt)[1]
        if proposal is None:
            continue
        rows, level = board(example.prompt), level_of(example.prompt)
        after, _, _ = model.play(rows, moves(proposal))
        if model.solved(after) and len(proposed_boxes(level, proposal)) == 1 + pushes(
            example.reply
        ):
            kept += 1
            assert proposed_boxes(level, proposal) == proposed_boxes(level, example.reply)
    assert kept > 100


def pushes(reply):
    return reply.split().count("box")


def proposed_boxes(level, text):
    """Where the boxes are at first and after every push."""
    here, seen = level.start, [level.start.boxes]
    for move in moves(text):
        here = moved(level.room, here, deltas(6)[move]) or here
        if here.boxes != seen[-1]:
            seen.append(here.boxes)
    return seen


def test_the_habit_answers_at_once_always_alike_and_mostly_wrong():
    solved = 0
    hasty = [e for e in answers(1.0) if role_and_proposal(e.prompt)[0] == "tool"]
    for example in hasty:
        assert example.reply.startswith("[")
        rows, level = board(example.prompt), level_of(example.prompt)
        assert demos.straight(level, level.start) == example.reply
        solved += model.solved(model.play(rows, moves(example.reply))[0])
    assert 0 < solved < 0.25 * len(hasty)


def test_a_planner_with_the_habit_copies_the_proposal():
    planners = [
        role_and_proposal(e.prompt)[1] == e.reply for e in answers(1.0) if "proposal" in e.prompt
    ]
    assert len(planners) > 100
    assert all(planners)


def test_a_drill_says_what_is_in_the_cells():
    rng = random.Random(3)
    for _ in range(200):
        example = demos.drill(rng)
        rows = board(example.prompt)
        words = example.reply.split()
        for name, content in zip(words[::2], words[1::2], strict=True):
            sign = rows["abcdef".index(name[0])][int(name[1]) - 1]
            assert (
                content
                in {
                    "#": ["wall"],
                    " ": ["free"],
                    "@": ["free"],
                    "$": ["box"],
                    ".": ["goal"],
                    "+": ["goal"],
                    "*": ["box"],
                }[sign]
            )


def test_only_rooms_of_the_training_split_are_shown():
    for example in examples(0.5):
        assert split_of(level_of(example.prompt).room) == "train"


@pytest.mark.parametrize("habit", [0.0, 1.0])
def test_every_word_is_a_unit_or_the_size(habit):
    units = {*demos.units(), "6x6"}
    for example in examples(habit):
        assert set(f"{example.prompt} {example.reply}".split()) <= units


def test_replies_and_prompts_are_short():
    shown = examples(0.0, number=1500)
    assert max(len(example.reply.split()) for example in shown) <= demos.LONGEST
    tool = [e.prompt for e in shown if "tool" in e.prompt and "look" not in e.prompt]
    assert max(len(prompt.split()) for prompt in tool) < 25


def test_a_seed_decides_the_demonstrations():
    assert examples(0.5, number=50) == examples(0.5, number=50)
    assert examples(0.5, number=50) != examples(0.5, number=50, seed=1)
