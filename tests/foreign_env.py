"""PettingZoo environments that know nothing of this package, for tests.

Two speakers echo a word in turn. `env` is written as PettingZoo's documentation does it;
the copies of `forgetful` lose their place; `locked` cannot be copied; `easily_pickled` and
`badly_pickled` inherit gymnasium's EzPickle, as most of PettingZoo's environments do.
"""

from __future__ import annotations

import random
import threading
from typing import Any

from gymnasium.spaces import Discrete, Text
from gymnasium.utils import EzPickle
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import wrappers

from pettingllms.envs import FreeText

WORDS = ("apple", "pear", "plum", "fig")


class raw_env(AECEnv):
    """Observations are bare text, rewards are integers, and there is no team."""

    metadata = {"name": "echo_v0", "render_modes": [], "is_parallelizable": False}  # noqa: RUF012

    def __init__(self, rounds=2):
        super().__init__()
        self.rounds = rounds
        self.possible_agents = ["speaker_1", "speaker_2"]
        self._spaces: dict[str, Any] = {
            agent: (FreeText(), FreeText()) for agent in self.possible_agents
        }
        self._random: Any = None

    def observation_space(self, agent):
        return self._spaces[agent][0]

    def action_space(self, agent):
        return self._spaces[agent][1]

    def reset(self, seed=None, options=None):
        if seed is not None or self._random is None:
            self._random = random.Random(seed)
        self.agents = self.possible_agents[:]
        self.agent_selection = self.agents[0]
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.word = self._random.choice(WORDS)
        self.acts = 0

    def observe(self, agent):
        return f"Say {self.word}."

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        self.rewards[agent] = int(action == self.word)
        self.word = self._random.choice(WORDS)
        self.acts += 1
        if self.acts == self.rounds * len(self.agents):
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = self.agents[self.acts % len(self.agents)]
        self._accumulate_rewards()


class _Forgetful(raw_env):
    def __deepcopy__(self, memo):
        return type(self)(self.rounds)


class _EasilyPickled(raw_env, EzPickle):
    def __init__(self, rounds=2, *, first="apple"):
        EzPickle.__init__(self, rounds, first=first)
        raw_env.__init__(self, rounds)


class numbered(_EasilyPickled):
    """Has numbers for actions, as the games of PettingZoo's registry do."""

    def __init__(self, rounds=2):
        super().__init__(rounds)
        actions = Discrete(len(WORDS))
        self._spaces = dict.fromkeys(self.possible_agents, (FreeText(), actions))

    def step(self, action):
        super().step(None if action is None else WORDS[action])


class _BadlyPickled(raw_env, EzPickle):
    """It never calls EzPickle's constructor, so that its copies fail."""


class _Locked(raw_env):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class _Picky(raw_env):
    def __init__(self):
        super().__init__()
        self._spaces = {agent: (FreeText(), Text(10)) for agent in self.possible_agents}


class _Numbers(raw_env):
    def __init__(self):
        super().__init__()
        self._spaces = {agent: (Discrete(5), FreeText()) for agent in self.possible_agents}

    def observe(self, agent):
        return self.acts


def env(**kwargs):
    """Wrapped as PettingZoo recommends, but for the check of actions."""
    return wrappers.OrderEnforcingWrapper(raw_env(**kwargs))


def forgetful(**kwargs):
    """Its copies are rebuilt from the arguments."""
    return _Forgetful(**kwargs)


def easily_pickled(**kwargs):
    """Pickled by its arguments."""
    return wrappers.OrderEnforcingWrapper(_EasilyPickled(**kwargs))


def badly_pickled(**kwargs):
    """Not to be pickled."""
    return _BadlyPickled(**kwargs)


def locked():
    """It holds something that cannot be copied."""
    return _Locked()


def picky():
    """It refuses actions outside of a narrow space."""
    return wrappers.AssertOutOfBoundsWrapper(_Picky())


def numbers():
    """Its observations have no text."""
    return _Numbers()


not_an_env = 3


def makes_no_env():
    """It returns something else."""
    return {}


def parallel():
    """It makes a parallel environment."""
    return ParallelEnv()
