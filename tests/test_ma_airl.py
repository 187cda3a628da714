"""`ma_airl`: the table's numbers, solvers that solve, and a reward that malformed and equal replies cannot earn."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from pettingllms.assembly import plan_run
from pettingllms.cli import train
from pettingllms.envs import make
from pettingllms.envs.base import TextEnv, next_agent
from pettingllms.errors import ConfigError, GroupError
from pettingllms.methods.critic import Critic
from pettingllms.methods.ma_airl import LIMIT, Discriminator, Reply
from pettingllms.names import model_path
from pettingllms.policies.chat import Chat
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.episode import Episode, tasks_of_step
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import ATGRPO
from pettingllms.trainers.config import ATGRPOConfig
from pettingllms.types import Candidate, Task
from tests import letters_env
from tests.test_checkpoints import CONFIG as SMALL
from tests.test_checkpoints import assert_same, resume_twin, weights
from tests.test_estimators_golden import cases, decision, made
from tests.tiny_lm import save_tiny

torch.set_num_threads(1)
LOSS = torch.nn.functional.binary_cross_entropy_with_logits
CONFIG = dataclasses.replace(
    SMALL,
    method="ma_airl",
    method_args={"episodes": 3, "epochs": 2},
    branch="sample",
    scale_rewards="batch",
    max_completion_length=8,
)


class Solved(letters_env.raw_env):
    """Letters, whose solver always says the same."""

    def _demonstrate(self, state: tuple[str, ...], agent: str) -> str:
        return {"writer_0": "ab", "reader_0": "c"}[agent]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


def trainer_of(model: Path, env: Callable[..., TextEnv] = Solved, **changes: Any) -> ATGRPO:
    policies = load_policies(model, {"writer": "writer", "reader": "reader"}, lora_r=4)
    return ATGRPO(dataclasses.replace(CONFIG, **changes), env(max_turns=2), policies)


# The table.


@pytest.mark.parametrize("name", ["expert's step", "own step"])
def test_f_and_the_reward_are_those_of_the_table(name: str) -> None:
    inputs, expected = (cases("ma_airl")[name][key] for key in ("inputs", "expected"))
    g, h, h_next, logp, gamma = (inputs[key] for key in ("g", "h", "h'", "log pi", "gamma"))
    one: Any = Discriminator(5, 0)
    # Each feature is its own value, (o, a) of g and the others of h.
    one.g = one.h = torch.nn.Flatten(0)
    f, reward = one(torch.tensor([[h, g, h_next, gamma, of] for of in (0.0, logp)]))
    values = {"f": f, "D": reward.sigmoid(), "reward": reward}
    assert {key: value.item() for key, value in values.items()} == pytest.approx(expected, abs=1e-6)


def test_the_loss_is_that_of_the_table() -> None:
    case = cases("ma_airl")["discriminator's loss (expert 1, own 0)"]
    logits = torch.tensor([case["inputs"]["D expert"], case["inputs"]["D own"]]).logit()
    loss = LOSS(logits, torch.tensor([1.0, 0.0]))
    assert loss.item() == pytest.approx(case["expected"]["loss"], abs=1e-6)


def test_shaping_cancels_along_an_episode_as_in_the_table() -> None:
    case = cases("ma_airl")["shaping cancels along an episode (gamma 1)"]
    h = torch.tensor([*case["inputs"]["h"], case["inputs"]["h after the end"]])
    one: Any = Discriminator(5, 0)
    one.g = one.h = torch.nn.Flatten(0)
    steps = [h[:-1], torch.zeros(3), h[1:], torch.ones(3), torch.zeros(3)]
    total = one(torch.stack(steps, 1)).sum().item()
    assert total == pytest.approx(case["expected"]["sum of gamma h' - h"], abs=1e-6)


# The discriminator.


def rows(kinds: Sequence[int], logp: float = 0.0, gamma: float = 0.9) -> torch.Tensor:
    """Features of replies of two kinds: o and o' alike, (o, a) of its kind."""
    alike, kind = torch.ones(len(kinds), 4), torch.eye(4)[list(kinds)]
    return torch.cat([alike, kind, alike, torch.tensor([[gamma, logp]] * len(kinds))], 1)


def learner(**settings: Any) -> Critic:
    return Critic(Discriminator(14, 0), "0", **settings)


@pytest.mark.slow
def test_it_learns_to_pay_for_what_the_expert_does_and_stays_within_its_bounds() -> None:
    one = learner(learning_rate=3e-2, epochs=50)
    kinds = [0] * 20 + [1] * 20
    assert one.values(rows(kinds)).tolist() == [0.0] * 40, "before it has learned anything"
    labels_N = torch.tensor([0.0] * 20 + [1.0] * 20)
    for _ in range(20):
        one.fit(rows(kinds, logp=-1.0), labels_N, LOSS)
    own, expert = one.values(rows([0, 1])).tolist()
    assert -LIMIT <= own < -2 < 2 < expert <= LIMIT


def test_nothing_follows_the_end_of_an_episode() -> None:
    one = learner(learning_rate=3e-2, epochs=5)
    one.fit(rows([0, 1], logp=-1.0), torch.tensor([0.0, 1.0]), LOSS)
    ended = rows([0], gamma=0.0)
    changed = ended.clone()
    changed[:, 8:12] = 7.0
    assert torch.equal(one.values(ended), one.values(changed))
    assert not torch.equal(one.values(rows([0])), one.values(ended))


@pytest.mark.parametrize("logp", [0.0, -1e-30, -LIMIT, -1e30, -math.inf])
def test_a_probability_at_its_limits_gives_a_finite_reward_and_gradient(logp: float) -> None:
    one = learner(learning_rate=1e-2, epochs=3)
    one.fit(rows([0, 1], logp), torch.tensor([0.0, 1.0]), LOSS)
    reward = one.values(rows([0, 1], logp))
    assert torch.isfinite(reward).all()
    assert reward.abs().max() <= 2 * LIMIT
    assert all(torch.isfinite(p).all() for p in one.network.parameters())


# What replies are worth.


def credited(trainer: ATGRPO) -> list[tuple[Candidate, float]]:
    """The candidates of a step, each with the reward that was compared."""
    trajectories, _ = trainer.train_step()
    return [
        (one, one.reward if one.credited is None else one.credited)
        for trajectory in trajectories
        for group in trajectory.groups
        for one in group.candidates
    ]


@pytest.mark.slow
def test_the_environments_reward_pays_for_nothing_and_stays_in_the_record(model: Path) -> None:
    class Generous(Solved):
        def _act(self, state: tuple[str, ...], agent: str, text: str) -> Any:
            return dataclasses.replace(super()._act(state, agent, text), local=100.0 * len(text))

    plain, generous = trainer_of(model), trainer_of(model, Generous)
    pairs = list(zip(credited(plain), credited(generous), strict=True))
    assert [a[1] for a, _ in pairs] == [b[1] for _, b in pairs]
    assert any(a[0].reward != b[0].reward for a, b in pairs)
    assert_same(weights(plain), weights(generous))


def test_what_cannot_be_read_earns_the_least_that_any_reply_can(model: Path) -> None:
    class Strict(Solved):
        def _act(self, state: tuple[str, ...], agent: str, text: str) -> Any:
            error = "odd" if len(text) % 2 else None
            return dataclasses.replace(super()._act(state, agent, text), parse_error=error)

    steps = credited(trainer_of(model, Strict))
    unread = {r for one, r in steps if one.info["parse_error"]}
    assert unread == {-LIMIT}
    assert all(r >= -LIMIT for _, r in steps)


@pytest.mark.slow
def test_equal_replies_to_a_prompt_earn_exactly_the_same(model: Path) -> None:
    trainer = trainer_of(model)
    trajectories, _ = trainer.train_step()
    prompt = trajectories[0].groups[0]
    one = prompt.candidates[0]
    # A sampler may round the likelihood of equal replies differently.
    near = dataclasses.replace(
        one,
        chosen=False,
        completion=dataclasses.replace(
            one.completion, logprobs=tuple(p - 1e-6 for p in one.completion.logprobs)
        ),
    )
    group = dataclasses.replace(
        prompt, candidates=(dataclasses.replace(one, chosen=True), near, near)
    )
    record = dataclasses.replace(trajectories[0], groups=(group,))
    [paid] = trainer.method.credit([record])
    assert len({c.reward for c in paid.groups[0].candidates}) == 1
    assert trainer.method.advantages(paid.groups) == [0.0] * 3, "the group is silent"


def test_an_empty_completion_has_a_reward(model: Path) -> None:
    trainer = trainer_of(model)
    trajectories, _ = trainer.train_step()
    prompt = trajectories[0].groups[0]
    one = dataclasses.replace(prompt.candidates[0], chosen=True)
    empty = dataclasses.replace(
        one,
        chosen=False,
        completion=dataclasses.replace(one.completion, token_ids=(), logprobs=(), text=""),
    )
    group = dataclasses.replace(prompt, candidates=(one, empty))
    [paid] = trainer.method.credit([dataclasses.replace(trajectories[0], groups=(group,))])
    assert all(math.isfinite(c.reward) for c in paid.groups[0].candidates)


def test_a_prompt_with_one_candidate_is_refused() -> None:
    with pytest.raises(GroupError, match="has one candidate"):
        made("ma_airl").advantages([decision(1.0)])


def test_a_step_without_decisions_is_worth_nothing(model: Path) -> None:
    trainer = trainer_of(model)
    nothing = Trajectory.of(Task("q", 0), 0, [], early={}, cooperative=True)
    assert trainer.method.credit([nothing]) == [nothing]
    assert trainer.method.state_dict() == {}


def test_what_follows_a_reply_is_what_the_next_agent_is_shown(model: Path) -> None:
    trainer = trainer_of(model)
    trajectories, _ = trainer.train_step()
    method: Any = trainer.method
    for trajectory in trajectories:
        for group, candidate, reply in method._replayed(trajectory):
            assert reply[:2] == (group.prompt_ids, candidate.completion.token_ids)
            after = trajectory.groups[group.key.parent + 1 :]
            if candidate.chosen:
                assert reply.next_ids == (after[0].prompt_ids if after else ())
            elif after:
                assert reply.next_ids, "also of those from which nothing followed"


def test_the_solver_plays_training_tasks_in_the_policys_tokens(model: Path) -> None:
    trainer = trainer_of(model)
    played = trainer.method._played_by_solver("writer")  # type: ignore[attr-defined]
    replies: dict[str, list[Reply]] = {role: of for role, (of, _) in played.items()}
    chat = trainer.policies.chat
    assert {role: len(of) for role, of in replies.items()} == {"writer": 6, "reader": 6}
    for role, text in (("writer", "ab"), ("reader", "c")):
        assert {chat.decode(reply.token_ids) for reply in replies[role]} == {text}
        assert {reply.token_ids[-1] for reply in replies[role]} <= {*chat.end_ids}
    assert [bool(reply.next_ids) for reply in replies["reader"]] == [True, False] * 3


# What it learned, from step to step.


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one_to_the_byte(model: Path, tmp_path: Path) -> None:
    trainer, twin = trainer_of(model), trainer_of(model)
    resume_twin(trainer, twin, tmp_path / "run", steps=1)
    assert_same(weights(twin), weights(trainer))
    ours, theirs = (learner.method.state_dict() for learner in (trainer, twin))
    assert set(ours) == {"writer writer", "reader reader"}
    for name, learned in ours.items():
        assert_same(learned["network"], theirs[name]["network"])
        assert learned["fits"] == theirs[name]["fits"]


# What is refused.


@pytest.mark.parametrize("env", ["math", "coding", "tests.letters_env:env"])
def test_an_environment_without_a_solver_is_refused_before_a_model_is_loaded(env: str) -> None:
    said = (
        r"needs a solver, and .* has none \(plan_path, sokoban, and sudoku do.*use one of .*dr_mas"
    )
    with pytest.raises(ConfigError, match=said):
        plan_run(ATGRPOConfig(method="ma_airl", env=env, policies="shared"))


@pytest.mark.parametrize("env", ["plan_path", "sokoban", "sudoku", "judged:plan_path"])
def test_it_is_taken_where_there_is_a_solver(env: str) -> None:
    config = plan_run(ATGRPOConfig(method="ma_airl", env=env)).config
    assert (config.branch, config.scale_rewards) == ("sample", "batch")


def test_a_solver_that_says_more_than_a_completion_may_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"reply 'ab' has 3 tokens.*is 2; raise it"):
        trainer_of(model, max_completion_length=2).train_step()


def test_the_recipe_leaves_room_for_the_replies_of_the_solver() -> None:
    recipes = Path(__file__).parents[1] / "docs/methods/recipes.md"
    [words] = re.findall(r"^pettingllms-train (.*ma_airl.*)$", recipes.read_text(), flags=re.M)
    parsed = train.parse(shlex.split(words)).config
    assert parsed is not None
    plan = plan_run(parsed)
    chat = Chat(AutoTokenizer.from_pretrained(model_path(plan.config.model)), (2,))
    replies = [
        Episode(plan.env, task, 0).demonstration()
        for task in tasks_of_step(plan.env, plan.config.env, 0, 200, plan.config.seed)
    ]
    longest = max(len(chat.completion_ids(reply)) for reply in replies)
    assert longest <= plan.config.max_completion_length


def test_a_role_that_the_solver_never_plays_is_named(model: Path) -> None:
    class Alone(Solved):
        def _next_agent(self, state: Any, agent: str | None) -> str:
            solved = agent == "writer_0" and state[-1] == "ab"
            return "writer_0" if agent is None or solved else "reader_0"

    with pytest.raises(ConfigError, match="never plays reader"):
        trainer_of(model, Alone).train_step()


# Solvers.


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("plan_path", {}),
        ("plan_path", {"prompt": "compact", "agents": "single"}),
        ("plan_path", {"prompt": "small"}),
        ("sokoban", {}),
        ("sokoban", {"prompt": "compact"}),
        ("sokoban", {"prompt": "small", "size": 5, "pushes": (1, 2)}),
        ("sudoku", {}),
        ("sudoku", {"prompt": "compact", "size": 6}),
        ("sudoku", {"prompt": "small", "clues": (14, 15)}),
        ("judged:plan_path", {}),
    ],
)
def test_a_solver_solves_and_is_read_without_error(name: str, arguments: dict[str, Any]) -> None:
    env: Any = make(name, **arguments)
    for seed in range(5):
        env.reset(seed=seed)
        infos: dict[str, Any] = {}
        while (agent := next_agent(env)) is not None:
            reply = env.demonstration_for(agent)
            assert reply == env.demonstration_for(agent)
            env.step(reply)
            infos = dict(env.infos[agent])
            assert infos["parse_error"] is None, reply
        assert infos["success"]


def test_an_environment_without_a_solver_says_so_when_asked() -> None:
    env = make("math")
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match="has no solver"):
        env.demonstration_for(env.possible_agents[0])
