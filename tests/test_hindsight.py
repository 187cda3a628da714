"""`hindsight`: a reply is worth what knowing the solution adds to its likelihood, and no agent is shown that."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from pettingzoo.utils.wrappers import BaseWrapper
from transformers import AutoModelForCausalLM

from benchmarks import hindsight_training, reading, sweet
from benchmarks.cells import Cell
from pettingllms.assembly import plan_run
from pettingllms.envs import ENVIRONMENTS, make
from pettingllms.envs.base import TextEnv, next_agent
from pettingllms.envs.check import view
from pettingllms.errors import ConfigError
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.types import Conversation, Group, Sample, Task
from tests import letters_env
from tests.test_checkpoints import CONFIG as SMALL
from tests.test_checkpoints import assert_same, resume_twin, weights
from tests.test_estimators_golden import cases, decision, made
from tests.tiny_lm import save_tiny

torch.set_num_threads(1)
SECRET = "zebra umbrella"
"""Words that nothing else says."""


class Told(letters_env.raw_env):
    """Letters, of which only the writer has something to learn."""

    def _privileged(self, state: tuple[str, ...], agent: str) -> str:
        return f"{SECRET} {state[0]}" if agent == "writer_0" else ""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


def trainer_of(model: Path, weight: float = 1.0, **settings: Any) -> ATGRPO:
    config = dataclasses.replace(
        SMALL, method="hindsight", method_args={"weight": weight}, **settings
    )
    policies = load_policies(model, {"writer": "writer", "reader": "reader"}, lora_r=4)
    return ATGRPO(config, Told(max_turns=2), policies)


def groups_of(trainer: ATGRPO) -> list[Group]:
    trajectories, _ = trainer.train_step()
    return [group for trajectory in trajectories for group in trajectory.groups]


def scored(values: Sequence[float]) -> Any:
    """What they are above their mean, in deviations."""
    tensor = torch.tensor(values)
    return pytest.approx(((tensor - tensor.mean()) / (tensor.std() + 1e-4)).tolist(), abs=1e-3)


# What a reply is worth.


def test_a_reply_is_worth_what_knowing_the_solution_adds_to_its_mean_likelihood(
    model: Path,
) -> None:
    # New adapters change nothing: the policy is the base model.
    trainer = trainer_of(model, temperature=0.7)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def likelihood(prompt_ids: Sequence[int], answer: Sequence[int]) -> float:
        with torch.no_grad():
            logits = base(torch.tensor([[*prompt_ids, *answer]])).logits[0]
        logp = (logits[len(prompt_ids) - 1 : -1] / 0.7).log_softmax(-1)
        return float(logp.gather(1, torch.tensor(answer)[:, None]).mean())

    compared = 0
    for group in groups_of(trainer):
        values = [candidate.advantage for candidate in group.candidates]
        if group.key.role == "reader":
            assert not any(values), "nobody can tell the reader anything"
            continue
        known = f"What is known of the solution:\n{group.privileged}\n\n{group.prompt}"
        informed = trainer.policies.prompt_ids("writer", known)
        answers = [candidate.completion.token_ids for candidate in group.candidates]
        differences = [
            likelihood(informed, answer) - likelihood(group.prompt_ids, answer)
            for answer in answers
        ]
        assert values == scored(differences)
        compared += any(values)
    assert compared


class Table:
    """Policies that say of a completion what a table says, behind each prompt."""

    contexts = {"p": 100}  # noqa: RUF012

    def __init__(self, logprobs: dict[tuple[bool, tuple[int, ...]], list[float]]) -> None:
        self.logprobs = logprobs
        self.read: list[str] = []

    def chat_for(self, policy: str) -> Any:
        assert policy == "p"
        return SimpleNamespace(prompt_ids=self.ids)

    def ids(self, text: str) -> tuple[int, int]:
        self.read.append(text)
        return 9, 9

    def sample_logprobs(self, asked: Iterable[tuple[str, Sample]], *_: Any) -> Any:
        return {
            ("p", one): torch.tensor(self.logprobs[one.prompt_ids == (9, 9), one.token_ids])
            for _, one in asked
        }


def group_of(answers: Sequence[tuple[int, ...]], **changes: Any) -> Group:
    group = decision(*(0.0 for _ in answers))
    candidates = tuple(
        dataclasses.replace(
            candidate,
            completion=dataclasses.replace(
                candidate.completion, token_ids=answer, logprobs=(-9.0,) * len(answer)
            ),
        )
        for candidate, answer in zip(group.candidates, answers, strict=True)
    )
    return dataclasses.replace(group, candidates=candidates, **{"privileged": "42", **changes})


TABLE = {
    (True, (1, 2)): [-0.2, -0.4],
    (False, (1, 2)): [-0.5, -0.5],
    (True, (3,)): [-1.0],
    (False, (3,)): [-0.8],
    (True, (4, 5, 6)): [-0.9, -0.7, -0.5],
    (False, (4, 5, 6)): [-0.6, -0.4, -0.5],
}
"""Turns of SWEET-RL's golden table, with the critic and the reference."""


def test_scores_are_those_of_the_table_and_do_not_grow_with_length() -> None:
    method = made("hindsight", num_generations=3, method_args={"weight": 1.0})
    method.attach(None, Table(TABLE))
    group = group_of([(1, 2), (3,), (4, 5, 6)])
    assert method.scores([group]) == pytest.approx([0.2, -0.2, -0.2])
    assert method.advantages([group]) == scored([0.2, -0.2, -0.2])
    assert method.scores([dataclasses.replace(group, privileged="")]) == [0.0] * 3


def test_scores_are_scaled_as_rewards_are() -> None:
    settings = {"num_generations": 2, "scale_rewards": "none"}
    method = made("hindsight", method_args={"weight": 1.0}, **settings)
    method.attach(None, Table(TABLE))
    assert method.advantages([group_of([(1, 2), (3,)])]) == pytest.approx([0.2, -0.2])


@pytest.mark.slow
def test_the_weight_mixes_both_advantages(model: Path) -> None:
    runs = [groups_of(trainer_of(model, weight)) for weight in (0.0, 0.25, 1.0)]
    plain = ATGRPO(SMALL, letters_env.env(max_turns=2), trainer_of(model).policies)
    mixed = 0
    for untold, *groups in zip(groups_of(plain), *runs, strict=True):
        of_plain = [one.advantage for one in untold.candidates]
        earned, both, known = ([one.advantage for one in g.candidates] for g in groups)
        assert earned == of_plain
        expected = [0.75 * a + 0.25 * b for a, b in zip(earned, known, strict=True)]
        assert both == pytest.approx(expected)
        mixed += any(known) and any(earned)
    assert mixed


def test_a_group_of_which_one_reply_has_no_room_behind_the_solution_is_not_scored() -> None:
    method = made("hindsight", num_generations=3, method_args={"weight": 1.0})
    table = Table(TABLE)
    method.attach(None, table)
    group = group_of([(1, 2), (3,), (4, 5, 6)])
    table.contexts = {"p": 5}
    assert any(method.scores([group]))
    table.contexts = {"p": 4}
    assert method.scores([group]) == [0.0] * 3


def test_the_solution_comes_before_the_first_message_of_a_conversation() -> None:
    method, table = made("hindsight", num_generations=2), Table(TABLE)
    method.attach(None, table)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    tools = [{"type": "function", "function": {"name": "find"}}]
    method.scores([group_of([(1, 2), (3,)], prompt=Conversation.of(messages, tools))])
    [read] = table.read
    assert isinstance(read, Conversation)
    solution = "What is known of the solution:\n42\n\n"
    assert read.messages == [{"role": "system", "content": f"{solution}s"}, messages[1]]
    assert read.tools == tools


def test_without_a_trainer_it_says_so() -> None:
    with pytest.raises(ConfigError, match="needs a trainer"):
        made("hindsight", num_generations=2).advantages([group_of([(1, 2), (3,)])])


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(model: Path, tmp_path: Path) -> None:
    trainer, twin = trainer_of(model, 0.5), trainer_of(model, 0.5)
    resume_twin(trainer, twin, tmp_path / "run", steps=1)
    assert_same(weights(twin), weights(trainer))


# Who is told.

REPLIES = (
    "Karl lives in Cairo",
    r"\boxed{69}",
    "```python\nprint(1)\n```",
    "input:\n```\n1\n```\noutput:\n```\n1\n```",
    "<search>crab</search>",
    "<answer>crab14</answer>",
    "yes",
)
ENVS: dict[str, tuple[str, dict[str, Any]]] = {
    "read": ("read", {}),
    "math": ("math", {"judge": True}),
    "math compact": ("math", {"prompt": "compact"}),
    "coding": ("coding", {}),
    "coding alone": ("coding", {"agents": "single", "prompt": "small"}),
    "debugging": ("debugging", {}),
    "search": ("search", {}),
    "search nested": ("search", {"topology": "nested"}),
    "search with tools": ("search", {"topology": "single", "tools": True}),
}


def knows(env: Any) -> bool:
    return isinstance(env, TextEnv) and type(env)._privileged is not TextEnv._privileged


def test_every_environment_with_privileged_information_is_tested() -> None:
    known = {name for name in ENVIRONMENTS.own if knows(make(name))}
    assert (
        known
        == {"read", "math", "coding", "search"}
        == {e for e, _ in ENVS.values()} - {"debugging"}
    )


def moments(env: TextEnv) -> Iterator[dict[str, Any]]:
    """All that two episodes show, with readable replies and others."""
    for seed in range(2):
        env.reset(seed=seed)
        for turn in range(12):
            yield {**view(env), **{agent: env.text_for(agent) for agent in env.possible_agents}}
            if next_agent(env) is None:
                break
            env.step(REPLIES[(turn + seed) % len(REPLIES)])


@pytest.mark.parametrize("name", ENVS)
def test_no_observation_depends_on_what_agents_are_not_told(name: str) -> None:
    path, arguments = ENVS[name]
    env = make(path, **arguments)
    as_it_is = list(moments(env))
    with mock.patch.object(type(env), "_privileged", return_value=SECRET) as asked:
        changed = list(moments(env))
    assert changed == as_it_is
    assert not asked.called, "what is shown was made with it"
    assert SECRET not in str(changed)


@pytest.mark.parametrize("name", ENVS)
def test_it_follows_from_the_task_alone_also_in_copies(name: str) -> None:
    path, arguments = ENVS[name]
    env, other = make(path, **arguments), make(path, **arguments)
    env.reset(seed=3)
    other.reset(seed=4)

    def told(env: TextEnv) -> dict[str, str]:
        return {agent: env.privileged_for(agent) for agent in env.possible_agents}

    first = told(env)
    assert all(first.values())
    assert told(other) != first
    other.restore(pickle.loads(pickle.dumps(env.snapshot())))
    env.step("whatever")
    assert told(other) == told(env) == told(env.clone()) == first


@pytest.mark.parametrize(
    ("name", "replies"),
    [
        ("read", ["{finder_0}", "{answerer_0}"]),
        ("math", ["no program", r"\boxed{{{reasoner_0}}}"]),
        ("coding", ["```python\n{coder_0}\n```"]),
        ("search", ["yes", "<answer>{answerer_0}</answer>"]),
    ],
)
def test_whoever_is_told_can_solve_the_task(name: str, replies: list[str]) -> None:
    env = make(name)
    env.reset(seed=3)
    told = {agent: env.privileged_for(agent) for agent in env.possible_agents}
    for reply in replies:
        env.step(reply.format(**told))
    assert env.infos[env.possible_agents[0]]["success"]


def test_a_task_that_nobody_knows_the_solution_of_tells_nothing() -> None:
    for name in ("math", "coding", "search"):
        env = make(name)
        env.reset(seed=0, options={"question": "Who knows?"})
        assert {env.privileged_for(agent) for agent in env.possible_agents} == {""}


def test_published_problems_without_a_program_tell_of_their_first_tests(tmp_path: Path) -> None:
    tests = [{"input": f"{n}\n", "output": f"{n + 1}\n"} for n in range(9)]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "Add one.", "tests": tests}) + "\n")
    env = make("coding", dataset=str(rows))
    env.reset(seed=0)
    assert env.privileged_for("tester_0") == "0\n\n1\n\n1\n\n2\n\n2\n\n3"


def test_neither_prompts_nor_records_hold_it(model: Path) -> None:
    trainer = trainer_of(model, 0.5)
    asked = mock.patch.object(
        trainer.policies, "sample", side_effect=trainer.policies.sample, autospec=True
    )
    with asked as sample:
        trajectories, _ = trainer.train_step()
    for trajectory in trajectories:
        assert SECRET not in json.dumps(trajectory.row())
        told = [group.privileged for group in trajectory.groups]
        assert any(told)
        assert [group.privileged for group in pickle.loads(pickle.dumps(trajectory)).groups] == told
        assert not any(g.privileged for g in Trajectory.from_row(trajectory.row()).groups)
    chat = trainer.policies.chat
    requests = [request for call in sample.call_args_list for request in call.args[0]]
    assert requests
    assert not any(SECRET in chat.decode(request.prompt_ids) for request in requests)


class Wrapped(BaseWrapper[Any, Any, Any]):
    """Any wrapper of PettingZoo's."""


def test_an_environment_in_a_wrapper_of_pettingzoos_tells_as_well(model: Path) -> None:
    config = dataclasses.replace(SMALL, method="hindsight")
    policies = trainer_of(model).policies
    trainer = ATGRPO(config, Wrapped(Told(max_turns=2)), policies)
    assert any(SECRET in group.privileged for group in groups_of(trainer))


@pytest.mark.parametrize("env", ["plan_path", "tests.letters_env:env", "tests.tic_tac_toe_env:env"])
def test_where_no_solution_is_known_it_is_refused_before_a_model_is_loaded(env: str) -> None:
    said = r"tells of none \(coding, math, read, and search do.*use one of .*dr_mas"
    with pytest.raises(ConfigError, match=said):
        plan_run(ATGRPOConfig(method="hindsight", env=env, policies="shared"))


def test_it_is_taken_where_the_solution_is_known() -> None:
    for name in ("read", "math", "coding", "search"):
        assert plan_run(ATGRPOConfig(method="hindsight", env=name)).config.method == "hindsight"


# A trained critic.


def critic_in(folder: Path, model: Path) -> tuple[Path, Any]:
    """An adapter that says something else than its base, and the policies that it was made with."""
    critics = load_policies(
        model, {"informed": "critic", "uninformed": "base"}, lora_r=4, seed=9, merge=False
    )
    with torch.no_grad():
        for parameter in critics.parameters("critic"):
            parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(3))
    critics.save("critic", folder)
    return folder, critics


@pytest.mark.slow
def test_with_a_critic_a_reply_is_worth_what_it_says_above_the_base_model(
    model: Path, tmp_path: Path
) -> None:
    folder, critics = critic_in(tmp_path / "critic", model)
    arguments = {"weight": 1.0, "critic": str(folder)}
    config = dataclasses.replace(SMALL, model=str(model), method="hindsight", method_args=arguments)
    policies = load_policies(model, {"writer": "writer", "reader": "reader"}, lora_r=4)
    for name in policies.names:  # which are not asked
        state = {k: torch.full_like(v, 0.1) for k, v in policies.state(name).items()}
        policies.load_state(name, state)
    compared = 0
    trainer = ATGRPO(config, Told(max_turns=2), policies)
    assert trainer.method.policies is policies  # also for what is joined to it
    for group in groups_of(trainer):
        values = [candidate.advantage for candidate in group.candidates]
        if group.key.role == "reader":
            assert not any(values)
            continue
        known = f"What is known of the solution:\n{group.privileged}\n\n{group.prompt}"

        def says(policy: str, ids: tuple[int, ...], answer: tuple[int, ...]) -> float:
            sample = Sample(ids, answer, (0.0,) * len(answer), advantage=0.0)
            said = critics.sample_logprobs([(policy, sample)], 1024, 1.0)
            return said[policy, sample].mean().item()

        informed = critics.chat_for("critic").prompt_ids(known)
        answers = [candidate.completion.token_ids for candidate in group.candidates]
        worth = [
            says("critic", informed, answer) - says("base", group.prompt_ids, answer)
            for answer in answers
        ]
        assert values == scored(worth)
        compared += any(values)
    assert compared


def test_a_critic_that_cannot_be_used_is_refused_before_a_model_is_loaded(
    model: Path, tmp_path: Path
) -> None:
    def plan(critic: Path, **settings: Any) -> None:
        arguments = {"critic": str(critic)}
        plan_run(ATGRPOConfig(method="hindsight", env="read", method_args=arguments, **settings))

    with pytest.raises(ConfigError, match=f"there is no folder {tmp_path}/nowhere"):
        plan(tmp_path / "nowhere", model=str(model))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty.*adapter_config\.json"):
        plan(tmp_path / "empty", model=str(model))


def test_a_critic_on_another_model_than_the_policies_is_refused(
    model: Path, tmp_path: Path
) -> None:
    other = save_tiny(tmp_path / "other", seed=5)
    folder, _ = critic_in(tmp_path / "critic", other)
    config = dataclasses.replace(SMALL, method="hindsight", method_args={"critic": str(folder)})
    policies = load_policies(other, {"writer": "writer", "reader": "reader"}, lora_r=4)
    with pytest.raises(ConfigError, match="was trained on the base model"):
        ATGRPO(dataclasses.replace(config, model=str(model)), Told(max_turns=2), policies)
    mine = load_policies(model, {"writer": "writer", "reader": "reader"}, lora_r=4)
    with pytest.raises(ConfigError, match="policies are on other models; leave critic out"):
        ATGRPO(dataclasses.replace(config, model=str(other)), Told(max_turns=2), mine)


def test_the_loss_of_a_pair_of_episodes_is_that_of_the_table() -> None:
    case = cases("sweet_rl")["critic loss of one pair of episodes"]
    names = ("better", "worse")
    worth = [
        [
            float(np.mean(logp) - np.mean(ref))
            for logp, ref in case["inputs"][f"{name} (logp, ref) by turn"]
        ]
        for name in names
    ]
    assert worth == [pytest.approx(case["expected"][f"A {name}"]) for name in names]
    better, worse = (torch.tensor(one) for one in worth)
    loss = sweet.dpo_loss(better, worse, beta=case["inputs"]["beta"])
    assert loss.item() == pytest.approx(case["expected"]["loss"], abs=1e-6)


def episode_of(reward: float, task: str = "q") -> Trajectory:
    return Trajectory.of(Task(task, 0), 0, [decision(reward)], early={}, cooperative=True)


def test_pairs_are_of_one_task_and_the_better_episode_comes_first() -> None:
    one, equal, other = episode_of(0.3), episode_of(0.3), episode_of(1.0)
    far = episode_of(2.0, task="p")
    assert sweet.pairs_of([one, equal, other, far]) == [(other, one), (other, equal)]
    many = [episode_of(n / 10) for n in range(6)]
    pairs = sweet.pairs_of(many)
    assert len(pairs) == sweet.PAIRS
    assert pairs == sweet.pairs_of(many)
    assert all(sweet.total(better) > sweet.total(worse) for better, worse in pairs)


@pytest.mark.slow
def test_a_trained_critic_prefers_the_better_episodes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweet, "MODEL", str(model))
    monkeypatch.setattr(sweet, "SETTINGS", {**reading.SETTINGS, "model": str(model)})
    monkeypatch.setattr(sweet, "RATE", 0.05)
    monkeypatch.setattr(sweet, "EPOCHS", 8)
    episodes = sweet.played("grpo", "train", 1)
    pairs = [(episodes[0], episodes[1])]
    assert sweet.train_critic(pairs, sweet.with_solution, tmp_path / "critic") < 0.65
    groups = [group for pair in pairs for episode in pair for group in episode.groups]
    worth = sweet.scores_of(groups, tmp_path / "critic")
    assert sum(worth[:2]) > sum(worth[2:])


# Training with it.


def test_the_answerer_learns_without_the_score_where_the_finder_alone_is_told() -> None:
    cell = Cell(hindsight_training.FINDER, 1e-3, 1)
    plain, told = make("read"), hindsight_training.FinderTold()
    for env in (plain, told):
        env.reset(seed=3)
    assert told.privileged_for("finder_0") == plain.privileged_for("finder_0")
    assert plain.privileged_for("answerer_0")
    assert told.privileged_for("answerer_0") == ""
    assert cell.name == "hindsight, finder alone/0.001/1"


def test_the_rate_is_the_one_that_solves_most_once_all_are_measured() -> None:
    def cells(*solved: float) -> dict[str, Any]:
        return {
            Cell("at_grpo", rate, hindsight_training.TUNING).name: {
                "solved": "1" * round(100 * share) + "0" * round(100 - 100 * share)
            }
            for rate, share in zip(hindsight_training.RATES, solved, strict=False)
        }

    first, middle, _ = hindsight_training.RATES
    assert hindsight_training.best_rate(cells(0.5, 0.6, 0.5), "at_grpo") == middle
    assert hindsight_training.best_rate(cells(0.0, 0.0, 0.0), "at_grpo") == first
    assert hindsight_training.best_rate(cells(0.5, 0.6), "at_grpo") is None
    due = [cell.name for cell in hindsight_training.missing(cells(0.5, 0.6, 0.5))]
    assert "at_grpo/0.0016/13" in due
    assert not any(name.startswith("hindsight/") and "/13" in name for name in due)
