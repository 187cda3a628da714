from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch

from pettingllms.envs.base import Outcome
from pettingllms.errors import ConfigError, NonFiniteError, SandboxUnavailable, StaleSamplerError
from pettingllms.policies.loading import load_policies
from pettingllms.rollout.episode import tasks_of_step
from pettingllms.rollout.trajectory import Trajectory, in_order
from pettingllms.trainers.at_grpo import ATGRPO, last_step
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.losses import PolicyBatch, policy_batches
from pettingllms.trainers.metrics import Clock
from pettingllms.trainers.play import has_enough
from pettingllms.types import Candidate, Completion, Group, GroupKey, Request, Sample, Task
from tests import foreign_env
from tests.graded_env import ALPHA, TURNS, GradedEnv, number_of
from tests.tiny_lm import save_tiny

torch.set_num_threads(1)
ROLES = {"writer": "writer", "reader": "reader"}
VARIED = {"temperature": 2.0, "max_completion_length": 16}
"""So that no two replies of a random model are equal."""
FEW = {"num_generations": 2, "tasks_per_step": 1}
"""The smallest step, for what does not depend on how much is sampled."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def a_config(**changes):
    return ATGRPOConfig(
        **{
            "env": "graded",
            "num_generations": 4,
            "tasks_per_step": 3,
            "max_steps": 4,
            "max_completion_length": 6,
            "learning_rate": 1e-2,
            "warmup_steps": 0,
            "tokens_per_batch": 400,
            "scoring_threads": 2,
            **changes,
        }
    )


def a_trainer(model_dir, env=None, roles=ROLES, **changes):
    policies = load_policies(model_dir, roles, lora_r=4, lora_alpha=8, seed=1)
    return ATGRPO(a_config(**changes), env or GradedEnv(), policies)


def weights(trainer):
    return {name: trainer.policies.state(name) for name in trainer.policies.names}


def moved(before, after):
    """Policies of which any weight differs, be it in the last bit."""
    return {
        policy
        for policy, state in before.items()
        if any(not torch.equal(value, after[policy][name]) for name, value in state.items())
    }


def base_weights(policies):
    adapter_ids = {id(p) for name in policies.names for p in policies.parameters(name)}
    module = policies.bases[0].weights.module(policies.names[0])
    return [p.detach().clone() for p in module.parameters() if id(p) not in adapter_ids]


def chosen_of(group):
    (chosen,) = [candidate for candidate in group.candidates if candidate.chosen]
    return chosen


def stepped(trainer):
    """The groups of a step, in order of depth, and its metrics."""
    trajectories, metrics = trainer.train_step()
    return in_order(trajectories), metrics


def without_times(metrics):
    clocks = ("time/", "tokens_per_second")
    return {name: value for name, value in metrics.items() if not name.startswith(clocks)}


# Rollout: who is compared with whom


@pytest.mark.slow
def test_distinct_rewards_reach_every_role_at_every_turn_and_the_observation_moves_on(model_dir):
    trainer = a_trainer(model_dir, **VARIED)
    groups, _ = stepped(trainer)
    games: dict[str, list[Any]] = defaultdict(list)
    for group in groups:
        games[group.key.task].append(group)
    assert len(games) == 3
    for game in games.values():
        assert [(g.key.role, g.key.turn, g.key.parent) for g in game] == [
            (role, turn, 2 * turn + place)
            for turn in range(TURNS)
            for place, role in enumerate(ROLES)
        ]
        assert [len({c.reward for c in group.candidates}) for group in game] == [4] * 2 * TURNS
        assert len({group.prompt_ids for group in game}) == len(game)
        assert len({group.key.state_hash for group in game}) == len(game)


def test_a_replay_of_the_record_gives_the_same_prompts_and_rewards(model_dir):
    trainer = a_trainer(model_dir)
    groups, _ = stepped(trainer)
    for task in dict.fromkeys(group.key.task for group in groups):
        env = GradedEnv()
        env.reset(seed=int(task.removeprefix("graded:")))
        for group in (group for group in groups if group.key.task == task):
            agent = env.agent_selection
            text = env.observe(agent)["text"]
            assert group.prompt_ids == trainer.policies.prompt_ids(group.key.role, text)
            for candidate in group.candidates:
                twin = env.clone()
                twin.step(candidate.completion.text)
                assert candidate.reward == twin.rewards[agent]
                assert candidate.team_reward == float(len(candidate.completion.text) % 2)
                assert candidate.local_reward == number_of(candidate.completion.text)
            env.step(chosen_of(group).completion.text)
        assert not any(env.agents) or all(env.truncations.values())


def test_candidates_are_played_on_copies_and_the_template_is_never_played(model_dir):
    env = GradedEnv()
    groups, _ = stepped(a_trainer(model_dir, env))
    assert not hasattr(env, "transcript")
    for group in groups:
        assert {c.info["said"] for c in group.candidates} == {group.key.parent + 1}


def test_team_and_local_rewards_are_apart_in_every_record(model_dir):
    groups, metrics = stepped(a_trainer(model_dir))
    for group in groups:
        for c in group.candidates:
            assert c.reward == pytest.approx(ALPHA * c.team_reward + c.local_reward)
            assert c.team_reward == float(len(c.completion.text) % 2)
            assert c.local_reward == number_of(c.completion.text)
    for role in ROLES:
        mine = [c for g in groups if g.key.role == role for c in g.candidates]
        for field in ("reward", "team_reward", "local_reward"):
            mean = statistics.fmean(getattr(c, field) for c in mine)
            assert metrics[f"{field}/{role}"] == pytest.approx(mean)
        assert metrics[f"team_reward/{role}"] != metrics[f"local_reward/{role}"]


def test_metrics_of_a_rollout_are_means_over_its_replies(model_dir):
    groups, metrics = stepped(a_trainer(model_dir))
    replies = [c.completion for group in groups for c in group.candidates]
    deviations = [statistics.stdev(c.reward for c in group.candidates) for group in groups]
    expected = {
        "reward": statistics.fmean(c.reward for group in groups for c in group.candidates),
        "reward_std": statistics.fmean(deviations),
        "completions/mean_length": statistics.fmean(len(reply.token_ids) for reply in replies),
        "completions/clipped_ratio": statistics.fmean(reply.truncated for reply in replies),
        "num_tokens": sum(len(reply.token_ids) for reply in replies),
        "turns": 2 * TURNS,
    }
    for role in ROLES:
        mine = [c for g in groups if g.key.role == role for c in g.candidates]
        expected[f"success/{role}"] = statistics.fmean(c.team_reward for c in mine)
        expected[f"parse_error/{role}"] = 0.0
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert 0 < metrics["completions/clipped_ratio"] < 1


def test_the_best_branch_goes_on_with_the_highest_reward(model_dir):
    groups, _ = stepped(a_trainer(model_dir, branch="best"))
    for group in groups:
        assert chosen_of(group).reward == max(c.reward for c in group.candidates)
    assert len({group.candidates.index(chosen_of(group)) for group in groups}) > 1


def test_the_first_branch_goes_on_with_the_first_reply(model_dir):
    groups, _ = stepped(a_trainer(model_dir, branch="first"))
    assert all(group.candidates[0].chosen for group in groups)


@pytest.mark.parametrize(
    ("branch", "env"), [("sample", GradedEnv()), ("best", GradedEnv(silent="writer_0"))]
)
def test_a_sampled_branch_and_a_tie_may_go_on_with_any_reply(model_dir, branch, env):
    groups, _ = stepped(a_trainer(model_dir, env, tasks_per_step=8, branch=branch))
    groups = [group for group in groups if group.key.role == "writer"]
    places = Counter(group.candidates.index(chosen_of(group)) for group in groups)
    assert set(places) == set(range(4))


def test_tasks_are_fresh_in_every_step_and_run():
    env = GradedEnv()
    steps = [
        tasks_of_step(env, "graded", step, 5, seed) for seed in (0, 1, 2) for step in (0, 1, 2)
    ]
    tasks = [task for step in steps for task in step]
    assert len({task.seed for task in tasks}) == len({task.id for task in tasks}) == 45


@pytest.mark.slow
@pytest.mark.parametrize(("silent", "batches"), [("", 1), ("reader_0", 3)])
def test_dynamic_sampling_goes_on_until_every_policy_has_a_signal(model_dir, silent, batches):
    trainer = a_trainer(model_dir, GradedEnv(silent=silent), max_num_gen_batches=3)
    count = trainer.config.tasks_per_step
    trajectories, metrics = trainer.train_step()
    assert len(trajectories) == batches * count
    assert trainer.tokens == metrics["num_tokens"]
    assert trainer.config.silent_groups == "drop"
    # A second step, also of a resumed run, samples none of the tasks that the first one may have sampled.
    later = a_trainer(model_dir, GradedEnv(silent=silent), max_num_gen_batches=3)
    later.step = 1
    seeds = [trajectory.task.seed for trajectory in (*trajectories, *later.train_step()[0])]
    assert seeds == [*range(batches * count), *range(3 * count, (3 + batches) * count)]


def test_dynamic_sampling_counts_what_the_method_compares():
    def episode(number, late):
        key = GroupKey("t:0", number, "writer_0", "writer", 0, 0, "")
        paid = Candidate(Completion((1,), (2,), (), "x", False, 0), 0.0, 0.0, 0.0, True)
        group = Group(key, "writer", "?", (1,), (paid,), late_reward=late)
        return Trajectory.of(Task("t:0", 0), number, [group], early={}, cooperative=False)

    later = [episode(number, late) for number, late in enumerate((0.0, 1.0))]
    assert has_enough(later, ("writer",), 1, whole=True)
    assert not has_enough(later, ("writer",), 1)
    assert not has_enough([*later[:1]] * 2, ("writer",), 1, whole=True)


@pytest.mark.slow
def test_dynamic_sampling_waits_for_no_signal_that_a_method_does_not_need(model_dir):
    env = GradedEnv(silent="reader_0")
    trainer = a_trainer(model_dir, env, method="rae", max_num_gen_batches=3)
    trajectories, _ = trainer.train_step()
    assert len({trajectory.task.id for trajectory in trajectories}) == trainer.config.tasks_per_step


def test_dynamic_sampling_does_not_go_with_playing_ahead():
    with pytest.raises(ConfigError, match="max_num_gen_batches 2 with max_staleness"):
        ATGRPOConfig(max_num_gen_batches=2, workers=1, max_staleness=1)


def test_every_row_of_a_data_set_is_played_once_an_epoch_in_another_order():
    env = GradedEnv(num_tasks=10)
    played = [t for step in range(8) for t in tasks_of_step(env, "graded", step, 5, 3)]
    epochs = [[task.seed for task in played[start : start + 10]] for start in (0, 10, 20, 30)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len({task.id for task in played}) == 40


@pytest.mark.slow
@pytest.mark.parametrize("method", ["at_grpo", "grpo"])
def test_a_row_that_is_played_twice_in_a_step_is_two_tasks(model_dir, method):
    env = GradedEnv(num_tasks=2)
    trainer = a_trainer(model_dir, env, method=method, tasks_per_step=5)
    groups, metrics = stepped(trainer)
    assert metrics["turns"] == 2 * TURNS
    assert len({group.key[:5] for group in groups}) == len(groups)


# Update: who learns from what


@pytest.mark.parametrize("silent", ["", "writer", "reader"])
def test_a_step_moves_each_policy_by_its_own_samples_only(model_dir, silent):
    trainer = a_trainer(model_dir, GradedEnv(silent=f"{silent}_0"))
    before, base = weights(trainer), base_weights(trainer.policies)
    _, metrics = stepped(trainer)
    # A role without variance has no samples: exactly nothing may come from the other's.
    assert moved(before, weights(trainer)) == set(ROLES) - {silent}
    for left, right in zip(base, base_weights(trainer.policies), strict=True):
        assert torch.equal(left, right)
    for role in ROLES:
        assert metrics[f"{role}/frac_reward_zero_std"] == (role == silent)
        assert metrics[f"{role}/groups"] == 3 * TURNS


def test_a_shared_policy_learns_from_all_roles(model_dir):
    trainer = a_trainer(model_dir, roles=dict.fromkeys(ROLES, "both"))
    before = weights(trainer)
    groups, metrics = stepped(trainer)
    assert {group.policy for group in groups} == {"both"}
    assert metrics["both/groups"] == len(groups) == 6 * TURNS
    assert moved(before, weights(trainer)) == {"both"}


def test_optimizers_hold_exactly_their_own_tensors(model_dir):
    trainer = a_trainer(model_dir)
    held = {
        policy: [id(p) for group in optimizer.param_groups for p in group["params"]]
        for policy, optimizer in trainer.optimizers.items()
    }
    assert held.keys() == set(ROLES)
    for policy, ids in held.items():
        assert sorted(ids) == sorted(map(id, trainer.policies.parameters(policy)))
        assert len(ids) == len(set(ids)) > 10
    assert not set(held["writer"]) & set(held["reader"])


def test_a_frozen_role_answers_once_and_never_moves(model_dir):
    trainer = a_trainer(model_dir, train_roles="reader")
    before = weights(trainer)
    assert trainer.optimizers.keys() == {"reader"}
    for _ in range(2):
        groups, metrics = stepped(trainer)
    assert moved(before, weights(trainer)) == {"reader"}
    sizes = {(group.key.role, len(group.candidates)) for group in groups}
    assert sizes == {("writer", 1), ("reader", 4)}
    assert not [name for name in metrics if name.startswith("writer/")]
    assert trainer.policies.versions == {"writer": 0, "reader": 2}


def test_a_role_that_base_plays_is_never_trained(model_dir):
    trainer = a_trainer(model_dir, roles={"writer": "base", "reader": "reader"})
    before = weights(trainer)
    groups, _ = stepped(trainer)
    assert moved(before, weights(trainer)) == {"reader"}
    assert {(g.key.role, g.policy, len(g.candidates)) for g in groups} == {
        ("writer", "base", 1),
        ("reader", "reader", 4),
    }


@pytest.mark.slow
def test_a_step_samples_with_the_weights_of_the_step_before(model_dir):
    trainer = a_trainer(model_dir)
    for step in range(3):
        groups, _ = stepped(trainer)
        versions = {c.completion.version for group in groups for c in group.candidates}
        assert versions == {step}
    assert trainer.step == 3


@pytest.mark.slow
def test_log_probabilities_of_sampling_are_those_of_the_update(model_dir):
    trainer = a_trainer(model_dir, temperature=0.8)
    for _ in range(2):
        _, metrics = stepped(trainer)
    for role in ROLES:
        assert metrics[f"{role}/sampling/sampling_logp_difference/max"] < 1e-4
        assert metrics[f"{role}/clip_ratio/region_mean"] == 0


@pytest.mark.slow
def test_more_iterations_leave_the_sampling_distribution(model_dir):
    once, thrice = (a_trainer(model_dir, num_iterations=count) for count in (1, 3))
    single, several = (trainer.train_step()[1] for trainer in (once, thrice))
    assert moved(weights(once), weights(thrice)) == set(ROLES)
    gap = "writer/sampling/sampling_logp_difference/max"
    assert several[gap] == single[gap]  # of the first iteration only
    assert several["writer/clip_ratio/region_mean"] > 0


@pytest.mark.slow
def test_the_loss_that_is_logged_does_not_grow_with_the_optimizer_steps(model_dir):
    """Without a learning rate each of them has the same."""
    settings = {"learning_rate": 0.0}
    once, thrice = (
        a_trainer(model_dir, num_iterations=count, **settings).train_step()[1] for count in (1, 3)
    )
    for role in ROLES:
        assert once[f"{role}/loss"] != 0
        assert thrice[f"{role}/loss"] == pytest.approx(once[f"{role}/loss"], rel=1e-4)
        assert thrice[f"{role}/entropy"] == pytest.approx(once[f"{role}/entropy"], rel=1e-4)


def test_equal_replies_are_computed_once_and_counted(model_dir):
    # Replies of one token, many of them, so that some must be equal.
    trainer = a_trainer(model_dir, max_completion_length=1, num_generations=32, tasks_per_step=2)
    tasks = tasks_of_step(trainer.env, "graded", 0, 2, 0)
    groups = in_order(trainer.credited(trainer.rollout(tasks, Clock())))
    for policy, batch in policy_batches(trainer.config, trainer.settings, groups).items():
        samples = batch.samples
        mine = [group for group in groups if group.policy == policy]
        assert sum(sample.count for sample in samples) == sum(len(g.candidates) for g in mine)
        assert max(sample.count for sample in samples) > 1
        for group in mine:
            drawn = Counter(c.completion.token_ids for c in group.candidates)
            kept = [s for s in samples if s.prompt_ids == group.prompt_ids]
            assert drawn == {sample.token_ids: sample.count for sample in kept}


@pytest.mark.slow
def test_merged_equal_replies_train_like_listing_them_singly(model_dir):
    merged = [
        Sample((5, 6), (9, 8), (-5.0, -5.5), 1.5, count=3),
        Sample((5, 6), (7,), (-5.2,), -0.5, count=2),
        Sample((30,), (7, 9, 11), (-5.0, -6.0, -5.0), -1.0),
    ]
    singly = [replace(sample, count=1) for sample in merged for _ in range(sample.count)]
    for loss_type in ("grpo", "dr_grpo", "dapo"):
        metrics = []
        for samples in (merged, singly):
            trainer = a_trainer(
                model_dir, loss_type=loss_type, beta=0.04, entropy_coef=0.01, tokens_per_batch=9
            )
            metrics.append(trainer.update({"writer": PolicyBatch.of(samples)}))
        assert metrics[0] == pytest.approx(metrics[1], rel=1e-4, abs=1e-7)
        assert metrics[0]["writer/grad_norm"] > 0.01


def test_truncated_replies_can_be_left_out(model_dir):
    options = {"max_completion_length": 3, "num_generations": 16}
    groups, kept = stepped(a_trainer(model_dir, **options))
    trainer = a_trainer(model_dir, mask_truncated_completions=True, **options)
    batches = policy_batches(trainer.config, trainer.settings, groups)
    cut = Counter(g.policy for g in groups for c in g.candidates if c.completion.truncated)
    for policy, batch in batches.items():
        assert kept[f"{policy}/dropped_truncated"] == 0
        assert batch.truncated == cut[policy] > 0
        assert all(sample.token_ids[-1] == 2 for sample in batch.samples)


# Determinism and failure


@pytest.mark.slow
@pytest.mark.parametrize("method", ["at_grpo", "grpo"])
def test_two_trainers_take_the_same_steps(model_dir, method):
    def run(seed, threads):
        trainer = a_trainer(model_dir, method=method, seed=seed, scoring_threads=threads)
        played = [trainer.train_step() for _ in range(2)]
        return [(groups, without_times(metrics)) for groups, metrics in played], weights(trainer)

    torch.manual_seed(1)
    first = run(0, 1)
    torch.manual_seed(2)
    second, other = run(0, 4), run(1, 1)
    assert first[0] == second[0]
    assert not moved(first[1], second[1])
    assert first[0][0][0] != other[0][0][0]


@pytest.mark.slow
def test_a_step_depends_on_seed_and_number_only(model_dir):
    ahead, late = a_trainer(model_dir), a_trainer(model_dir)
    ahead.train_step()
    for policy in ROLES:
        late.policies.load_state(policy, ahead.policies.state(policy), version=1)
    late.step = 1
    assert ahead.train_step()[0] == late.train_step()[0]


def test_every_step_draws_anew(model_dir):
    trainer = a_trainer(model_dir, GradedEnv(num_tasks=1), tasks_per_step=1, learning_rate=0.0)
    before = weights(trainer)
    first, second = (stepped(trainer)[0][0] for _ in range(2))
    assert not moved(before, weights(trainer))
    assert first.prompt_ids == second.prompt_ids
    assert [c.completion.text for c in first.candidates] != [
        c.completion.text for c in second.candidates
    ]


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan])
def test_an_infinite_reward_stops_the_step_and_names_who_was_paid(model_dir, reward):
    env = GradedEnv()
    env.paid = {"reader_0": reward}
    trainer = a_trainer(model_dir, env)
    before = weights(trainer)
    with pytest.raises(NonFiniteError, match=r"'reader_0' a reward of .* graded:\d"):
        trainer.train_step()
    assert not moved(before, weights(trainer))
    assert trainer.step == 0


class HugeEnv(GradedEnv):
    """Pays a role rewards that are finite, but too large for the update."""

    size: float

    def _act(self, state, agent, text):
        outcome = super()._act(state, agent, text)
        if agent != "reader_0":
            return outcome
        return Outcome(outcome.state, 0.0, self.size * outcome.local, outcome.success)


@pytest.mark.parametrize(
    ("size", "what"),
    [
        (1e300, "method AtGrpo returned the advantage -?inf"),
        (1e37, "the gradient norm of policy 'reader' is (inf|nan)"),
    ],
)
def test_a_number_that_is_not_finite_names_its_origin_and_changes_no_policy(model_dir, size, what):
    env = HugeEnv()
    env.size = size
    trainer = a_trainer(model_dir, env, scale_rewards="none", loss_type="grpo")
    before = weights(trainer)
    with pytest.raises(NonFiniteError, match=what):
        trainer.train_step()
    assert not moved(before, weights(trainer))
    assert (trainer.step, trainer.tokens, trainer.intact) == (0, 0, True)


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["writer_0", "reader_0"])
def test_a_failing_sandbox_stops_the_step_and_is_nobodys_reward(model_dir, agent):
    env = GradedEnv()
    trainer, expected = a_trainer(model_dir, env), a_trainer(model_dir)
    env.outage.append(agent)
    before = weights(trainer)
    with pytest.raises(SandboxUnavailable, match="did not answer"):
        trainer.train_step()
    assert not moved(before, weights(trainer))
    # Once it works again, the same step is taken as if nothing had happened.
    env.outage.clear()
    assert trainer.train_step()[0] == expected.train_step()[0]
    assert not moved(weights(trainer), weights(expected))


def test_a_policy_cannot_be_sampled_after_an_update_without_publishing(model_dir):
    trainer = a_trainer(model_dir)
    trainer.update({"writer": PolicyBatch.of([Sample((5, 6), (9, 8), (-5.0, -5.5), 1.0)])})
    with pytest.raises(StaleSamplerError, match="publish"):
        trainer.policies.sample([Request("writer", (5, 6), 0)], 2, max_new_tokens=2)


# Estimators, schedules, foreign environments


@pytest.mark.parametrize("method", ["grpo", "dr_mas", "turn"])
def test_estimators_over_episodes_take_whole_steps(model_dir, method):
    trainer = a_trainer(model_dir, method=method)
    before = weights(trainer)
    groups, metrics = stepped(trainer)
    assert moved(before, weights(trainer)) == set(ROLES)
    assert {len(group.candidates) for group in groups} == {1}
    assert all(chosen_of(group) for group in groups)
    games = Counter((group.key.task, group.key.episode) for group in groups)
    assert set(games.values()) == {2 * TURNS}
    assert sorted(Counter(task for task, _ in games).values()) == [4, 4, 4]
    assert metrics["turns"] == 2 * TURNS
    # An episode's advantage follows from the sum of the very rewards of its decisions.
    returns: dict[tuple[str, int], float] = defaultdict(float)
    for group in groups:
        returns[group.key.task, group.key.episode] += group.candidates[0].reward
    for group in groups:
        value = group.candidates[0].advantage
        assert group.episode_return == pytest.approx(
            returns[group.key.task, group.key.episode], abs=1e-9
        )
        task_returns = [total for (task, _), total in returns.items() if task == group.key.task]
        above = returns[group.key.task, group.key.episode] - statistics.fmean(task_returns)
        assert value * above > 0
        assert abs(value) == pytest.approx(abs(above) / statistics.pstdev(task_returns), rel=0.2)


@pytest.mark.slow
def test_an_advantage_may_differ_from_token_to_token(model_dir):
    whole, spread, first = (
        a_trainer(model_dir, method=name, **VARIED)
        for name in ("at_grpo", "tests.own_estimator:Spread", "tests.own_estimator:FirstToken")
    )
    before = weights(whole)
    for trainer in (whole, spread, first):
        trainer.train_step()
    assert moved(before, weights(whole)) == set(ROLES)
    assert not moved(weights(whole), weights(spread))
    assert moved(weights(whole), weights(first)) == set(ROLES)


@pytest.mark.slow
def test_all_estimators_generate_the_same_number_of_replies(model_dir):
    sizes = {
        method: sum(
            len(group.candidates) for group in stepped(a_trainer(model_dir, method=method))[0]
        )
        for method in ("at_grpo", "grpo")
    }
    assert sizes["at_grpo"] == sizes["grpo"] == 3 * 4 * 2 * TURNS


@pytest.mark.slow
def test_the_learning_rate_follows_the_schedule(model_dir):
    trainer = a_trainer(model_dir, lr_scheduler_type="linear", warmup_steps=2, max_steps=4, **FEW)
    rates = [trainer.train_step()[1]["writer/learning_rate"] for _ in range(4)]
    assert rates == pytest.approx([0.0, 0.005, 0.01, 0.005])


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [1, 2])
def test_the_logged_learning_rate_is_the_one_that_was_applied(model_dir, iterations):
    applied = list[float]()
    trainer = a_trainer(model_dir, num_iterations=iterations, max_steps=2, **FEW)
    trainer.optimizers["writer"].register_step_pre_hook(
        lambda optimizer, *_: applied.append(optimizer.param_groups[0]["lr"])
    )
    logged = [trainer.train_step()[1]["writer/learning_rate"] for _ in range(2)]
    assert logged == applied[iterations - 1 :: iterations]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["linear", "cosine", "polynomial", "constant_with_warmup"])
def test_a_warmup_as_long_as_the_training_is_one(model_dir, schedule):
    trainer = a_trainer(model_dir, lr_scheduler_type=schedule, warmup_steps=2, max_steps=2, **FEW)
    rates = [trainer.train_step()[1]["writer/learning_rate"] for _ in range(2)]
    assert rates == pytest.approx([0.0, 0.005])


@pytest.mark.slow
def test_with_a_budget_of_tokens_the_warmup_is_one_of_steps(model_dir):
    budget = {"max_steps": 1000, "max_tokens": 250, "warmup_steps": 4, **FEW}
    trainer = a_trainer(model_dir, lr_scheduler_type="constant_with_warmup", **budget)
    rates = [trainer.train_step()[1]["writer/learning_rate"] for _ in range(5)]
    assert rates == pytest.approx([0.0, 0.0025, 0.005, 0.0075, 0.01])


def test_a_policy_without_signal_keeps_its_weights_while_its_learning_rate_falls(model_dir):
    trainer = a_trainer(model_dir, weight_decay=0.1, lr_scheduler_type="linear")
    batch = PolicyBatch.of([Sample((5, 6), (9, 8), (-5.0, -5.5), 1.0)])
    trainer.update({"writer": batch, "reader": batch})
    before = weights(trainer)
    metrics = trainer.update({"writer": batch, "reader": PolicyBatch((), 0, 0)})
    assert moved(before, weights(trainer)) == {"writer"}
    rates = {name: trainer.schedulers[name].get_last_lr() for name in trainer.trained}
    assert rates["reader"] == rates["writer"] < [trainer.config.learning_rate]
    assert "reader/loss" not in metrics


@pytest.mark.slow
def test_with_a_budget_of_tokens_the_learning_rate_follows_the_tokens(model_dir):
    trainer = a_trainer(model_dir, lr_scheduler_type="linear", max_steps=1000, max_tokens=1500)
    rates, spent = [], []
    while trainer.step < last_step(trainer.config, trainer.step, trainer.tokens):
        rates.append(trainer.train_step()[1]["writer/learning_rate"])
        spent.append(trainer.tokens / 1500)
    assert len(rates) > 1
    assert spent[-2] < 1 <= spent[-1], "it ends with the step in which the budget is spent"
    before = [0.0, *spent[:-1]]
    assert rates == pytest.approx([0.01 * (1 - share) for share in before], abs=2e-5)


@pytest.mark.parametrize(
    ("max_tokens", "step", "tokens", "last"),
    [(None, 3, 999, 10), (100, 0, 0, 10), (100, 2, 50, 4), (100, 2, 99, 3), (100, 4, 100, 4)],
)
def test_training_ends_with_its_steps_or_its_tokens(max_tokens, step, tokens, last):
    config = resolve(ATGRPOConfig(max_steps=10, max_tokens=max_tokens))
    assert last_step(config, step, tokens) == last
    assert last_step(replace(config, max_steps=2), 2, 30) == 2


class _Shades(foreign_env.raw_env):
    """The third party's echo game, with rewards that tell random replies apart."""

    def step(self, action):
        agent = self.agent_selection
        super().step(action)
        if action is not None:
            self.rewards[agent] = number_of(action)


@pytest.mark.slow
def test_a_third_partys_environment_is_trained_on(model_dir):
    trainer = a_trainer(model_dir, _Shades(), roles={"speaker": "speaker"}, **VARIED)
    before = weights(trainer)
    for _ in range(2):
        groups, metrics = stepped(trainer)
        assert [len({c.reward for c in g.candidates}) for g in groups] == [4] * len(groups)
    assert moved(before, weights(trainer)) == {"speaker"}
    assert metrics["turns"] == 4
    assert {(g.key.turn, g.key.parent) for g in groups} == {(0, 0), (0, 1), (1, 2), (1, 3)}
    assert {c.team_reward for g in groups for c in g.candidates} == {0.0}


def test_an_environment_in_wrappers_is_trained_on(model_dir):
    trainer = a_trainer(model_dir, foreign_env.env(), roles={"speaker": "speaker"})
    groups, metrics = stepped(trainer)
    assert len(groups) == 3 * 4
    # A random model never says the word: no variance, no update, and it is counted.
    assert metrics["speaker/frac_reward_zero_std"] == 1


@pytest.mark.slow
def test_an_episode_ends_where_a_prompt_leaves_no_room_and_the_log_says_so(model_dir):
    """A prompt beyond the context would be trained on at positions that mean something else."""
    trainer = a_trainer(model_dir)
    lengths = [len(group.prompt_ids) for group in stepped(a_trainer(model_dir))[0]]
    room = sorted(lengths)[len(lengths) // 2]
    names, limit = trainer.policies.names, trainer.config.max_completion_length
    trainer.policies.contexts = dict.fromkeys(names, room + limit)
    groups, metrics = stepped(trainer)
    assert groups
    assert max(len(group.prompt_ids) for group in groups) <= room < max(lengths)
    assert 0 < metrics["overlong"] <= 1
    trainer.policies.contexts = dict.fromkeys(names, min(lengths))
    with pytest.raises(ConfigError, match=r"nothing to score.*context"):
        trainer.train_step()
    trainer.policies.contexts = dict.fromkeys(names, limit)
    with pytest.raises(ConfigError, match="no room for a prompt"):
        trainer.train_step()
