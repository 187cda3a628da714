"""A whole training run: environment and policies from settings, the loop, the folder, the result.

    before     test tasks, sampled and greedy
    loop       a step of AT-GRPO, logs; a validation and a checkpoint every few steps
    after      the same test tasks, the table before -> after, curves.png

A run that was stopped or killed goes on from its last checkpoint as if nothing had happened: the
adapters come out byte for byte the same, on one machine with the same libraries and number of
threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from pettingllms import checkpoints, report, trees
from pettingllms.assembly import build_policies, default_folder, is_embedded, located, make_env
from pettingllms.errors import ConfigError, NonFiniteError, SandboxUnavailable
from pettingllms.evaluate import Evaluation, evaluate, held_out, roles_of
from pettingllms.plots import curves
from pettingllms.policies.engine import SamplerUnavailable
from pettingllms.policies.mapping import parse_policies, trained_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.runs import METRICS, TREES, RunFolder, point_latest, read_config
from pettingllms.trackers import Tracker, numbers_only, open_trackers, tracker_names
from pettingllms.trainers.at_grpo import ATGRPOTrainer
from pettingllms.trainers.budget import last_step
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.episodes import AnyEnv


class Display(Protocol):
    """Who is told how a run goes."""

    def say(self, text: str) -> None:
        """Shows a message."""

    def playing(self, what: str, done: int, total: int) -> None:
        """Held-out games are being played."""

    def step(self, step: int, total: int, row: Mapping[str, Any]) -> None:
        """A step is finished; `row` is its line of metrics.jsonl."""


class Silent:
    """A display that shows nothing."""

    def say(self, text: str) -> None:
        """Shows nothing."""

    def playing(self, what: str, done: int, total: int) -> None:
        """Shows nothing."""

    def step(self, step: int, total: int, row: Mapping[str, Any]) -> None:
        """Shows nothing."""


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended."""

    folder: Path
    step: int
    finished: bool
    """False where it was asked to stop; then it can be resumed."""
    before: Sequence[Evaluation] = ()
    after: Sequence[Evaluation] = ()
    next: str = ""
    """What to type to play held-out tasks with the adapters."""


class _StopAskedError(Exception):
    """Somebody asked to stop while held-out games were being played."""


def train(
    config: ATGRPOConfig | None = None,
    *,
    resume: Path | None = None,
    display: Display | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Trains until `max_steps` or `max_tokens`, or until `stop()`; writes and returns the result.

    Args:
        config: settings of a new run.
        resume: instead, the folder of a run to go on with, under its own settings.
        display: told about the progress.
        stop: asked between steps; a stopped run has saved its state.

    With the embedded model, PyTorch is set to one thread in this process: on a model this small,
    threads wait for each other longer than they compute, and the sandbox has use for the other
    cores.

    Raises:
        ConfigError, UnknownNameError: settings that cannot be used; nothing was written.
        RunFolderError: a folder that cannot be used, a full disk; the last checkpoint is intact.
        NonFiniteError, SandboxUnavailable, SamplerUnavailable: the state before the failing step
            was saved.
    """
    if (config is None) == (resume is None):
        raise ConfigError("give either the settings of a new run or a run to resume")
    settings = read_config(resume) if config is None and resume is not None else config
    assert settings is not None
    embedded = is_embedded(settings)
    settings = resolve(located(settings), embedded=embedded)
    if embedded:
        torch.set_num_threads(1)
    env = make_env(settings, "train", embedded=embedded)
    players = parse_policies(settings.policies, roles_of(env))
    trained_policies(settings.train_roles, players)
    trackers = tracker_names(settings.report_to)
    path = resume or Path(settings.output_dir or default_folder(settings))
    with (
        RunFolder.reopen(path) if resume else RunFolder.create(path) as folder,
        contextlib.closing(build_policies(settings, players, path)) as policies,
    ):
        folder.describe(settings)
        if not resume and settings.output_dir is None:
            point_latest(path)
        session = _Session(settings, folder, env, policies, display or Silent(), stop)
        return session.run(trackers)


class _Session:
    """One process's part of a run."""

    def __init__(
        self,
        config: ATGRPOConfig,
        folder: RunFolder,
        env: AnyEnv,
        policies: PolicySet,
        display: Display,
        stop: Callable[[], bool],
    ) -> None:
        self.config, self.folder, self.policies = config, folder, policies
        self.display, self.stop = display, stop
        self.trainer = ATGRPOTrainer(config, env, policies)
        self.trackers: list[Tracker] = []

    def run(self, trackers: Sequence[str]) -> Summary:
        """Everything from the present state of the folder to the end."""
        config, trainer = self.config, self.trainer
        step = checkpoints.resume(self.folder, trainer)
        self.display.say(_opening(config, self.folder.path, step))
        self.trackers = open_trackers(trackers, self.folder.path, dataclasses.asdict(config), step)
        before: list[Evaluation] = []
        try:
            before = self._evaluated("before")
            self._loop()
            after = self._evaluated("after") if trainer.step >= self._last_step() else []
        except _StopAskedError:
            after = []
            if trainer.step:
                checkpoints.save(self.folder, trainer)
        finally:
            for tracker in self.trackers:
                tracker.close()
        if after:
            self._conclude(before, after)
        run = self.folder.path
        command = ["pettingllms-eval", "--env", config.env, "--adapters", str(run)]
        return Summary(run, trainer.step, bool(after), before, after, shlex.join(command))

    # ----------------------------------------------------------------------------------- steps

    def _loop(self) -> None:
        config, trainer = self.config, self.trainer
        saved = trainer.step
        while True:
            if self._due():
                self._play("validation", "val", greedy=False)
            # Asked once: a stop between the two uses of the answer would leave the step unsaved.
            last = trainer.step >= self._last_step() or self.stop()
            if trainer.step != saved and (last or trainer.step % config.save_steps == 0):
                checkpoints.save(self.folder, trainer)
                saved = trainer.step
            if last:
                return
            self._step()

    def _step(self) -> None:
        trainer = self.trainer
        # A step that fails half-way has changed some policies. Full models are too large to copy.
        state = None if self.config.full else checkpoints.capture(trainer)
        try:
            groups, metrics = trainer.train_step()
        except (NonFiniteError, SandboxUnavailable, SamplerUnavailable) as error:
            raise type(error)(f"{error}\n{self._saved(state)}") from error
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"out of memory: {error}\nlower --tokens-per-batch (update), --tasks-per-step or "
                f"--num-generations (sampling)\n{self._saved(state)}"
            ) from error
        row = {
            "kind": "train",
            "step": trainer.step,
            "success": trees.success_of(groups),
            **metrics,
        }
        self.folder.append(TREES, trees.rows(trainer.step, groups, trainer))
        self._log(row)
        self.display.step(trainer.step, self._last_step(), row)

    def _last_step(self) -> int:
        return last_step(self.config, self.trainer.step, self.trainer.tokens)

    def _saved(self, state: checkpoints.TrainerState | None) -> str:
        """Goes back to before the step and saves that; says where it is."""
        if state is None:
            return f"the last checkpoint is in {self.folder.path / 'checkpoints'}"
        self.policies.close()  # an engine that failed could not take over what is restored
        checkpoints.restore(self.trainer, state)
        place = checkpoints.save(self.folder, self.trainer)
        return f"the state after step {state.step} is saved in {place}"

    def _log(self, row: Mapping[str, Any]) -> None:
        self.folder.append(METRICS, [row])
        numbers = numbers_only(row)
        for tracker in self.trackers:
            tracker.log(self.trainer.step, numbers)

    # ------------------------------------------------------------------------------- held out

    def _due(self) -> bool:
        """Whether a validation is due that metrics.jsonl does not have yet."""
        step, every = self.trainer.step, self.config.eval_steps
        return bool(every) and step % every == 0 and not self._known("validation", step)

    def _known(self, when: str, step: int) -> list[Evaluation]:
        rows = self.folder.rows(METRICS)
        found = [row for row in rows if row.get("when") == when and row["step"] == step]
        return [Evaluation.from_row(row) for row in found]

    def _evaluated(self, when: str) -> list[Evaluation]:
        """Test tasks, sampled and greedy; what metrics.jsonl has already is not played again."""
        known = self._known(when, 0 if when == "before" else self.trainer.step)
        if when == "before" and self.trainer.step:
            return known
        return known + [
            self._play(when, "test", greedy=greedy) for greedy in (False, True)[len(known) :]
        ]

    def _play(self, when: str, split: str, *, greedy: bool) -> Evaluation:
        config = self.config
        env = make_env(config, split, embedded=is_embedded(config))
        what = f"{when}: {split} tasks, {'greedy' if greedy else 'sampled'}"

        def progress(done: int, total: int) -> None:
            self.display.playing(what, done, total)
            if self.stop():
                raise _StopAskedError

        evaluation = evaluate(
            env,
            self.policies,
            tasks=held_out(env, split, config.eval_tasks),
            max_new_tokens=config.max_completion_length,
            greedy=greedy,
            temperature=config.temperature,
            seed=config.seed,
            scoring_threads=config.scoring_threads,
            on_progress=progress,
        )
        row = {"kind": "eval", "when": when, "step": self.trainer.step, "split": split}
        self._log(row | evaluation.row())
        return evaluation

    def _conclude(self, before: Sequence[Evaluation], after: Sequence[Evaluation]) -> None:
        columns = {"before": before, "after": after}
        notes = f"{report.sizes(after[0])}\n"
        self.folder.write("summary.md", f"{report.as_markdown(columns)}\n\n{notes}")
        values = {title: [each.row() for each in column] for title, column in columns.items()}
        self.folder.write("summary.json", json.dumps(values, indent=2) + "\n")
        title = f"{self.config.env}, {self.config.estimator}, seed {self.config.seed}"
        self.folder.write("curves.png", curves(self.folder.rows(METRICS), title))
        self.display.say(f"\n{report.as_text(columns)}\n{notes}")


def _opening(config: ATGRPOConfig, run: Path, step: int) -> str:
    lines = []
    if is_embedded(config):
        lines.append(
            "model: the embedded tiny model, for a CPU; with a GPU try --model Qwen/Qwen3-1.7B"
        )
    start = f"going on after step {step}" if step else "starting"
    lines.append(f"{start}; run folder {run}")
    return "\n".join(lines)
