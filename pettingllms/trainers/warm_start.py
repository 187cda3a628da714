"""A warm start on form: each role imitates demonstrations before it is trained on rewards.

Where the right form of a reply is never sampled, no reward can lead there. A few hundred demonstrations of the form
alone change that: an adapter for each role, by TRL's `SFTTrainer`, with which `pettingllms-train --adapters`
begins. They must not contain what is measured later; `check_form_only` refuses some that do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pettingllms.envs.aec import AnyEnv, clone_env, observe_text
from pettingllms.errors import ConfigError

Demonstrations = Mapping[str, Sequence[tuple[str, str]]]
"""Role -> prompts and completions."""
TASKS = 200
"""Tasks whose first prompts are compared with the demonstrations."""


def read_demonstrations(path: Path) -> Demonstrations:
    """Reads lines such as `{"role": "answerer", "prompt": "...", "completion": "..."}`.

    Raises:
        ConfigError: the file cannot be read, or a line lacks one of the three texts.
    """
    demonstrations: dict[str, list[tuple[str, str]]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"demonstrations {path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            pair = str(row["prompt"]), str(row["completion"])
            demonstrations.setdefault(row["role"], []).append(pair)
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"demonstrations {path}, line {number}: {error!r}") from error
    if not demonstrations:
        raise ConfigError(f"demonstrations {path} has no lines")
    return demonstrations


def check_form_only(demonstrations: Demonstrations, env: AnyEnv) -> None:
    """Refuses demonstrations that contain tasks or answers of an environment.

    A prompt must not be one that the environment gives, and a completion must not stand in such a prompt as
    a whole line, sentence or word.

    Raises:
        ConfigError: names the first that does.
    """
    env = clone_env(env)
    for seed in range(TASKS):
        env.reset(seed=seed)
        for agent in env.possible_agents:
            shown = observe_text(env, agent)
            words = f" {' '.join(''.join(c if c.isalnum() else ' ' for c in shown).split())} "
            for role, pairs in demonstrations.items():
                for prompt, completion in pairs:
                    normalized = "".join(c if c.isalnum() else " " for c in completion).split()
                    if prompt == shown or f" {' '.join(normalized)} " in words:
                        raise ConfigError(
                            f"demonstration {completion!r} of {role} occurs in task {seed} of the environment; "
                            "demonstrate the form with other words"
                        )


def warm_start(demonstrations: Demonstrations, model: str, out: Path, *, steps: int = 30) -> None:
    """Trains an adapter for each role on its demonstrations, and saves it as OUT/ROLE.

    Args:
        demonstrations: of each role.
        model: a name or folder, as `--model` takes it.
        out: a new folder.
        steps: of the optimizer, with 8 demonstrations each, at a rate of 2e-4.

    Raises:
        ConfigError: `out` exists.
    """
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import set_seed
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    from pettingllms.names import model_path

    if out.exists():
        raise ConfigError(f"{out} exists; name a new folder")
    set_seed(0)
    lora: dict[str, Any] = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
    settings: dict[str, Any] = {
        "max_steps": steps,
        "learning_rate": 2e-4,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 8,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
        # Adapters in 16 bits would round such steps away.
        "model_init_kwargs": {"dtype": "float32"},
        "bf16": torch.cuda.is_available(),
        "use_cpu": not torch.cuda.is_available(),
    }
    for role, pairs in demonstrations.items():
        rows = [{"prompt": _turn("user", p), "completion": _turn("assistant", c)} for p, c in pairs]
        trainer = SFTTrainer(
            model=str(model_path(model)),
            args=SFTConfig(output_dir=str(out / role), **settings),
            train_dataset=Dataset.from_list(rows),
            peft_config=LoraConfig(task_type="CAUSAL_LM", **lora),
        )
        trainer.train()
        trainer.save_model(str(out / role))


def _turn(speaker: str, text: str) -> list[dict[str, str]]:
    return [{"role": speaker, "content": text}]
