"""A whole training run, from its plan: the loop, the folder, the result.

    before     test tasks, sampled and greedy
    loop       a step of AT-GRPO, logs; a validation and a checkpoint every few steps
    after      the same test tasks, the table before -> after, curves.png

A run that was stopped or killed resumes from its last checkpoint as if nothing had happened: the
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
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pettingllms import registry
from pettingllms.assembly import (
    SHARING,
    EnvSource,
    TrainPlan,
    build_policies,
    isolation_of,
    make_env,
    plan_run,
)
from pettingllms.errors import (
    ConfigError,
    NonFiniteError,
    SamplerUnavailable,
    SandboxUnavailable,
    WorkersLost,
)
from pettingllms.evaluation import Evaluation, ablation, evaluate, held_out, report
from pettingllms.evaluation.chunks import Sampling
from pettingllms.evaluation.compare import gains_of
from pettingllms.evaluation.plots import curves
from pettingllms.names import own_names, trained_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.sources import HUB
from pettingllms.rollout.episode import AnyEnv
from pettingllms.rollout.files import ADVICE
from pettingllms.rollout.trajectory import (
    mean_success,
    outcome_is_late,
    success_of_each,
    success_rate,
)
from pettingllms.runs import (
    METRICS,
    TRAJECTORIES,
    RunFolder,
    checkpoints,
    point_latest,
    read_config,
)
from pettingllms.sandbox.isolation import announce
from pettingllms.trainers.advice import Advice
from pettingllms.trainers.at_grpo import ATGRPO, last_step
from pettingllms.trainers.callbacks import Callback, Display, Lines, called
from pettingllms.trainers.config import ATGRPOConfig, ResolvedConfig
from pettingllms.trainers.metrics import gaps
from pettingllms.trainers.settings import any_full
from pettingllms.trainers.trackers import numbers_only, open_trackers, tracker_names
from pettingllms.trainers.transformers_callbacks import as_callbacks
from pettingllms.trainers.verify import Verifier

LATE = (
    "warning: in the first step nothing was earned before the last decision of an episode; "
    "{method} compares what a completion earns right away, so earlier decisions may learn nothing. "
    "--method grpo, dr_mas, or gigpo compare whole episodes, look_ahead what candidates lead to"
)

SILENT_STEPS = 5
SILENT = (
    f"warning: {SILENT_STEPS} steps in a row had nothing to learn from, because in every group all "
    "completions earned the same; choose tasks that succeed sometimes, reward parts of an answer, "
    "or raise num_generations"
)


@dataclass(frozen=True, slots=True)
class Summary:
    """The outcome of a run."""

    folder: Path
    step: int
    finished: bool
    """False where it was asked to stop; then it can be resumed."""
    before: Sequence[Evaluation] = ()
    after: Sequence[Evaluation] = ()
    next: str = ""
    """What to type to evaluate the adapters on held-out tasks."""

    def __repr__(self) -> str:
        # One line in a notebook, where the evaluations would fill pages.
        scores = [
            evaluation.scores.get("success") for evaluation in (*self.before[:1], *self.after[:1])
        ]
        shown = " -> ".join(f"{score.mean:.2f}" for score in scores if score)
        state = "finished" if self.finished else "stopped"
        success = f", success {shown}" if shown else ""
        return f"Summary({str(self.folder)!r}, {state} after step {self.step}{success})"


def run_training(
    config: ATGRPOConfig | None = None,
    *,
    resume: Path | None = None,
    env: EnvSource | None = None,
    callbacks: Sequence[Callback] = (),
    display: Display | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Trains until `max_steps` or `max_tokens`, or until `stop()`; writes and returns the result.

    Args:
        config: settings of a new run.
        resume: instead, the folder of a run to continue, with its own settings.
        env: the environment, or what makes it, in place of the one that the settings name. Held-out
            tasks of an environment that is given itself have seeds that training never uses.
        callbacks: called after steps, evaluations and checkpoints; one that returns True ends
            training early.
        display: receives progress.
        stop: asked between steps; a stopped run has saved its state.

    With the embedded model, PyTorch is set to one thread in this process: on a model this small,
    threads wait for each other longer than they compute, and the sandbox has use for the other
    cores.

    Raises:
        ConfigError, UnknownNameError: settings that cannot be used; nothing was written.
        RunFolderError: a folder that cannot be used, a full disk; the last checkpoint is intact.
        NonFiniteError, SandboxUnavailable, SamplerUnavailable: the state after the last whole step
            was saved.
    """
    if (config is None) == (resume is None):
        raise ConfigError("give either the settings of a new run or a run to resume")
    settings = read_config(resume) if config is None and resume is not None else config
    assert settings is not None
    plan = plan_run(settings, resume=resume, env=env)
    callbacks = as_callbacks(callbacks, plan.path)
    with (
        cluster_of(plan) as ray,
        folder_of(plan) as folder,
        contextlib.closing(
            build_policies(plan.config, plan.roles_to_policies, plan.path)
        ) as policies,
    ):
        return run_plan(
            plan, folder, policies, ray, callbacks=callbacks, display=display, stop=stop
        )


def folder_of(plan: TrainPlan) -> RunFolder:
    """The run folder, locked.

    Raises:
        RunFolderError: it cannot be used.
    """
    return RunFolder.reopen(plan.path) if plan.resumes else RunFolder.create(plan.path)


def cluster_of(plan: TrainPlan) -> contextlib.AbstractContextManager[Any]:
    """Connects to Ray where the settings ask for workers; the module `ray`, else None.

    Raises:
        ConfigError: Ray, or the cluster, cannot be used.
    """
    config, policies = plan.config, plan.roles_to_policies
    if not config.workers:
        return contextlib.nullcontext()
    # Here and not above: Ray is an extra, and takes long to import.
    from pettingllms.distributed.cluster import connected

    learners = trained_policies(config.train_roles, policies)
    return connected(config, learners, own_names(policies))


def run_plan(
    plan: TrainPlan,
    folder: RunFolder,
    policies: PolicySet,
    ray: Any = None,
    *,
    callbacks: Sequence[Callback] = (),
    display: Display | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Trains to the end; the arguments and errors are those of `run_training`."""
    config, display = plan.config, Lines(folder.note, beside=display)
    isolation = isolation_of(plan.env, config.require_isolation)
    folder.describe(config, isolation=isolation, bases=policies.described)
    if isolation is not None:
        display.say(announce(isolation))
    if not plan.resumes and config.output_dir is None:
        point_latest(plan.path)
    advisers = [Advice(display.say, folder.write, ADVICE)] if config.advise else []
    with trainer_of(plan, policies, [*callbacks, *advisers], ray) as trainer:
        session = _Session(trainer, folder, plan.source, display, stop)
        with folder.noting():
            summary = session.run(tracker_names(config.report_to))
    if summary.finished and config.push_to_hub is not None:
        share = registry.resolve(f"{SHARING}:share", "command")
        display.say(f"shared: {share(plan.path, f'{HUB}{config.push_to_hub}')}")
    return summary


def trainer_of(
    plan: TrainPlan, policies: PolicySet, callbacks: Sequence[Callback], ray: Any
) -> contextlib.AbstractContextManager[ATGRPO]:
    """The trainer; with Ray, workers play and learners update until the end of the block."""
    arguments: dict[str, Any] = {"method": plan.method, "callbacks": callbacks}
    if ray is None:
        return contextlib.nullcontext(ATGRPO(plan.config, plan.env, policies, **arguments))
    from pettingllms.distributed.trainer import ray_trainer

    return ray_trainer(
        plan.source, plan.config, plan.env, policies, fresh=not plan.resumes, **arguments
    )


class _StopAskedError(Exception):
    """A stop was requested during an evaluation."""


class _Session:
    """One process's part of a run."""

    def __init__(
        self,
        trainer: ATGRPO,
        folder: RunFolder,
        env: EnvSource | None,
        display: Display,
        stop: Callable[[], bool],
    ) -> None:
        self.trainer, self.config, self.policies = trainer, trainer.config, trainer.policies
        self.folder, self.display, self.stop = folder, display, stop
        self._source = env
        self._envs: dict[str, AnyEnv] = {"train": trainer.env}
        self._ended = False
        """Whether a callback ended training."""
        self._silent = 0
        """Steps in a row, up to the latest, in which no policy had anything to learn from."""
        self.trackers: list[Any] = []
        self._verifier = Verifier(trainer) if _verified(trainer) else None

    def run(self, trackers: Sequence[str]) -> Summary:
        """Everything from the present state of the folder to the end."""
        config, trainer = self.config, self.trainer
        # Before the trackers open: they drop what they have of later steps.
        step = checkpoints.resume(self.folder, trainer)
        self.display.say(_opening(config, self.policies, self.folder.path, step))
        self.trackers = open_trackers(trackers, self.folder.path, dataclasses.asdict(config), step)
        before: list[Evaluation] = []
        try:
            self._call("on_begin")
            before = self._evaluated("before")
            self._loop()
            # A run that was asked to stop can be resumed, and its test tasks wait for its last
            # step.
            over = self._ended or trainer.step >= self._last_step()
            after = self._evaluated("after") if over else []
        except _StopAskedError:
            over, after = False, []
            if trainer.step:
                self._save()
        finally:
            for tracker in self.trackers:
                tracker.finish()
        if over:
            self._conclude(before, after)
        self._call("on_end")
        run = self.folder.path
        command = ["pettingllms-eval", "--env", config.env, "--adapters", str(run)]
        return Summary(run, trainer.step, over, before, after, shlex.join(command))

    # ----------------------------------------------------------------------------------- steps

    def _loop(self) -> None:
        config, trainer = self.config, self.trainer
        saved = trainer.step
        while True:
            if self._due():
                self._evaluate("validation", "val", greedy=False)
            # Asked once: a stop between the two uses of the answer would leave the step unsaved.
            last = trainer.step >= self._last_step() or self._ended or self.stop()
            if trainer.step != saved and (last or trainer.step % config.save_steps == 0):
                self._save()
                saved = trainer.step
            if last or self._ended:
                return
            self._step()

    def _save(self) -> None:
        try:
            place = checkpoints.save(self.folder, self.trainer)
        except WorkersLost as error:
            raise WorkersLost(f"{error}\n{self._last_checkpoint()}") from error
        self._call("on_save", place)

    def _call(self, hook: str, *arguments: Any) -> None:
        self._ended |= called(self.trainer.callbacks, hook, self.trainer, *arguments)

    def _step(self) -> None:
        trainer = self.trainer
        # Only the second iteration of a step can fail after the first one has changed policies.
        # Full models are too large to copy.
        several = self.config.num_iterations > 1 and not any_full(self.config, trainer.trained)
        state = checkpoints.capture(trainer) if several else None
        verifier = self._verifier if self._verifier is not None and self._verifier.pending else None
        if verifier is not None:
            verifier.begin()
        try:
            trajectories, metrics = trainer.take_step()
        except (NonFiniteError, SandboxUnavailable, SamplerUnavailable, WorkersLost) as error:
            raise type(error)(f"{error}\n{self._saved(state)}") from error
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"out of memory: {error}\nlower --tokens-per-batch (update), --tasks-per-step or "
                f"--num-generations (sampling)\n{self._saved(state)}"
            ) from error
        row = {
            "kind": "train",
            "step": trainer.step,
            "success": success_rate(trajectories),
            "success_mean": mean_success(trajectories),
            **(success_of_each(trajectories) if trainer.pools is None else {}),
            **metrics,
        }
        at_once = "early_rewards" in trainer.method.needs
        if trainer.step == 1 and at_once and outcome_is_late(trajectories):
            self.display.say(LATE.format(method=self.config.method))
        self._silent = self._silent + 1 if metrics["frac_reward_zero_std"] == 1 else 0
        if self._silent == SILENT_STEPS and self.config.num_iterations:
            self.display.say(SILENT)
        # Written before the weights are published: what was learned from is on disk whatever the
        # engine does.
        self.folder.append(TRAJECTORIES, (record.row(step=trainer.step) for record in trajectories))
        self._log(row)
        if verifier is not None:
            verifier.learned(trajectories)
        try:
            trainer.publish()
            if verifier is not None and (proof := verifier.report()):
                self.display.say(proof)
        except (SamplerUnavailable, WorkersLost) as error:
            # The step is complete; only the engine or the workers lack its weights.
            raise type(error)(f"{error}\n{self._saved(None)}") from error
        self.display.step(trainer.step, self._last_step(), row)
        self._call("on_step", row)

    def _last_step(self) -> int:
        return last_step(self.config, self.trainer.step, self.trainer.tokens)

    def _saved(self, state: checkpoints.TrainerState | None) -> str:
        """Saves the state after the last whole step, `state` if given; says where it is."""
        if state is not None:
            self.policies.close()  # an engine that failed could not take over what is restored
            checkpoints.restore(self.trainer, state)
        elif not self.trainer.intact:
            return self._last_checkpoint()
        try:
            place = checkpoints.save(self.folder, self.trainer)
        except WorkersLost:  # and with them the optimizers
            return self._last_checkpoint()
        return f"the state after step {self.trainer.step} is saved in {place}"

    def _last_checkpoint(self) -> str:
        places = checkpoints.saved(self.folder.path)
        return f"the last checkpoint is in {places[0]}" if places else "no step has been saved yet"

    def _log(self, row: Mapping[str, Any]) -> None:
        self.folder.append(METRICS, [row])
        numbers = numbers_only(row)
        for tracker in self.trackers:
            tracker.log(numbers, step=self.trainer.step)

    # ------------------------------------------------------------------------------- held out

    def _due(self) -> bool:
        """Returns whether a validation is due that metrics.jsonl does not have yet."""
        step, every = self.trainer.step, self.config.eval_steps
        wanted = every and self.config.eval_tasks
        return bool(wanted) and step % every == 0 and not self._known("validation", step)

    def _known(self, when: str, step: int) -> list[Evaluation]:
        rows = self.folder.rows(METRICS)
        matches = [row for row in rows if row.get("when") == when and row["step"] == step]
        return [Evaluation.from_row(row) for row in matches]

    def _evaluated(self, when: str) -> list[Evaluation]:
        """Test tasks, sampled and greedy; what metrics.jsonl has already is not sampled again."""
        done = self._known(when, 0 if when == "before" else self.trainer.step)
        # The weights are no longer those of before the first step.
        if not self.config.eval_tasks or (when == "before" and self.trainer.step):
            return done
        return done + [
            self._evaluate(when, "test", greedy=greedy) for greedy in (False, True)[len(done) :]
        ]

    def _evaluate(self, when: str, split: str, *, greedy: bool) -> Evaluation:
        config, env = self.config, self._env(split)
        what = f"{when}: {split} tasks, {'greedy' if greedy else 'sampled'}"
        evaluation = evaluate(
            env,
            self.policies,
            tasks=held_out(env, split, config.eval_tasks),
            max_new_tokens=config.max_completion_length,
            greedy=greedy,
            temperature=config.temperature,
            seed=config.seed,
            scoring_threads=config.scoring_threads,
            on_progress=partial(self._evaluating, what),
        )
        row = {"kind": "eval", "when": when, "step": self.trainer.step, "split": split}
        if when == "validation":
            row |= self._gaps(evaluation)
        self._log(row | evaluation.row())
        self._call("on_evaluation", row | evaluation.row())
        return evaluation

    def _evaluating(self, what: str, done: int, total: int) -> None:
        """Shows how far an evaluation is, and ends it where a stop was asked for."""
        self.display.evaluating(what, done, total)
        if self.stop():
            raise _StopAskedError

    def _env(self, split: str) -> AnyEnv:
        """The environment of a split, made at its first use."""
        if split not in self._envs:
            self._envs[split] = make_env(self.config, split, self._source, divide=True)
        return self._envs[split]

    def _roles(self) -> ablation.RoleTable | None:
        """What each trained policy is worth; None where that cannot be told, or is not asked for."""
        config, trained = self.config, self.trainer.trained
        tasks = held_out(env := self._env("test"), "test", config.eval_tasks)
        enough = len(trained) > 1 and len(tasks) >= ablation.FEWEST
        if not (config.compare_roles and enough) or config.workers or any_full(config, trained):
            return None
        length, temperature = config.max_completion_length, config.temperature
        sampling = Sampling(length, 1, False, temperature, 1.0, config.seed)
        with contextlib.suppress(_StopAskedError):
            return ablation.compare_roles(
                env,
                self.policies,
                trained,
                tasks=tasks,
                sampling=sampling,
                scoring_threads=config.scoring_threads,
                on_progress=partial(self._evaluating, "who needs whom"),
            )
        return None

    def _gaps(self, evaluation: Evaluation) -> dict[str, float]:
        """Returns the `gaps` between the steps since the last validation and this one."""
        since = self.trainer.step - self.config.eval_steps
        rows = self.folder.rows(METRICS)
        steps = [row for row in rows if row.get("kind") == "train" and row["step"] > since]
        return gaps(steps, {name: score.mean for name, score in evaluation.scores.items()})

    def _conclude(self, before: Sequence[Evaluation], after: Sequence[Evaluation]) -> None:
        columns = {"before": before, "after": after}
        roles = self._roles()
        steps = [row for row in self.folder.rows(METRICS) if row["kind"] == "train"]
        notes = f"{report.training_notes(after[0], steps[-1:])}\n" if after else ""
        if after:
            more = "" if roles is None else f"\n{roles.markdown()}"
            table = report.as_markdown(report.training_table(columns))
            self.folder.write("summary.md", f"{table}\n\n{notes}{more}")
        if roles is not None:
            self.folder.write("roles.json", json.dumps(roles.record(), indent=2) + "\n")
        rows = {when: [evaluation.row() for evaluation in done] for when, done in columns.items()}
        values = rows | {"differences": [gain.row() for gain in gains_of(before, after).values()]}
        self.folder.write("summary.json", json.dumps(values, indent=2) + "\n")
        title = f"{self.config.env}, {self.config.method}, seed {self.config.seed}"
        self.folder.write("curves.png", curves(self.folder.rows(METRICS), title))
        if after:
            short = report.as_text(report.training_table(columns, short=True))
            shown = "" if roles is None else f"\n{roles.text()}\n"
            self.display.say(f"\n{short}\n{notes}{shown}")


def _verified(trainer: ATGRPO) -> bool:
    """Returns whether the first steps are checked: unless told otherwise, of models from elsewhere."""
    config = trainer.config
    if config.workers or any_full(config, trainer.trained) or trainer.step:
        return False
    return not config.embedded if config.verify is None else config.verify


def _opening(config: ResolvedConfig, policies: PolicySet, run: Path, step: int) -> str:
    lines = list[str]()
    if config.embedded:
        lines.append("model: embedded, for a CPU; with a GPU try --model Qwen/Qwen3-1.7B")
    if len(policies.bases) > 1:
        lines += [f"{name}: {description}" for name, description in policies.described.items()]
    start = f"resuming from step {step}" if step else "starting"
    lines.append(f"{start}; run folder {run}")
    return "\n".join(lines)
