"""pass@k, intervals and pairing, against numbers worked out by hand or by brute force."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.errors import ConfigError
from pettingllms.evaluation.scores import intervals, pass_at, pass_at_k
from pettingllms.statistics import Difference, Estimate, differences, p_value, tango, wilson


@pytest.mark.parametrize(
    ("games", "won", "k", "chance"),
    [
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (5, 2, 1, 0.4),
        (5, 2, 2, 0.7),  # 1 - (3 * 2) / (5 * 4)
        (5, 2, 4, 1.0),  # four of five cannot all be among the three lost ones
        (10, 3, 5, 11 / 12),  # 1 - 21 / 252
        (200, 1, 100, 0.5),
        (4, 0, 4, 0.0),
    ],
)
def test_pass_at_k_is_the_unbiased_estimate(games: int, won: int, k: int, chance: float) -> None:
    assert pass_at_k(games, won, k) == pytest.approx(chance, abs=1e-12)


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_win(
    verdicts: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(verdicts)))
    draws = [any(draw) for draw in itertools.combinations(verdicts, k)]
    estimate = pass_at_k(len(verdicts), sum(verdicts), k)
    assert estimate == pytest.approx(sum(draws) / len(draws))


@pytest.mark.parametrize(("games", "won", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (0, 0, 1)])
def test_pass_at_more_games_than_were_played_is_refused(games: int, won: int, k: int) -> None:
    with pytest.raises(ConfigError, match=f"pass@{k}"):
        pass_at_k(games, won, k)


def test_which_k_are_reported() -> None:
    assert [pass_at(games) for games in (1, 2, 3, 4, 5, 8, 10)] == [
        [],
        [2],
        [2, 3],
        [2, 4],
        [2, 4, 5],
        [2, 4, 8],
        [2, 4, 8, 10],
    ]


# ------------------------------------------------------------------------------------- intervals


def test_the_interval_is_that_of_resampled_means() -> None:
    values = [0.0, 0.25, 0.5, 0.5, 1.0, 1.0, 1.0, 0.0]
    estimate = intervals([{"x": value} for value in values], seed=7)["x"]
    picks = np.random.default_rng(7).integers(8, size=(2000, 8))
    means = sorted(sum(values[i] for i in row) / 8 for row in picks.tolist())
    # The 2.5th and 97.5th of 2000 sorted means, between neighbours as NumPy's percentile.
    low = means[49] + 0.975 * (means[50] - means[49])
    high = means[1949] + 0.025 * (means[1950] - means[1949])
    assert estimate == pytest.approx((0.53125, low, high))
    assert estimate == pytest.approx((0.53125, 0.25, 0.8125))


def test_intervals_are_those_of_the_mean_over_tasks() -> None:
    rng = np.random.default_rng(0)
    draws = rng.random(400) < 0.3
    estimate = intervals([{"success": float(draw)} for draw in draws], seed=1)["success"]
    error = np.sqrt(draws.mean() * (1 - draws.mean()) / 400)
    assert estimate.mean == draws.mean()
    assert estimate.low == pytest.approx(draws.mean() - 1.96 * error, abs=0.005)
    assert estimate.high == pytest.approx(draws.mean() + 1.96 * error, abs=0.005)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(100):
        tasks = [{"x": float(value)} for value in rng.normal(5.0, 2.0, 60)]
        low, high = intervals(tasks, seed=trial)["x"][1:]
        hits += low <= 5.0 <= high
    assert 86 <= hits <= 100


@pytest.mark.parametrize("tasks", [20, 30, 50, 75, 100])
@pytest.mark.parametrize("share", [0.97, 0.98, 0.99, 0.995, 0.02])
def test_the_interval_of_a_share_near_the_ends_covers_the_truth(tasks: int, share: float) -> None:
    """Exact: every number of successes with its probability, not a simulation."""
    covered = 0.0
    for wins in range(tasks + 1):
        values = [{"success": 1.0}] * wins + [{"success": 0.0}] * (tasks - wins)
        low, high = intervals(values, seed=0)["success"][1:]
        chance = math.comb(tasks, wins) * share**wins * (1 - share) ** (tasks - wins)
        covered += chance * (low <= share <= high)
    # Percentiles of the bootstrap reach 0.45 for 0.97 of 20 tasks.
    assert covered >= 0.95


@pytest.mark.parametrize("tasks", [20, 50, 100])
@pytest.mark.parametrize("spread", [0.5, 5.0, 1000.0])
@pytest.mark.parametrize("share", [0.97, 0.99])
def test_the_interval_of_a_share_knows_that_episodes_of_a_task_succeed_together(
    tasks: int, spread: float, share: float
) -> None:
    """Four episodes a task; a small `spread` makes tasks almost always or almost never succeed."""
    rng, hits, trials = np.random.default_rng(1), 0, 2000
    for _ in range(trials):
        chances = rng.beta(share * spread, (1 - share) * spread, tasks)
        low, high = wilson(rng.binomial(4, chances) / 4)
        hits += low <= share <= high
    assert hits / trials >= 0.93


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_the_interval_of_a_share_holds_its_mean_and_stays_between_0_and_1(wins: list[int]) -> None:
    mean, low, high = intervals([{"a/parse_error": n / 4} for n in wins], seed=0)["a/parse_error"]
    assert 0 <= low <= mean <= high <= 1
    if len(set(wins)) == 1:
        assert high - low > 0  # agreement of a few tasks is not certainty


def test_only_scores_that_are_shares_by_definition_get_the_interval_of_a_share() -> None:
    shares = ("success", "pass@4", "difficulty/3/success", "win/a", "draws", "x/parse_error",
              "x/truncated", "x/status/ok", "coder/first_passed")  # fmt: skip
    others = ("return", "return/a", "tokens", "turns", "x/reward", "x/turns", "x/first_own")
    estimates = intervals([dict.fromkeys((*shares, *others), 1.0)] * 20, seed=0)
    # By hand: (40 + z^2 - 1 - z sqrt(z^2 - 2 - 1/20 + 4)) / (2 (20 + z^2)).
    assert all(estimates[name][1:] == pytest.approx((0.7995467, 1.0)) for name in shares)
    assert all(estimates[name] == (1.0, 1.0, 1.0) for name in others)


def test_tasks_without_a_score_are_left_out_of_it() -> None:
    estimates = intervals([{"x": 1.0, "y": 0.0}, {"x": 3.0}], seed=0)
    assert estimates["x"].mean == 2.0
    assert estimates["y"] == Estimate(0.0, 0.0, 0.0)


# --------------------------------------------------------------------------------------- pairing


def test_differences_are_paired_by_task_whatever_the_order() -> None:
    first = {"a": {"x": 0.0}, "b": {"x": 0.5}, "c": {"x": 1.0}, "only": {"x": 9.0}}
    second = {"c": {"x": 1.0}, "a": {"x": 1.0}, "b": {"x": 0.25}}
    gains = differences(first, second, seed=0)
    gain = gains["x"]
    assert gain.mean == pytest.approx((1.0 - 0.25 + 0.0) / 3)
    assert (gain.tasks, gain.more, gain.less) == (3, 1, 1)
    interval = intervals([{"x": 1.0}, {"x": -0.25}, {"x": 0.0}], seed=0)["x"]
    assert gain[:3] == pytest.approx(interval)
    assert not gain.clear


def test_the_same_gain_on_every_task_is_certain_however_much_tasks_differ() -> None:
    rng = random.Random(0)
    first = {str(n): {"x": rng.random()} for n in range(50)}
    second = {task: {"x": scores["x"] + 0.125} for task, scores in first.items()}
    gain = differences(first, second, seed=0)["x"]
    assert gain[:3] == pytest.approx((0.125, 0.125, 0.125))
    assert gain.clear
    apart = [intervals(list(scores.values()), 0)["x"] for scores in (first, second)]
    assert apart[0].high > apart[1].low  # unpaired, the intervals overlap


def test_a_score_that_one_side_lacks_has_no_difference() -> None:
    assert differences({"a": {"x": 1.0}}, {"a": {"y": 1.0}}, seed=0) == {}
    both = differences({"a": {"x": 1.0}, "b": {}}, {"a": {"x": 0.0}, "b": {"x": 5.0}}, seed=0)
    assert both == {"x": Difference(-1.0, -1.0, -1.0, 1, 0, 1, 1.0, 1.0)}


def test_the_interval_of_a_paired_difference_of_shares_covers_the_truth_also_at_the_ceiling() -> (
    None
):
    """Exact: every count of tasks that one side alone solves, with its probability."""
    for tasks, more, less in (
        (100, 0.01, 0.0),
        (100, 0.02, 0.01),
        (50, 0.1, 0.05),
        (50, 0.02, 0.02),
    ):
        covered = 0.0
        for rose in range(tasks + 1):
            for fell in range(tasks + 1 - rose):
                ways = math.comb(tasks, rose) * math.comb(tasks - rose, fell)
                same = tasks - rose - fell
                chance = ways * more**rose * less**fell * (1 - more - less) ** same
                if chance > 1e-7:
                    low, high = tango(np.array([1.0] * rose + [-1.0] * fell + [0.0] * same))
                    covered += chance * (low - 1e-9 <= more - less <= high + 1e-9)
        # Percentiles of the bootstrap reach 0.64 for the first of these.
        assert covered >= 0.95


def test_agreement_on_every_task_is_not_certainty() -> None:
    # By hand, where no task tells the sides apart: z^2 / (n + z^2).
    assert tango(np.zeros(100)) == pytest.approx((-0.0369935, 0.0369935), abs=1e-7)
    assert p_value(np.zeros(100)) == 1.0


def test_a_verdict_needs_the_interval_and_the_exact_test() -> None:
    first = {str(n): {"success": 0.0} for n in range(100)}
    second = {task: {"success": float(int(task) < 4)} for task in first}
    gain = differences(first, second, seed=0)["success"]
    assert gain.low > 0
    assert (gain.p, gain.verdict) == (0.125, "not decided")  # McNemar: 2 / 2^4
    decided = gain._replace(p_holm=0.01)
    assert (decided.verdict, decided.row()["verdict"]) == ("higher", "higher")
    assert decided._replace(low=-0.01).verdict == "not decided"
    assert decided._replace(mean=-0.04, low=-0.1, high=-0.01).verdict == "lower"


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=10))
def test_the_test_is_the_share_of_all_changes_of_signs(gains: list[float]) -> None:
    sizes = np.abs(gains)
    sums = [abs(np.dot(signs, sizes)) for signs in itertools.product((-1, 1), repeat=len(gains))]
    share = np.mean([total >= abs(sum(gains)) for total in sums])
    assert p_value(np.array(gains)) == pytest.approx(share)


def test_other_scores_are_corrected_for_each_other_and_success_is_not() -> None:
    first = {str(n): {"success": 0.0, "a/parse_error": 0.0, "b/parse_error": 0.0} for n in range(9)}
    second = {task: dict.fromkeys(scores, 1.0) for task, scores in first.items()}
    gains = differences(first, second, seed=0)
    ps = {name: gain.p_holm / gain.p for name, gain in gains.items()}
    assert ps == {"success": 1.0, "a/parse_error": 2.0, "b/parse_error": 2.0}
