"""Estimators: what a completion is compared with, and what that makes it worth.

| name | compared within | compared by | rollout |
|---|---|---|---|
| `at_grpo` | task, episode, role, turn, parent | reward of the decision | tree: K candidates of one prompt, one is played on |
| `grpo` | task | return of the episode | K episodes a task |
| `agent` | task, agent | return of the episode | K episodes a task (Dr. MAS, arXiv 2602.08847) |
| `turn` | task, turn | return of the episode | K episodes a task |

A return is the sum of the very rewards that `at_grpo` compares, of all roles and turns, so that
these estimators differ in grouping alone. Where agents have returns of their own (environments
without a team reward), it is the agent's own, rewards paid at other agents' steps included.

An estimator of one's own is a subclass of `pettingllms.trainers.estimators.base.Estimator`, given as
`--estimator my_package.my_module:MyEstimator`.
"""

from __future__ import annotations

from pettingllms.registry import Registry

ESTIMATORS = Registry(
    "estimator",
    {
        "at_grpo": "pettingllms.trainers.estimators.group_relative:AtGrpo",
        "grpo": "pettingllms.trainers.estimators.group_relative:Grpo",
        "agent": "pettingllms.trainers.estimators.group_relative:PerAgent",
        "turn": "pettingllms.trainers.estimators.group_relative:PerTurn",
    },
)
