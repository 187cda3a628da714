"""STeP: replies to imitate are those of successful episodes that are not wrong, and TRL's trainer takes them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pettingllms.cli.data import main
from pettingllms.envs.base import TextEnv
from pettingllms.envs.parsing import ParseError
from pettingllms.envs.records import Outcome
from pettingllms.errors import ConfigError, RunFolderError
from pettingllms.evaluation.step import write_step, wrong
from pettingllms.rollout.shapes import RolloutShape, Tree
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.samplers.scripted import ScriptedSampler
from pettingllms.types import Completion, Task
from tests.test_estimators_golden import cases, decision
from tests.test_forest import play


class Walk(TextEnv):
    """A guide and a walker take turns; the walker's replies are added up, and three is the goal."""

    metadata = {"name": "walk_v0", "render_modes": []}  # noqa: RUF012 - PettingZoo's

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(roles=("guide", "walker"), **kwargs)

    def _start(self, seed: int, options: dict[str, Any]) -> tuple[str, ...]:
        return ()

    def _text(self, state: tuple[str, ...], agent: str) -> str:
        return f"{agent} after {' '.join(state) or 'nothing'}"

    def _act(self, state: tuple[str, ...], agent: str, text: str) -> Outcome:
        after = (*state, text)
        place = sum(int(said) for said in after if said.lstrip("-").isdigit())
        if agent == "guide_0":
            return Outcome(after, team=0.0, local=0.0, success=False)
        if not text.lstrip("-").isdigit():
            why = ParseError("no number").why
            return Outcome(after, team=0.0, local=0.0, success=False, parse_error=why)
        done = place >= 3
        return Outcome(after, float(done), float(text), success=done, done=done)

    def _view(self, state: tuple[str, ...]) -> str:
        return str(state)


def walks(*replies: Sequence[str], shape: RolloutShape | None = None) -> list[Trajectory]:
    """An episode for each list of the walker's replies; the guide says the same always."""
    return [
        replace(
            play(
                shape or RolloutShape(),
                Walk(max_turns=len(said)),
                sampler=ScriptedSampler({"guide": ["go"], "walker": list(said)}),
                tasks=[Task(f"q{n}", n)],
            )[0],
            episode=n,
        )
        for n, said in enumerate(replies)
    ]


def folder_of(path: Path, trajectories: Sequence[Trajectory], **labels: Any) -> Path:
    path.mkdir()
    lines = [json.dumps(t.row(**labels)) + "\n" for t in trajectories]
    (path / "trajectories.jsonl").write_text("".join(lines))
    return path


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def replies(path: Path) -> list[str]:
    return [row["completion"][0]["content"] for row in rows(path)]


DETOUR = ["1", "-1", "um", "3"]
LOST = ["1", "-1", "um", "0"]


def test_a_decision_is_wrong_where_the_score_falls_as_in_the_table() -> None:
    case = cases("step_sft")["wrong steps from scores of states"]
    scores = case["inputs"]["scores"]
    differences = [after - before for before, after in itertools.pairwise(scores)]
    group = decision(*differences)
    marks = ["wrong" if wrong(candidate) else "good" for candidate in group.candidates]
    assert marks == case["expected"]["steps"]
    # What an agent alone answers for counts as well, such as a board that is further from its goal.
    (lower,) = decision(0.5, parts=[(1.0, -0.5)]).candidates
    assert wrong(lower) == "worse"


def test_what_is_kept_has_the_weights_and_the_loss_of_the_table(tmp_path: Path) -> None:
    case = cases("step_sft")["weights"]
    said = {"good": "2", "wrong": "-2", "reflection": "0", "correction": "1"}
    (walk,) = walks([said[step] for step in case["inputs"]["steps"]])
    assert walk.success
    write_step(folder_of(tmp_path / "run", [walk]), tmp_path / "out")
    kept = {row["prompt"][0]["content"] for row in rows(tmp_path / "out" / "walker.jsonl")}
    prompts = [group.prompt for group in walk.groups if group.key.role == "walker"]
    weights = [int(prompt in kept) for prompt in prompts]
    assert weights == case["expected"]["weight"]
    case = cases("step_sft")["loss (mean over weighted tokens, one token a step)"]
    losses = [nll for nll, weight in zip(case["inputs"]["nll"], weights, strict=True) if weight]
    assert sum(losses) / len(losses) == pytest.approx(case["expected"]["loss"])


def test_wrong_replies_are_no_samples_but_stay_in_later_prompts(tmp_path: Path) -> None:
    run = folder_of(tmp_path / "run", walks(DETOUR))
    tallies = write_step(run, tmp_path / "out")
    assert replies(tmp_path / "out" / "walker.jsonl") == ["1", "3"]
    last = rows(tmp_path / "out" / "walker.jsonl")[-1]
    assert last["prompt"] == [{"role": "user", "content": "walker_0 after go 1 go -1 go um go"}]
    assert tallies["walker"].left_out == {"worse": 1, "unreadable": 1}
    assert len(tallies["guide"].samples) == 4
    assert not tallies["guide"].left_out


def test_a_failed_episode_is_left_out_whole_unless_it_is_asked_for(tmp_path: Path) -> None:
    run = folder_of(tmp_path / "run", walks(DETOUR, LOST))
    tally = write_step(run, tmp_path / "out")["walker"]
    assert len(tally.samples) == 2
    assert tally.left_out == {"in failed episodes": 4, "worse": 1, "unreadable": 1}
    tally = write_step(run, tmp_path / "all", keep_failed=True)["walker"]
    assert len(tally.samples) == 4
    assert replies(tmp_path / "all" / "walker.jsonl") == ["1", "3", "1", "0"]


def test_what_was_only_played_on_copies_is_no_sample(tmp_path: Path) -> None:
    (walk,) = walks(["1", "2"], shape=Tree(width=2, branch="best"))
    assert all(len(group.candidates) == 2 for group in walk.groups)
    write_step(folder_of(tmp_path / "run", [walk]), tmp_path / "out")
    assert replies(tmp_path / "out" / "walker.jsonl") == ["2", "2"]


def test_a_reply_that_a_model_refused_is_no_sample() -> None:
    (group,) = decision(1.0).candidates
    refused = Completion((), (), (), "", truncated=False, version=0, refused=True)
    assert wrong(replace(group, completion=refused)) == "unreadable"


def test_the_command_says_what_it_kept_and_why_the_rest_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder_of(tmp_path / "run", walks(DETOUR, LOST))
    out = tmp_path / "out"
    assert main(["step", str(run), "--out", str(out)]) == 0
    assert capsys.readouterr().out == (
        f"{out}, guide: 4 of 8 decisions; left out: 4 in failed episodes\n"
        f"{out}, walker: 2 of 8 decisions; left out: 4 in failed "
        "episodes, 1 unreadable, 1 worse\n"
    )
    assert sorted(path.name for path in out.iterdir()) == ["guide.jsonl", "walker.jsonl"]


def test_an_evaluations_teams_are_told_apart_and_its_split_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = folder_of(tmp_path / "eval", walks(DETOUR), team="adapters")
    with (evaluation / "trajectories.jsonl").open("a") as file:
        file.write(json.dumps(walks(["3"])[0].row(team="base")) + "\n")
    settings = {"settings": {"split": "test"}, "versions": {}}
    (evaluation / "settings.json").write_text(json.dumps(settings))
    assert main(["step", str(evaluation), "--out", str(tmp_path / "out")]) == 0
    assert "in the split test: do not evaluate on it" in capsys.readouterr().out
    assert replies(tmp_path / "out" / "adapters" / "walker.jsonl") == ["1", "3"]
    assert replies(tmp_path / "out" / "base" / "walker.jsonl") == ["3"]


def test_names_of_teams_and_roles_lead_out_of_no_folder(tmp_path: Path) -> None:
    (walk,) = walks(["3"])
    groups = [replace(g, key=g.key._replace(role="../x")) for g in walk.groups]
    run = folder_of(tmp_path / "run", [replace(walk, groups=tuple(groups))], team="..")
    assert [*write_step(run, tmp_path / "out")] == ["%2E%2E/%2E%2E%2Fx"]
    assert len(rows(tmp_path / "out" / "%2E%2E" / "%2E%2E%2Fx.jsonl")) == 2


def test_what_cannot_be_exported_is_refused_in_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["step", str(tmp_path), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "it has no trajectories.jsonl" in error
    assert error.count("\n") == 1
    run = folder_of(tmp_path / "run", walks(LOST))
    with pytest.raises(ConfigError, match=r"nothing of .* is left .*4 in failed episodes"):
        write_step(run, out)
    with pytest.raises(ConfigError, match="exists; name a new folder"):
        write_step(run, run)
    silent = folder_of(tmp_path / "silent", [Trajectory.of(Task("q", 0), 0, [decision(1.0)], early={}, cooperative=True)])  # fmt: skip
    with pytest.raises(ConfigError, match=r"info `success`.*--keep-failed"):
        write_step(silent, out)
    solved = folder_of(tmp_path / "solved", walks(DETOUR))
    with pytest.raises(RunFolderError, match="cannot write"):
        write_step(solved, solved / "trajectories.jsonl" / "out")
    assert not out.exists()


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"format": 1}', "\x00"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    run = folder_of(tmp_path / "run", walks(DETOUR))
    with (run / "trajectories.jsonl").open("a") as file:
        file.write(line)
    with pytest.raises(RunFolderError, match=r"trajectories\.jsonl, line 2"):
        write_step(run, tmp_path / "out")
    # A decision from which no episode went on.
    row = walks(DETOUR)[0].row()
    row["decisions"][0]["candidates"][0]["chosen"] = False
    (run / "trajectories.jsonl").write_text(json.dumps(row))
    with pytest.raises(RunFolderError, match=r"trajectories\.jsonl, line 1"):
        write_step(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_export_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder_of(tmp_path / "run", walks(DETOUR))

    def full(path: Path, *_: Any, **__: Any) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(RunFolderError, match="No space left"):
            write_step(run, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_role_of_any_name_is_written_inside_the_folder(tmp_path: Path) -> None:
    (walk,) = walks(DETOUR)
    row = walk.row()
    for decided in row["decisions"]:
        decided["role"] = "../../" + decided["role"]
    run = folder_of(tmp_path / "run", [Trajectory.from_row(row)])
    write_step(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    assert len(list((tmp_path / "out").iterdir())) == 2


STRANGE = (
    "half \ud83d of a pair",
    "\u2028\x00\x1b[2J\r",
    '{"prompt": 1}\n<|im_end|>',
    "\U0001f600",
)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A file of replies as models may write them."""
    (walk,) = walks([*DETOUR[:1], "3"])
    groups = [
        replace(
            group,
            prompt=f"{group.prompt} {text}",
            candidates=tuple(
                replace(c, completion=replace(c.completion, text=text)) for c in group.candidates
            ),
        )
        for group, text in zip(walk.groups, STRANGE, strict=True)
    ]
    run = folder_of(tmp_path / "run", [replace(walk, groups=tuple(groups))])
    write_step(run, tmp_path / "out")
    return tmp_path / "out" / "guide.jsonl"


@pytest.mark.slow
def test_trls_sft_trainer_trains_on_the_file_whatever_models_wrote(
    tmp_path: Path, exported: Path
) -> None:
    pytest.importorskip("trl")
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    from tests.tiny_lm import save_tiny

    model = str(save_tiny(tmp_path / "model"))
    data = load_dataset("json", data_files=str(exported), split="train", cache_dir=str(tmp_path))
    assert data[0]["completion"] == [{"role": "assistant", "content": "half \ufffd of a pair"}]
    assert data[1]["completion"][0]["content"] == STRANGE[2]
    config = SFTConfig(
        output_dir=str(tmp_path / "trl"),
        max_steps=1,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        report_to="none",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
    )
    trainer: Any = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model),
        args=config,
        train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    assert any(not p.equal(before[n]) for n, p in trainer.model.named_parameters())
