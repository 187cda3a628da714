"""Room in the context: no completion is sampled where its prompt and its limit exceed the model's.

The weights of such a model have never seen the positions beyond, or are computed in another way
there. The episode ends where it would happen, keeps what it has earned, and is no success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pettingllms.errors import ConfigError
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.samplers.base import Sampler


def longest_prompts(sampler: Sampler, max_new_tokens: int) -> dict[str, int]:
    """Policy -> the most tokens that its prompts may have; without those that have no known bound.

    Raises:
        ConfigError: there is no room for any prompt of a policy.
    """
    # Samplers without a model, such as a scripted one, have no context that could be exceeded.
    contexts: Mapping[str, int] = getattr(sampler, "contexts", {})
    for policy, context in contexts.items():
        if context <= max_new_tokens:
            whose = f", which plays {policy}" if len(set(contexts.values())) > 1 else ""
            raise ConfigError(
                f"completions of {max_new_tokens} tokens leave no room for a prompt in the model's "
                f"context of {context}{whose}; lower --max-completion-length to {context // 2} or less"
            )
    return {policy: context - max_new_tokens for policy, context in contexts.items()}


def check_room(episodes: Sequence[Trajectory], max_new_tokens: int) -> None:
    """Refuses to score episodes of which none could begin.

    Raises:
        ConfigError: every first prompt leaves too little room in the model's context.
    """
    if episodes and all(each.overlong is not None and not each.groups for each in episodes):
        raise ConfigError(f"there is nothing to score: {overlong_note(episodes, max_new_tokens)}")


def overlong_note(episodes: Sequence[Trajectory], max_new_tokens: int) -> str:
    """States which episodes a prompt without room ended, and what to do; empty where there are none."""
    found = [each for each in episodes if each.overlong is not None]
    prompts = [each.overlong for each in found if each.overlong is not None]
    if not prompts:
        return ""
    agent, tokens, longest = prompts[0]
    context = longest + max_new_tokens
    room = context - max(each.prompt_tokens for each in prompts)
    lower = f"lower --max-completion-length to {room} or less, " if room > 0 else ""
    return (
        f"{len(found)} of {len(episodes)} episodes ended early, as no success, because a prompt and "
        f"a completion of up to {max_new_tokens} tokens exceed the model's context of {context}: "
        f"the first is task {found[0].task.id}, where {agent} is asked with {tokens} tokens; "
        f"{lower}choose a --model with a longer context, or arguments of the environment with which "
        "its prompts are shorter"
    )
