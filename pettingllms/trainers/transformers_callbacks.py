"""Callbacks of transformers in a training run, at those of their events that have a meaning here.

| event of `TrainerCallback` | called |
|---|---|
| `on_init_end`, `on_train_begin` | before the first evaluation |
| `on_step_begin` | before each step |
| `on_step_end`, then `on_log` | after each step; `logs` are its metrics, as in metrics.jsonl |
| `on_evaluate` | after each evaluation; `metrics` are its scores |
| `on_save` | after each checkpoint |
| `on_train_end` | after the last evaluation |

`state` has `global_step`, `max_steps` and `log_history`; of `control` only `should_training_stop` is
read. `args` are `TrainingArguments` with the settings that both have. Each policy has an optimizer of
its own and data has no epochs, so that the other events and `model` and `optimizer` do not exist;
`kwargs` hold `processing_class`, the tokenizer, and `trainer`, which has all the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pettingllms.errors import ConfigError
from pettingllms.trainers.callbacks import Callback

if TYPE_CHECKING:
    from pettingllms.trainers.at_grpo import ATGRPO


class TransformersCallback(Callback):
    """Calls a callback of transformers."""

    def __init__(self, wrapped: TrainerCallback, folder: Path) -> None:
        self.wrapped, self._folder = wrapped, folder
        self.state, self.control = TrainerState(), TrainerControl()
        self._args: TrainingArguments | None = None

    def on_begin(self, trainer: ATGRPO) -> bool:
        """Tells `on_init_end`, `on_train_begin` and the beginning of the first step."""
        config = trainer.config
        self._args = TrainingArguments(
            output_dir=str(self._folder),
            max_steps=config.max_steps,
            learning_rate=config.learning_rate,
            warmup_steps=config.warmup_steps,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            eval_steps=config.eval_steps or None,
            save_steps=config.save_steps,
            logging_steps=1,
            # transformers' `set_seed`, which a callback may call with it, seeds NumPy, which takes
            # 32 bits.
            seed=config.seed % (1 << 32),
            # The run's own trackers (`pettingllms.trainers.trackers`) log the metrics.
            report_to=[],
            use_cpu=trainer.policies.device.type == "cpu",
        )
        self.state.max_steps, self.state.global_step = config.max_steps, trainer.step
        self._tell("on_init_end", trainer)
        return self._tell("on_train_begin", trainer) or self._tell("on_step_begin", trainer)

    def on_step(self, trainer: ATGRPO, row: Mapping[str, Any]) -> bool:
        """Tells the end of a step, its log, and the beginning of the next step."""
        self.state.global_step = trainer.step
        self.state.log_history.append(dict(row))
        ends = self._tell("on_step_end", trainer)
        ends = self._tell("on_log", trainer, logs=dict(row)) or ends
        if not ends and trainer.step < trainer.config.max_steps:
            ends = self._tell("on_step_begin", trainer)
        return ends

    def on_evaluation(self, trainer: ATGRPO, row: Mapping[str, Any]) -> bool:
        """Tells an evaluation."""
        return self._tell("on_evaluate", trainer, metrics=dict(row))

    def on_save(self, trainer: ATGRPO, folder: Path) -> bool:
        """Tells a checkpoint."""
        return self._tell("on_save", trainer, checkpoint=str(folder))

    def on_end(self, trainer: ATGRPO) -> bool:
        """Tells the end."""
        return self._tell("on_train_end", trainer)

    def _tell(self, event: str, trainer: ATGRPO, **more: Any) -> bool:
        """Tells an event; returns whether training is to end."""
        told = getattr(self.wrapped, event)
        kwargs = {"processing_class": trainer.policies.chat.tokenizer, "trainer": trainer, **more}
        # A callback may change the control in place and return None.
        self.control = told(self._args, self.state, self.control, **kwargs) or self.control
        return bool(self.control.should_training_stop)


def as_callbacks(given: Any, folder: Path) -> list[Callback]:
    """Callbacks of this package, of its own ones and of transformers'; classes are instantiated.

    Raises:
        ConfigError: something else.
    """
    callbacks: list[Callback] = []
    for callback in given if isinstance(given, Sequence) else [given]:
        made = callback() if isinstance(callback, type) else callback
        if isinstance(made, TrainerCallback):
            made = TransformersCallback(made, folder)
        if not isinstance(made, Callback):
            raise ConfigError(
                f"callbacks takes pettingllms.Callback and transformers.TrainerCallback, got "
                f"{callback!r}"
            )
        callbacks.append(made)
    return callbacks
