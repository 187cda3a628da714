"""Which model is loaded, and how: dtype of adapters, attention, revision, quantization."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pettingllms.errors import ConfigError
from pettingllms.models.shared_prompts import enabled
from pettingllms.policies.base_model import ModelSpec, is_checkpointing
from pettingllms.policies.loading import load_policies
from pettingllms.policies.sources import check_model
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.types import Request, Sample
from tests.tiny_lm import save_tiny, tiny_config

torch.set_num_threads(1)
ROLES = {"coder": "a", "tester": "b"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"), config=tiny_config(hidden=64))


def update(policies, rate):
    """One step of AdamW that makes a completion likelier; how much likelier it became."""
    sample = Sample((1, 5, 6), (7, 8, 9), (-1.0,) * 3, 1.0)
    [batch] = policies.microbatches("a", [sample], 64)
    optimizer = torch.optim.AdamW(policies.parameters("a"), lr=rate, weight_decay=0.0)
    before = policies.logprobs("a", batch)[0]
    (-before.sum()).backward()
    optimizer.step()
    policies.publish("a")
    return (policies.logprobs("a", batch)[0] - before).sum().item()


def test_adapters_over_a_base_of_16_bits_are_trained_in_float32(folder: Path) -> None:
    policies = load_policies(folder, ROLES, lora_r=4, dtype="bfloat16")
    assert {parameter.dtype for parameter in policies.parameters("b")} == {torch.float32}
    assert policies.sampling_model("a").get_input_embeddings().weight.dtype == torch.bfloat16
    before = policies.state("a")
    # B begins at 0, where every number can hold a small step; the second step reaches A.
    for _ in range(2):
        update(policies, rate=1e-5)
    moved = [
        (value != before[name]).float().mean().item()
        for name, value in policies.state("a").items()
        if "lora_A" in name
    ]
    assert min(moved) > 0.9, "in bfloat16 a step of 1e-5 is rounded away"
    rough = load_policies(
        ModelSpec(str(folder), adapter_dtype="base"), ROLES, lora_r=4, dtype="bfloat16"
    )
    assert {parameter.dtype for parameter in rough.parameters("a")} == {torch.bfloat16}


def test_an_attention_of_transformers_own_is_used_as_it_is(folder: Path) -> None:
    ours = load_policies(folder, ROLES, lora_r=4)
    theirs = load_policies(ModelSpec(str(folder), attn_implementation="eager"), ROLES, lora_r=4)
    assert enabled(ours.sampling_model("a"))
    assert theirs.sampling_model("a").config._attn_implementation == "eager"
    request = [Request("a", (1, 5, 6), seed=1)]
    (one,), (other,) = (
        loaded.sample(request, 1, max_new_tokens=6, greedy=True) for loaded in (ours, theirs)
    )
    assert one[0].token_ids == other[0].token_ids


def test_what_cannot_be_loaded_is_one_line(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be loaded: FlashAttention2"):
        load_policies(ModelSpec(str(folder), attn_implementation="flash_attention_2"), ROLES)
    with pytest.raises(ConfigError, match="revision is for models on the hub"):
        check_model(str(folder), "main")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"needed in torch\.bfloat16; load it in torch\.bfloat16"):
        load_policies(ModelSpec(str(folder), model=model), ROLES, dtype="bfloat16")
    with pytest.raises(ConfigError, match="load_in_4bit is for adapters"):
        ATGRPOConfig(load_in_4bit=True, full=True)
    with pytest.raises(ConfigError, match="with load_in_4bit use sampler transformers"):
        ATGRPOConfig(load_in_4bit=True, sampler="vllm")


def test_the_embedded_model_and_one_in_4_bits_are_sampled_with_transformers() -> None:
    assert resolve(ATGRPOConfig()).sampler == "transformers"
    assert resolve(ATGRPOConfig(model="x/y", load_in_4bit=True)).sampler == "transformers"


@pytest.mark.parametrize(
    ("model", "device", "installed", "gpu", "sampler"),
    [
        ("x/y", "auto", True, True, "vllm"),
        ("x/y", "cuda", True, True, "vllm"),
        ("x/y", "cpu", True, True, "transformers"),
        ("x/y", "auto", False, True, "transformers"),
        ("x/y", "auto", True, False, "transformers"),
        (None, "auto", True, True, "transformers"),
    ],
)
def test_vllm_samples_by_default_where_it_is_installed_and_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    model: str | None,
    device: str,
    installed: bool,
    gpu: bool,
    sampler: str,
) -> None:
    monkeypatch.setattr("pettingllms.samplers.vllm_args.installed", lambda: installed)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    assert resolve(ATGRPOConfig(model=model, device=device)).sampler == sampler
    assert resolve(ATGRPOConfig(model=model, sampler="transformers")).sampler == "transformers"


def test_four_bits_without_their_library_are_one_line(folder: Path) -> None:
    if importlib.util.find_spec("bitsandbytes") is not None:
        pytest.skip("bitsandbytes is installed")
    with pytest.raises(ConfigError, match="needs bitsandbytes: pip install"):
        load_policies(ModelSpec(str(folder), load_in_4bit=True), ROLES)


def test_adapters_over_four_bits_sample_learn_and_are_saved(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="load_in_4bit needs bitsandbytes")
    spec = ModelSpec(str(folder), load_in_4bit=True)
    policies = load_policies(spec, ROLES, lora_r=4)
    (one,), (other,) = policies.sample(
        [Request(name, (1, 5, 6), seed=1) for name in ("a", "b")], 1, max_new_tokens=4
    )
    assert one.token_ids
    assert other.token_ids
    sample = Sample(one.prompt_ids, one.token_ids, one.logprobs, 1.0)
    [batch] = policies.microbatches("a", [sample], 64)
    gap = policies.logprobs("a", batch)[0].detach()[0] - torch.tensor(one.logprobs)
    assert gap.abs().max() < 1e-3
    assert update(policies, rate=1e-2) > 0
    policies.save("a", tmp_path / "a")
    again = load_policies(spec, {"coder": "a"}, adapters={"a": tmp_path / "a"})
    assert all(again.state("a")[k].equal(value) for k, value in policies.state("a").items())


def test_loading_asks_transformers_nothing_that_a_newer_one_warns_of(folder, monkeypatch):
    def warns(_model: object) -> bool:
        raise FutureWarning("`is_gradient_checkpointing` is deprecated")

    model = AutoModelForCausalLM.from_pretrained(folder)
    monkeypatch.setattr(type(model), "is_gradient_checkpointing", property(warns))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert not is_checkpointing(model)
    # PEFT asks for the older name where an adapter is put in; a full model needs no PEFT.
    spec = ModelSpec(str(folder), model=model, tokenizer=tokenizer)
    load_policies(spec, {"coder": "a"}, full=True)
