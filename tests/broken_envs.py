"""Environments that each break one promise, for tests of `check_env`."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete

from pettingllms.envs import FreeText, Outcome
from pettingllms.errors import SandboxUnavailable
from tests import foreign_env
from tests.toy_env import State
from tests.toy_env import raw_env as toy


class Impure(toy):
    """Observing counts."""

    looks = 0

    def _text(self, state, agent):
        Impure.looks += 1
        return f"{super()._text(state, agent)} {Impure.looks}"


class Draining(toy):
    """Observing takes a message out of a queue."""

    def observe(self, agent):
        observation = super().observe(agent)
        self.turn = min(self.turn + 1, self.max_turns)
        return observation


class Shared(toy):
    """Copies write into one list."""

    def _start(self, seed, options):
        return [*super()._start(seed, options), []]

    def _text(self, state, agent):
        return f"{super()._text(State(*state[:3]), agent)} {state[3]}"

    def _act(self, state, agent, text):
        state[3].append(text[:5])
        return Outcome(state, team=0.0, local=0.0, success=False)

    def _view(self, state):
        return str(state)


class Clock(toy):
    """Tasks depend on the time."""

    def _start(self, seed, options):
        return super()._start(time.perf_counter_ns(), options)


class Hashed(toy):
    """Tasks depend on the hash of a string."""

    def _start(self, seed, options):
        return super()._start(hash(f"task {seed}"), options)


class GlobalRandom(toy):
    """Tasks are drawn from the global generator, seeded though it is."""

    def _start(self, seed, options):
        random.seed(seed)
        return super()._start(random.randrange(100), options)


class OneSplit(toy):
    """All splits are the same."""

    def _start(self, seed, options):
        return State(random.Random(seed).randrange(10), None, ())


class Crashing(toy):
    """A reply is handed to int()."""

    def _act(self, state, agent, text):
        return super()._act(state, agent, str(int(text)) if text.isdigit() else text)


class NoSandbox(toy):
    """What runs its programs is down."""

    def _act(self, state, agent, text):
        raise SandboxUnavailable("no worker answers")


class Slow(toy):
    """A reply is read in quadratic time."""

    def _act(self, state, agent, text):
        end = time.process_time() + (len(text) > 10_000) * 0.05
        while time.process_time() < end:
            pass
        return super()._act(state, agent, text)


class Returning(toy):
    """Step returns what Gymnasium's does."""

    def step(self, action):
        super().step(action)
        return self.last()


class NumpyBools(toy):
    """Flags come from numpy."""

    def step(self, action):
        super().step(action)
        no: Any = np.bool_(False)
        self.terminations = dict.fromkeys(self.terminations, no)


class Infinite(toy):
    """A reward is not finite."""

    def _act(self, state, agent, text):
        return Outcome(state, team=float("inf"), local=0.0, success=False)


class Unmixed(toy):
    """The reward is not the sum of its parts."""

    def step(self, action):
        super().step(action)
        self.rewards = {agent: reward + 0.25 for agent, reward in self.rewards.items()}


class Endless(toy):
    """It is never truncated."""

    def step(self, action):
        super().step(action)
        if all(self.truncations.values()):
            self.turn = self.max_turns
            self.truncations = dict.fromkeys(self.truncations, False)


class Outside(toy):
    """The turn lies outside of its space."""

    def observe(self, agent):
        return {**super().observe(agent), "turn": -1}


class NewSpaces(toy):
    """Spaces are made at each call."""

    def action_space(self, agent):
        return FreeText()


class NarrowSpaces(toy):
    """Not every text is an action."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._action_spaces = {agent: FreeText(100) for agent in self.possible_agents}


class Masked(toy):
    """An observation has a key that PettingZoo's tests cannot handle."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._observation_spaces = {
            agent: Dict({**space.spaces, "action_mask": Discrete(2)})
            for agent, space in self._observation_spaces.items()
        }


class Nameless(toy):
    """Agents are numbers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        numbers: Any = [0, 1]
        self.possible_agents = numbers


class LostInfo(toy):
    """An agent's info is gone."""

    def step(self, action):
        super().step(action)
        self.infos.pop("checker_0", None)


class NoInfo(toy):
    """Infos are None."""

    def step(self, action):
        super().step(action)
        nothing: Any = None
        self.infos = dict.fromkeys(self.infos, nothing)


class Numbered(toy):
    """The reason of an unreadable reply is a number."""

    def _act(self, state, agent, text):
        number: Any = 3
        return replace(super()._act(state, agent, text), parse_error=number)


class Drawn(toy):
    """The view is not text."""

    def _view(self, state):
        return list(state)


class Forgiving(toy):
    """A reply over the limit is no parse error."""

    def _unread(self, state, agent, reason):
        return Outcome(state, team=0.0, local=0.0, success=False)


class forgetful_late(foreign_env.raw_env):
    """Copies look right but go on with other random numbers."""

    def __deepcopy__(self, memo):
        twin = type(self)(self.rounds)
        twin.__dict__.update(self.__dict__)
        for name in ("rewards", "_cumulative_rewards", "terminations", "truncations", "infos"):
            setattr(twin, name, dict(getattr(self, name)))
        twin.agents = list(self.agents)
        twin._random = random.Random(5)
        return twin
