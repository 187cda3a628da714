"""MALT: a team before, after SFT on good completions, after DPO on pairs, and against AT-GRPO.

    python -m benchmarks.malt [--seeds 0 1 2] [--tokens 60000] [--out FILE]

Math with a tool (the paper's generator), a reasoner (verifier) and a judge (refiner), who act once each. All
begin with the same short training (`benchmarks.warm`). MALT then plays full trees of three candidates a
decision with frozen weights; `pettingllms-data pairs` reads them; TRL's SFTTrainer trains every role on its
good completions, and then TRL's DPOTrainer all but the first role on pairs, with the SFT weights as the
reference. AT-GRPO goes on from the same start with as many generated tokens. Each team plays the same test
tasks three times: the success of one episode, and of the answer that most of the three end with (MV@3).
Writes `results/malt.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import load_dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from benchmarks import warm
from benchmarks.evidence import Table, spread
from pettingllms.evaluation.scores import scores_by_task
from pettingllms.models import EMBEDDED
from pettingllms.rollout.pairs import PAIRS, SFT

OUT = warm.HERE / "out" / "malt"
RESULTS = warm.HERE / "results" / "malt.json"
ROLES = ("tool", "reasoner", "judge")
STAGES = ("before", "SFT", "SFT + DPO", "AT-GRPO")
COMMON: dict[str, Any] = {
    "per_device_train_batch_size": 16,
    "lr_scheduler_type": "cosine",
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "max_length": 512,
    "logging_steps": 50,
    "save_strategy": "no",
    "disable_tqdm": True,
}


def main() -> None:
    """Runs what is missing, prints the table, and writes the results."""
    torch.set_num_threads(1)
    warm.command(__doc__.splitlines()[0], RESULTS, one, table, tokens=60_000)


def one(seed: int, tokens: int, tasks: int) -> dict[str, Any]:
    """All stages of a seed: their scores, and what they were trained on."""
    first, folder = warm.start(seed), OUT / f"{tokens}-{seed}"
    shared: dict[str, Any] = {"env_args": warm.TEAM, "adapters": str(first), "max_tokens": tokens}
    trees = warm.train(folder / "trees", seed, method="malt", tasks_per_step=4, **shared)
    again = warm.train(folder / "at_grpo", seed, method="at_grpo", **shared)
    pairs = folder / "pairs"
    if not pairs.exists():
        warm.run(["pettingllms.cli.data", "pairs", str(trees), "--out", str(pairs)], folder / "log")
    sizes = {role: {f: _lines(pairs / role / f) for f in (PAIRS, SFT)} for role in ROLES}
    sft = {role: tuned(pairs / role / SFT, first / role, folder / "sft" / role) for role in ROLES}
    dpo = {
        role: tuned(pairs / role / PAIRS, sft[role], folder / "dpo" / role) for role in ROLES[1:]
    }
    teams = {
        "before": str(first),
        "SFT": _spec(sft),
        "SFT + DPO": _spec(sft | dpo),
        "AT-GRPO": str(again),
    }
    scores = {
        name: scored(folder / f"play-{n}", team, seed, tasks)
        for n, (name, team) in enumerate(teams.items())
    }
    generated = {"trees": warm.tokens_of(trees), "AT-GRPO": warm.tokens_of(again)}
    print(seed, scores, sizes, generated, flush=True)
    return {"seed": seed, "scores": scores, "rows": sizes, "tokens": generated}


def tuned(file: Path, adapter: Path, out: Path) -> Path:
    """The folder of an adapter that TRL has trained on from `adapter`; on pairs by DPO, else by SFT.

    Without a row the adapter stays as it is.
    """
    if not _lines(file):
        return adapter
    if (out / "adapter_model.safetensors").exists():
        return out
    set_seed(0)
    base = AutoModelForCausalLM.from_pretrained(EMBEDDED)
    rows = load_dataset("json", data_files=str(file), split="train")
    arguments: dict[str, Any] = {
        "model": PeftModel.from_pretrained(base, adapter, is_trainable=True),
        "processing_class": AutoTokenizer.from_pretrained(EMBEDDED),
    }
    work = str(out.with_name(f"{out.name}-trl"))
    trainer: Any
    if file.name == PAIRS:
        dpo = DPOConfig(work, beta=0.1, learning_rate=5e-4, num_train_epochs=2, **COMMON)
        trainer = DPOTrainer(args=dpo, train_dataset=rows, **arguments)
        trainer.train_dataset = rows  # with the tokens of the run, see `pettingllms.rollout.pairs`
    else:
        sft = SFTConfig(
            work, learning_rate=1e-3, num_train_epochs=2, completion_only_loss=True, **COMMON
        )
        sampled = rows.map(_tokens, remove_columns=rows.column_names)
        trainer = SFTTrainer(args=sft, train_dataset=sampled, **arguments)
    trainer.train()
    print(out, trainer.state.log_history[-1], flush=True)
    trainer.model.save_pretrained(str(out), selected_adapters=["default"])
    return out


def _tokens(row: Any) -> dict[str, list[int]]:
    """A good completion as SFTTrainer takes tokens: the loss is that of the completion alone."""
    prompt, completion = row["prompt_ids"], row["completion_ids"]
    mask = [0] * len(prompt) + [1] * len(completion)
    return {"input_ids": prompt + completion, "completion_mask": mask}


def scored(out: Path, adapters: str, seed: int, tasks: int) -> dict[str, float]:
    """Success of one episode, and of the majority of three."""
    played = warm.play(
        out, seed, env_args=warm.TEAM, adapters=adapters, base=False, limit=tasks, samples=3
    )
    (episodes,) = played.values()
    by_task = list(scores_by_task(episodes).values())
    names = {"success": "success", "maj@3": "maj@3"}
    names |= {f"{role} right": f"{role}/first_local_reward" for role in ROLES}
    return {k: float(np.mean([scores[name] for scores in by_task])) for k, name in names.items()}


def table(result: Any) -> Table:
    """Success of one episode and of the majority of three, by stage."""
    rows = [
        [
            name,
            *(
                spread([run["scores"][name][score] for run in result["runs"]])
                for score in ("success", "maj@3")
            ),
        ]
        for name in STAGES
    ]
    return ["math, tool + reasoner + judge", "success", "majority of 3"], rows


def _spec(adapters: dict[str, Path]) -> str:
    return ",".join(f"{role}={folder}" for role, folder in adapters.items())


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="ascii").splitlines()) if path.exists() else 0


if __name__ == "__main__":
    main()
