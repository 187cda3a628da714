"""What families of models keep of a text, with random weights: rows come and go, or are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from pettingllms.errors import ConfigError
from pettingllms.policies.loading import load_policies
from pettingllms.samplers.base import SamplingParams
from pettingllms.samplers.continuous import ContinuousBatch, prompt_cache, rows_of
from tests.test_families import FAMILIES, SIZES
from tests.tiny_lm import tiny_tokenizer

torch.set_num_threads(1)
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
MIXED: dict[str, tuple[str, dict[str, Any]]] = {
    "sliding-gemma2": ("Gemma2Config", FAMILIES["gemma2"][1]),
    "sliding-gpt-oss": ("GptOssConfig", FAMILIES["gpt-oss"][1]),
    "chunked-llama4": (
        "Llama4TextConfig",
        {"attention_chunk_size": 16, "head_dim": 8, "num_local_experts": 2},
    ),
    "linear-qwen3-next": ("Qwen3NextConfig", {**LINEAR, **EXPERTS}),
    "linear-qwen3.5": ("Qwen3_5TextConfig", LINEAR),
    "convolutions-lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    "mamba-and-attention-in-turns": ("BambaConfig", {**MAMBA, "attn_layer_indices": [1]}),
    "mamba-beside-attention": (
        "FalconH1Config",
        {**MAMBA, "mamba_d_ssm": 64, "head_dim": 8},
    ),
    "layers-that-keep-nothing": (
        "NemotronHConfig",
        {
            "hybrid_override_pattern": "M*-",
            "num_hidden_layers": 3,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 1,
        },
    ),
}
PROMPTS = [(5, 6, 7), (9,), tuple(range(100, 150)), tuple(range(60, 72))]


def made(config_name: str, changes: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**{**SIZES, **changes})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)  # so that next-token odds are uneven
    return model


@pytest.mark.slow
@pytest.mark.parametrize("family", MIXED)
def test_rows_that_come_and_go_have_the_log_probabilities_of_whole_texts(family):
    model = made(*MIXED[family])
    batch = ContinuousBatch(lambda: model, (), 0)
    tokens_by_key: dict[Any, list[Any]] = {}

    def heard(tokens):
        for token in tokens:
            tokens_by_key.setdefault(token.key, []).append(token)

    def rows(place, n):
        return rows_of(PROMPTS[place], n, SamplingParams(20), place, key=lambda k: (place, k))

    heard(batch.add(rows(0, 2)).drawn)
    for _ in range(4):
        heard(batch.step())
    heard(batch.add([*rows(1, 1), *rows(2, 3)]).drawn)  # prompts of other lengths, at once
    heard(batch.step())
    batch.remove([(0, 0), (2, 1)])
    heard(batch.step())
    heard(batch.add(rows(3, 1)).drawn)
    while len(batch):
        heard(batch.step())
    heard(batch.add(rows(0, 1)).drawn)  # once all have left, it begins anew
    heard(batch.step())
    lengths = {key: len(tokens) for key, tokens in tokens_by_key.items()}
    assert lengths.pop((0, 0)) == 5 + 1 + 2
    assert lengths.pop((2, 1)) == 2
    assert set(lengths.values()) == {20}
    for (place, _), tokens in tokens_by_key.items():
        ids = [token.id for token in tokens][:18]
        whole = torch.tensor([[*PROMPTS[place], *ids]])
        if (place, len(tokens)) == (0, 8):
            ids, whole = ids[:5], whole[:, :8]
        with torch.no_grad():
            logits = model(input_ids=whole, use_cache=False).logits[0]
        table = logits.float().log_softmax(-1)[len(PROMPTS[place]) - 1 : -1]
        plain = table.gather(-1, torch.tensor(ids)[:, None])[:, 0]
        sampled = torch.tensor([token.logprob for token in tokens[: len(ids)]])
        torch.testing.assert_close(sampled, plain, atol=1e-4, rtol=0)


def test_a_cache_whose_rows_cannot_come_and_go_is_refused_with_what_to_use():
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "num_key_value_heads": 4, "v_head_dim": 8}
    heads = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    model = made("DeepseekV32Config", {**latent, **heads, **experts, "moe_intermediate_size": 16})
    with pytest.raises(ConfigError, match=r"'deepseek_v32' cannot be served .* --sampler vllm$"):
        prompt_cache(model)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("MambaConfig", {}),
        ("Mamba2Config", {"num_heads": 4, "head_dim": 16, "n_groups": 1}),
    ],
)
def test_a_cache_of_states_alone_is_refused_with_what_to_use(kind, changes):
    model = made(kind, {"state_size": 8, **changes})
    with pytest.raises(ConfigError, match=r"keeps keys and values; use --sampler vllm$"):
        prompt_cache(model)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("MambaConfig", {"state_size": 8}),
        (
            "MiniMaxConfig",
            {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 2},
        ),
    ],
    ids=["mamba", "minimax"],
)
def test_a_model_that_takes_no_cache_is_refused_and_not_sampled_without_its_past(
    kind, changes, tmp_path
):
    made(kind, changes).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be sampled here.*use vLLM"):
        load_policies(tmp_path, {"writer": "writer"}, lora_r=4)
