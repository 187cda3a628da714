"""Gradients added shard by shard: the sum has no order, and is that of the whole step."""

from __future__ import annotations

import logging
import random
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pettingllms.errors import NonFiniteError
from pettingllms.policies.loading import load_policies
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.batch import PolicyBatch, step_batches
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.estimators import ESTIMATORS
from pettingllms.trainers.estimators.group_relative import AtGrpo, GroupRelative
from pettingllms.trainers.metrics import Clock, LossMeter
from pettingllms.trainers.play import by_unit
from pettingllms.trainers.streamed import GradientSum
from pettingllms.types import Sample
from tests.graded_env import GradedEnv
from tests.tiny_lm import save_tiny

torch.set_num_threads(1)
ROLES = {"writer": "writer", "reader": "reader"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def a_trainer(model_dir, **changes):
    config = ATGRPOConfig(
        **{
            "env": "graded",
            "num_generations": 4,
            "tasks_per_step": 5,
            "tasks_per_shard": 2,
            "max_steps": 4,
            "max_completion_length": 8,
            "temperature": 2.0,
            "learning_rate": 1e-2,
            "tokens_per_batch": 400,
            "stream_gradients": True,
            **changes,
        }
    )
    policies = load_policies(model_dir, ROLES, lora_r=4, lora_alpha=8, seed=1)
    return ATGRPO(resolve(config, GradedEnv()), GradedEnv(), policies)


def weights(trainer):
    return {
        f"{name}/{key}": tensor
        for name in trainer.policies.names
        for key, tensor in trainer.policies.state(name).items()
    }


def same(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def summed(parts, order):
    """The gradient that the parts add up to in this order."""
    parameters = [torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(2))]
    own = GradientSum("coder")
    for at in order:

        def backward(_: PolicyBatch, meter: LossMeter, at: int = at) -> None:
            parameters[0].grad = torch.tensor(parts[at][:4])
            meter._sums["loss"] = torch.tensor(parts[at][4])

        own.add({(at,): []}, parameters, backward)
        assert parameters[0].grad is None
        parameters[0].grad = torch.ones(4)  # as an optimizer leaves it behind
    meter = LossMeter("coder")
    own.give(parameters, 3, meter)
    return parameters[0].grad, meter._sums["loss"]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.lists(st.floats(-1e4, 1e4, width=32), min_size=5, max_size=5), min_size=1, max_size=8
    ),
    st.randoms(use_true_random=False),
)
def test_the_sum_of_gradients_has_no_order_and_is_exact(parts, order):
    first, loss = summed(parts, range(len(parts)))
    again, same_loss = summed(parts, order.sample(range(len(parts)), len(parts)))
    assert first is not None
    assert torch.equal(first, again)
    assert torch.equal(loss, same_loss)
    exact = torch.tensor(parts, dtype=torch.float64)[:, :4].sum(0) / 3
    torch.testing.assert_close(first.double(), exact, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_gradient_that_no_sum_can_hold_is_refused(value):
    with pytest.raises(NonFiniteError, match=r"policy 'coder' is (nan|inf)"):
        summed([[value] * 5], [0])


@pytest.mark.parametrize(
    "changes",
    [{}, {"loss_type": "grpo", "beta": 0.1}, {"loss_type": "dr_grpo", "silent_groups": "count"}],
    ids=["dapo", "grpo-kl", "dr_grpo-count"],
)
def test_added_by_shard_a_step_is_that_of_the_whole_batch(changes, model_dir):
    whole = a_trainer(model_dir, stream_gradients=False, **changes)
    parts = a_trainer(model_dir, **changes)
    before = weights(whole)
    (played, metrics), (again, streamed) = whole.train_step(), parts.train_step()
    assert played == again
    assert parts.sums
    measured = {name for name in metrics if name.split("/")[0] in ROLES}
    assert {name: streamed[name] for name in measured} == pytest.approx(
        {name: metrics[name] for name in measured}, rel=1e-3, abs=1e-5
    )
    # Adam's first step is the sign of the gradient: only where that is all but 0 may it differ.
    moved = torch.cat([(weights(whole)[n] - before[n]).flatten() for n in before])
    apart = torch.cat([(weights(whole)[n] - weights(parts)[n]).flatten() for n in before])
    assert moved.abs().max() > 0
    assert (apart.abs() > 1e-3 * moved.abs().max()).float().mean() < 0.01


def test_shards_that_come_in_another_order_change_no_bit_of_any_step(model_dir):
    one, other = a_trainer(model_dir), a_trainer(model_dir)
    for step in range(2):
        _, metrics = one.train_step()
        played = other.rollout(tasks_of(other), Clock())
        units = by_unit(other.config, other.unit, other.credited(played))
        batches = step_batches(other.config, other.casting.learners, units)
        for policy, own in batches.items():
            order = random.Random(step).sample(sorted(own.units.items()), len(own.units))
            for number, samples in order:
                other.add(policy, {number: samples})
        left = {name: PolicyBatch((), own.replies, own.tokens) for name, own in batches.items()}
        found = other.update(left)
        other.publish()
        other.step += 1
        assert same(weights(one), weights(other))
        assert found["writer/loss"] == metrics["writer/loss"]
        assert found["reader/grad_norm"] == metrics["reader/grad_norm"]


def tasks_of(trainer: ATGRPO) -> Any:
    from pettingllms.rollout.episode import tasks_of_step

    config = trainer.config
    return tasks_of_step(trainer.env, config.env, trainer.step, config.tasks_per_step, config.seed)


def test_a_step_that_fails_leaves_no_gradient_behind(model_dir):
    one, other = a_trainer(model_dir), a_trainer(model_dir)
    other.add("writer", {(7,): [Sample((5, 6), (9, 8), (-5.0, -5.5), 1.0)]})
    other.env, env = None, other.env
    with pytest.raises(AttributeError):
        other.train_step()
    other.env = env
    one.train_step()
    other.train_step()
    assert same(weights(one), weights(other))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_iterations": 2}, "num_iterations 2 computes each shard again"),
        ({"scale_rewards": "batch"}, "divides by the deviation over all shards"),
        ({"loss_type": "grpo", "entropy_coef": 0.1}, "entropy_coef is a mean over tokens"),
        ({"estimator": "rae"}, "estimator rae does not say"),
        ({"estimator": "gdpo"}, "estimator gdpo does not say"),
    ],
    ids=["iterations", "batch", "entropy", "rae", "gdpo"],
)
def test_what_couples_shards_is_waited_for_and_said_once(changes, why, model_dir, caplog):
    with caplog.at_level(logging.WARNING):
        trainer = a_trainer(model_dir, **changes)
    assert not trainer.sums
    (record,) = caplog.records
    assert why in record.getMessage()
    assert "updates wait for all shards" in record.getMessage()


@pytest.mark.parametrize(
    ("changes", "unit"),
    [
        ({}, "decision"),
        ({"stream_gradients": False}, None),
        ({"estimator": "grpo"}, "shard"),
        ({"estimator": "look_ahead"}, "shard"),
        ({"shape": "full", "num_generations": 2}, "shard"),
        ({"loss_type": "grpo", "loss_norm": "roots"}, "shard"),
        ({"reward_transform": "shared"}, "shard"),
        ({"estimator": "tests.test_streamed:ByTask"}, "shard"),
        ({"estimator": "tests.test_streamed:ByDecision"}, "decision"),
    ],
    ids=[
        *("at_grpo", "not-asked-for", "episodes", "look-ahead", "forks", "roots", "others-rewards"),
        *("baseline-of-a-task", "declared"),
    ],
)
def test_what_follows_from_one_decision_is_added_with_it_and_nothing_else_is(
    changes, unit, model_dir
):
    trainer = a_trainer(model_dir, **changes)
    assert trainer.unit == unit
    trainer.train_step()  # as it is: no batch is too small, and no sum is left open
    assert not any(own.meters for own in trainer.sums.values())


class ByTask(AtGrpo):
    """Compares more than the decision, in the way that a subclass need not override a method for."""

    key: ClassVar[tuple[str, ...]] = ("task",)


class ByDecision(AtGrpo):
    by_decision = True


def test_an_estimator_that_overrides_the_comparison_has_to_say_that_it_looks_at_one_task():
    class Mine(AtGrpo):
        def advantages(self, groups):
            return [0.0 for group in groups for _ in group.candidates]

    class Declared(Mine):
        by_task = True

    class Named(GroupRelative):
        key = ("task", "role")

    assert [kind.by_task for kind in (Mine, Declared, Named)] == [False, True, True]
    told = {name: ESTIMATORS.load(name).by_task for name in ESTIMATORS.own}
    assert {name for name, by_task in told.items() if by_task} == {
        *("at_grpo", "look_ahead", "grpo", "decision", "agent", "turn", "agent_turn", "gigpo")
    }
