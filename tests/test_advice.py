"""Advice from the gradients of a shared policy: its arithmetic, that it changes nothing, and what it refuses."""

from __future__ import annotations

import dataclasses
import filecmp
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pettingllms.assembly import plan_run
from pettingllms.errors import ConfigError
from pettingllms.policies.loading import load_policies
from pettingllms.session import run_training
from pettingllms.trainers.advice import BLOCKS, MEASURED, Advice, Reading, Sums, expected
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.callbacks import Callback
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.losses import PolicyBatch, RoleGradients
from pettingllms.trainers.metrics import LossMeter
from pettingllms.types import Sample
from pettingllms.viewer.folders import Source
from tests.graded_env import GradedEnv
from tests.tiny_lm import save_tiny, tiny_config

STEPS = BLOCKS + 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    # One layer: nothing here depends on how deep the model is.
    return save_tiny(tmp_path_factory.mktemp("model"), config=tiny_config(layers=1))


def config(model, run, **changes):
    values = {
        "env": "tests.letters_env:env",
        "env_args": '{"max_turns": 1}',
        "model": str(model),
        "device": "cpu",
        "lora_r": 4,
        "max_steps": STEPS,
        "num_generations": 4,
        "tasks_per_step": 2,
        "max_completion_length": 6,
        "learning_rate": 0.01,
        "eval_tasks": 0,
        "eval_steps": 0,
        "save_steps": 3,
        "policies": "shared",
        "output_dir": str(run),
    }
    return ATGRPOConfig(**{**values, **changes})


def sums_of(gradients_RTD, tokens=(3, 1)):
    """Sums of the gradients of steps; each role completes one prompt with so many tokens."""
    sums = Sums(("a", "b"))
    for parts in zip(*gradients_RTD, strict=True):
        samples = [
            Sample((1,), (5,) * count, (0.0,) * count, 1.0, role=role)
            for role, count in zip(sums.roles, tokens, strict=True)
        ]
        # What `RoleGradients` hands over: parts of a mean over all tokens.
        shared = {
            role: gradient * count / sum(tokens)
            for role, gradient, count in zip(sums.roles, parts, tokens, strict=True)
        }
        sums.add(shared, samples)
    return sums


def test_the_surplus_is_that_of_the_formula_written_out():
    torch.manual_seed(0)
    g = torch.randn(2, 19, 5) + torch.randn(2, 1, 5)
    share = (0.75, 0.25)
    blocks = [[g[i, k::BLOCKS].mean(0) for k in range(BLOCKS)] for i in range(2)]

    def surplus(kept):
        pairs = [(k, m) for k, m in itertools.product(kept, kept) if k != m]
        p = [[sum(blocks[i][k] * blocks[j][m] for k, m in pairs) / len(pairs) for j in range(2)]
             for i in range(2)]  # fmt: skip
        root = [g[i].square().mean(0).sqrt() for i in range(2)]
        root_all = (share[0] * g[0] + share[1] * g[1]).square().mean(0).sqrt()
        gains = []
        for i in range(2):
            alone = max(float((p[i][i] / root[i]).sum()), 0)
            mixed = max(float(sum(share[j] * (p[i][j] / root_all).sum() for j in range(2))), 0)
            gains.append((alone - mixed) / (alone + mixed) if alone + mixed else 0.0)
        cosine = float(p[0][1].sum() / (p[0][0].sum() * p[1][1].sum()).sqrt())
        return sum(gains) / 2, cosine

    reading = sums_of(g).read()
    value, cosine = surplus(range(BLOCKS))
    assert reading.surplus == pytest.approx(value, abs=1e-5)
    without = [surplus([k for k in range(BLOCKS) if k != out])[0] for out in range(BLOCKS)]
    mean = sum(without) / BLOCKS
    error = 1.25 * (7 / 8 * sum((v - mean) ** 2 for v in without)) ** 0.5
    assert reading.error == pytest.approx(error, abs=1e-5)
    assert reading.cosines["a, b"][0] == pytest.approx(cosine, abs=1e-5)
    assert reading.shares == {"a": 0.75, "b": 0.25}
    assert reading.overlap == 1.0


@pytest.mark.parametrize(("cosine", "recommendation"), [(1.0, "shared"), (-1.0, "per-role")])
def test_noise_hides_agreement_from_the_plain_cosine_and_not_from_the_corrected_one(
    cosine, recommendation
):
    torch.manual_seed(1)
    signal = torch.randn(400)
    g = torch.stack([signal, cosine * signal])[:, None] + 5 * torch.randn(2, 80, 400)
    plain = torch.cosine_similarity(g[0], g[1], dim=-1).mean()
    assert abs(plain) < 0.1
    reading = sums_of(g, tokens=(1, 1)).read()
    assert reading.cosines["a, b"][0] == pytest.approx(cosine, abs=0.3)
    assert reading.recommendation == recommendation


def test_pure_noise_is_not_enough_evidence_and_names_the_steps_that_would_settle_it():
    torch.manual_seed(2)
    reading = sums_of(torch.randn(2, 24, 300)).read()
    assert reading.recommendation == "undecided"
    shown = reading.text(24, 240)
    assert "not enough evidence yet" in shown
    one = Reading(0.1, 0.2, {}, {"a": 1.0}, 0.0, 20)
    assert one.missing == 141  # 20 (0.283 / 0.1)^2 - 20
    assert "About 141 more steps" in one.text(20, 200)
    assert Reading(0.0, 0.0, {}, {}, 0.0, 20).recommendation == "undecided"
    unknown = Reading(math.nan, math.nan, {}, {}, 0.0, 6)
    assert (unknown.recommendation, unknown.missing) == ("undecided", None)


def test_a_sure_but_small_difference_is_no_reason_for_a_policy_for_each_role():
    assert expected(0.1, 0.0) < 0.05 < expected(0.1, 1.0)
    assert Reading(0.1, 0.01, {}, {}, 0.0, 20).recommendation == "shared"
    assert Reading(0.1, 0.01, {}, {}, 1.0, 20).recommendation == "per-role"


def test_a_role_that_had_nothing_to_learn_from_is_no_evidence_for_a_shared_policy():
    one = Reading(-0.1, 0.01, {}, {"a": 1.0, "b": 0.0}, 0.0, 20)
    assert one.recommendation == "undecided"
    assert "not enough evidence yet: b had nothing to learn from" in one.text(20, 200)


@pytest.mark.parametrize("loud", [0, BLOCKS - 1, BLOCKS])
def test_advice_waits_until_enough_steps_had_something_to_learn_from(loud):
    lines: list[str] = []
    files: list[str] = []
    advice = Advice(lines.append, lambda name, text: files.append(name), "advice.json")
    advice.sums = Sums(("a", "b"))
    trainer: Any = SimpleNamespace(config=ATGRPOConfig(max_steps=20), step=0, tokens=0)
    for step in range(1, 21):
        trainer.step = step
        if step > 20 - loud:  # the others are silent
            gradients = {"a": torch.ones(3), "b": torch.ones(3)}
            samples = [Sample((1,), (5,), (0.0,), 1.0, role=role) for role in "ab"]
            advice.on_gradients(trainer, "shared", gradients, samples)
        advice.on_step(trainer, {})
        assert bool(lines) == (step == 20)
    assert files == (["advice.json"] if loud == BLOCKS else [])
    assert loud == BLOCKS or f"Advice: {loud} steps had" in lines[0]


class Gradients(Callback):
    wants_gradients = True

    def __init__(self):
        self.seen = []

    def on_gradients(self, trainer, policy, gradients, samples):
        self.seen.append((gradients, samples))


@pytest.mark.parametrize("tokens_per_batch", [12, 4096])
def test_the_roles_gradients_are_those_of_their_own_samples_and_add_up(model, tokens_per_batch):
    roles = {"writer": "both", "reader": "both"}
    policies = load_policies(model, roles, lora_r=4, lora_alpha=8, seed=1)
    settings = ATGRPOConfig(
        env="coding", model=str(model), policies="shared", tokens_per_batch=tokens_per_batch
    )
    watch = Gradients()
    trainer = ATGRPO(settings, GradedEnv(), policies, callbacks=[watch])
    samples = [
        Sample((5, 6), (9, 8), (-5.0, -5.5), 1.5, count=3, role="writer"),
        Sample((5, 6), (7,), (-5.2,), -0.5, count=2, role="reader"),
        Sample((30,), (7, 9, 11), (-5.0, -6.0, -5.0), -1.0, role="writer"),
        Sample((31,), (7, 9), (-5.0, -6.0), 2.0, role="reader"),
    ]
    batch = PolicyBatch.of(samples)

    def gradient(taken):
        trainer.optimizers["both"].zero_grad(set_to_none=True)
        subset = dataclasses.replace(batch, samples=tuple(taken))
        trainer._backward("both", subset, LossMeter("both"))
        grads = [p.grad for p in policies.parameters("both")]
        return torch.cat([g.flatten() for g in grads if g is not None])

    expected = {r: gradient([s for s in samples if s.role == r]) for r in roles}
    whole = gradient(samples)
    trainer.update({"both": batch})
    [(gradients, seen)] = watch.seen
    assert seen == batch.samples
    for role, vector in expected.items():
        torch.testing.assert_close(gradients[role], vector, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(sum(gradients.values()), whole, atol=1e-6, rtol=1e-4)
    watch.wants_gradients = False
    trainer.update({"both": batch})
    assert len(watch.seen) == 1
    assert RoleGradients([]).sums == {}


@pytest.mark.slow
def test_advice_changes_no_bit_and_is_the_same_after_a_stop(model, tmp_path, capsys):
    plain, advised, stopped = (tmp_path / name for name in ("plain", "advised", "stopped"))
    run_training(config(model, plain))
    run_training(config(model, advised, advise=True))
    asked = iter([False] * 5)
    run_training(config(model, stopped, advise=True), stop=lambda: next(asked, True))
    assert not (stopped / "advice.json").exists()
    run_training(resume=stopped)
    file = Path("adapters/shared/adapter_model.safetensors")
    for run in (advised, stopped):
        assert filecmp.cmp(plain / file, run / file, shallow=False)
        assert filecmp.cmp(plain / "trajectories.jsonl", run / "trajectories.jsonl", shallow=False)
    assert (advised / "advice.json").read_text() == (stopped / "advice.json").read_text()
    advice = json.loads((advised / "advice.json").read_text())
    assert advice["steps"] == BLOCKS
    assert advice["text"] in (advised / "console.log").read_text()
    assert Source("run", "run", advised).about()["advice"] == advice["text"]
    assert Source("run", "run", plain).about()["advice"] is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"policies": "per-role"}, "add --policies shared"),
        ({"beta": 0.1}, "leave out --beta"),
        ({"max_steps": 7}, "at least 8 steps, got 7"),
        ({"workers": 2, "tasks_per_shard": 1}, "leave out --workers"),
        ({"num_iterations": 0}, "num_iterations 0"),
        ({"policies": "writer=a,reader=base"}, "this team has one role"),
    ],
)
def test_what_cannot_be_computed_is_refused_before_a_model_is_loaded(
    model, tmp_path, changes, reason
):
    with pytest.raises(ConfigError, match=f"^advise .*{reason}"):
        plan_run(config(model, tmp_path / "run", advise=True, **changes))


def test_what_is_said_to_be_measured_is_what_the_benchmark_found():
    results = Path(__file__).parents[1] / "benchmarks" / "results" / "advice.json"
    judged = json.loads(results.read_text())["judged"]
    spoken = judged["third for end"]["recommendations"]
    for recommendation in ("per-role", "shared"):
        runs = spoken[recommendation]
        assert f"{runs['right']} of {runs['runs']}" in MEASURED[recommendation]
    tenth = judged["tenth for end"]
    runs = sum(spoken["runs"] for spoken in tenth["recommendations"].values())
    right = round(tenth["signals"]["G"]["sign_right"] * runs)
    assert f"{right} of {runs}" in MEASURED["undecided"]
