from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from pettingllms.errors import GroupError
from pettingllms.models import products, shared_prompts
from pettingllms.models.shared_prompts import PackedLayout, alike, enabled
from pettingllms.policies.packing import Batch, Packed, batch_logprobs, microbatches, predictions
from pettingllms.policies.prefix_trial import share_prompts
from pettingllms.types import Sample
from tests.tiny_lm import tiny_config, tiny_model

torch.set_num_threads(1)


def a_sample(prompt, reply, advantage=1.0, count=1):
    return Sample(tuple(prompt), tuple(reply), (-0.5,) * len(reply), advantage, count)


MIXED = [
    a_sample((5, 6, 7), (9, 8, 7, 6)),
    a_sample((5, 6, 7), (9,)),
    a_sample((20,), (11, 12)),
    a_sample((30, 31, 32, 33, 34, 35), (40, 41, 42, 43, 44, 45, 46)),
    a_sample((30, 31, 32, 33, 34, 35), (40, 41)),
    a_sample((30, 31, 32, 33, 34, 35), (50, 51, 52)),
    a_sample((5, 6, 7), (60, 61)),  # its group is further up
]


def sharing_model(**changes):
    model = tiny_model(seed=2, config=tiny_config(**changes))
    assert share_prompts(model)
    return model


def by_sample(model, samples, limit, *, packed, temperature=1.0):
    """Log-probabilities and entropies of every sample, and the gradient of their weighted sum."""
    model.zero_grad()
    by_index: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for batch in microbatches(samples, limit, packed=packed):
        logprobs, entropy = batch_logprobs(
            model, batch, temperature=temperature, entropy=True, entropy_grad=True
        )
        assert entropy is not None
        (logprobs.sin() + 0.1 * entropy**2).sum().backward()
        for row, index in enumerate(batch.index):
            length = len(samples[index].token_ids)
            assert index not in by_index
            by_index[index] = (logprobs[row, :length].detach(), entropy[row, :length].detach())
            assert not logprobs[row, length:].any()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [by_index[index] for index in range(len(samples))], grads


def one_by_one(model, sample, temperature=1.0):
    """The plainest computation there is: one sequence, no mask, no padding."""
    ids = torch.tensor([[*sample.prompt_ids, *sample.token_ids]])
    logits = model(input_ids=ids, use_cache=False).logits[0].float() / temperature
    start, length = len(sample.prompt_ids) - 1, len(sample.token_ids)
    table = logits.log_softmax(-1)[start : start + length]
    return (
        table.gather(-1, torch.tensor(sample.token_ids)[:, None])[:, 0],
        -(table.exp() * table).sum(-1),
    )


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("limit", [1, 17, 1000])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_batches_give_the_numbers_of_single_sequences(packed, limit, kv_heads):
    model = sharing_model(num_key_value_heads=kv_heads)
    scored, _ = by_sample(model, MIXED, limit, packed=packed, temperature=0.7)
    for sample, (logprobs, entropy) in zip(MIXED, scored, strict=True):
        expected = one_by_one(model, sample, 0.7)
        torch.testing.assert_close(logprobs, expected[0], atol=2e-5, rtol=0)
        torch.testing.assert_close(entropy, expected[1], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("limit", [1, 17, 1000])
def test_packed_rows_have_the_gradients_of_flat_rows(limit):
    model = sharing_model()
    _, packed = by_sample(model, MIXED, limit, packed=True)
    _, flat = by_sample(model, MIXED, 1000, packed=False)
    assert len(packed) == len(flat) > 10
    for left, right in zip(packed, flat, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


few = st.integers(4, 6)
alike_at_first = st.lists(
    st.tuples(st.sampled_from([(7,), (8, 9)]), st.lists(few, min_size=1, max_size=5)),
    min_size=1,
    max_size=10,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(alike_at_first, st.integers(1, 40))
def test_completions_that_begin_alike_have_the_numbers_of_single_sequences(pairs, limit):
    model = sharing_model()
    samples = [a_sample(prompt, reply) for prompt, reply in pairs]
    scored, _ = by_sample(model, samples, limit, packed=True)
    for sample, (logprobs, _) in zip(samples, scored, strict=True):
        torch.testing.assert_close(logprobs, one_by_one(model, sample)[0], atol=2e-5, rtol=0)


def test_what_completions_begin_with_in_common_is_computed_once():
    """Two prompts of 3 tokens; before their last tokens, completions are a tree of 4 tokens and one of 2."""
    first, second = (5, 6, 7), (5, 6, 8)
    samples = [
        a_sample(first, (9, 8, 7, 1)),
        a_sample(second, (9, 8, 2)),
        a_sample(first, (9, 8, 6, 1)),
        a_sample(first, (2,)),
        a_sample(first, (9, 8, 6, 2)),
    ]
    (batch,) = microbatches(samples, 1000, packed=True)
    model, computed = sharing_model(), []
    model.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: computed.append(inputs[0].numel())
    )
    batch_logprobs(model, batch)
    assert computed == [batch.tokens] == [3 + 3 + 4 + 2]


def a_conversation(lengths, candidates, seed=0, first=()):
    """Turns of which each prompt is the one before, its first candidate, and some new tokens.

    `lengths` are of the first prompt and of the replies of each turn.
    """
    generator = torch.Generator().manual_seed(seed)

    def some(length):
        return tuple(torch.randint(3, 60, (length,), generator=generator).tolist())

    samples, prompt = [], (*first, *some(lengths[0]))
    for number, length in enumerate(lengths[1:]):
        replies = [some(length) for _ in range(candidates)]
        samples += [a_sample(prompt, reply, advantage=number - 0.5) for reply in replies]
        prompt = (*prompt, *replies[0], *some(1 + number % 3))
    return samples


CONVERSATIONS = {
    "a chain": a_conversation([5, 3, 1, 4, 2, 6], 1),
    "one of four goes on": a_conversation([5, 3, 1, 4, 2, 6], 4),
    "two episodes from a prompt": a_conversation([2, 3, 4, 5], 2)
    + a_conversation([2, 3, 4, 5], 2, first=a_conversation([2, 3], 2)[1].prompt_ids),
    "two go on, and a prompt without any turn of its beginning": [
        a_sample((3, 4), (5, 6)),
        a_sample((3, 4), (5, 7, 8)),
        a_sample((3, 4, 5, 6, 9), (5,)),
        a_sample((3, 4, 5, 7, 8), (5, 1, 1)),
        a_sample((3, 4, 5, 7, 8, 2, 2), (9, 9)),
        a_sample((3, 4, 5, 7, 8, 2, 3), (9, 9)),
        a_sample((3, 4, 9, 9), (5, 6)),
    ],
}


@pytest.mark.parametrize("limit", [1, 30, 1000])
@pytest.mark.parametrize("samples", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_turns_that_continue_each_other_have_the_numbers_of_single_sequences(samples, limit):
    model = sharing_model()
    shuffled = [samples[index] for index in torch.randperm(len(samples)).tolist()]
    scored, packed = by_sample(model, shuffled, limit, packed=True)
    for sample, (logprobs, entropy) in zip(shuffled, scored, strict=True):
        expected = one_by_one(model, sample)
        torch.testing.assert_close(logprobs, expected[0], atol=2e-5, rtol=0)
        torch.testing.assert_close(entropy, expected[1], atol=2e-5, rtol=1e-5)
    _, flat = by_sample(model, shuffled, 1000, packed=False)
    for left, right in zip(packed, flat, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)
    for batch in microbatches(shuffled, limit, packed=True):
        assert batch.tokens <= max(
            limit, max(len(s.prompt_ids) + len(s.token_ids) for s in samples)
        )


def test_a_conversation_is_computed_once_and_its_prompts_have_no_rows_of_their_own():
    """Ten turns of one reply are a row as long as the last; of other replies only their own tokens are added."""
    lengths = [9, *range(3, 13)]
    alone, tree = a_conversation(lengths, 1), a_conversation(lengths, 3)
    whole = len(alone[-1].prompt_ids) + len(alone[-1].token_ids) - 1
    others = 2 * sum(length - 1 for length in lengths[1:])
    for samples, tokens, replies in ((alone, whole, 1), (tree, whole + others, 20 + 1)):
        (batch,) = microbatches(samples, 1000, packed=True)
        packed = Packed(batch.samples, batch.earlier)
        assert batch.tokens == len(packed.ids) == tokens
        assert [len(prompt) for prompt in packed.prompts] == [len(samples[-1].prompt_ids)]
        assert [len(replies) for replies in packed.completions] == [replies]


def test_the_turns_of_a_conversation_stay_with_it_however_long_it_is():
    samples = a_conversation([20, *[9] * 10], 1)
    (batch,) = microbatches(samples, 30, packed=True)
    assert batch.tokens > 100


def test_a_prompt_that_begins_with_a_prompt_but_with_no_reply_to_it_shares_nothing():
    samples = [a_sample((3, 4), (5, 6)), a_sample((3, 4, 5, 7), (8, 9))]
    (batch,) = microbatches(samples, 1000, packed=True)
    assert batch.tokens == 2 + 1 + 4 + 1


def kept_bytes(model, batch):
    """Bytes of the distinct tensors that a forward pass keeps for its backward pass."""
    storages = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = (storage.nbytes(), tensor)  # alive, so that none is reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        batch_logprobs(model, batch)
    return sum(size for size, _ in storages.values())


long_tailed = st.one_of(st.integers(1, 30), st.integers(1, 30), st.integers(200, 400))
mixes = st.lists(
    st.tuples(st.integers(2, 150), st.lists(long_tailed, min_size=1, max_size=24)),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(mixes)
@example([(2, [1, 1, 1, 374])])
def test_packed_rows_keep_no_more_memory_than_flat_ones(mix):
    """Also where one completion is many times as long as the others, or prompts are long."""
    model = sharing_model(hidden_size=64, num_attention_heads=4, intermediate_size=192)
    samples = [
        a_sample([number + 1] * prompt, [1] * reply)
        for number, (prompt, replies) in enumerate(mix)
        for reply in replies
    ]
    limit = 1500

    def most(rows, *, packed):
        cut = microbatches(rows, limit, packed=packed)
        return max(kept_bytes(model, batch) for batch in cut)

    # Separate rows are cut where one more would pass the limit, which may leave much of it unused.
    full = most([a_sample([1] * 73, [1] * (limit - 73))], packed=False)
    # A batch that both can hold whole differs by what a prompt's own attention keeps.
    assert most(samples, packed=True) <= 1.15 * max(most(samples, packed=False), full)


def test_few_short_completions_are_not_padded_to_a_long_one():
    # Together they were 1,496 positions.
    assert alike([374, 1, 1, 1], fused=True) == [[0], [1, 2, 3]]


def test_long_and_short_completions_are_padded_apart():
    """63 completions of 16 tokens and one of 2,064: padded to one length they are 132,096 positions."""
    samples = [
        a_sample([prompt] * 30, [100 + reply] * (2065 if (prompt, reply) == (7, 7) else 17))
        for prompt in range(8)
        for reply in range(8)
    ]
    (batch,) = microbatches(samples, 10**6, packed=True)
    packed = Packed(batch.samples)
    layout = PackedLayout(packed.prompts, packed.completions, torch.device("cpu"))
    tokens = 8 * 30 + 63 * 16 + 2064
    assert batch.tokens == tokens
    texts, _ = layout._rows(torch.float32, fused=True)
    assert sum(text.query_BT.numel() for text in texts) <= 1.05 * tokens


@settings(max_examples=100)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=80))
def test_rows_are_grouped_once_each_and_padded_by_little(lengths):
    groups = alike(lengths, fused=True)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[index] for index in group)
        assert all(longest - lengths[index] <= max(longest / 5, 2048) for index in group)


@pytest.mark.parametrize("cached", [1, 1 << 20])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("samples", [MIXED, *CONVERSATIONS.values()], ids=["mixed", *CONVERSATIONS])
def test_plain_products_have_the_numbers_and_gradients_of_fused_attention(
    monkeypatch, samples, kv_heads, cached
):
    model = sharing_model(num_key_value_heads=kv_heads)
    fused, fused_gradients = by_sample(model, samples, 1000, packed=True)
    monkeypatch.setattr(shared_prompts, "_products_are_faster", lambda *_: True)
    monkeypatch.setattr(products, "_CACHED_SCORES", cached)
    plain, gradients = by_sample(model, samples, 1000, packed=True)
    for one, other in zip(sum(plain, ()), sum(fused, ()), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    for one, other in zip(gradients, fused_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_rows_of_plain_products_hold_few_scores_that_no_token_needs():
    """Such products compute all of a row, also what is hidden or padded."""
    lengths = [400, 210, 130, 90, 64, 40, 27, 15]  # log-normal, as in training
    prompts = [200, 300]
    samples = [
        a_sample([number + 1] * prompt, [100 + place] * (length + 1))
        for number, prompt in enumerate(prompts)
        for place, length in enumerate(lengths)
    ]
    packed = Packed(samples)
    layout = PackedLayout(packed.prompts, packed.completions, torch.device("cpu"))

    def scores(fused):
        texts, _ = layout._rows(torch.bfloat16, fused)
        return sum(text.query_BT.numel() * text.seen_BS.shape[1] for text in texts)

    seen = sum(p * p / 2 + sum(n * (p + n) for n in lengths) for p in prompts)
    assert seen <= scores(fused=False) <= 1.25 * seen < 0.6 * scores(fused=True)


def test_few_scores_of_a_long_prompt_in_plain_products_are_hidden():
    (prompt,) = prompts = [range(1000)]
    layout = PackedLayout(prompts, [()], torch.device("cpu"))
    texts, order = layout._rows(torch.bfloat16, fused=False)
    scores = sum(text.query_BT.numel() * text.seen_BS.shape[1] for text in texts)
    assert scores <= 1.15 * len(prompt) ** 2 / 2
    assert order.tolist() == [*prompt]


def test_only_short_rows_in_bfloat16_attend_by_plain_products(monkeypatch):
    taken: list[torch.dtype] = []

    def noted(places, scale, query, *states):
        taken.append(query.dtype)
        return products.products(places, scale, query, *states)

    monkeypatch.setattr(shared_prompts, "products", noted)
    model, (batch,) = sharing_model(), microbatches(MIXED, 1000, packed=True)
    batch_logprobs(model, batch)
    assert not taken
    half = model.to(torch.bfloat16)
    with torch.no_grad():
        batch_logprobs(half, batch)
    assert set(taken) == {torch.bfloat16}
    taken.clear()
    (long,) = microbatches([a_sample([7] * 1100, [8, 9])], 5000, packed=True)
    batch_logprobs(half, long)
    assert not taken  # half as fast there


def test_gradient_checkpointing_changes_no_gradient():
    model = sharing_model()
    _, plain = by_sample(model, MIXED, 1000, packed=True)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    _, checkpointed = by_sample(model, MIXED, 1000, packed=True)
    for left, right in zip(plain, checkpointed, strict=True):
        # Modules compute it, which round in another order.
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)


lengths = st.integers(1, 6)
groups = st.lists(st.tuples(lengths, st.lists(lengths, min_size=1, max_size=5)), min_size=1)


@settings(max_examples=60)
@given(groups, st.integers(1, 60), st.booleans())
def test_every_sample_is_in_exactly_one_batch_within_the_bound(groups, limit, packed):
    samples = [
        a_sample([number + 1] * prompt, range(1, reply + 1), advantage=number, count=reply)
        for number, (prompt, replies) in enumerate(groups)
        for reply in replies
    ]
    batches = microbatches(samples, limit, packed=packed)
    assert sorted(i for batch in batches for i in batch.index) == list(range(len(samples)))
    for batch in batches:
        assert batch.tokens <= limit or len(batch.samples) == 1
        assert batch.samples == tuple(samples[i] for i in batch.index)
        for values, sample in zip(batch.advantages_BT.tolist(), batch.samples, strict=True):
            length = len(sample.token_ids)
            assert values[:length] == [sample.advantage] * length
            assert not any(values[length:])
        assert batch.counts_B.tolist() == [s.count for s in batch.samples]
        assert batch.mask_BT.sum(-1).tolist() == [len(s.token_ids) for s in batch.samples]
        for row, sample in enumerate(batch.samples):
            size = len(sample.token_ids)
            assert batch.token_ids_BT[row, :size].tolist() == list(sample.token_ids)
            assert batch.old_logprobs_BT[row, :size].tolist() == list(sample.logprobs)


@pytest.mark.parametrize("packed", [True, False])
def test_prompts_count_in_the_bound(packed):
    samples = [a_sample([number + 1] * 60, (1, 2)) for number in range(3)]
    batches = microbatches(samples, 100, packed=packed)
    assert [len(batch.samples) for batch in batches] == [1, 1, 1]


def test_a_prompt_is_counted_once_for_its_group():
    """And a completion's last token not at all, which nothing follows."""
    samples = [a_sample(range(1, 11), (first, 2, 3)) for first in range(4)]
    packed = microbatches(samples, 1000, packed=True)
    flat = microbatches(samples, 1000, packed=False)
    assert [batch.tokens for batch in packed] == [10 + 4 * 2]
    assert [batch.tokens for batch in flat] == [4 * 13]


def test_a_group_that_fits_is_not_cut():
    samples = [a_sample((number,) * 5, (1, 2, 3)) for number in (1, 2, 3) for _ in range(3)]
    batches = microbatches(samples, 20, packed=True)
    assert [len({s.prompt_ids for s in batch.samples}) for batch in batches] == [1, 1, 1]


@pytest.mark.parametrize(("prompt", "reply"), [((), (1,)), ((1,), ())])
def test_a_sample_without_tokens_is_refused(prompt, reply):
    with pytest.raises(GroupError, match="sample 0 has no prompt or no completion tokens"):
        microbatches([a_sample(prompt, reply)], 10, packed=True)


def test_nothing_gives_no_batches():
    assert microbatches([], 10, packed=True) == microbatches([], 10, packed=False) == []


def test_gradients_flow_through_the_entropy_only_when_asked():
    model = sharing_model()
    batch: Batch = microbatches(MIXED, 1000, packed=True)[0]
    _, entropy = batch_logprobs(model, batch, entropy=True)
    assert entropy is not None
    assert not entropy.requires_grad
    assert batch_logprobs(model, batch)[1] is None


def test_a_model_with_sliding_attention_keeps_its_own(caplog):
    config = MistralConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=4,
    )
    model = MistralForCausalLM(config).eval()
    with caplog.at_level(logging.WARNING):
        assert not share_prompts(model)
    assert not enabled(model)
    assert "slid" in caplog.text


def test_a_model_of_another_family_is_tried_and_used():
    config = GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    model = GPT2LMHeadModel(config).eval()
    assert share_prompts(model)
    scored, _ = by_sample(model, MIXED, 1000, packed=True)
    for sample, (logprobs, _) in zip(MIXED, scored, strict=True):
        torch.testing.assert_close(logprobs, one_by_one(model, sample)[0], atol=2e-5, rtol=0)


def test_a_model_that_a_trial_shows_to_differ_keeps_its_own(caplog):
    model = tiny_model()
    # As a model whose positions do not follow position_ids: rows of a pack would be shifted.
    rotary = model.model.rotary_emb
    plain = rotary.forward
    rotary.forward = lambda x, position_ids: plain(
        x, torch.arange(x.shape[1]).expand(x.shape[0], -1)
    )
    with caplog.at_level(logging.WARNING):
        assert not share_prompts(model)
    assert "a trial differed" in caplog.text
    assert model.config._attn_implementation == "sdpa"


def test_a_model_whose_special_tokens_have_large_states_shares_prompts_in_low_precision():
    for seed in range(8):
        model = tiny_model(seed=seed).bfloat16()
        with torch.no_grad():
            model.model.embed_tokens.weight[:10] *= 30
        assert share_prompts(model), seed


def test_a_model_set_to_shared_prompts_still_works_without_them():
    plain: Any = tiny_model(seed=2)
    sharing: Any = sharing_model()
    ids = torch.tensor([[1, 2, 3, 4], [0, 0, 5, 6]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    with torch.no_grad():
        assert torch.equal(plain(ids, attention_mask=mask).logits, sharing(ids, mask).logits)
        kwargs = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
        assert torch.equal(plain.generate(ids, **kwargs), sharing.generate(ids, **kwargs))


def test_a_token_after_the_same_text_is_scored_once():
    same, other = (5, 6, 7, 2), (5, 6, 8, 2)
    samples = [a_sample((3, 4), reply) for reply in (same, other, same)]
    (batch,) = microbatches(samples, 1000, packed=True)
    predicted = predictions(sharing_model(), batch)
    assert len(predicted.of_M) == 12
    assert len(predicted.ids_P) == 6, "5, 6, then 7 and 8, and the end after each"
