"""MLPO: a leader with recorded peers, and which tasks are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pettingllms as pl
from pettingllms.cli.data import main as data
from pettingllms.envs.check import check_env
from pettingllms.envs.math_v0 import raw_env
from pettingllms.envs.recorded_peers import digest_of, kept
from pettingllms.errors import ConfigError
from tests.test_estimators_golden import cases

TEAM: dict[str, Any] = {"reasoners": 2, "tools": 0, "judge": True, "topology": "star", "max_turns": 1}  # fmt: skip
COMPACT = TEAM | {"prompt": "compact"}


def recorded(path: Path, rights: list[float], split: str = "train", **changes: Any) -> Path:
    """Tasks of which this share of answers is right; the replies are the two last digits of a count."""
    env = raw_env(split=split, **COMPACT)
    lines = []
    for seed, right in enumerate(rights):
        env.reset(seed=seed)
        peers = {
            agent: {
                "prompt": digest_of(env.observe(agent)["text"]),
                "replies": [rf"\boxed{{{10 * seed + n}}}" for n in range(3)],
            }
            for agent in ("reasoner_0", "reasoner_1")
        }
        row = {"seed": seed, "split": split, "right": right, "peers": peers} | changes
        lines.append(json.dumps(row))
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_tasks_that_are_kept_are_those_of_the_table(tmp_path: Path) -> None:
    case = cases("mlpo")["tasks kept"]
    shares = case["inputs"]["share of right peer answers"]
    assert [kept(share) for share in shares] == case["expected"]["kept"]
    file = recorded(tmp_path / "peers.jsonl", shares)
    env = raw_env(peers=file, **COMPACT)
    assert env.num_tasks == 3 * sum(case["expected"]["kept"])


def test_easy_tasks_are_left_out_of_training_alone(tmp_path: Path) -> None:
    file = recorded(tmp_path / "peers.jsonl", [0.0, 0.75, 1.0], split="test")
    assert raw_env(peers=file, split="test", **COMPACT).num_tasks == 9
    easy = recorded(tmp_path / "easy.jsonl", [0.75, 1.0])
    with pytest.raises(ConfigError, match="2 tasks, all too easy for the split train"):
        raw_env(peers=easy, **COMPACT)


def test_the_leader_alone_acts_and_sees_one_recorded_reply_of_each_peer(tmp_path: Path) -> None:
    file = recorded(tmp_path / "peers.jsonl", [0.0, 1.0, 0.0])
    env = raw_env(peers=file, **COMPACT)
    assert env.possible_agents == ["judge_0"]
    live = raw_env(**COMPACT)
    texts = set()
    for seed in range(env.num_tasks or 0):
        env.reset(seed=seed)
        live.reset(seed=0 if seed % 2 == 0 else 2)
        shown = env.observe("judge_0")["text"]
        for _ in range(2):
            agent = live.agent_selection
            reply = {m.agent: m.said for m in env._state.messages}[agent]
            live.step(reply)
        # To the character what it would be shown if the peers had just said it.
        assert shown == live.observe("judge_0")["text"]
        texts.add(shown)
    assert len(texts) > 2
    env.reset(seed=4)
    again = env.observe("judge_0")["text"]
    env.reset(seed=4)
    assert env.observe("judge_0")["text"] == again


def test_the_leader_is_paid_as_in_the_team(tmp_path: Path) -> None:
    file = recorded(tmp_path / "peers.jsonl", [0.0])
    env = raw_env(peers=file, **COMPACT)
    env.reset(seed=0)
    answer = env._state.problem.answers[0]
    env.step(rf"\boxed{{{answer}}}")
    assert env.infos["judge_0"]["success"]
    assert env.infos["judge_0"]["team_reward"] == env.infos["judge_0"]["local_reward"] == 1.0
    assert env.terminations["judge_0"] or env.truncations["judge_0"]


def test_programs_of_recorded_tools_run_and_what_cannot_be_read_is_no_message(
    tmp_path: Path,
) -> None:
    team: dict[str, Any] = {
        "reasoners": 0,
        "tools": 2,
        "judge": True,
        "topology": "star",
        "max_turns": 1,
    }
    live = raw_env(prompt="compact", **team)
    live.reset(seed=0)
    replies = {"tool_0": "```python\nprint(41 + 1)\n```", "tool_1": "no program"}
    peers = {
        agent: {"prompt": digest_of(live.observe(agent)["text"]), "replies": [text]}
        for agent, text in replies.items()
    }
    file = tmp_path / "peers.jsonl"
    row = {"seed": 0, "split": "train", "right": 0, "peers": peers}
    file.write_text(f"{json.dumps(row)}\n")
    env = raw_env(peers=file, prompt="compact", **team)
    env.reset(seed=0)
    assert env.observe("judge_0")["text"].endswith("now: tool 42")


def test_an_environment_with_recorded_peers_is_a_pettingzoo_environment(tmp_path: Path) -> None:
    file = recorded(tmp_path / "peers.jsonl", [0.0, 0.2])
    check_env(raw_env(peers=file, **COMPACT))


@pytest.mark.parametrize(
    ("changes", "team", "said"),
    [
        ({}, {"topology": "mesh"}, "give judge=True and topology='star', too"),
        ({}, {"reasoners": 3}, "has replies of reasoner_0, reasoner_1, and the team's peers are"),
        ({"split": "val"}, {}, r"no task \(it has val\) for the split train; record some with"),
        ({"peers": {}}, {}, "has replies of , and"),
        ({"right": None}, {}, "line 1: TypeError"),
        ({"peers": {"reasoner_0": {"prompt": "", "replies": []}}}, {}, "a peer without a reply"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], team: dict[str, Any], said: str
) -> None:
    file = recorded(tmp_path / "peers.jsonl", [0.0], **changes)
    with pytest.raises(ConfigError, match=said):
        raw_env(peers=file, **(COMPACT | team))


def test_replies_to_another_prompt_are_refused(tmp_path: Path) -> None:
    file = recorded(tmp_path / "peers.jsonl", [0.0])
    env = raw_env(peers=file, prompt="full", **TEAM)
    with pytest.raises(ConfigError, match="reasoner_0 was asked something else in task 0 of train"):
        env.reset(seed=0)


@pytest.mark.slow
def test_commands_record_peers_and_train_a_leader_on_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.jsonl"
    settings: dict[str, Any] = {"env_args": TEAM, "device": "cpu", "max_completion_length": 12}
    for split, limit in (("train", 4), ("test", 2)):
        folder = tmp_path / split
        pl.evaluate(
            "math", split=split, limit=limit, samples=2, out=str(folder), base=True, **settings
        )
        assert data(["peers", str(folder), "--out", str(tmp_path / f"{split}.jsonl")]) == 0
        assert f"replies in {limit} tasks" in capsys.readouterr().out
    lines = (tmp_path / "train.jsonl").read_text() + (tmp_path / "test.jsonl").read_text()
    out.write_text(lines)
    rows = [json.loads(line) for line in lines.splitlines()]
    assert all(set(row["peers"]) == {"reasoner_0", "reasoner_1"} for row in rows)
    assert all(len(p["replies"]) == 2 for row in rows for p in row["peers"].values())
    summary = pl.train(
        "math",
        method="mlpo",
        env_args=TEAM | {"peers": str(out)},
        policies="per-role",
        max_steps=1,
        tasks_per_step=2,
        num_generations=2,
        eval_tasks=0,
        eval_steps=0,
        device="cpu",
        max_completion_length=12,
        output_dir=tmp_path / "run",
    )
    assert [p.name for p in sorted((summary.folder / "adapters").iterdir())] == ["judge"]
    decided = json.loads((summary.folder / "trajectories.jsonl").read_text().splitlines()[0])[
        "decisions"
    ]
    assert [d["agent"] for d in decided] == ["judge_0"]
    assert data(["peers", str(tmp_path / "train"), "--out", str(out)]) != 0
    assert "exists; name a new file" in capsys.readouterr().err


@pytest.mark.slow
def test_members_that_saw_each_other_cannot_be_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mesh"
    mesh = TEAM | {"topology": "mesh"}
    pl.evaluate(
        "math", env_args=mesh, split="train", limit=6, samples=3, out=str(folder), device="cpu"
    )
    assert data(["peers", str(folder), "--out", str(tmp_path / "x.jsonl")]) != 0
    assert "because it saw what others said" in capsys.readouterr().err
