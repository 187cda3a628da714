"""Checkpoints of a run folder: a trainer's whole state, written atomically, restored exactly.

    checkpoints/step-000010/state.json                   step, tokens, versions, lengths of the logs,
                                                         settings, digests of the base and all files
                            policy-<name>.safetensors    the tensors that the policy trains
                            optimizer-<name>.pt          states of optimizer and schedule
                            plugins.pt                   of the method, where it has a state

There is no generator state: all that is random in a step follows from (seed, step). Files are
loaded without unpickling code (`weights_only`), and only if they are what was written, to the bit.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import logging
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pettingllms.data.rows import data_digests
from pettingllms.errors import RunFolderError
from pettingllms.policies.weights import write_directory
from pettingllms.registry import names_in
from pettingllms.rollout.files import CONFIG
from pettingllms.runs.folder import RunFolder, sync, upgraded
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.settings import normalized
from pettingllms.types import JsonObject

logger = logging.getLogger(__name__)

STATE = "state.json"
KEPT = 2
"""Checkpoints that are kept: the older one is for the case that the newer is damaged."""
FORMAT = 4
CHANGEABLE = frozenset(
    names_in(
        "max_steps max_tokens eval_steps eval_tasks save_steps report_to device sampler vllm "
        "sandbox require_isolation scoring_threads tokens_per_batch workers ray_address pools "
        "worker_timeout api_base api_key_file api_max_tokens api_concurrency api_timeout "
        "push_to_hub verify"
    )
)
"""Settings that take effect in a resumed run if its config.yaml was edited. Any other is part of what
the run is, or is restored with the optimizers."""
UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, EOFError),
    *(SafetensorError, pickle.UnpicklingError),
)
"""What json, safetensors and torch raise for damaged files."""


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Everything of a trainer that changes from step to step."""

    step: int
    tokens: int
    """Generated so far."""
    versions: Mapping[str, int]
    policies: Mapping[str, Mapping[str, torch.Tensor]]
    optimizers: Mapping[str, Any]
    """For each trained policy: the states of its optimizer and its schedule."""
    plugins: Mapping[str, Any] = field(default_factory=dict)
    """Name -> what the method, or a part of the trainer, has learned."""


class Checkpoint(NamedTuple):
    """Contents of a checkpoint: the state, how long the logs were, and what it belongs to."""

    state: TrainerState
    lengths: Mapping[str, int]
    settings: Mapping[str, Any]
    bases: Mapping[str, str]
    """Policy -> digest of its base model."""
    data: Mapping[str, str]
    """Setting -> digest of the data that it names."""


def capture(trainer: ATGRPO) -> TrainerState:
    """A copy of the trainer's state between two steps."""
    state = _current(trainer)
    return replace(
        state,
        # Steps change these tensors in place, and the copy has to be of before.
        optimizers=copy.deepcopy(state.optimizers),
        plugins=copy.deepcopy(state.plugins),
    )


def _current(trainer: ATGRPO) -> TrainerState:
    """The trainer's state, with the very tensors of its optimizers."""
    policies = trainer.policies
    return TrainerState(
        step=trainer.step,
        tokens=trainer.tokens,
        versions=dict(policies.versions),
        policies={name: policies.state(name) for name in policies.names},
        optimizers=trainer.optimizer_states(),
        plugins={
            name: kept for name, plugin in trainer.stateful.items() if (kept := plugin.state_dict())
        },
    )


def restore(trainer: ATGRPO, state: TrainerState) -> None:
    """Makes the trainer what it was when `state` was captured, bit for bit.

    Raises:
        ConfigError: the state belongs to other policies.
    """
    for name, tensors in state.policies.items():
        trainer.policies.load_state(name, tensors, version=state.versions[name])
    # Optimizers keep the tensors they are given, and steps change them in place.
    trainer.load_optimizers(copy.deepcopy(state.optimizers))
    for name, plugin in trainer.stateful.items():
        plugin.load_state_dict(copy.deepcopy(state.plugins.get(name, {})))
    trainer.step, trainer.tokens, trainer.intact = state.step, state.tokens, True


def save(folder: RunFolder, trainer: ATGRPO) -> Path:
    """Writes a checkpoint and the adapters as of now; removes checkpoints older than the last two.

    Raises:
        RunFolderError: the disk is full or the like; earlier checkpoints are untouched.
    """
    state, parent = _current(trainer), folder.path / "checkpoints"
    # Before the files: rows that come later belong to the next checkpoint.
    lengths = folder.lengths()
    target = parent / f"step-{state.step:06d}"
    # A good one of this step is never replaced: it may be the only one.
    if not isinstance(_attempt(target), Checkpoint):
        with folder.writing(f"checkpoints/{target.name}"):
            config, bases = trainer.config, trainer.policies.digests
            data = data_digests(config.dataset, config.env_args)
            checkpoint = Checkpoint(state, lengths, _settings(config), bases, data)
            write_directory(target, lambda fresh: _fill(fresh, checkpoint))
            # The rename itself has to be on disk before older checkpoints are removed.
            sync(parent)
    _save_adapters(folder, trainer)
    for old in saved(folder.path)[KEPT:]:
        with folder.writing(f"checkpoints/{old.name}"):
            shutil.rmtree(old)
    return target


def resume(folder: RunFolder, trainer: ATGRPO) -> int:
    """Restores the newest checkpoint and cuts the logs back to it; returns its step.

    Without any checkpoint the run starts again at step 0, with empty logs.

    Raises:
        RunFolderError: there are checkpoints, but none can be read; or the base model, or a setting
            that cannot change any more, is not what it was.
    """
    paths = saved(folder.path)
    for path in paths:
        checkpoint = _attempt(path)
        if isinstance(checkpoint, Exception):
            logger.warning("%s cannot be read (%s); trying the one before", path, checkpoint)
            continue
        # Before anything is cut or restored: a run that cannot go on stays as it is.
        _check_same(folder, trainer, checkpoint)
        folder.cut(checkpoint.lengths)
        restore(trainer, checkpoint.state)
        # Those in the folder may be newer, or missing where a crash came between two renames.
        _save_adapters(folder, trainer)
        return checkpoint.state.step
    if paths:
        raise RunFolderError(f"no checkpoint in {paths[0].parent} can be read; start a new run")
    folder.cut({})
    return 0


def _settings(config: ATGRPOConfig) -> JsonObject:
    """The settings as JSON has them; the folder may have moved."""
    # Through JSON, so that values compare as those that were read back.
    values: JsonObject = json.loads(json.dumps(dataclasses.asdict(config)))
    return values | {"output_dir": None}


def _converted(settings: Mapping[str, Any]) -> JsonObject:
    """Settings of a checkpoint, of whatever version, as this one saves them."""
    fields = {field.name: field for field in dataclasses.fields(ATGRPOConfig)}
    return {
        name: normalized(fields[name], value) if name in fields else value
        for name, value in upgraded(settings).items()
    }


def _check_same(folder: RunFolder, trainer: ATGRPO, checkpoint: Checkpoint) -> None:
    """Compares settings and base model with those that the checkpoint was written under.

    Raises:
        RunFolderError: the run would not be the same.
    """
    before, now = _converted(checkpoint.settings), _settings(trainer.config)
    # Settings that only one of two versions of this package has say nothing about the run.
    changed = [name for name in before if name in now and before[name] != now[name]]
    shown = ", ".join(f"{name} was {before[name]!r} and is {now[name]!r}" for name in changed)
    path = folder.path / CONFIG
    if any(name not in CHANGEABLE for name in changed):
        raise RunFolderError(
            f"{path} is not what it was at the last checkpoint: {shown}; undo this to resume the "
            "run, or start a new one with --config and --adapters of this one. Of a run that has "
            f"begun you can change {', '.join(sorted(CHANGEABLE))}"
        )
    for policy, digest in trainer.policies.digests.items():
        if checkpoint.bases.get(policy) != digest:
            base = trainer.policies.base_of(policy).name
            raise RunFolderError(
                f"the base model {base!r} of {policy} is not the one that the run in {folder.path} "
                f"was trained on (digest {checkpoint.bases.get(policy)}, now {digest}); restore it, "
                "or start a new run"
            )
    for name, digest in data_digests(trainer.config.dataset, trainer.config.env_args).items():
        if checkpoint.data.get(name, digest) != digest:
            raise RunFolderError(
                f"the data of {name} are not what they were at the last checkpoint of {folder.path} (digest "
                f"{checkpoint.data[name]}, now {digest}); restore them, or start a new run"
            )
    if changed:
        logger.warning("%s was changed, and is followed from here on: %s", path, shown)


def _save_adapters(folder: RunFolder, trainer: ATGRPO) -> None:
    for name in trainer.policies.names:
        with folder.writing(f"adapters/{name}"):
            trainer.policies.save(name, folder.path / "adapters" / name)


def saved(run: Path) -> list[Path]:
    """The folders of a run's checkpoints, newest first."""
    return sorted((run / "checkpoints").glob("step-*"), reverse=True)


def _fill(directory: Path, checkpoint: Checkpoint) -> None:
    state = checkpoint.state
    for name, tensors in state.policies.items():
        save_file(dict(tensors), directory / f"policy-{name}.safetensors")
    for name, states in state.optimizers.items():
        # Through a file object: given a path, torch reports a full disk as an internal failure.
        with (directory / f"optimizer-{name}.pt").open("wb") as file:
            torch.save(states, file)
    if state.plugins:
        with (directory / "plugins.pt").open("wb") as file:
            torch.save(dict(state.plugins), file)
    facts = {
        "format": FORMAT,
        "step": state.step,
        "tokens": state.tokens,
        "versions": state.versions,
        "trained": list(state.optimizers),
        "lengths": checkpoint.lengths,
        "settings": checkpoint.settings,
        "bases": checkpoint.bases,
        "data": checkpoint.data,
    }
    seal(directory, facts)
    # Every file before the folder gets its name: a rename may survive a power failure that content
    # does not.
    for path in directory.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    sync(directory)


def seal(directory: Path, facts: Mapping[str, Any]) -> None:
    """Writes state.json: the facts, a digest of every other file, and one of all of this."""
    files = sorted(path for path in directory.iterdir() if path.name != STATE)
    sealed = {**facts, "files": {path.name: _digest(path) for path in files}}
    text = json.dumps(sealed | {"digest": _digest_of(sealed)}, indent=2)
    (directory / STATE).write_text(f"{text}\n", encoding="utf-8")


def _unsealed(directory: Path) -> JsonObject:
    """The facts of state.json, after comparing all files with their digests.

    Raises:
        ValueError: a file is missing, or is not what was written.
    """
    facts: JsonObject = json.loads((directory / STATE).read_text(encoding="utf-8"))
    if facts["format"] != FORMAT:
        raise ValueError(f"format {facts['format']}, this version reads {FORMAT}")
    digest = facts.pop("digest")
    if _digest_of(facts) != digest:
        raise ValueError(f"{STATE} is not what was written")
    for name, expected in facts["files"].items():
        if _digest(directory / name) != expected:
            raise ValueError(f"{name} is not what was written")
    return facts


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _attempt(directory: Path) -> Checkpoint | Exception:
    """Reads a checkpoint; returns the error where it cannot be read."""
    try:
        return _read(directory)
    except UNREADABLE as error:
        return error


def _read(directory: Path) -> Checkpoint:
    facts = _unsealed(directory)
    plugins = directory / "plugins.pt"
    learned = torch.load(plugins, map_location="cpu", weights_only=True) if plugins.exists() else {}
    # Until 0.2 a method had parts with states of their own.
    parts = [learned.pop(name) for name in ("estimator", "reward_transform") if name in learned]
    if parts:
        learned["method"] = {key: value for values in parts for key, value in values.items()}
    state = TrainerState(
        step=facts["step"],
        tokens=facts["tokens"],
        versions=facts["versions"],
        policies={
            name: load_file(directory / f"policy-{name}.safetensors") for name in facts["versions"]
        },
        optimizers={
            name: torch.load(
                directory / f"optimizer-{name}.pt", map_location="cpu", weights_only=True
            )
            for name in facts["trained"]
        },
        plugins=learned,
    )
    # Until a team could have several, there was one for all.
    facts.setdefault("data", {})
    if "bases" not in facts:
        facts["bases"] = dict.fromkeys(facts["versions"], facts["base"])
    return Checkpoint(state, *(facts[name] for name in ("lengths", "settings", "bases", "data")))
