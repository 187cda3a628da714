"""The environment with dials: what is shown and paid, and that no policy beats the bounds that it states."""

from __future__ import annotations

import itertools
import statistics

import pytest

from benchmarks.constant_answers import blind_baseline
from pettingllms.envs import make
from pettingllms.envs.duet_v0 import DuetState, best_decisions, right_answers
from pettingllms.errors import ConfigError


def episodes(rho, q):
    """A small duet, and every first turn of it with its probability: states and their weights."""
    env = make("duet", rho=rho, q=q, inputs=2, answers=2, prompt="compact")
    env.reset(seed=0)
    for number, left, right in itertools.product(range(2), (True, False), (True, False)):
        weight = ((1 - q) if left else q) * ((1 - q) if right else q) / 2
        yield env, DuetState((number,), (left,), right), weight


def chances(env, state, policies):
    """The probability that each role is right; a policy maps prompts to chances of the first answer."""
    for role, policy, right in zip(("left", "right"), policies, env.right.values(), strict=True):
        first = policy[env._text(state, f"{role}_0")]
        yield first if right[state.inputs[0]] == 0 else 1 - first


def reached(rho, q, policies):
    """Right decisions, and episodes in which both are right."""
    decisions = both = 0.0
    for env, state, weight in episodes(rho, q):
        left, right = chances(env, state, policies)
        decisions += weight * (left + right) / 2
        both += weight * left * right
    return decisions, both


@pytest.mark.parametrize(("rho", "q"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.5), (1.0, 1.0), (1.0, 0.0)])
def test_the_stated_optimum_is_that_of_all_policies(rho, q):
    prompts = sorted({env._text(s, a) for env, s, _ in episodes(rho, q) for a in env.agents})
    best = {}
    for steps in ((0.0, 1.0), (0.0, 0.5, 1.0)):
        # Prompts with the role's name have one right answer, so that only the others can want a draw.
        some = [steps if len(prompt.split()) == 2 else (0.0, 1.0) for prompt in prompts]
        shared = [dict(zip(prompts, values, strict=True)) for values in itertools.product(*some)]
        outcomes = [reached(rho, q, (policy, policy)) for policy in shared]
        best[len(steps)] = [max(values) for values in zip(*outcomes, strict=True)]
    assert best[2][0] == best[3][0] == pytest.approx(best_decisions(rho, q, shared=True))
    assert best[2][1] == pytest.approx(1 - rho * q)
    assert best[3][1] == pytest.approx(1 - rho * (1 - (1 - q / 2) ** 2))
    alone = [{p: float(right[n] == 0) for env, s, _ in episodes(rho, q) for n in s.inputs
              for p in [env._text(s, f"{role}_0")]}
             for role, right in zip(("left", "right"), env_of(rho, q).right.values(), strict=True)]  # fmt: skip
    assert reached(rho, q, alone) == pytest.approx((1.0, 1.0))
    assert best_decisions(rho, q, shared=False) == 1


def env_of(rho, q):
    return next(episodes(rho, q))[0]


def test_right_answers_differ_for_the_share_that_was_asked_for_and_follow_from_the_key():
    for rho in (0, 0.25, 1):
        left, right = right_answers(rho, 3, 32, 8).values()
        assert sum(a != b for a, b in zip(left, right, strict=True)) == 32 * rho
        assert sorted(left) == sorted(list(range(8)) * 4)
    assert (
        right_answers(0.5, 1, 32, 8) == right_answers(0.5, 1, 32, 8) != right_answers(0.5, 2, 32, 8)
    )


def test_the_team_is_paid_once_for_both_answers_to_the_first_phrase():
    env = make("duet", mass=3, rho=1.0, q=0.0, prompt="compact")
    env.reset(seed=1)
    paid, spoke = [], []
    for agent in env.agent_iter():
        if env.terminations[agent]:
            env.step(None)
            continue
        role = agent.removesuffix("_0")
        assert env.observe(agent)["text"].startswith(f"{role} ")
        number, _ = env._asked(env._state, agent)
        env.step(env.answers[env.right[role][number]])
        spoke.append(role)
        paid.append((env.infos[agent]["local_reward"], env.infos[agent]["team_reward"]))
        assert env.infos[agent]["right"]
    assert spoke == ["left", "right", "left", "left"]
    assert paid == [(1.0, 0.0), (1.0, 1.0), (1.0, 0.0), (1.0, 0.0)]


def test_an_answer_of_the_other_role_is_wrong_and_no_answer_costs():
    env = make("duet", rho=1.0)
    for reply, local, right in (("other", 0.0, False), ("maybe", -0.1, False), ("", -0.1, False)):
        env.reset(seed=0)
        number = env._state.inputs[0]
        other = env.answers[env.right["right"][number]]
        env.step(other if reply == "other" else reply)
        info = env.infos["left_0"]
        assert (info["local_reward"], info["right"]) == (local, right)
        env.step(other)
        assert (env.infos["right_0"]["local_reward"], env.infos["right_0"]["team_reward"]) == (1, 0)


def test_a_share_of_the_prompts_names_no_role():
    env = make("duet", q=0.25, prompt="compact")
    texts = []
    for seed in range(400):
        env.reset(seed=seed)
        texts += [env.observe(agent)["text"] for agent in env.agents]
    assert sum(len(text.split()) == 2 for text in texts) / 800 == pytest.approx(0.25, abs=0.05)


def test_a_constant_word_is_right_as_often_as_chance():
    best = blind_baseline(make("duet", rho=0.0, split="test"), episodes=400)[0]
    assert best.success == pytest.approx(1 / 8, abs=0.05)
    assert blind_baseline(make("duet", rho=1.0), episodes=50)[0].success == 0


@pytest.mark.parametrize("agreement", [-1.0, -0.5, 0.0, 0.5])
def test_local_rewards_of_right_agree_with_being_right_as_far_as_said(agreement):
    env = make("duet", agreement=agreement, prompt="compact")
    for number, answer in enumerate(env.right["right"]):
        paid = []
        for word in env.answers:
            env.reset(seed=0)
            env._state = DuetState((number,), (True,), True)
            env.step("other")
            env.step(word)
            paid.append(env.infos["right_0"]["local_reward"])
        right = [float(n == answer) for n in range(len(env.answers))]
        assert statistics.correlation(paid, right) == pytest.approx(agreement, abs=1e-6)
        assert statistics.fmean(paid) == pytest.approx(1 / 8)
        assert statistics.pstdev(paid) == pytest.approx(statistics.pstdev(right))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rho": 1.5}, "rho must be a number from 0 to 1, got 1.5"),
        ({"q": True}, "q must be a number"),
        ({"agreement": -1.5}, "agreement must be a number from -1 to 1, got -1.5"),
        ({"agreement": 0.0, "answers": 2}, "answers must be a whole number from 3 to 16"),
        ({"mass": 0}, "mass must be a whole number from 1 to 8"),
        ({"inputs": 65}, "inputs must be a whole number from 2 to 64"),
        ({"answers": 1.0}, "answers must be"),
        ({"key": -1}, "key must be"),
    ],
)
def test_a_dial_out_of_its_range_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        make("duet", **arguments)
