"""A team of several base models: each policy has its own tokenizer, weights, sampler and update."""

from __future__ import annotations

import dataclasses
import filecmp
import itertools
import json
import multiprocessing
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import pettingllms as pl
from pettingllms.assembly import build_policies, make_env, plan_run
from pettingllms.cli.estimate import dry_run
from pettingllms.cli.evaluate import parse as parse_eval
from pettingllms.cli.view import main as view
from pettingllms.contrib.sharing.writing import share
from pettingllms.errors import ConfigError
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.run import run_evaluation
from pettingllms.models import EMBEDDED
from pettingllms.policies.policy_set import Base, PolicySet
from pettingllms.runs import read_config
from pettingllms.samplers.vllm_process import ServerError, VllmEndpoint
from pettingllms.serving.role_server import RoleServer
from pettingllms.session import run_training as train
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.callbacks import Silent
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.losses import PolicyBatch
from pettingllms.trainers.settings import own_settings
from pettingllms.types import Request, Sample
from tests.served import running
from tests.tiny_lm import SHORT_RUN, save_tiny, save_tiny_llama

torch.set_num_threads(1)
ROLES = ("writer", "reader", "judge")
TEAM = {role: role for role in ROLES}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Policy -> the folder of its base model."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "writer": save_tiny(folder / "qwen"),
        "reader": save_tiny_llama(folder / "llama"),
        "judge": EMBEDDED,
    }


def settings(models: dict[str, Path], **changes: Any) -> ATGRPOConfig:
    values: dict[str, Any] = {
        "env": "tests.trio_env:env",
        "env_args": {"max_turns": 1},
        "model": str(models["writer"]),
        "policy_settings": {
            "reader": {"model": str(models["reader"]), "full": True, "learning_rate": 1e-3},
            "judge": {"model": str(models["judge"]), "lora_r": 2},
        },
        **SHORT_RUN,
    }
    return ATGRPOConfig(**{**values, **changes})


@pytest.fixture(scope="module")
def run(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert train(settings(models, output_dir=str(folder))).finished
    return folder


def sampled(policies: PolicySet, policy: str) -> list[Sample]:
    requests = [
        Request(policy, policies.prompt_ids(policy, text), seed)
        for seed, text in enumerate(("say a word", "say another word"))
    ]
    return [
        Sample(one.prompt_ids, one.token_ids, one.logprobs, (-1.0) ** k)
        for replies in policies.sample(requests, 3, max_new_tokens=8)
        for k, one in enumerate(replies)
    ]


def plain_model(run: Path, policy: str, models: dict[str, Path]) -> Any:
    """The trained policy as transformers and PEFT load it, without this package."""
    folder = run / "adapters" / policy
    if policy == "reader":
        return AutoModelForCausalLM.from_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(models[policy], dtype=torch.float32)
    return PeftModel.from_pretrained(base, str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ROLES)
def test_sampler_trainer_and_plain_forward_agree_on_every_base(
    run: Path, models: dict[str, Path], policy: str
) -> None:
    config = resolve(read_config(run))
    config.adapters = str(run / "adapters")
    policies = build_policies(config, TEAM)
    tokenizer = AutoTokenizer.from_pretrained(models[policy])
    turn = [{"role": "user", "content": "say a word"}]
    ids: Any = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
    samples = sampled(policies, policy)
    assert samples[0].prompt_ids == tuple(ids)
    model = plain_model(run, policy, models)
    for batch in policies.microbatches(policy, samples, 64):
        logp_BT, _ = policies.logprobs(policy, batch)
        torch.testing.assert_close(logp_BT, batch.old_logprobs_BT, atol=2e-5, rtol=0)
        for row, sample in zip(logp_BT, batch.samples, strict=True):
            text = torch.tensor([[*sample.prompt_ids, *sample.token_ids]])
            with torch.no_grad():
                table = model(text).logits[0].log_softmax(-1)[len(sample.prompt_ids) - 1 : -1]
            plain = table.gather(-1, torch.tensor(sample.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(row[: len(plain)], plain, atol=2e-5, rtol=0)


@pytest.mark.parametrize("policy", ROLES)
def test_an_update_changes_the_weights_of_its_policy_and_no_others(
    models: dict[str, Path], policy: str
) -> None:
    config = resolve(settings(models))
    policies = build_policies(config, TEAM)
    trainer = ATGRPO(config, make_env(config, "train"), policies)
    before = {name: policies.state(name) for name in ROLES}
    frozen = [
        {key: tensor.clone() for key, tensor in base.weights.module(name).state_dict().items()}
        for base in policies.bases
        for name in list(base.chats)[:1]
        if name != policy
    ]
    trainer.update({policy: PolicyBatch.of(sampled(policies, policy))})
    trainer.publish()
    for name in ROLES:
        after = policies.state(name)
        changed = [
            key for key, tensor in before[name].items() if not torch.equal(tensor, after[key])
        ]
        assert bool(changed) == (name == policy)
    bases = [base for base in policies.bases if policy not in base.chats]
    for base, state in zip(bases, frozen, strict=True):
        now = base.weights.module(next(iter(base.chats))).state_dict()
        assert all(torch.equal(tensor, now[key]) for key, tensor in state.items())


def test_the_policies_of_a_model_share_it_and_others_do_not(models: dict[str, Path]) -> None:
    overrides = {"reader": {"lora_r": 2}, "judge": {"model": str(models["reader"])}}
    policies = build_policies(resolve(settings(models, policy_settings=overrides)), TEAM)
    assert [list(base.chats) for base in policies.bases] == [["writer", "reader"], ["judge"]]
    assert policies.digests["writer"] == policies.digests["reader"] != policies.digests["judge"]
    [writer, reader] = (policies.state(name) for name in ("writer", "reader"))
    ranks = [
        {tensor.shape[0] for n, tensor in s.items() if "lora_A" in n} for s in (writer, reader)
    ]
    assert ranks == [{4}, {2}]
    assert policies.contexts == {"writer": 1024, "reader": 1024, "judge": 640}


class KillAfterStep2(Silent):
    def step(self, step: int, total: int, row: Any) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_killed_and_resumed_run_equals_an_undisturbed_one(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    config = dataclasses.replace(read_config(run), output_dir=str(other))
    killed = multiprocessing.get_context("fork").Process(
        target=train, args=(config,), kwargs={"display": KillAfterStep2()}
    )
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert [path.name for path in (other / "checkpoints").iterdir()] == ["step-000001"]
    assert train(resume=other).finished
    files = [path.relative_to(run) for path in (run / "adapters").rglob("*.*")]
    assert {path.parts[1] for path in files} == set(ROLES)
    for path in [*files, Path("trajectories.jsonl"), Path("summary.json")]:
        assert filecmp.cmp(run / path, other / path, shallow=False), path


@pytest.mark.slow
def test_a_run_names_the_base_of_every_policy(run: Path, models: dict[str, Path]) -> None:
    [start] = json.loads((run / "run.json").read_text())
    for policy, model in models.items():
        weights = "full model" if policy == "reader" else "adapter"
        assert start["policies"][policy].startswith(f"{weights} on {model}, digest ")
    assert len({description.rpartition(" ")[2] for description in start["policies"].values()}) == 3


@pytest.mark.slow
def test_a_run_is_evaluated_and_swapped_from_its_folder_alone(
    run: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    """A role that another policy answers for is asked in that policy's own tokens."""
    result = run_evaluation(
        EvalConfig.of(adapters=str(run), swap="writer=reader", limit=3, out=str(tmp_path / "out"))
    )
    assert list(result.teams) == ["base", "adapters", "swapped"]
    texts = {name: AutoTokenizer.from_pretrained(model) for name, model in models.items()}
    for team in result.teams:
        for episode in result.episodes[team]:
            assert [group.key.agent for group in episode.groups] == [f"{role}_0" for role in ROLES]
            for group in episode.groups:
                spoken = texts[group.policy].decode(list(group.prompt_ids))
                assert f"{group.key.agent}: " in spoken
    swapped = [group.policy for group in result.episodes["swapped"][0].groups]
    assert swapped == ["reader", "writer", "judge"]
    again = run_evaluation(EvalConfig.of(adapters=str(run), base=False, limit=3))
    assert again.episodes["adapters"] == result.episodes["adapters"]


@pytest.mark.slow
def test_a_dry_run_counts_every_base_and_what_its_policies_train(models: dict[str, Path]) -> None:
    text = dry_run(settings(models))
    sizes = {name: f"{model}: {name}" for name, model in models.items() if name != "judge"}
    places = [text.index(line) for line in (*sizes.values(), "embedded model: judge")]
    parts = [text[start:end] for start, end in itertools.pairwise([*places, len(text)])]
    assert "1 adapters, gradients, AdamW" in parts[0]
    assert "1 full models" in parts[1]
    assert "1 adapters, gradients, AdamW" in parts[2]
    one = dry_run(settings(models, policy_settings=None))
    peaks = [float(re.findall(r"([\d.]+) MiB  at the full", report)[0]) for report in (one, text)]
    assert peaks[1] > peaks[0] + 4 * 1.3  # the embedded model has 1.3 million parameters
    assert "judge" not in one.partition("# Memory")[2].partition("# Prompts")[0]


@pytest.mark.slow
def test_the_trainer_takes_a_loaded_team_and_settings_that_name_its_models(
    models: dict[str, Path], tmp_path: Path
) -> None:
    arguments = settings(models, max_steps=1, output_dir=str(tmp_path / "run"))
    policies = build_policies(resolve(arguments), TEAM)
    with pytest.raises(
        ConfigError, match=r"'reader' is on the model .*llama.* policy_settings with"
    ):
        pl.ATGRPOTrainer(args=dataclasses.replace(arguments, policy_settings={}), policies=policies)
    trainer = pl.ATGRPOTrainer(args=arguments, policies=policies)
    assert trainer.train().finished
    trainer.save_model(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved" / "reader").state_dict()
    assert all(torch.equal(tensor, loaded[key]) for key, tensor in policies.state("reader").items())


@pytest.mark.slow
def test_a_served_role_is_asked_in_the_tokens_of_its_own_model(
    run: Path, models: dict[str, Path]
) -> None:
    config = resolve(read_config(run))
    config.adapters = str(run / "adapters")
    policies = build_policies(config, TEAM)
    content = "say a word"
    with running(RoleServer(policies, 6), "key") as url:
        server = VllmEndpoint(url, "key")
        for role, model in models.items():
            tokenizer = AutoTokenizer.from_pretrained(model)
            turn = [{"role": "user", "content": content}]
            ids: Any = tokenizer.apply_chat_template(
                turn, add_generation_prompt=True, return_dict=False
            )
            body = {"model": role, "messages": turn, "temperature": 0}
            answer = server.post("/v1/chat/completions", body, 30)
            [[expected]] = policies.sample(
                [Request(role, tuple(ids), 0)], 1, max_new_tokens=6, greedy=True
            )
            assert answer["choices"][0]["message"]["content"] == expected.text
            assert answer["usage"]["prompt_tokens"] == len(ids)
            counted = server.post("/tokenize", {"model": role, "prompt": content}, 30)
            assert counted["tokens"] == tokenizer.encode(content, add_special_tokens=False)
        with pytest.raises(ServerError, match="name one as model: writer, reader, judge"):
            server.post("/tokenize", {"prompt": content}, 30)


@pytest.mark.slow
def test_shared_adapters_name_each_its_own_base_and_full_models_are_refused(
    run: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="policies of this run are full models; upload"):
        share(run, str(tmp_path / "shared"))
    overrides = {
        "reader": {"model": str(models["reader"])},
        "judge": {"model": str(models["judge"])},
    }
    few = {"max_steps": 1, "eval_tasks": 1, "output_dir": str(tmp_path / "run")}
    train(settings(models, policy_settings=overrides, **few))
    share(tmp_path / "run", str(tmp_path / "shared"))
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "- `writer/` on `qwen`" in card
    assert "- `reader/` on `llama`" in card
    assert str(models["writer"].parent) not in card
    for policy, base in (("writer", "qwen"), ("reader", "llama")):
        config = json.loads((tmp_path / "shared" / policy / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == base
    words = [
        *[
            "--env",
            "tests.trio_env:env",
            "--env-args.max_turns",
            "1",
            "--limit",
            "1",
            "--device",
            "cpu",
        ],
        *["--model", str(models["writer"]), "--policy-settings", json.dumps(overrides)],
        *["--max-completion-length", "6", "--adapters", str(tmp_path / "shared")],
    ]
    result = run_evaluation(parse_eval(words).options)
    mine = run_evaluation(EvalConfig.of(adapters=str(tmp_path / "run"), limit=1))
    assert result.episodes["adapters"] == mine.episodes["adapters"]


def test_a_policy_with_a_model_of_its_own_has_what_follows_from_it(models: dict[str, Path]) -> None:
    overrides = {
        "reader": {"model": str(models["reader"]), "full": True},
        "judge": {"model": str(models["judge"]), "warmup_steps": 7},
    }
    planned = plan_run(
        settings(models, policy_settings=overrides, learning_rate=None, warmup_steps=None)
    )
    rates = {name: own_settings(planned.config, name).learning_rate for name in ROLES}
    assert rates == {"writer": 1e-4, "reader": 5e-6, "judge": 5e-3}
    judge = own_settings(planned.config, "judge")
    assert (judge.warmup_steps, judge.tokens_per_batch, judge.lora_r) == (7, 1024, 4)
    assert resolve(planned.config) == planned.config


@pytest.mark.slow
def test_a_partner_of_another_model_plays_and_stays_as_it_is(
    models: dict[str, Path], tmp_path: Path
) -> None:
    overrides = {
        "judge": {"model": str(models["judge"])},
        "reader": {"model": str(models["reader"])},
    }
    few = {
        "policy_settings": overrides,
        "max_steps": 1,
        "learning_rate": None,
        "train_roles": "writer",
    }
    train(settings(models, output_dir=str(tmp_path / "run"), **few))
    for policy in ("reader", "judge"):
        file = tmp_path / "run" / "adapters" / policy / "adapter_model.safetensors"
        assert not any(tensor.any() for name, tensor in load_file(file).items() if "lora_B" in name)


@pytest.mark.parametrize("policy", ROLES)
def test_the_reference_of_a_policy_is_its_own_base(models: dict[str, Path], policy: str) -> None:
    policies = build_policies(resolve(settings(models, beta=0.1)), TEAM)
    [batch] = policies.microbatches(policy, sampled(policies, policy), 4096)
    reference = policies.reference_logprobs(policy, batch)
    torch.testing.assert_close(reference, batch.old_logprobs_BT, atol=2e-5, rtol=0)
    for parameter in policies.parameters(policy):
        parameter.data.add_(0.01)
    policies.publish(policy)
    assert torch.equal(policies.reference_logprobs(policy, batch), reference)
    assert not torch.allclose(policies.logprobs(policy, batch)[0], reference, atol=1e-3)


def test_a_run_is_exported_for_the_viewer(run: Path, tmp_path: Path) -> None:
    assert view([str(run), "--export", str(tmp_path / "run.html")]) == 0
    assert (tmp_path / "run.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy_settings": {"judge": {"device": "cpu"}}}, "device cannot differ .* model, "),
        ({"policy_settings": {"judge": {"model": "/nowhere"}}}, "no folder /nowhere"),
        (
            {"policy_settings": {"judge": {"full": True, "load_in_4bit": True}}},
            "of judge: load_in_4bit is for adapters",
        ),
        ({"method": "gae"}, "full policies do not keep .reader.; leave out full"),
        (
            {"policy_settings": {"judge": {"beta": 0.1}}, "train_roles": "writer"},
            "beta is of the update, and judge is not trained",
        ),
    ],
)
def test_what_a_team_of_several_bases_cannot_have_is_refused(
    models: dict[str, Path], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_run(settings(models, **changes))


@pytest.mark.slow
def test_every_base_model_has_a_critic_of_its_own(models: dict[str, Path]) -> None:
    overrides = {
        "reader": {"model": str(models["reader"])},
        "judge": {"model": str(models["judge"])},
    }
    config = resolve(settings(models, method="gae", num_generations=1, policy_settings=overrides))
    policies = build_policies(config, TEAM)
    trainer, twin = (ATGRPO(config, make_env(config, "train"), policies) for _ in range(2))
    trainer.take_step()
    learned = trainer.method.state_dict()
    widths = [policies.sampling_model(role).config.hidden_size for role, _ in bases_of(policies)]
    assert {name: critic["size"] for name, critic in learned.items()} == {
        str(place): width for place, width in enumerate(widths)
    }
    twin.method.load_state_dict(learned)
    for name, twin_critic in twin.method.state_dict().items():
        for key, tensor in twin_critic["network"].items():
            assert torch.equal(tensor, learned[name]["network"][key])


def bases_of(policies: PolicySet) -> list[tuple[str, Base]]:
    """The base models in the team's order, each with one of its policies."""
    return [(next(iter(base.chats)), base) for base in policies.bases]
