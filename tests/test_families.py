"""Model families, with random weights: each trains, and all its log-probabilities agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SiglipVisionConfig,
    SmolLM3Config,
)

from pettingllms.errors import ConfigError
from pettingllms.policies.base_model import ModelSpec, context_of, switch_of
from pettingllms.policies.loading import load_policies
from pettingllms.policies.prefix_trial import check_cache, check_head, share_prompts
from pettingllms.samplers.vllm_args import _context
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.types import Request, Sample
from tests.graded_env import GradedEnv
from tests.tiny_lm import tiny_tokenizer

torch.set_num_threads(1)
SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
WINDOW = {"head_dim": 8, "sliding_window": 16}
PHI_4_MINI = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 512,
    "short_factor": [1.0, 1.1, 1.2],
    "long_factor": [1.0, 4.0, 8.0],
}
FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "qwen2.5": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 8}),
    "qwen3-moe": (Qwen3MoeConfig, {**EXPERTS, "num_experts": 4}),
    "llama": (LlamaConfig, {}),
    "gemma2": (Gemma2Config, {**WINDOW, "final_logit_softcapping": 3.0}),
    "gemma3": (Gemma3TextConfig, WINDOW),
    "mistral": (MistralConfig, {"sliding_window": 16}),
    "phi3": (Phi3Config, {}),
    "phi-4-mini": (Phi3Config, {"tie_word_embeddings": True, "rope_parameters": PHI_4_MINI}),
    "smollm3": (SmolLM3Config, {}),
    "gpt-oss": (GptOssConfig, {**WINDOW, "num_experts_per_tok": 2, "num_local_experts": 4}),
    "cohere": (CohereConfig, {"logit_scale": 0.25}),
    "granite": (GraniteConfig, {"logits_scaling": 8.0}),
}
ROLES = {"writer": "writer", "reader": "reader"}


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    config_class, changes = FAMILIES[request.param]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_class(**{**SIZES, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)  # so that next-token odds are uneven
    directory = tmp_path_factory.mktemp("families") / request.param
    model.save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


@pytest.mark.slow
def test_a_team_trains_and_sampler_trainer_and_plain_forward_agree(folder):
    policies = load_policies(folder, ROLES, lora_r=4, lora_alpha=8)
    config = ATGRPOConfig(
        env="graded",
        num_generations=4,
        tasks_per_step=2,
        max_steps=2,
        max_completion_length=12,
        learning_rate=1e-2,
        warmup_steps=0,
        tokens_per_batch=400,
        scoring_threads=1,
        temperature=1.3,
    )
    trainer = ATGRPO(config, GradedEnv(), policies)
    before = {name: policies.state(name) for name in policies.names}
    for _ in range(2):
        _, metrics = trainer.train_step()
        for name in ROLES:
            assert metrics[f"{name}/sampling/sampling_logp_difference/max"] < 2e-3
    for name in ROLES:
        prompt = policies.prompt_ids(name, "Say it.")
        [[reply]] = policies.sample([Request(name, prompt, 5)], 1, max_new_tokens=24)
        ids = torch.tensor([[*prompt, *reply.token_ids]])
        with torch.no_grad():
            logits = (
                policies.bases[0].weights.module(name)(input_ids=ids, use_cache=False).logits[0]
            )
        table = logits.float().log_softmax(-1)[len(prompt) - 1 : -1]
        plain = table.gather(-1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(reply.logprobs), plain, atol=2e-3, rtol=0)
    after = {name: policies.state(name) for name in policies.names}
    for name in ROLES:
        assert any(
            not torch.equal(tensor, after[name][key]) for key, tensor in before[name].items()
        )


# PEFT renames the experts of a mixture and then misses the names that it has itself put in.
@pytest.mark.filterwarnings(r"ignore:The following \w+_pattern keys did not match:RuntimeWarning")
def test_a_mixture_of_experts_is_refused_with_the_targets_that_fit(tmp_path):
    config_class, changes = FAMILIES["qwen3-moe"]
    AutoModelForCausalLM.from_config(config_class(**{**SIZES, **changes})).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"--lora-target-modules q_proj,k_proj,v_proj,o_proj$"):
        load_policies(tmp_path, ROLES, lora_target_modules=["down_proj"])


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "default"}, 1024),
        ({"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}, 64),
        ({"rope_type": "dynamic", "factor": 2.0}, 64),
        ({"rope_type": "llama3", "factor": 16.0}, 1024),
    ],
)
def test_texts_end_where_a_model_would_begin_to_turn_all_positions_in_another_way(
    rope, longest, caplog
):
    """Phi-3-128k's log-probabilities depend on the longest text of a batch beyond that."""
    more = (
        {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if rope["rope_type"] == "llama3" else {}
    )
    parameters = {"rope_theta": 10000.0, "original_max_position_embeddings": 64, **rope, **more}
    config = LlamaConfig(**SIZES, rope_parameters=parameters)
    assert context_of(AutoModelForCausalLM.from_config(config), 10) == longest
    shorter = "texts end at 64 tokens, although the model's context has 1024" in caplog.text
    assert shorter == (longest == 64)


@pytest.fixture
def phi(tmp_path):
    """A model whose positions change beyond 32 tokens."""
    rope = {**PHI_4_MINI, "original_max_position_embeddings": 32}
    torch.manual_seed(0)
    config = Phi3Config(**SIZES, rope_parameters=rope, original_max_position_embeddings=32)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("attention", ["auto", "sdpa"])
def test_with_a_long_context_sampler_update_and_plain_forward_agree_across_the_change(
    phi, attention
):
    spec = ModelSpec(str(phi), attn_implementation=attention, long_context=True)
    policies = load_policies(spec, ROLES, lora_r=4)
    assert policies.contexts == {"writer": 1024, "reader": 1024}
    plain = AutoModelForCausalLM.from_pretrained(phi).eval()
    short, long = (
        policies.prompt_ids("writer", "Say."),
        policies.prompt_ids("writer", "Say it. " * 9),
    )
    assert len(short) < 32 < len(long)
    samples = []
    for prompt in (short, long):
        [[reply]] = policies.sample([Request("writer", prompt, 5)], 1, max_new_tokens=40)
        ids = torch.tensor([[*prompt, *reply.token_ids]])
        assert ids.shape[1] > 40
        with torch.no_grad():
            logits = plain(input_ids=ids, use_cache=False).logits[0]
        table = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        theirs = table.gather(-1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(reply.logprobs), theirs, atol=1e-3, rtol=0)
        samples.append(Sample(prompt, reply.token_ids, reply.logprobs, 1.0))
    samples.append(Sample(short, samples[0].token_ids[:3], samples[0].logprobs[:3], 1.0))
    for sample in samples:
        [batch] = policies.microbatches("writer", [sample], 10_000)
        update_BT, _ = policies.logprobs("writer", batch, temperature=1.0)
        logprobs = torch.tensor(sample.logprobs)
        torch.testing.assert_close(update_BT[0].detach(), logprobs, atol=1e-3, rtol=0)


def test_vllm_is_given_the_context_with_which_it_has_the_positions_of_the_trainer(phi):
    for long, context, others in ((False, 32, 33), (True, 1024, 32)):
        policies = load_policies(ModelSpec(str(phi), long_context=long), ROLES, lora_r=4)
        switch = switch_of(policies.sampling_model("writer").config)
        assert switch is not None
        assert _context(switch.lengths, None) == {"max_model_len": context}
        assert _context(switch.lengths, context)
        with pytest.raises(ConfigError, match=f"got {others}: this model's positions"):
            _context(switch.lengths, others)


def test_a_long_context_is_for_longrope_alone(folder):
    if folder.name == "phi-4-mini":
        return
    with pytest.raises(ConfigError, match="long_context is for models with longrope positions"):
        load_policies(ModelSpec(str(folder), long_context=True), ROLES, lora_r=4)


def test_a_language_model_inside_a_larger_model_is_tried_and_keeps_its_attention():
    sizes: Any = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads: Any = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    text = Gemma3TextConfig(vocab_size=64, **sizes, **heads)
    vision = SiglipVisionConfig(num_attention_heads=1, image_size=8, patch_size=4, **sizes)
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = Gemma3ForConditionalGeneration(config).eval()
    check_head(model)
    check_cache(model)
    assert not share_prompts(model)
