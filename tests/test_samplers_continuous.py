"""Rows that join and leave a batch between steps are sampled as if each were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from pettingllms.policies.prefix_trial import share_prompts
from pettingllms.samplers.base import SamplingParams
from pettingllms.samplers.continuous import ContinuousBatch, rows_of
from pettingllms.samplers.transformers import BatchGenerator
from tests.tiny_lm import tiny_config, tiny_model

torch.set_num_threads(1)
ENDS = tuple(range(3, 40))
PROMPTS = [(5, 6, 7), (9,), (20, 30, 40, 50, 60, 70), tuple(range(100, 190))]
KINDS = [
    SamplingParams(24),
    SamplingParams(9, temperature=0.7),
    SamplingParams(24, greedy=True),
    SamplingParams(80, top_p=0.8),
]


def gpt2():
    """Learned positions, which stand or fall with the position that a row is given."""
    config = GPT2Config(vocab_size=264, n_positions=256, n_embd=32, n_layer=2, n_head=4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel(config).eval()


def sliding():
    """Layers that see the last 8 tokens only."""
    changes = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    return tiny_model(1, tiny_config(**changes))


def shared():
    model = tiny_model(1)
    assert share_prompts(model)
    return model


@pytest.fixture(scope="module", params=[tiny_model, shared, gpt2, sliding])
def model(request):
    return request.param()


def rows(name, prompt, n, params, seed=0, **more):
    return rows_of(prompt, n, params, seed, key=lambda k: (name, k), **more)


def alone(model, prompt, params, seed, n=1):
    [completions] = BatchGenerator(ENDS, 0).generate(model, [prompt], n, params, [seed])
    return completions


def played(batch, arrivals):
    """Adds the rows of each arrival at its step, and decodes to the end: key -> its tokens."""
    tokens_by_key: dict[Any, list[Any]] = {}
    step = 0
    waiting = sorted(arrivals, key=lambda arrival: arrival[0])
    while waiting or len(batch):
        while waiting and waiting[0][0] <= step:
            for token in batch.add(waiting.pop(0)[1]).drawn:
                tokens_by_key.setdefault(token.key, []).append(token)
        for token in batch.step():
            tokens_by_key.setdefault(token.key, []).append(token)
        step += 1
    return tokens_by_key


@pytest.mark.slow
def test_a_row_is_sampled_as_if_it_were_alone_whenever_it_joins(model):
    jobs = [(p, k, 7 * p + k) for p in range(len(PROMPTS)) for k in range(len(KINDS))]
    arrivals = [
        (3 * number, rows(number, PROMPTS[p], 2, KINDS[k], seed))
        for number, (p, k, seed) in enumerate(jobs)
    ]
    tokens_by_key = played(ContinuousBatch(lambda: model, ENDS, 0), arrivals)
    lengths = set()
    for number, (p, k, seed) in enumerate(jobs):
        for i, expected in enumerate(alone(model, PROMPTS[p], KINDS[k], seed, n=2)):
            tokens = tokens_by_key[number, i]
            assert tuple(token.id for token in tokens) == expected.token_ids
            logprobs = [token.logprob for token in tokens]
            assert logprobs == pytest.approx(list(expected.logprobs), abs=1e-4)
            assert [token.end for token in tokens[:-1]] == [None] * (len(tokens) - 1)
            assert tokens[-1].end == ("length" if expected.truncated else "stop")
            lengths.add(len(tokens))
    assert len(lengths) > 5


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    plan=st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 12), st.integers(1, 40), st.none() | st.integers(1, 9)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_rows_that_are_removed_change_nothing_for_those_that_stay(plan):
    model = _PLAIN
    batch = ContinuousBatch(lambda: model, (), 0)
    ids_by_key: dict[Any, list[int]] = {}
    removed = set()
    for step in range(120):
        for key, (prompt, joins, tokens, _) in enumerate(plan):
            if joins == step:
                for token in batch.add(
                    rows(key, PROMPTS[prompt], 1, SamplingParams(tokens), key)
                ).drawn:
                    ids_by_key.setdefault(token.key, []).append(token.id)
        for token in batch.step():
            ids_by_key.setdefault(token.key, []).append(token.id)
        for key, (_, joins, _, stays) in enumerate(plan):
            if stays is not None and joins + stays == step:
                batch.remove([(key, 0)])
                removed.add((key, 0))
        assert not removed & set(batch.keys)
    assert not len(batch)
    for key, (prompt, _, tokens, _) in enumerate(plan):
        [expected] = BatchGenerator((), 0).generate(
            model, [PROMPTS[prompt]], 1, SamplingParams(tokens), [key]
        )
        ids = tuple(ids_by_key[key, 0])
        assert ids == expected[0].token_ids[: len(ids)]
        assert (key, 0) in removed or len(ids) == tokens


_PLAIN = tiny_model(3)


@pytest.mark.slow
def test_the_cache_does_not_grow_with_the_life_of_the_batch():
    batch = ContinuousBatch(lambda: _PLAIN, (), 0)
    for number in range(200):
        batch.add(rows(number, (5, 6, 7), 1, SamplingParams(5), number))
        batch.step()
    cache: Any = batch._cache
    keys = cache.layers[0].keys
    assert keys.shape[0] == len(batch) < 10
    assert keys.shape[2] <= batch.longest == 8


def test_the_likeliest_tokens_and_the_scores_of_a_prompt_are_the_models_own():
    prompt = tuple(40 + number % 200 for number in range(300))
    params = SamplingParams(2, greedy=True)
    [asked] = rows("a", prompt, 1, params, likeliest=3, score_prompt=True)
    [short] = rows("b", (7, 8), 1, params)
    batch = ContinuousBatch(lambda: _PLAIN, (), 0)
    added = batch.add([short, asked])
    with torch.no_grad():
        logprobs_PV = _PLAIN(input_ids=torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert list(added.prompts) == [("a", 0)]
    scores = added.prompts["a", 0]
    assert [token.id for token in scores] == list(prompt[1:])
    for position, token in enumerate(scores):
        assert token.logprob == pytest.approx(logprobs_PV[position, token.id].item(), abs=1e-4)
        values, ids = logprobs_PV[position].topk(3)
        assert [likely for likely, _ in token.likeliest] == ids.tolist()
        assert [value for _, value in token.likeliest] == pytest.approx(values.tolist(), abs=1e-4)
    first = {token.key: token for token in added.drawn}
    assert len(first["a", 0].likeliest) == 3
    assert first["a", 0].likeliest[0][0] == first["a", 0].id
    assert first["b", 0].likeliest == ()


def test_a_prompt_can_be_scored_without_sampling_anything():
    [row] = rows(0, (5, 6, 7), 1, SamplingParams(0), score_prompt=True)
    batch = ContinuousBatch(lambda: _PLAIN, (), 0)
    added = batch.add([row])
    assert added.drawn == []
    assert [token.id for token in added.prompts[0, 0]] == [6, 7]
    assert not len(batch)


def test_tokens_that_top_p_rules_out_are_not_among_the_likeliest():
    params = SamplingParams(1, top_p=1e-6)
    [row] = rows(0, (5, 6), 1, params, likeliest=5)
    [token] = ContinuousBatch(lambda: _PLAIN, (), 0).add([row]).drawn
    assert token.likeliest == ((token.id, 0.0),)
