"""TRL's side of `benchmarks.peers`: `GRPOTrainer` on our tasks, for our rewards, with our settings."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from datasets import Dataset
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.peers_record import Record, State
from pettingllms.models import EMBEDDED
from pettingllms.policies.policy_set import PolicySet
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.trainers.episodes import AnyEnv, Episode, score, tasks_of_step
from pettingllms.types import Reply, Task


def theirs(config: ATGRPOConfig, env: AnyEnv, policies: PolicySet, rows: int, every: int) -> Record:
    """Trains with TRL's trainer, which starts from the same adapter."""
    seeds, prompts = prompts_of(config, env)
    last: dict[str, float] = {}
    with ThreadPoolExecutor(config.scoring_threads) as pool, tempfile.TemporaryDirectory() as out:
        trainer: Any = GRPOTrainer(
            model=str(EMBEDDED),
            reward_funcs=reward_of(config, env, policies, pool, last),
            args=trl_settings(config, rows, out),
            train_dataset=Dataset.from_dict({"prompt": prompts, "task": seeds}),
            processing_class=AutoTokenizer.from_pretrained(EMBEDDED),
            peft_config=LoraConfig(
                r=config.lora_r,
                lora_alpha=config.lora_alpha,
                target_modules=config.lora_target_modules,
                task_type="CAUSAL_LM",
            ),
        )
        set_peft_model_state_dict(trainer.model, policies.state(policies.names[0]))
        own = [list(policies.chat.prompt_ids(prompt[0]["content"])) for prompt in prompts]
        if trainer._tokenize_prompts(prompts)[0] != own:
            raise AssertionError("the prompts of the two have different tokens")

        def state() -> State:
            found = get_peft_model_state_dict(trainer.model)
            return {name: tensor.detach().clone() for name, tensor in found.items()}

        record = Record(config.max_tokens or 0, every, state)

        class Steps(TrainerCallback):
            def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
                # As in pettingllms.trainers.budget: the schedule follows the tokens.
                share = (record.rows[-1]["tokens"] + last["tokens"]) / record.limit
                reached = int(config.max_steps * min(1.0, share))
                schedule = trainer.lr_scheduler
                schedule.last_epoch = max(schedule.last_epoch, reached - 1)

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - its names
                rate = trainer.lr_scheduler.get_last_lr()[0]
                ended = record.step(int(last["tokens"]), last["success"], rate)
                control.should_training_stop = control.should_training_stop or ended

            def on_train_begin(self, *_: Any, **__: Any) -> None:
                record.begun = record.meter.now()

        trainer.add_callback(Steps())
        trainer.remove_callback(PrinterCallback)
        record.meter.wrap(trainer, "_generate", "sampling")
        record.meter.wrap(trainer, "_calculate_rewards", "scoring")
        trainer.train()
    return record


def prompts_of(config: ATGRPOConfig, env: AnyEnv) -> tuple[list[int], list[list[dict[str, str]]]]:
    """Task seeds and conversations of all steps, in the order in which our trainer plays them."""
    count = config.tasks_per_step
    tasks = [
        task
        for step in range(config.max_steps)
        for task in tasks_of_step(env, config.env, step, count, config.seed)
    ]
    texts = (Episode(env, task, 0).prompt() for task in tasks)
    return [task.seed for task in tasks], [[{"role": "user", "content": text}] for text in texts]


def reward_of(
    config: ATGRPOConfig,
    env: AnyEnv,
    policies: PolicySet,
    pool: ThreadPoolExecutor,
    last: dict[str, float],
) -> Callable[..., list[float | None]]:
    """The environment's reward as TRL wants it; `last` is told the tokens and the success."""

    def reward(completion_ids: list[list[int]], task: list[int], **_: Any) -> list[float | None]:
        replies = [
            Reply((), tuple(ids), (), policies.chat.decode(ids), finished=True, version=0)
            for ids in completion_ids
        ]
        starts = range(0, len(task), config.num_generations)
        games = [Episode(env, Task(str(task[at]), task[at]), 0) for at in starts]
        groups = [replies[at : at + config.num_generations] for at in starts]
        scored = [each for found in pool.map(score, games, groups) for each in found]
        last["tokens"] = sum(map(len, completion_ids))
        last["success"] = sum(bool(each.info.get("success")) for each in scored) / len(scored)
        return [each.reward for each in scored]

    return reward


def trl_settings(config: ATGRPOConfig, rows: int, out: str) -> Any:
    """The same settings under TRL's names, and nothing that would cost time here."""
    same = "num_generations max_completion_length max_steps temperature learning_rate loss_type"
    same += " lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 max_grad_norm"
    same += " scale_rewards epsilon epsilon_high beta num_iterations seed"
    return GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=config.tasks_per_step * config.num_generations // rows,
        shuffle_dataset=False,
        top_p=1.0,
        top_k=0,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
        bf16=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        **{name: getattr(config, name) for name in same.split()},
    )
