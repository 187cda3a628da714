"""`GameEnv`: what the bridges to other libraries' games share: a seat for each player, outcomes at the end.

A `TextEnv` is a team over an immutable state, which pays the agent that acts. A game of another library
is an object that changes, and it pays winners and losers alike, at its end. `GameEnv` is therefore a
plain PettingZoo environment: a subclass says how a game starts, who is to move, what a seat is shown, what a reply does, and
what it all came to. What it promises beyond PettingZoo is what `check_env` checks of any environment,
exact copies among it.

The outcome is late: `metadata["outcome"]` says so, and estimators that compare what candidates earn at
once are refused (`pettingllms.trainers.method`).
"""

from __future__ import annotations

import contextlib
import io
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from gymnasium.spaces import Dict, Discrete

from pettingllms.envs import arguments
from pettingllms.envs.base import AgentEnv, FreeText, stream_seed
from pettingllms.envs.thinking import UNCLOSED, without_thought
from pettingllms.errors import ConfigError

# Games of other libraries search replies with patterns of their own, whose cost nobody has
# bounded.
MAX_REPLY = 20_000
"""Characters of a reply that a game is given; a longer one cannot be read."""
# All of them are changed in place during an episode, so that a copy needs its own.
_CONTAINERS = ("agents", "rewards", "terminations", "truncations", "_cumulative_rewards", "_acts")


class GameEnv(AgentEnv):
    """Base class of bridges; the module docstring says what for.

    Args:
        roles: the role of each seat in the order of the game's players; a seat's agent is
            `<role>_0`, `<role>_1` where the role occurs again. Seats with one role share a policy.
        max_turns: replies of each agent, after which the episode is truncated, with nothing paid.
        render_mode: "ansi" (`render` returns text), "human" (prints it) or None.

    Raises:
        ConfigError: a value that cannot be used.
    """

    embedded: ClassVar[Mapping[str, Any]] = {}
    """Arguments that fit the game to the embedded model, unless others are given."""

    def __init__(self, *, roles: Sequence[str], max_turns: int, render_mode: str | None) -> None:
        if render_mode is not None:
            arguments.one_of("render_mode", render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        self.max_turns = arguments.turn_limit(max_turns, None, max_turns)
        self.possible_agents = arguments.agent_names(roles)
        self._observation_spaces = {
            agent: Dict({"text": FreeText(), "turn": Discrete(self.max_turns + 1)})
            for agent in self.possible_agents
        }
        self._action_spaces = {agent: FreeText() for agent in self.possible_agents}
        self._stream = None
        self._shown: dict[str, str] = {}

    # What a subclass writes.

    def _begin(self, seed: int) -> None:
        """Starts a game of that seed."""
        raise NotImplementedError

    def _to_move(self) -> int:
        """Returns the seat that acts next, in a game that is not over."""
        raise NotImplementedError

    def _text(self, seat: int) -> str:
        """Returns what a seat is shown; changes nothing, at any time of the game."""
        raise NotImplementedError

    def _play(self, seat: int, text: str | None) -> str | None:
        """Plays a reply; returns why it could not be read, if so.

        Args:
            seat: who replies.
            text: the reply without its thought; None where there is none, which the game's own rule
                for moves that cannot be read decides. No text raises.
        """
        raise NotImplementedError

    def _outcome(self) -> Sequence[float] | None:
        """Returns what each seat earned in all, once the game is over; None before."""
        raise NotImplementedError

    def _copied(self, twin: Self) -> None:
        """Gives `twin`, which shares everything with this environment, its own copy of the game."""
        raise NotImplementedError

    # PettingZoo's interface.

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts a game of that seed, or the next one of the stream that an earlier seed opened.

        Raises:
            ConfigError: `seed` is negative, or there are `options`.
            TypeError: `seed` is not an integer.
        """
        self._checked_options(options)
        # Games seed NumPy's older generator with it, whose seeds have 32 bits.
        self._stream = self._next_stream(seed, bits=32)
        self._begin(stream_seed(*self._stream))
        self.agents = list(self.possible_agents)
        self._shown = {}
        self._acts = dict.fromkeys(self.agents, 0)
        self._skip_agent_selection = None  # read by PettingZoo's `_was_dead_step`
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = self.possible_agents[self._to_move()]

    def observe(self, agent: str) -> dict[str, Any]:
        """Returns what `agent` sees: `text`, and in `turn` how often the agent to act has replied."""
        seat = self.possible_agents.index(self._known(agent))
        if agent not in self._shown:
            # Texts that are written by others may hold anything, but a space has its bounds.
            # The end is kept, where a game asks for the next move.
            self._shown[agent] = self._text(seat)[-FreeText().max_length :]
        return {"text": self._shown[agent], "turn": self._acts[self.agent_selection]}

    def step(self, action: str | None) -> None:
        """Plays the selected agent's reply, or removes a finished agent where `action` is None.

        A reply that the game cannot read follows the game's own rule for it;
        `infos[agent]["parse_error"]` says why it could not be read.

        Raises:
            TypeError: a live agent's action is not a `str`.
            ValueError: a finished agent's action is not None.
            RuntimeError: the episode is over and all agents are gone.
        """
        agent, reply = self.agent_selection, self._reply_of(action)
        if reply is None:
            return
        text, error = _read(reply)
        unread = self._play(self.possible_agents.index(agent), text)
        self._shown = {}
        self._acts[agent] += 1
        self.infos = {other: {} for other in self.agents}
        self.infos[agent]["parse_error"] = error or unread
        self._settle(agent)

    def _settle(self, agent: str) -> None:
        """Pays what is due after a step of `agent`, and selects who is next."""
        outcome, agents = self._outcome(), self.agents
        # PettingZoo's `last` returns what an agent has earned since its own step before this one.
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict.fromkeys(agents, 0.0)
        if outcome is not None:
            self.rewards = {name: float(paid) for name, paid in zip(agents, outcome, strict=True)}
            self.terminations = dict.fromkeys(agents, True)
            # Finished agents are stepped out in their order.
            self.agent_selection = agents[0]
        else:
            self.agent_selection = self.possible_agents[self._to_move()]
            if self._acts[self.agent_selection] >= self.max_turns:
                self.truncations = dict.fromkeys(agents, True)
                self.agent_selection = agents[0]
        self._accumulate_rewards()

    def _drawn(self) -> str:
        return str(self.observe(self.agent_selection)["text"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """An exact copy at the same point of the same game; spaces are shared."""
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(self.__dict__)
        # Before the first reset there is no game to copy.
        if hasattr(self, "infos"):
            for name in _CONTAINERS:
                setattr(twin, name, getattr(self, name).copy())
            twin.infos = {agent: info.copy() for agent, info in self.infos.items()}
            self._copied(twin)
        twin._shown = dict(self._shown)
        return twin

    def __str__(self) -> str:
        return str(self.metadata["name"])


def _read(reply: str) -> tuple[str | None, str | None]:
    """Returns what a reply says, and why it could not be read, where that is known already."""
    if len(reply) > MAX_REPLY:
        return None, f"the reply has {len(reply)} characters; at most {MAX_REPLY} are allowed"
    text = without_thought(reply)
    return text, UNCLOSED if text is None else None


def seat_roles(roles: Sequence[str] | None, players: int) -> Sequence[str]:
    """Returns the role of each of `players` seats, `player` for all where `roles` is None.

    Raises:
        ConfigError: there are more or fewer roles than seats.
    """
    if roles is None:
        return ["player"] * players
    if isinstance(roles, str) or len(roles) != players:
        raise ConfigError(
            f"roles must name a role for each of {players} seats, in their order, got {roles!r}"
        )
    return list(roles)


# Games of other libraries draw from `random` and `numpy.random`. Around every call into a game, the states that belong
# to it are put in place, and those of everybody else are put back.


class Generators(NamedTuple):
    """States of the two global random generators; never changed in place."""

    python: Any
    numpy: Any
    """None for a game that does not use it: swapping it takes longer than most games' moves."""


def seeded(seed: int, *, numpy: bool = True) -> Generators:
    """The states that `seed` puts the generators into; only Python's where not `numpy`."""
    return Generators(
        random.Random(seed).getstate(),
        # `RandomState` takes seeds of 32 bits.
        np.random.RandomState(seed % (1 << 32)).get_state() if numpy else None,
    )


class Swap:
    """The states after a block of `private`."""

    def __init__(self, state: Generators) -> None:
        self.state = state


_LOCK = threading.RLock()


@contextlib.contextmanager
def private(state: Generators) -> Iterator[Swap]:
    """Runs a block in which `random` and `numpy.random` continue from `state`.

    Outside nothing has changed afterwards, also where the block raises; the yielded object then has
    their new states. What a game prints is dropped. One block at a time: other threads wait.
    """
    nowhere = io.StringIO()
    # Standard output, too, is one for all threads, so that it is redirected under the lock.
    with _LOCK, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        outside = _taken(state)
        # Filled in at the end, because the new states are known only when the block is over.
        swap = Swap(state)
        try:
            _put(state)
            yield swap
        finally:
            swap.state = _taken(state)
            _put(outside)


def _taken(like: Generators) -> Generators:
    numpy = None if like.numpy is None else np.random.get_state()  # noqa: NPY002
    return Generators(random.getstate(), numpy)


def _put(state: Generators) -> None:
    random.setstate(state.python)
    if state.numpy is not None:
        np.random.set_state(state.numpy)  # noqa: NPY002
