"""The benchmark of teams on a base that was primed on parts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from benchmarks import parts
from benchmarks.learning import words_of
from benchmarks.priming import RECIPES, SOURCES, draw, prime
from pettingllms.assembly import make_env
from pettingllms.cli import evaluate, train
from pettingllms.contrib.sharing.writing import share
from pettingllms.data.rows import digest
from pettingllms.envs import make
from pettingllms.errors import PettingLLMsError
from pettingllms.models import PARTS
from pettingllms.policies.sources import check_model
from pettingllms.runs.folder import read_config
from pettingllms.samplers.scripted import ScriptedSampler
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.types import Request


def test_shuffled_words_belong_to_the_prompt_of_another_task():
    script = ScriptedSampler(lambda policy, prompt, seed: f"{policy} to {prompt}")
    shuffled = parts.Shuffled(script, "tool")
    requests = [
        Request(policy, script.prompt_ids(policy, task), 0)
        for task, policy in (("a", "tool"), ("b", "tool"), ("c", "planner"), ("d", "tool"))
    ]
    completions = shuffled.sample(requests, 1, max_new_tokens=50)
    assert [completion.text for (completion,) in completions] == [
        "tool to b",
        "tool to d",
        "planner to c",
        "tool to a",
    ]
    assert [completion.prompt_ids for (completion,) in completions] == [
        request.prompt_ids for request in requests
    ]
    assert shuffled.policy_for("tool") == "tool"


@pytest.mark.parametrize("name", parts.STORIES)
def test_every_story_names_roles_and_sizes_that_the_environment_has(name):
    story = parts.STORIES[name]
    for other in ({}, *story.others.values(), story.pass_at):
        game = make(story.env, split="test", **{**parts.arguments(name), **other})
        assert tuple(agent.removesuffix("_0") for agent in game.possible_agents) == story.roles
    assert story.speaker in story.roles
    assert {name.split("/")[0] for name in story.scores} == set(story.roles)


def test_the_shipped_base_of_parts_is_the_one_that_was_measured():
    assert digest(PARTS) == json.loads(parts.RESULTS.read_text())["model"]


@pytest.mark.parametrize("model", ["embedded:parts", str(PARTS)])
def test_the_base_of_parts_gets_the_tasks_and_settings_that_an_environment_declares_for_it(model):
    config = resolve(ATGRPOConfig(env="plan_path", model=model))
    assert (config.learning_rate, config.max_completion_length) == (4e-3, 12)
    game: Any = make_env(config, "train").unwrapped
    assert game.max_turns == parts.arguments("plan_path")["max_turns"]
    # Where an environment declares nothing for it, the settings of the other embedded model hold.
    other = resolve(ATGRPOConfig(env="sudoku", model=model))
    assert other.learning_rate == resolve(ATGRPOConfig(env="sudoku")).learning_rate


@pytest.mark.parametrize("name", parts.STORIES)
def test_another_base_is_trained_with_the_settings_of_the_base_of_parts(name):
    story = parts.STORIES[name]
    words = words_of(parts.settings(name) | {"env": story.env, "model": "elsewhere"})
    config = train.parse(words).config
    assert config is not None
    settings, shipped = (
        vars(resolve(unresolved))
        for unresolved in (config, ATGRPOConfig(env=story.env, model="embedded:parts"))
    )
    assert {key for key in settings if settings[key] != shipped[key]} == {"model", *story.own}


@pytest.mark.slow
def test_a_team_on_the_base_of_parts_is_trained_and_evaluated_from_its_name(tmp_path):
    run = tmp_path / "run"
    words = "--env plan_path --model embedded:parts --max-steps 2 --eval-steps 0"
    words += f" --eval-tasks 2 --tasks-per-step 2 --num-generations 2 --output-dir {run}"
    words += " --max-completion-length 4"
    train.main(words.split())
    assert "model: embedded:parts" in (run / "config.yaml").read_text()
    evaluate.main(["--adapters", str(run), "--tasks", "2", "--out", str(tmp_path / "eval")])
    assert "embedded:parts" in (tmp_path / "eval" / "results.json").read_text()
    share(run, str(tmp_path / "shared"))
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "pettingllms-eval --adapters" in card
    assert "SHIPPED['embedded:parts']" in card


@pytest.mark.parametrize("model", ["embedded:part", "embeded:parts"])
def test_a_misspelt_embedded_model_is_suggested(model):
    with pytest.raises(PettingLLMsError, match="did you mean 'embedded:parts'"):
        check_model(model)


def test_a_base_of_parts_is_never_written_over_the_embedded_one(capsys):
    for words in (["--recipe", "parts"], ["--only", "coding"]):
        with pytest.raises(SystemExit):
            prime.main(words)
        assert "--out is required" in capsys.readouterr().err


def test_an_environment_that_a_recipe_lacks_is_named(capsys, tmp_path):
    with pytest.raises(SystemExit):
        prime.main(["--recipe", "parts", "--only", "chess", "--out", str(tmp_path)])
    assert "the recipe has coding, plan_path, search, got 'chess'" in capsys.readouterr().err


def test_every_recipe_has_phases_and_the_embedded_one_its_five_environments():
    assert set(RECIPES) == set(prime.PHASES_OF)
    assert list(SOURCES) == ["coding", "plan_path", "sokoban", "sudoku", "math"]
    assert all(phase.habit == 0.0 for phase in prime.PHASES_OF["parts"])


@pytest.mark.parametrize(
    ("recipe", "source"), [(recipe, name) for recipe, kinds in RECIPES.items() for name in kinds]
)
def test_every_source_of_every_recipe_draws_demonstrations(recipe, source):
    rng = random.Random(source)
    for habit in (0.0, 1.0):
        drawn = [draw(rng, habit, {source: RECIPES[recipe][source]}) for _ in range(20)]
        assert all(demo.prompt and demo.reply for demo in drawn)


@pytest.mark.slow
def test_a_run_that_names_no_model_says_which_one_its_environment_trains(tmp_path):
    run = tmp_path / "run"
    words = "--env plan_path --max-steps 1 --eval-steps 0 --tasks-per-step 2 --num-generations 2"
    train.main([*words.split(), "--eval-tasks", "0", "--output-dir", str(run)])
    assert read_config(run).model == "embedded:parts"
    assert resolve(ATGRPOConfig(env="math")).model == "embedded"
    # Behind an API there is no model here.
    assert resolve(ATGRPOConfig(env="coding", policies="api:gpt")).model is None


def test_a_run_of_the_time_before_names_the_base_of_that_time(tmp_path):
    (tmp_path / "config.yaml").write_text("env: coding\n")
    assert read_config(tmp_path).model == "embedded"
