"""Evaluation: every task to its end, one reply a turn, honest means and intervals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pettingllms import report
from pettingllms.envs.base import Outcome
from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.evaluate import Estimate, Evaluation, bootstrap, evaluate, held_out, roles_of
from pettingllms.policies.loading import load_policies
from pettingllms.types import Reply, Request
from tests import letters_env, toy_env
from tests.tiny_lm import save_tiny


class Scripted:
    """Policies that answer from a function of policy and prompt text."""

    device = torch.device("cpu")

    def __init__(self, answer: Callable[[str, str], str]) -> None:
        self.answer = answer
        self.calls: list[tuple[list[Request], dict[str, Any]]] = []

    def policy_for(self, role: str) -> str:
        return role.upper()

    def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def sample(self, requests: list[Request], n: int, **settings: Any) -> list[list[Reply]]:
        assert n == 1
        self.calls.append((requests, settings))
        texts = [self.answer(r.policy, bytes(r.prompt_ids).decode()) for r in requests]
        return [
            [Reply(r.prompt_ids, (1,) * len(text), (0.0,) * len(text), text, True, 0)]
            for r, text in zip(requests, texts, strict=True)
        ]


def play(env: Any, policies: Any, count: int = 5, **settings: Any) -> Evaluation:
    tasks = held_out(env, "test", count)
    return evaluate(env, policies, tasks=tasks, max_new_tokens=8, **settings)


def knows(policy: str, text: str) -> str:
    """The checker is told the secret; the guesser counts upwards."""
    if policy == "CHECKER":
        secret, guess = text.split("secret is ")[1][0], text.rstrip(".").split()[-1]
        return "right" if guess == secret else "higher"
    return str(sum(word == "higher." or word == "higher" for word in text.split()))


def test_every_task_is_played_to_its_end_and_success_is_that_of_the_end() -> None:
    found = play(toy_env.env(split="test", max_turns=3), Scripted(knows), 20)
    env = toy_env.env(split="test", max_turns=3)
    solved, turns = [], []
    for task in held_out(env, "test", 20):
        env.reset(seed=task.seed)
        secret = int(env.observe("checker_0")["text"].split("secret is ")[1][0])
        solved.append(secret < 3)
        turns.append(min(secret + 1, 3))
    assert 0 < sum(solved) < 20
    assert found.scores["success"].mean == pytest.approx(np.mean(solved))
    assert found.scores["decisions"].mean == pytest.approx(2 * np.mean(turns))
    assert found.scores["guesser/turns"].mean == pytest.approx(np.mean(turns))
    assert found.scores["guesser/local_reward"].mean == 0.5
    assert found.scores["checker/first_local_reward"].mean == 0.5
    assert found.roles == ("guesser", "checker")


def test_scores_of_the_first_reply_are_of_turn_0_only() -> None:
    turns = iter("ab" * 100)

    def answer(policy: str, text: str) -> str:
        return "aaaa" if "word" in text.split(": ")[1] or policy == "READER" else next(turns) * 3

    found = play(letters_env.env(split="test", max_turns=2), Scripted(answer))
    assert found.scores["writer/first_share"] == Estimate(1.0, 1.0, 1.0)
    assert found.scores["writer/turns"].mean == 2


def test_a_first_reply_that_reports_no_number_counts_as_zero() -> None:
    class Env(letters_env.raw_env):
        def _act(self, state: Any, agent: str, text: str) -> Any:
            outcome = super()._act(state, agent, text)
            if text == "bad":
                return Outcome(state, team=0.0, local=0.0, success=False, parse_error="bad")
            return outcome

    replies = iter(["bad", "a"] * 50)
    found = play(Env(split="test", max_turns=1), Scripted(lambda *_: next(replies)), 6)
    assert found.scores["writer/parse_error"].mean == pytest.approx(0.5, abs=0.51)
    total = found.scores["writer/first_share"].mean + found.scores["writer/parse_error"].mean
    assert total == pytest.approx(1.0)


def test_an_exchange_of_policies_reaches_the_right_role() -> None:
    policies = Scripted(lambda policy, text: policy)
    play(letters_env.env(max_turns=1), policies, 1, swap={"writer": "reader"})
    first, second = (requests[0].policy for requests, _ in policies.calls)
    assert (first, second) == ("READER", "READER")
    with pytest.raises(UnknownNameError, match=r"wrter.*writer"):
        play(letters_env.env(), policies, 1, swap={"wrter": "reader"})


def test_an_environment_without_success_has_no_success_score() -> None:
    class Env(letters_env.raw_env):
        def _book(self, *args: Any) -> None:
            super()._book(*args)
            for info in self.infos.values():
                info.pop("success", None)

    found = play(Env(max_turns=1), Scripted(lambda *_: "a"))
    assert "success" not in found.scores
    assert found.scores["writer/reward"].mean > 0
    assert "success" not in report.as_text({"now": [found]})


def test_progress_counts_finished_games_and_may_stop() -> None:
    seen: list[tuple[int, int]] = []
    play(
        letters_env.env(max_turns=1),
        Scripted(lambda *_: "a"),
        3,
        samples=2,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(0, 6), (0, 6), (6, 6)]

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(letters_env.env(max_turns=1), Scripted(lambda *_: "a"), on_progress=stop)


def test_nothing_to_play_is_an_error() -> None:
    with pytest.raises(ConfigError, match="0 tasks"):
        evaluate(letters_env.env(), Scripted(str), tasks=[], max_new_tokens=1)  # type: ignore[arg-type]


def test_a_real_model_gives_the_same_scores_for_the_same_seed(tmp_path: Path) -> None:
    policies = load_policies(save_tiny(tmp_path), {"writer": "a", "reader": "b"}, lora_r=2)
    env = letters_env.env(split="test", max_turns=2)
    one = play(env, policies, 4, samples=2, seed=1)
    assert one == play(env, policies, 4, samples=2, seed=1)
    assert one != play(env, policies, 4, samples=2, seed=2)
    greedy = play(env, policies, 4, greedy=True, seed=1)
    assert greedy.scores == play(env, policies, 4, greedy=True, seed=1, samples=2).scores


def test_held_out_tasks_are_the_first_of_the_split_and_apart_from_training() -> None:
    assert [task.seed for task in held_out(letters_env.env(split="val"), "val", 3)] == [0, 1, 2]
    foreign = SimpleNamespace(unwrapped=SimpleNamespace())
    seeds = {split: {t.seed for t in held_out(foreign, split, 5)} for split in ("val", "test")}  # type: ignore[arg-type]
    assert not seeds["val"] & seeds["test"]
    assert min(min(each) for each in seeds.values()) >= 1 << 31
    small = SimpleNamespace(unwrapped=SimpleNamespace(split="val", num_tasks=2))
    assert len(held_out(small, "val", 5)) == 2  # type: ignore[arg-type]
    assert roles_of(letters_env.env()) == ["writer", "reader"]


# ---------------------------------------------------------------------------- intervals


def test_intervals_are_those_of_the_mean_over_tasks() -> None:
    rng = np.random.default_rng(0)
    draws = rng.random(400) < 0.3
    found = bootstrap([{"success": float(each)} for each in draws], seed=1)["success"]
    error = np.sqrt(draws.mean() * (1 - draws.mean()) / 400)
    assert found.mean == draws.mean()
    assert found.low == pytest.approx(draws.mean() - 1.96 * error, abs=0.005)
    assert found.high == pytest.approx(draws.mean() + 1.96 * error, abs=0.005)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(100):
        tasks = [{"x": float(value)} for value in rng.normal(5.0, 2.0, 60)]
        low, high = bootstrap(tasks, seed=trial)["x"][1:]
        hits += low <= 5.0 <= high
    assert 86 <= hits <= 100


def test_an_evaluation_survives_its_row() -> None:
    scores = {"success": Estimate(0.5, 0.4, 0.6), "writer/reward": Estimate(1.0, 0.0, 2.0)}
    one = Evaluation(("writer", "reader"), 10, 2, True, scores)
    assert Evaluation.from_row(one.row() | {"kind": "eval", "step": 3}) == one


# --------------------------------------------------------------------------------- table


def test_a_table_shows_every_column_with_intervals() -> None:
    before = Evaluation(("coder",), 10, 1, False, {"success": Estimate(0.1, 0.05, 0.2)})
    scores = {"success": Estimate(0.9, 0.8, 1.0), "coder/first_passed": Estimate(0.7, 0.6, 0.8)}
    after = Evaluation(("coder",), 10, 1, False, scores)
    text = report.as_text({"before": [before], "after": [after]})
    assert "hidden tests passed, first reply  sampled                     0.70" in text
    assert "0.10 [0.05, 0.20]" in text
    assert "0.90 [0.80, 1.00]" in text
    assert "after" in text.splitlines()[0]
    markdown = report.as_markdown({"after": [after], "before": [before]})
    assert (
        "| coder | hidden tests passed, first reply | sampled | 0.70 [0.60, 0.80] |  |" in markdown
    )
