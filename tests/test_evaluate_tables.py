"""Tables and the picture of an evaluation: what is shown, in which order, how it is written."""

from __future__ import annotations

import pytest

from pettingllms.evaluation import Estimate, Evaluation
from pettingllms.evaluation.plots import bars
from pettingllms.evaluation.report import (
    as_markdown,
    as_text,
    matrix,
    number,
    scores_table,
    training_table,
)


def scored(**scores: float) -> Evaluation:
    named = {name.replace("__", "/").replace("AT", "@"): value for name, value in scores.items()}
    estimates = {name: Estimate(value, value, value) for name, value in named.items()}
    return Evaluation(("tool", "reasoner"), 4, 16, False, estimates)


def labels(table: list[list[str]]) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in table[1:]]


def test_scores_stand_in_a_fixed_order_and_numbers_in_theirs() -> None:
    team = scored(
        tool__tokens=1, passAT16=1, passAT2=1, difficulty__10__success=1, difficulty__9__success=1,
        success=1, tokens=3, reasoner__status__cpu_limit=0, tool__first_passed=1, tool__first_own=1,
    )  # fmt: skip
    table = scores_table({"base": team})
    assert labels(table) == [
        ("team", "success"),
        ("team", "success in one of 2"),
        ("team", "success in one of 16"),
        ("team", "success, difficulty 9"),
        ("team", "success, difficulty 10"),
        ("team", "tokens of an episode"),
        ("tool", "hidden tests passed, first completion"),
        ("tool", "own, first completion"),
        ("tool", "tokens of a completion"),
        ("reasoner", "program runs ended: cpu limit"),
    ]
    short = labels(scores_table({"base": team}, short=True))
    assert ("team", "tokens of an episode") not in short
    assert ("tool", "tokens of a completion") in short


def test_a_score_that_one_team_lacks_leaves_its_cell_empty() -> None:
    table = scores_table({"base": scored(success=0.5), "adapters": scored(turns=2)})
    assert table == [
        ["", "", "base", "adapters"],
        ["team", "success", "0.50 [0.50, 0.50]", ""],
        ["team", "turns", "", "2.00 [2.00, 2.00]"],
    ]
    assert as_text(table).splitlines() == [
        "               base               adapters",
        "team  success  0.50 [0.50, 0.50]",
        "      turns                       2.00 [2.00, 2.00]",
    ]
    assert as_markdown([["a|b"], ["c"]]) == "| a\\|b |\n| --- |\n| c |"


def test_a_role_that_earned_no_local_reward_has_no_row_of_zeros() -> None:
    base = scored(tool__first_local_reward=0, reasoner__first_local_reward=0, tool__tokens=0)
    team = scored(tool__first_local_reward=0.5, reasoner__first_local_reward=0)
    shown = [("tool", "local reward, first completion"), ("tool", "tokens of a completion")]
    assert labels(scores_table({"base": base, "adapters": team})) == shown
    assert labels(training_table({"before": [base], "after": [team]})) == shown


def test_numbers_keep_three_digits_or_so() -> None:
    assert [number(value) for value in (0.126, -9.5, 12.34, -123.4)] == [
        "0.13",
        "-9.50",
        "12.3",
        "-123",
    ]


def test_the_matrix_is_there_only_where_roles_were_exchanged_one_at_a_time() -> None:
    plain, other = scored(success=0.75), scored(success=0.25, tool__reward=2.0)
    assert matrix({"base": plain, "adapters": plain, "swapped": other}) == {}
    teams = {"adapters": plain, "tool by reasoner": other}
    assert matrix(teams) == {
        "tool": {"tool": plain.scores["success"], "reasoner": other.scores["success"]},
        "reasoner": {"reasoner": plain.scores["success"]},
    }
    rewards = {"adapters": other, "tool by reasoner": other}
    assert matrix(rewards, "{role}/reward")["tool"]["reasoner"].mean == 2.0


@pytest.mark.usefixtures("as_published")
def test_a_picture_is_drawn_with_and_without_success() -> None:
    won = {"base": scored(success=0.5, passAT2=0.75, tool__local_reward=-0.1)}
    mute = {"base": scored(tool__local_reward=0.5), "adapters": scored()}
    for teams in (won, mute):
        data = bars(teams, "quiz")
        assert data.startswith(b"\x89PNG")
        assert data == bars(teams, "quiz")
