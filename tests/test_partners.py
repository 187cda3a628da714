"""Roles that a model behind an API plays: in training, in evaluation, in the commands."""

from __future__ import annotations

import contextlib
import filecmp
import json
import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from pettingllms.assembly import plan_run
from pettingllms.cli import evaluate as eval_command
from pettingllms.cli import train as train_command
from pettingllms.cli.evaluate import dry_run
from pettingllms.errors import ConfigError, SamplerUnavailable
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.run import EvalResult, plan_of, run_evaluation
from pettingllms.names import only_partners, parse_policies, trained_policies
from pettingllms.policies import loading
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.engine import RolloutEngine
from pettingllms.rollout.shapes import RolloutShape
from pettingllms.runs import read_config
from pettingllms.samplers.api import ApiPartners, without_control_tokens, without_ending
from pettingllms.samplers.api_call import ApiSettings
from pettingllms.serving.role_server import RoleServer
from pettingllms.session import run_training as train
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.types import Task
from tests import asked_env, letters_env
from tests.api_stub import KEY, Stub, everything_in, said, stubbed
from tests.served import running, serving_in_a_fork, trained
from tests.tiny_lm import SHORT_RUN, save_tiny, tiny_config

torch.set_num_threads(1)


@pytest.fixture
def stub() -> Iterator[Stub]:
    with stubbed() as server:
        yield server


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # One layer: nothing here depends on how deep the model is.
    return save_tiny(tmp_path_factory.mktemp("model"), config=tiny_config(layers=1))


@pytest.fixture
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secrets") / "key"
    path.write_text(f"{KEY}\n")
    return path


def settings(stub: Stub, model: Path, out: Path, **changes: Any) -> ATGRPOConfig:
    values: dict[str, Any] = {
        "env": "tests.letters_env:env",
        "env_args": '{"max_turns": 2}',
        "policies": "writer=mine,reader=api:theirs",
        "api_base": stub.base,
        "model": str(model),
        **SHORT_RUN,
        "output_dir": str(out),
    }
    return ATGRPOConfig(**{**values, **changes})


def evaluated(stub: Stub, policies: str | None, out: Path | None = None, **more: Any) -> EvalResult:
    options = {"env": "tests.letters_env:env", "limit": 2, "max_completion_length": 6, **more}
    where = None if out is None else str(out)
    return run_evaluation(
        EvalConfig.of(policies=policies, api_base=stub.base, out=where, **options)
    )


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ------------------------------------------------------------------------------------ training


@pytest.mark.slow
def test_a_frozen_partner_plays_and_nothing_of_it_is_trained_or_kept(stub, model, tmp_path):
    run = train(settings(stub, model, tmp_path / "run")).folder
    assert [path.name for path in (run / "adapters").iterdir()] == ["mine"]
    row = rows(run / "metrics.jsonl")[-3]
    assert row["kind"] == "train"
    assert not any(name.startswith("api:") for name in row)
    for episode in rows(run / "trajectories.jsonl"):
        for decision in episode["decisions"]:
            learns = decision["role"] == "writer"
            assert decision["policy"] == ("mine" if learns else "api:theirs")
            assert len(decision["candidates"]) == (4 if learns else 1)
            for candidate in decision["candidates"]:
                assert bool(candidate["token_ids"]) == learns
                assert learns or candidate["advantage"] is None
    assert {body["model"] for body in stub.bodies} == {"theirs"}
    assert read_config(run).policies == "writer=mine,reader=api:theirs"


@pytest.mark.slow
def test_a_run_that_its_endpoint_stopped_ends_as_one_that_went_through_and_pays_once(
    stub, model, tmp_path
):
    whole = train(settings(stub, model, tmp_path / "whole")).folder
    paid = len(stub.bodies)
    stub.bodies.clear()
    stub.misbehave = lambda handler, number: number == paid // 2 and handler.fail(401)
    with pytest.raises(SamplerUnavailable, match=r"(?s)HTTP 401.*is saved in"):
        train(settings(stub, model, tmp_path / "cut"))
    again = train(resume=tmp_path / "cut").folder
    # Every decision once, and the one that was refused once more.
    assert len(stub.bodies) == paid + 1
    for name in ("adapters/mine/adapter_model.safetensors", "trajectories.jsonl"):
        assert filecmp.cmp(whole / name, again / name, shallow=False)
    texts = {row["key"]: row["text"] for row in rows(again / "samples.jsonl")}
    assert texts == {row["key"]: row["text"] for row in rows(whole / "samples.jsonl")}


@pytest.mark.slow
def test_a_budget_stops_a_run_and_a_larger_one_in_its_config_goes_on(stub, model, tmp_path):
    with pytest.raises(SamplerUnavailable, match=r"budget of 120 tokens"):
        train(settings(stub, model, tmp_path / "run", api_max_tokens=120))
    assert 0 < 10 * len(stub.bodies) <= 120
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("api_max_tokens: 120", "api_max_tokens: 100000"))
    assert train(resume=tmp_path / "run").finished


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "dr_mas", "look_ahead"])
def test_every_kind_of_estimator_takes_a_partner(stub, model, tmp_path, method):
    config = settings(stub, model, tmp_path / "run", method=method, max_steps=1, eval_tasks=0)
    assert train(config).finished


# ---------------------------------------------------------------------------------- evaluation


@pytest.mark.slow
def test_a_baseline_behind_an_api_loads_no_model(stub, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "load_base", None)
    result = evaluated(stub, "api:big/model:8b", tmp_path / "out")
    assert list(result.teams) == ["api"]
    assert not any(name.endswith("/tokens") for name in result.main.scores)
    assert result.success is not None
    assert {body["model"] for body in stub.bodies} == {"big/model:8b"}
    paid = len(stub.bodies)
    for name in ("results.json", "results.md", "trajectories.jsonl"):
        (tmp_path / "out" / name).unlink()
    again = evaluated(stub, "api:big/model:8b", tmp_path / "out")
    assert len(stub.bodies) == paid
    assert again.teams == result.teams


def test_answers_without_a_text_are_counted_and_shown_and_end_nothing(stub, tmp_path):
    stub.text = lambda body: None
    result = evaluated(stub, "api:shy", tmp_path)
    assert result.main.scores["writer/refused"].mean == 1.0
    [writer, reader] = result.warnings()
    assert writer.startswith("api: the model of writer refused ")
    assert json.loads((tmp_path / "results.json").read_text())["warnings"] == [writer, reader]
    record = rows(tmp_path / "trajectories.jsonl")[0]
    assert all(candidate["refused"] for candidate in record["decisions"][0]["candidates"])
    stub.text = said
    assert "writer/refused" not in evaluated(stub, "api:willing").main.scores


def test_a_baseline_has_the_prompts_and_lengths_of_a_large_model():
    config = resolve(ATGRPOConfig(env="coding", policies="api:m", api_base="http://host/v1"))
    assert not config.embedded
    assert config.max_completion_length == 2048
    assert resolve(ATGRPOConfig(env="coding", policies="coder=a,tester=api:m")).embedded


def test_each_role_may_have_a_model_of_its_own_and_roles_may_exchange_them(stub):
    result = evaluated(stub, "writer=api:A,reader=api:B", swap="writer=reader")
    assert list(result.teams) == ["api", "swapped"]
    asked = {(body["model"], body["messages"][0]["content"][:6]) for body in stub.bodies}
    assert asked == {("A", "writer"), ("B", "reader"), ("B", "writer"), ("A", "reader")}


@pytest.mark.slow
def test_a_partner_takes_the_place_of_a_trained_role(stub, model, tmp_path):
    run = train(settings(stub, model, tmp_path / "run", max_steps=1)).folder
    stub.bodies.clear()
    result = evaluated(
        stub, None, tmp_path / "out", env=None, adapters=str(run), swap="writer=reader"
    )
    assert list(result.teams) == ["base", "adapters", "swapped"]
    for team, episodes in result.episodes.items():
        for group in (group for episode in episodes for group in episode.groups):
            theirs = (group.key.role == "reader") != (team == "swapped")
            assert (group.policy == "api:theirs") == theirs
            assert (bytes(group.prompt_ids).decode() == group.prompt) if theirs else True
    assert len({row["key"] for row in rows(tmp_path / "out" / "samples.jsonl")}) == len(stub.bodies)


def test_a_prompt_beyond_the_context_of_the_model_here_is_no_matter_to_a_partner(stub):
    roles = {"writer": "api:m", "reader": "api:m"}
    players = ApiPartners(ApiSettings(stub.base), roles)
    with contextlib.closing(players), ThreadPoolExecutor(1) as pool:
        engine = RolloutEngine(
            letters_env.env(max_turns=1),
            players,
            pool,
            shape=RolloutShape(),
            settings={"max_new_tokens": 4},
            seed=(0,),
            longest={"writer": 1, "reader": 1},
        )
        [episode] = engine.run([Task("t:0", 0)])
    assert episode.overlong is None
    assert len(episode.groups) == 2


@pytest.mark.slow
def test_a_team_behind_our_own_server_answers_as_the_team_itself(tmp_path, key):
    run = trained(tmp_path, "tests.asked_env:env")
    roles = {"writer": "writer", "reader": "reader"}
    common = {"limit": 3, "max_completion_length": 10, "greedy": True, "env_args": None}
    here = run_evaluation(EvalConfig.of(adapters=str(run), base=False, **common))
    policies = load_policies(run.parent / "model", roles, adapters=run / "adapters")
    with running(RoleServer(policies, 10, asked_env.env()), KEY) as url:
        there = run_evaluation(
            EvalConfig.of(
                env="tests.asked_env:env",
                policies="writer=api:writer,reader=api:reader",
                api_base=f"{url}/v1",
                api_key_file=str(key),
                # An observation is a whole prompt, and no question to be put into one.
                api_args='{"role_prompt": false}',
                out=str(tmp_path / "out"),
                **common,
            )
        )
    assert said_in(there.episodes["api"]) == said_in(here.episodes["adapters"])
    assert there.success == here.success
    paid = [row for row in rows(tmp_path / "out" / "samples.jsonl") if not row["estimated"]]
    assert all(row["prompt_tokens"] > 5 and 0 < row["completion_tokens"] <= 10 for row in paid)
    assert len(paid) == len(rows(tmp_path / "out" / "samples.jsonl"))


@pytest.mark.slow
def test_a_trained_role_is_served_without_its_partner(stub, model, tmp_path):
    config = settings(stub, model, tmp_path / "run", env="tests.asked_env:env", max_steps=1)
    run = train(config).folder
    stub.bodies.clear()
    with (
        serving_in_a_fork(run, "--sampler", "transformers") as (base, key),
        openai.OpenAI(base_url=base, api_key=key, max_retries=0) as client,
    ):
        assert [entry.id for entry in client.models.list()] == ["writer"]
        asked: Any = [{"role": "user", "content": "hello"}]
        chat = client.chat.completions.create(model="writer", messages=asked, max_tokens=4)
        assert chat.usage is not None
        assert chat.usage.completion_tokens
        with pytest.raises(openai.BadRequestError, match="reader of this team is played by a"):
            client.chat.completions.create(model="team", messages=asked)
    assert not stub.bodies


def said_in(episodes):
    return [
        [
            without_control_tokens(without_ending(group.chosen.completion.text))
            for group in episode.groups
        ]
        for episode in episodes
    ]


# ------------------------------------------------------------------------------------ the key


@pytest.mark.slow
def test_the_key_is_in_no_file_log_or_error(
    stub, model, tmp_path, key, caplog, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    stub.text = lambda body: f"your header was: Bearer {KEY} <- and you?"
    stub.misbehave = lambda handler, number: number == 2 and handler.fail(500, f"what is {KEY}")
    run = train(settings(stub, model, tmp_path / "run", api_key_file=str(key), max_steps=1)).folder
    assert any(KEY in str(sent) for sent in stub.keys)
    words = ["--adapters", str(run), "--limit", "2", "--out", "eval"]
    assert eval_command.main(words) == 0
    stub.misbehave = lambda handler, number: handler.fail(403, f"no rights for {KEY}")
    assert eval_command.main([*words[:3], "3", "--out", "other"]) == 2
    printed = capsys.readouterr()
    assert "no rights for [key]" in printed.err
    shutil.copy(key, tmp_path / "proof")
    assert KEY.encode() in everything_in(tmp_path)
    (tmp_path / "proof").unlink()
    for text in (everything_in(tmp_path).decode("latin-1"), caplog.text, printed.out, printed.err):
        assert KEY not in text
    assert "Bearer [key]" in (run / "samples.jsonl").read_text()


# ----------------------------------------------------------------------------------- bad input


def test_policies_behind_an_api_are_named_with_their_model():
    roles = ["coder", "tester"]
    assert parse_policies("api:a/b:c", roles) == dict.fromkeys(roles, "api:a/b:c")
    assert parse_policies("coder=x,tester=api:m=1", roles) == {"coder": "x", "tester": "api:m=1"}
    for spec in ("api:", "coder=x,tester=api:", "coder=x,tester=api:a\tb"):
        with pytest.raises(ConfigError, match="names no model; write api:MODEL"):
            parse_policies(spec, roles)
    with pytest.raises(ConfigError, match="'api:a' is not role=policy"):
        parse_policies("api:a,tester=api:b", roles)


def test_nothing_is_trained_where_partners_play_all_roles():
    with pytest.raises(ConfigError, match="nothing to train: coder, tester played by api:m"):
        trained_policies(None, {"coder": "api:m", "tester": "api:m"})
    assert trained_policies(None, {"coder": "mine", "tester": "api:m"}) == ("mine",)
    with pytest.raises(ConfigError, match="nothing to train: tester played by api:m"):
        trained_policies("tester", {"coder": "mine", "tester": "api:m"})
    assert only_partners("coder=api:a,tester=api:b")
    assert not only_partners("coder=mine,tester=api:a")


def test_an_address_is_needed_and_one_without_a_use_refused(stub, model, tmp_path):
    with pytest.raises(ConfigError, match="give its address: --api-base"):
        plan_run(settings(stub, model, tmp_path / "run", api_base=None))
    for unused in ({"api_key_file": "key"}, {"api_max_tokens": 9}, {"api_args": {"seed": 1}}):
        with pytest.raises(ConfigError, match=f"{next(iter(unused))} is for .* give --api-base"):
            ATGRPOConfig(**unused)
    with pytest.raises(ConfigError, match="api_base is for policies api:MODEL, and there are none"):
        plan_run(settings(stub, model, tmp_path / "run", policies="per-role"))
    with pytest.raises(ConfigError, match="api_base is for policies api:MODEL"):
        evaluated(stub, "base")
    with pytest.raises(ConfigError, match="cannot be read"):
        plan_run(settings(stub, model, tmp_path / "run", api_key_file=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="kept by one process"):
        plan_run(settings(stub, model, tmp_path / "run", workers=2))
    assert not (tmp_path / "run").exists()


def test_commands_say_the_address_and_the_status_in_one_line(stub, model, tmp_path, capsys):
    stub.misbehave = lambda handler, number: handler.fail(404, "no such model")
    words = ["--env", "tests.letters_env:env", "--policies", "writer=mine,reader=api:m"]
    words += ["--api-base", stub.base, "--model", str(model), "--output-dir", str(tmp_path / "run")]
    words += ["--max-completion-length", "6", "--eval-tasks", "1", "--device", "cpu"]
    assert train_command.main(words) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith(
        f"error: the endpoint {stub.base} refuses the request: HTTP 404 (no such"
    )
    assert not (tmp_path / "run" / "trajectories.jsonl").exists()


def test_a_dry_run_says_what_is_paid_elsewhere():
    options = EvalConfig.of(env="coding", policies="api:m", api_base="http://host/v1", limit=2)
    text = dry_run(options)
    assert "# 2 of 2 roles are played at http://host/v1, and paid there" in text
    assert "adapters: null" in text
    assert plan_of(options).teams[0].title == "api"
