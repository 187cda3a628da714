"""Conversations that the sampler remembers: what is computed, what is kept, and whose it is."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pettingllms.models.shared_prompts import ContinuedLayout, forward
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.prefix_trial import share_prompts
from pettingllms.rollout.engine import RolloutEngine, _Cohort
from pettingllms.rollout.episode import Episode
from pettingllms.rollout.shapes import Tree
from pettingllms.samplers import transformers
from pettingllms.samplers.base import Memory, SamplingParams
from pettingllms.samplers.transformers import BatchGenerator
from pettingllms.session import run_training as train
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.types import Completion, Request, Task
from tests.listening_program import chat_env
from tests.tiny_lm import save_tiny, tiny_model

torch.set_num_threads(1)
ROLES = {"writer": "a", "reader": "b"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def policies(folder: Path) -> PolicySet:
    return load_policies(folder, ROLES, lora_r=4)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each forward pass."""
    tokens = list[int]()

    def counting(model: Any, layout: Any, ids: Any, positions: Any, keep: Any) -> Any:
        tokens.append(ids.numel())
        return forward(model, layout, ids, positions, keep)

    monkeypatch.setattr(transformers, "forward", counting)
    return tokens


MODEL = tiny_model(seed=1)
assert share_prompts(MODEL)
TEXTS = st.lists(st.integers(5, 250), min_size=1, max_size=30).map(tuple)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(TEXTS, min_size=3, max_size=3), min_size=1, max_size=3),
    st.sampled_from([1, 4]),
    st.booleans(),
)
def test_replies_of_a_remembered_conversation_are_those_of_one_computed_anew(
    conversations: list[list[tuple[int, ...]]], n: int, greedy: bool
) -> None:
    generator, params = BatchGenerator((3, 4), 0), SamplingParams(6, greedy=greedy)
    memories = [Memory() for _ in conversations]
    prompts: list[tuple[int, ...]] = [() for _ in conversations]
    for turn in range(3):
        prompts = [prompt + new[turn] for prompt, new in zip(prompts, conversations, strict=True)]
        remembered: dict[tuple[int, ...], list[Memory]] = {}
        for prompt, memory in zip(prompts, memories, strict=True):
            remembered.setdefault(prompt, []).append(memory)
        seeds = [1000 * turn + k for k in range(len(prompts))]
        anew = generator.generate(MODEL, prompts, n, params, seeds)
        kept = generator.generate(MODEL, prompts, n, params, seeds, remembered)
        for one, other in zip(chain(*anew), chain(*kept), strict=True):
            assert one.token_ids == other.token_ids
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)
        # As in a tree, the conversation goes on from the last of its replies.
        prompts = [p + replies[-1].token_ids for p, replies in zip(prompts, kept, strict=True)]


def asked(policies: PolicySet, policy: str, ids: Sequence[int], memory: Memory) -> Completion:
    [[completion]] = policies.sample([Request(policy, tuple(ids), 7, memory)], 1, max_new_tokens=4)
    return completion


def test_a_prompt_is_computed_from_where_it_parts_from_the_one_before(
    policies: PolicySet, computed: list[int]
) -> None:
    memory, ids = Memory(), list(range(5, 55))
    for more, expected in (0, 50), (10, 10), (1, 1), (0, 61), (5, 5):
        computed.clear()
        ids += range(100, 100 + more)
        asked(policies, "a", ids, memory)
        assert computed[0] == expected
    computed.clear()
    asked(policies, "a", [*ids[:-1], 9, 9, 9], memory)
    assert computed[0] == 68, "the text before has been rewritten"


@pytest.mark.parametrize("change", ["version", "policy"])
def test_what_other_weights_computed_is_never_used(
    policies: PolicySet, computed: list[int], change: str
) -> None:
    memory, ids = Memory(), tuple(range(5, 55))
    asked(policies, "a", ids, memory)
    with torch.no_grad():
        for name in "ab":
            for parameter in policies.parameters(name):
                parameter.add_(0.05)
    policies.publish("a", version=1)
    policies.publish("b", version=0)
    name = "a" if change == "version" else "b"
    computed.clear()
    assert asked(policies, name, (*ids, 9), memory) == asked(policies, name, (*ids, 9), Memory())
    assert [count for count in computed if count > 1] == [51, 51]


class Watched:
    """Passes on to policies, and notes what is remembered after each batch."""

    def __init__(self, policies: PolicySet) -> None:
        self._policies = policies
        self.seen = weakref.WeakSet[Memory]()
        self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policies, name)

    def sample(self, requests: Sequence[Request], n: int, **options: Any) -> Any:
        completions = self._policies.sample(requests, n, **options)
        self.seen.update(request.memory for request in requests if request.memory)
        kept = {id(memory.states): len(memory.prompt_ids) for memory in self.seen if memory.states}
        self.most = max(self.most, sum(kept.values()))
        return completions


def rolled_out(sampler: Any, room: int, tasks: int = 4) -> Any:
    with ThreadPoolExecutor(2) as pool:
        engine = RolloutEngine(
            chat_env(),
            sampler,
            pool,
            shape=Tree(width=2),
            settings={"max_new_tokens": 8},
            seed=(0,),
            room=room,
        )
        return engine.run([Task(f"chat:{seed}", seed) for seed in range(tasks)])


@pytest.mark.slow
def test_no_more_is_remembered_than_there_is_room_for(folder: Path) -> None:
    policies = load_policies(folder, {"writer": "a"}, lora_r=4)
    bounds = {room: Watched(policies) for room in (0, 150, 10_000)}
    records = {room: rolled_out(sampler, room) for room, sampler in bounds.items()}
    assert bounds[0].most == 0
    assert 0 < bounds[150].most <= 150
    assert bounds[10_000].most > 150
    texts = [
        [
            c.completion.token_ids
            for trajectory in trajectories
            for group in trajectory.groups
            for c in group.candidates
        ]
        for trajectories in records.values()
    ]
    assert texts[0] == texts[1] == texts[2]


def test_every_episode_and_copy_has_a_memory_of_its_own_and_finished_ones_are_freed() -> None:
    one, other = (Episode(chat_env(), Task(f"chat:{n}", n), 0) for n in range(2))
    assert one.memories["writer"] is not other.memories["writer"]
    one.memories["writer"].keep((5, 6), {})
    copied = one.without()
    copied.memories["writer"].keep((5, 6, 7), {})
    assert one.memories["writer"].prompt_ids == (5, 6)
    assert other.memories["writer"].prompt_ids == ()
    one.end_overlong(3, 2)
    cohort = _Cohort([one, other])
    cohort.make_room(10)
    assert not one.memories
    assert other.memories


@pytest.mark.slow
def test_a_run_of_a_conversation_that_is_resumed_has_the_bytes_of_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = list[object]()

    def noting(*layout: Any) -> ContinuedLayout:
        used.append(layout)
        return ContinuedLayout(*layout)

    monkeypatch.setattr(transformers, "ContinuedLayout", noting)
    digests = list[bytes]()
    for cut in False, True:
        run = tmp_path / str(cut)
        checkpoint = run / "checkpoints" / "step-000001"
        config = ATGRPOConfig(
            env="tests.listening_program:chat_env",
            model="embedded:parts",
            policies="shared",
            method="look_ahead",
            max_steps=3,
            tasks_per_step=1,
            num_generations=2,
            max_completion_length=8,
            eval_steps=0,
            eval_tasks=0,
            save_steps=1,
            output_dir=str(run),
        )
        if cut:
            assert not train(config, stop=checkpoint.is_dir).finished
        assert train(resume=run).finished if cut else train(config).finished
        [file] = run.glob("adapters/*/adapter_model.safetensors")
        digests.append(hashlib.sha256(file.read_bytes()).digest())
    assert len(used) > 6, "conversations were to be remembered"
    assert digests[0] == digests[1]
