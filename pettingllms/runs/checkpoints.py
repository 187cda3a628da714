"""Checkpoints of a run folder: a trainer's whole state, written atomically, restored exactly.

    checkpoints/step-000010/state.json                   step, tokens, versions, lengths of the logs
                            policy-<name>.safetensors    the tensors that the policy trains
                            optimizer-<name>.pt          states of optimizer and schedule
                            estimator.pt                 of an estimator that has a state

There is no generator state: all that is random in a step follows from (seed, step). Files are
loaded without unpickling code (`weights_only`).
"""

from __future__ import annotations

import copy
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

from pettingllms.errors import RunFolderError
from pettingllms.policies.weights import write_directory
from pettingllms.runs.folder import RunFolder, sync
from pettingllms.trainers.at_grpo import ATGRPOTrainer

logger = logging.getLogger(__name__)

KEPT = 2
"""Checkpoints that are kept: the older one is for the case that the newer is damaged."""
FORMAT = 1
UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    RuntimeError,
    EOFError,
    SafetensorError,
    pickle.UnpicklingError,
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
    estimator: Mapping[str, Any] = field(default_factory=dict)


class Checkpoint(NamedTuple):
    """What is on disk: the state, and how long the logs were."""

    state: TrainerState
    lengths: Mapping[str, int]


def capture(trainer: ATGRPOTrainer) -> TrainerState:
    """A copy of the trainer's state between two steps."""
    state = _current(trainer)
    return replace(
        state,
        optimizers=copy.deepcopy(state.optimizers),
        estimator=copy.deepcopy(state.estimator),
    )


def _current(trainer: ATGRPOTrainer) -> TrainerState:
    """The trainer's state, with the very tensors of its optimizers."""
    policies = trainer.policies
    return TrainerState(
        step=trainer.step,
        tokens=trainer.tokens,
        versions=dict(policies.versions),
        policies={name: policies.state(name) for name in policies.names},
        optimizers={
            name: {
                "optimizer": optimizer.state_dict(),
                "scheduler": trainer.schedulers[name].state_dict(),
            }
            for name, optimizer in trainer.optimizers.items()
        },
        estimator=trainer.estimator.state_dict(),
    )


def restore(trainer: ATGRPOTrainer, state: TrainerState) -> None:
    """Makes the trainer what it was when `state` was captured, bit for bit.

    Raises:
        ConfigError: the state belongs to other policies.
    """
    for name, tensors in state.policies.items():
        trainer.policies.load_state(name, tensors, version=state.versions[name])
    for name, states in state.optimizers.items():
        # load_state_dict keeps the tensors it is given, and steps change them in place.
        trainer.optimizers[name].load_state_dict(copy.deepcopy(states["optimizer"]))
        trainer.schedulers[name].load_state_dict(copy.deepcopy(states["scheduler"]))
    trainer.estimator.load_state_dict(copy.deepcopy(state.estimator))
    trainer.step, trainer.tokens, trainer.intact = state.step, state.tokens, True


def save(folder: RunFolder, trainer: ATGRPOTrainer) -> Path:
    """Writes a checkpoint and the adapters as of now; removes checkpoints older than the last two.

    Raises:
        RunFolderError: the disk is full or the like; earlier checkpoints are untouched.
    """
    state, parent = _current(trainer), folder.path / "checkpoints"
    lengths = folder.lengths()
    target = parent / f"step-{state.step:06d}"
    # A good one of this step is never replaced: it may be the only one.
    if not isinstance(_attempt(target), Checkpoint):
        with folder.writing(f"checkpoints/{target.name}"):
            write_directory(target, lambda fresh: _fill(fresh, state, lengths))
            sync(parent)
    _save_adapters(folder, trainer)
    for old in _checkpoints(folder.path)[KEPT:]:
        shutil.rmtree(old)
    return target


def resume(folder: RunFolder, trainer: ATGRPOTrainer) -> int:
    """Restores the newest checkpoint and cuts the logs back to it; returns its step.

    Without any checkpoint the run starts again at step 0, with empty logs.

    Raises:
        RunFolderError: there are checkpoints, but none can be read.
    """
    found = _checkpoints(folder.path)
    for path in found:
        checkpoint = _attempt(path)
        if isinstance(checkpoint, Exception):
            logger.warning("%s cannot be read (%s); trying the one before", path, checkpoint)
            continue
        folder.cut(checkpoint.lengths)
        restore(trainer, checkpoint.state)
        # Those in the folder may be newer, or missing where a crash came between two renames.
        _save_adapters(folder, trainer)
        return checkpoint.state.step
    if found:
        raise RunFolderError(f"no checkpoint in {found[0].parent} can be read; start a new run")
    folder.cut({})
    return 0


def _save_adapters(folder: RunFolder, trainer: ATGRPOTrainer) -> None:
    for name in trainer.policies.names:
        with folder.writing(f"adapters/{name}"):
            trainer.policies.save(name, folder.path / "adapters" / name)


def _checkpoints(run: Path) -> list[Path]:
    """Newest first."""
    return sorted((run / "checkpoints").glob("step-*"), reverse=True)


def _fill(directory: Path, state: TrainerState, lengths: Mapping[str, int]) -> None:
    for name, tensors in state.policies.items():
        save_file(dict(tensors), directory / f"policy-{name}.safetensors")
    for name, states in state.optimizers.items():
        # Through a file object: given a path, torch reports a full disk as an internal failure.
        with (directory / f"optimizer-{name}.pt").open("wb") as file:
            torch.save(states, file)
    if state.estimator:
        with (directory / "estimator.pt").open("wb") as file:
            torch.save(dict(state.estimator), file)
    facts = {
        "format": FORMAT,
        "step": state.step,
        "tokens": state.tokens,
        "versions": state.versions,
        "trained": list(state.optimizers),
        "lengths": lengths,
    }
    (directory / "state.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    for path in directory.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    sync(directory)


def _attempt(directory: Path) -> Checkpoint | Exception:
    """What a checkpoint holds, or why it cannot be read."""
    try:
        return _read(directory)
    except UNREADABLE as error:
        return error


def _read(directory: Path) -> Checkpoint:
    facts = json.loads((directory / "state.json").read_text(encoding="utf-8"))
    if facts["format"] != FORMAT:
        raise ValueError(f"format {facts['format']}, this version reads {FORMAT}")
    estimator = directory / "estimator.pt"
    state = TrainerState(
        step=facts["step"],
        tokens=facts.get("tokens", 0),  # written since there is a budget of tokens
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
        estimator=torch.load(estimator, map_location="cpu", weights_only=True)
        if estimator.exists()
        else {},
    )
    return Checkpoint(state, facts["lengths"])
