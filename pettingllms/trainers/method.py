"""`Method`: decides what to sample, who plays and learns, and how to value completions.

A method is a subclass of `Method` that overrides some of these hooks:

    needs, settings   requirements for an environment; its own defaults of settings
    shape             number of completions of a prompt, and the one with which the task continues
    players           the policy of each role in a step, and the policies that learn
    credit            values that replace rewards
    advantages        comparison of completions
    state_dict        state from earlier steps, for checkpoints

Methods compose, since each hook is a Python method: `class Cory(Swap, SharedRewards, DrMas)` takes
its players from the first, its credit from the second, and its advantages from the third. The
setting `swap+shared+dr_mas` makes the same class.

Whether method, environment, and team fit together is checked before a model is loaded. An environment says what it has in PettingZoo's `metadata`.
One that says nothing is taken to have what nearly all have:

| need | an environment that lacks it says |
|---|---|
| `early_rewards`: completions earn something before the end of the episode | `"outcome": "late"` |
| `recurring_states`: prompts, or `info["anchor"]`, that are met again | `"states_recur": False` |
| `reward_parts`: a team reward beside a local one, or `info["parts"]` | `"reward_parts": 1` |
| `rounds`: all agents act in each turn | `"rounds": False`, or overrides `TextEnv._next_agent` |
| `success`: `info["success"]` says whether the team solved its task | `"success": False`, or is no `TextEnv` and does not say `"success": True` |
| `opponents`: agents play against each other | `"opponents": False`, or is a `TextEnv` and does not say `"opponents": True` |

and to lack what few have:

| need | an environment that has it says |
|---|---|
| `judged_replies`: `info["right"]` says of every reply whether it is right | `"judged_replies": True` |
| `cross_runs`: programs and tests that can be run on each other, `env.cross` | the roles, `"cross_runs": ("coder", "tester")` |
| `calls`: an agent that calls others, as often as it likes | its name, `"caller": "planner_0"` |
| `privileged`: what agents are not told, such as the right answer | nothing: it overrides `TextEnv._privileged`, or has a method `privileged_for(agent)` |
| `demonstrations`: a solver, whose replies can be learned from | nothing: it overrides `TextEnv._demonstrate`, or has a method `demonstration_for(agent)` |
| `judge`: an agent that says of every reply whether it is right | its name, `"judge": "judge_0"` |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pettingllms.envs.aec import longest, parts_of
from pettingllms.envs.base import TextEnv
from pettingllms.errors import ConfigError, GroupError, NonFiniteError, did_you_mean
from pettingllms.names import own_names, trained_policies
from pettingllms.rollout.shapes import SHAPES, RolloutShape
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.difficulty import Pools
from pettingllms.trainers.method_names import METHODS, PARTS
from pettingllms.trainers.settings import by_base, check_policy_settings, own_settings
from pettingllms.types import Advantage, Candidate, Group

if TYPE_CHECKING:
    from pettingllms.policies.policy_set import PolicySet
    from pettingllms.rollout.episode import AnyEnv
    from pettingllms.trainers.config import ResolvedConfig

HOOKS = ("players", "credit", "advantages")
"""Hooks of which a joined method may have one each."""


class Casting(NamedTuple):
    """Who plays and who learns in one step."""

    players: Mapping[str, str]
    """Role, or agent, -> policy."""
    learners: tuple[str, ...]
    """The policies that are trained, in the order of the roles."""
    earlier: Mapping[str, Any] | None = None
    """Policy -> version and weights of an earlier step, which answer half of its prompts."""


class Argument(NamedTuple):
    """An argument of a method, as `--method-args.NAME` gives it."""

    default: Any
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    whole: bool = False
    one_of: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Compares a value with the limits.

        Raises:
            ConfigError: names the argument, the limits, and the value.
        """
        if value is None and self.default is None:
            return
        if isinstance(self.default, bool | str):
            if not isinstance(value, type(self.default)):
                wanted = "true or false" if isinstance(self.default, bool) else "a text"
                raise ConfigError(f"method_args: {name} must be {wanted}, got {value!r}")
            if self.one_of and value not in self.one_of:
                hint = did_you_mean(str(value), list(filter(None, self.one_of)))
                raise ConfigError(f"method_args: unknown {name} {value!r}; {hint}")
            return
        least, most = self.at_least, self.at_most
        number = isinstance(value, int if self.whole else int | float)
        # `not >=` instead of `<`, so that NaN is refused too.
        if (
            isinstance(value, bool)
            or not number
            or (least is not None and not value >= least)
            or (self.above is not None and not value > self.above)
            or (most is not None and not value <= most)
            or (self.below is not None and not value < self.below)
        ):
            words = {"at least": least, "above": self.above, "at most": most, "below": self.below}
            limits = " and ".join(f"{word} {n:g}" for word, n in words.items() if n is not None)
            wanted = f"a whole number from {least:g}" if self.whole else limits or "a number"
            raise ConfigError(f"method_args: {name} must be {wanted}, got {value!r}")


def argument(default: Any, **limits: Any) -> Any:
    """Declares an argument of a method, as a class attribute that the settings may change.

    Args:
        default: its value where none is given.
        limits: `at_least`, `above`, `at_most` and `below` of a number; `whole` for whole numbers; `one_of` of texts.
    """
    return Argument(default, **limits)


class Attached:
    """What `Method.attach` sets.

    Raises:
        ConfigError: where it is read before that.
    """

    def __get__(self, method: Method | None, kind: type) -> Any:
        if method is None:  # asked of a class
            return self
        raise ConfigError(
            f"method {method.config.method} needs a trainer, which attaches environment and policies"
        )


class Method:
    """Base class of all methods: every policy keeps its role and trains on every step.

    Class attributes made with `argument` are arguments of the method. A subclass with an
    `__init__` of its own may take further keyword arguments there.

    Args:
        config: resolved settings of the run.
        arguments: values of declared arguments.

    Raises:
        ConfigError: an argument that the method does not take, or a value out of range.
    """

    source: ClassVar[str] = ""
    """Publication."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Its own defaults of settings."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Requirements for an environment: words of the module's docstring."""
    tree: ClassVar[bool] = False
    """True to compare K candidates of one prompt (a tree), False for K episodes of a task."""
    shapes: ClassVar[tuple[str, ...]] = ()
    """Names of possible rollout shapes, the default first; if empty, `tree` decides."""
    least: ClassVar[int] = 2
    """Smallest possible K (`num_generations`)."""
    compares: str = "return"
    """Quantity that is compared: the sum over an episode ("return"), its "mean", the sum from the decision
    on ("to_go"), the immediate "reward", or its "parts"."""
    credits: ClassVar[str] = "any"
    """Values from `credit`: one "return" for each episode, a "reward" for each decision, or the "whole" of both."""
    credit_shapes: ClassVar[tuple[str, ...]] = ()
    """Rollout shapes whose candidates `credit` can distinguish; all if empty."""
    keeps: ClassVar[tuple[str, ...]] = ()
    """Names of attributes, dictionaries, that are its state."""
    frozen_base: ClassVar[bool] = False
    """Whether it reads the untrained base model, which full policies do not keep."""
    env: Any = Attached()
    """The environment, which is never stepped itself."""
    policies: PolicySet = Attached()  # type: ignore[assignment]  # what instances get
    """The `PolicySet` of the run, whose weights a method must not change."""

    def __init__(self, config: ResolvedConfig, **arguments: Any) -> None:
        self.config = config
        declared = declared_arguments(type(self))
        for name in arguments:
            if name not in declared:
                raise ConfigError(f"{type(self).__name__} takes no argument {name!r}")
        for name, limits in declared.items():
            value = arguments.get(name, limits.default)
            limits.check(name, value)
            setattr(self, name, value)

    @staticmethod
    def of(config: ResolvedConfig, given: type[Method] | Method | None = None) -> Method:
        """The method that the settings name, or `given`: a class, or an instance, which gets them.

        Raises:
            ConfigError: not a `Method`, an argument that it does not take, too few generations, or
                another shape.
            UnknownNameError: no method or shape of that name.
        """
        method: Any = load_method(config.method) if given is None else given
        if isinstance(method, Method):
            # An instance may have been made with settings that were not resolved yet.
            method.config = config
        else:
            # A function that makes the method is as good as its class.
            if isinstance(method, type) or not callable(method):
                _check_is_method(config.method, method)
            method = method(config, **_arguments(method, config))
            _check_is_method(config.method, type(method))
        made: Method = method
        if config.num_generations < made.least:
            raise ConfigError(
                f"num_generations must be at least {made.least} for method {config.method}, got "
                f"{config.num_generations} (a group of one has no advantage)"
            )
        # Asked only for the error that it raises, before a model is loaded.
        made.shape()
        return made

    def attach(self, env: Any, policies: Any) -> None:
        """Sets `env` and `policies`; called once, before the first step."""
        self.env, self.policies = env, policies

    def shape(self) -> RolloutShape:
        """Returns the shape of a task's rollout: `method_args.shape`, or the method's default.

        Raises:
            ConfigError: the method cannot compare this shape; shapes of other packages are always accepted.
            UnknownNameError: no shape of that name.
        """
        name, fitting = self.shape_name, self.fitting_shapes()
        made = SHAPES.load(name)
        if name in SHAPES.own and name not in fitting:
            raise ConfigError(
                f"method {self.config.method} cannot compare what shape {name} samples; it takes "
                f"{', '.join(fitting)}"
            )
        if not (isinstance(made, type) and issubclass(made, RolloutShape)):
            raise ConfigError(f"shape {name!r} must be a subclass of RolloutShape, got {made!r}")
        return made.of(self.config.num_generations, self.config.branch)

    @property
    def shape_name(self) -> str:
        """Name or path of the rollout shape."""
        return str(self.config.method_args.get("shape") or self.fitting_shapes()[0])

    @classmethod
    def fitting_shapes(cls) -> tuple[str, ...]:
        """Returns the names of possible rollout shapes, the default first."""
        return cls.shapes or (("tree",) if cls.tree else ("episodes",))

    def players(self, step: int, players: Mapping[str, str], trained: Sequence[str]) -> Casting:
        """Returns the policy of each role in a step, and the policies that learn; must not change state.

        The learning policies depend on the step only, because `updates` asks for all steps in advance. The
        roles may also depend on the method's state.

        Args:
            step: counted from 0.
            players: role, or agent, -> policy, from the settings.
            trained: policies that the run trains.
        """
        del step
        return Casting(players, tuple(trained))

    def updates(self, policy: str, players: Mapping[str, str], trained: Sequence[str]) -> int:
        """Returns the number of optimizer steps of a policy, over which its learning rate decays."""
        config = self.config
        # Counted by asking for every step, so custom methods need not override this.
        steps = (self.players(n, players, trained).learners for n in range(config.max_steps))
        return sum(policy in learners for learners in steps) * config.num_iterations

    def credit(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Returns the records with new rewards, in the same order; called once a step.

        Success, validations, and logged rewards stay those of the environment.
        """
        return list(trajectories)

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """Returns one advantage for each candidate; called once a step.

        Args:
            groups: decisions of all episodes and policies, by depth; in a tree, only those of policies
                that learn in this step, because the others have one candidate.

        Returns:
            A list in the order of the groups and their candidates. A number applies to every token of the
            completion; a tuple has one number for each token. With `silent_groups="drop"`, a group
            whose advantages are all 0 is left out of the loss; otherwise it counts in the mean.
        """
        raise NotImplementedError

    def check_tree(self, groups: Sequence[Group]) -> None:
        """Checks that every prompt has candidates to compare.

        Raises:
            GroupError: a prompt has one.
        """
        for group in groups:
            if len(group.candidates) < 2:
                raise GroupError(
                    f"group {group.key} has one candidate, so its advantage is always zero; "
                    "sample at least 2 (num_generations)"
                )

    def state_dict(self) -> dict[str, Any]:
        """Returns the state from earlier steps: numbers, strings, tensors, and containers."""
        return {name: dict(kept) for name in self.keeps if (kept := getattr(self, name))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state_dict`."""
        if unknown := state.keys() - self.keeps:
            raise ValueError(f"{type(self).__name__} keeps no state, got {sorted(unknown)}")
        for name in self.keeps:
            setattr(self, name, dict(state.get(name, {})))

    def checked(self, groups: Sequence[Group]) -> list[Advantage]:
        """Returns `advantages` as Python numbers, one entry for each candidate.

        Raises:
            ConfigError: `advantages` returned something else.
            NonFiniteError: a number is NaN, or too large for single precision.
        """
        values: Any = self.advantages(groups)
        counts = [len(c.completion.token_ids) for group in groups for c in group.candidates]
        subject = f"the method {type(self).__qualname__} returned"
        if not isinstance(values, list | tuple):
            raise ConfigError(
                f"{subject} a {type(values).__name__}; `advantages` must return a list (of a tensor: `.tolist()`)"
            )
        if len(values) != len(counts):
            raise ConfigError(f"{subject} {len(values)} advantages for {len(counts)} candidates")
        return [_numbers(*pair, subject) for pair in zip(values, counts, strict=True)]


def _numbers(value: Any, tokens: int, subject: str) -> Advantage:
    numbers = value if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(number, Real) for number in numbers):
        raise ConfigError(
            f"{subject} {value!r:.80} as an advantage; it must be a number, or a tuple of one for each token"
        )
    if numbers is value and len(numbers) != tokens:
        raise ConfigError(f"{subject} {len(numbers)} numbers for a completion of {tokens} tokens")
    if not all(abs(number) < 3.4e38 for number in numbers):  # nor is NaN
        raise NonFiniteError(f"{subject} the advantage {value!r:.80}; look for extreme rewards")
    return tuple(map(float, numbers)) if numbers is value else float(value)


def declared_arguments(kind: type) -> dict[str, Argument]:
    """The arguments that a method and its bases declare."""
    attributes = {n: v for base in reversed(kind.__mro__) for n, v in vars(base).items()}
    return {name: value for name, value in attributes.items() if isinstance(value, Argument)}


def load_method(name: str) -> Any:
    """Imports the method of a name or path; joins those that are separated by `+`.

    Raises:
        UnknownNameError: nothing has this name.
        ConfigError: the joined methods have a hook in common.
    """
    methods = [METHODS.load(piece) for piece in name.split("+")]
    if len(methods) == 1:
        return methods[0]
    for piece, method in zip(name.split("+"), methods, strict=True):
        _check_is_method(piece, method)
    for hook in HOOKS:
        owners = [
            method for method in methods if getattr(method, hook) is not getattr(Method, hook)
        ]
        if len(owners) > 1:
            both = " and ".join(method.__name__ for method in owners)
            raise ConfigError(f"method {name}: {both} both have `{hook}`; leave one out")
    needs = tuple(dict.fromkeys(need for method in methods for need in method.needs))
    settings = {k: v for method in reversed(methods) for k, v in method.settings.items()}
    return type(name, tuple(methods), {"needs": needs, "settings": settings, "__doc__": name})


def _check_is_method(name: str, kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ConfigError(f"method {name!r} is {kind!r}; it must be a subclass of Method")


def _arguments(maker: Callable[..., Method], config: ResolvedConfig) -> dict[str, Any]:
    """The arguments in the settings, each of which the constructor takes; not the shape."""
    arguments = dict(config.method_args)
    arguments.pop("shape", None)
    takes = set(declared_arguments(maker)) if isinstance(maker, type) else set()
    takes |= {
        name
        for name, parameter in inspect.signature(maker).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and name != "config"
    }
    for name in arguments:
        if name not in takes:
            hint = did_you_mean(name, sorted(takes)) if takes else "it takes none"
            raise ConfigError(f"method_args: {config.method} takes no argument {name!r}; {hint}")
    return arguments


def path_of(method: str | type[Method] | Method) -> str:
    """Returns the name by which settings refer to a method.

    Raises:
        ConfigError: not a method.
    """
    if isinstance(method, str):
        return method
    method_class = method if isinstance(method, type) else type(method)
    if not issubclass(method_class, Method):
        raise ConfigError(f"method must be a Method or its name, got {method!r}")
    return f"{method_class.__module__}:{method_class.__qualname__}"


def repaid(trajectory: Trajectory, reward: Callable[[Group, Candidate], float]) -> Trajectory:
    """The record with `reward(group, candidate)` in place of every reward, and returns to match.

    Rewards paid to an agent at other agents' steps stay.
    """
    groups = [
        replace(
            group, candidates=tuple(replace(c, reward=reward(group, c)) for c in group.candidates)
        )
        for group in trajectory.groups
    ]
    return Trajectory.of(
        trajectory.task,
        trajectory.episode,
        groups,
        early=trajectory.early,
        cooperative=trajectory.cooperative,
        overlong=trajectory.overlong,
        came_from=trajectory.came_from,
    )


class EpisodeCredit(Method):
    """A method, or a part of one, that credits every episode by itself."""

    def credit(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Returns the records as `episode_credit` has them."""
        return [self.episode_credit(trajectory) for trajectory in trajectories]

    def episode_credit(self, trajectory: Trajectory) -> Trajectory:
        """Returns the record of an episode with what its completions are worth."""
        raise NotImplementedError


def repaid_once(trajectory: Trajectory, worth: float | Mapping[str, float]) -> Trajectory:
    """The record with one reward in place of all others, at the episode's last decision.

    Args:
        trajectory: the record.
        worth: the return of the team, or of each agent, paid at the agent's own last decision.
    """
    shared = not isinstance(worth, Mapping)
    last = {"" if shared else g.key.agent: at for at, g in enumerate(trajectory.groups)}
    groups = []
    for at, group in enumerate(trajectory.groups):
        paid = worth[group.key.agent] if isinstance(worth, Mapping) else worth
        reward = paid if at == last["" if shared else group.key.agent] else 0.0
        candidates = tuple(replace(c, reward=reward) for c in group.candidates)
        groups.append(replace(group, candidates=candidates, late_reward=0.0))
    return Trajectory.of(
        trajectory.task,
        trajectory.episode,
        groups,
        early={},
        cooperative=shared,
        overlong=trajectory.overlong,
    )


def solved(trajectory: Trajectory, config: ResolvedConfig) -> bool:
    """Returns whether the team had solved the task at the end of the episode.

    Raises:
        ConfigError: the environment does not say.
    """
    # An episode without decisions had a first prompt without room.
    if trajectory.success is None and trajectory.overlong is None:
        raise ConfigError(
            f"method {config.method} pays for success, and {config.env} does not say whether a task "
            "was solved: infos need `success`"
        )
    return bool(trajectory.success)


def readable(group: Group) -> bool:
    """Returns whether the reply that the episode continued from could be read."""
    return group.chosen.info.get("parse_error") is None


# Whether method, environment, and team fit together.


def _parts(env: Any) -> int:
    # Other packages' environments pay one reward, unless they say more.
    return int(env.metadata.get("reward_parts", 2 if isinstance(env.unwrapped, TextEnv) else 1))


def _in_turn(env: Any) -> bool:
    return not isinstance(env, TextEnv) or type(env)._next_agent is TextEnv._next_agent


def _lacks(env: Any, method: str, of_others: str) -> bool:
    """Whether an environment overrides no `method` of `TextEnv`, or has none named `of_others`."""
    if isinstance(inner := env.unwrapped, TextEnv):
        return getattr(type(inner), method) is getattr(TextEnv, method)
    return not hasattr(inner, of_others)


NEEDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "early_rewards": (
        lambda env: env.metadata.get("outcome") == "late",
        "compares what a completion earns at once, and {env} pays at the end of an episode, so that "
        "nothing would be learned",
    ),
    "recurring_states": (
        lambda env: env.metadata.get("states_recur") is False,
        "compares decisions in equal states, and states of {env} are not met again",
    ),
    "reward_parts": (
        lambda env: _parts(env) < 2,
        "compares the parts of a reward one by one, and rewards of {env} have one part",
    ),
    "judged_replies": (
        lambda env: not env.metadata.get("judged_replies"),
        "pays for right answers, and {env} does not say of every reply whether it is one",
    ),
    "cross_runs": (
        lambda env: not env.metadata.get("cross_runs"),
        "is for programs and tests that judge each other, and {env} has none (coding with a team does)",
    ),
    "rounds": (
        lambda env: not env.metadata.get("rounds", _in_turn(env.unwrapped)),
        "pays what a round earned, and agents of {env} do not act in rounds: an episode in which more of them "
        "act would earn more",
    ),
    "success": (
        lambda env: not env.metadata.get("success", isinstance(env.unwrapped, TextEnv)),
        "needs to know whether the team succeeded, and {env} does not say so "
        '("success": True in its metadata, `success` in its infos)',
    ),
    "opponents": (
        lambda env: not env.metadata.get("opponents", not isinstance(env.unwrapped, TextEnv)),
        "is for games against an opponent, and agents of {env} are one team",
    ),
    "calls": (
        lambda env: not env.metadata.get("caller"),
        "is for an agent that calls others, and {env} names none in its metadata (search does, with "
        "--env-args.topology nested)",
    ),
    "privileged": (
        lambda env: _lacks(env, "_privileged", "privileged_for"),
        "asks how likely replies are to someone who knows the solution, and {env} tells of none (coding, "
        "math, read, and search do; one of your own overrides `_privileged`)",
    ),
    "demonstrations": (
        lambda env: _lacks(env, "_demonstrate", "demonstration_for"),
        "needs a solver, and {env} has none (plan_path, sokoban, and sudoku do; one of your own overrides "
        "`_demonstrate`)",
    ),
    "judge": (
        lambda env: not env.metadata.get("judge"),
        "pays for verdicts on replies, and {env} has no judge (--env judged:NAME adds one to any)",
    ),
}
"""Need -> whether an environment lacks it, and what then is to be said."""


def lacking(needs: tuple[str, ...], env: Any) -> list[str]:
    """Those of the needs that the environment does not have."""
    return [need for need in needs if need in NEEDS and NEEDS[need][0](env)]


def check_needs(config: ResolvedConfig, method: Method, env: Any) -> None:
    """Refuses a method on an environment that lacks what it needs.

    Raises:
        ConfigError: names both, what is lacking, and the methods that fit.
    """
    missing = lacking(method.needs, env)
    if missing:
        names = [name for name in METHODS.own if name not in PARTS]
        fitting = [name for name in names if not lacking(METHODS.load(name).needs, env)]
        raise ConfigError(
            f"method {config.method} {NEEDS[missing[0]][1].format(env=env)}; use one of "
            f"{', '.join(fitting)}"
        )


def check_method(
    config: ResolvedConfig,
    env: AnyEnv,
    players: Mapping[str, str],
    method: type[Method] | Method | None = None,
) -> None:
    """Makes the method once, to refuse one that does not fit before a model is loaded.

    Raises:
        ConfigError, UnknownNameError: an argument that the method does not take, a shape that it
            cannot compare or that the environment is too long for, an environment that lacks what it
            needs, a team that it is not for, turns that no episode has, workers without shards,
            settings that a policy cannot have for itself.
    """
    if config.workers > 1 and config.tasks_per_shard is None:
        size = max(1, config.tasks_per_step // (2 * config.workers))
        raise ConfigError(
            f"workers {config.workers}: a step's {config.tasks_per_step} tasks share batches, so one "
            f"worker would play them all; give --tasks-per-shard {size}, also to the runs that are "
            "compared with this one, because it is part of the results"
        )
    # Environments of other packages may not say how long an episode can be.
    limit, _ = longest(env)
    beyond = [turn for turn in config.turns or () if limit is not None and turn >= limit]
    if limit is not None and beyond:
        raise ConfigError(
            f"train_turns: {config.env} has turns 0 to {limit - 1}, got {min(beyond)}; raise its "
            "limit with --env-args.max_turns"
        )
    made = Method.of(config, method)
    if type(made).advantages is Method.advantages:
        raise ConfigError(
            f"method {config.method} has no advantages; join it to a method that has, such as "
            f"--method {config.method}+dr_mas"
        )
    if "cross_runs" in made.needs and len(parts_of(env)) > 1:
        raise ConfigError(
            f"method {config.method} runs programs and tests of one environment, and {config.env} are several"
        )
    for single in parts_of(env):
        check_needs(config, made, single)
        made.shape().check(single)
    if config.difficulty_pools:
        if lacking(("success",), env):
            raise ConfigError(f"difficulty_pools {NEEDS['success'][1].format(env=env)}")
        Pools(config, env)  # made only for the errors that it raises
    _check_credit(config, made)
    trained = trained_policies(config.train_roles, players)
    # Asked for the first step, because a method refuses a team only when it is asked.
    made.players(0, players, trained)
    check_policy_settings(config, own_names(players), trained)
    for base, names in by_base(config, own_names(players)) if made.frozen_base else ():
        if base.full and not any(own_settings(config, name).beta for name in names):
            raise ConfigError(
                f"method {config.method} reads the base model as it was before training, which "
                f"full policies do not keep ({', '.join(names)}); leave out full, or give beta above 0"
            )


def _check_credit(config: ResolvedConfig, method: Method) -> None:
    """Refuses a comparison of credits that would prefer another than the best reply.

    Raises:
        ConfigError: it adds up what is credited to single decisions, which pays for going on; or
            compares the decisions of a credit that is paid once an episode; or does not see the
            credit; or compares candidates that are credited alike.
    """
    credits, compares, shape = method.credits, method.compares, method.shape_name
    if compares == "parts" and type(method).credit is not Method.credit:
        why = "compares the parts that the environment paid, which `credit` does not change"
    elif credits == "reward" and compares in ("return", "to_go"):
        why = "adds up what is credited to each decision, so that an episode earns by going on"
    elif credits == "whole" and compares == "to_go":
        why = "would count the credit of later rounds once for each agent, and this round once"
    elif credits == "return" and compares not in ("return", "to_go"):
        why = "compares decisions, and credits an episode once"
    elif method.credit_shapes and shape in SHAPES.own and shape not in method.credit_shapes:
        fitting = ", ".join(method.credit_shapes)
        why = f"samples {shape}, whose candidates `credit` cannot tell apart; it takes shape {fitting}"
    else:
        return
    raise ConfigError(
        f"method {config.method} {why}. Use a method that has these parts "
        "(pettingllms-train --help), or join the part to dr_mas"
    )
