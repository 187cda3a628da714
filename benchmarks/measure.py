"""What the speed benchmarks share: a base model, fair timing, and a table with its JSON.

Contestants take turns, round by round, so that a busy moment of the machine meets all of them;
the median of the rounds counts. On a CPU the time is that of the process (CPU-seconds), with one
thread; on an accelerator it is wall-clock time.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from benchmarks.lengths import log_normal
from benchmarks.options import Options
from pettingllms.names import model_path
from pettingllms.policies.prefix_trial import share_prompts
from pettingllms.policies.weights import MERGE_LIMIT_BYTES, LoraWeights

POLICY = "policy"
PRODUCTS = {
    getattr(torch.ops.aten, name)
    for name in ("mm", "addmm", "bmm", "baddbmm", "baddbmm_", "linear")
}


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all speed benchmarks have."""
    options = Options(description)
    options.add_argument(
        "--model", help="folder, id, or smollm2; default: random weights, 1.1M parameters"
    )
    options.add_argument(
        "--model-config", help="config.json of a model to make with random weights"
    )
    options.add_argument("--device", default="cpu")
    options.add_argument("--dtype", help="float32 on a CPU, else bfloat16")
    options.add_argument("--prompts", type=int, default=16, help="different prompts")
    options.add_argument("--prompt-tokens", type=int, default=60, help="mean length")
    options.add_argument("--k", type=int, nargs="+", default=[8, 16], help="replies per prompt")
    options.add_argument("--reply-tokens", type=int, nargs="+", default=[32, 48], help="for each K")
    options.add_argument(
        "--spread", type=float, default=0.5, help="lengths vary by this share of their mean"
    )
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", type=Path, help="also write the figures to this file")
    return options


def weights(options: argparse.Namespace) -> LoraWeights:
    """One adapter, r 16 on all linear layers, moved away from zero, on the base asked for."""
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    low = torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype = getattr(torch, options.dtype) if options.dtype else low
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(model_path(options.model), dtype=dtype)
    else:
        config = (
            AutoConfig.from_pretrained(options.model_config) if options.model_config else tiny()
        )
        with device:  # billions of random numbers take a CPU minutes
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    nn.Module.to(model.eval(), device)  # transformers' own `to` is not typed
    share_prompts(model)
    merge = dtype != torch.float32 or model.get_memory_footprint() <= MERGE_LIMIT_BYTES
    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    lora = LoraWeights(model, options.model or "random", {POLICY: config}, seed=0, merge=merge)
    with torch.no_grad():
        for parameter in lora.tensors(POLICY).values():
            parameter.add_(0.01 * torch.randn_like(parameter))
    lora.refresh(POLICY)
    return lora


def tiny() -> Qwen3Config:
    """The size of the base model that comes with the package: 1.1M parameters."""
    return Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )


def random_texts(
    options: argparse.Namespace,
    model: PreTrainedModel,
    count: int,
    mean: int,
    seed: int,
    longest: int | None = None,
) -> list[tuple[int, ...]]:
    """Random tokens, in lengths spread evenly around `mean`, or with a long tail.

    With `longest`, lengths are log-normal (deviation 1 of the logarithm), cut at `longest`, and the
    first one has that length, as in training, where some completions run into the limit.
    """
    generator = torch.Generator().manual_seed(options.seed + seed)
    if longest is None:
        low, high = round(mean * (1 - options.spread)), round(mean * (1 + options.spread))
        lengths = torch.randint(max(low, 1), high + 1, (count,), generator=generator).tolist()
    else:
        lengths = log_normal(count, mean, longest, generator)
    vocabulary = model.config.vocab_size
    return [
        tuple(torch.randint(5, vocabulary, (length,), generator=generator).tolist())
        for length in lengths
    ]


def saved_bytes(
    forward: Callable[[], torch.Tensor],
    *,
    backward: bool = True,
    without: Collection[int] = (),
) -> int:
    """Bytes of the distinct tensors that a forward pass keeps for its backward pass.

    Args:
        forward: computes the loss.
        backward: also take the backward pass, which frees what is kept.
        without: addresses of storages that do not count, such as the model's own weights.
    """
    storages: dict[int, int] = {}
    kept: list[torch.Tensor] = []  # or a freed one's address could be taken for a kept one's

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = forward()
    if backward:
        loss.backward()
    return sum(size for address, size in storages.items() if address not in without)


def alternate(
    contestants: Mapping[str, Callable[[], object]], rounds: int, device: str
) -> dict[str, float]:
    """Median seconds of each contestant, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            start = _now(device)
            run()
            if number:
                seconds[name].append(_now(device) - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


class Products(TorchDispatchMode):
    """Counts matrix products by their operation and the shapes, strides, and types of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[tuple[Any, ...]]()
        self.places = defaultdict[tuple[Any, ...], list[set[int]]](list)
        """Where the tensors of each argument were in memory."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs the operation."""
        tensors = [a for a in args if torch.is_tensor(a)]
        if operation.overloadpacket in PRODUCTS:
            self._count(operation, tensors)
        elif operation.name() == "mkldnn::_linear_pointwise":
            self._count(torch.ops.aten.linear.default, tensors)
        elif "scaled_dot_product" in str(operation):
            for product in _of_attention(tensors, "backward" in str(operation)):
                self._count(torch.ops.aten.bmm.default, product)
        return operation(*args, **(kwargs or {}))

    def _count(self, operation: Any, tensors: Sequence[torch.Tensor]) -> None:
        # A weight that lies in oneDNN's order counts as it lies elsewhere.
        strides = [(a.shape[1], 1) if a.is_mkldnn else a.stride() for a in tensors]
        shapes = [tuple(a.shape) for a in tensors]
        key = (operation, *zip(shapes, strides, [a.dtype for a in tensors], strict=True))
        self.calls[key] += 1
        places = self.places[key]
        places += [set() for _ in tensors[len(places) :]]
        for seen, tensor in zip(places, tensors, strict=True):
            seen.add(id(tensor) if tensor.is_mkldnn else tensor.data_ptr())


def _of_attention(
    tensors: Sequence[torch.Tensor], backward: bool
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Products of the shapes that a fused kernel of attention computes: two, and of its backward pass five."""
    if backward:  # behind the gradient of its output
        tensors = tensors[1:]
    heads = tensors[0].shape[1]  # of queries; several may share one of keys and values
    query, key, value = (
        states.repeat_interleave(heads // states.shape[1], 1).flatten(0, 1)
        for states in tensors[:3]
    )
    scores = query.new_empty(len(query), query.shape[1], key.shape[1])
    forward = [(query, key.mT), (scores, value)]
    if not backward:
        return forward
    # The scores again; gradients of the weights, then of the values, the queries, and the keys.
    back = [(query, value.mT), (scores.mT, query), (scores, key), (scores.mT, query)]
    return [forward[0], *back]


def product_seconds(run: Callable[[], object], device: str) -> float:
    """Seconds that the matrix products of a run take by themselves, each the fastest of three.

    It is a bound on what the run can gain without computing less. An argument that was at several
    places in memory, such as the weights of 30 layers, is at as many here: a product of the same
    tensors again and again would find them in a cache. Of attention's fused kernels, the products inside count.
    """
    with Products() as products:
        run()
    total = 0.0
    for key, count in products.calls.items():
        operation, *shapes = key
        copies = [
            # More than a cache holds are enough, and take less time to fill.
            min(len(seen), 32, 1 + 2**28 // (1 + math.prod(shape) * dtype.itemsize))
            for seen, (shape, _, dtype) in zip(products.places[key], shapes, strict=True)
        ]
        tensors = [
            [torch.empty_strided(*places, dtype=dtype, device=device) for _ in range(copied)]
            for (*places, dtype), copied in zip(shapes, copies, strict=True)
        ]
        for first, *others in tensors:
            first.normal_()
            for other in others:  # drawing takes ten times as long as copying
                other.copy_(first)
        product = partial(_product, operation, [cycle(several) for several in tensors])
        total += count * min(_timed(product, device, max(copies)) for _ in range(3))
    return total


def _product(operation: Any, arguments: list[Iterator[torch.Tensor]]) -> None:
    operation(*map(next, arguments))


def _timed(run: Callable[[], object], device: str, least: int) -> float:
    repeats, start = 0, _now(device)
    while (passed := _now(device) - start) < 0.01 or repeats < least:
        run()
        repeats += 1
    return passed / repeats


def _now(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def report(
    title: str, options: argparse.Namespace, model: PreTrainedModel, rows: list[dict[str, Any]]
) -> None:
    """Prints a table and writes the same figures as JSON where asked."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    unit = "CPU-second" if options.device == "cpu" else "second"
    print(f"{title}: {parameters:,} parameters with adapter, {model.dtype}, tokens per {unit}")
    publish(title, options, rows)


def publish(title: str, options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Prints the rows as a table, and writes them as JSON where asked."""
    names = list(rows[0])
    cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    if options.json:
        settings = {key: str(value) for key, value in vars(options).items() if key != "json"}
        packages = ("pettingllms", "torch", "transformers", "peft", "trl")
        versions = {name: importlib.metadata.version(name) for name in packages}
        content = {"title": title, "settings": settings, "versions": versions, "rows": rows}
        options.json.write_text(json.dumps(content, indent=2) + "\n")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2e}" if 0 < abs(value) < 0.01 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
