"""The longest text of a model, and one kind of positions for its texts of all lengths.

Models with "longrope" positions (Ding et al. 2024, arXiv 2402.13753) turn all positions of a text by other
factors once it is longer than the context that they were first trained for. The log-probabilities of a
completion would then depend on what else is in its batch, and a cache would hold keys of both kinds. A run has
one kind: the short factors and no longer texts, or, with `long_context`, the long factors for all texts.
vLLM decides alike, by its `max_model_len`.
"""

from __future__ import annotations

import functools
import logging
from typing import NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pettingllms.errors import ConfigError

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
