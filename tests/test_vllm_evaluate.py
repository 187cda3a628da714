"""An evaluation that samples with vLLM has the episodes of one that samples with transformers."""

from __future__ import annotations

import json

import pytest
import torch

from pettingllms.errors import RunFolderError
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.run import run_evaluation
from pettingllms.policies.loading import load_policies
from pettingllms.types import Sample
from tests.vllm_policies import OPTIONS, save_model, stir

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
torch.set_num_threads(1)
ROLES = {"writer": "writer", "reader": "reader"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("vllm") / "tiny")


@pytest.fixture(scope="module")
def adapters(model, tmp_path_factory):
    """An adapter for each role, far enough from the base and from each other to be seen."""
    policies = load_policies(model, ROLES, lora_r=4, lora_alpha=8)
    folder = tmp_path_factory.mktemp("adapters")
    for number, name in enumerate(policies.names):
        stir(policies, name, seed=number)
        policies.save(name, folder / name)
    return folder


def evaluated(model, adapters, **settings):
    return run_evaluation(
        EvalConfig.of(
            env="tests.letters_env:env",
            model=str(model),
            adapters=str(adapters),
            max_completion_length=8,
            limit=3,
            device="cpu",
            **settings,
        )
    )


VLLM = {"sampler": "vllm", "vllm": json.dumps(OPTIONS)}


def completions(episodes):
    """(Task, sample, agent, turn) -> the completion."""
    return {
        (
            trajectory.task.id,
            trajectory.episode,
            group.key.agent,
            group.key.turn,
        ): group.chosen.completion
        for trajectory in episodes
        for group in trajectory.groups
    }


def test_greedy_episodes_of_the_base_and_of_both_adapters_are_the_same(model, adapters):
    here = evaluated(model, adapters, greedy=True)
    there = evaluated(model, adapters, greedy=True, **VLLM)
    assert set(here.episodes) == set(there.episodes) == {"base", "adapters"}
    first: dict[tuple[str, str], tuple[int, ...]] = {}
    for team, episodes in here.episodes.items():
        ours, theirs = completions(episodes), completions(there.episodes[team])
        assert ours.keys() == theirs.keys()
        for key, one in ours.items():
            assert one.token_ids == theirs[key].token_ids, key
            assert one.logprobs == pytest.approx(theirs[key].logprobs, abs=1e-3)
            first.setdefault((team, key[2]), one.token_ids)
    assert len(first) == len(set(first.values())) == 4  # and none of the four is another's
    assert here.teams == there.teams


def test_sampled_episodes_come_from_the_adapters_that_are_evaluated(model, adapters, tmp_path):
    settings = {**VLLM, "base": False, "temperature": 0.8, "out": str(tmp_path)}
    few = evaluated(model, adapters, samples=2, **settings)
    policies = load_policies(model, ROLES, adapters=adapters)
    for role in ROLES:
        groups = [
            g
            for trajectory in few.episodes["adapters"]
            for g in trajectory.groups
            if g.policy == role
        ]
        samples = [
            Sample(one.prompt_ids, one.token_ids, one.logprobs, 1.0)
            for one in (group.chosen.completion for group in groups)
        ]
        assert len(samples) >= 6
        [batch] = policies.microbatches(role, samples, 1 << 20)
        with torch.no_grad():
            logp_BT, _ = policies.logprobs(role, batch, temperature=0.8)
        gap_BT = (logp_BT - batch.old_logprobs_BT).abs() * batch.mask_BT
        assert gap_BT.max().item() < 1e-3
    # More samples are added by vLLM as well, and the folder is not continued with another engine.
    before = (tmp_path / "trajectories.jsonl").read_bytes()
    more = evaluated(model, adapters, samples=3, **settings)
    assert (tmp_path / "trajectories.jsonl").read_bytes().startswith(before)
    assert len(more.episodes["adapters"]) == 3 * 3
    other = {**settings, "sampler": "transformers", "vllm": None}
    with pytest.raises(RunFolderError, match="with sampler 'vllm'"):
        evaluated(model, adapters, samples=3, **other)
