from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.errors import GroupError, UnknownNameError
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import EPSILON
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.losses import PolicyBatch, policy_batches
from pettingllms.trainers.method_names import METHODS
from pettingllms.types import Candidate, Completion, Group, GroupKey, Task

PROMPT = (5, 6, 7)
NAMES = [name for name in sorted(METHODS.own) if "key" in vars(METHODS.load(name))]
"""Those in which every decision is a member of its group; `test_estimators_golden.py` has the others."""
TREE = [name for name in NAMES if METHODS.load(name).tree]
EPISODES = [name for name in NAMES if name not in TREE]


def a_candidate(reward, *, prompt=PROMPT, version=0, chosen=False):
    completion = Completion(prompt, (9, 2), (-0.5, -0.25), "a", truncated=False, version=version)
    return Candidate(completion, reward, team_reward=0.0, local_reward=reward, chosen=chosen)


def a_group(*rewards, task="t", episode=0, role="coder", turn=0, parent=0):
    key = GroupKey(task, episode, f"{role}_0", role, turn, parent, "00000000")
    candidates = [a_candidate(reward, chosen=k == 0) for k, reward in enumerate(rewards)]
    return Group(key, "policy", "prompt", PROMPT, tuple(candidates))


def with_returns(groups):
    """The groups as a finished rollout has them: each with the return of its episode."""
    episodes = defaultdict(list)
    for group in groups:
        episodes[group.key.task, group.key.episode].append(group)
    done = [
        Trajectory.of(Task(task, 0), episode, its, early={}, cooperative=True)
        for (task, episode), its in episodes.items()
    ]
    returns = {t.task.id + str(t.episode): t.groups[0].episode_return for t in done}
    return [replace(g, episode_return=returns[g.key.task + str(g.key.episode)]) for g in groups]


def values(groups, name="at_grpo", scale="group"):
    groups = with_returns(groups)
    config = ATGRPOConfig(scale_rewards=scale)
    return METHODS.load(name)(config).advantages(groups)


# What is compared with what, worked out by hand

# Two episodes of task x and two of task y: rewards of (coder turn 0, tester turn 0, coder turn 1).
PLAYED = {("x", 0): (1.0, 0.5, 1.5), ("x", 1): (0.0, 0.5, 0.5), ("y", 0): (2.0,), ("y", 1): (6.0,)}
MOVES = (("coder", 0), ("tester", 0), ("coder", 1))


def episodes():
    return [
        a_group(reward, task=task, episode=episode, role=role, turn=turn, parent=parent)
        for (task, episode), rewards in PLAYED.items()
        for parent, ((role, turn), reward) in enumerate(zip(MOVES, rewards, strict=False))
    ]


def test_at_grpo_compares_the_replies_to_one_prompt():
    groups = [a_group(0, 1, 1, 2), a_group(3, 7, role="tester", parent=1)]
    # mean 1, deviation sqrt(2 / 3); mean 5, deviation sqrt(8)
    expected = [-1.2245949, 0, 0, 1.2245949, -0.7070818, 0.7070818]
    assert values(groups) == pytest.approx(expected, abs=1e-6)


def test_decision_compares_all_decisions_of_a_task_by_the_return_of_their_episode():
    # Returns of x: 3 (three decisions) and 1 (three decisions): mean 2, deviation sqrt(6 / 5).
    x, y = 0.9127876, 0.7070818  # returns of y: 2 and 6, deviation sqrt(8)
    expected = [x, x, x, -x, -x, -x, -y, y]
    assert values(episodes(), "decision") == pytest.approx(expected, abs=1e-6)


def test_agent_compares_the_decisions_of_a_role():
    coder, tester = 0.8659504, 0.7070568  # deviations sqrt(4 / 3) of four and sqrt(2) of two
    expected = [coder, tester, coder, -coder, -tester, -coder, -0.7070818, 0.7070818]
    assert values(episodes(), "dr_mas") == pytest.approx(expected, abs=1e-6)


def test_turn_compares_the_decisions_of_a_turn():
    first, second = 0.8659504, 0.7070568
    expected = [first, first, second, -first, -first, -second, -0.7070818, 0.7070818]
    assert values(episodes(), "turn") == pytest.approx(expected, abs=1e-6)


def test_batch_scaling_divides_by_the_deviation_of_all_rewards():
    groups = [a_group(0, 2), a_group(3, 7, task="u")]
    scale = statistics.stdev([0, 2, 3, 7]) + EPSILON
    expected = [-1 / scale, 1 / scale, -2 / scale, 2 / scale]
    assert values(groups, scale="batch") == pytest.approx(expected, abs=1e-6)


def test_batch_scaling_knows_the_rewards_of_one_policy_only():
    """Roles may be paid on scales of their own: a coder in points, a tester in hundreds."""
    coder, tester = a_group(0.0, 1.0), replace(a_group(0.0, 500.0, role="tester"), policy="other")
    estimator = METHODS.load("at_grpo")(ATGRPOConfig(scale_rewards="batch"))
    together = estimator.advantages([coder, tester])
    assert together[:2] == estimator.advantages([coder])


def test_no_scaling_only_centres():
    assert values([a_group(0, 1, 5)], scale="none") == [-2.0, -1.0, 3.0]


def test_a_return_is_the_sum_of_what_the_executed_replies_of_all_roles_and_turns_earned():
    groups = [
        a_group(1.0, 9.0, task="x"),  # the first reply is the one that was executed
        a_group(0.25, task="x", role="tester", parent=1),
        a_group(4.0, task="x", turn=1, parent=2),
        a_group(8.0, task="x", episode=1),
    ]
    assert [g.episode_return for g in with_returns(groups)] == [5.25, 5.25, 5.25, 8.0]


def test_equal_completions_are_one_sample_where_they_are_worth_the_same_and_all_their_tokens_count():
    group = a_group(0, 0, 1)
    pairs = zip(group.candidates, (0.5, 0.5, -1.0), strict=True)
    group = replace(group, candidates=tuple(replace(c, advantage=value) for c, value in pairs))
    config = resolve(ATGRPOConfig())
    batch = policy_batches(config, {"policy": config}, [group])["policy"]
    assert [(sample.advantage, sample.count) for sample in batch.samples] == [(0.5, 2), (-1.0, 1)]
    assert (batch.replies, batch.tokens) == (3, 6)
    assert PolicyBatch.of(batch.samples).tokens == 6


# Properties

# Eighths are exact in binary: shifting and scaling them by whole numbers loses nothing.
eighths = st.integers(-80, 80).map(lambda number: number / 8)
tree_rewards = st.lists(st.lists(eighths, min_size=2, max_size=6), min_size=1, max_size=5)


@st.composite
def sampled_groups(draw):
    """Groups of two tasks, two roles and two turns, with different numbers of candidates."""
    groups = []
    for parent, rewards in enumerate(draw(tree_rewards)):
        task, role = draw(st.sampled_from("xy")), draw(st.sampled_from(("coder", "tester")))
        turn, episode = draw(st.integers(0, 1)), draw(st.integers(0, 1))
        key = {"task": task, "role": role, "turn": turn, "episode": episode, "parent": parent}
        groups.append(a_group(*rewards, **key))
    return groups


def change(groups, edit):
    return [
        replace(g, candidates=tuple(replace(c, reward=edit(c.reward)) for c in g.candidates))
        for g in groups
    ]


def split(groups, flat):
    pieces = iter(flat)
    return [[next(pieces) for _ in group.candidates] for group in groups]


@pytest.mark.slow
@given(sampled_groups(), st.integers(-50, 50), st.sampled_from(("group", "batch", "none")))
def test_adding_a_constant_to_all_rewards_changes_nothing(groups, shift, scale):
    shifted = change(groups, lambda reward: reward + shift)
    assert values(shifted, scale=scale) == pytest.approx(values(groups, scale=scale), abs=1e-5)


@pytest.mark.slow
@given(sampled_groups(), st.integers(1, 50))
def test_scaling_all_rewards_changes_nothing_but_without_deviation(groups, factor):
    scaled = change(groups, lambda reward: reward * factor)
    # The epsilon beside the deviation, at least 1/8 / sqrt(6) here, is all that may show.
    assert values(scaled) == pytest.approx(values(groups), rel=0.01, abs=1e-9)
    plain = [value * factor for value in values(groups, scale="none")]
    assert values(scaled, scale="none") == pytest.approx(plain, rel=1e-5, abs=1e-5)


@given(sampled_groups(), st.sampled_from(NAMES), st.sampled_from(("group", "none")))
def test_advantages_of_a_comparison_group_add_up_to_zero(groups, name, scale):
    totals: dict[tuple[object, ...], float] = defaultdict(float)
    for group, advantages in zip(groups, split(groups, values(groups, name, scale)), strict=True):
        compared = tuple(getattr(group.key, field) for field in METHODS.load(name).key)
        totals[compared] += sum(advantages)
    assert list(totals.values()) == pytest.approx([0.0] * len(totals), abs=1e-4)


@pytest.mark.slow
@given(sampled_groups(), st.sampled_from(NAMES), st.randoms(use_true_random=False))
def test_the_order_of_groups_does_not_matter(groups, name, random):
    order = random.sample(range(len(groups)), len(groups))
    expected = split(groups, values(groups, name))
    moved = [groups[index] for index in order]
    for index, advantages in zip(order, split(moved, values(moved, name)), strict=True):
        assert advantages == pytest.approx(expected[index], abs=1e-5)


@pytest.mark.slow
@given(sampled_groups(), st.randoms(use_true_random=False))
def test_the_order_of_candidates_does_not_matter(groups, random):
    group, advantages = groups[0], values(groups[:1])
    order = random.sample(range(len(advantages)), len(advantages))
    moved = replace(group, candidates=tuple(group.candidates[index] for index in order))
    assert values([moved]) == pytest.approx([advantages[index] for index in order], abs=1e-6)


@pytest.mark.slow
@given(sampled_groups())
def test_a_higher_reward_never_has_a_lower_advantage(groups):
    for group, advantages in zip(groups, split(groups, values(groups)), strict=True):
        pairs = sorted(zip((c.reward for c in group.candidates), advantages, strict=True))
        assert [advantage for _, advantage in pairs] == sorted(advantages)


@pytest.mark.slow
@given(sampled_groups(), st.sampled_from(NAMES), st.sampled_from(("group", "none")))
def test_two_tasks_never_share_a_group(groups, name, scale):
    ours = [group for group in groups if group.key.task == "x"]
    others = [group for group in groups if group.key.task == "y"]
    together = values([*ours, *others], name, scale)
    assert together == values(ours, name, scale) + values(others, name, scale)


@pytest.mark.parametrize("field", ["task", "episode", "role", "turn", "parent"])
def test_a_tree_group_shares_its_baseline_with_no_other_node(field):
    other = {"task": "other", "episode": 1, "role": "tester", "turn": 1, "parent": 1}[field]
    alone = values([a_group(0, 1)])
    assert values([a_group(0, 1), a_group(100, 300, **{field: other})])[:2] == alone


@pytest.mark.parametrize("reward", [0.0, 1.0, -0.1, 1e6])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_give_exactly_zero(reward, scale):
    groups = [a_group(reward, reward, reward), a_group(0, 1, task="u")]
    assert values(groups, scale=scale)[:3] == [0.0, 0.0, 0.0]


def test_rewards_that_differ_by_rounding_are_equal():
    assert values([a_group(0.1 + 0.2, 0.3)]) == [0.0, 0.0]
    assert values([a_group(0.3, 0.3 + 1e-6)]) != [0.0, 0.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("rewards", [(0.0, 1.0), ()])
def test_a_reward_that_is_no_number_is_never_taken_for_no_variance(bad, rewards):
    assert not torch.isfinite(torch.tensor(values([a_group(bad, bad, *rewards)]))).all()


# What is refused


@pytest.mark.parametrize("name", TREE)
def test_a_group_of_one_is_refused(name):
    with pytest.raises(GroupError, match=r"one candidate.*num_generations"):
        values([a_group(0, 1), a_group(1.0, task="u")], name)


@pytest.mark.parametrize("name", EPISODES)
def test_episodes_have_one_candidate_a_decision(name):
    assert values([a_group(0.0), a_group(1.0, episode=1)], name) == pytest.approx(
        [-0.7070068, 0.7070068], abs=1e-6
    )


def test_unequal_prompts_are_refused():
    key = a_group(1.0).key
    pair = (a_candidate(0.0), a_candidate(1.0, prompt=(5, 6, 8)))
    with pytest.raises(GroupError, match=r"candidate 1 of group .* answered another prompt"):
        Group(key, "policy", "prompt", PROMPT, pair)
    with pytest.raises(GroupError, match="candidate 0"):
        Group(key, "policy", "prompt", (5, 6), pair[:1])


def test_mixed_versions_are_refused():
    pair = (a_candidate(0.0, version=3), a_candidate(1.0, version=4))
    with pytest.raises(GroupError, match=r"mixes versions \[3, 4\] of policy 'policy'"):
        Group(a_group(1.0).key, "policy", "prompt", PROMPT, pair)


def test_an_empty_group_is_refused():
    with pytest.raises(GroupError, match="no candidates"):
        Group(a_group(1.0).key, "policy", "prompt", PROMPT, ())


def test_an_unknown_estimator_is_refused_with_a_suggestion():
    with pytest.raises(UnknownNameError, match="'at_gppo'; did you mean 'at_grpo'"):
        METHODS.load("at_gppo")


@pytest.mark.parametrize("name", NAMES)
def test_no_groups_have_no_advantages(name):
    assert values([], name) == []
