"""MALT: values of a full tree, pairs and completions from a run's records, trained on by TRL's own trainers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

import pettingllms as pl
from pettingllms.cli.data import main
from pettingllms.envs.base import TextEnv
from pettingllms.envs.records import Outcome
from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.models import EMBEDDED
from pettingllms.rollout.pairs import PAIRS, SFT, judged, write_pairs
from pettingllms.rollout.shapes import Full
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.samplers.scripted import ScriptedSampler
from pettingllms.types import Task
from tests.test_estimators_golden import cases
from tests.test_forest import play

torch.set_num_threads(1)
ROLES = ("generator", "verifier", "refiner")
TREES = ["n=2", "n=3", "everything right: no pair, SFT only"]


class Tree(TextEnv):
    """Three roles in a line, whose replies say which leaf of a table they lead to."""

    metadata = {"name": "tree_v0", "render_modes": []}  # noqa: RUF012 - PettingZoo's

    def __init__(self, leaves: Any, **kwargs: Any) -> None:
        self.leaves = leaves
        super().__init__(roles=ROLES, max_turns=1, **kwargs)

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[int, ...]:
        return ()

    def _text(self, state: tuple[int, ...], agent: str) -> str:
        return f"{agent} after {state}"

    def _act(self, state: tuple[int, ...], agent: str, text: str) -> Outcome:
        after = (*state, int(text))
        solved = len(after) == 3 and bool(self.leaves[after[0]][after[1]][after[2]])
        return Outcome(after, team=float(solved), local=0.0, success=solved)

    def _view(self, state: tuple[int, ...]) -> str:
        return str(state)


def trees(leaves: Any) -> list[Trajectory]:
    """A full tree in which every candidate says its own number."""

    class Numbered(ScriptedSampler):
        def sample(self, requests: Any, n: int, **settings: Any) -> Any:
            completions = super().sample(requests, n, **settings)
            return [[replace(c, text=str(k)) for k, c in enumerate(row)] for row in completions]

    sampler: Any = Numbered(lambda *_: "0")
    return play(Full.of(len(leaves), "first"), Tree(leaves), sampler=sampler, tasks=[Task("q", 0)])


@pytest.mark.parametrize("name", TREES)
def test_values_and_pairs_are_those_of_the_table(name: str) -> None:
    case = cases("malt")[name]
    expected = case["expected"]
    judgements = judged(trees(case["inputs"]["leaves[g][v][r]"]))
    by_role = {
        role: [judgement for judgement in judgements if judgement.group.key.role == role]
        for role in ROLES
    }
    (first,) = by_role["generator"]
    assert list(first.values.values()) == pytest.approx(expected["generator_values"], abs=1e-6)
    values = {
        judgement.group.prompt: list(judgement.values.values()) for judgement in by_role["verifier"]
    }
    for g, row in enumerate(expected["verifier_values"]):
        assert values[f"verifier_0 after ({g},)"] == pytest.approx(row, abs=1e-6)
    for role in ROLES:
        assert sum(len(judgement.pairs) for judgement in by_role[role]) == expected["counts"][role]
        assert sum(len(judgement.good) for judgement in by_role[role]) == expected["sft"][role]
    pairs = {tuple(map(int, pair)) for pair in first.pairs}
    assert pairs == {tuple(pair) for pair in expected["pairs"]["generator"]}
    verified = {
        (int(judgement.group.prompt.partition("(")[2][0]), *map(int, pair))
        for judgement in by_role["verifier"]
        for pair in judgement.pairs
    }
    assert verified == {tuple(pair) for pair in expected["pairs"]["verifier"]}


def test_a_full_tree_has_as_many_samples_as_the_table_says() -> None:
    case = cases("malt")["samples of a full tree"]
    n = case["inputs"]["n"]
    trajectories = trees([[[0] * n] * n] * n)
    counts = dict.fromkeys(ROLES, 0)
    for trajectory in trajectories:
        for group in trajectory.groups:
            counts[group.key.role] += len(group.candidates)
    assert counts == case["expected"]


def run_of(folder: Path, leaves: Any, tasks: int = 1) -> Path:
    folder.mkdir()
    lines = []
    for n in range(tasks):
        for trajectory in trees(leaves):
            row = trajectory.row(step=n + 1)
            lines.append(json.dumps({**row, "task": f"q{n}"}))
    (folder / "trajectories.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


LEAVES = [[[1, 1, 1], [1, 0, 0], [0, 0, 0]], [[0, 0, 0]] * 3, [[1, 1, 0], [1, 1, 1], [1, 1, 1]]]


def test_the_same_text_is_judged_by_the_mean_of_its_values(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", LEAVES)
    text = (run / "trajectories.jsonl").read_text()
    # The generator said the same three times: worth 4/9, 0 and 8/9, together 4/9, which is not good.
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        for decided in line["decisions"]:
            if decided["role"] == "generator":
                for candidate in decided["candidates"]:
                    candidate["completion"] = "the same"
    (run / "trajectories.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    judgements = judged([Trajectory.from_row(line) for line in lines])
    (first,) = [judgement for judgement in judgements if judgement.group.key.role == "generator"]
    assert first.values == {"the same": pytest.approx(4 / 9)}
    assert not first.pairs
    assert not first.good


def test_one_command_writes_both_formats_for_every_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = run_of(tmp_path / "run", LEAVES, tasks=2), tmp_path / "out"
    assert main(["pairs", str(run), "--out", str(out)]) == 0
    output = capsys.readouterr().out
    assert output.count("pairs") == len(list(out.iterdir()))
    pairs = [row for folder in sorted(out.iterdir()) for row in rows(folder / PAIRS)]
    assert len(pairs) == 2 * (2 + 2 + 4)
    for row in pairs:
        assert [turn["role"] for turn in row["prompt"]] == ["user"]
        assert row["chosen"] != row["rejected"]
        assert row["chosen"][0]["role"] == row["rejected"][0]["role"] == "assistant"
    good = [row for folder in sorted(out.iterdir()) for row in rows(folder / SFT)]
    assert len(good) == 2 * (1 + 4 + 12)
    assert set(good[0]) == {"prompt", "completion", "prompt_ids", "completion_ids"}
    assert set(pairs[0]) - set(good[0]) == {"chosen", "rejected", "chosen_ids", "rejected_ids"}
    assert good[0]["completion_ids"]
    assert good[0]["prompt_ids"]


def test_no_task_dominates(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", LEAVES, tasks=2)
    counts = write_pairs(run, tmp_path / "few", most=1)
    assert all(pairs == 2 for pairs, _ in counts.values())
    assert write_pairs(run, tmp_path / "again", most=1) == counts
    for file in sorted((tmp_path / "few").rglob("*.jsonl")):
        twin = tmp_path / "again" / file.relative_to(tmp_path / "few")
        assert twin.read_bytes() == file.read_bytes()


def test_what_cannot_be_judged_is_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run"):
        write_pairs(tmp_path, tmp_path / "out")
    run = run_of(tmp_path / "run", LEAVES)
    with pytest.raises(ConfigError, match="exists; name a new folder"):
        write_pairs(run, run)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        write_pairs(run, tmp_path / "out", most=0)
    (line, *_) = (run / "trajectories.jsonl").read_text().splitlines()
    (run / "trajectories.jsonl").write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=r"no full trees.*--method malt"):
        write_pairs(run, tmp_path / "out")
    (run / "trajectories.jsonl").write_text("{")
    with pytest.raises(RunFolderError, match="line 1"):
        write_pairs(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


COMMON: dict[str, Any] = {
    "max_steps": 2,
    "per_device_train_batch_size": 2,
    "learning_rate": 1e-2,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "max_length": 64,
    "save_strategy": "no",
    "disable_tqdm": True,
    "gradient_checkpointing": False,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a run that recorded full trees."""
    folder = tmp_path_factory.mktemp("malt")
    summary = pl.train(
        env="plan_path",
        model="embedded",
        env_args={"max_turns": 1},
        policies="per-role",
        method="malt",
        num_generations=8,
        tasks_per_step=8,
        max_steps=1,
        eval_tasks=0,
        eval_steps=0,
        output_dir=str(folder / "run"),
    )
    [row] = [r for r in rows(summary.folder / "metrics.jsonl") if r["kind"] == "train"]
    assert row["planner/groups"] > 2
    assert "planner/loss" not in row, "what trains nothing computes no gradient"
    counts = write_pairs(summary.folder, folder / "out")
    assert set(counts) == {"tool", "planner"}
    assert counts["planner"][0] > 2
    return folder / "out"


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
@pytest.mark.parametrize("kind", ["dpo", "sft"])
def test_trls_own_trainers_train_a_role_on_what_a_run_recorded(
    tmp_path: Path, written: Path, kind: str
) -> None:
    file = written / "planner" / {"dpo": PAIRS, "sft": SFT}[kind]
    data = load_dataset("json", data_files=str(file), split="train", cache_dir=str(tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED)
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    folder = str(tmp_path / "trl")
    trainer: Any
    if kind == "dpo":
        config = DPOConfig(output_dir=folder, **COMMON)
        trainer = DPOTrainer(
            model=model,
            args=config,
            train_dataset=data,
            processing_class=tokenizer,
            peft_config=lora,
        )
    else:
        sft = SFTConfig(output_dir=folder, **COMMON)
        trainer = SFTTrainer(
            model=model, args=sft, train_dataset=data, processing_class=tokenizer, peft_config=lora
        )
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row] or [
        trainer.state.log_history[-1]["train_loss"]
    ]
    assert all(loss > 0 for loss in losses)
    trained = {
        n: p for n, p in trainer.model.named_parameters() if "lora_B" in n and "ref" not in n
    }
    assert any(bool(parameter.abs().sum() > 0) for parameter in trained.values())
