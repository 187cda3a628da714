"""Estimators: what a completion is compared with, and what that makes it worth.

| name | compared within | compared by | rollout |
|---|---|---|---|
| `at_grpo` | task, episode, role, turn, parent | reward of the decision | tree: K candidates of one prompt, one is played on |
| `look_ahead` | as `at_grpo` | reward of the decision and what followed it | tree in which every candidate is played to the end |
| `gdpo` | as `at_grpo` | each part of the reward, scaled by itself | tree (arXiv 2601.05242) |
| `cure` | as `at_grpo` | reward of the decision; divided by the deviation of the population | tree (CURE, arXiv 2506.03136) |
| `grpo` | task; an episode counts once | return of the episode | K episodes a task (arXiv 2402.03300) |
| `decision` | task; an episode counts once a decision | return of the episode | K episodes a task |
| `agent` | task, agent | return of the episode | K episodes a task (Dr. MAS, arXiv 2602.08847) |
| `turn` | task, turn | return of the episode | K episodes a task |
| `agent_turn` | task, agent, turn | return of the episode | K episodes a task |
| `gigpo` | task; and task, agent, equal prompt | return; and discounted rewards to go | K episodes a task (arXiv 2505.10978) |
| `m_grpo` | task, agent; an episode counts once, and so does a call, of which all have as many | reward of the caller's episode; of the call | K episodes a task (M-GRPO, arXiv 2511.13288) |
| `gae` | a critic's expectation at the decision | rewards to go, by gamma and lambda | 1 or more episodes a task (MARFT, arXiv 2504.16129) |
| `rae` | the role's own past | return of the episode | 1 or more episodes a task (SPIRAL, arXiv 2506.24119) |

Where agents of an episode have different returns (a game, `share_team_reward`, some reward transforms), `grpo`, `decision`, `turn`
and `gigpo` compare an agent with itself. Until 0.1.0 they mixed agents, whose scales then decided each other's signs.

In a team that acts in a fixed cycle every agent has equally many decisions, so that `agent` and
`decision` differ by a constant factor only: Dr. MAS needs a team whose calls vary.

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
        "grpo": "pettingllms.trainers.estimators.grpo:Grpo",
        "decision": "pettingllms.trainers.estimators.group_relative:PerDecision",
        "agent": "pettingllms.trainers.estimators.group_relative:PerAgent",
        "turn": "pettingllms.trainers.estimators.group_relative:PerTurn",
        "agent_turn": "pettingllms.trainers.estimators.group_relative:PerAgentTurn",
        "gigpo": "pettingllms.trainers.estimators.gigpo:Gigpo",
        "look_ahead": "pettingllms.trainers.estimators.look_ahead:LookAhead",
        "gdpo": "pettingllms.trainers.estimators.gdpo:Gdpo",
        "m_grpo": "pettingllms.trainers.estimators.m_grpo:MGrpo",
        "gae": "pettingllms.trainers.estimators.gae:Gae",
        "cure": "pettingllms.trainers.estimators.cure:Cure",
        "rae": "pettingllms.trainers.estimators.rae:Rae",
    },
)
