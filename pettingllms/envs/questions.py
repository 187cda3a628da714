"""Questions of a user's own: what a role is asked, and a whole team's play on one.

An environment whose tasks are questions plays a free one after `reset(options={"question": text})`: by the
same rules, without what only a data set knows (hidden tests, a reference answer), so that nothing is
scored. It says so by naming `question` in `reset_options`, and gives the team's answer in `answer()`.
Where a task is a board, a free question makes no sense, and there is neither.

A role's prompt for a question is its first observation of that episode. It has to be some text,
the question, and some text, so that it can be shown and used without the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pettingllms.envs.aec import AnyEnv, clone_env, observe_text
from pettingllms.envs.team_env import TeamEnv
from pettingllms.names import role_of

OPTION = "question"
"""The key of `reset(options=...)`."""
PLACE = "{question}"
"""Stands for the question where a prompt is shown."""
# Random digits, which no environment's prompt contains by itself.
_MARK = "a7c91e5d the question 5d1e97ca"


class RolePrompt(NamedTuple):
    """The text around a question in the prompt of a role's first turn."""

    before: str
    after: str

    def of(self, question: str) -> str:
        """The prompt for a question."""
        return f"{self.before}{question}{self.after}"


def role_prompts(env: AnyEnv) -> Mapping[str, RolePrompt]:
    """Role -> its prompt for a question; nothing for environments that take none."""
    inner = env.unwrapped
    if not (isinstance(inner, TeamEnv) and OPTION in inner.reset_options):
        return {}
    # On a copy, because the caller may be in the middle of an episode.
    asked = clone_env(env)
    asked.reset(seed=0, options={OPTION: _MARK})
    prompts: dict[str, RolePrompt] = {}
    for agent in asked.possible_agents:
        before, mark, after = observe_text(asked, agent).partition(_MARK)
        # A question that is shown twice has no one place where another could be put.
        if not mark or _MARK in after:
            return {}
        prompts.setdefault(role_of(agent), RolePrompt(before, after))
    return prompts
