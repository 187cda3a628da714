from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from pettingllms.errors import ConfigError, SamplerUnavailable, StaleSamplerError, UnknownNameError
from pettingllms.policies.base_model import ModelSpec
from pettingllms.policies.loading import load_policies
from pettingllms.policies.weights import LoraWeights
from pettingllms.samplers.base import SamplerSettings
from pettingllms.types import Request, Sample
from tests.tiny_lm import save_tiny, tiny_config

torch.set_num_threads(1)
ROLES = {"coder": "a", "tester": "tester"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def some_policies(model_dir, attention="auto", **changes):
    spec = ModelSpec(str(model_dir), attn_implementation=attention)
    return load_policies(spec, ROLES, **{"lora_r": 4, "lora_alpha": 8, "seed": 3, **changes})


def stir(policies, policy, scale=0.1, seed=0):
    """Moves the policy's weights as an optimizer would, then publishes them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policies.parameters(policy):
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return policies.publish(policy)


def requests_for(policies, seed=0):
    texts = {"coder": ("hello", "a longer question"), "tester": ("hello", "x")}
    return [
        Request(policies.policy_for(role), policies.prompt_ids(role, text), seed + 10 * number + n)
        for number, (role, lines) in enumerate(texts.items())
        for n, text in enumerate(lines)
    ]


def sample(policies, n=4, seed=0, **settings):
    options = {"max_new_tokens": 10, **settings}
    return policies.sample(requests_for(policies, 1000 * seed), n, **options)


def samples_of(replies, policies, policy):
    return [
        Sample(reply.prompt_ids, reply.token_ids, reply.logprobs, 1.0 + number % 3)
        for request, answers in zip(requests_for(policies), replies, strict=True)
        for number, reply in enumerate(answers)
        if request.policy == policy
    ]


KINDS: dict[str, dict[str, Any]] = {
    "merged": {},
    "adapters": {"merge": False},
    "plain attention": {"attention": "sdpa"},
    "full": {"full": True, "reference": True},
}


@pytest.fixture(params=KINDS)
def policies(request, model_dir):
    return some_policies(model_dir, **KINDS[request.param])


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_log_probabilities_equal_recomputed_ones(policies, temperature):
    for policy in policies.names:
        stir(policies, policy, seed=len(policy))
    replies = sample(policies, temperature=temperature)
    for policy in policies.names:
        for batch in policies.microbatches(policy, samples_of(replies, policies, policy), 200):
            logprobs, _ = policies.logprobs(policy, batch, temperature=temperature)
            torch.testing.assert_close(logprobs, batch.old_logprobs_BT, atol=2e-5, rtol=0)


def test_policies_differ_once_they_have_learned(policies):
    stir(policies, "a")
    stir(policies, "tester", seed=1)
    replies = sample(policies)
    batch = policies.microbatches("a", samples_of(replies, policies, "a"), 10_000)[0]
    learned, other = (policies.logprobs(policy, batch)[0] for policy in ("a", "tester"))
    base = policies.reference_logprobs("a", batch)
    assert (learned - other).abs().max() > 0.01
    assert (learned - base).abs().max() > 0.01


def test_an_update_moves_its_own_policy_and_nothing_else(policies):
    optimizers = {
        name: torch.optim.AdamW(policies.parameters(name), lr=1e-2) for name in policies.names
    }
    for policy in policies.names:
        stir(policies, policy, seed=len(policy))
    replies = sample(policies)
    # Interleaved, so that each is made trainable, left, and made trainable again.
    for policy in ("a", "tester", "a"):
        other = {"a": "tester", "tester": "a"}[policy]
        before = {name: policies.state(name) for name in policies.names}
        batch = policies.microbatches(policy, samples_of(replies, policies, policy), 10_000)[0]
        reference = policies.reference_logprobs(policy, batch)
        loss = (policies.logprobs(policy, batch)[0] - reference).sum()
        optimizers[policy].zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in policies.parameters(policy))
        optimizers[policy].step()
        after = {name: policies.state(name) for name in policies.names}
        assert all(torch.equal(before[other][key], after[other][key]) for key in after[other])
        assert all(
            not torch.equal(before[policy][key], after[policy][key]) for key in after[policy]
        )
        torch.testing.assert_close(
            policies.reference_logprobs(policy, batch), reference, rtol=0, atol=0
        )


def test_parameters_are_listed_once_and_belong_to_one_policy(policies):
    lists = [policies.parameters(name) for name in policies.names]
    sizes = [len({id(p) for p in parameters}) for parameters in lists]
    assert sizes[0] == sizes[1] == len(lists[0])
    assert not {id(p) for p in lists[0]} & {id(p) for p in lists[1]}
    # Whatever was active in between, the same objects come back.
    for name, parameters in zip(policies.names, lists, strict=True):
        stir(policies, name)
        assert all(x is y for x, y in zip(policies.parameters(name), parameters, strict=True))


def test_adapters_hold_every_linear_layer_and_nothing_of_the_base(model_dir):
    policies = some_policies(model_dir)
    names = set(policies.state("a"))
    assert len(names) == 2 * 7 * 2  # layers x (q k v o gate up down) x (A B)
    assert all(".lora_A." in name or ".lora_B." in name for name in names)


@pytest.mark.parametrize("foreach", [True, False])
def test_a_sampler_with_old_weights_refuses(model_dir, foreach):
    policies = some_policies(model_dir)
    step = torch.optim.AdamW(policies.parameters("a"), lr=1e-3, foreach=foreach).step
    sample(policies)
    batch = policies.microbatches("a", samples_of(sample(policies), policies, "a"), 1000)[0]
    policies.logprobs("a", batch)[0].sum().backward()
    sample(policies)  # gradients alone change nothing
    step()
    with pytest.raises(StaleSamplerError, match=r"policy 'a' changed .* publish\('a'\)"):
        sample(policies)
    assert policies.publish("a") == 1
    replies = sample(policies)
    assert [answers[0].version for answers in replies] == [1, 1, 0, 0]


def test_replies_carry_prompt_text_and_end(policies):
    replies = sample(policies, max_new_tokens=60, n=8)
    for request, answers in zip(requests_for(policies), replies, strict=True):
        for reply in answers:
            assert reply.prompt_ids == request.prompt_ids
            assert reply.text == policies.chat.decode(reply.token_ids)
            assert reply.truncated == (reply.token_ids[-1] != 2)


def test_an_adapter_is_merged_once_while_policies_are_loaded(model_dir, monkeypatch):
    merged, refresh = [], LoraWeights.refresh

    def noted(weights, policy):
        merged.append(policy)
        refresh(weights, policy)

    monkeypatch.setattr(LoraWeights, "refresh", noted)
    policies = some_policies(model_dir, merge=True)
    assert sorted(merged) == sorted(policies.names)


def test_bfloat16_is_sampled_as_well_where_onednn_refuses_it(model_dir, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    policies = some_policies(model_dir, dtype="bfloat16")
    module = policies.bases[0].weights.sampling_module("a")
    assert not any(tensor.is_mkldnn for tensor in module.buffers())
    assert all(answers for answers in sample(policies))


@torch.no_grad()
def test_in_half_precision_a_policy_is_sampled_as_it_was_published(model_dir):
    policies = some_policies(model_dir, dtype="bfloat16")
    for seed, policy in enumerate(("a", "tester")):
        stir(policies, policy, seed=seed)
    weights, ids = policies.bases[0].weights, torch.tensor([[1, 2, 3, 4, 5]])

    def says(module):
        return module(ids).logits

    one, other = (weights.sampling_module(name) for name in ("a", "tester"))
    buffers = dict(other.named_buffers())
    supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert any(tensor.is_mkldnn for tensor in buffers.values()) == supported
    # Only in memory once.
    assert all(tensor is buffers[name] for name, tensor in one.named_buffers())
    published = {name: says(weights.sampling_module(name)) for name in ("a", "tester")}
    assert not torch.equal(*published.values())
    for name, logits in published.items():
        assert torch.equal(says(weights.module(name)), logits)
    for parameter in policies.parameters("a"):
        parameter.add_(0.1)
    assert torch.equal(says(weights.sampling_module("a")), published["a"])
    policies.publish("a")
    assert torch.equal(says(weights.sampling_module("a")), says(weights.module("a")))
    assert not torch.equal(says(weights.module("a")), published["a"])


def test_fresh_adapters_answer_as_the_base_and_do_not_depend_on_their_order(model_dir):
    one = load_policies(model_dir, {"coder": "a"}, lora_r=4, lora_alpha=8, seed=3)
    two = load_policies(model_dir, {"tester": "tester", "coder": "a"}, lora_r=4, seed=3)
    other = load_policies(model_dir, {"coder": "a"}, lora_r=4, seed=4)
    assert all(torch.equal(one.state("a")[key], two.state("a")[key]) for key in one.state("a"))
    assert any(
        not torch.equal(one.state("a")[key], other.state("a")[key]) for key in one.state("a")
    )
    assert any(not torch.equal(two.state("a")[k], two.state("tester")[k]) for k in two.state("a"))
    [replies] = one.sample(
        [Request("a", (5, 6, 7), 0)],
        3,
        max_new_tokens=5,
    )
    batch = one.microbatches(
        "a", [Sample(r.prompt_ids, r.token_ids, r.logprobs, 1.0) for r in replies], 99
    )[0]
    assert torch.equal(one.logprobs("a", batch)[0], one.reference_logprobs("a", batch))


def test_making_policies_leaves_the_global_generator_alone(model_dir):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    some_policies(model_dir)
    assert torch.equal(torch.get_rng_state(), before)


def test_plain_peft_loads_a_saved_adapter_bit_for_bit(model_dir, tmp_path):
    policies = some_policies(model_dir, merge=False)
    stir(policies, "a")
    stir(policies, "tester", seed=1)
    policies.save("a", tmp_path / "adapters" / "a")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "adapters/a").iterdir()} == {0o644}
    assert sorted(p.name for p in (tmp_path / "adapters" / "a").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, tmp_path / "adapters" / "a").eval()
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        expected = theirs(ids).logits
        assert torch.equal(policies.bases[0].weights.module("a")(ids).logits, expected)
    config = json.loads((tmp_path / "adapters" / "a" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(model_dir)
    assert config["target_modules"] == sorted(config["target_modules"])


def test_a_saved_policy_comes_back_bit_for_bit(policies, model_dir, tmp_path, request):
    kind = KINDS[request.node.callspec.params["policies"]]
    for policy in policies.names:
        stir(policies, policy, seed=len(policy))
        policies.save(policy, tmp_path / policy)
    # Rank and seed are those of the file, not of the call.
    changes = {} if kind.get("full") else {"lora_r": 2, "seed": 99}
    again = some_policies(model_dir, adapters=tmp_path, **{**kind, **changes})
    for policy in policies.names:
        one, two = policies.state(policy), again.state(policy)
        assert all(torch.equal(one[key], two[key]) for key in one)
    assert sample(policies, seed=4)[0][0].token_ids == sample(again, seed=4)[0][0].token_ids


def test_the_same_weights_give_the_same_bytes(policies, tmp_path):
    stir(policies, "a")
    policies.save("a", tmp_path / "one")
    policies.save("a", tmp_path / "two")
    policies.save("a", tmp_path / "two")  # over an older one
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir())
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_failed_save_leaves_the_old_one_whole(model_dir, tmp_path, monkeypatch):
    policies = some_policies(model_dir)
    policies.save("a", tmp_path / "a")
    before = (tmp_path / "a" / "adapter_model.safetensors").read_bytes()
    stir(policies, "a")

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pettingllms.policies.weights.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        policies.save("a", tmp_path / "a")
    assert (tmp_path / "a" / "adapter_model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_base_never_changes(model_dir):
    policies = some_policies(model_dir, dtype="float32")
    expected = load_file(model_dir / "model.safetensors")
    for seed in range(20):
        stir(policies, "a", scale=1.0, seed=seed)
    held = {
        name.replace(".base_layer", ""): tensor
        for name, tensor in policies.bases[0].weights.module("a").state_dict().items()
        if ".lora_" not in name
    }
    assert expected.keys() <= held.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, held[name])


def test_a_state_is_restored_in_place_with_its_version(policies):
    stir(policies, "a")
    state = policies.state("a")
    kept = [id(parameter) for parameter in policies.parameters("a")]
    before = sample(policies, seed=8)
    stir(policies, "a", seed=1)
    policies.load_state("a", state, version=1)
    assert policies.versions == {"a": 1, "tester": 0}
    assert [id(parameter) for parameter in policies.parameters("a")] == kept
    assert sample(policies, seed=8) == before


def test_a_copied_state_does_not_follow_the_weights(policies):
    state = policies.state("a")
    copied = {name: tensor.clone() for name, tensor in state.items()}
    stir(policies, "a")
    assert all(torch.equal(state[name], copied[name]) for name in state)


def test_weights_of_another_rank_are_refused_whole(model_dir, tmp_path):
    small, large = some_policies(model_dir), some_policies(model_dir, lora_r=8)
    large.save("a", tmp_path)
    before = small.state("a")
    with pytest.raises(ConfigError, match="do not fit policy 'a': 28 tensors differ"):
        small.load("a", tmp_path)
    assert all(torch.equal(before[name], small.state("a")[name]) for name in before)


def test_an_adapter_of_another_base_is_refused_with_both_names(model_dir, tmp_path):
    other = save_tiny(tmp_path / "other", seed=9)
    some_policies(other).save("a", tmp_path / "a")
    with pytest.raises(ConfigError, match="was trained on the base model") as caught:
        some_policies(model_dir).load("a", tmp_path / "a")
    assert str(other) in str(caught.value)
    assert str(model_dir) in str(caught.value)


@pytest.mark.slow
def test_a_moved_base_is_still_the_same_base(model_dir, tmp_path):
    some_policies(save_tiny(tmp_path / "moved")).save("a", tmp_path / "a")
    some_policies(model_dir).load("a", tmp_path / "a")


def test_an_adapter_written_by_peft_is_checked_by_name(model_dir, tmp_path):
    policies = some_policies(model_dir)
    policies.bases[0].weights._peft.save_pretrained(tmp_path)
    policies.load("a", tmp_path / "policy_a")
    config = json.loads((tmp_path / "policy_a" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "someone/else"
    (tmp_path / "policy_a" / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="'someone/else', not on"):
        policies.load("a", tmp_path / "policy_a")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "float31"}, "unknown dtype 'float31'; did you mean 'float32'"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"lora_r": 0}, "lora_r must be at least 1, got 0"),
        ({"lora_target_modules": ["nothing"]}, "no adapters can be made .*nothing"),
        ({"lora_target_modules": []}, "lora_target_modules is empty"),
        ({"lora_target_modules": ["embed_tokens"]}, r"\.embed_tokens is of type Embedding"),
    ],
)
def test_a_wrong_option_says_what_to_do(tmp_path, changes, words):
    model_dir = save_tiny(tmp_path, config=tiny_config(tie_word_embeddings=False))
    with pytest.raises(ConfigError, match=words):
        some_policies(model_dir, **changes)


def test_a_missing_model_or_adapter_is_named(model_dir, tmp_path):
    with pytest.raises(ConfigError, match=r"model .*nowhere.* cannot be loaded"):
        load_policies(tmp_path / "nowhere", ROLES)
    some_policies(model_dir).save("a", tmp_path / "a")
    with pytest.raises(ConfigError, match="holds no folder for 'tester'; it has a"):
        some_policies(model_dir, adapters=tmp_path)
    (tmp_path / "tester").mkdir()
    with pytest.raises(ConfigError, match=r"no adapter in .*tester"):
        some_policies(model_dir, adapters=tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0; use greedy"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, got 1.5"),
    ],
)
def test_a_sampling_setting_out_of_range_is_refused(model_dir, settings, words):
    with pytest.raises(ConfigError, match=words):
        sample(some_policies(model_dir), **settings)


def test_unknown_roles_and_policies_are_refused_with_the_closest_name(model_dir):
    policies = some_policies(model_dir)
    with pytest.raises(UnknownNameError, match="did you mean 'tester'"):
        policies.policy_for("teser")
    with pytest.raises(UnknownNameError, match="did you mean 'tester'"):
        policies.parameters("testr")
    with pytest.raises(ConfigError, match="prompt without tokens"):
        policies.sample([Request("a", (), 0)], 1, max_new_tokens=1)


def test_full_models_keep_no_reference_unless_asked(model_dir):
    policies = some_policies(model_dir, full=True)
    batch = policies.microbatches("a", [Sample((1, 2), (3,), (0.0,), 1.0)], 10)[0]
    with pytest.raises(ConfigError, match="reference=True"):
        policies.reference_logprobs("a", batch)


def test_full_models_train_in_float32_and_sample_in_the_lower_precision(model_dir):
    policies = some_policies(model_dir, full=True, dtype="bfloat16")
    assert {p.dtype for p in policies.parameters("a")} == {torch.float32}
    stir(policies, "a", scale=0.01)
    replies = sample(policies)
    batch = policies.microbatches("a", samples_of(replies, policies, "a"), 1000)[0]
    logprobs, _ = policies.logprobs("a", batch)
    torch.testing.assert_close(logprobs, batch.old_logprobs_BT, atol=0.3, rtol=0)
    logprobs.sum().backward()
    assert {p.grad.dtype for p in policies.parameters("a") if p.grad is not None} == {torch.float32}


def test_adapters_stay_in_float32_on_a_lower_precision_base(model_dir):
    policies = some_policies(model_dir, dtype="bfloat16")
    assert {p.dtype for p in policies.parameters("a")} == {torch.float32}
    stir(policies, "a", scale=0.01)
    batch = policies.microbatches("a", samples_of(sample(policies), policies, "a"), 1000)[0]
    logprobs, _ = policies.logprobs("a", batch)
    torch.testing.assert_close(logprobs, batch.old_logprobs_BT, atol=0.3, rtol=0)


def test_gradient_checkpointing_trains_and_samples(model_dir):
    plain, saving = some_policies(model_dir), some_policies(model_dir, gradient_checkpointing=True)
    grads = []
    for policies in (plain, saving):
        stir(policies, "a")
        batch = policies.microbatches("a", samples_of(sample(policies), policies, "a"), 1000)[0]
        policies.logprobs("a", batch)[0].sum().backward()
        grads.append([p.grad for p in policies.parameters("a")])
        sample(policies)
    # What is computed again is computed by modules, which round in another order.
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


def test_an_untied_model_with_its_own_settings_works_as_well(tmp_path):
    config = tiny_config(tie_word_embeddings=False, num_key_value_heads=1)
    model_dir = save_tiny(tmp_path, config=config)
    policies = some_policies(model_dir, chat_template_kwargs={"shout": True})
    text = policies.chat.tokenizer.decode(policies.prompt_ids("coder", "hey"))
    assert "hey!<|end|>" in text
    stir(policies, "a")
    batch = policies.microbatches("a", samples_of(sample(policies), policies, "a"), 1000)[0]
    torch.testing.assert_close(
        policies.logprobs("a", batch)[0], batch.old_logprobs_BT, atol=2e-5, rtol=0
    )


def test_an_engine_of_another_package_samples_until_it_is_closed(model_dir):
    settings = SamplerSettings("tests.own_engine:open_engine")
    policies = some_policies(model_dir, lora_r=2, sampler=settings)
    engine = policies.bases[0].engine
    assert engine.versions == policies.versions == {"a": 0, "tester": 0}
    stir(policies, "a")
    assert engine.versions == policies.versions == {"a": 1, "tester": 0}
    for request, replies in zip(requests_for(policies), sample(policies, n=2), strict=True):
        assert [reply.token_ids for reply in replies] == [request.prompt_ids[:10]] * 2
    policies.close()
    assert engine.closed
    stir(policies, "a")
    with pytest.raises(SamplerUnavailable, match="have been closed"):
        sample(policies)
    with pytest.raises(UnknownNameError, match="unknown sampler 'transformer'; did you mean"):
        some_policies(model_dir, sampler=SamplerSettings("transformer"))
