"""`--dry-run`: the settings as they would be used, and roughly what they cost.

For a GPU nothing is loaded: the model is built without memory (PyTorch's meta device). The environment plays one
task with empty replies, which shows who is asked what. Activations are within 15 % of what was measured on a CPU
(`tests/test_estimate.py`); other bytes are counted. On a CPU the time is measured, by taking a small step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import resource
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from pettingllms.assembly import TrainPlan, build_policies, make_env, plan_run
from pettingllms.envs.aec import AnyEnv, longest, observe_text, parts_of
from pettingllms.envs.base import next_agent
from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.evaluation import evaluate, held_out
from pettingllms.evaluation.ablation import role_teams
from pettingllms.evaluation.chunks import EPISODES_AT_ONCE
from pettingllms.models import SMOLLM2
from pettingllms.names import model_path, own_names, policy_of, role_of, trained_policies
from pettingllms.policies.packing import LOGITS_PER_CHUNK
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.sources import check_model
from pettingllms.policies.weights import MERGE_LIMIT_BYTES, linear_layers
from pettingllms.rollout.shapes import RolloutShape
from pettingllms.rollout.trajectory import Trajectory, in_order, with_advantages
from pettingllms.runs import config_text
from pettingllms.samplers.base import DEFAULT_TOKENS_PER_BATCH
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig
from pettingllms.trainers.method import Method
from pettingllms.trainers.settings import by_base, own_settings

HERE, CPU = "here", "cpu"
"""In place of a GPU's name: this machine's GPU, its processor."""
GIB = 1 << 30
OPTIMIZER_BYTES = 4 + 4 + 4 + 4
"""Float32 master copy, gradient and AdamW's two moments of each trained number."""
PROMPT = 1024
"""Tokens of a prompt, as a guess."""
FOUR_BITS = 0.516
"""Bytes of a number in NF4: half a byte, and scales that are quantized again (QLoRA, arXiv 2305.14314)."""
USABLE = 0.95
"""Share of a GPU's memory that tensors can have; CUDA and its allocator hold the rest."""
VLLM_SHARE = 0.4
"""Share of the GPU that vLLM takes beside the trainer, unless set."""
MEASURED_TASKS = 4
"""Tasks of the step that is measured on a CPU, at the most."""
TIMED = ("sample", "score", "update")
"""Parts of a step whose time is shown."""
MOST_PROMPTS = 64
"""Prompts of the task that is shown."""
MOST_LINES = 12
"""Lines of each role's first prompt."""


class Gpu(NamedTuple):
    """A GPU and its memory."""

    name: str
    gib: float


GPUS: Mapping[str, Gpu] = {
    "rtx-4090": Gpu("RTX 4090", 24),
    "l40s": Gpu("L40S", 48),
    "a100": Gpu("A100 80GB", 80),
    "h100": Gpu("H100", 80),
    "h200": Gpu("H200", 141),
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The properties of a model that the estimates need."""

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
    linear: int = 0
    """Numbers in linear layers but the output layer: what 4 bits shrink."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one base model does in a run."""

    config: ResolvedConfig
    shape: ModelShape
    names: Sequence[str]
    """Of the policies on it."""
    trained: int
    """How many of them are."""
    decisions: int
    """Of an episode, by the policies on this base."""
    tree: bool
    gpu: Gpu | None
    """None: a CPU."""
    rollout: RolloutShape
    """What is sampled of a task."""
    bases: int = 1
    """Base models that share the device."""

    @property
    def width(self) -> int:
        """Bytes of a number in the computation."""
        if self.config.dtype == "auto":
            return 4 if self.gpu is None else 2
        return 4 if self.config.dtype == "float32" else 2

    @property
    def vllm_cache(self) -> float:
        """Bytes of the cache of one of vLLM's engines, each full model having its own."""
        options = self.config.vllm
        # Where both are given, vLLM takes the bytes.
        if (cache := options.get("kv_cache_memory_bytes")) is not None:
            return float(cache)
        usual = VLLM_SHARE / self.bases / (len(self.names) if self.config.full else 1)
        share = options.get("gpu_memory_utilization", usual)
        gib = self.gpu.gib if self.gpu else 0.0
        return float(share * gib * GIB - self.shape.parameters * self.width)

    @property
    def rows(self) -> int:
        """Completions that are due at the same time."""
        return self.config.tasks_per_step * self.config.num_generations

    @property
    def completions(self) -> int:
        """Completions of a step, at the most."""
        return self.config.tasks_per_step * self.rollout.completions(self.decisions)

    @property
    def tokens(self) -> int:
        """Sampled in a step, at the most."""
        return self.completions * self.config.max_completion_length


def dry_run(config: ATGRPOConfig, device: str = HERE) -> str:
    """The resolved settings as YAML, then memory, work and time.

    Args:
        config: the settings.
        device: a name in `GPUS`, `HERE`, or `CPU`, where a step is taken and timed.

    Raises:
        ConfigError: settings that cannot be used.
    """
    if device == CPU:
        config = dataclasses.replace(config, device=CPU)
    plan = plan_run(config)
    resolved, players = plan.config, plan.roles_to_policies
    agents = plan.env.possible_agents
    turns, _ = longest(plan.env)
    policies, trained = own_names(players), trained_policies(resolved.train_roles, players)
    groups = by_base(resolved, policies)
    gpus = [gpu_of(settings, HERE if device == CPU else device) for settings, _ in groups]
    method = Method.of(resolved)

    works = [
        Workload(
            settings,
            shape_of(*(own_settings(resolved, name) for name in names)),
            names,
            len(set(names) & set(trained)),
            longest(plan.env, partial(_played_by, players, names))[1],
            method.tree,
            # All bases share one device: where one of them is on a GPU, all are.
            next((gpu for gpu in gpus if gpu is not None), None),
            method.shape(),
            len(groups),
        )
        for settings, names in groups
    ]
    roles = list(dict.fromkeys(map(role_of, agents)))
    count = f"{len(policies)} policies for {len(roles)} roles ({', '.join(roles)})"
    lines = ["", f"# {count}, {len(trained)} trained", *_memory(works)]
    lines += _work(works, "a turn" if turns is None else f"a step ({turns} turns at the most)")
    for part in parts_of(plan.env):
        lines += _rehearsal(part)
    if device == CPU:
        lines += _measured(plan)
    elif works[0].gpu is None:
        lines += ["", "# Time: --dry-run cpu takes a small step here and says how long it took"]
    return "\n".join([config_text(resolved).rstrip(), *lines])


def _played_by(players: Mapping[str, str], policies: Collection[str], agents: Sequence[str]) -> int:
    return sum(policy_of(agent, players) in policies for agent in agents)


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
    adapters = [_adapter_size(model, settings) for settings in (config, *others)]
    return ModelShape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        adapter=sum(adapters) // len(adapters),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        inner=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        queries=text.num_attention_heads * width,
        cache_per_token=2 * heads * width * text.num_hidden_layers,
        vocabulary=text.vocab_size,
        linear=sum(layer.weight.numel() for _, layer in linear_layers(model)),
    )


def _adapter_size(model: PreTrainedModel, config: ATGRPOConfig) -> int:
    names = config.lora_target_modules.split(",")
    layers = [
        layer
        for name, layer in linear_layers(model)
        if names == ["all-linear"] or name.rpartition(".")[2] in names
    ]
    return sum(config.lora_r * (layer.in_features + layer.out_features) for layer in layers)


def gpu_of(config: ATGRPOConfig, wanted: str = HERE) -> Gpu | None:
    """The GPU that an estimate is for: the named one, this machine's, or else an H100.

    None for the models that come for a CPU and where a CPU is asked for.

    Raises:
        ConfigError: an unknown name.
    """
    if wanted != HERE:
        if wanted not in GPUS:
            hint = did_you_mean(wanted, [*GPUS, CPU])
            raise ConfigError(f"--dry-run: unknown GPU {wanted!r}; {hint}")
        return GPUS[wanted]
    if config.embedded or config.device in ("cpu", "mps"):
        return None
    if not torch.cuda.is_available():
        return None if config.model == SMOLLM2 else GPUS["h100"]
    here = torch.cuda.get_device_properties(0)
    return Gpu(here.name, here.total_memory / GIB)


# ------------------------------------------------------------------------------------------ bytes

Parts = dict[str, float]
"""What is in memory -> bytes."""


def memory(work: Workload) -> tuple[Parts, Parts, Parts]:
    """Bytes that are there all the time, while sampling, and in an update."""
    config, shape, width, policies = work.config, work.shape, work.width, len(work.names)
    base, sampling = float(shape.parameters * width), Parts()
    if config.full:
        # A KL term needs the base beside full models; adapters are only switched off for it.
        models = policies + (config.beta > 0)
        state = work.trained * shape.parameters * OPTIMIZER_BYTES
        weights = {f"{models} full models (sampling copies)": models * base}
        weights["training state (float32 weights, gradients, AdamW)"] = float(state)
    else:
        state = policies * shape.adapter * OPTIMIZER_BYTES
        if config.load_in_4bit:
            base = (shape.parameters - shape.linear) * width + shape.linear * FOUR_BITS
        weights = {"base model" + (" in 4 bits" if config.load_in_4bit else ""): base}
        weights[f"{policies} adapters, gradients, AdamW"] = float(state)
        small = width == 2 and base <= MERGE_LIMIT_BYTES
        if config.sampler == "transformers" and work.gpu is None and small:
            weights["weights as oneDNN multiplies them, for sampling"] = base
    if config.sampler == "transformers":
        rows = work.rows * (config.max_completion_length + PROMPT)
        positions = min(DEFAULT_TOKENS_PER_BATCH, rows)
        cache = positions * shape.cache_per_token * width
        sampling[f"cache of a sampling batch of {positions} tokens"] = float(cache)
    elif config.sampler == "vllm" and work.gpu is not None and not config.workers:
        engines = policies if config.full else 1
        copies = engines * (shape.parameters * width + work.vllm_cache)
        weights["vLLM, a copy of the model and its cache"] = copies
    batch = config.tokens_per_batch
    # Every token counts for nine eighths of one at least (`policies.packing`).
    tokens = batch * 8 // 9
    kept = activation_bytes(shape, tokens, width, checkpointing=config.gradient_checkpointing)
    # Float32 logits of one chunk, what is computed of them, and gradients: at most three tensors of their size; fewer on a CPU.
    logits = 3 * 4 * min(LOGITS_PER_CHUNK, tokens * shape.vocabulary)
    if config.gradient_checkpointing:  # they are gone when the first layer is computed again
        logits = max(0, logits - int(tokens * width * _layer(shape, width)))
    update = {f"activations of an update of {batch} tokens": float(kept), "logits": float(logits)}
    return weights, sampling, update


def activation_bytes(shape: ModelShape, tokens: int, width: int, *, checkpointing: bool) -> int:
    """Bytes that an update with adapters keeps for its backward pass, logits apart.

    The factors were fitted to what is kept of random weights of six shapes with an adapter of rank
    16 (`tests/test_estimate.py`). In 16 bits more is kept: norms are computed in float32.
    """
    layer = _layer(shape, width)
    if checkpointing:  # the input of every layer, and one layer whole
        return int(tokens * width * (shape.layers * shape.hidden + layer))
    return int(tokens * width * shape.layers * layer)


def _layer(shape: ModelShape, width: int) -> float:
    """Numbers of a token that one layer keeps."""
    # Fused attention in bfloat16 on a CPU would keep more: its queries count 10.6 there.
    hidden, inner, queries = (4.1, 4.0, 8.9) if width == 4 else (6.4, 4.2, 7.1)
    return hidden * shape.hidden + inner * shape.inner + queries * shape.queries


_CURES = {
    "activations": "--gradient-checkpointing or a smaller --tokens-per-batch",
    "logits": "a smaller --tokens-per-batch",
    "cache": "a smaller --tasks-per-step or --num-generations",
    "vLLM": "a smaller --vllm.gpu_memory_utilization or --vllm.kv_cache_memory_bytes, or --sampler transformers",
    "training": "adapters (without --full)",
}
"""First word of a part -> what makes it smaller; of others, nothing but 4 bits or a smaller model does."""


def _memory(works: Sequence[Workload]) -> list[str]:
    lines, parts, passing, total = ["", "# Memory, estimated"], Parts(), [0.0], 0.0
    for work in works:
        weights, sampling, update = memory(work)
        if len(works) > 1:
            name = "embedded model" if work.config.embedded else work.config.model
            lines.append(f"#   {name}: {', '.join(work.names)}")
        lines += [
            f"#   {size(value):>9}  {what}" for what, value in (weights | sampling | update).items()
        ]
        parts |= weights | sampling | update
        total += sum(weights.values())
        # Sampling and update come one after the other, so that the larger one counts.
        passing += [sum(sampling.values()), sum(update.values())]
    peak = total + max(passing)
    lines.append(f"#   {size(peak):>9}  at the fullest moment")
    gpu = works[0].gpu
    if gpu is None:
        return lines
    holds = f"{gpu.name} ({gpu.gib:g} GiB, of which {USABLE:.0%} are counted)"
    in_vllm = [work for work in works if work.config.sampler == "vllm" and not work.config.workers]
    if any(work.vllm_cache <= 0 for work in in_vllm):
        return [
            *lines,
            f"# vLLM's share of {holds} has no room for a cache: raise --vllm.gpu_memory_utilization",
        ]
    if peak <= USABLE * gpu.gib * GIB:
        return [*lines, f"# Fits into {holds}"]
    what, value = max(parts.items(), key=lambda pair: pair[1])
    cure = _CURES.get(re.split(r"\W", what)[0], "--load-in-4bit, a smaller model, or a larger GPU")
    return [
        *lines,
        f"# Does not fit into {holds}; the largest part: {what}, {size(value)}; try {cure}",
    ]


# ----------------------------------------------------------------------------------- work and time


def _work(works: Sequence[Workload], unit: str) -> list[str]:
    config = works[0].config
    # Two operations a parameter and token forward, four more backward.
    flops = sum(2 * work.shape.parameters * work.tokens * (1 + 3) for work in works)
    budget = "" if config.max_tokens is None else f", or {config.max_tokens:,} generated tokens"
    models = [
        f"model: {work.shape.parameters:,} parameters, adapter: {work.shape.adapter:,}"
        for work in works
    ]
    scope = "to each prompt)" if works[0].tree else "episodes of each task)"
    return [
        "",
        f"# Work {unit}, at the most",
        f"#   {sum(work.completions for work in works):>9,}  completions ({config.num_generations} {scope}",
        f"#   {sum(work.tokens for work in works):>9,}  sampled tokens",
        f"#   {flops / 1e12:>9,.3g}  TFLOP to sample and update, prompts not counted",
        "; ".join([f"# Steps: {config.max_steps}{budget}", *models]),
    ]


def _rehearsal(env: AnyEnv) -> list[str]:
    """Who is asked what in a task whose replies are all empty: the size of each prompt, and each role's first prompt."""
    lines, roles, why = ["", "# Prompts of a task with empty replies"], set[str](), ""
    env.reset(seed=0)
    for number in range(1, MOST_PROMPTS + 1):
        if (agent := next_agent(env)) is None:
            break
        role, text = role_of(agent), observe_text(env, agent)
        lines.append(f"#   {number:>9}  {role}, {len(text):,} characters")
        if role not in roles:
            first, *more = text.splitlines()[: MOST_LINES + 1] or [""]
            shown = [first, *more[: MOST_LINES - 1], *["..."] * (len(more) >= MOST_LINES)]
            lines += [f"#              {line}".rstrip() for line in shown]
        roles.add(role)
        env.step("")
        why = env.infos.get(agent, {}).get("parse_error") or ""
    return [*lines, f"# The last reply was unparsable: {why}"] if why else lines


def _measured(plan: TrainPlan) -> list[str]:
    """The time of a step and of an evaluation on this machine, from a few tasks of each."""
    config = plan.config
    tasks, rounds = min(MEASURED_TASKS, config.tasks_per_step), _evaluations(plan)
    with contextlib.closing(build_policies(config, plan.roles_to_policies)) as policies:
        _evaluated(plan, policies)  # first calls take longer, so that the second ones count
        for count in (1, tasks):
            small = dataclasses.replace(config, tasks_per_step=count)
            _, metrics = ATGRPO(small, plan.env, policies).train_step()
        _NoneSilent(small, plan.env, policies).train_step()
        held, played_s = _evaluated(plan, policies)
    scale = config.tasks_per_step / tasks
    steps_s = scale * metrics["time/step"] * config.max_steps
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB, but bytes on a Mac
    lines = [
        (f"{duration(scale * metrics[f'time/{phase}'])}", f"{phase}, of a step") for phase in TIMED
    ]
    lines += [
        (duration(steps_s), f"all {config.max_steps} steps"),
        (duration(rounds * played_s), f"{rounds} evaluations of {config.eval_tasks} tasks"),
        (duration(steps_s + rounds * played_s), "the run"),
        (
            size(peak if sys.platform == "darwin" else 1024 * peak),
            "most memory of this process, in a step without silent groups",
        ),
    ]
    head = (
        f"# Time on this machine, measured with {tasks} of {config.tasks_per_step} tasks of a step"
    )
    more = f", {held} of {config.eval_tasks} of an evaluation" if held else ""
    return ["", head + more, *(f"#   {value:>9}  {what}" for value, what in lines)]


def _evaluated(plan: TrainPlan, policies: PolicySet) -> tuple[int, float]:
    """Plays some of the held-out tasks; returns how many, and the seconds that all of them take."""
    config = plan.config
    if not config.eval_tasks:
        return 0, 0.0
    env = make_env(config, "test", plan.source, divide=True)
    held = held_out(env, "test", min(EPISODES_AT_ONCE, config.eval_tasks))
    began = time.monotonic()
    evaluate(
        env,
        policies,
        tasks=held,
        max_new_tokens=config.max_completion_length,
        temperature=config.temperature,
        scoring_threads=config.scoring_threads,
    )
    return len(held), (time.monotonic() - began) * config.eval_tasks / len(held)


class _NoneSilent(ATGRPO):
    """Learns from every completion: an untrained team's groups are often silent, and a step then takes less memory than later ones."""

    def credited(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        groups = [g for g in in_order(trajectories) if g.policy in self.casting.learners]
        values = [float(place) for g in groups for place in range(1, len(g.candidates) + 1)]
        return with_advantages(trajectories, groups, values)  # different, so that none are merged


def _evaluations(plan: TrainPlan) -> int:
    """How often a run plays its held-out tasks: before and after, sampled and greedy, in between, and once for each team of the roles' table."""
    config = plan.config
    if not config.eval_tasks:
        return 0
    trained = trained_policies(config.train_roles, plan.roles_to_policies)
    between = config.max_steps // config.eval_steps if config.eval_steps else 0
    compared = config.compare_roles and len(trained) > 1 and not config.workers
    return 4 + between + (len(role_teams(trained)) if compared else 0)


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} s"


def size(count: float) -> str:
    """Bytes as GiB, or MiB where few."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 2 else f"{count / (1 << 20):.1f} MiB"
