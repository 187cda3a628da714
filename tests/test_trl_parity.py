"""The loss and its gradient against TRL's own, computed by a real `GRPOTrainer` on the same batch.

TRL computes padded rows of prompt and reply, with its fused head; this package packed ones, in
several micro-batches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import pad

from pettingllms.policies.loading import load_policies
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.losses import PolicyBatch, policy_batches, policy_loss
from pettingllms.trainers.metrics import LossMeter
from pettingllms.types import Candidate, Completion, Group, GroupKey, Sample
from tests.tiny_lm import save_tiny, tiny_tokenizer

torch.set_num_threads(1)
LIMIT = 9
"""Tokens of a reply at the most."""
SHARED = (
    "loss_type",
    "importance_sampling_level",
    "beta",
    "delta",
    "entropy_coef",
    "epsilon",
    "epsilon_high",
    "temperature",
)
DEFAULTS = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "beta": 0.0,
    "delta": None,
    "entropy_coef": 0.0,
}
# Every type without other terms and with all of them, and each term alone.
GRID = [
    dict(zip(DEFAULTS, values, strict=True))
    for values in (
        *(
            (name, "token", *terms)
            for name in ("grpo", "bnpo", "dr_grpo", "dapo")
            for terms in ((0.0, None, 0.0), (0.04, 3.0, 0.01))
        ),
        ("grpo", "token", 0.04, None, 0.0),
        ("bnpo", "token", 0.0, 3.0, 0.0),
        ("dr_grpo", "token", 0.0, None, 0.01),
        ("cispo", "token", 0.0, None, 0.0),
        ("cispo", "token", 0.04, None, 0.01),
        ("sapo", "token", 0.0, None, 0.0),
        ("sapo", "token", 0.04, None, 0.01),
        ("grpo", "sequence", 0.0, None, 0.0),
        ("grpo", "sequence", 0.04, 3.0, 0.01),
        ("sapo", "sequence", 0.04, None, 0.0),
    )
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def some_policies(model_dir, **options):
    """One policy some way from its base."""
    policies = load_policies(model_dir, {"coder": "coder"}, lora_r=4, lora_alpha=8, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policies.parameters("coder"):
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    policies.publish("coder")
    return policies


@pytest.fixture(scope="module")
def full(model_dir):
    return some_policies(model_dir, full=True, reference=True)


def some_samples(policies, temperature=1.0):
    """Replies of many lengths to three prompts, off-policy enough that all bounds are reached."""
    generator = torch.Generator().manual_seed(2)
    lengths = {(5, 6, 7): (4, 9, 1), tuple(range(20, 31)): (9, 2, 3, 5), (40, 41): (6, 7)}
    plain = [
        Sample(
            prompt,
            tuple(torch.randint(5, 250, (length,), generator=generator).tolist()),
            (0.0,) * length,
            torch.randn((), generator=generator).item(),
        )
        for prompt, replies in lengths.items()
        for length in replies
    ]
    (batch,) = policies.microbatches("coder", plain, 1 << 20)
    now_BT = policies.logprobs("coder", batch, temperature=temperature)[0].detach()
    then_BT = now_BT + torch.randn(now_BT.shape, generator=generator)
    rows = dict(zip(batch.index, then_BT, strict=True))
    return [
        Sample(
            sample.prompt_ids,
            sample.token_ids,
            tuple(rows[i][: len(sample.token_ids)].tolist()),
            sample.advantage,
        )
        for i, sample in enumerate(plain)
    ]


def our_loss(policies, samples, config, tokens_per_batch=40):
    """Loss, gradients and metrics of all micro-batches together."""
    meter, total = LossMeter("coder"), 0.0
    policy_batch = samples if isinstance(samples, PolicyBatch) else PolicyBatch.of(samples)
    batches = policies.microbatches("coder", policy_batch.samples, tokens_per_batch)
    assert len(batches) > 1
    for parameter in policies.parameters("coder"):
        parameter.grad = None
    for batch in batches:
        heat, reference = config.temperature, None
        if config.beta:
            reference = policies.reference_logprobs("coder", batch, temperature=heat)
        logp, entropy = policies.logprobs(
            "coder", batch, temperature=heat, entropy=True, entropy_grad=config.entropy_coef != 0
        )
        loss = policy_loss(config, policy_batch, batch, logp, entropy, reference, meter)
        loss.backward()
        total += loss.item()
    grads = [parameter.grad.clone() for parameter in policies.parameters("coder")]
    return total, grads, meter.metrics(0.0, 0.0)


def no_reward(completions: list[str], **_: Any) -> list[float | None]:
    return [0.0] * len(completions)


def trl_trainer(model_dir, tmp_path, config, peft_config=None, tokenizer=None) -> Any:
    arguments = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=LIMIT,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        **{name: getattr(config, name) for name in SHARED},
    )
    trainer: Any = GRPOTrainer(
        model=str(model_dir),
        reward_funcs=no_reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=tokenizer or tiny_tokenizer(),
        peft_config=peft_config,
    )
    trainer.current_gradient_accumulation_steps = 1  # `train()` would set it
    trainer.model.train()
    return trainer


def trl_inputs(samples):
    def padded(rows, side="right"):
        return pad([torch.tensor(row) for row in rows], 0, side)

    prompts, replies = [s.prompt_ids for s in samples], [s.token_ids for s in samples]
    mask = padded([[1] * len(reply) for reply in replies])
    return {
        "prompt_ids": padded(prompts, "left"),
        "prompt_mask": padded([[1] * len(prompt) for prompt in prompts], "left"),
        "completion_ids": padded(replies),
        "completion_mask": mask,
        "advantages": torch.tensor([s.advantage for s in samples]),
        "old_per_token_logps": padded([s.logprobs for s in samples]),
        "num_items_in_batch": mask.sum(),
    }


def trl_loss(trainer, samples, cut=()):
    inputs = trl_inputs(samples)
    for row, left_out in enumerate(cut):
        if left_out:
            inputs["completion_mask"][row] = 0
    inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
    if trainer.beta:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        with torch.no_grad():
            inputs["ref_per_token_logps"] = trainer._get_per_token_logps_and_entropies(
                trainer.ref_model, ids, mask, inputs["completion_ids"].shape[1]
            )[0]
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), {name: values[-1] for name, values in trainer._metrics["train"].items()}


def assert_same_gradients(ours, theirs):
    assert len(ours) == len(theirs) > 10
    assert max(grad.abs().max() for grad in theirs) > 1e-3
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("options", GRID, ids=lambda options: "-".join(map(str, options.values())))
def test_loss_gradient_and_metrics_are_those_of_trl(options, full, model_dir, tmp_path):
    high = 2.0 if options["loss_type"] == "cispo" else 0.28
    config = ATGRPOConfig(
        epsilon_high=high, temperature=1.0, max_completion_length=LIMIT, **options
    )
    samples = some_samples(full)
    loss, grads, metrics = our_loss(full, samples, config)
    trainer = trl_trainer(model_dir, tmp_path, config)
    state = full.state("coder")
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(state[name])
    expected, their_metrics = trl_loss(trainer, samples)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert_same_gradients(grads, [parameter.grad for parameter in trainer.model.parameters()])
    # Of a ratio for a whole completion, TRL counts completions and we count tokens.
    by_token = config.importance_sampling_level == "token"
    parts = ("low", "high", "region") if by_token and high == 0.28 else ()
    compared = {
        name: name for name in ("entropy", *(f"clip_ratio/{bound}_mean" for bound in parts))
    }
    if config.loss_type == "cispo":
        compared["clip_ratio/high_mean"] = "cispo_clip_ratio"
    if config.loss_type == "sapo":
        compared = {"entropy": "entropy"}
        assert metrics["clip_ratio/region_mean"] == 0
    if config.beta and by_token:
        compared["kl"] = "kl"
    for name, theirs in compared.items():
        assert metrics[name] == pytest.approx(their_metrics[theirs], rel=1e-4), name
        assert metrics[name] > 0


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_an_adapter_gets_the_gradients_that_trl_would_give_it(temperature, model_dir, tmp_path):
    policies = some_policies(model_dir)
    config = ATGRPOConfig(temperature=temperature, entropy_coef=0.01, max_completion_length=LIMIT)
    samples = some_samples(policies, temperature)
    loss, grads, _ = our_loss(policies, samples, config)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = trl_trainer(model_dir, tmp_path, config, lora)
    theirs = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
    state = policies.state("coder")
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(state[name.replace(".default.", ".")])
    expected, _ = trl_loss(trainer, samples)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)
    by_name = {name.replace(".default.", "."): p.grad for name, p in theirs.items()}
    assert_same_gradients(grads, [by_name[name] for name in state])


def as_groups(samples):
    """The samples by prompt; every second group earned nothing, and one completion was cut."""
    prompts = list(dict.fromkeys(sample.prompt_ids for sample in samples))
    groups = []
    for number, prompt in enumerate(prompts):
        of_prompt = [sample for sample in samples if sample.prompt_ids == prompt]
        candidates = tuple(
            Candidate(
                Completion(prompt, s.token_ids, s.logprobs, "", len(s.token_ids) == LIMIT, 0),
                *(0.0, 0.0, 0.0),
                chosen=index == 0,
                advantage=0.0 if number % 2 else s.advantage,
            )
            for index, s in enumerate(of_prompt)
        )
        key = GroupKey(f"t:{number}", 0, "coder_0", "coder", 0, 0, "")
        groups.append(Group(key, "coder", "", prompt, candidates))
    return groups


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("terms", [{}, {"beta": 0.04, "entropy_coef": 0.01}])
def test_groups_without_variance_and_cut_completions_count_as_in_trl(
    loss_type, terms, full, model_dir, tmp_path
):
    """From groups to the gradient, with `silent_groups=count`."""
    config = ATGRPOConfig(
        loss_type=loss_type,
        silent_groups="count",
        temperature=1.0,
        mask_truncated_completions=True,
        max_completion_length=LIMIT,
        **terms,
    )
    samples = some_samples(full)
    groups = as_groups(samples)
    batch = policy_batches(resolve(config), {"coder": resolve(config)}, groups)["coder"]
    assert batch.silent == 1
    assert batch.truncated == 2
    assert (len(batch.samples) < batch.replies - batch.truncated) is not bool(terms)
    loss, grads, _ = our_loss(full, batch, config, tokens_per_batch=20)
    trainer = trl_trainer(model_dir, tmp_path, config)
    state = full.state("coder")
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(state[name])
    # What TRL makes of the same completions: an advantage of 0, and a mask without tokens.
    prompts = [group.prompt_ids for group in groups]
    theirs = [
        replace(s, advantage=0.0 if prompts.index(s.prompt_ids) % 2 else s.advantage)
        for s in samples
    ]
    cut = [len(s.token_ids) == LIMIT for s in samples]
    expected, _ = trl_loss(trainer, theirs, cut)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert_same_gradients(grads, [parameter.grad for parameter in trainer.model.parameters()])


def test_the_batch_reaches_every_bound(full):
    samples = some_samples(full)
    (batch,) = full.microbatches("coder", samples, 1 << 20)
    ratio = torch.exp(full.logprobs("coder", batch)[0] - batch.old_logprobs_BT)
    advantage = batch.advantages_BT
    for bound in (
        (ratio < 0.8) & (advantage < 0),
        (ratio > 1.28) & (advantage > 0),
        (ratio > 3) & (advantage < 0),
    ):
        assert (bound & batch.mask_BT).any()
