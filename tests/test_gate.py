"""ReAd's gate: which reply is played, what an agent that is asked again reads, and what is refused."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.cli.evaluate import main
from pettingllms.cli.guard import FAILED
from pettingllms.evaluation.chunks import Chunk, Sampling
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.gate import Gated
from pettingllms.evaluation.rollouts import policies_by_seat, roll_out
from pettingllms.evaluation.scores import scores_by_task
from pettingllms.methods.critic import Critics
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.samplers.scripted import ScriptedSampler
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.types import Candidate, Completion, Conversation, Group, Request, Task
from tests import letters_env
from tests.test_estimators_golden import cases, decision
from tests.test_evaluate_adapters import model, words  # noqa: F401 - fixtures

torch.set_num_threads(1)
TASKS = [Task(f"q:{n}", n) for n in range(3)]
CONFIG = resolve(ATGRPOConfig())


def completion(*token_ids: int) -> Completion:
    return Completion((9,), token_ids, (), "", truncated=False, version=0)


class Rated(Gated):
    """A gate that knows what each text is worth, and needs no critic."""

    def __init__(
        self, worth: Callable[[str], float], threshold: float = 0.0, **options: Any
    ) -> None:
        super().__init__(EvalConfig(gate="x", **options), CONFIG, [])
        self.worth, self.threshold = worth, threshold

    def learn(self, policies: Any) -> None:
        del policies

    def advantages(self, policies: Any, requests: Any, replies: Any) -> list[float]:
        return [self.worth(reply.text) for reply in replies]


def asked(advantages: list[float], threshold: float, most: int) -> tuple[int, int]:
    """What is played of replies with these advantages, and how many were asked for."""
    texts = [str(number) for number in range(len(advantages))]
    gate = Rated(lambda text: advantages[int(text)], threshold, gate_replies=most)
    gate.sampler(ScriptedSampler({"p": texts}))
    ids = gate.prompt_ids("p", "?")
    [[played]] = gate.sample([Request("p", ids, 0)], 1, max_new_tokens=9)
    refused = [one["advantage"] for one in played.notes["gate_refused"]]
    assert played.notes["gate_advantage"] == advantages[int(played.text)]
    assert played.prompt_ids == ids
    assert sorted([*refused, advantages[int(played.text)]]) == sorted(
        advantages[: len(refused) + 1]
    )
    return int(played.text), len(refused) + 1


def test_the_reply_that_is_played_is_that_of_the_table() -> None:
    case = cases("read")["gate (values, threshold, most tries) -> (played, asked)"]
    for name, inputs in case["inputs"].items():
        assert list(asked(*inputs)) == case["expected"][name]


@given(
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=6),
    st.floats(allow_nan=False),
)
def test_a_reply_is_played_whatever_the_threshold(
    advantages: list[float], threshold: float
) -> None:
    at, count = asked(advantages, threshold, len(advantages))
    assert all(advantage < threshold for advantage in advantages[: count - 1])
    assert at == advantages.index(max(advantages[:count]))  # of equals the first


@pytest.mark.parametrize(("threshold", "count"), [(-math.inf, 1), (math.inf, 3)])
def test_infinite_thresholds_play_the_first_or_the_best_of_all(
    threshold: float, count: int
) -> None:
    assert asked([0.5, 0.5, -1.0], threshold, 3) == (0, count)


def advantages(values: dict[tuple[int, ...], float], *replies: Completion) -> list[float]:
    """A of replies by critics that know Q of each text."""
    gate = Gated(EvalConfig(gate="x"), CONFIG, [])
    gate.critics = Critics(CONFIG, by_policy=True, learning_rate=1e-3, epochs=1)
    known: Any = gate.critics
    known.features = lambda _policies, rows: [values[texts[1]] for _, texts in rows]
    known.values = lambda features: torch.tensor(features, dtype=torch.float64)
    sampler = ScriptedSampler(lambda *_: "")
    return gate.advantages(sampler, [Request("p", (9,), 0) for _ in replies], replies)


def test_advantages_of_a_chain_of_agents_are_those_of_the_table() -> None:
    case = cases("read")["three agents"]
    (prefixes,), expected = case["inputs"].values(), case["expected"]
    # Agent n reads what the agents before it said, and waiting leaves it at that.
    chain = []
    for before, after in pairwise(prefixes):
        chain += advantages({(9,): before, (9, 1): after}, completion(1, 0))
    assert chain == pytest.approx(expected["A"])
    assert sum(chain) == pytest.approx(expected["joint"])


def test_an_empty_reply_is_waiting_and_its_advantage_is_zero() -> None:
    assert advantages({(9,): 0.3, (9, 1): 0.4}, completion(0), completion()) == [0.0, 0.0]


def test_a_critic_learns_replies_and_waiting_from_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    case = cases("read")["returns of one prompt"]
    replies, returns = case["inputs"]["replies"], case["inputs"]["returns"]
    place = {(9,): 0, (9, ord("a")): 1, (9, ord("b")): 2}
    monkeypatch.setattr(
        Critics,
        "features",
        lambda _self, _policies, rows: [("0", torch.eye(3)[place[texts[1]]]) for _, texts in rows],
    )
    record = []
    for number, (reply, paid) in enumerate(zip(replies * 10, returns * 10, strict=True)):
        key = decision(paid, episode=number).key
        candidate = Candidate(completion(ord(reply), 0), paid, paid, 0.0, chosen=True)
        group = Group(key, "p", "", (9,), (candidate,))
        record.append(Trajectory.of(Task("q", 0), number, [group], early={}, cooperative=True))
    gate = Gated(EvalConfig(gate="x"), CONFIG, record)
    gate.learn(sampler := ScriptedSampler(lambda *_: ""))
    learned = gate.advantages(
        sampler, [Request("p", (9,), 0)] * 2, [completion(ord(text), 0) for text in "ab"]
    )
    assert learned == pytest.approx(list(case["expected"]["A"].values()), abs=0.05)


# -------------------------------------------------------------------------------------- in play


def play(sampler: ScriptedSampler, gate: Gated | None) -> list[Trajectory]:
    env = letters_env.raw_env(max_turns=1)
    seats = policies_by_seat(sampler, env, None)
    with ThreadPoolExecutor(2) as pool:
        return roll_out(
            env, sampler, seats, pool, Chunk(TASKS, range(2)), Sampling(60), ensemble=gate
        )


def refusing(replies: int, threshold: float = 0.0, **options: Any) -> Rated:
    return Rated(lambda _text: -0.5, threshold, gate_replies=replies, **options)


def decisions(episodes: list[Trajectory]) -> list[Group]:
    return [group for episode in episodes for group in episode.groups]


def test_a_refused_reply_and_its_advantage_are_in_the_next_prompt() -> None:
    prompts = []

    def improving(_policy: str, prompt: str, _seed: int) -> str:
        prompts.append(prompt)
        return "!!" if "-0.25: aÿ" in prompt else "aÿ"

    worth = {"aÿ": -0.25, "!!": 0.5}
    groups = decisions(play(ScriptedSampler(improving), Rated(worth.__getitem__)))
    assert len(groups) == 12
    for group in groups:
        info, [chosen] = group.chosen.info, group.candidates
        assert chosen.completion.text == "!!"
        assert info["gate_refused"] == [{"completion": "aÿ", "advantage": -0.25}]
        assert info["gate_advantage"] == 0.5
        # The record has the prompt that was refused an answer, and what was added is only read.
        assert "refused" not in group.prompt
        [told] = {p for p in prompts if p.startswith(group.prompt) and p != group.prompt}
        assert told.count("-0.25: aÿ") == 1


def test_all_replies_are_tokens_of_the_evaluation() -> None:
    sampler = ScriptedSampler(lambda *_: "ÿÿ")
    counts = {
        replies: next(iter(scores_by_task(play(sampler, refusing(replies))).values()))["tokens"]
        for replies in (1, 3)
    }
    assert counts == {1: 2 * 5, 3: 2 * 15}  # two decisions of an episode, five tokens a reply


@pytest.mark.parametrize("text", ["", "\ud800", "{refused}", "%s" * 50, "\n\n"])
def test_replies_of_any_text_are_refused_and_asked_again(text: str) -> None:
    groups = decisions(play(ScriptedSampler(lambda *_: text), refusing(3)))
    assert len(groups) == 12
    assert {len(group.chosen.info["gate_refused"]) for group in groups} == {2}


def rows(episodes: list[Trajectory]) -> list[Any]:
    kept = []
    for episode in episodes:
        row = episode.row()
        for step in row["decisions"]:
            info = step["candidates"][0]["info"]
            for name in ("gate_refused", "gate_advantage", "gate_tokens"):
                info.pop(name, None)
        kept.append(row)
    return kept


def test_one_reply_or_no_threshold_is_plain_play() -> None:
    sampler = ScriptedSampler(lambda _policy, _prompt, seed: "ÿ" if seed % 3 else "a")
    plain = rows(play(sampler, None))
    assert rows(play(sampler, refusing(1))) == plain
    assert rows(play(sampler, refusing(4, -math.inf))) == plain
    assert rows(play(sampler, Rated(lambda text: float(text == "a")))) == plain
    best = Rated(lambda text: float(text == "a"), 0.5)
    assert rows(play(sampler, best)) != plain


def test_without_feedback_the_prompt_stays_and_each_reply_draws_apart() -> None:
    prompts = set()

    def numbered(_policy: str, prompt: str, seed: int) -> str:
        prompts.add(prompt)
        return f"{seed}"

    groups = decisions(play(ScriptedSampler(numbered), refusing(3, gate_feedback=False)))
    for group in groups:
        tried = [one["completion"] for one in group.chosen.info["gate_refused"]]
        assert len({group.chosen.completion.text, *tried}) == 3
    assert prompts == {group.prompt for group in groups}


def test_feedback_without_room_in_the_context_is_left_out() -> None:
    prompts = set()

    class Small(ScriptedSampler):
        contexts = dict.fromkeys(("writer", "reader"), 120)

    def seen(_policy: str, prompt: str, _seed: int) -> str:
        prompts.add(prompt)
        return "ÿ" * 20

    episodes = play(Small(seen), refusing(3))
    assert not any(episode.overlong for episode in episodes)
    assert prompts == {group.prompt for group in decisions(episodes)}


def test_feedback_is_in_the_last_message_of_a_conversation() -> None:
    said = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
            {"role": "tool", "content": "three"}]  # fmt: skip
    asked = []

    class Reading(ScriptedSampler):
        def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
            asked.append(text)
            return super().prompt_ids(role, text)

    gate = refusing(2)
    gate.sampler(Reading(lambda *_: "bad"))
    ids = gate.prompt_ids("p", Conversation.of(said))
    gate.sample([Request("p", ids, 0)], 1, max_new_tokens=9)
    _, told = asked
    assert isinstance(told, Conversation)
    assert [message["role"] for message in told.messages] == ["user", "assistant", "tool"]
    assert told.messages[:2] == said[:2]
    assert told.messages[2]["content"].startswith("three\n\n")
    assert "-0.50: bad" in told.messages[2]["content"]


# ----------------------------------------------------------------------------------- the command


@pytest.fixture
def record(words: list[str], tmp_path: Path) -> str:  # noqa: F811
    folder = tmp_path / "record"
    assert main([*words, "--limit", "12", "--split", "train", "--out", str(folder)]) == 0
    return str(folder)


@pytest.mark.slow
def test_an_interrupted_evaluation_with_a_critic_ends_as_the_whole_one(
    words: list[str],  # noqa: F811
    record: str,
    tmp_path: Path,
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = [*words, "--gate", record, "--gate-replies", "3", "--samples", "2"]
    assert main([*command, "--out", str(whole)]) == 0
    results = json.loads((whole / "results.json").read_text())
    assert list(results["results"]) == ["base", "gated"]
    tokens = {team: rows[0]["eval/tokens"] for team, rows in results["results"].items()}
    assert tokens["base"] < tokens["gated"] <= 3 * tokens["base"]
    shutil.copytree(whole, broken)
    (broken / "results.json").unlink()
    lines = (broken / "trajectories.jsonl").read_bytes().splitlines(keepends=True)
    (broken / "trajectories.jsonl").write_bytes(b"".join(lines[:-1]))
    assert main([*command, "--out", str(broken)]) == 0
    for name in ("trajectories.jsonl", "results.json"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--gate-replies", "3"], "gate_replies is for a gate; name what its critic learns from: --gate"),
        (["--no-gate-feedback"], "gate_feedback is for a gate"),
        (["--gate", "{record}", "--gate-replies", "0"], "gate_replies must be at least 1, got 0"),
        (["--gate", "{record}", "--gate-threshold", "nan"], "gate_threshold must be a finite number"),
        (["--gate", "{record}", "--teacher", "api:x", "--api-base", "http://127.0.0.1:9/v1"], "leave out --teacher"),
        (["--gate", "{record}", "--workers", "2"], "leave out --workers"),
        (["--gate", "{record}", "--split", "train"], "on another split than train: --split train"),
        (["--gate", "{record}", "--env", "math"], "is a record of tests.letters_env:env by"),
        (["--gate", "{record}", "--model", "embedded"], "one of tests.letters_env:env by embedded"),
        (["--gate", "/nowhere"], "/nowhere holds no evaluation: it has no trajectories.jsonl"),
        (["--gate", "{record}", "--policies", "api:x", "--api-base", "http://127.0.0.1:9/v1"], "models behind an API"),
    ],
)  # fmt: skip
def test_what_no_critic_can_judge_is_refused_with_the_cure(
    words: list[str],  # noqa: F811
    record: str,
    more: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    options = [word.replace("{record}", record) for word in more]
    assert main([*words, *options, "--dry-run"]) == FAILED
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_dry_run_counts_the_replies_that_may_be_asked_for(
    words: list[str],  # noqa: F811
    record: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    assert main([*words, "--gate", record, "--gate-replies", "4", "--dry-run"]) == 0
    # Three tasks of four decisions: one reply each of the base, four with the gate.
    assert re.search(r" 60  completions at most", capsys.readouterr().out)
