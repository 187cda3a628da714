from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.envs.parsing import MAX_MOVES, ParseError, cell_name, last_list, parse_moves
from tests.cpu_time import at_most

MOVES = st.lists(st.sampled_from("UDLR"))
NAMES = {"U": "up", "D": "Down", "L": "LEFT", "R": "right"}


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("#### [R, R, U]", "RRU"),
        ("#### [R, R, U]\nThat is all. I hope it helps!", "RRU"),
        ("First [D], no: #### [u l]", "UL"),
        ('```json\n{"moves": ["R", "left"]}\n```', "RL"),
        ("[RRU]", "RRU"),
        ("[ R b3 D c3 ]", "RD"),
        ("#### up, Down\nbecause", "UD"),
        ("an open [bracket and then [R]", "R"),
        ("a closed] one, then [R]]", "R"),
        ("[[R, U], [D]]", "RUD"),
        ("[R\n,\nU]", "RU"),
        ("[]", ""),
        ("['R', 'U']", "RU"),
        ("#### [→, ↑]", "RU"),
        ("[→→ ↓]", "RRD"),
        ("[R×3, U]", "RRRU"),
        ("[2*R, U x2, down x 1]", "RRUUD"),
        ("[1. Up, 2. Right]", "UR"),
        ("[1) R\n, 2) u]", "RU"),
        ("[R -> right -> U]", "RRU"),
        ("[R d3, D e3]", "RD"),
        ("#### R, U.", "RU"),
    ],
)
def test_the_last_list_of_moves_is_found(text, moves):
    assert parse_moves(text) == tuple(moves)


@pytest.mark.parametrize("text", ["", "right", "R, U", "[", "]", "[jump]", "[R, jump, U]", "####"])
def test_what_is_no_list_of_moves_is_refused_with_a_reason(text):
    parsed = parse_moves(text)
    if text == "####":
        assert parsed == ()
    else:
        assert isinstance(parsed, ParseError)
        assert parsed.why


@given(MOVES, st.text(alphabet="abc ,.\n!"), st.text(alphabet="abc ,.\n!"))
def test_every_way_to_write_a_list_means_the_same(moves, before, after):
    expected = tuple(moves[:MAX_MOVES])
    names = [NAMES[move] for move in moves]
    for written in (
        json.dumps(moves),
        str(moves),
        f"[{' '.join(moves)}]",
        f"[{','.join(moves).lower()}]",
        f"[{', '.join(names)}]",
        f"```\n[{''.join(moves)}]\n```",
    ):
        assert parse_moves(f"{before}{written}{after}") == expected


@given(st.text())
def test_no_text_raises(text):
    for parsed in (last_list(text), parse_moves(text), parse_moves(f"[{text}]")):
        assert isinstance(parsed, str | tuple)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**6,
        "]" * 10**6,
        "[]" * 500_000,
        "[" * 500_000 + "]" * 500_000,
        "[" + "9" * 10**5 + "]",
        "####" * 250_000,
        "[R," + "\0" * 10**6 + "]",
        "\ud800" * 10**6 + "[R]",
        "[" + "é" * 10**6,
        "[" + "R" * 10**6,
        "[" + "R," * 3_999 + "R]",
    ],
    ids=range(11),
)
def test_a_hostile_megabyte_is_read_in_milliseconds(text):
    with at_most(0.2):
        parse_moves(text)


@pytest.mark.parametrize(
    "text",
    [
        "[(0,1),(-1,0)]",
        "[3R, U]",
        "[R3, U]",
        "[right 2, up]",
        "[R 2 U]",
        "[R, 2, U]",
        "[R, ..., U]",
        "[R, d3]",
        "[r d3]",
        "[d3, d4]",
        "[R→U]",
        "[->, R]",
        "[R, -U]",
        "[2. Up, 3. Right]",
        "[1. Up, Right]",
        "[RU x2]",
        "[R x2 U]",
        "[R*0]",
        "[R, U] x2",
        "3 × [R, U]",
        "#### [R, R]\nLength: [2]",
        "[not R]",
        "#### [R], [U]",
        "[R, R] and then [U]",
        "[R, R] followed by [U, U]",
        "[R, U] + [D]",
        "[R U] twice",
        "twice [R, U]",
        "[R U], repeated three times",
        "([R, U]) * 2",
        "[R, U] (x2)",
        "[R U]²",
        "reverse of [R, U]",
        "[R][R][U]",
    ],
)
def test_a_list_that_is_not_understood_is_never_read_as_other_moves(text):
    parsed = parse_moves(text)
    assert isinstance(parsed, ParseError)
    assert parsed.why


def test_a_list_beyond_the_limit_is_cut():
    assert parse_moves("[" + "R," * (MAX_MOVES + 5) + "]") == ("R",) * MAX_MOVES


def test_cells_are_named_by_row_letter_and_column_number():
    assert [cell_name(*at) for at in ((0, 0), (1, 2), (25, 9), (26, 0))] == [
        "a1",
        "b3",
        "z10",
        "aa1",
    ]
