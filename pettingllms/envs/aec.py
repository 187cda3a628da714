"""Any PettingZoo AEC environment, or several: found by name or path, copied, and read as text.

Environments of this package promise more than PettingZoo asks for (`TextEnv`). The functions
here ask for less, so that a third party's environment can be trained on unchanged: a PettingZoo
AEC environment, observations that are text or a dict with a `text` key, actions that are text,
and an exact copy by `copy.deepcopy`. `check_env` finds out whether one qualifies.

Rewards. An environment that is not a `TextEnv` has no team reward; the reward that `env.rewards`
holds for an agent after its own step is its local reward. A reward at another agent's step (for the
loser of a match, or for everyone at the end of a round) is the late reward of the agent's latest
decision: part of its return, which the estimators over whole episodes compare. A tree compares
immediate rewards, because only one of its candidates has a future; where rewards come late, use an
estimator over episodes.
"""

from __future__ import annotations

import copy
import functools
import inspect
import io
import math
import operator
import pickle
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import pettingzoo
from gymnasium.utils import EzPickle
from pettingzoo import AECEnv
from pettingzoo.env_registry.exceptions import PettingZooRegistryError
from pettingzoo.utils.wrappers.base import BaseWrapper

from pettingllms.envs import arguments
from pettingllms.envs.base import TextEnv
from pettingllms.envs.several import SeveralEnvs
from pettingllms.errors import (
    CloneError,
    ConfigError,
    PettingLLMsError,
    UnknownNameError,
    did_you_mean,
)
from pettingllms.names import role_of
from pettingllms.registry import Registry, resolve

AnyEnv = AECEnv[Any, Any, Any]
NAMESPACE = "pettingllms/"

ENVIRONMENTS = Registry(
    "environment",
    {
        "coding": "pettingllms.envs.coding_v0:env",
        "duet": "pettingllms.envs.duet_v0:env",
        "math": "pettingllms.envs.math_v0:env",
        "plan_path": "pettingllms.envs.plan_path_v0:env",
        "read": "pettingllms.envs.read_v0:env",
        "search": "pettingllms.envs.search_v0:env",
        "sokoban": "pettingllms.envs.sokoban_v0:env",
        "sudoku": "pettingllms.envs.sudoku_v0:env",
    },
)
"""The one table of environments. A new one is its own file and a line here; `load_env`, PettingZoo's
registry, the command line and the tests find it from there."""


MOVED = ("crew", "debugging", "signal")
"""Examples of the repository, which a checkout still knows by these names."""
BRIDGES = {
    "judged": "pettingllms.envs.judged:env",
    "program": "pettingllms.envs.program_v0:env",
    "textarena": "pettingllms.contrib.games.textarena_v0:env",
    "pettingzoo": "pettingllms.contrib.games.classic_v0:env",
}
"""What makes environments of something else: `textarena:TicTacToe-v0`, `program:my_team.py:solve`."""
Entries = dict[str, tuple[str, float]]
"""Name -> environment and weight."""
_NAMED = re.compile(r"(?!{)[^:/.=]*[=,]")


# Positional only, because an environment may have an argument called `name` itself.
def load_env(name: str, /, **kwargs: Any) -> AnyEnv:
    """Makes an environment from its name or its path.

    Args:
        name: a registered name (`coding`, one that another package offers, `coding_v0`,
            `pettingllms/coding-v0`, or any other id in PettingZoo's registry); a game of another
            library (`textarena:TicTacToe-v0`); `module:attribute` or `path/to/file.py:attribute`, where
            the attribute is called with `kwargs` and returns an AEC environment; or several of these
            (`pettingllms.envs.several`).
        kwargs: arguments of the environment.

    Raises:
        UnknownNameError: the name is unknown; the text suggests a known one.
        ConfigError: the object at the path does not make an AEC environment, or an argument is unknown.
    """
    if entries := entries_of(name):
        parts = {key: load_env(env, **own) for key, (env, own) in by_name(entries, kwargs).items()}
        return SeveralEnvs(parts, entries)
    return made_by(creator_of(name), name, **kwargs)


def made_by(creator: Callable[..., Any], name: str, /, **kwargs: Any) -> AnyEnv:
    """Makes an environment; `name` is what error messages call it.

    Raises:
        ConfigError: `creator` does not make an AEC environment, or does not take an argument.
    """
    if not takes_anything(creator):
        # Before the call, whose own TypeError would suggest nothing.
        arguments.check_names(creator, name, kwargs)
    env = creator(**kwargs)
    if isinstance(env, pettingzoo.ParallelEnv):
        raise ConfigError(
            f"{name!r} makes a parallel environment, but agents are trained on one step at a time; "
            "return pettingzoo.utils.parallel_to_aec(env) from it"
        )
    if not isinstance(env, AECEnv):
        raise ConfigError(
            f"{name!r} made a {type(env).__name__}; it must return a PettingZoo AECEnv"
        )
    return env


def made_with(
    name: str,
    maker: Callable[..., Any],
    arguments: Mapping[str, Any],
    given: Mapping[str, Any],
) -> AnyEnv:
    """Makes an environment; `given` are those of its arguments that a user has chosen.

    Raises:
        ConfigError: it does not take an argument, or fails at a value that the user has chosen.
    """
    try:
        return made_by(maker, name, **arguments)
    except PettingLLMsError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        # Without arguments of the user's it is a mistake in the environment: keep its traceback.
        # An error about an argument, such as one that is missing, is the user's all the same.
        if not given and "argument" not in str(error):
            raise
        shown = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise ConfigError(
            f"environment {name!r} cannot be made with {shown or 'these arguments'}: "
            f"{type(error).__name__}: {error}; pettingllms-envs show {name} lists what it takes"
        ) from error


def creator_of(name: str) -> Any:
    """Returns the function or class that makes the environment `name`, given as to `load_env`.

    Raises:
        UnknownNameError: nothing has this name; the text suggests what does.
        ConfigError: several environments, or a path to something that cannot be called.
    """
    # A JSON object has a colon, too, and would be taken for a path.
    if name.startswith("{"):
        raise ConfigError(
            f"env is the name of an environment, got {name}; its arguments belong to env_args, as "
            "in --env-args.size 8"
        )
    if entries := entries_of(name):
        first, _ = next(iter(entries.values()))
        raise ConfigError(f"{name!r} names several environments; give one, such as {first}")
    # Before paths, because such a name has the form of one.
    bridge, _, game = name.partition(":")
    if bridge == "judged":  # makes a maker, with the arguments of the environment inside
        return _resolve(BRIDGES[bridge])(game)
    if bridge in BRIDGES:
        return functools.partial(_resolve(BRIDGES[bridge]), game)
    if short_name(name) in MOVED:
        return _example(short_name(name))
    has_path = ":" in name or name in ENVIRONMENTS
    entry_point = ENVIRONMENTS.path_of(name) if has_path else _registered(name)
    # PettingZoo's registry may also hold the function itself.
    return _resolve(entry_point) if isinstance(entry_point, str) else entry_point


def entries_of(env: str) -> Entries:
    """Returns the entries of several environments, or nothing for a single one.

    Raises:
        ConfigError: not of the form `a=coding,b=search*2`.
    """
    if not _NAMED.match(env):
        return {}
    entries: Entries = {}
    for entry in env.split(","):
        name, equals, value = (word.strip() for word in entry.partition("="))
        source, star, text = (word.strip() for word in value.partition("*"))
        if not (equals and name.isidentifier() and source):
            raise ConfigError(f"env: name environments as in a=coding,b=search*2, got {entry!r}")
        if name in entries:
            raise ConfigError(f"env: two environments are called {name!r}; give each its own name")
        if _NAMED.match(source):
            raise ConfigError(f"env: {name!r} must be one environment, got {source!r}")
        try:
            weight = float(text if star else 1)
        except ValueError:
            weight = math.nan
        if not 0 < weight < math.inf:
            raise ConfigError(f"env: the weight of {name!r} must be a number above 0, got {text!r}")
        entries[name] = source, weight
    return entries


def by_name(
    entries: Entries, arguments: Mapping[str, Any]
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> environment and its own arguments: `{"a.size": 6}` is the same as `{"a": {"size": 6}}`.

    Raises:
        ConfigError: an argument without the name of an environment.
    """
    of_part = {name: dict[str, Any]() for name in entries}
    for key, value in arguments.items():
        name, _, argument = key.partition(".")
        if name not in of_part or not (argument or isinstance(value, Mapping)):
            raise ConfigError(
                f"env_args: {key!r} is of no environment of {', '.join(entries)}; say of which it is, as in "
                f"--env-args.{next(iter(entries))}.{argument or name} {value}"
            )
        of_part[name].update({argument: value} if argument else value)
    return {name: (env, of_part[name]) for name, (env, _) in entries.items()}


def _example(name: str) -> Any:
    root = Path(__file__).parents[2]
    if not (root / "benchmarks" / "environments").is_dir():
        raise UnknownNameError(
            f"{name!r} is an example in benchmarks/environments of the repository, and not installed; give "
            f"its path: path/to/benchmarks/environments/{name}_v0.py:env"
        )
    if str(root) not in sys.path:  # last, where it hides nothing
        sys.path.append(str(root))
    return _resolve(f"benchmarks.environments.{name}_v0:env")


def takes_anything(creator: Callable[..., Any]) -> bool:
    """Returns whether the arguments of a function or class cannot be seen from outside."""
    try:
        parameters = inspect.signature(creator).parameters.values()
    except ValueError:  # some classes that are written in C
        return True
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def short_name(name: str) -> str:
    """Shortens all names of an environment to one: `plan_path` for: `pettingllms/plan_path-v0`."""
    return re.sub(r"[-_]v\d+$", "", name.removeprefix(NAMESPACE))


def _registered(name: str) -> Any:
    """Looks up the entry point of a name in PettingZoo's registry, ours by default."""
    try:
        return pettingzoo.spec("aec", name if "/" in name else NAMESPACE + name).entry_point
    except PettingZooRegistryError:
        ours = [env_id.removeprefix(NAMESPACE) for env_id in pettingzoo.aec_registry]
        # A name without a namespace is compared with ours alone, which have lost theirs above.
        candidates = [env_id for env_id in ours if ("/" in env_id) == ("/" in name)]
        candidates += [env_id.rpartition("-v")[0] for env_id in candidates] + [
            *ENVIRONMENTS.paths()
        ]
        raise UnknownNameError(
            f"unknown environment {name!r}; {did_you_mean(name, candidates)}; "
            "an environment of your own is `module:attribute` or `./file.py:attribute`"
        ) from None


def _resolve(path: str) -> Callable[..., Any]:
    creator = resolve(path, "environment")
    if not callable(creator):
        raise ConfigError(
            f"{path!r} is a {type(creator).__name__}; it must be callable and return an AECEnv"
        )
    made: Callable[..., Any] = creator
    return made


def roles_of(env: AnyEnv) -> list[str]:
    """The roles of an environment, each once, in turn order."""
    return list(dict.fromkeys(role_of(str(agent)) for agent in env.possible_agents))


def seats_of(env: AnyEnv) -> tuple[list[str], list[str]]:
    """The roles and the agents of an environment, in turn order."""
    return roles_of(env), list(map(str, env.possible_agents))


def parts_of(env: Any) -> list[Any]:
    """Returns the parts of several environments; for a single one or its maker, only itself."""
    inner = getattr(env, "unwrapped", env)
    return [*inner.parts.values()] if isinstance(inner, SeveralEnvs) else [env]


def longest(env: Any, counted: Callable[[Sequence[str]], int] = len) -> tuple[int | None, int]:
    """Turns of an agent at the most, None where they are not known, and decisions of an episode.

    Without a limit, the decisions are those of one turn; `counted` says how many of the agents count.
    """
    parts = parts_of(env)
    limits: list[Any] = [getattr(part.unwrapped, "max_turns", None) for part in parts]
    counts = [counted([*map(str, part.possible_agents)]) for part in parts]
    if None in limits:
        return None, max(counts)
    return max(limits), max(map(operator.mul, limits, counts))


def clone_env(env: AnyEnv) -> AnyEnv:
    """Copies `env` at its point of its episode; neither copy changes the other.

    A `TextEnv` copies itself. Anything else is deep-copied, and the copy is compared with the
    original: the observation of every agent, and the agent that acts next.

    Raises:
        CloneError: the environment cannot be copied, or the copy lost its place; the text says
            what the environment must implement.
    """
    if isinstance(env, TextEnv):
        return env.clone()
    cure = (
        "implement __deepcopy__ (or __getstate__ and __setstate__) so that copy.deepcopy keeps the "
        "state of the episode"
    )
    try:
        twin = deep_copied(env)
        # A copy that starts over is the usual mistake, and it would train on wrong rewards.
        moved = hasattr(env, "agent_selection") and _position(twin) != _position(env)
    except ConfigError:
        raise  # an observation without text, which says nothing about copying
    except Exception as error:
        raise CloneError(f"{env} cannot be copied ({error!r:.300}); {cure}") from error
    if moved:
        raise CloneError(f"a copy of {env} is not where the original is; {cure}")
    return twin


def deep_copied(env: AnyEnv) -> AnyEnv:
    """Deep-copies an environment, also one that inherits gymnasium's EzPickle, without any check.

    EzPickle copies an environment by making a new one from the constructor's arguments, which
    forgets the episode. Most of PettingZoo's own environments inherit it; their attributes are
    copied instead.
    """
    memo: dict[int, Any] = {}
    # Wrappers are copied as usual; `memo` gives them the copy of the environment inside.
    inner = env.unwrapped
    # A class that says itself how it is copied is left to do so.
    if _forgets(inner) and not hasattr(inner, "__deepcopy__"):
        # Known to `memo` before its attributes are copied: where they refer to it, they get the
        # copy.
        memo[id(inner)] = twin = object.__new__(type(inner))
        twin.__dict__.update(copy.deepcopy(vars(inner), memo))
    return copy.deepcopy(env, memo)


def pickled(env: AnyEnv) -> bytes:
    """Pickles an environment at its point of its episode, also one that inherits EzPickle."""
    file = io.BytesIO()
    _Pickler(file).dump(env)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, found: Any) -> Any:
        if not _forgets(found):
            return NotImplemented
        return object.__new__, (type(found),), vars(found), None, None, _put


def _put(env: Any, state: Mapping[str, Any]) -> None:
    vars(env).update(state)


def _forgets(env: Any) -> bool:
    """Returns whether EzPickle says how an object is copied and pickled."""
    return isinstance(env, EzPickle) and type(env).__getstate__ is EzPickle.__getstate__


class ForeignEnv(BaseWrapper[Any, Any, Any]):
    """An environment that is not a `TextEnv`, with those of its methods that an episode needs."""

    def clone(self) -> Self:
        """Returns a copy; see `clone_env`."""
        return cast(Self, clone_env(self))

    def branch(
        self, replies: Sequence[str], completion_ids: Sequence[Sequence[int]] = ()
    ) -> list[Self]:
        """Returns a copy for each reply, which has been stepped with it."""
        del completion_ids
        twins = [self.clone() for _ in replies]
        for twin, reply in zip(twins, replies, strict=True):
            twin.step(reply)
        return twins

    def text_for(self, agent: str) -> str:
        """Returns the text of the observation of `agent`; see `observe_text`."""
        return observe_text(self, agent)

    def __str__(self) -> str:
        return str(self.env)


def _position(env: AnyEnv) -> tuple[Any, ...] | None:
    """Facts in which a copy and its original must agree; None before `reset`."""
    if not hasattr(env, "agent_selection"):
        return None
    agents = list(env.agents)
    return (agents, env.agent_selection, [observe_text(env, agent) for agent in agents])


def observe_text(env: AnyEnv, agent: str) -> str:
    """Returns the text of the observation of `agent`.

    Raises:
        ConfigError: its observation is neither text nor a dict with a `text` key.
    """
    observation = env.observe(agent)
    text = observation.get("text") if isinstance(observation, Mapping) else observation
    if not isinstance(text, str):
        raise ConfigError(
            f"{env} shows {agent!r} a {type(observation).__name__} without text; observations must "
            "be a str or a dict with a str under the key 'text'"
        )
    return text
