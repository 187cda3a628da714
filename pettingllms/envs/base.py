"""`TextEnv`: PettingZoo's agent environment cycle for agents that read and write text.

A subclass is four methods over an immutable state: `_start` makes the first state, `_text` shows a
state to an agent, `_act` maps a reply to the next state and its scores, and `_view` draws the state. `TextEnv` does the rest that PettingZoo asks for and adds exact copies in
microseconds, which tree rollouts need and PettingZoo lacks.

Turns. Agents act one after another: the one that `_next_agent` names, by default round
robin in the order of the roles. A turn is counted for each agent: turn t of an agent is its reply
number t, from 0. An agent has `max_turns` turns; the episode is truncated when the next to act has
used all of its own. In round robin this is the end of round `max_turns`. There is no
`parallel_env`: an agent reads what the others wrote before it in the same round, so its
observation does not exist before they have acted, and `is_parallelizable` is False.

Seeds. `reset(seed=s)` starts task `s`. The k-th `reset()` without a seed after it starts task
`stream_seed(s, k)`, so one seed decides all later episodes; if no seed was ever given, the stream
starts from the system's entropy. `reset(seed=env.task_seed)` repeats the current task. What a task
is (a generator's seed, a row of a data set) is decided by the subclass, from the task seed and
`self.split`. No random state is held after `reset`.

Copies. Everything that changes in an episode is in a `Snapshot`. Whatever else an instance has
(spaces, data, a sandbox) is shared by its copies, so `_act` must not change it.
"""

from __future__ import annotations

import hashlib
import inspect
import operator
import random
import secrets
import string
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

import gymnasium
from gymnasium.spaces import Dict, Discrete, Space, Text
from pettingzoo import AECEnv

from pettingllms.data.splits import SPLITS
from pettingllms.envs import arguments
from pettingllms.envs.records import SNAPSHOT_VERSION, Record, Snapshot
from pettingllms.envs.records import Outcome as Outcome
from pettingllms.envs.reward_funcs import RewardFunction, columns_of, paid
from pettingllms.envs.thinking import UNCLOSED, shown_thoughts, without_thought
from pettingllms.errors import CloneError, ConfigError, UnknownNameError, did_you_mean
from pettingllms.registry import names_in

RESERVED_KEYS = frozenset({"text", "turn", "observation", "action_mask"})
"""Keys of an observation that `extra_spaces` must not use: the first two are there already, and
PettingZoo's tests cannot handle the last two with text."""

# The attributes that change during an episode: values that may be shared by copies, because they
# are replaced and never changed in place, and containers that PettingZoo changes in place.
_VALUES = names_in(
    "agent_selection task_seed transcript turn _acts _skip_agent_selection _state _stream"
)
_CONTAINERS = ("agents", "rewards", "terminations", "truncations", "_cumulative_rewards")
_SET_BY_RESET = frozenset(
    {*_VALUES, *_CONTAINERS, "infos", "num_agents", "_shown", "_notes"} - {"_stream"}
)
_SET_BY_INIT = frozenset(
    {"render_mode", "split", "alpha", "show_thinking", "max_turns", "possible_agents", "_identity"}
    | {"_has_extras", "_observation_spaces", "_action_spaces", "_stream"}
)
RESERVED = (_SET_BY_RESET | _SET_BY_INIT | {"_given", "_outcomes", "_record"}).union(
    names_in("_known _shown_to _not_read reward_funcs trainer_state _checked_options _drawn"),
    names_in("_next_stream _reply_of"),
)
"""Names that a subclass must not give to attributes and methods of its own: `TextEnv` sets them."""


MAX_TEXT = 1_000_000
"""Longest text, in characters, that counts as an action or an observation."""

SAMPLE_LENGTH = 32
"""Longest text that `FreeText.sample` draws, in characters."""

_CHARACTERS = tuple(string.printable)


class FreeText(Text):
    """Every `str` of at most `max_length` characters, including the empty one and any Unicode.

    `gymnasium.spaces.Text` needs a character set: its default rejects a space, a full Unicode set
    takes seconds to build and still rejects lone surrogates, and membership costs a Python loop
    over every character. This bounds the length only.

    Equal where the bounds are equal. Copies share the character tables, which are used for
    sampling only.

    Args:
        max_length: longest member, in characters; at least 1.
        seed: seed of `sample`.

    Raises:
        ConfigError: `max_length` is smaller than 1.
    """

    # Gymnasium's Text fills these per instance; as class attributes they cost an instance
    # nothing to make, pickle or copy.
    _char_list = _CHARACTERS
    _char_set = frozenset(_CHARACTERS)
    _char_str = "".join(sorted(_CHARACTERS))

    def __init__(self, max_length: int = MAX_TEXT, *, seed: int | None = None) -> None:
        if max_length < 1:
            raise ConfigError(f"max_length must be at least 1 character, got {max_length}")
        self.min_length = 0
        self.max_length = int(max_length)
        # Not `Text.__init__`, which makes tables of characters for each instance.
        Space.__init__(self, dtype=str, seed=seed)

    def contains(self, x: Any) -> bool:
        """Returns whether `x` is a `str` within the length bound, in the same time for any length."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Draws up to `SAMPLE_LENGTH` printable ASCII characters from the space's generator.

        Raises:
            ConfigError: a mask or probability was given; free text has neither.
        """
        if mask is not None or probability is not None:
            raise ConfigError("FreeText cannot be sampled with a mask or probability; omit them")
        generator = self.np_random
        length = int(generator.integers(min(SAMPLE_LENGTH, self.max_length) + 1))
        picks = generator.integers(len(_CHARACTERS), size=length).tolist()
        return "".join(_CHARACTERS[pick] for pick in picks)

    def character_index(self, char: str) -> Any:
        """Raises ConfigError: with any character a member there is no table of them."""
        raise ConfigError(f"FreeText cannot be flattened: it has no index for {char!r}")

    @property
    def is_np_flattenable(self) -> bool:
        """False: text without a character set has no array form."""
        return False

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, FreeText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((FreeText, self.max_length))

    def __repr__(self) -> str:
        return f"FreeText({self.max_length})"


class AgentEnv(AECEnv[str, dict[str, Any], str | None]):
    """What all environments here share of PettingZoo's interface, whatever their state is."""

    metadata: dict[str, Any]
    _skip_agent_selection: Any
    render_mode: str | None
    _observation_spaces: Mapping[str, Space[Any]]
    _action_spaces: dict[str, FreeText]
    _stream: tuple[int, int] | None
    """The seed that opened the stream of tasks, and the number of the latest one; None before the first."""
    reset_options: ClassVar[tuple[str, ...]] = ()
    """Keys of `reset(options=...)` that are read; any other is an error."""

    def observation_space(self, agent: str) -> Space[Any]:
        """The space of `observe(agent)`: always the same object, shared with clones."""
        return self._observation_spaces[self._known(agent)]

    def action_space(self, agent: str) -> FreeText:
        """The space of replies: always the same object, shared with clones."""
        return self._action_spaces[self._known(agent)]

    def render(self) -> Any:
        """Returns the picture in text ("ansi"); "human" prints it."""
        if self.render_mode is None:
            gymnasium.logger.warn(
                "You are calling render method without specifying any render mode."
            )
            return None
        text = self._drawn()
        if self.render_mode == "ansi":
            return text
        sys.stdout.write(f"{text}\n")
        return None

    def close(self) -> None:
        """Does nothing: states hold no resources, and copies share everything else."""

    def _drawn(self) -> str:
        """Returns what `render` shows."""
        raise NotImplementedError

    def _checked_options(self, options: dict[str, Any] | None) -> dict[str, Any]:
        """Returns the options of a reset, refusing unknown ones."""
        for key in options or {}:
            # PettingZoo's api_test passes the key "options" to every environment.
            if key not in (*self.reset_options, "options"):
                hint = did_you_mean(str(key), self.reset_options)
                raise ConfigError(f"{self} has no reset option {key!r}; {hint}")
        return options or {}

    def _next_stream(self, seed: int | None, bits: int) -> tuple[int, int]:
        """Returns the stream after `reset(seed)`; without any seed, its first one is random, of so many bits."""
        if seed is not None:
            if operator.index(seed) < 0:
                raise ConfigError(f"seed must not be negative, got {seed}")
            return operator.index(seed), 0
        if self._stream is None:
            return secrets.randbits(bits), 0
        return self._stream[0], self._stream[1] + 1

    def _reply_of(self, action: str | None) -> str | None:
        """Returns the selected agent's reply, or removes a finished agent and returns None."""
        if not self.agents:
            raise RuntimeError("step() after the end of the episode; call reset() first")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return None
        if not isinstance(action, str):
            raise TypeError(
                f"the action of {agent!r} must be a str, got {type(action).__name__}; "
                "None is for finished agents only"
            )
        return action

    def _known(self, agent: str) -> str:
        if agent not in self._action_spaces:
            hint = did_you_mean(str(agent), self.possible_agents)
            raise UnknownNameError(f"{self} has no agent {agent!r}; {hint}")
        return agent


class TextEnv(AgentEnv):
    """Base class of environments with text: implement `_start`, `_text`, `_act`, and `_view`.

    A constructor takes the arguments of its own `__init__` and, where that takes `**kwargs`, those
    of its bases: `inspect.signature`, `help` and `pettingllms-envs show` list them all.

    Args:
        roles: kinds of agents in their default order of acting; lower-case words. Agents are named
            `<role>_0`, and `<role>_1`, ... where a role occurs again.
        max_turns: turns of each agent, after which the episode is truncated; None for the
            environment's default.
        max_cycles: PettingZoo's name for `max_turns`.
        alpha: weight of the team reward: `rewards[agent] = alpha * team + local`.
        share_team_reward: whether a step gives `alpha * team` to all agents, as trainers of other packages
            expect, instead of only to the agent that acted.
        render_mode: "ansi" (`render` returns text), "human" (prints it), "rgb_array" or None.
        split: split of the tasks: "train", "val", or "test".
        show_thinking: whether agents see the thoughts of their teammates since their own last reply, in
            addition to the replies (`pettingllms.envs.thinking`).
        extra_spaces: further keys of the observation, filled by `_extras`.

    Raises:
        ConfigError: an unknown argument, or a value that cannot be used.
    """

    __signature__: ClassVar[inspect.Signature]
    _given: tuple[tuple[Any, ...], dict[str, Any]]
    default_turns: ClassVar[int] = 4
    embedded: ClassVar[Mapping[str, Any]] = {}
    """Constructor arguments for the embedded model; `embedded_training` has settings, `embedded_parts` and
    `embedded_parts_training` those for `embedded:parts`, and `embedded_model` the default model."""
    divides_datasets: ClassVar[bool] = False
    """Whether training divides a `dataset` without splits into train, val, and test (`...?divide`)."""
    reward_funcs: Sequence[RewardFunction] = ()
    """Functions that add to local rewards; set after construction and shared by copies."""
    trainer_state: Any = None
    """`trainer_state` of reward functions: `global_step` and `max_steps`; None outside of training."""
    _notes: Mapping[str, Any] = {}
    """`Outcome.notes` of the latest step."""
    state_space: Space[Any] = FreeText(sys.maxsize)
    interchangeable: ClassVar[frozenset[str]] = frozenset({"render_mode", "max_cycles"})
    """Arguments that may differ between a snapshot and the environment that restores it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Bases that come before ours, too: a mixin shadows as well.
        for base in cls.__mro__[: cls.__mro__.index(TextEnv)]:
            _refuse_taken(cls, RESERVED & vars(base).keys())
        cls.__signature__ = arguments.signature(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Checks the names of the arguments before `__init__` runs."""
        arguments.check_names(cls, cls.metadata["name"], kwargs)
        env = super().__new__(cls)
        env._given = (args, kwargs)  # as given: every `__init__` on the way to ours takes some
        return env

    def __init__(
        self,
        *,
        roles: Sequence[str],
        max_turns: int | None = None,
        max_cycles: int | None = None,
        alpha: float = 1.0,
        share_team_reward: bool = False,
        render_mode: str | None = None,
        split: str = "train",
        show_thinking: bool = False,
        extra_spaces: Mapping[str, Space[Any]] | None = None,
    ) -> None:
        _refuse_taken(type(self), (RESERVED - {"_given"}) & self.__dict__.keys())
        if render_mode is not None:
            arguments.one_of("render_mode", render_mode, self.metadata["render_modes"])
        extra = extra_spaces or {}
        if taken := sorted(RESERVED_KEYS & extra.keys()):
            raise ConfigError(f"extra_spaces must not use the reserved keys {taken}; rename them")
        self.render_mode = render_mode
        self.split = arguments.one_of("split", split, SPLITS)
        self.alpha = arguments.finite("alpha", alpha)
        self.share_team_reward = bool(share_team_reward)
        self.show_thinking = bool(show_thinking)
        self.max_turns = arguments.turn_limit(max_turns, max_cycles, self.default_turns)
        self.possible_agents = arguments.agent_names(roles)
        self._has_extras = bool(extra)
        self._observation_spaces: dict[str, Dict] = {
            agent: Dict({"text": FreeText(), "turn": Discrete(self.max_turns + 1), **extra})
            for agent in self.possible_agents
        }
        self._action_spaces = {agent: FreeText() for agent in self.possible_agents}
        self._stream = None
        identity = {"environment": self.metadata["name"]}
        identity |= arguments.values(type(self), *self.__dict__.pop("_given"))
        identity["max_turns"] = self.max_turns
        self._identity = tuple((k, v) for k, v in identity.items() if k not in self.interchangeable)

    # What a subclass writes.

    def _start(self, seed: int, options: dict[str, Any]) -> Any:
        """Returns the first state of task `seed` of `self.split`; immutable and picklable."""
        raise NotImplementedError

    def _text(self, state: Any, agent: str) -> str:
        """Returns what `agent` is shown in `state`; pure, valid for every agent at any time."""
        raise NotImplementedError

    def _act(self, state: Any, agent: str, text: str) -> Outcome:
        """Returns what the reply `text` leads to; pure, and must not raise for any text.

        A thought before the reply (`<think>...</think>`) is not part of `text`.
        """
        raise NotImplementedError

    def _act_all(self, state: Any, agent: str, texts: Sequence[str]) -> list[Outcome]:
        """Does `_act` for several replies; override it instead where they can share work."""
        return [self._act(state, agent, text) for text in texts]

    def _next_agent(self, state: Any, agent: str | None) -> str:
        """Returns the agent that acts in `state`, which a reply of `agent` led to; pure.

        `agent` is None at the start of an episode. The default is round robin. An override may name
        any agent, also the same one again. It is not called once the episode is done.
        """
        del state
        agents = self.possible_agents
        return agents[0] if agent is None else agents[(agents.index(agent) + 1) % len(agents)]

    def _view(self, state: Any) -> str:
        """Returns the whole state as text, for `state` and `render`; pure."""
        raise NotImplementedError

    def _picture(self, state: Any) -> Any:
        """Returns the whole state as `uint8` of height x width x 3."""
        raise NotImplementedError

    def _extras(self, state: Any, agent: str) -> Mapping[str, Any]:
        """Returns values for the keys of `extra_spaces`; pure."""
        raise NotImplementedError

    def _unread(self, state: Any, agent: str, reason: str) -> Outcome:
        """Returns what a reply leads to that is not read: no change and no reward.

        Its thought is not closed, or it is over the length limit.
        """
        success = self.infos[agent]["success"]
        return Outcome(state, team=0.0, local=0.0, success=success, parse_error=reason)

    def _privileged(self, state: Any, agent: str) -> str:  # noqa: ARG002 - nothing by default
        """Returns what a judge of the agent's reply may know and the agent is not told; pure.

        Such as the right answer; empty where there is none. No observation shows it.
        """
        return ""

    def _demonstrate(self, state: Any, agent: str) -> str:
        """Returns a solver's reply in place of the agent, as the agent would have to write it; pure."""
        raise NotImplementedError(f"{self} has no solver")

    def _hears(self, agent: str) -> Collection[str]:
        """Returns the agents whose thoughts `agent` is shown where `show_thinking` is set."""
        return [other for other in self.possible_agents if other != agent]

    def reward_columns(self, state: Any) -> Mapping[str, Any]:
        """Returns the columns of the task's row for reward functions; pure."""
        return columns_of(state)

    def _random(self, seed: int) -> random.Random:
        """Returns a generator for task `seed`, independent of other environments and splits."""
        return random.Random(f"{self.metadata['name']}/{self.split}/{seed}")

    # PettingZoo's interface.

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts an episode of task `seed`, or of the next task in the stream (module docstring).

        If this raises, the environment does not change.

        Raises:
            ConfigError: `seed` is negative, or `options` has a key that is not in
                `reset_options`.
            TypeError: `seed` is not an integer.
        """
        options = self._checked_options(options)
        stream = self._next_stream(seed, bits=48)  # as many as `stream_seed` has
        task_seed = stream_seed(*stream)
        # Everything that may raise comes before the first assignment.
        state = self._start(task_seed, options)
        first = self._known(self._next_agent(state, None))
        if self._stream is None:  # the first one: what has these names is the subclass's
            _refuse_taken(type(self), _SET_BY_RESET & self.__dict__.keys())
        self._state, self._stream, self.task_seed = state, stream, task_seed
        self._shown: dict[str, str] = {}
        self.turn = 0
        self.transcript: tuple[Record, ...] = ()
        self.agents = list(self.possible_agents)
        self._acts = dict.fromkeys(self.agents, 0)
        self.agent_selection = first
        self._skip_agent_selection = None  # read by PettingZoo's `_was_dead_step`
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: _step_info(0.0, 0.0, False, None, 0) for agent in self.agents}

    def observe(self, agent: str) -> dict[str, Any]:
        """Returns the observation of `agent`: `text`, `turn`, and extras. Changes nothing.

        `turn` is the turn of the agent that acts next, for every observer; in round robin, the number
        of finished rounds.
        """
        observation: dict[str, Any] = {"text": self._shown_to(agent), "turn": self.turn}
        if self._has_extras:
            observation.update(self._extras(self._state, agent))
        return observation

    def text_for(self, agent: str) -> str:
        """Returns the text of `observe(agent)`."""
        return str(self.observe(agent)["text"])

    def privileged_for(self, agent: str) -> str:
        """Returns facts for a judge that `agent` does not see, such as the solution; may be empty."""
        return self._privileged(self._state, self._known(agent))

    def demonstration_for(self, agent: str) -> str:
        """Returns a solver's reply in place of the agent; NotImplementedError where there is no solver."""
        return self._demonstrate(self._state, self._known(agent))

    def _shown_to(self, agent: str) -> str:
        # Shown to the caller, in the transcript, and in each branch of a tree: computed once.
        if agent not in self._shown:
            text = self._text(self._state, self._known(agent))
            if self.show_thinking:
                text += shown_thoughts(self.transcript, agent, self._hears(agent))
            self._shown[agent] = text
        return self._shown[agent]

    def state(self) -> str:  # type: ignore[override]  # PettingZoo's are arrays
        """Returns the whole state as text, PettingZoo's global state."""
        return self._view(self._state)

    def step(self, action: str | None) -> None:
        """Takes the selected agent's reply, or removes a finished agent if `action` is None.

        An unparsable or overlong reply is legal; `infos[agent]["parse_error"]` gives the reason.

        Raises:
            TypeError: a live agent's action is not a `str`.
            ValueError: a finished agent's action is not None.
            RuntimeError: the episode is over and all agents are gone.
        """
        agent, reply = self.agent_selection, self._reply_of(action)
        if reply is not None:
            [outcome] = self._outcomes(agent, [reply])
            self._record(agent, self._shown_to(agent), reply, outcome)

    def _outcomes(
        self, agent: str, replies: Sequence[str], ids: Sequence[Sequence[int]] = ()
    ) -> list[Outcome]:
        limit = self._action_spaces[agent].max_length
        texts: Sequence[str | None] = replies
        for reply in replies:
            if "think>" in reply or len(reply) > limit:
                texts = [
                    without_thought(candidate) if len(candidate) <= limit else None
                    for candidate in replies
                ]
                break
        read = [text for text in texts if text is not None]
        results = self._act_all(self._state, agent, read) if read else []
        if len(read) < len(texts):
            outcomes = iter(results)
            results = [
                next(outcomes) if text is not None else self._not_read(agent, len(reply), limit)
                for reply, text in zip(replies, texts, strict=True)
            ]
        if self.reward_funcs:
            shown = self._shown_to(agent)
            more = {
                **self.reward_columns(self._state),
                "completion_ids": [list(completion) for completion in ids] or [None] * len(replies),
                "trainer_state": self.trainer_state,
            }
            results = paid(
                self.reward_funcs, results, more, agent=agent, prompt=shown, replies=replies
            )
        return results

    def _not_read(self, agent: str, length: int, limit: int) -> Outcome:
        long = f"the reply has {length} characters; at most {limit} are allowed"
        return self._unread(self._state, agent, UNCLOSED if length <= limit else long)

    def _record(self, agent: str, shown: str, reply: str, outcome: Outcome) -> None:
        """Records an outcome, selects the next agent, and ends the episode where due."""
        team, local, success = float(outcome.team), float(outcome.local), bool(outcome.success)
        error, turn, agents = outcome.parse_error, self.turn, self.agents
        # Finished agents leave in their order; a final state need not have a next agent.
        following = agents[0] if outcome.done else self._next_agent(outcome.state, agent)
        acts = {**self._acts, agent: turn + 1}
        self.turn, self.agent_selection = acts[self._known(following)], following
        self._state, self._acts, self._shown, self._notes = outcome.state, acts, {}, outcome.notes
        self.transcript += (Record(turn, agent, shown, reply, team, local, error),)
        # Fresh dicts: callers may have kept or changed those of earlier steps.
        share = self.alpha * team if self.share_team_reward else 0.0
        self.rewards = dict.fromkeys(agents, share)
        self.rewards[agent] = self.alpha * team + local
        for other, earned in outcome.others.items():
            self.rewards[other] += earned
        self._cumulative_rewards[agent] = 0.0
        self._accumulate_rewards()
        infos = {other: {**info, "success": success} for other, info in self.infos.items()}
        infos[agent] = {**outcome.info, **_step_info(team, local, success, error, turn)}
        self.infos = infos
        if outcome.done:
            self.terminations = dict.fromkeys(agents, True)
        elif self.turn == self.max_turns:  # of the next agent: it has no turn left
            self.truncations = dict.fromkeys(agents, True)

    def render(self) -> Any:
        """Returns the view as text ("ansi") or array ("rgb_array"); "human" prints the text."""
        return self._picture(self._state) if self.render_mode == "rgb_array" else super().render()

    def _drawn(self) -> str:
        return self._view(self._state)

    # Exact copies.

    def snapshot(self) -> Snapshot:
        """Returns the state of the episode as a small picklable value that later steps do not change."""
        attributes = self.__dict__
        if "_state" not in attributes:  # before the first reset
            return Snapshot(SNAPSHOT_VERSION, self._identity, None)
        fields = {name: attributes[name] for name in _VALUES}
        _copy_containers(attributes, fields)
        return Snapshot(SNAPSHOT_VERSION, self._identity, fields)

    def restore(self, snapshot: Snapshot) -> None:
        """Continues from `snapshot`, in any instance made with the same arguments.

        Arguments in `interchangeable` may differ. Functions and other objects are compared by the
        name of their class.

        Raises:
            CloneError: the snapshot is from another environment or version; names the first difference.
        """
        same = snapshot.version == SNAPSHOT_VERSION and snapshot.env == self._identity
        if not same and (refusal := snapshot.refusal(str(self), self._identity)):
            raise CloneError(refusal)
        attributes = self.__dict__
        if snapshot.fields is None:
            # Taken before the first reset: what reset sets must be gone again.
            for name in _SET_BY_RESET:
                attributes.pop(name, None)
            attributes["_stream"] = None
        else:
            attributes.update(snapshot.fields)
            _copy_containers(snapshot.fields, attributes)
            self._shown = {}

    def clone(self) -> Self:
        """Returns an independent copy at the same point of the episode.

        Spaces and other attributes of a subclass (data, a sandbox) are shared.
        """
        # Not through the constructor, which may load a data set.
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.restore(self.snapshot())
        return twin

    __copy__ = clone

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    def branch(
        self, replies: Sequence[str], completion_ids: Sequence[Sequence[int]] = ()
    ) -> list[Self]:
        """Returns one copy for each reply, after the selected agent has given it.

        Equal to `clone` and `step` for each, but computed together if that is cheaper.
        `completion_ids` are the replies' tokens, for reward functions.
        """
        agent = self.agent_selection
        twins = [self.clone() for _ in replies]
        outcomes = self._outcomes(agent, replies, completion_ids)
        for twin, reply, outcome in zip(twins, replies, outcomes, strict=True):
            twin._record(agent, self._shown_to(agent), reply, outcome)
        return twins

    def __getattr__(self, name: str) -> Any:
        if name in _SET_BY_RESET:
            raise AttributeError(f"{name!r} does not exist yet; call reset() first")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


TextEnv.__signature__ = arguments.signature(TextEnv)


def metadata_of(name: str, *pictures: str, **more: Any) -> dict[str, Any]:
    """Returns PettingZoo's metadata of an environment that renders text, and `pictures` (rgb_array)."""
    modes = ["ansi", "human", *pictures]
    facts = {"name": name, "render_modes": modes, "is_parallelizable": False, "render_fps": 1}
    return facts | more


def _refuse_taken(kind: type, taken: Collection[str]) -> None:
    """Refuses names of a subclass that `TextEnv` would overwrite, or that would shadow its own.

    Raises:
        ConfigError: names the first of them.
    """
    if taken:
        name = min(taken)
        hint = "; for the default number of turns set default_turns" * (name == "max_turns")
        raise ConfigError(
            f"{kind.__name__}.{name} is a name that TextEnv sets itself; give yours another{hint}"
        )


def next_agent(env: AECEnv[Any, Any, Any]) -> str | None:
    """Returns the agent that acts next, or None when the episode is over.

    Removes finished agents, as PettingZoo requires. This clears `env.rewards`: read them first.
    """
    while env.agents:
        agent: str = env.agent_selection
        if not (env.terminations[agent] or env.truncations[agent]):
            return agent
        env.step(None)
    return None


def stream_seed(seed: int, episode: int) -> int:
    """Returns the task seed of the `episode`-th reset of the stream that `seed` opened.

    Episode 0 is `seed` itself; later ones are 48-bit digests, equal on every machine, so that
    streams with neighboring seeds do not share tasks.
    """
    if episode == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{episode}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")


def _step_info(
    team: float, local: float, success: bool, parse_error: str | None, turn: int
) -> dict[str, Any]:
    """Returns the entries that every `infos[agent]` has."""
    info = {"team_reward": team, "local_reward": local, "success": success}
    return {**info, "parse_error": parse_error, "turn": turn}


def _copy_containers(source: Mapping[str, Any], target: dict[str, Any]) -> None:
    for name in _CONTAINERS:
        target[name] = source[name].copy()
    target["infos"] = {agent: info.copy() for agent, info in source["infos"].items()}
