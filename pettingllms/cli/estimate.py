"""`--dry-run`: the settings as they would be used, and roughly what they cost.

Nothing is loaded: the model is built without memory (PyTorch's meta device), the environment is
made to count its roles. The formulas are in the code: activations are within 15 % of what was measured,
the rest is counted; what a library or a GPU's allocator holds beside it is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from pettingllms.assembly import make_env
from pettingllms.errors import ConfigError
from pettingllms.evaluation import roles_of
from pettingllms.models import EMBEDDED
from pettingllms.models.head import LOGITS_PER_CHUNK
from pettingllms.policies.roles import parse_policies, trained_policies
from pettingllms.policies.sources import check_model
from pettingllms.runs import config_text
from pettingllms.samplers.base import DEFAULT_TOKENS_PER_BATCH
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig, resolve
from pettingllms.trainers.estimators import ESTIMATORS

OPTIMIZER_BYTES = 4 + 4 + 4 + 4
"""Float32 master copy, gradient and AdamW's two moments of each trained number."""
PROMPT = 1024
"""Tokens of a prompt, as a guess."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the estimates need to know of a model."""

    parameters: int
    adapter: int
    """Numbers in one adapter."""
    layers: int
    hidden: int
    inner: int
    """Width between the two matrices of a layer's feed-forward part."""
    queries: int
    """Query heads times their size."""
    cache_per_token: int
    """Keys and values of one token in all layers, numbers."""
    vocabulary: int


def dry_run(config: ATGRPOConfig) -> str:
    """The resolved settings as YAML, then memory and work.

    Raises:
        ConfigError: settings that cannot be used.
    """
    resolved = resolve(config)
    env = make_env(resolved, "train", divide=True)
    roles = roles_of(env)
    roles_to_policies = parse_policies(resolved.policies, roles)
    trained = trained_policies(resolved.train_roles, roles_to_policies)
    shape = shape_of(resolved)
    turns = getattr(env.unwrapped, "max_turns", None)
    policies, n = len(set(roles_to_policies.values())), len(trained)
    return "\n".join(
        [
            config_text(resolved).rstrip(),
            "",
            f"# {policies} policies for {len(roles)} roles ({', '.join(roles)}), {n} trained",
            *_memory(resolved, shape, policies, n),
            *_work(resolved, shape, len(env.possible_agents), turns),
        ]
    )


def shape_of(config: ATGRPOConfig) -> ModelShape:
    """Sizes of the model that the settings name, from its configuration alone.

    Raises:
        ConfigError: it has none that transformers can read.
    """
    name = str(EMBEDDED) if config.model is None else config.model
    check_model(name)
    try:
        model_config = AutoConfig.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"the configuration of model {name!r} cannot be read: {error}") from error
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(model_config)
    text: Any = model_config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelShape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        adapter=_adapter_size(model, config),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        inner=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        queries=text.num_attention_heads * width,
        cache_per_token=2 * heads * width * text.num_hidden_layers,
        vocabulary=text.vocab_size,
    )


def _adapter_size(model: PreTrainedModel, config: ATGRPOConfig) -> int:
    names = config.lora_target_modules.split(",")
    head = model.get_output_embeddings()
    layers = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module is not head
        and (names == ["all-linear"] or name.rpartition(".")[2] in names)
    ]
    return sum(config.lora_r * (layer.in_features + layer.out_features) for layer in layers)


def _memory(config: ResolvedConfig, shape: ModelShape, policies: int, trained: int) -> list[str]:
    small = config.dtype == "float32" or (config.dtype == "auto" and not _accelerated(config))
    width = 4 if small else 2
    rows = config.tasks_per_step * config.num_generations
    batch = config.tokens_per_batch
    if config.full:
        models, base = policies + (config.beta > 0), shape.parameters
        parts = {
            f"{models} full models (sampling copies)": models * base * width,
            "training state (float32 weights, gradients, AdamW)": trained * base * OPTIMIZER_BYTES,
        }
    else:
        parts = {
            "base model": shape.parameters * width,
            f"{policies} adapters, gradients, AdamW": policies * shape.adapter * OPTIMIZER_BYTES,
        }
    positions = min(DEFAULT_TOKENS_PER_BATCH, rows * (config.max_completion_length + PROMPT))
    parts[f"cache of a sampling batch of {positions} tokens"] = (
        positions * shape.cache_per_token * width
    )
    parts[f"activations of an update of {batch} tokens"] = activation_bytes(
        shape, batch, width, checkpointing=config.gradient_checkpointing
    )
    # Float32 logits of one chunk, their gradient and what is computed of them.
    parts["logits"] = 4 * 4 * min(LOGITS_PER_CHUNK, batch * shape.vocabulary)
    lines = ["", "# Memory, estimated"]
    return lines + [f"#   {size(value):>9}  {what}" for what, value in parts.items()]


def activation_bytes(shape: ModelShape, tokens: int, width: int, *, checkpointing: bool) -> int:
    """Bytes that an update with adapters keeps for its backward pass, logits apart.

    The factors were fitted to what is kept of random weights of four shapes with an adapter of rank
    16 (`tests/test_estimate.py`). In 16 bits more is kept: norms and adapters are computed in
    float32.
    """
    hidden, inner, queries = (6, 4.2, 8.4) if width == 4 else (17, 5.3, 10.5)
    layer = hidden * shape.hidden + inner * shape.inner + queries * shape.queries
    if checkpointing:  # the input of every layer, and one layer whole
        return int(tokens * width * (shape.layers * shape.hidden + layer))
    return int(tokens * width * shape.layers * layer)


def _work(config: ResolvedConfig, shape: ModelShape, agents: int, turns: int | None) -> list[str]:
    tree = ESTIMATORS.load(config.estimator).tree
    moves = config.tasks_per_step * config.num_generations * agents
    each = "a turn" if turns is None else f"a step ({turns} turns at the most)"
    completions = moves * (turns or 1)
    tokens = completions * config.max_completion_length
    # Two operations a parameter and token forward, four more backward.
    flops = 2 * shape.parameters * tokens * (1 + 3)
    budget = "" if config.max_tokens is None else f", or {config.max_tokens:,} generated tokens"
    return [
        "",
        f"# Work {each}, at the most",
        f"#   {completions:>9,}  completions ({config.num_generations} "
        + ("to each prompt)" if tree else "episodes of each task)"),
        f"#   {tokens:>9,}  sampled tokens",
        f"#   {flops / 1e12:>9,.3g}  TFLOP to sample and update, prompts not counted",
        f"# Steps: {config.max_steps}{budget}; model: {shape.parameters:,} parameters, "
        f"adapter: {shape.adapter:,}",
    ]


def _accelerated(config: ATGRPOConfig) -> bool:
    if config.device != "auto":
        return config.device != "cpu"
    return torch.cuda.is_available() or torch.backends.mps.is_available()


def size(count: float) -> str:
    """Bytes as GiB, or MiB where few."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 2 else f"{count / (1 << 20):.1f} MiB"
