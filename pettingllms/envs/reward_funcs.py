"""Reward functions of a user's own, added to what an environment pays; called as TRL calls them.

    def brevity(completions, **kwargs):
        return [-0.001 * len(text) for text in completions]

A function gets lists with an entry for each completion of one prompt: `prompts`, `completions` (as
written, with a thought), `completion_ids` (their tokens; None outside of a rollout), `agent`, `role`,
`info` (the environment's of this step), and the columns of the task's row (`TextEnv.reward_columns`);
and `trainer_state`, with `global_step` and `max_steps`. It takes those that it names, or all by `**kwargs`, and returns a
number for each, or None where it does not apply. The sum goes to the author's local reward; each
value is kept in the info, as `rewards/<name>`. Functions are called on several threads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from numbers import Real
from typing import Any

from pettingllms.envs.records import Outcome
from pettingllms.errors import ConfigError
from pettingllms.registry import resolve

RewardFunction = Callable[..., Sequence[float | None]]


def reward_functions(given: str | RewardFunction | Sequence[Any] | None) -> list[RewardFunction]:
    """Returns functions that are given by themselves or by paths `module:attribute`.

    Raises:
        ConfigError, UnknownNameError: something else, or a path that leads to no function.
    """
    if given is None:
        return []
    if isinstance(given, str):
        # The command line and configuration files hold several paths as one text.
        given = [resolve(path.strip(), "reward function") for path in given.split(",")]
    functions: list[RewardFunction] = []
    for source in given if isinstance(given, Sequence) else [given]:
        if isinstance(source, str):
            functions += reward_functions(source)
        elif callable(source):
            functions.append(source)
        else:
            raise ConfigError(
                f"reward_funcs takes functions or their paths, got {source!r}; a function returns a "
                "number for each completion"
            )
    return functions


def name_of(function: RewardFunction) -> str:
    """Returns the path of a function, as settings hold it."""
    # An instance with `__call__` has no name of its own.
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def columns_of(state: Any) -> dict[str, Any]:
    """Returns the fields of the task that a state holds, by name, not copied; none where it holds none."""
    records = (getattr(state, name, None) for name in ("task", "problem", "question"))
    record: Any = next(filter(is_dataclass, records), None)
    names = [field.name for field in fields(record)] if record else []
    return {"question" if name == "text" else name: getattr(record, name) for name in names}


def paid(
    functions: Sequence[RewardFunction],
    outcomes: Sequence[Outcome],
    more: Mapping[str, Any] | None = None,
    *,
    agent: str,
    prompt: str,
    replies: Sequence[str],
) -> list[Outcome]:
    """Returns the outcomes of replies to one prompt, with what the functions pay for each.

    Args:
        functions: asked one after the other.
        outcomes: of the replies.
        more: further arguments: `completion_ids` and `trainer_state` as they are, other values for each
            reply.
        agent: that replied.
        prompt: that it was shown.
        replies: as written.

    Raises:
        ConfigError: a function returns something else than a number or None for each.
    """
    paid_for = list(outcomes)
    for function in functions:
        count, label = len(replies), name_of(function).rpartition(":")[2]
        arguments = {
            name: value if name in ("completion_ids", "trainer_state") else [value] * count
            for name, value in (more or {}).items()
        } | {
            "prompts": [prompt] * count,
            "completions": list(replies),
            "agent": [agent] * count,
            "role": [agent.rpartition("_")[0]] * count,
            # The environment's infos, copied: no function sees what another one paid, or changes
            # them.
            "info": [dict(outcome.info) for outcome in outcomes],
        }
        takes = inspect.signature(function).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
            arguments = {name: value for name, value in arguments.items() if name in takes}
        values = function(**arguments)
        for place, value in enumerate(_checked(values, count, label)):
            one = paid_for[place]
            info: Mapping[str, Any] = {**one.info, f"rewards/{label}": value}
            paid_for[place] = replace(one, local=one.local + (value or 0.0), info=info)
    return paid_for


def _checked(values: Any, count: int, label: str) -> list[float | None]:
    try:
        # Any iterable will do, but a function that forgot its `return` has given None.
        rewards = list(values)
    except TypeError:
        rewards = []
    if len(rewards) != count or not all(
        reward is None or isinstance(reward, Real) for reward in rewards
    ):
        raise ConfigError(
            f"the reward function {label} returned {values!r:.200} for {count} completions; it must "
            "return a list with a number, or None, for each"
        )
    return [None if reward is None else float(reward) for reward in rewards]
