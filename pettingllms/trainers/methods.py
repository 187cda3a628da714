"""Methods of the literature as settings: `--method NAME` fills in what is not given.

A method here is an estimator (`pettingllms.trainers.estimators`), a rollout shape
(`pettingllms.rollout.shapes`), a reward transform (`.rewards`), a cast (`.casts`), a loss
(`.losses`) and their options. What the settings do not cover, such as an
environment with its own workflow, a method's description says.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Method(NamedTuple):
    """A named set of settings."""

    about: str
    source: str
    settings: Mapping[str, Any]


def _method(about: str, source: str, **settings: Any) -> Method:
    # Read-only, because every configuration is filled in from these same objects.
    return Method(about, source, MappingProxyType(settings))


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "at_grpo": _method(
            "K completions of one prompt are compared; the episode continues from one of them",
            "arXiv 2510.11062",
            estimator="at_grpo",
        ),
        "look_ahead": _method(
            "AT-GRPO with candidates compared by what they lead to, for outcomes paid at the end",
            "arXiv 2410.01679, 2412.01928",
            estimator="look_ahead",
            # The best of K would lead into states that a policy rarely reaches by itself.
            branch="sample",
        ),
        "grpo": _method(
            "K episodes of a task are compared by return", "arXiv 2402.03300", estimator="grpo"
        ),
        "dr_mas": _method(
            "Each agent's decisions are compared with its own, over all of its calls in the K episodes",
            "arXiv 2602.08847",
            estimator="agent",
        ),
        "gigpo": _method(
            "Episodes are compared, and so are the steps that they took from equal states",
            "arXiv 2505.10978",
            estimator="gigpo",
        ),
        "gdpo": _method(
            "Team and local reward are scaled apart before they are added",
            "arXiv 2601.05242",
            estimator="gdpo",
        ),
        "rae": _method(
            "A running mean of each role's return is its baseline: one episode a task, for self-play",
            "SPIRAL, arXiv 2506.24119",
            estimator="rae",
            num_generations=1,
        ),
        "igrpo": _method(
            "The best of K drafts goes into the prompt of the second turn, and only that turn is "
            "trained; for a single agent with two turns",
            "arXiv 2602.09000",
            estimator="at_grpo",
            branch="best",
            train_turns="1",
        ),
        "mlpo": _method(
            "A leader, the role `judge`, learns to use frozen peers; for a team with a judge",
            "arXiv 2507.08960",
            estimator="at_grpo",
            train_roles="judge",
            scale_rewards="none",
        ),
        "marft": _method(
            "Whole episodes are compared, and the agents learn one after the other, a step each; "
            "without the paper's critic",
            "arXiv 2504.16129",
            estimator="agent",
            cast="alternate",
        ),
        "marft_gae": _method(
            "MARFT with the paper's critic: advantages run along the chain of the team's decisions",
            "arXiv 2504.16129",
            estimator="gae",
            cast="alternate",
        ),
        "cory": _method(
            "A pioneer and an observer are paid the sum of both and change places every five steps; "
            "for two trained policies, such as two reasoners in math",
            "arXiv 2410.06101",
            estimator="agent",
            reward_transform="shared",
            cast="swap",
        ),
        "maporl": _method(
            "A debate pays an answer for its own score and for those of later rounds; for teams of "
            "several reasoners in math",
            "arXiv 2502.18439",
            estimator="agent_turn",
            estimator_args='{"by": "reward"}',
            reward_transform="maporl",
        ),
        "m_grpo": _method(
            "Callers are compared with callers and calls with calls, of which every episode counts as "
            "many; for a planner with workers",
            "arXiv 2511.13288",
            estimator="m_grpo",
            reward_transform="m_grpo",
        ),
        "matpo": _method(
            "Workers learn with the advantage of the planner's episode that called them, and a loss is "
            "divided by episodes; for a planner with workers of one policy, --policies shared",
            "github.com/mzf666/MATPO",
            estimator="grpo",
            reward_transform="matpo",
            loss_type="grpo",
            # It divides a mean over completions, and the default loss averages over tokens.
            loss_norm="roots",
        ),
        "mhgpo": _method(
            "The outcome flows back from who used a reply to who wrote it; episodes fork at one "
            "agent's decision, another's from task to task",
            "arXiv 2506.02718",
            estimator="agent",
            estimator_args='{"by": "reward"}',
            shape="round_robin",
            reward_transform="flow",
        ),
        "cure": _method(
            "Programs and tests judge each other: a test earns by telling the right programs of the "
            "step from the wrong ones; for a coder with a tester",
            "arXiv 2506.03136",
            estimator="cure",
            reward_transform="cure",
            branch="sample",
        ),
        "malt": _method(
            "Records full trees and trains nothing: `pettingllms-data pairs` writes what is better "
            "among siblings for TRL's SFTTrainer and DPOTrainer",
            "arXiv 2412.01928",
            estimator="look_ahead",
            shape="full",
            num_generations=3,
            num_iterations=0,
        ),
        "dr_grpo": _method(
            "GRPO without the deviation and with one divisor for all lengths",
            "arXiv 2503.20783",
            estimator="grpo",
            loss_type="dr_grpo",
            scale_rewards="none",
        ),
        "gspo": _method(
            "GRPO with one ratio for a whole completion",
            "arXiv 2507.18071",
            estimator="grpo",
            loss_type="grpo",
            # It needs a loss over completions, and the default averages over tokens.
            importance_sampling_level="sequence",
        ),
        "cispo": _method(
            "GRPO in which a clipped ratio weighs a token instead of silencing it",
            "arXiv 2506.13585",
            estimator="grpo",
            loss_type="cispo",
        ),
        "sapo": _method(
            "GRPO with a soft gate in place of the clip",
            "arXiv 2511.20347",
            estimator="grpo",
            loss_type="sapo",
        ),
    }
)
