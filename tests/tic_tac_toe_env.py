"""Tic-Tac-Toe as PettingZoo's documentation writes environments, with text: nothing of this package.

The winner is paid 1 and the loser -1, both at the winner's step. A move that is not allowed loses.
"""

from __future__ import annotations

from gymnasium.spaces import Text
from pettingzoo import AECEnv

LINES = ("012", "345", "678", "036", "147", "258", "048", "246")


class env(AECEnv):
    metadata = {"name": "tic_tac_toe_text", "render_modes": [], "is_parallelizable": False}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.possible_agents = ["cross_1", "nought_1"]
        self.render_mode = None

    def observation_space(self, agent):
        return Text(200)

    def action_space(self, agent):
        return Text(200)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.board = list("012345678")
        self.agent_selection = self.agents[0]

    def observe(self, agent):
        return f"{agent}: {''.join(self.board)}"

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        other = self.possible_agents[self.possible_agents[0] == agent]
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        mark = "xo"[self.possible_agents.index(agent)]
        if action not in self.board:
            self._end({agent: -1, other: 1})
        else:
            self.board[int(action)] = mark
            if any({self.board[int(place)] for place in line} == {mark} for line in LINES):
                self._end({agent: 1, other: -1})
            elif not any(place.isdigit() for place in self.board):
                self._end({})
        self.agent_selection = other
        self._accumulate_rewards()

    def _end(self, rewards):
        self.rewards.update(rewards)
        self.terminations = dict.fromkeys(self.agents, True)

    def render(self):
        return None
