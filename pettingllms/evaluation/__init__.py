"""Evaluation on held-out tasks: one completion a decision, scores of the team and of each role.

Every task has a number of episodes, without branching. Every score has a 95 %
interval over tasks: Wilson's for shares of successes or completions, a bootstrap for the others.

| score | mean over tasks of |
|---|---|
| `success` | episodes at whose end the team has succeeded (absent if the environment does not report it) |
| `overlong` | episodes that ended early because a prompt left no room for a completion in the model's context; they keep what they earned and are no success (absent if there are none) |
| `pass@k` | the unbiased chance that at least one of k episodes succeeds, if a task has more than one |
| `maj@n` | whether the answer that most of a task's n episodes end with is right, ties to the first, if n is at least 3 and the environment notes `answer` (math and search do); MALT's vote at inference |
| `env/<name>/success` | success on the tasks of one of several environments |
| `difficulty/<d>/success` | success on the tasks whose first info has `difficulty` d |
| `turns` | decisions of the agent that took most in an episode |
| `return` | what an episode earned the team |
| `return/<agent>` | what an episode earned the agent, at any agent's step (environments without a team reward) |
| `win/<agent>`, `draws` | share of episodes in which the agent alone has the highest return, or no agent has; only if the agents' returns add up to the same in every episode |
| `decisions` | decisions of an episode, all roles |
| `tokens` | generated tokens of an episode, all roles, with those of replies that a gate refused |
| `<role>/reward`, `/team_reward`, `/local_reward` | what a completion earned |
| `<role>/first_local_reward` | what an agent's first completion of an episode earned: the first turn of a task is the same problem for every team |
| `<role>/first_<key>` | a number that the environment reports of that first completion, 0 if it reports none (unparsable): `coder/first_passed` is the share of hidden tests passed |
| `<role>/parse_error` | share of completions that could not be parsed |
| `<role>/tokens` | tokens of a completion |
| `<role>/truncated` | share of completions cut at the token limit |
| `<role>/refused` | share of answers in which a model behind an API refused or wrote no text (absent if there are none) |
| `<role>/turns` | completions of this role in an episode |
| `<role>/status/<s>` | share of a completion's program runs that ended so in the sandbox, if its info has `statuses` |

An environment may put into `infos[agent]` for this: `success`, `parse_error`, `statuses` (a list of
words, one for each run of the completion's program), `difficulty` (a word or number, the same at
every step of a task), and numbers of its own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pettingllms.envs.aec import roles_of, seats_of
    from pettingllms.evaluation.rollouts import evaluate, held_out
    from pettingllms.evaluation.scores import Evaluation
    from pettingllms.statistics import Estimate

__all__ = ["Estimate", "Evaluation", "evaluate", "held_out", "roles_of", "seats_of"]


def __getattr__(name: str) -> Any:
    # When first used: the settings alone, which --help shows, need no torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "scores" if name in ("Estimate", "Evaluation") else "rollouts"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
