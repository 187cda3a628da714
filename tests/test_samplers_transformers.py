from __future__ import annotations

import math
from collections import Counter
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3Config

from benchmarks.lengths import LengthGenerator
from pettingllms.policies.prefix_trial import share_prompts
from pettingllms.samplers import transformers
from pettingllms.samplers.base import SamplingParams
from pettingllms.samplers.transformers import (
    BatchGenerator,
    PlainDecoding,
    SharedDecoding,
    branch,
    distribution,
    draw,
    uniform,
)
from tests.tiny_lm import tiny_config, tiny_model

torch.set_num_threads(1)
PROMPTS = [(5, 6, 7), (9,), (20, 30, 40, 50, 60, 70), (5, 6, 7)]


def a_model(shared: bool, config: Qwen3Config | None = None):
    model = tiny_model(seed=1, config=config)
    if shared:
        assert share_prompts(model)
    return model


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seeds(count: int, seed: int = 0) -> list[int]:
    return [1000 * seed + number for number in range(count)]


def sample_all(model, prompts=PROMPTS, n=4, params=None, seed=0, ends=(3, 4), **settings):
    generator = BatchGenerator(ends, 0, **settings)
    return generator.generate(
        model, prompts, n, params or SamplingParams(12), seeds(len(prompts), seed)
    )


def ids(result):
    return [[one.token_ids for one in answers] for answers in result]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_sharing_prompts_changes_no_reply(kv_heads):
    config = tiny_config(num_key_value_heads=kv_heads)
    # Many end tokens, so that rows leave the batch at every step.
    ends = tuple(range(3, 60))
    plain = sample_all(a_model(False, config), n=8, ends=ends)
    shared = sample_all(a_model(True, config), n=8, ends=ends)
    assert ids(plain) == ids(shared)
    assert len({len(one) for answers in ids(plain) for one in answers}) > 3
    for left, right in zip(chain(*plain), chain(*shared), strict=True):
        assert left.logprobs == pytest.approx(right.logprobs, abs=2e-5)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("bound", [1, 40, 90])
def test_replies_do_not_depend_on_how_rows_are_cut_into_batches(shared, bound):
    model = a_model(shared)
    ends = tuple(range(3, 30))
    assert ids(sample_all(model, tokens_per_batch=bound, ends=ends)) == ids(
        sample_all(model, ends=ends)
    )


def test_a_completion_depends_on_its_own_seed_and_prompt_alone():
    model = a_model(True)
    together = ids(sample_all(model))
    apart = BatchGenerator((3, 4), 0).generate(
        model, PROMPTS[2:3], 4, SamplingParams(12), seeds(3)[2:]
    )
    assert ids(apart) == together[2:3]
    reverse = BatchGenerator((3, 4), 0).generate(
        model, PROMPTS[::-1], 4, SamplingParams(12), seeds(len(PROMPTS))[::-1]
    )
    assert ids(reverse) == together[::-1]


def test_random_numbers_are_those_of_the_seed_whatever_else_is_drawn():
    both = uniform([7, -(1 << 62)], 3, 5)
    assert both.shape == (6, 5)
    assert torch.equal(uniform([-(1 << 62)], 3, 5), both[3:])
    assert len(both.unique()) == both.numel()
    assert both.min() >= 0
    assert both.max() < 1


def test_the_same_seeds_give_the_same_replies_and_others_give_others():
    model = a_model(True)
    assert ids(sample_all(model, seed=3)) == ids(sample_all(model, seed=3))
    assert ids(sample_all(model, seed=3)) != ids(sample_all(model, seed=4))


def test_the_global_generator_is_neither_used_nor_moved():
    model = a_model(True)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = ids(sample_all(model))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert ids(sample_all(model)) == first


def test_equal_prompts_get_candidates_of_their_own():
    answers = ids(sample_all(a_model(True), [(5, 6)] * 3, n=3))
    assert len({one for group in answers for one in group}) == 9


@pytest.mark.parametrize("shared", [True, False])
def test_greedy_replies_are_those_of_generate(shared):
    model = a_model(shared)
    result = sample_all(model, n=2, params=SamplingParams(12, greedy=True), ends=(3,))
    for prompt, answers in zip(PROMPTS, result, strict=True):
        with torch.no_grad():
            expected = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=12,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=3,
            )[0, len(prompt) :].tolist()
        assert [list(one.token_ids) for one in answers] == [expected] * 2


@pytest.mark.parametrize("shared", [True, False])
def test_a_reply_ends_with_its_first_end_token_or_at_the_limit(shared):
    ends = set(range(3, 20))
    result = sample_all(a_model(shared), n=16, ends=tuple(ends))
    replies = [one for answers in result for one in answers]
    assert {one.truncated for one in replies} == {True, False}
    for one in replies:
        assert len(one.token_ids) == len(one.logprobs)
        assert not ends & set(one.token_ids[:-1])
        assert one.truncated == (one.token_ids[-1] not in ends)
        assert not one.truncated or len(one.token_ids) == 12


def test_one_token_replies_are_possible():
    result = sample_all(a_model(True), params=SamplingParams(1))
    assert {len(one.token_ids) for answers in result for one in answers} == {1}


def test_tokens_appear_as_often_as_the_model_says():
    logits = torch.tensor([[0.0, math.log(2.0), math.log(5.0), -1e30]])
    drawn = torch.rand(20_000, generator=seeded(), dtype=torch.float64)
    of_first = torch.zeros(20_000, dtype=torch.long)
    token, logprob = draw(distribution(logits, SamplingParams(1)), drawn, of_first)
    counts = Counter(token.tolist())
    for index, odds in enumerate((1 / 8, 2 / 8, 5 / 8)):
        assert counts[index] / 20_000 == pytest.approx(odds, abs=0.015)
        assert logprob[token == index].tolist() == pytest.approx(
            [math.log(odds)] * counts[index], abs=1e-6
        )
    assert counts[3] == 0


def test_temperature_shapes_both_the_draw_and_its_log_probability():
    logits = torch.tensor([[0.0, 1.0]])
    logprobs = distribution(logits, SamplingParams(1, temperature=0.5))
    cold = draw(logprobs, torch.tensor([0.5], dtype=torch.float64))
    assert cold[0].item() == 1
    assert cold[1].item() == pytest.approx(math.log(1 / (1 + math.exp(-2.0))))


@pytest.mark.parametrize(("top_p", "kept"), [(0.3, {2}), (0.7, {1, 2}), (1.0, {0, 1, 2})])
def test_top_p_keeps_the_likeliest_tokens_and_their_own_distribution(top_p, kept):
    logits = torch.tensor([[0.0, math.log(2.0), math.log(5.0)]]).expand(500, -1)
    drawn = torch.rand(500, generator=seeded(), dtype=torch.float64)
    token, logprob = draw(distribution(logits, SamplingParams(1, top_p=top_p)), drawn)
    assert set(token.tolist()) == kept
    weights = {0: 1.0, 1: 2.0, 2: 5.0}
    expected = {index: weights[index] / sum(weights[member] for member in kept) for index in kept}
    for index in kept:
        assert logprob[token == index][0].item() == pytest.approx(math.log(expected[index]))


@pytest.mark.parametrize("drawn", [0.0, 1.0 - 2**-53])
def test_the_ends_of_the_unit_interval_never_pick_an_impossible_token(drawn):
    logits = torch.tensor([[-1e30, 0.0, 0.0, -1e30]])
    number = torch.tensor([drawn], dtype=torch.float64)
    token, logprob = draw(distribution(logits, SamplingParams(1)), number)
    assert token.item() in (1, 2)
    assert math.isfinite(logprob.item())


@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 5, 2048, 2049, 3000]),
    st.sampled_from([0.01, 1.0, 30.0]),
)
def test_a_token_is_drawn_where_the_sum_of_probabilities_passes_the_number(seed, size, scale):
    logits = scale * torch.randn(4, size, generator=seeded(seed))
    logits[:, 1::3] = -math.inf
    number = torch.rand(12, generator=seeded(seed), dtype=torch.float64)
    rows = torch.randint(4, (12,), generator=seeded(seed))
    logprobs = distribution(logits, SamplingParams(1))
    token, logprob = draw(logprobs, number, rows)
    odds = logits.double().softmax(-1)[rows]
    end = odds.cumsum(-1).gather(1, token[:, None])[:, 0]
    start = end - odds.gather(1, token[:, None])[:, 0]
    assert bool((start - 1e-6 <= number).all())
    assert bool((number <= end + 1e-6).all())
    assert bool((logprob > -math.inf).all())


def test_logits_that_are_no_numbers_still_give_tokens():
    logprobs = distribution(torch.full((2, 2100), math.nan), SamplingParams(1))
    token, _ = draw(logprobs, torch.tensor([0.0, 0.7], dtype=torch.float64))
    assert token.max() < 2100


@pytest.mark.parametrize("branching", [True, False])
def test_tokens_are_the_same_whatever_the_number_of_rows_they_are_drawn_from_at_once(
    branching, monkeypatch
):
    logits = torch.randn(7, 50, generator=seeded())
    rows = torch.randint(7, (30,), generator=seeded()) if branching else None
    number = torch.rand(30 if branching else 7, generator=seeded(), dtype=torch.float64)
    params = SamplingParams(1, temperature=0.7)
    whole = draw(distribution(logits, params), number, rows)
    monkeypatch.setattr(transformers, "_AT_ONCE", 100)
    parts = transformers._next_tokens(logits, params, number, rows)
    assert [part.tolist() for part in parts] == [all_.tolist() for all_ in whole]


@pytest.mark.parametrize("shared", [True, False])
def test_a_beginning_that_candidates_have_in_common_is_computed_once(shared, monkeypatch):
    model = a_model(shared)
    decoding = SharedDecoding if shared else PlainDecoding
    rows: list[int] = []
    step = decoding.step

    def counted(self, token_R):
        rows.append(len(token_R))
        return step(self, token_R)

    monkeypatch.setattr(decoding, "step", counted)
    # Cold, so that candidates are alike for some tokens, and then are not.
    result = sample_all(model, n=16, params=SamplingParams(12, temperature=0.25), ends=(3,))
    texts = {
        (prompt, one.token_ids[:length])
        for prompt, answers in zip(PROMPTS, result, strict=True)
        for one in answers
        for length in range(1, len(one.token_ids))
    }
    candidates = sum(len(one.token_ids) - 1 for answers in result for one in answers)
    assert sum(rows) == len(texts)
    assert len(texts) < 0.8 * candidates


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=40))
def test_branching_follows_every_candidate_and_moves_no_row_without_need(candidates):
    present = sorted({row for row, _ in candidates})
    rows = torch.tensor([row for row, _ in candidates])
    tokens = torch.tensor([token for _, token in candidates])
    after, origin, token = branch(rows, tokens)
    assert [(origin[i].item(), token[i].item()) for i in after.tolist()] == candidates
    assert len(origin) == len(set(candidates))
    for row in present:
        if row < len(origin):
            assert origin[row] == row


def test_replies_of_the_benchmark_end_where_they_are_to_end(monkeypatch):
    for name in ("uniform", "draw"):  # which it replaces
        monkeypatch.setattr(transformers, name, getattr(transformers, name))
    lengths = [7, 1, 2, 7, 3, 5]
    generator = LengthGenerator(lengths, 3, longest=7)
    completions = generator.generate(a_model(True), PROMPTS[:3], 2, SamplingParams(7), seeds(3))
    assert [len(one.token_ids) for row in completions for one in row] == lengths
