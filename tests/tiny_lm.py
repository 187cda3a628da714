"""A tiny random language model with tokenizer and chat template, built in code for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SHORT_RUN: dict[str, Any] = {
    "device": "cpu",
    "lora_r": 4,
    "max_steps": 3,
    "num_generations": 4,
    "tasks_per_step": 2,
    "max_completion_length": 6,
    "learning_rate": 0.01,
    "warmup_steps": 0,
    "eval_tasks": 2,
    "eval_steps": 0,
    "save_steps": 1,
}
"""Settings of a run of three steps, each of which leaves a checkpoint."""
SPECIAL = ("<pad>", "<|start|>", "<|end|>")
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% if shout is defined and shout %}!{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


OTHER_TEMPLATE = (
    "{% for message in messages %}<|start|>[{{ message['role'] }}] {{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>[model] {% endif %}"
)


def tiny_tokenizer(backwards: bool = False) -> PreTrainedTokenizerFast:
    """One token a byte, plus padding and the two ends of a turn: 259 ids; or counted backwards."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=backwards)
    vocab = {token: index for index, token in enumerate((*SPECIAL, *alphabet))}
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        additional_special_tokens=[SPECIAL[1]],
    )
    tokenizer.chat_template = OTHER_TEMPLATE if backwards else TEMPLATE
    return tokenizer


def tiny_config(hidden: int = 32, layers: int = 2, **changes: Any) -> Qwen3Config:
    """A Qwen3 of `layers` layers with grouped queries."""
    settings: dict[str, Any] = {
        "vocab_size": 264,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 2,
    }
    return Qwen3Config(**{**settings, **changes})


def tiny_model(seed: int = 0, config: Qwen3Config | None = None) -> Qwen3ForCausalLM:
    """Random weights that follow from `seed`; spread so that next-token odds are uneven."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config or tiny_config())
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(4.0)
            model.model.norm.weight.mul_(4.0)
    return model.eval()


def save_tiny(directory: Path, seed: int = 0, config: Qwen3Config | None = None) -> Path:
    """Writes model and tokenizer the way a user's model folder looks."""
    tiny_model(seed, config).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


def save_tiny_llama(directory: Path, seed: int = 0) -> Path:
    """A Llama in a folder, whose tokenizer and template are not those of `save_tiny`."""
    config = LlamaConfig(
        vocab_size=264,
        hidden_size=24,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=640,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(4.0)
    model.save_pretrained(directory)
    tiny_tokenizer(backwards=True).save_pretrained(directory)
    return directory
