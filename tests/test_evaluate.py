"""Evaluation: every task to its end, one reply a turn, honest means and intervals."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pettingllms.envs.base import Outcome
from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.evaluation import Estimate, Evaluation, evaluate, held_out, roles_of
from pettingllms.evaluation.chunks import Chunk, Sampling, chunks, kept
from pettingllms.evaluation.report import as_markdown, as_text, scores_table, training_table
from pettingllms.evaluation.rollouts import roll_out
from pettingllms.evaluation.scores import scores_by_task
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.episode import plain_info
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.samplers.scripted import ScriptedSampler
from pettingllms.types import Candidate, Completion, Group, GroupKey, Task
from tests import foreign_env, letters_env, quiz_env, tic_tac_toe_env, toy_env
from tests.tiny_lm import save_tiny


def scripted(answer: Callable[[str, str], str]) -> ScriptedSampler:
    """Policies that complete from a function of policy and prompt text."""
    return ScriptedSampler(lambda policy, prompt, _seed: answer(policy, prompt))


def play(env: Any, policies: Any, count: int = 5, **settings: Any) -> Evaluation:
    tasks = held_out(env, "test", count)
    return evaluate(env, policies, tasks=tasks, max_new_tokens=8, **settings)


def knows(policy: str, text: str) -> str:
    """The checker is told the secret; the guesser counts upwards."""
    if policy == "checker":
        secret, guess = text.split("secret is ")[1][0], text.rstrip(".").split()[-1]
        return "right" if guess == secret else "higher"
    return str(sum(word == "higher." or word == "higher" for word in text.split()))


def test_every_task_is_played_to_its_end_and_success_is_that_of_the_end() -> None:
    evaluation = play(toy_env.env(split="test", max_turns=3), scripted(knows), 20)
    env = toy_env.env(split="test", max_turns=3)
    solved, turns = [], []
    for task in held_out(env, "test", 20):
        env.reset(seed=task.seed)
        secret = int(env.observe("checker_0")["text"].split("secret is ")[1][0])
        solved.append(secret < 3)
        turns.append(min(secret + 1, 3))
    assert 0 < sum(solved) < 20
    assert evaluation.scores["success"].mean == pytest.approx(np.mean(solved))
    assert evaluation.scores["decisions"].mean == pytest.approx(2 * np.mean(turns))
    assert evaluation.scores["guesser/turns"].mean == pytest.approx(np.mean(turns))
    assert evaluation.scores["guesser/local_reward"].mean == 0.5
    assert evaluation.scores["checker/first_local_reward"].mean == 0.5
    assert evaluation.roles == ("guesser", "checker")


def test_scores_of_the_first_reply_are_of_turn_0_only() -> None:
    turns = iter("ab" * 100)

    def answer(policy: str, text: str) -> str:
        return "aaaa" if "word" in text.split(": ")[1] or policy == "reader" else next(turns) * 3

    evaluation = play(letters_env.env(split="test", max_turns=2), scripted(answer))
    assert evaluation.scores["writer/first_share"] == Estimate(1.0, 1.0, 1.0)
    assert evaluation.scores["writer/turns"].mean == 2


def test_a_first_reply_that_reports_no_number_counts_as_zero() -> None:
    class Env(letters_env.raw_env):
        def _act(self, state: Any, agent: str, text: str) -> Any:
            outcome = super()._act(state, agent, text)
            if text == "bad":
                return Outcome(state, team=0.0, local=0.0, success=False, parse_error="bad")
            return outcome

    replies = iter(["bad", "a"] * 50)
    evaluation = play(Env(split="test", max_turns=1), scripted(lambda *_: next(replies)), 6)
    assert evaluation.scores["writer/parse_error"].mean == pytest.approx(0.5, abs=0.51)
    total = (
        evaluation.scores["writer/first_share"].mean + evaluation.scores["writer/parse_error"].mean
    )
    assert total == pytest.approx(1.0)


def test_an_exchange_of_policies_reaches_the_right_role() -> None:
    asked: list[str] = []

    def answer(policy: str, _text: str) -> str:
        asked.append(policy)
        return policy

    policies = scripted(answer)
    play(letters_env.env(max_turns=1), policies, 1, swap={"writer": "reader"})
    assert asked == ["reader", "reader"]
    with pytest.raises(UnknownNameError, match=r"wrter.*writer"):
        play(letters_env.env(), policies, 1, swap={"wrter": "reader"})


def test_an_environment_without_success_has_no_success_score() -> None:
    class Env(letters_env.raw_env):
        pass

    def record(self: Any, *args: Any) -> None:
        letters_env.raw_env._record(self, *args)
        for info in self.infos.values():
            info.pop("success", None)

    # Afterwards, because no subclass may replace what the kernel itself calls.
    setattr(Env, "_record", record)  # noqa: B010 - mypy
    evaluation = play(Env(max_turns=1), scripted(lambda *_: "a"))
    assert "success" not in evaluation.scores
    assert evaluation.scores["writer/reward"].mean > 0
    assert "success" not in as_text(training_table({"now": [evaluation]}, short=True))


def test_progress_counts_finished_games_and_may_stop() -> None:
    seen: list[tuple[int, int]] = []
    play(
        letters_env.env(max_turns=1),
        scripted(lambda *_: "a"),
        3,
        samples=2,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(0, 6), (0, 6), (3, 6), (3, 6), (6, 6)]

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(letters_env.env(max_turns=1), scripted(lambda *_: "a"), on_progress=stop)


def test_nothing_to_play_is_an_error() -> None:
    with pytest.raises(ConfigError, match="0 tasks"):
        evaluate(letters_env.env(), scripted(lambda *_: "a"), tasks=[], max_new_tokens=1)


@pytest.mark.slow
def test_a_real_model_gives_the_same_scores_for_the_same_seed(tmp_path: Path) -> None:
    policies = load_policies(save_tiny(tmp_path), {"writer": "a", "reader": "b"}, lora_r=2)
    env = letters_env.env(split="test", max_turns=2)
    one = play(env, policies, 4, samples=2, seed=1)
    assert one == play(env, policies, 4, samples=2, seed=1)
    assert one != play(env, policies, 4, samples=2, seed=2)
    greedy = play(env, policies, 4, greedy=True, seed=1)
    twice = play(env, policies, 4, greedy=True, seed=1, samples=2).scores
    assert greedy.scores == {name: twice[name] for name in twice if not name.startswith("pass@")}


def test_a_chunk_comes_out_the_same_alone_and_among_others(tmp_path: Path) -> None:
    policies = load_policies(save_tiny(tmp_path), {"writer": "a", "reader": "b"}, lora_r=2)
    env = letters_env.env(split="test", max_turns=2)
    tasks = held_out(env, "test", 6)
    sampling = Sampling(max_new_tokens=5, samples=2, seed=3, at_once=4)
    with ThreadPoolExecutor(1) as pool:
        roles_to_policies = {"writer": "a", "reader": "b"}

        def one(chunk: Chunk) -> list[Trajectory]:
            return roll_out(env, policies, roles_to_policies, pool, chunk, sampling)

        cut = chunks(tasks, sampling)
        assert [(len(chunk.tasks), list(chunk.samples)) for chunk in cut] == [
            (4, [0]),
            (2, [0]),
            (4, [1]),
            (2, [1]),
        ]
        assert cut[:2] == chunks(tasks, replace(sampling, samples=1))  # more can be added
        together = [one(chunk) for chunk in cut]
        assert one(cut[1]) == together[1]
    episodes = [episode for chunk in together for episode in chunk]
    assert [(trajectory.task, trajectory.episode) for trajectory in episodes] == [
        (task, sample) for sample in range(2) for task in tasks
    ]
    texts = [tuple(g.chosen.completion.text for g in trajectory.groups) for trajectory in episodes]
    assert len(set(texts)) == len(texts)  # no two episodes, of no two chunks, draw the same


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 3, 4, 33, 64, 100])
def test_few_tasks_share_chunks_of_many_samples_and_more_can_be_added_to_any_number(
    tasks: int,
) -> None:
    plan = [Task(f"test:{n}", n) for n in range(tasks)]

    def cut(samples: int) -> list[Chunk]:
        return chunks(plan, Sampling(max_new_tokens=1, samples=samples))

    for now in range(1, 70):
        done = [
            (task, sample) for chunk in cut(now) for task in chunk.tasks for sample in chunk.samples
        ]
        assert sorted(done) == [(task, n) for task in sorted(plan) for n in range(now)]
        assert all(len(chunk.tasks) * len(chunk.samples) <= 64 for chunk in cut(now))
        for before in range(1, now + 1):
            stay = kept(tasks, before, now, 64)
            earlier = [chunk for chunk in cut(before) if chunk.samples.stop <= stay]
            assert earlier == cut(now)[: len(earlier)]
            # What is rolled out again had been less than half of all, and fits into one chunk.
            assert before - stay < max(1, before / 2 + 1)
            assert (before - stay) * tasks < 64
    assert len(cut(32)) == {1: 6, 3: 6, 4: 6, 33: 32, 64: 32, 100: 64}[tasks]


def test_several_agents_of_a_role_and_difficulties_are_scored() -> None:
    policies = scripted(lambda policy, text: "aa" if "1" in text or policy != "judge" else "a")
    evaluation = play(quiz_env.env(split="test"), policies, 4, samples=2)
    assert evaluation.roles == ("reasoner", "judge")
    scores = {name: estimate.mean for name, estimate in evaluation.scores.items()}
    # Of the tasks 0 to 3, task 1 alone is won, in its first turn; the others take both.
    assert scores["success"] == scores["pass@2"] == 0.25
    assert scores["difficulty/hard/success"] == 0.5
    assert scores["difficulty/easy/success"] == 0.0
    assert scores["turns"] == pytest.approx((1 + 3 * 2) / 4)
    assert scores["reasoner/turns"] == pytest.approx((2 + 3 * 4) / 4)
    # Three completions of two bytes and an end token; else four of these and two of one byte.
    assert scores["tokens"] == pytest.approx((9 + 3 * 16) / 4)
    assert scores["judge/status/error"] == pytest.approx(0.125)
    assert scores["judge/status/ok"] == pytest.approx(0.875)
    assert "reasoner/first_difficulty" not in scores


def test_a_contest_shows_wins_draws_and_returns() -> None:
    # By task: cross wins in the top row, nought wins in the middle row, a draw, cross blunders.
    games = ["03142", "031485", "012435768", "00"]
    calls = iter("".join(game[move : move + 1] for move in range(9) for game in games))
    evaluation = play(tic_tac_toe_env.env(), scripted(lambda *_: next(calls)), len(games))
    scores = {name: estimate.mean for name, estimate in evaluation.scores.items()}
    assert (scores["win/cross_1"], scores["win/nought_1"], scores["draws"]) == (0.5, 0.25, 0.25)
    assert (scores["return/cross_1"], scores["return/nought_1"]) == (0.25, -0.25)
    assert "success" not in scores
    table = as_text(training_table({"now": [evaluation]}, short=True))
    assert re.search(r"wins of cross_1 +sampled +0\.50 ", table)
    assert re.search(r"draws +sampled +0\.25 ", table)
    rows = scores_table({"base": evaluation}, short=True)
    assert [row[1] for row in rows[1:6]] == [
        "wins of cross_1",
        "wins of nought_1",
        "draws",
        "return of cross_1",
        "return of nought_1",
    ]


def test_a_team_has_one_return_and_no_wins() -> None:
    scores = play(letters_env.env(max_turns=1), scripted(lambda *_: "a")).scores
    rewards = scores["writer/reward"].mean + scores["reader/reward"].mean
    assert scores["return"].mean == pytest.approx(rewards)
    assert not [name for name in scores if name.startswith(("win/", "return/")) or name == "draws"]


def test_agents_that_do_not_play_against_each_other_win_nothing() -> None:
    names = iter(["apple", "no"] * 100)
    scores = play(foreign_env.env(), scripted(lambda *_: next(names)), 6).scores
    assert {"return/speaker_1", "return/speaker_2"} <= scores.keys()
    assert not [name for name in scores if name.startswith("win/")]


def test_held_out_tasks_are_the_first_of_the_split_and_apart_from_training() -> None:
    assert [task.seed for task in held_out(letters_env.env(split="val"), "val", 3)] == [0, 1, 2]
    foreign = SimpleNamespace(unwrapped=SimpleNamespace())
    seeds = {split: {t.seed for t in held_out(foreign, split, 5)} for split in ("val", "test")}  # type: ignore[arg-type]
    assert not seeds["val"] & seeds["test"]
    assert min(min(numbers) for numbers in seeds.values()) >= 1 << 31
    small = SimpleNamespace(unwrapped=SimpleNamespace(split="val", num_tasks=2))
    assert len(held_out(small, "val", 5)) == 2  # type: ignore[arg-type]
    assert len(held_out(small, "val")) == 2  # type: ignore[arg-type]
    assert len(held_out(letters_env.env(split="val"), "val")) == 100
    assert roles_of(letters_env.env()) == ["writer", "reader"]


def episode(task: str, *groups: Group) -> Trajectory:
    return Trajectory.of(Task(task, 0), 0, groups, early={}, cooperative=True)


def decision(role: str, **info: Any) -> Group:
    completion = Completion((5,), (6,), (), "r", truncated=False, version=0)
    candidate = Candidate(completion, 1.0, 0.0, 1.0, chosen=True, info=info)
    key = GroupKey("task", 0, f"{role}_0", role, 0, 0, "0")
    return Group(key, role, "p", (5,), (candidate,))


def test_an_info_of_any_kind_is_kept_as_json_has_it() -> None:
    info = {"a": np.float32(0.5), "b": np.arange(2), "c": {1: (2, float("nan"))}, "d": object}
    info["huge"] = 10**400
    assert plain_info(info | {"team_reward": 1.0, "turn": 3}) == {
        "a": 0.5,
        "b": [0, 1],
        "c": {"1": [2, None]},
        "d": str(object),
        "huge": None,
    }


def test_what_an_environment_reports_may_be_missing_or_no_number() -> None:
    scores = scores_by_task(
        [
            episode("a", decision("coder", share=0.5, success=None, statuses="none")),
            episode("b", decision("coder", share=None)),
            episode("c"),
        ]
    )
    assert scores["a"]["coder/first_share"] == 0.5
    assert scores["b"]["coder/first_share"] == 0.0
    assert scores["c"] == {"decisions": 0, "return": 0, "tokens": 0, "turns": 0}
    assert "success" not in scores["a"]
    assert not [name for name in scores["a"] if "status" in name]


def test_an_evaluation_survives_its_row() -> None:
    scores = {"success": Estimate(0.5, 0.4, 0.6), "writer/reward": Estimate(1.0, 0.0, 2.0)}
    one = Evaluation(("writer", "reader"), 10, 2, True, scores)
    assert Evaluation.from_row(one.row() | {"kind": "eval", "step": 3}) == one


# --------------------------------------------------------------------------------- table


def test_a_table_shows_every_column_with_intervals() -> None:
    before = Evaluation(("coder",), 10, 1, False, {"success": Estimate(0.1, 0.05, 0.2)})
    scores = {"success": Estimate(0.9, 0.8, 1.0), "coder/first_passed": Estimate(0.7, 0.6, 0.8)}
    after = Evaluation(("coder",), 10, 1, False, scores)
    text = as_text(training_table({"before": [before], "after": [after]}, short=True))
    assert "hidden tests passed, first completion  sampled                     0.70" in text
    assert "0.10 [0.05, 0.20]" in text
    assert "0.90 [0.80, 1.00]" in text
    assert text.splitlines()[0].split() == ["before", "after"]  # nothing kept to be paired
    markdown = as_markdown(training_table({"after": [after], "before": [before]}))
    assert (
        "| coder | hidden tests passed, first completion | sampled | 0.70 [0.60, 0.80] |  |"
        in markdown
    )


def test_the_gain_of_a_training_is_paired_by_task_and_corrected_for_both_ways_of_decoding() -> None:
    def found(solved: int, greedy: bool) -> Evaluation:
        share = Estimate(solved / 9, 0.0, 1.0)
        values = {str(task): float(task < solved) for task in range(9)}
        return Evaluation(("coder",), 9, 1, greedy, {"success": share}, values)

    before, after = (
        [found(n, greedy) for n, greedy in zip(counts, (False, True), strict=True)]
        for counts in ((0, 4), (9, 8))
    )
    after = [Evaluation.from_row(result.row()) for result in after]  # as a resumed run reads them
    head, sampled, greedy = training_table({"before": before, "after": after})
    assert head[-1] == "difference"
    assert sampled[-1] == "+1.00 [+0.40, +1.00] *"
    assert greedy[-1].startswith("+0.44 [")
    assert not greedy[-1].endswith("*")  # McNemar: 2 / 2^4 of four tasks
