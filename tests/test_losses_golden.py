"""Losses and their gradients by token, against tables made by an independent script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pettingllms.policies.packing import microbatches
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.losses import PolicyBatch, policy_loss
from pettingllms.trainers.metrics import LossMeter
from pettingllms.types import Sample

torch.set_num_threads(1)
CASES = json.loads((Path(__file__).parent / "golden" / "losses.json").read_text())["cases"]
SETTINGS: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "bnpo = dapo on one process": {"loss_type": "dapo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "gspo (grpo with sequence ratio)": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
    },
    "cispo": {"loss_type": "cispo", "epsilon_high": 2.0},
    "sapo": {"loss_type": "sapo"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_loss_and_its_gradient_are_those_of_the_table(name):
    (case,) = (case for case in CASES if case["name"] == name)
    inputs, expected = case["inputs"], case["expected"]
    options: dict[str, Any] = {
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "max_completion_length": 4,
    } | SETTINGS[name]
    samples = [
        Sample((5,), tuple(range(7, 7 + len(old))), tuple(old), advantage)
        for old, advantage in zip(inputs["old logprobs"], inputs["advantages"], strict=True)
    ]
    (batch,) = microbatches(samples, 1 << 20, packed=False)
    leaves = [torch.tensor(inputs["logprobs"][i], requires_grad=True) for i in batch.index]
    logp_BT = torch.nn.utils.rnn.pad_sequence(leaves, batch_first=True)
    config = resolve(ATGRPOConfig(**options))
    policy_batch = PolicyBatch.of(samples)
    loss = policy_loss(config, policy_batch, batch, logp_BT, None, None, LossMeter("p"))
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-6)
    gradients = dict(zip(batch.index, torch.autograd.grad(loss, leaves), strict=True))
    for i, gradient in enumerate(expected["gradient"]):
        assert gradients[i].tolist() == pytest.approx(gradient, abs=1e-6)


@pytest.mark.parametrize("loss_type", ["bnpo", "dr_grpo", "dapo", "cispo"])
def test_a_ratio_for_whole_completions_is_refused_where_tokens_are_averaged(loss_type):
    with pytest.raises(ValueError, match=f"importance_sampling_level=sequence.*{loss_type}"):
        ATGRPOConfig(loss_type=loss_type, importance_sampling_level="sequence")


def test_the_bound_of_cispo_is_the_ratio_itself():
    assert ATGRPOConfig(loss_type="cispo").clip_above == 5.0
    with pytest.raises(ValueError, match=r"at least 1, got 0\.2"):
        ATGRPOConfig(loss_type="cispo", epsilon_high=0.2)
