"""`check_env`: does an environment keep the promises that training on it needs?

PettingZoo's `api_test` and `seed_test` check the interface. They cannot see what tree rollouts
and reinforcement learning on model text rely on: copies that play on exactly like the original,
observing that changes nothing, rewards that add up, hostile replies, other processes, other
splits. Those are checked here: what must hold at any moment in `check_moments`, what must hold
between two runs in `check_replays`.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial

from pettingllms.envs import check_moments, check_replays
from pettingllms.envs.base import TextEnv
from pettingllms.envs.foreign import AnyEnv, clone_env, load_env
from pettingllms.envs.trace import Subject

logger = logging.getLogger(__name__)

PARTS = (
    check_moments.spaces,
    check_moments.episodes,
    check_moments.hostile_replies,
    check_replays.copies,
    check_replays.seeds,
    check_replays.splits,
    check_replays.processes,
)


def check_env(
    env_or_factory: AnyEnv | Callable[..., AnyEnv] | str,
    *,
    episodes: int = 3,
    seed: int = 0,
    replies: Sequence[str] = (),
) -> None:
    """Plays an environment in many ways and raises at the first promise that it breaks.

    Checked for every PettingZoo AEC environment: spaces and keys; real bools and finite rewards;
    `step` returns None; observing changes nothing and is possible for every live agent; no text
    raises or takes long; copies play on exactly and leave the original alone; `reset(seed)`
    decides everything, without the global random generators and in every process.

    Only for a `TextEnv`: snapshots, the parts of the reward, one success for all agents,
    truncation at exactly `max_turns`, over-long replies, splits.

    Args:
        env_or_factory: an instance (it is left as it is), a function that makes one, or a
            registered name or `module:attribute` path. What cannot be checked is logged as
            skipped: splits of an instance or of a function that takes no `split`, and other
            processes where they cannot import the function.
        episodes: episodes to play in each check.
        seed: seed of the first of them.
        replies: texts that the environment understands. Without them only random text is played,
            which most environments cannot read, so that little of their logic runs.

    Raises:
        ConformanceError: names the promise, what was seen, and what to do.
        ConfigError: observations without text.
        CloneError: the environment cannot be copied.
    """
    subject = _subject(env_or_factory, episodes, seed, tuple(replies))
    for part in PARTS:
        skipped = part(subject)
        if skipped is not None:
            logger.warning("check_env did not check %s: %s", part.__name__, skipped)


def _subject(
    given: AnyEnv | Callable[..., AnyEnv] | str, episodes: int, seed: int, replies: tuple[str, ...]
) -> Subject:
    make: Callable[..., AnyEnv]
    path: str | None
    if isinstance(given, str):
        make, path, splits = partial(load_env, given), given, True
    elif callable(given):
        make, path, splits = given, _import_path(given), _takes(given, "split")
    else:
        make, path, splits = partial(clone_env, given), None, False
    splits = splits and isinstance(make(), TextEnv)
    return Subject(make, path, splits, episodes, seed, replies)


def _import_path(function: Callable[..., AnyEnv]) -> str | None:
    """`module:attribute` of a function, where another process can import it by that."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", "")
    if module in (None, "__main__"):
        return None
    found = getattr(sys.modules.get(module), name, None)
    return f"{module}:{name}" if found is function else None


def _takes(function: Callable[..., AnyEnv], keyword: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == keyword or p.kind is p.VAR_KEYWORD for p in parameters)
