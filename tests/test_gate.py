"""ReAd's gate: which reply is played, what an agent that is asked again reads, and what is refused."""

from __future__ import annotations

import json
import math
import re
import shutil
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
from pettingllms.envs import load_env
from pettingllms.evaluation.chunks import Chunk, Sampling
from pettingllms.evaluation.gate import Gated, learn
from pettingllms.evaluation.rollouts import policies_by_seat, roll_out
from pettingllms.evaluation.scores import scores_by_task, tokens_of
from pettingllms.methods.critic import Critics
from pettingllms.rollout.engine import GatedReply
from pettingllms.rollout.episode import Branch
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.samplers.scripted import ScriptedSampler
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.types import Completion, Conversation, Task
from tests import letters_env
from tests.test_estimators_golden import cases, decision
from tests.test_evaluate_adapters import model, words  # noqa: F401 - fixtures

torch.set_num_threads(1)
TASKS = [Task(f"q:{n}", n) for n in range(3)]


def completion(*token_ids: int) -> Completion:
    return Completion((9,), token_ids, (), "", truncated=False, version=0)


def attempt(*token_ids: int) -> GatedReply:
    nothing: Any = None
    return GatedReply("p", (9,), Branch(completion(*token_ids), nothing, nothing))


def asked(gate: Gated, advantages: list[float]) -> tuple[int, int]:
    """What is played, and how many replies that took."""
    for count in range(1, len(advantages) + 1):
        if (at := gate.played(advantages[:count])) is not None:
            return at, count
    raise AssertionError("nothing is played")


def test_the_reply_that_is_played_is_that_of_the_table() -> None:
    case = cases("read")["gate (values, threshold, most tries) -> (played, asked)"]
    for name, (advantages, threshold, most) in case["inputs"].items():
        assert list(asked(Gated("rewards", most, threshold), advantages)) == case["expected"][name]


@given(
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=6),
    st.floats(allow_nan=False),
)
def test_a_reply_is_played_whatever_the_threshold(
    advantages: list[float], threshold: float
) -> None:
    at, count = asked(Gated("rewards", len(advantages), threshold), advantages)
    assert all(advantage < threshold for advantage in advantages[: count - 1])
    assert advantages[at] == max(advantages[:count]) or advantages[at] >= threshold
    # Of equals the first.
    assert advantages.index(advantages[at]) == at or advantages[at] >= threshold


@pytest.mark.parametrize(("threshold", "count"), [(-math.inf, 1), (math.inf, 3)])
def test_infinite_thresholds_play_the_first_or_the_best_of_all(
    threshold: float, count: int
) -> None:
    assert asked(Gated("rewards", 3, threshold), [0.5, 0.5, -1.0]) == (0, count)


def critics(values: dict[tuple[int, ...], float]) -> Critics:
    """Critics that know Q of each text."""
    made = Critics(resolve(ATGRPOConfig()), by_policy=True, learning_rate=1e-3, epochs=1)
    known: Any = made
    known.features = lambda rows: [values[texts[1]] for _, texts in rows]
    known.values = lambda _count, features: torch.tensor(features, dtype=torch.float64)
    return made


def test_advantages_of_a_chain_of_agents_are_those_of_the_table() -> None:
    case = cases("read")["three agents"]
    (prefixes,), expected = case["inputs"].values(), case["expected"]
    # Agent n reads what the agents before it said, and waiting leaves it at that.
    chain = []
    for before, after in pairwise(prefixes):
        gate = Gated("x", 4, 0.0, critics=critics({(9,): before, (9, 1): after}))
        chain += gate.advantages([attempt(1, 0)])
    assert chain == pytest.approx(expected["A"])
    assert sum(chain) == pytest.approx(expected["joint"])


def test_an_empty_reply_is_waiting_and_its_advantage_is_zero() -> None:
    gate = Gated("x", 4, 0.0, critics=critics({(9,): 0.3, (9, 1): 0.4}))
    assert gate.advantages([attempt(0), attempt()]) == [0.0, 0.0]


def test_a_critic_learns_replies_and_waiting_from_returns() -> None:
    case = cases("read")["returns of one prompt"]
    replies, returns = case["inputs"]["replies"], case["inputs"]["returns"]

    class Policies:
        def policy_for(self, agent: str) -> str:
            return "p"

    made = Critics(resolve(ATGRPOConfig()), by_policy=True, learning_rate=1e-2, epochs=300)
    known: Any = made
    place = {(1, 2): 0, (1, 2, ord("a")): 1, (1, 2, ord("b")): 2}
    known.features = lambda rows: {
        0: (list(range(len(rows))), torch.eye(3)[[place[texts[1]] for _, texts in rows]])
    }
    record = []
    for number, (reply, paid) in enumerate(zip(replies, returns, strict=True)):
        group = decision(paid, episode=number)
        [one] = group.candidates
        said = Completion((1, 2), (ord(reply), 0), (), "", truncated=False, version=0)
        candidates = (type(one)(said, paid, paid, 0.0, chosen=True),)
        group = type(group)(group.key, "p", "", (1, 2), candidates)
        record.append(Trajectory.of(Task("q", 0), number, [group], early={}, cooperative=True))
    policies: Any = Policies()
    learn(made, record, policies)
    gate = Gated("x", 4, 0.0, critics=made)
    rows = [GatedReply("p", (1, 2), attempt(ord(text), 0).branch) for text in "ab"]
    assert gate.advantages(rows) == pytest.approx(list(case["expected"]["A"].values()), abs=0.05)


# -------------------------------------------------------------------------------------- in play


def play(
    sampler: ScriptedSampler, gate: Gated | None, env: Any = None, most: int = 60
) -> list[Trajectory]:
    env = env or letters_env.raw_env(max_turns=1)
    seats = policies_by_seat(sampler, env, None)
    with ThreadPoolExecutor(2) as pool:
        return roll_out(
            env, sampler, seats, pool, Chunk(TASKS, range(2)), Sampling(most), ensemble=gate
        )


def improving(_policy: str, prompt: str, seed: int) -> str:
    """Asked for the first time, one bad letter; then one better, as often as replies were refused."""
    return "aÿ" if "refused" not in prompt else "!" * (1 + prompt.count("+"))


def test_a_refused_reply_and_its_advantage_are_in_the_next_prompt() -> None:
    episodes = play(ScriptedSampler(improving), Gated("rewards", 4, 1.9))
    assert {len(episode.groups) for episode in episodes} == {2}
    for group in (group for episode in episodes for group in episode.groups):
        gate = group.chosen.info["gate"]
        assert group.chosen.completion.text == "!!"
        assert gate["refused"] == [
            {"completion": "aÿ", "advantage": gate["refused"][0]["advantage"]}
        ]
        assert f"{gate['refused'][0]['advantage']:+.2f}: aÿ" in group.prompt
        # The prompt that the reply answered, and not the first.
        assert bytes(group.prompt_ids).decode() == group.prompt


def test_all_replies_are_tokens_of_the_evaluation() -> None:
    sampler = ScriptedSampler(lambda *_: "ÿÿ")
    counts = {}
    for replies in (1, 3):
        episodes = play(sampler, Gated("rewards", replies, 9.0))
        counts[replies] = next(iter(scores_by_task(episodes).values()))["tokens"]
        assert {tokens_of(g.chosen) for e in episodes for g in e.groups} == {5 * replies}
    assert counts[3] == 3 * counts[1]


def test_the_best_of_refused_replies_is_played_with_the_prompt_that_it_answered() -> None:
    def worse(_policy: str, prompt: str, seed: int) -> str:
        return "~" if "refused" not in prompt else "ÿ"

    episodes = play(ScriptedSampler(worse), Gated("rewards", 3, 9.0))
    writers = [group for episode in episodes for group in episode.groups][::2]
    assert {group.chosen.completion.text for group in writers} == {"~"}
    assert not any("refused" in group.prompt for group in writers)
    assert {len(group.chosen.info["gate"]["refused"]) for group in writers} == {2}


@pytest.mark.parametrize("text", ["", "\ud800", "{refused}", "%s" * 50, "\n\n"])
def test_replies_of_any_text_are_refused_and_asked_again(text: str) -> None:
    episodes = play(ScriptedSampler(lambda *_: text), Gated("rewards", 3, 9.0))
    assert {len(episode.groups) for episode in episodes} == {2}


def rows(episodes: list[Trajectory]) -> list[Any]:
    kept = []
    for episode in episodes:
        row = episode.row()
        for step in row["decisions"]:
            step["candidates"][0]["info"].pop("gate", None)
        kept.append(row)
    return kept


def test_one_reply_or_no_threshold_is_plain_play() -> None:
    sampler = ScriptedSampler(lambda _policy, _prompt, seed: "ÿ" if seed % 3 else "a")
    plain = rows(play(sampler, None))
    assert rows(play(sampler, Gated("rewards", 1, 9.0))) == plain
    assert rows(play(sampler, Gated("rewards", 4, -math.inf))) == plain
    assert rows(play(sampler, Gated("rewards", 4, 9.0))) != plain


def test_without_feedback_the_prompt_stays_and_the_reply_is_drawn_anew() -> None:
    sampler = ScriptedSampler(lambda _policy, _prompt, seed: f"{seed}")
    episodes = play(sampler, Gated("rewards", 3, 9.0, tell=False))
    for group in (group for episode in episodes for group in episode.groups):
        tried = [one["completion"] for one in group.chosen.info["gate"]["refused"]]
        assert len({group.chosen.completion.text, *tried}) == 3
        assert "refused" not in group.prompt


def test_feedback_without_room_in_the_context_is_left_out() -> None:
    class Small(ScriptedSampler):
        contexts = dict.fromkeys(("writer", "reader"), 100)

    episodes = play(Small(lambda *_: "ÿ" * 20), Gated("rewards", 3, 9.0))
    assert not any(episode.overlong for episode in episodes)
    assert not any("refused" in group.prompt for episode in episodes for group in episode.groups)


def test_feedback_is_in_the_last_message_of_a_conversation() -> None:
    said = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
            {"role": "tool", "content": "three"}]  # fmt: skip
    told = Gated("x", 4, 0.0).feedback(Conversation.of(said), [("bad", -0.5)])
    assert isinstance(told, Conversation)
    assert [message["role"] for message in told.messages] == ["user", "assistant", "tool"]
    assert told.messages[:2] == said[:2]
    assert told.messages[2]["content"].startswith("three\n\n")
    assert "-0.50: bad" in told.messages[2]["content"]


def test_on_a_board_moves_towards_the_goal_are_played() -> None:
    env = load_env("plan_path", height=4, width=4, walls=0.0, moves=(2, 4), agents="single")

    def any_move(_policy: str, _prompt: str, seed: int) -> str:
        return f"#### [{'UDLR'[seed % 4]}]"

    plain = play(ScriptedSampler(any_move), None, env)
    gated = play(ScriptedSampler(any_move), Gated("rewards", 16, 0.01), env)
    success = [sum(bool(episode.success) for episode in played) for played in (plain, gated)]
    assert success == [0, len(gated)] or success[0] < success[1] == len(gated)
    assert all(g.chosen.reward > 0 for episode in gated for g in episode.groups)


# ----------------------------------------------------------------------------------- the command


@pytest.fixture
def record(words: list[str], tmp_path: Path) -> str:  # noqa: F811
    folder = tmp_path / "record"
    assert main([*words, "--limit", "12", "--split", "train", "--out", str(folder)]) == 0
    return str(folder)


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


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--gate-replies", "3"], "gate_replies is for a gate; say what scores replies: --gate"),
        (["--no-gate-feedback"], "gate_feedback is for a gate"),
        (["--gate", "rewards"], "gate rewards is for boards"),
        (["--gate", "rewards", "--env", "plan_path", "--env-args.rewards", "sparse"], "is for boards"),
        (["--gate", "{record}", "--gate-replies", "0"], "gate_replies must be at least 1, got 0"),
        (["--gate", "{record}", "--gate-threshold", "nan"], "gate_threshold must be a finite number"),
        (["--gate", "{record}", "--greedy", "--no-gate-feedback"], "gives the same reply again"),
        (["--gate", "{record}", "--swap", "all"], "leave out --swap"),
        (["--gate", "{record}", "--teacher", "api:x"], "leave out --teacher"),
        (["--gate", "{record}", "--workers", "2"], "leave out --workers"),
        (["--gate", "{record}", "--split", "train"], "was played on the split train"),
        (["--gate", "{record}", "--env", "math"], "is a record of tests.letters_env:env"),
        (["--gate", "{record}", "--model", "embedded"], "from the states of one base model"),
        (["--gate", "{record}:none"], "has no decisions of none"),
        (["--gate", "/nowhere"], "gate '/nowhere' is no run and no evaluation"),
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


def test_a_dry_run_counts_the_replies_that_may_be_asked_for(
    words: list[str],  # noqa: F811
    record: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    assert main([*words, "--gate", record, "--gate-replies", "4", "--dry-run"]) == 0
    # Three tasks of four decisions: one reply each of the base, four with the gate.
    assert re.search(r" 60  completions at most", capsys.readouterr().out)
