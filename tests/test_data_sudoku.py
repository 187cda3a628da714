from __future__ import annotations

import itertools
import operator
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pettingllms.data import sudoku
from pettingllms.data.splits import SPLITS
from pettingllms.data.sudoku_solver import (
    BOXES,
    GRADES,
    GUESS_LIMIT,
    Search,
    Undecided,
    _Notes,
    grade,
    shape,
    solvable,
)
from pettingllms.errors import ConfigError, DatasetError
from tests.datasets_fixtures import sudoku_text

EASY = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
SOLVED = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
INKALA = "8..........36......7..9.2...5...7.......457.....1...3...1....68..85...1..9....4.."


def brute_force(clues, size, most=2):
    """The first `most` solutions, by an independent and plain search."""
    high, wide = BOXES[size]
    places = [(c // size, c % size, (c // size // high, c % size // wide)) for c in range(size**2)]
    peers = [
        [c for c, other in enumerate(places) if c != cell and any(map(operator.eq, place, other))]
        for cell, place in enumerate(places)
    ]
    values, solutions = list(clues), []

    def left(cell):
        return set(range(1, size + 1)) - {values[peer] for peer in peers[cell]}

    def descend():
        empty = [cell for cell, value in enumerate(values) if not value]
        if not empty:
            solutions.append(tuple(values))
            return
        cell = min(empty, key=lambda cell: len(left(cell)))
        for value in left(cell):
            if len(solutions) < most:
                values[cell] = value
                descend()
        values[cell] = 0

    descend()
    return solutions


def valid(grid, size):
    return all({grid[cell] for cell in u} == set(range(1, size + 1)) for u in shape(size).units)


# What is generated.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "clues", "number"),
    [(4, (4, 8), 2000), (6, (8, 18), 400), (9, (30, 40), 150), (9, (22, 26), 20)],
)
def test_an_independent_solver_finds_exactly_the_one_solution(size, clues, number):
    rng = random.Random(f"unique {size} {clues}")
    for _ in range(number):
        puzzle = sudoku.generate(rng, "train", size=size, clues=clues)
        assert brute_force(puzzle.clues, size) == [puzzle.solution]
        assert valid(puzzle.solution, size)
        assert clues[0] <= size**2 - puzzle.blanks <= clues[1]


def test_a_16x16_puzzle_has_one_solution():
    puzzle = sudoku.generate(random.Random(0), "train", size=16)
    assert valid(puzzle.solution, 16)
    assert brute_force(puzzle.clues, 16) == [puzzle.solution]


def test_a_puzzle_that_takes_too_many_guesses_is_passed_over(monkeypatch):
    make, limits = sudoku.puzzle, []

    def first_fails(*args):
        limits.append(args[3])
        if len(limits) == 1:
            raise Undecided
        return make(*args)

    monkeypatch.setattr(sudoku, "puzzle", first_fails)
    assert sudoku.generate(random.Random(0), "train").blanks
    assert len(limits) == 2
    assert max(limits) < GUESS_LIMIT


def test_all_4x4_grids_are_known():
    assert len(sudoku._small_grids()) == 288
    assert set(sudoku._small_grids()) == set(brute_force((0,) * 16, 4, most=1000))


def lines(rng, thick, number):
    """The numbers of the rows (or columns) of a grid in an order that keeps it a Sudoku."""
    bands = [list(range(at, at + thick)) for at in range(0, number, thick)]
    rng.shuffle(bands)
    for band in bands:
        rng.shuffle(band)
    return [line for band in bands for line in band]


def guise(rng, *grids):
    """The same puzzle in another guise: all grids changed alike."""
    size = sudoku.SIZES[len(grids[0])]
    high, wide = BOXES[size]
    rows, columns = lines(rng, high, size), lines(rng, wide, size)
    numbers = [0, *rng.sample(range(1, size + 1), size)]
    turned = high == wide and rng.random() < 0.5
    order = [
        rows[c] * size + columns[r] if turned else rows[r] * size + columns[c]
        for r in range(size)
        for c in range(size)
    ]
    return [tuple(numbers[grid[cell]] for cell in order) for grid in grids]


def canonical(clues):
    """The least of all guises of a 4x4 puzzle, by trying them all."""
    both = [first + last for first, last in itertools.permutations([(0, 1), (2, 3)])]
    ways = {
        tuple(order[i ^ flip[i // 2]] for i in range(4))
        for order in both
        for flip in itertools.product((0, 1), repeat=2)
    }
    assert len(ways) == 8
    guises = []
    for rows, columns in itertools.product(ways, ways):
        for order in (
            [r * 4 + c for r in rows for c in columns],
            [r * 4 + c for c in columns for r in rows],
        ):
            names = {0: 0}
            guises.append(tuple(names.setdefault(clues[cell], len(names)) for cell in order))
    return min(guises)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([4, 4, 6, 9, 16]))
def test_all_guises_of_a_puzzle_are_in_one_split(seed, size):
    rng = random.Random(seed)
    puzzle = sudoku.generate(rng, "train", size=size)
    clues, solution = guise(rng, puzzle.clues, puzzle.solution)
    assert valid(solution, size)
    assert sudoku.split_of(clues, solution) == "train"
    assert sudoku._clues_key(clues) == sudoku._clues_key(puzzle.clues)
    assert sudoku._solution_key(solution) == sudoku._solution_key(puzzle.solution)


@pytest.mark.slow
def test_no_canonical_form_of_a_small_puzzle_is_in_two_splits():
    rng = random.Random(3)
    drawn = {
        split: {canonical(sudoku.generate(rng, split).clues) for _ in range(400)}
        for split in SPLITS
    }
    for one, other in itertools.combinations(SPLITS, 2):
        assert not drawn[one] & drawn[other]
    assert min(map(len, drawn.values())) > 50


def test_the_keys_tell_different_puzzles_apart():
    rng = random.Random(5)
    small = [sudoku.generate(rng, "train").clues for _ in range(400)]
    forms = {canonical(clues) for clues in small}
    assert len({sudoku._clues_key(clues) for clues in small}) > 0.98 * len(forms)
    nines = [sudoku._filled(rng, 9) for _ in range(60)]
    assert len({sudoku._solution_key(grid) for grid in nines}) == 60


def test_puzzles_of_one_large_solution_are_in_one_split():
    rng = random.Random(4)
    solution = sudoku._filled(rng, 9)
    dug = {sudoku._dug(rng, solution, 36, None) for _ in range(4)}
    assert len(dug) == 4
    assert len({sudoku.split_of(clues, solution) for clues in dug}) == 1


@pytest.mark.slow
def test_a_seed_decides_the_puzzle_in_every_process():
    code = (
        "import random; from pettingllms.data import sudoku\n"
        "for size in (4, 6, 9): print(sudoku.generate(random.Random('s'), 'test', size=size))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("size", "clues", "difficulty"),
    [(6, None, "naked"), (6, None, "singles"), (9, (24, 30), "more"), (9, (22, 28), "search")],
)
def test_a_difficulty_is_dealt_as_asked_for(size, clues, difficulty):
    rng = random.Random(difficulty)
    for _ in range(3):
        puzzle = sudoku.generate(rng, "train", size=size, clues=clues, difficulty=difficulty)
        assert puzzle.difficulty == grade(puzzle.clues) == difficulty
        assert brute_force(puzzle.clues, size) == [puzzle.solution]
        assert (puzzle.guesses > 0) == (difficulty == "search")


def test_what_no_puzzle_can_have_is_refused():
    for clues in [(9, 8), (1, 3), (16, 20), (5,), (1, 2, 3)]:
        with pytest.raises(ConfigError, match="suits no 4x4 puzzle of the generator"):
            sudoku.generate(random.Random(0), "train", size=4, clues=clues)
    # Digging this far takes up to a minute and a half.
    with pytest.raises(ConfigError, match="give \\(fewest, most\\), from 120 to 255"):
        sudoku.generate(random.Random(4), "train", size=16, clues=(100, 130))
    with pytest.raises(ConfigError, match="no 4x4 puzzle of difficulty 'search'"):
        sudoku.generate(random.Random(0), "train", size=4, difficulty="search")


# How they are graded.


def brute_naked(clues, size):
    """Naked singles alone, the slow way."""
    values = list(clues)
    while True:
        for cell, value in enumerate(values):
            left = set(range(1, size + 1)) - {values[peer] for peer in shape(size).peers[cell]}
            if not value and len(left) == 1:
                values[cell] = left.pop()
                break
        else:
            return 0 not in values


@pytest.mark.slow
def test_grades_follow_from_the_techniques():
    rng = random.Random(11)
    seen = set()
    for _ in range(60):
        puzzle = sudoku.generate(rng, "train", size=9, clues=(23, 36))
        order = [solvable(puzzle.clues, name) for name in GRADES[:-1]]
        assert order == sorted(order)  # what needs less is solved by more as well
        expected = GRADES[order.index(True)] if True in order else "search"
        assert puzzle.difficulty == expected
        assert order[0] == brute_naked(puzzle.clues, 9)
        seen.add(puzzle.difficulty)
    assert len(seen) >= 3


TECHNIQUES = ("naked_singles", "hidden_singles", "locked", "pairs")


def reasoned(clues, techniques):
    notes = _Notes(clues)
    while any(getattr(notes, technique)() for technique in techniques):
        pass
    return notes


@pytest.mark.slow
def test_each_technique_is_needed_by_some_puzzle():
    rng = random.Random(2)
    made = [
        sudoku.generate(rng, "train", size=9, clues=(24, 30), difficulty="more") for _ in range(8)
    ]
    assert all(reasoned(puzzle.clues, TECHNIQUES).left == 0 for puzzle in made)
    for technique in ("locked", "pairs"):
        others = [name for name in TECHNIQUES if name != technique]
        assert any(reasoned(puzzle.clues, others).left for puzzle in made)


@pytest.mark.slow
def test_no_technique_removes_what_is_right():
    rng = random.Random(4)
    for difficulty in ("search", None):
        for _ in range(15):
            puzzle = sudoku.generate(rng, "train", size=9, clues=(22, 28), difficulty=difficulty)
            notes = reasoned(puzzle.clues, TECHNIQUES)
            open_cells = [cell for cell, marks in enumerate(notes.marks) if marks]
            assert len(open_cells) == notes.left
            assert all(notes.marks[c] & 1 << puzzle.solution[c] - 1 for c in open_cells)


def test_a_grade_does_not_depend_on_the_numbers_or_the_orientation():
    rng = random.Random(5)
    for _ in range(25):
        puzzle = sudoku.generate(rng, "train", size=9, clues=(24, 32))
        names = [0, *rng.sample(range(1, 10), 9)]
        turned = tuple(names[puzzle.clues[c % 9 * 9 + c // 9]] for c in range(81))
        assert grade(turned) == puzzle.difficulty


def test_more_clues_never_need_more():
    rng = random.Random(6)
    for _ in range(40):
        puzzle = sudoku.generate(rng, "train", size=6, clues=(8, 14))
        clues = list(puzzle.clues)
        cell = rng.choice([cell for cell, clue in enumerate(clues) if not clue])
        clues[cell] = puzzle.solution[cell]
        if 0 in clues:
            assert GRADES.index(grade(tuple(clues))) <= GRADES.index(puzzle.difficulty)


@pytest.mark.slow
def test_every_4x4_puzzle_needs_naked_singles_alone():
    # Solving by naked singles cannot fail with more clues, so the fewest clues are enough.
    rng = random.Random(8)
    for _ in range(1500):
        puzzle = sudoku.generate(rng, "train", size=4, clues=(4, 6))
        assert puzzle.difficulty == "naked"


def test_a_famous_hard_puzzle_needs_search():
    puzzle = sudoku.parse(INKALA)
    assert puzzle.difficulty == "search"
    assert puzzle.guesses > 10
    assert sudoku.parse(EASY).difficulty in ("naked", "singles")


def test_a_search_gives_up_at_its_limit():
    with pytest.raises(Undecided):
        Search((0,) * 81, limit=5).solutions(10**6)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([4, 6]))
def test_a_search_leaves_the_grid_as_it_was(seed, size):
    puzzle = sudoku.generate(random.Random(seed), "train", size=size)
    search = Search(puzzle.clues)
    before = (list(search.values), [list(used) for used in search._used], list(search._empty))
    search.solutions(1)
    assert before == (search.values, [list(used) for used in search._used], search._empty)


# What is given.


@pytest.mark.parametrize("size", [4, 6, 9])
def test_a_puzzle_can_be_written_and_read(size):
    puzzle = sudoku.generate(random.Random(size), "val", size=size)
    text = sudoku_text(puzzle.clues)
    assert sudoku.is_puzzle(text)
    assert sudoku.parse(text) == sudoku.parse(text.replace(".", "0")) == puzzle
    assert puzzle.size == size


def test_letters_stand_for_the_large_numbers_of_16x16():
    puzzle = sudoku.generate(random.Random(1), "val", size=16)
    text = sudoku_text(puzzle.clues)
    assert set("abcdefg") < set(text)
    assert sudoku.parse(text.upper()) == puzzle


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "0 characters, not one of 16, 36, 81, 256"),
        ("1" * 17, "17 characters"),
        ("5" + "." * 15, "'5' in row 1, column 1"),
        ("...x" + "." * 12, "'x' in row 1, column 4"),
        ("1..1" + "." * 12, "1 is at row 1, column 1 and at row 1, column 4"),
        ("1....1..........", "1 is at row 1, column 1 and at row 2, column 2"),
        ("12....3....4....", "no solution"),
        ("1...............", "several solutions: row 2, column 3 can be 1 or 2"),
        (SOLVED, "no empty cell"),
        ("\u0661" + "." * 80, "in row 1, column 1 is not"),
    ],
)
def test_what_is_no_puzzle_is_refused_with_the_reason(text, why):
    with pytest.raises(DatasetError, match=why):
        sudoku.parse(text)


def write(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def puzzles(number, size=4):
    rng = random.Random(number)
    return [sudoku.generate(rng, rng.choice(SPLITS), size=size) for _ in range(number)]


@pytest.mark.parametrize("header", ["quizzes,solutions", "puzzle,solution", "question,answer"])
def test_known_csv_files_are_read(tmp_path, header):
    made = puzzles(40)
    rows = [f"{sudoku_text(p.clues)},{sudoku_text(p.solution)}" for p in made]
    path = write(tmp_path / "p.csv", [header, *rows])
    for split in SPLITS:
        loaded = [sudoku.solve(row) for row in sudoku.load(f"{path}?divide", split)]
        assert loaded == [p for p in made if sudoku.split_of(p.clues, p.solution) == split]
        assert [sudoku.solve(row) for row in sudoku.load(path, split)] == made


def test_other_columns_are_passed_over(tmp_path):
    puzzle = puzzles(1)[0]
    line = f"kaggle,{sudoku_text(puzzle.clues)},{sudoku_text(puzzle.solution)},12"
    path = write(tmp_path / "e.csv", ["source,question,answer,rating", line])
    (row,) = sudoku.load(path, "test")
    assert row.place == row.id == "2"
    assert sudoku.solve(row) == puzzle


def test_published_splits_are_kept_and_lend_a_validation_split(tmp_path):
    made = puzzles(60)
    for name, portion in (("train", made[:50]), ("test", made[50:])):
        rows = [f"{sudoku_text(p.clues)},{sudoku_text(p.solution)}" for p in portion]
        write(tmp_path / f"{name}.csv", ["puzzle,solution", *rows])
    loaded = {split: sudoku.load(tmp_path, split) for split in SPLITS}
    assert [sudoku.solve(row) for row in loaded["test"]] == made[50:]
    assert len(loaded["train"]) + len(loaded["val"]) == 50
    assert not {row.text for row in loaded["train"]} & {row.text for row in loaded["val"]}


def test_a_file_with_a_puzzle_on_each_line_is_read(tmp_path):
    made = puzzles(30, size=6)
    path = write(tmp_path / "p.txt", [sudoku_text(p.clues) for p in made])
    count = {
        split: sum(sudoku.split_of(p.clues, p.solution) == split for p in made) for split in SPLITS
    }
    for split in SPLITS:
        assert len(sudoku.load(f"{path}?divide", split)) == count[split]
        assert len(sudoku.load(path, split)) == len(made)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], r"p\.csv has no rows"),
        (["a,b", "c,d"], r"p\.csv:2: has no column called question, quizzes, puzzle"),
        (["quizzes,solutions", "12,3"], r"p\.csv:2: field 'quizzes' is not a Sudoku puzzle"),
        (["quizzes,solutions", f"{SOLVED},{SOLVED}"], r"p\.csv:2: .* no empty cell"),
        (["quizzes,solutions", EASY], r"p\.csv:2: has 1 fields and the header 2"),
        (["quizzes,solutions", f"{EASY},{SOLVED[::-1]}"], "other numbers than the puzzle"),
        (["quizzes", "1..............."], r"p\.csv:2: .* several solutions"),
        (["quizzes,solutions"], r"p\.csv has no rows"),
    ],
)
def test_a_bad_row_is_named(tmp_path, lines, why):
    path = write(tmp_path / "p.csv", lines)
    with pytest.raises(DatasetError, match=why):
        sudoku.load(f"{path}?divide", "train")


def test_a_false_solution_is_found_when_the_puzzle_is_dealt(tmp_path):
    puzzle, other = puzzles(2)
    row = sudoku.PuzzleRow("p.csv:7", "7", sudoku_text(puzzle.clues), sudoku_text(other.solution))
    with pytest.raises(DatasetError, match=r"p\.csv:7: the solution in the file is not"):
        sudoku.solve(row)
