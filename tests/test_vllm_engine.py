"""vLLM in this process, really run: what it samples is what the trainer computes."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pettingllms.errors import ConfigError, StaleSamplerError
from pettingllms.policies.loading import load_policies
from pettingllms.samplers.base import SamplingParams
from pettingllms.samplers.vllm import PublishedAdapter
from pettingllms.samplers.vllm_loop import Completed, Query, VllmLoop, _Running
from pettingllms.types import Request
from tests.vllm_policies import ROLES, differences, sampled, save_model, stir, team, told

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]
torch.set_num_threads(1)
AGREE = 1e-3
"""Nats; float32 on both sides gives some 1e-5."""
DIFFER = 0.1


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("vllm") / "tiny")


@pytest.fixture(scope="session")
def shared_team(model_dir):
    """One engine for all tests: starting one takes seconds."""
    policies = team(model_dir)
    yield policies
    policies.close()


@pytest.fixture
def policies(shared_team):
    """Three policies that differ, freshly published."""
    for number, name in enumerate(shared_team.names):
        with torch.no_grad():
            for parameter in shared_team.parameters(name):
                parameter.zero_()
        stir(shared_team, name, seed=number)
    return shared_team


@pytest.mark.parametrize("n", [1, 8])
def test_log_probabilities_of_a_batch_of_all_roles_are_the_trainers(policies, n):
    requests, replies = sampled(policies, n)
    assert {request.policy for request in requests} == {"coder", "tester", "third"}
    assert all(len(answers) == n for answers in replies)
    assert max(differences(policies, requests, replies).values()) < AGREE


@pytest.mark.parametrize("policy", ["coder", "tester", "third"])
def test_log_probabilities_of_each_role_alone_are_its_own(policies, policy):
    requests, replies = sampled(policies, names=[policy])
    assert differences(policies, requests, replies)[policy] < AGREE
    others = [name for name in policies.names if name != policy]
    for other in others:
        assert differences(policies, requests, replies, of=other)[policy] > DIFFER


@pytest.mark.parametrize("settings", [{"temperature": 0.5}, {"temperature": 1.7}])
def test_log_probabilities_are_those_at_the_sampling_temperature(policies, settings):
    requests, replies = sampled(policies, **settings)
    assert max(differences(policies, requests, replies, **settings).values()) < AGREE
    assert min(differences(policies, requests, replies).values()) > DIFFER


def test_five_versions_with_a_shared_prefix_leave_nothing_of_the_earlier_ones(policies):
    for number in range(5):
        before = policies.versions["coder"]
        assert stir(policies, "coder", seed=10 + number) == before + 1
        # The same prompts every time: the cache holds their prefix, of every earlier version.
        requests, replies = sampled(policies, n=8, seed=number)
        assert max(differences(policies, requests, replies).values()) < AGREE
        assert {
            a.version for r, [a, *_] in zip(requests, replies, strict=True) if r.policy == "coder"
        } == {before + 1}


def test_restored_weights_under_an_earlier_version_are_the_ones_sampled(policies):
    state, version = policies.state("coder"), policies.versions["coder"]
    stir(policies, "coder", seed=20)
    sampled(policies)
    stir(policies, "coder", seed=21)
    policies.load_state("coder", state, version=version)
    requests, replies = sampled(policies)
    assert max(differences(policies, requests, replies).values()) < AGREE
    assert replies[0][0].version == version


def test_fresh_adapters_sample_as_the_base_does(policies):
    state = {name: torch.zeros_like(value) for name, value in policies.state("coder").items()}
    policies.load_state("coder", state)
    requests, replies = sampled(policies)
    assert max(differences(policies, requests, replies).values()) < AGREE


def test_only_the_present_version_stays_on_disk_and_in_the_engine(policies):
    engine = policies.bases[0].engine
    for number in range(3):
        stir(policies, "tester", seed=30 + number)
    folders = sorted(path.name.partition("-")[0] for path in engine._adapters._path.iterdir())
    assert folders == sorted(f"{name}@v{v}" for name, v in policies.versions.items())
    held = {published.number for published in engine._held.values()}
    assert set(engine._engines[0].llm_engine.list_loras()) == held


def test_completions_are_told_once_they_are_there_the_shortest_of_a_prompt_first(policies):
    early, answers = told(policies, n=6)
    assert early == answers
    assert list(early) != list(answers)
    for place in {place for place, _ in early}:
        lengths = [len(one.token_ids) for (at, _), one in early.items() if at == place]
        assert lengths == sorted(lengths)


def test_an_interrupt_while_completions_are_told_leaves_nothing_in_the_engine(policies):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        told(policies, n=6, on_completion=stop)
    engine = policies.bases[0].engine._engines[0].llm_engine
    assert not engine.has_unfinished_requests()
    early, answers = told(policies, n=2)
    assert early == answers


def test_the_same_seed_gives_the_same_replies_and_another_gives_others(policies):
    (_, one), (_, again), (_, other) = (sampled(policies, n=4, seed=s) for s in (5, 5, 6))
    assert one == again
    assert one != other
    assert all(len({reply.token_ids for reply in answers}) > 1 for answers in one)


def test_equal_prompts_of_a_batch_get_replies_of_their_own(policies):
    prompt = policies.chat.prompt_ids("hello")
    replies = policies.sample(
        [Request("coder", prompt, seed) for seed in range(6)], 1, max_new_tokens=12
    )
    assert len({reply.token_ids for [reply] in replies}) == 6


def test_greedy_replies_are_the_likeliest_tokens_and_all_the_same(model_dir, policies):
    requests, replies = sampled(policies, n=3, greedy=True)
    assert all(len(set(answers)) == 1 for answers in replies)
    assert max(differences(policies, requests, replies).values()) < AGREE
    here = load_policies(model_dir, ROLES, lora_r=4, lora_alpha=8)
    for name in here.names:
        here.load_state(name, policies.state(name))
    _, expected = sampled(here, n=3, greedy=True)
    assert [a[0].token_ids for a in replies] == [a[0].token_ids for a in expected]


def test_replies_end_at_the_end_of_turn_or_at_the_limit(policies):
    _, replies = sampled(policies, n=8, max_new_tokens=80)
    ends = {reply.truncated for answers in replies for reply in answers}
    assert ends == {True, False}
    for reply in (reply for answers in replies for reply in answers):
        assert reply.truncated == (reply.token_ids[-1] != 2)
        assert 2 not in reply.token_ids[:-1]
        assert not reply.truncated or len(reply.token_ids) == 80


def test_weights_changed_without_publishing_are_refused(policies):
    with torch.no_grad():
        policies.parameters("tester")[0].add_(1.0)
    with pytest.raises(StaleSamplerError, match=r"policy 'tester' changed .* publish\('tester'\)"):
        sampled(policies)
    policies.publish("tester")
    sampled(policies)


def test_an_engine_with_an_older_version_is_refused(policies):
    policies.versions["coder"] += 1
    with pytest.raises(StaleSamplerError, match=r"engine holds version \d+ of policy 'coder'"):
        sampled(policies)
    policies.publish("coder")


def test_what_vllm_would_change_silently_is_refused(policies):
    with pytest.raises(ConfigError, match=r"do not fit into vLLM's context of 1024"):
        sampled(policies, max_new_tokens=1024)
    with pytest.raises(ConfigError, match=r"temperature must be at least 0\.01 with vLLM, got 0"):
        sampled(policies, temperature=0.001)


def test_an_engine_leaves_the_process_as_it_was_and_says_everything_in_its_folder(
    model_dir, tmp_path, capfd
):
    torch.manual_seed(5)
    before = torch.get_rng_state(), torch.set_num_threads
    other = team(model_dir, {"coder": "coder"}, settings={"folder": tmp_path / "run"})
    after = torch.get_rng_state(), torch.set_num_threads
    assert torch.equal(before[0], after[0])
    assert before[1] is after[1]
    path = other.bases[0].engine._adapters._path
    assert path.is_dir()
    other.close()
    assert not path.exists()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["vllm.log"]
    assert "Initializing a V1 LLM engine" in (tmp_path / "run" / "vllm.log").read_text()
    assert "INFO" not in capfd.readouterr().out


def test_a_full_model_for_each_role_has_an_engine_whose_weights_are_replaced(model_dir):
    policies = team(model_dir, {"coder": "coder", "tester": "tester"}, full=True)
    try:
        for number in range(3):
            stir(policies, "coder", seed=number, scale=0.02)
            requests, replies = sampled(policies, n=2)
            assert max(differences(policies, requests, replies).values()) < AGREE
        assert differences(policies, requests, replies, of="tester")["coder"] > DIFFER
    finally:
        policies.close()


def test_a_model_or_setting_that_vllm_refuses_is_an_error_before_training(model_dir, tmp_path):
    with pytest.raises(
        ConfigError, match=r"vLLM cannot run the model .*tensor_parallel|vLLM cannot"
    ):
        team(model_dir, {"coder": "a"}, options={"max_model_len": 1 << 20})
    with pytest.raises(ConfigError, match="adapters up to rank 512, got lora_r 600"):
        team(model_dir, {"coder": "a"}, lora_r=600)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_an_answer_of_which_one_completion_is_of_other_weights_says_so(tmp_path, order):
    """vLLM's word for each completion counts, not that for the last one alone."""

    def no_engine() -> dict[str, Any]:
        raise ConfigError("none is needed: what vLLM would say is given below")

    loop = VllmLoop("base", (2,), no_engine, folder=tmp_path, log=None)
    with pytest.raises(ConfigError, match="none is needed"):
        loop.started.result(60)
    old, new = (PublishedAdapter(f"p-{n}", n, n, tmp_path) for n in (1, 2))
    loop._full, loop._held = False, {("p", "1"): old, ("p", "2"): new}
    query = Query(Request("p", (5,), 0), 2, SamplingParams(4), 2, "2", {})
    answer: Future[Completed] = Future()
    running = _Running(query, new, answer, {}, {}, {"first": 0, "second": 1})
    loop._running = {"first": running, "second": running}
    for name, number in zip(("first", "second"), order, strict=True):
        token = SimpleNamespace(token_ids=[7], logprobs=[{7: SimpleNamespace(logprob=-1.0)}])
        used = SimpleNamespace(lora_int_id=number)
        loop._finish(SimpleNamespace(request_id=name, lora_request=used, outputs=[token]))
    assert answer.result(0).version == 1
