"""`--dry-run`: the settings as they would be used, and roughly what they cost.

Nothing is loaded: the model is built without memory (PyTorch's meta device), the environment is
made to count its roles. The arithmetic is in `pettingllms.cli.costs`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from pettingllms.assembly import check_bases, make_env
from pettingllms.cli.costs import (
    ASSUMED,
    GIB,
    GPUS,
    PROMPT,
    USABLE,
    Gpu,
    ModelShape,
    Workload,
    cure,
    fits,
    memory,
    peak,
    rows_at_once,
    sampling_seconds,
    update_seconds,
)
from pettingllms.distributed.pools import ENGINE_SHARE, engine_pools
from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.evaluation import seats_of
from pettingllms.models import model_path
from pettingllms.policies.roles import own_names, parse_policies, trained_policies
from pettingllms.policies.sources import check_model
from pettingllms.runs import config_text
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig, resolve
from pettingllms.trainers.fitting import check_method
from pettingllms.trainers.method import Method
from pettingllms.trainers.per_policy import by_base, own_settings
from pettingllms.types import role_of

HERE = "here"
"""In place of a GPU's name: this machine's."""


def dry_run(config: ATGRPOConfig, gpu: str = HERE) -> str:
    """The resolved settings as YAML, then memory, work and time.

    Args:
        config: the settings.
        gpu: a name in `GPUS`, or `HERE`: this machine's.

    Raises:
        ConfigError: settings that cannot be used.
    """
    resolved = resolve(config)
    env = make_env(resolved, "train", divide=True)
    roles, agents = seats_of(env)
    roles_to_policies = parse_policies(resolved.policies, roles, agents)
    trained = trained_policies(resolved.train_roles, roles_to_policies)
    check_method(resolved, env, roles_to_policies)
    check_bases(resolved, roles_to_policies)
    policies = own_names(roles_to_policies)
    groups = by_base(resolved, policies)
    turns = getattr(env.unwrapped, "max_turns", None)
    method = Method.of(resolved)
    gpus = [gpu_of(own, gpu) for own, _ in groups]
    works = [
        Workload(
            own,
            shape_of(*(own_settings(resolved, name) for name in names)),
            len(names),
            len(set(names) & set(trained)),
            _agents(agents, roles_to_policies, names) if len(groups) > 1 else len(agents),
            turns or 1,
            method.tree,
            # All bases share one device: where one of them is on a GPU, all are.
            next((each for each in gpus if each is not None), None),
            method.shape(),
            names,
            len(groups),
        )
        for own, names in groups
    ]
    count = f"{len(policies)} policies for {len(roles)} roles ({', '.join(roles)})"
    return "\n".join(
        [
            config_text(resolved).rstrip(),
            "",
            f"# {count}, {len(trained)} trained",
            *_memory(works),
            *_engines(resolved, works, policies),
            *_work(works, limited=turns is not None),
            *_time(works, limited=turns is not None),
        ]
    )


def _agents(agents: Sequence[str], players: Mapping[str, str], policies: Sequence[str]) -> int:
    """The number of the agents that these policies play."""
    return sum((players.get(agent) or players[role_of(agent)]) in policies for agent in agents)


def shape_of(config: ATGRPOConfig, *others: ATGRPOConfig) -> ModelShape:
    """Sizes of the model that the settings name, from its configuration alone.

    Args:
        config: the settings.
        others: of further policies on the same model; the size of an adapter is then their mean.

    Raises:
        ConfigError: it has none that transformers can read.
    """
    name = model_path(config.model)
    check_model(name, config.revision)
    revision = {} if config.revision is None else {"revision": config.revision}
    try:
        model_config = AutoConfig.from_pretrained(name, **revision)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"the configuration of model {name!r} cannot be read: {error}") from error
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(model_config)
    text: Any = model_config.get_text_config()
    # Where a family does not group queries, each head has keys and values of its own.
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    # Not always the hidden size by the heads: Qwen3-0.6B has 16 heads of 128 at a width of 1024.
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    adapters = [_adapter_size(model, each) for each in (config, *others)]
    return ModelShape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        adapter=sum(adapters) // len(adapters),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        inner=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        queries=text.num_attention_heads * width,
        cache_per_token=2 * heads * width * text.num_hidden_layers,
        vocabulary=text.vocab_size,
        linear=sum(layer.weight.numel() for _, layer in _linear(model)),
    )


def _adapter_size(model: PreTrainedModel, config: ATGRPOConfig) -> int:
    names = config.lora_target_modules.split(",")
    layers = [
        layer
        for name, layer in _linear(model)
        if names == ["all-linear"] or name.rpartition(".")[2] in names
    ]
    return sum(config.lora_r * (layer.in_features + layer.out_features) for layer in layers)


def _linear(model: PreTrainedModel) -> list[tuple[str, nn.Linear]]:
    """The linear layers but the output layer, by name."""
    # PEFT's `all-linear` and bitsandbytes leave the output layer as it is.
    head = model.get_output_embeddings()
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    ]


def _memory(works: Sequence[Workload]) -> list[str]:
    lines, parts = ["", "# Memory, estimated"], list[tuple[str, float]]()
    for work in works:
        found = memory(work)
        own = [*found.weights.items(), *found.sampling.items(), *found.update.items()]
        lines += [f"#   {line}" for line in [_base(work)] * (len(works) > 1)]
        lines += [f"#   {size(value):>9}  {what}" for what, value in own]
        parts += own
    lines.append(f"#   {size(peak(works)):>9}  at the fullest moment")
    gpu = works[0].gpu
    if gpu is None:
        return lines
    holds = f"{gpu.name} ({gpu.gib:g} GiB, of which {USABLE:.0%} are counted)"
    if fits(works):
        return [*lines, f"# Fits into {holds}"]
    what, value = max(parts, key=lambda part: part[1])
    lines.append(f"# Does not fit into {holds}; the largest part: {what}, {size(value)}")
    if (cured := cure(works)) is None:
        return [*lines, "# No option makes it fit: take a smaller model or a larger GPU"]
    options, smaller = cured
    return [*lines, f"# It fits with {' '.join(options)}: {size(peak(smaller))}"]


def _engines(
    config: ResolvedConfig, works: Sequence[Workload], policies: Sequence[str]
) -> list[str]:
    """Lines on the room in vLLM's engines, where they are processes of their own; else none."""
    if not config.workers or config.sampler != "vllm":
        return []
    lines = ["", "# Engines, estimated; not part of the sum above"]
    for name, share in engine_pools(config, policies).items():
        work = next(each for each in works if name in _pools(config, each))
        own = work.shape.parameters * work.width
        each = f"weights {size(own)}"
        if work.gpu is not None:
            gpus = 1.0 if share.gpus is None else share.gpus
            # A part of one GPU is in the share already; of several GPUs vLLM takes its share of each.
            room = work.vllm_cache(ENGINE_SHARE * min(1.0, gpus), max(1.0, gpus))
            rows = int(room // work.row_bytes)
            each = f"GPUs {gpus:g}, {each}, " + (
                f"cache {size(room)} for {rows} completions at a time"
                if rows > 0
                else "no room for a cache: give it more GPUs and vllm.tensor_parallel_size"
            )
        lines.append(f"#   {share.replicas} x {name}; each: {each}")
    return lines


def _pools(config: ResolvedConfig, work: Workload) -> list[str]:
    """The pools of the engines that serve the policies of a base."""
    return list(engine_pools(config, work.names))


def _base(work: Workload) -> str:
    """A line for one of several base models."""
    name = "embedded model" if work.config.embedded else work.config.model
    return f"{name}: {', '.join(work.names)}"


def _work(works: Sequence[Workload], limited: bool) -> list[str]:
    config, tree = works[0].config, works[0].tree
    turns = works[0].turns
    each = f"a step ({turns} turns at the most)" if limited else "a turn"
    # Two operations a parameter and token forward, four more backward.
    flops = sum(2 * work.shape.parameters * work.tokens * (1 + 3) for work in works)
    budget = "" if config.max_tokens is None else f", or {config.max_tokens:,} generated tokens"
    steps = f"# Steps: {config.max_steps}{budget}"
    models = [
        f"model: {work.shape.parameters:,} parameters, adapter: {work.shape.adapter:,}"
        for work in works
    ]
    return [
        "",
        f"# Work {each}, at the most",
        f"#   {sum(work.completions for work in works):>9,}  completions ({config.num_generations} "
        + ("to each prompt)" if tree else "episodes of each task)"),
        f"#   {sum(work.tokens for work in works):>9,}  sampled tokens",
        f"#   {flops / 1e12:>9,.3g}  TFLOP to sample and update, prompts not counted",
        "; ".join([steps, *models]),
    ]


def _time(works: Sequence[Workload], limited: bool) -> list[str]:
    work = works[0]
    gpu = work.gpu
    if gpu is None:
        return []
    if not gpu.tflops:
        known = ", ".join(GPUS)
        return ["", f"# Time: the rate of {gpu.name} is not known here; --dry-run takes {known}"]
    # Roles take turns, so that the bases do, too.
    sampling = sum(sampling_seconds(each, gpu) for each in works)
    update = sum(update_seconds(each, gpu) for each in works)
    rows, steps = rows_at_once(work), work.config.max_steps
    layer = ASSUMED.vllm_layer_s if work.config.sampler != "transformers" else ASSUMED.layer_s
    return [
        "",
        f"# Time of a {'step' if limited else 'turn'} on {gpu.name} ({gpu.tflops:g} TFLOP/s, "
        f"{gpu.gbytes:g} GB/s as published), at the most",
        f"#   {duration(sampling):>9}  sampling with {work.config.sampler}, {rows} completions at a time",
        f"#   {duration(update):>9}  updates",
        f"#   {duration((sampling + update) * steps):>9}  all {steps} steps",
        f"# Assumes: every completion and episode at its limit (shorter ones take less), prompts of {PROMPT} tokens, {ASSUMED.compute:.0%} "
        f"of the rate, {ASSUMED.bandwidth:.0%} of the bandwidth,",
        f"#   {layer * 1e3:g} ms a layer and decoded token to start kernels. Scoring and evaluation are "
        "not counted; nothing was measured on a GPU.",
    ]


def gpu_of(config: ATGRPOConfig, wanted: str = HERE) -> Gpu | None:
    """The GPU that an estimate is for: the named one, this machine's, or else an H100.

    None for the embedded model and where a CPU is asked for.

    Raises:
        ConfigError: an unknown name.
    """
    if wanted != HERE:
        if wanted not in GPUS:
            raise ConfigError(f"--dry-run: unknown GPU {wanted!r}; {did_you_mean(wanted, GPUS)}")
        return GPUS[wanted]
    if config.embedded or config.device in ("cpu", "mps"):
        return None
    if not torch.cuda.is_available():
        return GPUS["h100"]
    here = torch.cuda.get_device_properties(0)
    # As whole words: an H100 may say 80GB as an A100 does, and a GH200 is no H200.
    words = set(re.split(r"\W+", here.name))
    named = [gpu for gpu in GPUS.values() if words.issuperset(gpu.name.split())]
    # The longest name: every H100 PCIe is called an H100 as well.
    known = max(named, key=lambda gpu: len(gpu.name), default=None)
    rates = (known.tflops, known.gbytes) if known else (0.0, 0.0)
    # The memory that it reports, because cards of one name come in several sizes.
    return Gpu(here.name, here.total_memory / GIB, *rates)


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} s"


def size(count: float) -> str:
    """Bytes as GiB, or MiB where few."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 2 else f"{count / (1 << 20):.1f} MiB"
