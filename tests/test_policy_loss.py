"""The loss of one policy, against numbers worked out with pencil and paper."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.policies.packing import microbatches
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.losses import PolicyBatch, k3, policy_loss
from pettingllms.trainers.metrics import LossMeter
from pettingllms.types import Sample

torch.set_num_threads(1)
# A good reply of two tokens and a bad one of one token; what their tokens' ratios and entropies are now.
REPLIES = (
    Sample((5, 6), (9, 8), (-1.0, -1.0), 2.0),
    Sample((5, 6), (7,), (-1.0,), -1.0),
)
RATIOS = ((1.5, 0.5), (4.0,))
ENTROPIES = ((1.0, 2.0), (6.0,))
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo")


def a_config(**changes):
    return ATGRPOConfig(**{"max_completion_length": 10, **changes})


def loss_of(config, samples=REPLIES, origin=(0, 1), limit=1 << 20):
    """Loss of all micro-batches, its gradient by token of `REPLIES`, and metrics.

    Sample i is the reply `origin[i]`. The reference model is at twice the probability.
    """
    leaves = [torch.tensor(ratios).log().sub(1).requires_grad_() for ratios in RATIOS]
    total, meter = torch.zeros(()), LossMeter("p")
    for batch in microbatches(samples, limit, packed=False):
        size = batch.mask_BT.shape

        def rows(values, index=batch.index, size=size):
            table = torch.zeros(size)
            for row, i in enumerate(index):
                table[row, : len(values[origin[i]])] = values[origin[i]]
            return table

        logp_BT = rows(leaves)
        total = total + policy_loss(
            config,
            PolicyBatch.of(samples),
            batch,
            logp_BT,
            rows([torch.tensor(values) for values in ENTROPIES]),
            (logp_BT + math.log(2)).detach() if config.beta else None,
            meter,
        )
    gradient = torch.cat(torch.autograd.grad(total, leaves)).tolist()
    return total.item(), gradient, meter.metrics(0, 0)


# By token: 1.5 counts as 1.2 (loss -2.4, no gradient); 0.5 as it is (-1); 4 as it is, being bad (4).
@pytest.mark.parametrize(
    ("options", "loss", "gradient"),
    [
        ({"loss_type": "dapo"}, 0.6 / 3, [0, -1 / 3, 4 / 3]),
        ({"loss_type": "bnpo"}, 0.6 / 3, [0, -1 / 3, 4 / 3]),
        ({"loss_type": "grpo"}, (-1.7 + 4) / 2, [0, -1 / 4, 2]),
        ({"loss_type": "dr_grpo"}, 0.6 / 20, [0, -1 / 20, 4 / 20]),
        ({"loss_type": "dapo", "delta": 3.0}, -0.4 / 3, [0, -1 / 3, 0]),
        ({"loss_type": "dapo", "epsilon_high": 0.6}, 0.0, [-1, -1 / 3, 4 / 3]),
    ],
)
def test_the_loss_is_what_pencil_and_paper_give(options, loss, gradient):
    computed, grads, metrics = loss_of(a_config(**options))
    assert computed == pytest.approx(loss, abs=1e-6)
    assert grads == pytest.approx(gradient, abs=1e-6)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)


# Ratios of trainer to sampler by token: 1.5, 0.5; 4. By completion: 0.75; 4.
@pytest.mark.parametrize(
    ("mode", "low", "weights"),
    [
        ("token_truncate", None, [1.5, 0.5, 3]),
        ("token_truncate", 0.7, [1.5, 0.7, 3]),
        ("token_mask", None, [1.5, 0.5, 0]),
        ("token_mask", 0.7, [1.5, 0, 0]),
        ("sequence_truncate", None, [0.75, 0.75, 3]),
        ("sequence_mask", None, [0.75, 0.75, 0]),
        ("sequence_mask", 0.8, [0, 0, 0]),
    ],
)
def test_a_sampler_that_drifts_is_corrected_within_bounds_as_in_trl(mode, low, weights):
    names = {"correction": True, "mode": mode, "clip_min": low}
    config = a_config(**{f"vllm_importance_sampling_{name}": v for name, v in names.items()})
    loss, gradient, _ = loss_of(config)
    # The ratio to the trainer's own log-probabilities is 1: a token's part is -weight * advantage.
    parts = [-w * a / 3 for w, a in zip(weights, (2, 2, -1), strict=True)]
    assert loss == pytest.approx(sum(parts), abs=1e-6)
    assert gradient == pytest.approx(parts, abs=1e-6)


def test_the_kl_term_is_weighed_by_the_ratio():
    plain, penalised = loss_of(a_config()), loss_of(a_config(beta=0.1))
    kl = 2 - math.log(2) - 1  # k3 of a reference at twice the probability
    assert penalised[0] - plain[0] == pytest.approx(0.1 * (1.5 + 0.5 + 4) * kl / 3, abs=1e-6)
    assert penalised[2]["kl"] == pytest.approx((1.5 + 0.5 + 4) * kl / 3, abs=1e-6)
    # The derivative of ratio * k3: ratio * (k3 + 1 - 2) = -ratio * log(2), that of the reverse KL.
    added = [with_kl - without for with_kl, without in zip(penalised[1], plain[1], strict=True)]
    expected = [-0.1 * ratio * math.log(2) / 3 for ratio in (1.5, 0.5, 4)]
    assert added == pytest.approx(expected, abs=1e-6)


@given(st.floats(-5, 5))
def test_k3_is_never_negative_and_zero_where_both_agree(log_ratio):
    value = k3(torch.tensor(log_ratio, dtype=torch.float64)).item()
    assert value == pytest.approx(math.exp(log_ratio) - log_ratio - 1)
    assert value >= -1e-12  # rounding
    assert k3(torch.zeros(())).item() == 0


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_entropy_bonus_is_a_mean_over_tokens_whatever_the_loss_type(loss_type):
    plain, bonus = (
        loss_of(a_config(loss_type=loss_type, entropy_coef=coef)) for coef in (0.0, 0.5)
    )
    assert plain[0] - bonus[0] == pytest.approx(0.5 * (1 + 2 + 6) / 3, abs=1e-6)
    assert plain[2]["entropy"] == pytest.approx(3)


def test_clipped_tokens_are_counted():
    metrics = loss_of(a_config())[2]
    assert metrics["clip_ratio/high_mean"] == pytest.approx(1 / 3)
    assert metrics["clip_ratio/low_mean"] == 0  # the ratio 0.5 is of a good reply
    assert metrics["clip_ratio/region_mean"] == pytest.approx(1 / 3)


options = st.fixed_dictionaries(
    {
        "loss_type": st.sampled_from(LOSS_TYPES),
        "beta": st.sampled_from((0.0, 0.1)),
        "entropy_coef": st.sampled_from((0.0, 0.5)),
        "delta": st.sampled_from((None, 3.0)),
    }
)


def assert_same(left, right):
    assert left[0] == pytest.approx(right[0], rel=1e-5, abs=1e-6)
    assert left[1] == pytest.approx(right[1], rel=1e-5, abs=1e-6)
    assert left[2] == pytest.approx(right[2], rel=1e-5, abs=1e-6)


@pytest.mark.slow
@given(options, st.integers(1, 5), st.integers(1, 5))
def test_a_count_weighs_as_much_as_listing_the_reply_so_often(options, good, bad):
    config = a_config(**options)
    counted = [replace(REPLIES[0], count=good), replace(REPLIES[1], count=bad)]
    origin = (0,) * good + (1,) * bad
    assert_same(loss_of(config, counted), loss_of(config, [REPLIES[i] for i in origin], origin))


@pytest.mark.slow
@given(options, st.lists(st.integers(0, 1), max_size=6), st.integers(1, 12))
def test_micro_batches_add_up_to_the_whole(options, more, limit):
    config, origin = a_config(**options), [0, 1, *more]
    samples = [REPLIES[i] for i in origin]
    assert_same(loss_of(config, samples, origin, limit), loss_of(config, samples, origin))
