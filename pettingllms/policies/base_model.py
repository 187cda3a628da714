"""The model of a run: a name or an object, how it is loaded, and its fresh adapters."""

from __future__ import annotations

import functools
import importlib.util
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from peft import PeftModel
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pettingllms.errors import ConfigError, did_you_mean
from pettingllms.policies.prefix_trial import check_head, share_prompts

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A base model, named or given, and the adapters that are put into it.

    Raises:
        ConfigError: an object that is not a model or not a tokenizer.
    """

    name: str
    """Hugging Face id, or a folder; of a given model what adapters and messages call it."""
    revision: str | None = None
    attn_implementation: str = "auto"
    """As transformers has it; auto: the attention of this package where it fits."""
    load_in_4bit: bool = False
    adapter_dtype: str = "float32"
    """Or "base": that of the base."""
    long_context: bool = False
    """See `pettingllms.policies.base_model`."""
    model: PreTrainedModel | None = None
    """Loaded already; it is used itself, and adapters are put into it."""
    tokenizer: PreTrainedTokenizerBase | None = None

    def __post_init__(self) -> None:
        model, tokenizer = self.model, self.tokenizer
        if isinstance(model, PeftModel):
            raise ConfigError(
                "model has an adapter already; give its base model, and the adapter's folder as "
                "adapters"
            )
        if model is not None and not (isinstance(model, PreTrainedModel) and model.can_generate()):
            raise ConfigError(
                f"model must be a name, a folder or a causal model of transformers, got a "
                f"{type(model).__name__}"
            )
        if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise ConfigError(
                f"processing_class must be a tokenizer of transformers, got a "
                f"{type(tokenizer).__name__}"
            )

    @classmethod
    def of(cls, model: str | Path | Self) -> Self:
        """A model of this name, or in this folder; a `ModelSpec` is itself."""
        return model if isinstance(model, cls) else cls(str(model))

    def dtype_and_device(
        self, dtype: str | torch.dtype | None, device: str | torch.device | None
    ) -> tuple[torch.dtype, torch.device]:
        """The dtype and device of the computation; open ones follow from the model or the machine.

        Raises:
            ConfigError: an unknown name, or a device that is not there.
        """
        if self.model is not None:
            dtype, device = dtype or self.model.dtype, device or self.model.device
        place = _device(device)
        return _dtype(dtype, place), place


def load_base(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device, checkpointing: bool
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """The tokenizer, and the model on its device, without dropout.

    Raises:
        ConfigError: it cannot be loaded.
    """
    tokenizer = spec.tokenizer or _from_name(AutoTokenizer, spec)
    base = spec.model or _from_name(AutoModelForCausalLM, spec, dtype, device)
    if base.dtype != dtype and not quantized(base):
        # Casting it would cast what has to stay in float32, too, such as tables of positions.
        raise ConfigError(f"the model is in {base.dtype} and needed in {dtype}; load it in {dtype}")
    base.eval()
    if not quantized(base):  # which is on its device already
        nn.Module.to(base, device)  # transformers' own `to` is not typed
    for module in base.modules():
        if isinstance(module, nn.Dropout):  # sampler and update must compute the same
            module.p = 0.0
        # On some CPUs bitsandbytes packs weights for inference when they are first used, and then
        # has no gradient.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    if spec.long_context:
        take_long_context(base)
    # Before adapters are put in: what is compared is the model itself.
    check_head(base)
    if checkpointing:
        # The reentrant form drops gradients where no input of a block needs one, as under frozen
        # embeddings.
        # transformers 5.24 warns of the older name.
        older = base.gradient_checkpointing_enable
        getattr(base, "activation_checkpointing_enable", older)({"use_reentrant": False})
    if spec.attn_implementation == "auto":
        # Last: its trial is of the model as it is used from here on, without dropout.
        share_prompts(base)
    return tokenizer, base


def quantized(model: PreTrainedModel) -> bool:
    """Returns whether the model's weights are quantized."""
    return getattr(model, "hf_quantizer", None) is not None


def is_checkpointing(model: PreTrainedModel) -> bool:
    """Returns whether the model computes activations again in the backward pass."""
    # As transformers does: its property has two names, and 5.24 warns of the one that 5.19 has.
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def _from_name(auto_class: Any, spec: ModelSpec, *place: Any) -> Any:
    """The tokenizer, or with dtype and device the model, of a name or a folder."""
    options: dict[str, Any] = {} if spec.revision is None else {"revision": spec.revision}
    if place:
        options["dtype"], device = place
        if spec.attn_implementation != "auto":
            options["attn_implementation"] = spec.attn_implementation
        if spec.load_in_4bit:
            options |= {"quantization_config": _four_bits(place[0]), "device_map": {"": device}}
    try:
        return auto_class.from_pretrained(spec.name, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        if spec.model is not None:
            raise ConfigError(
                f"the model {spec.name!r} has no tokenizer of its own ({reason}); give it as "
                "processing_class"
            ) from error
        raise ConfigError(
            f"model {spec.name!r} cannot be loaded: {reason}; give the folder of a causal "
            "language model with its tokenizer, or its Hugging Face id"
        ) from error


def _four_bits(compute: torch.dtype) -> BitsAndBytesConfig:
    """The quantization of QLoRA (arXiv 2305.14314): NF4, its constants quantized again."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError("load_in_4bit needs bitsandbytes: pip install bitsandbytes")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )


def _device(device: str | torch.device | None) -> torch.device:
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device is None:
        return torch.device(next((name for name, present in gpus.items() if present), "cpu"))
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {str(device)!r}; use cpu, cuda or mps") from error
    if not gpus.get(place.type, True):
        raise ConfigError(f"device {str(device)!r} is not available here; use cpu")
    return place


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}; {did_you_mean(dtype, _DTYPES)}")
    return _DTYPES[dtype]


# -------------------------------------------------------------------------------------- context
# The longest text of a model, and one kind of positions for its texts of all lengths.
#
# Models with "longrope" positions (Ding et al. 2024, arXiv 2402.13753) turn all positions of a text by other
# factors once it is longer than the context that they were first trained for. The log-probabilities of a
# completion would then depend on what else is in its batch, and a cache would hold keys of both kinds. A run has
# one kind: the short factors and no longer texts, or, with `long_context`, the long factors for all texts.
# vLLM decides alike, by its `max_model_len`.


logger = logging.getLogger(__name__)


class Switch(NamedTuple):
    """The length at which a model changes its positions."""

    kind: str
    """"longrope" or "dynamic"."""
    first: int
    """Tokens of the longest text before the change."""
    longest: int
    """Tokens of the longest text at all."""
    fixed: bool
    """True if all texts have the positions of long ones."""

    @property
    def lengths(self) -> tuple[int, int]:
        """The shortest and the longest context that an engine may have for equal positions."""
        return (self.first + 1, self.longest) if self.fixed else (1, self.first)


def switch_of(config: PreTrainedConfig) -> Switch | None:
    """Where the model changes its positions; None where it never does."""
    text = config.get_text_config(decoder=True)
    longest = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    rope_type = rope.get("rope_type")
    first = rope.get("original_max_position_embeddings") or getattr(
        text, "original_max_position_embeddings", None
    )
    if rope_type not in ("longrope", "dynamic") or not first or not longest or first >= longest:
        return None
    fixed = rope_type == "longrope" and rope["short_factor"] == rope["long_factor"]
    return Switch(rope_type, int(first), int(longest), fixed)


def context_of(model: PreTrainedModel, default: int) -> int:
    """The most tokens that a model is computed for; `default` where it names none."""
    if (switch := switch_of(model.config)) is not None:
        if not switch.fixed:
            _say_shorter(*switch)
        return switch.lengths[1]
    text = model.config.get_text_config(decoder=True)
    return int(getattr(text, "max_position_embeddings", None) or default)


@torch.no_grad()
def take_long_context(model: PreTrainedModel) -> None:
    """Gives all texts the positions of long ones, also in the model's configuration.

    Raises:
        ConfigError: the model has no "longrope" positions.
    """
    switch = switch_of(model.config)
    if switch is None or switch.kind != "longrope":
        raise ConfigError(
            f"long_context is for models with longrope positions, which this model of type "
            f"{model.config.model_type!r} does not have; leave it out"
        )
    text = model.config.get_text_config(decoder=True)
    text.rope_parameters["short_factor"] = list(text.rope_parameters["long_factor"])
    for module in model.modules():
        if getattr(module, "rope_type", None) == "longrope":
            # Computed on the CPU, as when it is loaded.
            frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](text, torch.device("cpu"))
            for buffer in (module.inv_freq, module.original_inv_freq):
                assert isinstance(buffer, torch.Tensor)
                buffer.copy_(frequencies)


@functools.cache  # once, however many policies the model has
def _say_shorter(kind: str, first: int, longest: int, fixed: bool) -> None:  # noqa: ARG001
    cure = "; --long-context has all" if kind == "longrope" else ""
    logger.warning(
        "texts end at %d tokens, although the model's context has %d: beyond, its %s positions "
        "depend on the longest text of a batch%s",
        *(first, longest, kind, cure),
    )
