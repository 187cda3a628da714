"""A full model per policy: every weight is the policy's own.

Costs one model per policy, one more as a frozen reference where a KL term needs it, and, where
weights are trained in float32 but computed in bfloat16, one more per policy to sample from.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel

from pettingllms.errors import ConfigError
from pettingllms.policies.adapters import write_directory


class FullWeights:
    """One trainable copy of the base for each policy.

    Args:
        model: the base on its device, in the dtype that is trained.
        base: its name or path, as users know it.
        names: the policies.
        reference: keep the base itself, frozen, for `reference`.
        sampling_dtype: dtype to sample in; a copy is kept where it is not the trained one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        base: str,
        names: Sequence[str],
        *,
        reference: bool,
        sampling_dtype: torch.dtype,
    ) -> None:
        self.base = base
        model.requires_grad_(False)
        kept = 0 if reference else 1
        copies = [copy.deepcopy(model) for _ in range(len(names) - kept)]
        models = copies if reference else [model, *copies]
        self._models = dict(zip(names, models, strict=True))
        self._reference = model if reference else None
        self._tensors = {name: dict(own.named_parameters()) for name, own in self._models.items()}
        for own in self._models.values():
            own.requires_grad_(True)
        self._copies: dict[str, PreTrainedModel] = {}
        self.autocast = None if sampling_dtype == model.dtype else sampling_dtype
        if self.autocast is not None:
            self._copies = {name: _as(own, sampling_dtype) for name, own in self._models.items()}

    def tensors(self, policy: str) -> dict[str, nn.Parameter]:
        """The model's parameters by name, tied ones once."""
        return self._tensors[policy]

    def module(self, policy: str) -> PreTrainedModel:
        """The policy's own model."""
        return self._models[policy]

    def sampling_module(self, policy: str) -> PreTrainedModel:
        """The model to sample this policy from, with the weights of the last `refresh`."""
        return self._copies.get(policy, self._models[policy])

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The frozen base.

        Raises:
            ConfigError: it was not kept.
        """
        if self._reference is None:
            raise ConfigError(
                "no frozen base was kept beside the full models; load the policies with "
                "reference=True for a KL term"
            )
        yield self._reference

    @torch.no_grad()
    def refresh(self, policy: str) -> None:
        """Copies the trained weights to the sampling copy, where there is one."""
        if policy in self._copies:
            mine = dict(self._copies[policy].named_parameters())
            for name, parameter in self._tensors[policy].items():
                mine[name].copy_(parameter)

    def save(self, policy: str, directory: Path) -> None:
        """Writes a folder that `from_pretrained` loads, without the tokenizer, atomically."""
        write_directory(directory, self._models[policy].save_pretrained)

    def read(self, directory: Path) -> dict[str, torch.Tensor]:
        """The parameters in `directory`, named as `tensors` is.

        Raises:
            ConfigError: there is no model there.
        """
        files = sorted(directory.glob("model*.safetensors"))
        if not files:
            raise ConfigError(f"no model in {directory}: no model*.safetensors there")
        try:
            return {name: tensor for file in files for name, tensor in load_file(file).items()}
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"the model in {directory} cannot be read: {error}") from error


def _as(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    copied = copy.deepcopy(model).requires_grad_(False)
    nn.Module.to(copied, dtype)  # transformers' own `to` is not typed
    return copied
