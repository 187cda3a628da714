"""Methods for a planner that calls workers: M-GRPO, MATPO and MHGPO give the numbers of their tables."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pettingllms as pl
from pettingllms.assembly import plan_run
from pettingllms.envs import search_v0
from pettingllms.errors import ConfigError
from pettingllms.methods.m_grpo import (
    MGrpo,
    aligned,
    call_reward,
    caller_reward,
    calls_of,
    over_copies,
    smallest,
)
from pettingllms.methods.matpo import root_reward
from pettingllms.rollout.forest import flowing
from pettingllms.rollout.shapes import SHAPES
from pettingllms.rollout.trajectory import Trajectory, in_order, with_advantages
from pettingllms.trainers.config import ATGRPOConfig, resolve
from pettingllms.trainers.losses import policy_batches
from pettingllms.trainers.method import Method
from pettingllms.types import Group, Task
from tests.test_estimators_golden import cases, decision
from tests.test_forest import Line, play

torch.set_num_threads(1)
NESTED = {"topology": "nested"}


def config_of(method: str, **settings: Any) -> Any:
    return resolve(ATGRPOConfig(env="search", env_args=NESTED, method=method, **settings))


def attached(name: str, **settings: Any) -> Method:
    method = Method.of(config_of(name, **settings))
    method.attach(search_v0.env(topology="nested"), None)
    return method


def episode(
    number: int,
    agents: str,
    *,
    success: bool = False,
    experts: Sequence[float] = (),
    unread: Sequence[int] = (),
    task: str = "q",
) -> Trajectory:
    """An episode whose decisions are the planner's (`p`) and the worker's (`w`), in order."""
    worth = iter(experts)
    groups: list[Group] = []
    for n, letter in enumerate(agents):
        agent = {"p": "planner_0", "w": "worker_0"}[letter]
        group = decision(0.0, task=task, episode=number, agent=agent, turn=n, parent=n)
        (only,) = group.candidates
        ends = letter == "w" and agents[n + 1 : n + 2] != "w"
        info: dict[str, Any] = {"success": success and n == len(agents) - 1}
        info |= {"parse_error": "why"} if n in unread else {"parse_error": None}
        info |= {"expert": next(worth)} if ends and experts else {}
        groups.append(replace(group, candidates=(replace(only, info=info),)))
    return Trajectory.of(Task(task, 0), number, groups, early={}, cooperative=True)


def test_a_call_is_a_run_of_another_agents_decisions() -> None:
    groups = episode(0, "pwwpwpp").groups
    parents = [[g.key.parent for g in call] for call in calls_of(groups, "planner_0")]
    assert parents == [[1, 2], [4]]
    assert calls_of(episode(0, "pp").groups, "planner_0") == []


# M-GRPO.

M_GRPO = cases("m_grpo")


def test_rewards_of_callers_and_calls_are_those_of_the_table() -> None:
    inputs, expected = M_GRPO["rewards"]["inputs"], M_GRPO["rewards"]["expected"]
    calls = [call_reward(*row) for row in inputs["calls (format, planner correct, expert)"]]
    assert calls == pytest.approx(expected["call rewards"], abs=1e-6)
    callers = [caller_reward(*row) for row in inputs["planner (format, correct)"]]
    assert callers == pytest.approx(expected["planner rewards"], abs=1e-6)


def test_rewards_of_a_record_are_those_of_its_caller_and_its_calls() -> None:
    method = attached("m_grpo")
    played = [
        episode(0, "pwwpwp", success=True, experts=(0.5, 1.0), unread=[4]),
        episode(1, "pp", unread=[0]),
    ]
    called, alone = method.credit(played)
    paid = [group.chosen.reward for group in called.groups]
    assert paid == pytest.approx([1.0, 0.75, 0.75, 1.0, 0.0, 1.0])
    assert [group.chosen.reward for group in alone.groups] == [0.0, 0.0]


def test_calls_are_aligned_as_in_the_table() -> None:
    case = next(case for name, case in M_GRPO.items() if name.startswith("alignment"))
    inputs = case["inputs"]
    weights = aligned(inputs["calls of each episode"], inputs["d"], random.Random(inputs["seed"]))
    assert weights == case["expected"]["weights"]
    assert [sum(times) for times in weights] == case["expected"]["sums"]


def test_calls_are_compared_over_their_copies_as_in_the_table() -> None:
    case = M_GRPO["worker advantages over the aligned calls"]
    flat = [r for rewards in case["inputs"]["call rewards by episode"] for r in rewards]
    times = [n for row in case["inputs"]["weights"] for n in row]
    assert over_copies(flat, times) == pytest.approx(case["expected"]["advantage"], abs=1e-6)


def test_callers_are_compared_as_in_the_table() -> None:
    case = M_GRPO["planner advantages"]
    rewards = case["inputs"]["planner rewards"]
    advantages = over_copies(rewards, [1] * len(rewards))
    assert advantages == pytest.approx(case["expected"]["advantage (1/n)"], abs=1e-6)


def test_the_number_of_calls_covers_nearly_all_episodes_as_in_the_table() -> None:
    case = next(case for name, case in M_GRPO.items() if name.startswith("d from"))
    assert smallest(case["inputs"]["counts"]) == case["expected"]["d"]
    assert smallest([]) == 0


def of_calls(played: list[Trajectory], **settings: Any) -> list[list[float]]:
    """The advantages of each episode's decisions."""
    method = attached("m_grpo", **settings)
    groups = in_order(method.credit(played))
    credited = with_advantages(played, groups, method.advantages(groups))
    return [[g.chosen.advantage for g in trajectory.groups] for trajectory in credited]  # type: ignore[misc]


def test_an_episode_with_more_calls_weighs_no_more() -> None:
    played = [
        episode(0, "pwpwpwpwp", success=True, experts=(1.0, 1.0, 1.0, 1.0)),
        episode(1, "pwp", experts=(0.0,)),
        episode(2, "p"),
    ]
    for arguments in (None, '{"calls": 2}'):
        first, second, third = of_calls(played, method_args=arguments)
        calls = [value for n, value in enumerate(first) if n % 2]
        # Every episode with calls has as many copies: what the good ones gain the others lose.
        assert sum(calls) == pytest.approx(-second[1], abs=1e-3)
        assert sum(calls) > 1
        assert (calls.count(0.0) == 2) == (arguments is not None)
        assert first[0] > second[0] == third[0]
    assert of_calls(played) == of_calls(played)


def test_a_step_without_calls_trains_the_caller_alone() -> None:
    advantages = of_calls([episode(0, "p", success=True), episode(1, "pp")])
    assert advantages[0][0] > 0 > advantages[1][0] == advantages[1][1]


def test_a_call_of_several_turns_has_one_advantage() -> None:
    played = [episode(0, "pwwwp", experts=(1.0,)), episode(1, "pwp", experts=(0.0,))]
    first, second = of_calls(played)
    assert first[1] == first[2] == first[3] > 0 > second[1]


def test_tasks_are_compared_apart() -> None:
    played = [
        episode(n, "pwp", success=n == 0, experts=(float(n),), task=task)
        for task in ("a", "b")
        for n in range(2)
    ]
    advantages = of_calls(played)
    assert advantages[:2] == advantages[2:]


# MATPO.

MATPO = cases("matpo")


def test_a_root_is_paid_as_in_the_table() -> None:
    case = MATPO["reward with the workers' format folded in"]
    rows = case["inputs"]["(correct, planner format, worker formats)"]
    rewards = [root_reward(bool(correct), [planner, *theirs]) for correct, planner, theirs in rows]
    assert rewards == pytest.approx(case["expected"]["reward"], abs=1e-6)


def test_workers_have_the_advantage_of_their_planners_episode() -> None:
    case = MATPO["broadcast"]
    method = attached("matpo")
    # Returns 1, 0.1, 0 and 1 of the table: solved or not, read or not.
    how = [(True, []), (False, []), (False, [0]), (True, [])]
    calls = case["inputs"]["worker calls"]
    played = [
        episode(n, f"p{'wp' * count}", success=success, unread=unread)
        for n, (count, (success, unread)) in enumerate(zip(calls, how, strict=True))
    ]
    credited = method.credit(played)
    groups = in_order(credited)
    assert [round(t.groups[0].episode_return, 6) for t in credited] == case["inputs"][
        "planner returns"
    ]
    values = method.advantages(groups)
    for n, planner in enumerate(case["expected"]["planner"]):
        of_episode = [v for g, v in zip(groups, values, strict=True) if g.key.episode == n]
        assert of_episode == pytest.approx([planner] * (1 + 2 * calls[n]), abs=1e-6)


@pytest.mark.parametrize("norm", ["roots", "replies"])
def test_a_token_weighs_as_much_as_in_the_table(norm: str) -> None:
    case = MATPO["weight of one token of each sequence in the loss"]
    lengths = case["inputs"]["sequence lengths (planner first)"]["rollout 0"]
    played = [episode(0, "pwp", success=True), episode(1, "p")]
    groups = in_order(played)
    credited = in_order(with_advantages(played, groups, [1.0] * len(groups)))
    config = config_of("matpo", loss_norm=norm)
    (batch,) = policy_batches(config, {"p": config}, credited).values()
    assert sum(sample.count for sample in batch.samples) == 4
    rows = {"roots": "over planner rollouts", "replies": "over all sequences"}
    (name,) = [
        n for n in case["expected"] if n.startswith("seq-mean-token-mean") and rows[norm] in n
    ]
    weights = [1 / (length * batch.replies) for length in lengths]
    assert weights == pytest.approx(case["expected"][name][:3], abs=1e-6)


def test_an_episode_without_a_call_counts_for_the_workers_loss_as_well() -> None:
    played = [episode(0, "pwp"), episode(1, "p")]
    groups = in_order(played)
    credited = in_order(with_advantages(played, groups, [1.0] * len(groups)))
    apart = [replace(group, policy=group.key.agent) for group in credited]
    config = config_of("matpo")
    batches = policy_batches(config, {"planner_0": config, "worker_0": config}, apart)
    assert [batch.replies for batch in batches.values()] == [2, 2]


def test_roots_are_for_losses_that_average_over_completions() -> None:
    with pytest.raises(ConfigError, match=r"loss_norm=roots goes with .*, got dapo"):
        ATGRPOConfig(loss_norm="roots")


# MHGPO.


@pytest.mark.parametrize("name", list(cases("mhgpo"))[:3])
def test_outcomes_flow_back_as_in_the_table(name: str) -> None:
    case = cases("mhgpo")[name]
    inputs = case["inputs"]
    shares = flowing(inputs["children"], inputs["outcome (F1)"])
    penalties = inputs.get("penalties", {})
    for node, expected in case["expected"]["reward"].items():
        assert shares[node] + penalties.get(node, 0.0) == pytest.approx(expected, abs=1e-6)


class Outcome(Line):
    """Pays penalties at once, and says an outcome by the last letters of all three."""

    def _act(self, state: Any, agent: str, text: str) -> Any:
        out = super()._act(state, agent, text)
        letters = sorted("".join((*state[1:], text)))
        local = -0.5 if text.startswith("a") else 0.25
        return replace(out, local=local, info={"f1": len(set(letters)) / 8})


@pytest.mark.parametrize("shape", ["episodes", "fork_on_first", "round_robin", "full"])
def test_in_a_forest_a_reply_is_paid_the_mean_outcome_of_its_leaves(shape: str) -> None:
    config = resolve(
        ATGRPOConfig(env="search", method="mhgpo", method_args={"shape": shape}, num_generations=3)
    )
    method = Method.of(config)
    trajectories = play(SHAPES.load(shape).of(3, "first"), Outcome(max_turns=1))
    paid = {(t.task.id, t.episode): t for t in method.credit(trajectories)}

    def leaves(t: Trajectory, depth: int, k: int) -> list[float]:
        """Outcomes below a candidate, by plain recursion."""
        at = depth - t.groups[0].key.parent
        group = t.groups[at]
        first = next(n for n, c in enumerate(group.candidates) if c.chosen)
        forked = [
            other
            for other in trajectories
            if other.task == t.task and other.came_from == (t.episode, depth, k)
        ]
        if k != first and forked:
            t, following = forked[0], forked[0].groups[:1]
        else:
            following = t.groups[at + 1 : at + 2] if k == first else ()
        if not following:
            return [float(group.candidates[k].info["f1"])]
        below = [leaves(t, following[0].key.parent, n) for n in range(len(following[0].candidates))]
        return [sum(leaf_outcomes) / len(leaf_outcomes) for leaf_outcomes in below]

    checked = 0
    for t in trajectories:
        for at, group in enumerate(t.groups):
            for k, candidate in enumerate(group.candidates):
                outcomes = leaves(t, group.key.parent, k)
                expected = sum(outcomes) / len(outcomes) + min(0.0, candidate.local_reward)
                mine = paid[t.task.id, t.episode].groups[at].candidates[k]
                assert mine.reward == pytest.approx(expected)
                checked += 1
    assert checked >= 30
    groups = in_order(list(paid.values()))
    values = dict(
        zip([g.key for g in groups for _ in g.candidates], method.advantages(groups), strict=True)
    )
    if shape == "round_robin":  # what comes before the fork is alone, and silent
        forks = {g.key.task: g.key.parent for g in groups if len(g.candidates) > 1}
        stems = [v for key, v in values.items() if key.parent < forks[key.task]]
        assert stems
        assert set(stems) == {0.0}


def test_agents_are_compared_with_themselves_as_in_the_table() -> None:
    case = cases("mhgpo")["fork on first: chains"]
    config = resolve(ATGRPOConfig(env="search", method="mhgpo", num_generations=3))
    rewards = case["expected"]["reward"]
    groups = [
        decision(rewards[f"{agent}{n}"], agent=agent, episode=n, parent=at)
        for at, agent in enumerate("wsa")
        for n in range(3)
    ]
    advantages = Method.of(config).advantages(groups)
    assert advantages == pytest.approx(list(case["expected"]["advantage"].values()), abs=1e-6)


# What fits what.


@pytest.mark.parametrize("method", ["m_grpo", "matpo"])
def test_a_team_without_a_caller_is_refused_before_anything_is_loaded(method: str) -> None:
    with pytest.raises(ConfigError, match=r"names none in its metadata"):
        plan_run(ATGRPOConfig(env="search", method=method))
    planned = plan_run(ATGRPOConfig(env="search", env_args=NESTED, method=method))
    assert planned.config.method == method


@pytest.mark.parametrize("calls", [0, 1.5, True])
def test_a_number_of_calls_is_a_whole_number(calls: Any) -> None:
    with pytest.raises(ConfigError, match="calls must be a whole number from 1"):
        Method.of(config_of("m_grpo", method_args={"calls": calls}))


def test_parts_that_nobody_attached_say_so() -> None:
    with pytest.raises(ConfigError, match="names no caller"):
        MGrpo(config_of("m_grpo")).attach(search_v0.env(), None)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["m_grpo", "matpo", "mhgpo", "marft_gae"])
def test_a_planner_and_its_worker_are_trained(method: str, tmp_path: Path) -> None:
    summary = pl.train(
        env="search",
        env_args={"topology": "nested"},
        method=method,
        policies="shared" if method == "matpo" else "per-role",
        num_generations=2,
        tasks_per_step=2,
        max_steps=1,
        max_completion_length=4,
        eval_tasks=1,
        eval_steps=0,
        output_dir=str(tmp_path / "run"),
    )
    rows = [
        json.loads(line)
        for line in (summary.folder / "trajectories.jsonl").read_text().splitlines()
    ]
    assert {d["agent"] for row in rows for d in row["decisions"]} <= {"planner_0", "worker_0"}
