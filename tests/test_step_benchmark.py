"""`benchmarks.step`: what its arms imitate, and what counts as a repeated error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import airl, step
from pettingllms.evaluation.step import SOLVER, Teacher, wrong
from pettingllms.models import PARTS
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.rollout.episode import tasks_of_step
from pettingllms.rollout.trajectory import Trajectory
from tests.test_step_teacher import Stairs, corrected


@pytest.fixture(scope="module")
def policies() -> PolicySet:
    return load_policies(PARTS, {role: role for role in step.ROLES})


def played(policies: PolicySet, teacher: Teacher) -> list[Trajectory]:
    tasks = tasks_of_step(airl.environment("train"), "plan_path", 0, 12, seed=0)
    return step.played(policies, tasks, "train", 0, teacher)


@pytest.mark.slow
def test_arms_imitate_episodes_that_succeed_and_the_mask_leaves_out_wrong_replies(
    policies: PolicySet,
) -> None:
    episodes = played(policies, Teacher(SOLVER))
    won = [group for episode in episodes if episode.success for group in episode.groups]
    assert 0 < len(won) < sum(len(episode.groups) for episode in episodes)
    for mask in (True, False):
        kept = [g for g in won if not (mask and wrong(g.chosen))]
        samples = step.imitated(policies, episodes, mask)
        assert {role: len(rows) for role, rows in samples.items()} == {
            role: sum(group.key.role == role for group in kept) for role in step.ROLES
        }
        prompts = [sample.prompt_ids for rows in samples.values() for sample in rows]
        assert sorted(prompts) == sorted(group.prompt_ids for group in kept)
    assert any(wrong(group.chosen) for group in won)


@pytest.mark.slow
def test_the_expert_makes_no_error_and_a_judge_corrects_none(policies: PolicySet) -> None:
    for episode in played(policies, step.Expert(SOLVER)):
        assert episode.success
        assert {group.policy for group in episode.groups} == {SOLVER}
    watched = played(policies, step.Judge(SOLVER))
    assert {g.policy for episode in watched for g in episode.groups} == {*step.ROLES}
    assert sum(step.errors(episode)["wrong"] for episode in watched) > 0


@pytest.mark.slow
def test_sft_makes_what_it_imitates_likelier(policies: PolicySet) -> None:
    data = step.imitated(policies, played(policies, step.Expert(SOLVER)))
    role = step.ROLES[0]

    def likelihood() -> float:
        pairs = [(role, sample) for sample in data[role]]
        logp = policies.sample_logprobs(pairs, step.BATCH_TOKENS, 1.0)
        return float(sum(tokens.sum() for tokens in logp.values()))

    before = likelihood()
    assert step.tune(policies, data, 2e-3, 3, seed=0) > 0
    assert likelihood() > before


def test_an_error_is_repeated_where_a_role_says_the_same_wrong_thing_on_the_same_cell() -> None:
    (episode,) = corrected(Stairs(max_turns=4), guide=["go"], walker=["1"])
    shown = [("at a proposal L", "U"), ("at a proposal R", "U"), ("at b", "U"), ("at a", "D")]
    walker = next(g for g in episode.groups if g.key.role == "walker")
    groups = [
        replace(
            walker,
            prompt=prompt,
            candidates=(
                replace(walker.chosen, completion=replace(walker.chosen.completion, text=text)),
            ),
        )
        for prompt, text in shown
    ]
    counted = step.errors(replace(episode, groups=tuple(groups)))
    assert counted == {"replies": 4, "wrong": 4, "repeated": 1}


def test_a_ratio_of_sums_is_the_mean_of_its_values_and_weighs_tasks_by_their_replies() -> None:
    values = step.per_reply(np.array([[1.0, 0.0]]), np.array([[3.0, 1.0]]))
    assert values.mean() == pytest.approx(1 / 4)
    assert step.per_reply(np.zeros((1, 2)), np.zeros((1, 2))).tolist() == [[0, 0]]
