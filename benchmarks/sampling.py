"""Tokens per second of the sampler, of transformers' `generate` with K returned sequences, and of vLLM.

    python -m benchmarks.sampling --sizes tiny small medium

The same model, the same adapter, the same number of tokens (no reply ends early, which is the
worst case for the sampler: it drops rows that have ended, `generate` computes them to the end);
with `--longest N` their lengths are log-normal, cut at N (`benchmarks/lengths.py`).
Prompts vary in length as they do in training; `--spread 0` makes them equal.

Each runs twice: with the adapter beside the weights, and without, on plain or merged weights,
which cost the same. vLLM takes part where it is installed; its cache of prompts is emptied before
each round. `products` is the share of the sampler's time with the adapter that its matrix products take by themselves.
With `--device cuda` the figures are tokens per second. `--alone` leaves out `generate` and vLLM, which take
many times as long on a CPU.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessorList, PreTrainedModel, Qwen3Config

from benchmarks.lengths import LengthGenerator, Lengths, log_normal
from benchmarks.measure import (
    POLICY,
    alternate,
    parser,
    product_seconds,
    random_texts,
    report,
    tiny,
    weights,
)
from pettingllms.names import model_path
from pettingllms.policies.weights import LoraWeights
from pettingllms.samplers.base import SamplingParams
from pettingllms.samplers.transformers import BatchGenerator
from pettingllms.samplers.vllm import VllmEngine
from pettingllms.samplers.vllm_args import engine_defaults, installed, lora_options
from pettingllms.types import Request

SIZES = {
    "tiny": {},
    "small": {"hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 8},
    "medium": {"hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 8},
}

END_ID = 1


def main() -> None:
    """Prints the table."""
    options = parser(__doc__)
    options.add_argument("--sizes", nargs="+", choices=SIZES, help="random models of these sizes")
    options.add_argument("--longest", type=int, help="log-normal lengths, cut here")
    options.add_argument("--alone", action="store_true", help="measure only this project's sampler")
    arguments = options.parse_args()
    rows: list[dict[str, Any]] = []
    for size in arguments.sizes or [None]:
        with tempfile.TemporaryDirectory() as folder:
            policies, adapted = _model(arguments, size, Path(folder))
            engines = _engines(arguments, policies) if installed() and not arguments.alone else {}
            prompts = random_texts(
                arguments, adapted, arguments.prompts, arguments.prompt_tokens, seed=0
            )
            for k, length in zip(arguments.k, arguments.reply_tokens, strict=True):
                rows.append(_row(arguments, policies, engines, prompts, k, length))
            for engine in engines.values():
                engine.close()
    report("sampling", arguments, adapted, rows)
    if not torch.cuda.is_available():
        print("no GPU was at hand: these are figures of a CPU; --device cuda measures one")


def _model(
    options: argparse.Namespace, size: str | None, folder: Path
) -> tuple[LoraWeights, PreTrainedModel]:
    """The model and its adapter; the bare model is also written to the folder, for vLLM."""
    if size is not None:
        values = {name: value for name, value in tiny().to_dict().items() if name != "layer_types"}
        config = Qwen3Config(**{**values, **SIZES[size]})
        config.save_pretrained(folder)
        options.model_config = str(folder)
    policies = weights(options)
    adapted = policies.module(POLICY)
    if options.model:
        policies.base = str(model_path(options.model))  # vLLM knows no names of ours
    else:
        names = {name: name.replace(".base_layer.", ".") for name in adapted.state_dict()}
        plain = {
            new: adapted.state_dict()[old].contiguous()
            for old, new in names.items()
            if ".lora_" not in old
        }
        adapted.save_pretrained(folder / "model", state_dict=plain)
        policies.base = str(folder / "model")
    return policies, adapted


def _engines(options: argparse.Namespace, policies: LoraWeights) -> dict[str, VllmEngine]:
    """VLLM with the adapter, and without."""
    common = engine_defaults(options.device == "cpu", engines=2)
    common |= {"dtype": str(policies.module(POLICY).dtype).removeprefix("torch.")}
    common |= {"skip_tokenizer_init": True, "max_model_len": 4096}
    engines = {}
    for name, more in (("plain", {}), ("adapter", lora_options([POLICY], 16))):
        engine = VllmEngine(policies, (POLICY,), (), options=common | more, folder=None)
        if name == "adapter":
            engine.publish(POLICY, 0)
        engines[name] = engine
    return engines


def _row(
    options: argparse.Namespace,
    policies: LoraWeights,
    engines: dict[str, VllmEngine],
    prompts: list[tuple[int, ...]],
    k: int,
    length: int,
) -> dict[str, Any]:
    count, longest = len(prompts) * k, options.longest or length
    lengths = [length] * count
    generator, ends = BatchGenerator((), 0), LogitsProcessorList()
    if options.longest:
        drawn = torch.Generator().manual_seed(options.seed)
        lengths = log_normal(count, length, longest, drawn)
        generator = LengthGenerator(lengths, END_ID, longest)
        ends.append(Lengths(lengths, END_ID, longest))
    adapted, sampled = policies.module(POLICY), policies.sampling_module(POLICY)
    half = adapted.dtype != torch.float32
    modules = {"adapter": sampled if half else adapted}
    if not half and sampled is not adapted:
        modules["plain"] = sampled
    contestants: dict[str, Callable[[], object]] = {}
    for name, module in modules.items():
        contestants[f"sampler, {name}"] = partial(
            generator.generate, module, prompts, k, SamplingParams(longest), range(len(prompts))
        )
        if not options.alone:
            contestants[f"generate, {name}"] = partial(_generate, module, prompts, k, longest, ends)
    for name, engine in engines.items():
        contestants[f"vllm, {name}"] = partial(_vllm, engine, prompts, k, length)
    seconds = alternate(contestants, options.rounds, options.device)
    tokens = sum(lengths)
    row: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in adapted.parameters()),
        "K": k,
        "reply tokens": length,
    }
    row |= {name: tokens / duration for name, duration in seconds.items()}
    row["products"] = (
        product_seconds(contestants["sampler, adapter"], options.device)
        / seconds["sampler, adapter"]
    )
    if not engines and not options.alone:
        row |= {"vllm, plain": "not installed", "vllm, adapter": "not installed"}
    return row


def _vllm(engine: VllmEngine, prompts: list[tuple[int, ...]], k: int, length: int) -> None:
    for llm in engine._engines:
        llm.reset_prefix_cache()
    requests = [Request(POLICY, prompt, seed) for seed, prompt in enumerate(prompts)]
    engine.sample(requests, k, SamplingParams(length))


def _generate(
    model: PreTrainedModel,
    prompts: list[tuple[int, ...]],
    k: int,
    longest: int,
    ends: LogitsProcessorList,
) -> None:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    attention = model.config._attn_implementation
    model.config._attn_implementation = "sdpa"
    generate: Any = model.generate  # its decorator is not typed
    try:
        generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            num_return_sequences=k,
            max_new_tokens=longest,
            min_new_tokens=0 if ends else longest,
            logits_processor=ends,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
            eos_token_id=END_ID,
        )
    finally:
        model.config._attn_implementation = attention


if __name__ == "__main__":
    main()
