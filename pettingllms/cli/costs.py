"""The costs of a training run, as arithmetic: bytes by part, seconds of a step, ways to fit.

Activations are within 15 % of what was measured on a CPU (`tests/test_estimate.py`); other bytes are
counted. Times follow from the published rates of a GPU and from the shares of them in `ASSUMED`, which
are guesses: nothing here was measured on a GPU.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pettingllms.models.head import LOGITS_PER_CHUNK
from pettingllms.rollout.shapes import RolloutShape
from pettingllms.samplers.base import DEFAULT_TOKENS_PER_BATCH
from pettingllms.trainers.config import ResolvedConfig

GIB = 1 << 30
OPTIMIZER_BYTES = 4 + 4 + 4 + 4
"""Float32 master copy, gradient and AdamW's two moments of each trained number."""
PROMPT = 1024
"""Tokens of a prompt, as a guess."""
# Beside half a byte: a scale of 8 bits for 64 numbers, and one of 32 bits for 256 scales, which is
# (8 / 64 + 32 / (64 * 256)) / 8 bytes (double quantization: QLoRA, arXiv 2305.14314).
FOUR_BITS = 0.5 + 0.016
"""Bytes of a number in NF4 whose constants are quantized again."""
USABLE = 0.95
"""Share of a GPU's memory that tensors can have; CUDA and its allocator hold the rest."""
VLLM_SHARE = 0.4
"""Share of the GPU that vLLM takes beside the trainer, unless set."""
VLLM_ROWS = 256
"""Completions that vLLM decodes at the same time, by its default."""


@dataclass(frozen=True, slots=True)
class Assumed:
    """Shares of a GPU's published rates, and what a layer costs however little it computes."""

    compute: float = 0.4
    bandwidth: float = 0.6
    layer_s: float = 1e-3
    """Seconds of a layer and decoded token with transformers: its kernels are started one by one."""
    vllm_layer_s: float = 5e-5
    """With vLLM, which replays recorded graphs."""


ASSUMED = Assumed()


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as published; rates are dense bfloat16."""

    name: str
    gib: float
    tflops: float
    """0 where the rate is not known."""
    gbytes: float
    """GB/s of its memory."""


GPUS: Mapping[str, Gpu] = {
    "rtx-4090": Gpu("RTX 4090", 24, 165, 1008),
    "l40s": Gpu("L40S", 48, 362, 864),
    "a100": Gpu("A100 80GB", 80, 312, 2039),
    "h100": Gpu("H100", 80, 989, 3350),
    "h100-pcie": Gpu("H100 PCIe", 80, 756, 2000),
    "h200": Gpu("H200", 141, 989, 4800),
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
class Memory:
    """Bytes by part. Sampling and update come one after the other, so that the larger one counts."""

    weights: Mapping[str, float]
    """There all the time."""
    sampling: Mapping[str, float]
    update: Mapping[str, float]

    @property
    def passing(self) -> float:
        """Bytes that come and go, at the fullest moment."""
        return max(sum(self.sampling.values()), sum(self.update.values()))


@dataclass(frozen=True, slots=True)
class Workload:
    """A run as the estimates see it, or what one of several base models does in it."""

    config: ResolvedConfig
    shape: ModelShape
    policies: int
    trained: int
    agents: int
    turns: int
    tree: bool
    gpu: Gpu | None
    """None: a CPU."""
    rollout: RolloutShape
    """What is sampled of a task."""
    names: tuple[str, ...] = ()
    """The policies."""
    bases: int = 1
    """Base models that share the device."""

    @property
    def width(self) -> int:
        """Bytes of a number in the computation."""
        if self.config.dtype == "auto":
            return 4 if self.gpu is None else 2
        return 4 if self.config.dtype == "float32" else 2

    @property
    def engines(self) -> int:
        """Engines of vLLM in the trainer's process: each full model has its own."""
        return self.policies if self.config.full else 1

    def vllm_cache(self, usual: float | None = None, gpus: float = 1.0) -> float:
        """Bytes of the cache of one of vLLM's engines.

        Args:
            usual: its share of each of its GPUs, where the settings give none; None: beside a trainer.
            gpus: how many it has.
        """
        own, gib = self.config.mapping("vllm"), self.gpu.gib if self.gpu else 0.0
        # Where both are given, vLLM takes the bytes; they are those on each of its GPUs.
        if (cache := own.get("kv_cache_memory_bytes")) is not None:
            return float(cache) * gpus
        usual = VLLM_SHARE / self.bases / self.engines if usual is None else usual
        share = own.get("gpu_memory_utilization", usual)
        return float(share * gpus * gib * GIB - self.shape.parameters * self.width)

    @property
    def cache_token_bytes(self) -> int:
        """Keys and values of one token in the sampler's cache."""
        vllm = self.config.mapping("vllm") if self.config.sampler.startswith("vllm") else {}
        short = str(vllm.get("kv_cache_dtype", "")).startswith("fp8")
        return self.shape.cache_per_token * (1 if short else self.width)

    @property
    def row_bytes(self) -> float:
        """Bytes of vLLM's cache for a completion of full length, with its part of the prompt.

        The K completions of a prompt share its blocks, unless that is switched off.
        """
        shared = self.config.mapping("vllm").get("enable_prefix_caching", True) and self.tree
        prompt = PROMPT / (self.config.num_generations if shared else 1)
        return (prompt + self.config.max_completion_length) * self.cache_token_bytes

    @property
    def rows(self) -> int:
        """Completions that are due at the same time."""
        return self.config.tasks_per_step * self.config.num_generations

    @property
    def completions(self) -> int:
        """Completions sampled in a step, at the most."""
        return self.config.tasks_per_step * self.rollout.completions(self.agents * self.turns)

    @property
    def trained_on(self) -> int:
        """Completions of a step's updates, at the most."""
        count = self.agents * self.turns
        return self.config.tasks_per_step * self.rollout.completions(count, probes=False)

    @property
    def tokens(self) -> int:
        """Sampled in a step, at the most."""
        return self.completions * self.config.max_completion_length


# ------------------------------------------------------------------------------------------ bytes


def memory(work: Workload) -> Memory:
    """Bytes by part."""
    config, shape, width = work.config, work.shape, work.width
    base = shape.parameters * width
    if config.full:
        # A KL term needs the base beside full models; adapters are only switched off for it.
        models = work.policies + (config.beta > 0)
        weights: dict[str, float] = {
            f"{models} full models (sampling copies)": models * base,
            "training state (float32 weights, gradients, AdamW)": work.trained
            * shape.parameters
            * OPTIMIZER_BYTES,
        }
    else:
        if config.load_in_4bit:
            base = int((shape.parameters - shape.linear) * width + shape.linear * FOUR_BITS)
        weights = {
            "base model" + (" in 4 bits" if config.load_in_4bit else ""): base,
            f"{work.policies} adapters, gradients, AdamW": work.policies
            * shape.adapter
            * OPTIMIZER_BYTES,
        }
    sampling = {}
    if config.sampler == "transformers":
        positions = min(
            DEFAULT_TOKENS_PER_BATCH, work.rows * (config.max_completion_length + PROMPT)
        )
        sampling[f"cache of a sampling batch of {positions} tokens"] = float(
            positions * shape.cache_per_token * width
        )
    elif config.sampler == "vllm" and work.gpu is not None and not config.workers:
        # Engines that are processes of their own are counted by `_engines` of the estimate.
        cache = work.vllm_cache()
        weights["vLLM, a copy of the model and its cache"] = work.engines * (
            shape.parameters * width + cache
        )
    batch = config.tokens_per_batch
    update = {
        f"activations of an update of {batch} tokens": float(
            activation_bytes(shape, batch, width, checkpointing=config.gradient_checkpointing)
        ),
        # Float32 logits of one chunk, their gradient and what is computed of them.
        "logits": float(4 * 4 * min(LOGITS_PER_CHUNK, batch * shape.vocabulary)),
    }
    return Memory(weights, sampling, update)


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


def peak(works: Sequence[Workload]) -> float:
    """Bytes at the fullest moment: the weights of all base models, and what one of them computes."""
    found = [memory(work) for work in works]
    return sum(sum(each.weights.values()) for each in found) + max(each.passing for each in found)


def fits(works: Sequence[Workload]) -> bool:
    """Returns whether the fullest moment fits into the GPU, and each model into vLLM.

    True without a GPU: a CPU is not checked.
    """
    gpu = works[0].gpu
    if gpu is None:
        return True
    in_vllm = [work for work in works if work.config.sampler == "vllm" and not work.config.workers]
    whole = peak(works) <= USABLE * gpu.gib * GIB
    return whole and all(vllm_rows(work) >= 1 for work in in_vllm)


def cure(works: Sequence[Workload]) -> tuple[list[str], Sequence[Workload]] | None:
    """Options that make a run fit, the mildest first, and the run with them; None if none do."""
    taken: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, value, changes in _smaller(works[0].config):
        taken[name] = (value, changes)
        if fits(_with(works, taken)):
            break
    else:
        return None
    # An option may have helped nothing, such as a smaller update where sampling needs more.
    for name in [*taken]:
        rest = {other: each for other, each in taken.items() if other != name}
        if fits(_with(works, rest)):
            taken = rest
    return [f"{name} {value}".strip() for name, (value, _) in taken.items()], _with(works, taken)


def _with(
    works: Sequence[Workload], options: Mapping[str, tuple[str, dict[str, Any]]]
) -> list[Workload]:
    """The same under options of the team; what a policy has for itself stays."""
    given = {name: value for _, changes in options.values() for name, value in changes.items()}
    found: list[Workload] = []
    for work in works:
        own = work.config.mapping("policy_settings").get(next(iter(work.names), ""), {})
        # A policy of full models stays out of 4 bits, which settings refuse for it.
        kept = {*own, *(["load_in_4bit"] if own.get("full") else [])}
        changes = {name: value for name, value in given.items() if name not in kept}
        config = dataclasses.replace(work.config, **changes)
        found.append(dataclasses.replace(work, config=config))
    return found


def _smaller(config: ResolvedConfig) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Options, their values and settings, with ever less memory, each on top of those before."""
    if not config.gradient_checkpointing:
        yield "--gradient-checkpointing", "", {"gradient_checkpointing": True}
    tokens = config.tokens_per_batch
    # A micro-batch has at least one completion with its prompt, however small it is asked to be.
    while tokens >= 2 * (PROMPT + config.max_completion_length):
        tokens //= 2
        yield "--tokens-per-batch", str(tokens), {"tokens_per_batch": tokens}
    if config.full:
        yield "--full", "false", {"full": False}
    if config.sampler == "vllm":
        # First less, which leaves more to the trainer; then more, if vLLM's copy has no cache.
        name, values = "gpu_memory_utilization", [0.3, 0.2, 0.5, 0.6, 0.7]
        if cache := config.mapping("vllm").get("kv_cache_memory_bytes"):
            name, values = "kv_cache_memory_bytes", [cache // part for part in (2, 4, 8)]
        for value in values:
            yield f"--vllm.{name}", str(value), {"vllm": f'{{"{name}": {value}}}'}
        yield "--sampler", "transformers", {"sampler": "transformers", "vllm": None}
    if not config.load_in_4bit:
        # vLLM would sample from the weights before quantization, so that it has to go as well.
        options = {"load_in_4bit": True, "full": False, "sampler": "transformers", "vllm": None}
        yield "--load-in-4bit", "", options
    rows = config.tasks_per_step
    while rows > 1:
        rows //= 2
        yield "--tasks-per-step", str(rows), {"tasks_per_step": rows}


# ---------------------------------------------------------------------------------------- seconds


def vllm_rows(work: Workload) -> int:
    """Completions whose cache fits into vLLM's share beside its copy of the model."""
    room = work.vllm_cache()
    return max(0, int(room / work.row_bytes))


def rows_at_once(work: Workload) -> int:
    """Completions that the sampler decodes at the same time."""
    if work.config.sampler == "vllm" and work.gpu is not None:
        return max(1, min(work.rows, VLLM_ROWS, vllm_rows(work)))
    if work.config.sampler.startswith("vllm"):
        return min(work.rows, VLLM_ROWS)
    length = PROMPT + work.config.max_completion_length
    return max(1, min(work.rows, DEFAULT_TOKENS_PER_BATCH // length))


def sampling_seconds(work: Workload, gpu: Gpu) -> float:
    """Seconds of a step's sampling, if every completion has its full length.

    A decoded token reads all weights, once for those decoded with it, and the cache of its own row, also
    of a prompt that is kept once. Agents' decisions follow one another.
    """
    shape, length, at_once = work.shape, work.config.max_completion_length, rows_at_once(work)
    fast = work.config.sampler.startswith("vllm")
    started = shape.layers * (ASSUMED.vllm_layer_s if fast else ASSUMED.layer_s)
    passes = math.ceil(work.rows / at_once)
    decisions = work.agents * work.turns
    # Beside the K completions of a decision, the probes and forks of earlier ones are still played.
    more = work.completions / (work.rows * decisions)
    passes, rows = math.ceil(passes * more), work.rows * more
    # While a completion is decoded, half of its length is in the cache on average.
    cache = rows * (PROMPT + length / 2) * work.cache_token_bytes
    bandwidth, rate = gpu.gbytes * 1e9 * ASSUMED.bandwidth, gpu.tflops * 1e12 * ASSUMED.compute
    read = (passes * shape.parameters * work.width + cache) / bandwidth
    computed = 2 * shape.parameters * rows / rate
    prompts = work.config.tasks_per_step if work.tree else work.rows
    prefill = 2 * shape.parameters * prompts * PROMPT / rate
    # A GPU reads and computes at the same time: the slower of the two counts (roofline model).
    return decisions * (prefill + length * (max(read, computed) + passes * started))


def update_operations(config: ResolvedConfig) -> int:
    """Operations of an update for each parameter and token: 2 forward, 2 or 4 backward.

    Under adapters the base has no gradient of its own; checkpointing computes the forward pass again.
    """
    # A KL term takes one more forward pass, that of its reference.
    return (6 if config.full else 4) + 2 * config.gradient_checkpointing + 2 * (config.beta > 0)


def update_seconds(work: Workload, gpu: Gpu) -> float:
    """Seconds of a step's updates."""
    config = work.config
    prompts = work.trained_on // (config.num_generations if work.tree else 1)
    tokens = work.trained_on * config.max_completion_length + prompts * PROMPT
    operations = update_operations(config) * work.shape.parameters * tokens * config.num_iterations
    return operations / (gpu.tflops * 1e12 * ASSUMED.compute)
