"""The trainer, with objects of your own.

`ATGRPOTrainer` has the arguments of TRL's trainers and takes objects wherever there are names: here a model that is loaded already, an environment
as a function, dictionaries for what is JSON on the command line, a callback of transformers, and a reward function that pays short answers.
"""

import functools
import tempfile
from typing import Any

from transformers import AutoModelForCausalLM, TrainerCallback

from pettingllms import ATGRPOConfig, ATGRPOTrainer
from pettingllms.envs import sokoban_v0
from pettingllms.models import EMBEDDED


class Progress(TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        print(
            f"step {state.global_step} of {state.max_steps}: reward of the planner {logs['reward/planner']:.2f}"
        )


def brevity(completions: list[str], **kwargs: Any) -> list[float]:
    return [-0.001 * len(text) for text in completions]


with tempfile.TemporaryDirectory() as folder:
    trainer = ATGRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(EMBEDDED),
        env=functools.partial(sokoban_v0.env, size=6, boxes=1),
        args=ATGRPOConfig(
            max_steps=2,
            num_generations=4,
            tasks_per_step=4,
            eval_steps=0,
            eval_tasks=5,
            output_dir=f"{folder}/run",
        ),
        policies={"tool": "tool", "planner": "planner"},
        callbacks=[Progress],
        reward_funcs=brevity,
    )
    summary = trainer.train()
    success = trainer.evaluate(limit=10).scores["success"]
    print(f"{summary.step} steps; success on 10 held-out boards: {success.mean:.1f}")
    saved = trainer.save_model(f"{folder}/adapters")
    print("saved:", sorted(path.name for path in saved.iterdir()))
    assert summary.finished
