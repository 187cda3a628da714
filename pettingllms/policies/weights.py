"""The policies' tensors, as LoRA adapters on one frozen base or as full models, and their files.

Adapters are laid out on disk exactly as PEFT does, so that plain PEFT and vLLM load them:

    <directory>/adapter_config.json        PEFT's configuration, keys and lists sorted
    <directory>/adapter_model.safetensors  PEFT's tensor names, without the adapter's name

The safetensors header also holds a digest of the base model, which PEFT ignores and `read` checks.
The same weights always give the same bytes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear, LoraLayer
from peft.tuners.lora.layer import LoraVariant
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from pettingllms.errors import ConfigError
from pettingllms.registry import names_in

MERGE_LIMIT_BYTES = 1 << 30
"""Bases up to this size are sampled from copies of their weights: in float32 merged ones, on a CPU in oneDNN's order."""
_SWITCHING = threading.Lock()
"""Held while adapters are switched: a thread must not compute with those of half the layers."""
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
DIGEST_KEY = "pettingllms_base_digest"


class LoraWeights:
    """One adapter per policy on one frozen base, through PEFT.

    Three things are not left to PEFT. Each adapter's tensors are listed once, at creation, because
    `set_adapter` and `disable_adapter` change `requires_grad`, so lists made later can miss some.
    Each adapter is seeded by its own name, so that its first weights do not depend on how many
    others there are. Policies are sampled from modules of their own, which share the base: in float32
    with merged weights, which are computed beside the base, because merging in place and back changes
    it a little every time; in half precision, which would round small updates of a merged weight away,
    with a copy of the adapter, because PEFT's layers take as long as their products with a few rows.

    Args:
        model: the base on its device; adapters are injected into it.
        base: its name or path, as users know it.
        configs: policy -> PEFT configuration.
        seed: of the adapters' first weights.
        float32: keep adapters in float32, whatever the base has; else in the base's dtype.
        merge: sample from such modules. In float32 this costs one copy of the adapted weights per policy.
    """

    full = False
    autocast: torch.dtype | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        base: str,
        configs: Mapping[str, LoraConfig],
        *,
        seed: int,
        merge: bool,
        float32: bool = True,
    ) -> None:
        self.base, self.digest = base, base_digest(model)
        model.requires_grad_(False)
        plain = _reordered(_share(model)) if merge else None
        experts = any(parameter.ndim == 3 for parameter in model.parameters())
        peft_model: PeftModel | None = None
        for name, shape in configs.items():
            # PEFT modifies the configuration it is given.
            config = copy.deepcopy(shape)
            config.base_model_name_or_path = None  # `read_tensors` checks the base
            if config.target_modules == "all-linear" and experts:
                # PEFT's own list names the experts, too, which are tensors and not layers.
                config.target_modules = linear_names(model)
            # PEFT draws an adapter's first weights from the global generator, which has to be as
            # before afterwards.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(zlib.crc32(f"{seed} {name}".encode()))
                adapter = _inside(name)
                if peft_model is None:
                    peft_model = get_peft_model(
                        model, config, adapter_name=adapter, autocast_adapter_dtype=float32
                    )
                else:
                    peft_model.add_adapter(adapter, config, autocast_adapter_dtype=float32)
        if peft_model is None:
            raise ConfigError("at least one policy is needed, got none")
        self._peft = peft_model
        self._model = model
        self._adapted = [module for module in model.modules() if isinstance(module, LoraLayer)]
        if float32 and model.dtype != torch.float32:
            for layer in self._adapted:
                _in_half_precision(layer)
        self._tensors = {name: self._adapter_tensors(name) for name in configs}
        self._active: str | None = None
        self._sampled: dict[str, PreTrainedModel] = {}
        self._pairs: dict[str, list[tuple[Any, Any]]] = {}
        if plain is not None:
            for name in configs:
                sampled = self._sampled[name] = _share(plain)
                self._pairs[name] = [
                    (layer, _layer_to_sample(sampled, path)) for path, layer in self._layers(name)
                ]

    def tensors(self, policy: str) -> dict[str, nn.Parameter]:
        """The adapter's own tensors under the names that PEFT saves them by."""
        return self._tensors[policy]

    def module(self, policy: str) -> PreTrainedModel:
        """The model with this policy's adapter active, and its tensors alone trainable."""
        with _SWITCHING:
            if self._active != policy:
                # PEFT's own call walks through all modules three times, which takes as long as the
                # update of a small model.
                for layer in self._adapted:
                    layer.set_adapter(_inside(policy))
                self._active = policy
        return self._model

    def sampling_module(self, policy: str) -> PreTrainedModel:
        """The model to sample this policy from, with the weights of the last `refresh`, which publishing calls."""
        return self._sampled[policy] if self._sampled else self.module(policy)

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel]:
        """The base without adapters, for the length of a `with` block."""
        # PEFT switches layers on and off by itself here, so that nothing is known of them
        # afterwards.
        self._active = None
        with self._peft.disable_adapter():
            yield self._model

    @torch.no_grad()
    def refresh(self, policy: str) -> None:
        """Brings the module that the policy is sampled from up to date, if it has one of its own."""
        adapter = _inside(policy)
        for layer, sampled in self._pairs.get(policy, ()):
            if isinstance(sampled, _Adapted):
                sampled.copy(layer, adapter)
            else:
                weight, delta = layer.get_base_layer().weight, layer.get_delta_weight(adapter)
                torch.add(weight, delta, out=sampled.weight.data)

    def save(self, policy: str, directory: Path) -> None:
        """Writes the adapter as PEFT does, atomically."""
        values: dict[str, Any] = self._peft.peft_config[_inside(policy)].to_dict()
        values |= {"base_model_name_or_path": self.base, "inference_mode": True}
        text = json.dumps(values, indent=2, sort_keys=True, default=_as_json) + "\n"

        def write(folder: Path) -> None:
            (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
            tensors = self._tensors[policy].items()
            cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
            # One entry only: safetensors orders several differently in each process.
            save_file(cpu, folder / WEIGHTS_FILE, metadata={DIGEST_KEY: self.digest})

        write_directory(directory, write)

    def read(self, directory: Path) -> dict[str, torch.Tensor]:
        """The adapter in `directory`, checked against the base and named as `tensors` is.

        Raises:
            ConfigError: no adapter there, another base, or another shape than this policy's.
        """
        return read_tensors(directory, self.base, self.digest)

    def _adapter_tensors(self, policy: str) -> dict[str, nn.Parameter]:
        return {
            f"base_model.model.{path}.{lora}.weight": getattr(layer, lora)[_inside(policy)].weight
            for path, layer in self._layers(policy)
            for lora in ("lora_A", "lora_B")
        }

    def _layers(self, policy: str) -> list[tuple[str, LoraLayer]]:
        """The layers that this policy adapts, with their paths.

        Raises:
            ConfigError: one of them is not a linear layer.
        """
        layers: list[tuple[str, LoraLayer]] = []
        for path, layer in self._model.named_modules():
            if isinstance(layer, LoraLayer) and _inside(policy) in layer.r:
                # PEFT has classes of its own for quantized layers, which are linear all the same.
                if not isinstance(layer, Linear) and not isinstance(
                    layer.get_base_layer(), nn.Linear
                ):
                    raise ConfigError(
                        f"target module {path} is of type {type(layer.get_base_layer()).__name__}; "
                        "adapters are for linear layers only, use --lora-target-modules "
                        f"{','.join(linear_names(self._model))}"
                    )
                layers.append((path, layer))
        return layers


class _Adapted(nn.Module):
    """A linear layer with a copy of an adapter beside it, in the layer's precision; only for sampling."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def copy(self, trained: Any, adapter: str) -> None:
        """Takes the adapter's weights as they are now."""
        self.scale, dtype = trained.scaling[adapter], trained.get_base_layer().weight.dtype
        self.down_RI = trained.lora_A[adapter].weight.to(dtype, copy=True)
        self.up_RO = trained.lora_B[adapter].weight.to(dtype, copy=True).T

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's product plus the adapter's."""
        result: torch.Tensor = self.layer(x)
        inner = nn.functional.linear(x, self.down_RI)
        result.view(-1, result.shape[-1]).addmm_(inner.flatten(0, -2), self.up_RO, alpha=self.scale)
        return result


class _Reordered(nn.Module):
    """A linear layer whose weight lies as oneDNN multiplies it, which orders any other for each product."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.bias = layer.bias
        self.register_buffer("weight", torch.ops.mkldnn._reorder_linear_weight(layer.weight, None))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's product, bit by bit."""
        multiply = torch.ops.mkldnn._linear_pointwise.default
        return multiply(x, self.weight, self.bias, "none", [], "")  # type: ignore[no-any-return]


def _reordered(model: PreTrainedModel) -> PreTrainedModel:
    """Gives a small model in bfloat16 on a CPU such layers, which its copies share."""
    here = model.device.type == "cpu" and model.get_memory_footprint() <= MERGE_LIMIT_BYTES
    # It refuses bfloat16 on CPUs with AVX2 alone; False where PyTorch comes without oneDNN.
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", bool)
    if here and model.dtype == torch.bfloat16 and supported():
        for path, layer in [*model.named_modules()]:
            if type(layer) is nn.Linear:
                model.set_submodule(path, _Reordered(layer))
    return model


def _layer_to_sample(model: nn.Module, path: str) -> nn.Module:
    """Gives a module that shares its base a layer of its own, which is returned."""
    layer = model.get_submodule(path)
    weight_OI: Any = layer.weight
    if weight_OI.dtype != torch.float32:
        model.set_submodule(path, adapted := _Adapted(layer))
        return adapted
    # Products of few rows with a matrix read it faster in this order.
    weight_IO = torch.empty_like(weight_OI.T, memory_format=torch.contiguous_format)
    layer.weight = nn.Parameter(weight_IO.T, False)
    return layer


def linear_layers(model: PreTrainedModel) -> list[tuple[str, nn.Linear]]:
    """All linear layers but the output layer, which adapters and 4 bits leave as it is, with their paths."""
    head = model.get_output_embeddings()
    return [
        (path, layer)
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer is not head and ".lora_" not in path
    ]


def linear_names(model: PreTrainedModel) -> list[str]:
    """Last names of these layers, as targets are given."""
    paths = (path.removesuffix(".base_layer") for path, _ in linear_layers(model))
    return list(dict.fromkeys(path.rpartition(".")[2] for path in paths))


class FullWeights:
    """A full model per policy: every weight is the policy's own.

    This costs one model per policy, one more as a frozen reference if a KL term needs it, and, if
    weights are trained in float32 but computed in bfloat16, one more per policy to sample from.

    Args:
        model: the base on its device, in the dtype that is trained.
        base: its name or path, as users know it.
        names: the policies.
        reference: keep the base itself, frozen, for `reference`.
        sampling_dtype: dtype to sample in; a copy is kept if it differs from the trained one.
    """

    full = True

    def __init__(
        self,
        model: PreTrainedModel,
        base: str,
        names: Sequence[str],
        *,
        reference: bool,
        sampling_dtype: torch.dtype,
    ) -> None:
        self.base, self.digest = base, base_digest(model)
        model.requires_grad_(False)
        # Without a reference the loaded model itself becomes the first policy, which saves a copy.
        copies = [copy.deepcopy(model) for _ in names[0 if reference else 1 :]]
        models = copies if reference else [model, *copies]
        self._models = dict(zip(names, models, strict=True))
        self._reference = model if reference else None
        self._tensors = {
            name: dict(trained.named_parameters()) for name, trained in self._models.items()
        }
        for trained in self._models.values():
            trained.requires_grad_(True)
        self._copies: dict[str, PreTrainedModel] = {}
        self.autocast = None if sampling_dtype == model.dtype else sampling_dtype
        if self.autocast is not None:
            self._copies = {
                name: _as(trained, sampling_dtype) for name, trained in self._models.items()
            }

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

    @property
    def has_reference(self) -> bool:
        """True if the frozen base was kept."""
        return self._reference is not None

    def divide(self, divide: Callable[[PreTrainedModel], None]) -> None:
        """Has `divide` replace the parameters of every model; frees the copies that sampling needs."""
        self._copies.clear()
        for model in [*self._models.values(), *filter(None, [self._reference])]:
            divide(model)
        self._tensors = {
            name: dict(model.named_parameters()) for name, model in self._models.items()
        }

    @torch.no_grad()
    def refresh(self, policy: str) -> None:
        """Copies the trained weights to the sampling copy, if there is one."""
        if policy in self._copies:
            copied = dict(self._copies[policy].named_parameters())
            for name, parameter in self._tensors[policy].items():
                copied[name].copy_(parameter)

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


def base_digest(model: nn.Module) -> str:
    """Computes sixteen hex digits that tell base models apart, from a few numbers of every tensor.

    Values are rounded to bfloat16 first, so the digest is the same for every loading dtype.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        few = tensor.detach().flatten()[:64].cpu().to(torch.bfloat16)
        digest.update(f"{name} {tuple(tensor.shape)} ".encode())
        digest.update(few.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def write_directory(directory: Path, write: Callable[[Path], None]) -> None:
    """Fills a new folder beside `directory`, then renames it into place.

    A reader sees the old folder or the new one, never a half-written one. A crash between the
    two renames leaves the old folder under its `.old` name.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        write(fresh)
        # `mkdtemp` makes folders that no other user can read, such as a server that is to load the
        # adapter.
        fresh.chmod(0o755)
        for path in fresh.rglob("*"):  # safetensors writes for the owner alone
            path.chmod(0o755 if path.is_dir() else 0o644)
        # A folder cannot be renamed onto one that has files.
        old = directory.with_name(f".{directory.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if directory.exists():
            directory.rename(old)
        fresh.rename(directory)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _as_json(value: object) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def read_config(directory: Path) -> LoraConfig:
    """The PEFT configuration of the adapter in `directory`.

    Raises:
        ConfigError: there is no adapter, or it is not a plain LoRA adapter.
    """
    path = directory / CONFIG_FILE
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if (directory / name).exists() and not (directory / name).is_file():
            raise ConfigError(f"{directory / name} is no regular file: reading it may never end")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError(f"it is {values!r}, not an object")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no adapter in {directory}: {path.name} cannot be read ({error}); give a folder "
            "that holds adapter_config.json and adapter_model.safetensors"
        ) from error
    if values.get("peft_type") != "LORA":
        raise ConfigError(
            f"the adapter in {directory} is of type {values.get('peft_type')!r}; only LORA "
            "adapters can be loaded"
        )
    plain = LoraConfig().to_dict()
    for name, value in values.items():
        # Compared with a plain one, so that options which PEFT adds later are refused, too.
        strange = name not in _UNUSED and bool(value) and value != plain.get(name)
        if not _CHECKS[name](value) if name in _CHECKS else strange:
            raise ConfigError(
                f"the adapter in {directory} has {name}={str(value)[:80]!r}; only plain LoRA can be loaded"
            )
    read = {name: values[name] for name in _CHECKS if name in values}
    base = str(values.get("base_model_name_or_path"))
    return LoraConfig(**read, base_model_name_or_path=base, task_type="CAUSAL_LM")


# Somebody else may have written the file: what PEFT would multiply, allocate or match is checked.
_MOST_RANK = 4096


def _is_rank(value: Any) -> bool:
    return type(value) is int and 0 < value <= _MOST_RANK


def _is_scale(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _by_name(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Values by names of modules, which PEFT takes for regular expressions."""
    return lambda value: (
        isinstance(value, dict | None)
        and all(
            re.fullmatch(r"[\w.]+", name) and check(entry) for name, entry in (value or {}).items()
        )
    )


def _are_targets(value: Any) -> bool:
    """Names of modules, or an expression for them that cannot take long."""
    if not isinstance(value, str):
        names = [] if value is None else value
        return isinstance(names, list) and all(isinstance(name, str) for name in names)
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError):
        return False
    return not re.search(r"\)[*+{]", value) and value.count("*") + value.count("+") <= 6


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "r": _is_rank,
    "lora_alpha": _is_scale,
    "target_modules": _are_targets,
    "rank_pattern": _by_name(_is_rank),
    "alpha_pattern": _by_name(_is_scale),
    "layers_to_transform": lambda value: all(
        type(layer) is int for layer in (value if isinstance(value, list) else [value or 0])
    ),
    "use_rslora": lambda value: isinstance(value, bool),
    "fan_in_fan_out": lambda value: isinstance(value, bool),
}
"""The fields on which an adapter's shape and scale depend."""
_UNUSED = names_in(
    "auto_mapping base_model_name_or_path inference_mode init_lora_weights lora_dropout "
    "megatron_core peft_type peft_version revision task_type"
)


def read_tensors(directory: Path, base: str, digest: str) -> dict[str, torch.Tensor]:
    """The tensors of the adapter in `directory`, after checking that it fits the base model.

    An adapter that carries no digest (another program wrote it) is checked by the last part of
    its base model's name.

    Raises:
        ConfigError: the weights are missing or damaged, or belong to another base model.
    """
    theirs = str(read_config(directory).base_model_name_or_path)
    try:
        with safe_open(directory / WEIGHTS_FILE, framework="pt") as file:
            written = (file.metadata() or {}).get(DIGEST_KEY)
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{directory / WEIGHTS_FILE} cannot be read: {error}") from error
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise ConfigError(f"{directory / WEIGHTS_FILE} has NaN or infinity, first in {broken[0]}")
    same = written == digest if written else Path(theirs).name.lower() == Path(base).name.lower()
    if not same:
        raise ConfigError(
            f"the adapter in {directory} was trained on the base model {theirs!r}, not on "
            f"{base!r}; load it with --model {theirs}, or name this model for its policy with "
            "--policy-settings"
            + ("" if written else ", or correct base_model_name_or_path in its adapter_config.json")
        )
    return tensors


class _HalfPrecision(LoraVariant):
    """The product of a float32 adapter beside a base in half precision, in that precision.

    PEFT casts the input of each layer to the type of the adapter, and so computes products and sums as
    large as the activations in float32. Gradients reach the adapter in float32 either way.
    """

    @staticmethod
    def forward(
        module: LoraLayer, active_adapter: str, x: torch.Tensor, result: torch.Tensor, **_: Any
    ) -> torch.Tensor:
        """Returns `result`, the base's product, plus the adapter's."""
        down, up = (
            lora[active_adapter].get_parameter("weight").to(x)
            for lora in (module.lora_A, module.lora_B)
        )
        inner = nn.functional.linear(module.lora_dropout[active_adapter](x), down)
        scale = module.scaling[active_adapter]
        # In place: a copy of the base's product takes as long as this one, and autograd would copy a view. This copies
        # `up` for each of a batch's rows.
        if result.dim() == 3:
            return result.baddbmm_(inner, up.T.expand(len(inner), -1, -1), alpha=scale)
        rows = torch.addmm(result.flatten(0, -2), inner.flatten(0, -2), up.T, alpha=scale)
        return rows.view_as(result)


def _in_half_precision(layer: LoraLayer) -> None:
    """Lets `_HalfPrecision` compute a layer, if it is a linear one."""
    if isinstance(layer.get_base_layer(), nn.Linear):
        layer.cast_input_dtype_enabled = False
        layer.lora_variant.update(dict.fromkeys(layer.lora_A, _HalfPrecision()))


def _inside(policy: str) -> str:
    """The adapter's name inside PEFT; no file contains it.

    PEFT misreads names that are part of its own parameter names, such as `a` or `lora`.
    """
    return f"policy_{policy}"


def _share(model: PreTrainedModel) -> PreTrainedModel:
    """Copies the modules, but shares the tensors."""
    # `deepcopy` takes what the memo has for a copy that is made already.
    memo: dict[int, object] = {id(tensor): tensor for tensor in model.parameters()}
    memo.update({id(tensor): tensor for tensor in model.buffers()})
    return copy.deepcopy(model, memo)


def _as(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    copied = copy.deepcopy(model).requires_grad_(False)
    nn.Module.to(copied, dtype)  # transformers' own `to` is not typed
    return copied
