"""Reward transforms: what the comparison of completions sees of the rewards that were paid.

| name | a completion is worth |
|---|---|
| `as_paid` | what the environment paid for it |
| `shared` | what all agents were paid in its round (CORY, arXiv 2410.06101) |
| `maporl` | its own score and the mean scores of later rounds of the debate (MAPoRL, arXiv 2502.18439) |

Success, validations and the rewards in the logs stay those of the environment, so that a transform
cannot flatter a result. A transform of one's own is a subclass of
`pettingllms.trainers.rewards.base.RewardTransform`, given as
`--reward-transform my_package.my_module:MyTransform`. A function that pays for a completion by
itself is simpler: `reward_funcs`.
"""

from __future__ import annotations

from pettingllms.registry import Registry

REWARD_TRANSFORMS = Registry(
    "reward_transform",
    {
        "as_paid": "pettingllms.trainers.rewards.base:RewardTransform",
        "shared": "pettingllms.trainers.rewards.shared:SharedRewards",
        "maporl": "pettingllms.trainers.rewards.maporl:Debate",
    },
)
