"""A script in place of a model: what it says, how it is tokenized, what it refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pettingllms.errors import ConfigError, UnknownNameError
from pettingllms.evaluation import evaluate, held_out
from pettingllms.rollout.engine import RolloutEngine
from pettingllms.rollout.shapes import Tree
from pettingllms.samplers.scripted import END, ScriptedSampler
from pettingllms.types import Request, Task
from tests import letters_env


def test_texts_are_used_in_order_and_start_over() -> None:
    sampler = ScriptedSampler({"writer": ["a", "bb"], "reader": ["c"]})
    requests = [Request(role, (1,), 0) for role in ("writer", "reader", "writer")]
    completions = sampler.sample(requests, 3, max_new_tokens=9)
    assert [[one.text for one in row] for row in completions] == [
        ["a", "bb", "a"],
        ["c", "c", "c"],
        ["bb", "a", "bb"],
    ]


def test_a_function_is_given_policy_prompt_and_a_seed_of_each_candidate() -> None:
    sampler = ScriptedSampler(lambda policy, prompt, seed: f"{policy} {prompt} {seed}")
    request = Request("b", sampler.prompt_ids("writer", "h\u00e9"), 7)
    [completions] = sampler.sample([request], 2, max_new_tokens=99)
    assert [one.text for one in completions] == ["b h\u00e9 7", "b h\u00e9 8"]


@given(st.text(st.characters(exclude_categories=[])), st.integers(1, 12))
def test_completions_are_bytes_and_an_end_within_the_limit(text: str, limit: int) -> None:
    sampler = ScriptedSampler(lambda _policy, prompt, _seed: prompt)
    request = Request("writer", sampler.prompt_ids("writer", text), 0)
    [[completion]] = sampler.sample([request], 1, max_new_tokens=limit)
    assert 1 <= len(completion.token_ids) == len(completion.logprobs) <= limit
    assert set(completion.logprobs) == {0.0}
    assert completion.truncated == (completion.token_ids[-1] != END)
    assert END not in completion.token_ids[:-1]
    if not completion.truncated:
        assert completion.text == text
        assert completion.token_ids[:-1] == completion.prompt_ids


def test_a_role_without_texts_and_an_unknown_role_are_refused() -> None:
    wrong: tuple[list[str] | str, ...] = ([], "ab")
    for texts in wrong:
        with pytest.raises(ConfigError, match="role 'writer' must be a list of at least one text"):
            ScriptedSampler({"writer": texts})
    sampler = ScriptedSampler({"writer": ["a"]})
    with pytest.raises(UnknownNameError, match="no role 'writr'; did you mean 'writer'"):
        sampler.prompt_ids("writr", "x")


def test_a_rollout_and_an_evaluation_run_without_a_model() -> None:
    env = letters_env.env(split="test", max_turns=2)
    sampler = ScriptedSampler({"writer": ["aaaa", "b"], "reader": ["aa"]})
    with ThreadPoolExecutor(2) as pool:
        engine = RolloutEngine(env, sampler, pool, Tree(width=2), {"max_new_tokens": 8}, (0,))
        [played] = engine.run([Task("t:0", 0)])
    assert [group.key.role for group in played.groups] == ["writer", "reader"] * 2
    assert {c.completion.text for c in played.groups[0].candidates} == {"aaaa", "b"}
    evaluation = evaluate(env, sampler, tasks=held_out(env, "test", 2), max_new_tokens=8)
    assert evaluation.scores["tokens"].mean > 0
