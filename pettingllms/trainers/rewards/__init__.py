"""Reward transforms: what the comparison of completions sees of the rewards that were paid.

| name | a completion is worth |
|---|---|
| `as_paid` | what the environment paid for it |
| `shared` | what all agents were paid in its round (CORY, arXiv 2410.06101) |
| `maporl` | its own score and the mean scores of later rounds of the debate (MAPoRL, arXiv 2502.18439) |
| `m_grpo` | form and success of its episode, and of its call what the call was worth (M-GRPO, arXiv 2511.13288) |
| `matpo` | form and success of the episode with all of its calls, at the end (MATPO) |
| `flow` | the mean of what the replies that used it are worth (MHGPO, arXiv 2506.02718) |
| `cure` | of a program, the hidden tests that it passes; of a test, how it tells the right programs of the step from the wrong ones (CURE, arXiv 2506.03136) |

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
        "m_grpo": "pettingllms.trainers.rewards.m_grpo:CallRewards",
        "matpo": "pettingllms.trainers.rewards.matpo:RootRewards",
        "flow": "pettingllms.trainers.rewards.flow:Flow",
        "cure": "pettingllms.trainers.rewards.cure:MutualRewards",
    },
)
