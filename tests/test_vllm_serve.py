"""A trained team on vLLM's own server, asked by OpenAI's client; and a training run through one."""

from __future__ import annotations

import pytest
import torch

from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.run import run_evaluation
from pettingllms.policies.loading import load_policies
from pettingllms.samplers.vllm_process import ServerError, VllmEndpoint
from pettingllms.types import Request
from tests.served import serving, trained

openai = pytest.importorskip("openai")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
torch.set_num_threads(1)
ROLES = {"writer": "writer", "reader": "reader"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("served"), "tests.asked_env:env")


@pytest.fixture(scope="module")
def server(run):
    """One for both tests: its processes start for most of a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TORCHDYNAMO_DISABLE")  # as users have it
        options = ("--vllm.kv_cache_memory_bytes", str(1 << 28))
        with serving(run, *options, seconds=60.0) as served:
            yield served


def test_each_role_answers_with_its_own_adapter_and_the_base_not_at_all(run, server):
    policies = load_policies(run.parent / "model", ROLES, adapters=run / "adapters")
    base, key = server
    with openai.OpenAI(base_url=base, api_key=key, max_retries=0) as client:
        listed = [model.id for model in client.models.list()]
        # And not the bare base, which is not served.
        assert listed == [*ROLES, "team"]
        for role, policy in ROLES.items():
            answer = client.completions.create(
                model=role,
                prompt=[5, 6, 7],
                max_tokens=6,
                temperature=0.0,
                logprobs=0,
                extra_body={"return_token_ids": True},
            )
            expected, other = (greedy(policies, name) for name in (policy, *_without(policy)))
            assert tuple(answer.choices[0].token_ids) == expected
            assert expected != other
        chat = client.chat.completions.create(
            model="writer", messages=[{"role": "user", "content": "hello"}], max_tokens=4
        )
        asked = policies.prompt_ids("writer", "writer_0: hello")
        assert chat.usage.prompt_tokens == len(asked)
        chunks = client.chat.completions.create(
            model="writer",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=4,
            stream=True,
        )
        assert sum(1 for _ in chunks) > 1
        team = client.chat.completions.create(
            model="team", messages=[{"role": "user", "content": "hello"}], max_tokens=4
        )
        assert [turn["agent"] for turn in team.turns] == ["writer_0", "reader_0"] * 4
        assert team.choices[0].message.content == team.turns[-1]["text"][:8]
        assert team.usage.completion_tokens == sum(turn["tokens"] for turn in team.turns)
        *parts, last = client.chat.completions.create(
            model="team",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=12,
            stream=True,
        )
        told, longest = dict[tuple[str, int], list[str]](), 0
        for chunk in parts[1:]:
            if turn := getattr(chunk, "turn", None):
                piece = chunk.choices[0].delta.reasoning_content
                told.setdefault((turn["agent"], turn["turn"]), []).append(piece)
        for turn in last.turns:
            heading, *pieces = told.pop((turn["agent"], turn["turn"]))
            assert heading.strip() == f"{turn['agent']}, turn {turn['turn']}:"
            assert "".join(pieces) == turn["text"]
            longest = max(longest, len(pieces))
        assert not told
        assert longest > 3  # token by token, as they come
        for wrong in ("base", "nobody"):
            with pytest.raises(openai.NotFoundError):
                client.completions.create(model=wrong, prompt="x")
    with pytest.raises(ServerError, match="401"):
        VllmEndpoint(base.removesuffix("/v1"), "no").get("/v1/models", 30)
    assert "Initializing a V1 LLM engine" in (run / "serve.log").read_text()


def test_a_partner_behind_vllm_answers_as_the_policy_itself(run, server, tmp_path):
    common = {"limit": 3, "max_completion_length": 10, "greedy": True}
    here = run_evaluation(EvalConfig.of(adapters=str(run), base=False, **common))
    base, key = server
    (tmp_path / "key").write_text(key)
    there = run_evaluation(
        EvalConfig.of(
            env="tests.asked_env:env",
            policies="writer=api:writer,reader=api:reader",
            api_base=base,
            api_key_file=str(tmp_path / "key"),
            api_args='{"role_prompt": false}',
            **common,
        )
    )
    texts = [
        [[group.chosen.completion.text for group in trajectory.groups] for trajectory in episodes]
        for episodes in (there.episodes["api"], here.episodes["adapters"])
    ]
    # Batches of other shapes round differently, and a later prompt follows an earlier answer.
    assert [turns[0] for turns in texts[0]] == [turns[0] for turns in texts[1]]


def greedy(policies, policy):
    [[reply]] = policies.sample(
        [Request(policy, (5, 6, 7), 0)],
        1,
        max_new_tokens=6,
        greedy=True,
    )
    return reply.token_ids


def _without(policy):
    return [name for name in ROLES.values() if name != policy]
