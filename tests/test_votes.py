"""Votes at inference: of three answers the most frequent, and MALT's score of it in an evaluation."""

from __future__ import annotations

import operator

import pytest

from pettingllms.envs.math_v0 import raw_env as math_env
from pettingllms.envs.search_v0 import raw_env as search_env
from pettingllms.evaluation.scores import majority, scores_by_task, voted
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.types import Candidate, Completion, Group, GroupKey, Task
from tests.test_estimators_golden import cases


def episode(answer: str | None, success: bool, number: int) -> Trajectory:
    completion = Completion((1,), (2,), (), "said", truncated=False, version=0)
    info = {"success": success, "answer": answer}
    candidate = Candidate(completion, 0.0, 0.0, 0.0, chosen=True, info=info)
    key = GroupKey("q", number, "judge_0", "judge", 0, 0, "0")
    group = Group(key, "judge", "prompt", (1,), (candidate,))
    return Trajectory.of(Task("q", 0), number, [group], early={}, cooperative=True)


def played(*answers: str | None, right: str) -> list[Trajectory]:
    return [episode(answer, answer == right, n) for n, answer in enumerate(answers)]


@pytest.mark.parametrize(
    ("system", "name", "votes", "tie"),
    [
        ("malt", "answer by majority of 3 (MV@3)", "answers", "tie, first to appear"),
        ("llm_ens", "baseline: majority vote", "votes", "tie"),
    ],
)
def test_a_majority_is_that_of_the_table(system: str, name: str, votes: str, tie: str) -> None:
    case = cases(system)[name]
    inputs, expected = case["inputs"], case["expected"]
    assert inputs[votes][majority(inputs[votes], operator.eq)] == expected["majority"]
    assert inputs["tie"][majority(inputs["tie"], operator.eq)] == expected[tie]


def test_the_answer_of_most_episodes_is_the_teams() -> None:
    assert voted(played("7", "5", "7", right="7"))
    assert not voted(played("5", "7", "5", right="7"))
    assert not voted(played("5", "7", "6", right="7"))  # a tie goes to the first
    assert voted(played("7", "5", "6", right="7"))


def test_answers_that_a_grader_takes_for_equal_vote_together() -> None:
    assert not voted([*played("7", "0.5", "1/2", right="7")])


def test_an_episode_without_an_answer_does_not_vote() -> None:
    assert voted(played(None, None, "7", right="7"))
    assert not voted(played(None, None, right="7"))


def test_an_evaluation_with_three_samples_reports_the_vote() -> None:
    assert scores_by_task(played("7", "5", "7", right="7"))["q"]["maj@3"] == 1.0
    assert scores_by_task(played("5", "7", "5", right="7"))["q"]["maj@3"] == 0.0
    assert "maj@2" not in scores_by_task(played("7", "7", right="7"))["q"]
    unknown = scores_by_task(played(None, None, None, right="7"))["q"]
    assert "maj@3" not in unknown


def test_environments_with_answers_note_the_teams_and_show_it_to_nobody() -> None:
    math = math_env(agents="single", max_turns=2)
    math.reset(seed=0)
    math.step(r"\boxed{ 12 }")
    assert math._notes["answer"] == "12"
    assert "answer" not in math.infos["solver_0"]
    search = search_env(topology="single")
    search.reset(seed=0)
    search.step("<answer>The Crab.</answer>")
    assert search._notes["answer"] == "crab"
    assert "answer" not in search.infos.get("solver_0", {})
