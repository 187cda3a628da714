"""STeP's teacher: it gives an agent's next reply after a wrong one, and play goes on from there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.airl import OneMove
from pettingllms.cli.data import main
from pettingllms.cli.evaluate import main as evaluate
from pettingllms.envs import plan_path_v0, sokoban_v0, sudoku_v0
from pettingllms.envs.aec import roles_of
from pettingllms.errors import ConfigError
from pettingllms.evaluation.chunks import Chunk, Sampling
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.rollouts import roll_out
from pettingllms.evaluation.run import plan_of
from pettingllms.evaluation.step import SOLVER, Teacher, write_step, wrong
from pettingllms.rollout.episode import AnyEnv
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.samplers.scripted import ScriptedSampler
from pettingllms.types import Task
from tests.api_stub import Stub, stubbed
from tests.test_step_sft import Walk, folder_of, replies, rows
from tests.tiny_lm import save_tiny

torch.set_num_threads(1)
ENV = ["--env", "tests.test_step_sft:Walk", "--env-args.max_turns", "4", "--limit", "1"]


@pytest.fixture
def stub() -> Iterator[Stub]:
    with stubbed() as server:
        yield server


def saying(**lines: list[str]) -> Any:
    """The next line of each model; guides say the same always."""
    left = {model: iter(texts) for model, texts in lines.items()}

    def text(body: dict[str, Any]) -> str:
        shown = body["messages"][0]["content"]
        return "go" if shown.startswith("guide") else next(left[body["model"]])

    return text


def decisions(out: Path) -> list[tuple[str, str, str | None]]:
    """Policy, reply, and what the teacher corrects, of the walker's decisions."""
    (row,) = rows(out / "trajectories.jsonl")
    walker = [d for d in row["decisions"] if d["role"] == "walker"]
    said = [(d["policy"], d["candidates"][0]) for d in walker]
    return [(policy, c["completion"], c["info"].get("corrects")) for policy, c in said]


def test_the_teacher_follows_a_wrong_reply_once_and_its_words_are_in_later_prompts(
    stub: Stub, tmp_path: Path
) -> None:
    stub.text = saying(young=["-1", "um", "2"], old=["-1", "2"])
    out = tmp_path / "played"
    words = [*ENV, "--policies", "api:young", "--teacher", "api:old", "--api-base", stub.base]
    assert evaluate([*words, "--out", str(out)]) == 0
    assert decisions(out) == [
        ("api:young", "-1", None),
        ("api:old", "-1", "worse"),
        # One try: a teacher that is wrong itself hands back.
        ("api:young", "um", None),
        ("api:old", "2", "unreadable"),
    ]
    asked = [b["messages"][0]["content"] for b in stub.bodies if b["model"] == "old"]
    assert asked == ["walker_0 after go -1 go", "walker_0 after go -1 go -1 go um go"]
    settings = json.loads((out / "settings.json").read_text())["settings"]
    assert settings["teams"] == {"corrected": {"teacher": "api:old"}}


@pytest.mark.slow
def test_a_local_student_is_corrected_and_the_correction_is_exported(
    stub: Stub, tmp_path: Path
) -> None:
    # The random model never writes a number.
    stub.text = saying(old=["3"])
    model, out = save_tiny(tmp_path / "model"), tmp_path / "played"
    words = [*ENV, "--model", str(model), "--max-completion-length", "6", "--greedy", "true"]
    words += ["--teacher", "api:old", "--api-base", stub.base, "--split", "train"]
    assert evaluate([*words, "--out", str(out)]) == 0
    assert [policy for policy, _, _ in decisions(out)] == ["walker", "api:old"]
    assert main(["step", str(out), "--out", str(tmp_path / "step")]) == 0
    assert replies(tmp_path / "step" / "corrected" / "walker.jsonl") == ["3"]
    (row,) = rows(tmp_path / "step" / "corrected" / "walker.jsonl")
    (line,) = rows(out / "trajectories.jsonl")
    said = [decided["candidates"][0]["completion"] for decided in line["decisions"][:3]]
    assert row["prompt"][0]["content"] == f"walker_0 after {' '.join(said)}"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"teacher": "old"}, r"api:MODEL; got 'old'"),
        ({"teacher": "api:"}, "names no model"),
        ({"teacher": "api:old", "api_base": None}, "give its address"),
        ({"teacher": "api:old", "swap": "all"}, "leave out --swap"),
        ({"teacher": "api:old", "members": "a=b,c=d"}, "leave out --members"),
    ],
)
def test_a_teacher_that_cannot_correct_is_refused_before_anything_is_loaded(
    more: dict[str, Any], words: str
) -> None:
    given = {"env": "tests.test_step_sft:Walk", "api_base": "http://127.0.0.1:1/v1", **more}
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(ConfigError, match=words):
        plan_of(EvalConfig.of(**given))


class Stairs(Walk):
    """A walk whose solver goes straight to the goal, two steps at most at a time."""

    def _demonstrate(self, state: tuple[str, ...], agent: str) -> str:
        return "go" if agent == "guide_0" else str(min(2, 3 - place(state)))


def place(said: Sequence[str]) -> int:
    return sum(int(text) for text in said if text.lstrip("-").isdigit())


def corrected(env: AnyEnv, seed: int = 0, tasks: int = 1, **texts: list[str]) -> list[Trajectory]:
    """Episodes that the solver corrects, and whose agents say the given texts in turn."""
    sampler = ScriptedSampler(texts)
    roles = {role: sampler.policy_for(role) for role in roles_of(env)}
    chunk = Chunk([Task(f"t{n}", n + 100 * seed) for n in range(tasks)], range(1))
    with ThreadPoolExecutor(1) as pool:
        return roll_out(env, sampler, roles, pool, chunk, Sampling(64), ensemble=Teacher(SOLVER))


def test_the_solver_follows_a_reply_that_earns_less_than_its_own_would() -> None:
    env = Stairs(max_turns=4)
    (episode,) = corrected(env, guide=["go"], walker=["1", "um"])
    said = [
        (g.policy == SOLVER, g.chosen.completion.text, g.chosen.info.get("corrects"))
        for g in episode.groups
        if g.key.role == "walker"
    ]
    assert said == [(False, "1", None), (True, "2", "below the solver")]
    (episode,) = corrected(env, guide=["go"], walker=["um", "1"])
    (_, second, third) = [g for g in episode.groups if g.key.role == "walker"]
    assert second.chosen.info["corrects"] == "unreadable"
    assert (third.policy == SOLVER, third.chosen.completion.text) == (False, "1")
    assert wrong(third.chosen) is None


@pytest.mark.parametrize("make", [plan_path_v0.env, OneMove, sokoban_v0.env, sudoku_v0.env])
@pytest.mark.parametrize("seed", range(3))
def test_corrected_episodes_are_games_and_corrections_are_the_solvers(make: Any, seed: int) -> None:
    env = make(prompt="compact", split="train")
    texts = {
        "tool": ["[ U ]", "um", "[ R ]", "", "[ L L ]"],
        "planner": ["um", "[ D ]", "[1, 1, 1]", "[ R ]", "[ U ]"],
    }
    corrections = 0
    for episode in corrected(env, seed, tasks=4, **texts):
        game = env.unwrapped.clone()
        game.reset(seed=episode.task.seed)
        for group in episode.groups:
            agent, reply = group.key.agent, group.chosen
            # Each prompt is that of the state which the game is in after all replies so far.
            assert game.agent_selection == agent
            assert game.text_for(agent) == group.prompt
            if "corrects" in reply.info:
                corrections += 1
                assert group.policy == SOLVER
                assert reply.completion.text == game.demonstration_for(agent)
            twin = game.clone()
            twin.step(game.demonstration_for(agent))
            best = twin.rewards[agent]
            game.step(reply.completion.text)
            unread = game.infos[agent]["parse_error"] is not None
            assert bool(wrong(reply)) == (unread or game.rewards[agent] < best)
        assert episode.success == game.infos[episode.groups[-1].key.agent]["success"]
    assert corrections


def test_only_right_replies_of_corrected_episodes_that_succeed_are_exported(tmp_path: Path) -> None:
    episodes = [
        *corrected(Stairs(max_turns=2), guide=["go"], walker=["1"]),
        *corrected(Stairs(max_turns=2), seed=1, guide=["go"], walker=["-3"]),
    ]
    assert [episode.success for episode in episodes] == [True, False]
    tallies = write_step(folder_of(tmp_path / "run", episodes), tmp_path / "out")
    # The first reply is half of the solver's, and after -3 its two steps are too few.
    assert replies(tmp_path / "out" / "walker.jsonl") == ["2"]
    assert tallies["walker"].left_out == {"below the solver": 1, "in failed episodes": 2}


def test_the_command_lets_the_solver_correct_a_local_student(tmp_path: Path) -> None:
    out = tmp_path / "played"
    words = ["--env", "plan_path", "--env-args.prompt", "compact", "--model"]
    words += [str(save_tiny(tmp_path / "model")), "--max-completion-length", "4", "--limit", "2"]
    assert evaluate([*words, "--teacher", "solver", "--split", "train", "--out", str(out)]) == 0
    assert all(row["success"] for row in rows(out / "trajectories.jsonl"))
    assert main(["step", str(out), "--out", str(tmp_path / "step")]) == 0
    settings = json.loads((out / "settings.json").read_text())["settings"]
    assert settings["teams"] == {"corrected": {"teacher": "solver"}}


@pytest.mark.parametrize("env", ["math", "tests.test_step_sft:Walk"])
def test_an_environment_without_a_solver_is_refused_before_anything_is_loaded(env: str) -> None:
    with pytest.raises(ConfigError, match=r"^teacher solver needs a solver, and .* has none"):
        plan_of(EvalConfig.of(env=env, teacher="solver"))
