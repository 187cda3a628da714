"""Rollout shapes: how many completions a prompt gets, and from how many of them the task continues.

| name | of each prompt | continues from |
|---|---|---|
| `tree` | K candidates | one |
| `look_ahead` | K candidates | one; the others are played to the end to see what they lead to |
| `episodes` | one, in K episodes side by side | it |
| `fork_on_first` | K at the first decision, then one | all K |
| `round_robin` | K at one decision, another agent's from task to task, else one | all K |
| `full` | K candidates | all K |
| `blanked` | as `episodes`; a copy of each for each agent that learns, whose replies are blank there | it |
| `coalitions` | as `blanked`, with a copy for each set of agents | it |
| `verdicts` | as `episodes`; several of the judge's, which change nothing (`--method judged`) | it |

A shape of one's own is a subclass of `RolloutShape` that says in `plan` what happens at a decision,
given as `--method-args.shape my_package.my_module:MyShape`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from pettingllms.envs.judged import JUDGE
from pettingllms.errors import ConfigError
from pettingllms.registry import Registry

SHAPES = Registry(
    "shape",
    {
        "tree": "pettingllms.rollout.shapes:Tree",
        "look_ahead": "pettingllms.rollout.shapes:LookAheadTree",
        "episodes": "pettingllms.rollout.shapes:Episodes",
        "fork_on_first": "pettingllms.rollout.shapes:ForkOnFirst",
        "round_robin": "pettingllms.rollout.shapes:RoundRobin",
        "full": "pettingllms.rollout.shapes:Full",
        "blanked": "pettingllms.rollout.shapes:Blanked",
        "coalitions": "pettingllms.rollout.shapes:Coalitions",
        "verdicts": "pettingllms.rollout.shapes:Verdicts",
    },
)
MOST_LEAVES = 4096
"""Episodes that `full` may make of one task."""
MOST_AGENTS = 4
"""Agents of which `coalitions` plays every set."""


class Move(NamedTuple):
    """A decision that is about to be sampled."""

    task: str
    agent: str
    depth: int
    """Decisions taken before it in its episode."""
    agents: int
    """Agents of the environment."""
    blanked: int = 0
    """Agents whose replies are blank, in a copy of an episode."""


class Plan(NamedTuple):
    """The number of candidates at a decision, and what becomes of them."""

    draw: int = 1
    """Candidates to sample."""
    forks: bool = False
    """Whether the task continues from all of them, instead of from one."""
    probes: bool = False
    """Whether the others are played to the end with single completions, to be compared."""
    blanks: bool = False
    """Whether a copy of the episode is played in which all replies of the agent are blank. It counts
    at the agent's first decision."""


@dataclass(frozen=True)
class RolloutShape:
    """Amount of sampling for a task. This one: parallel episodes without alternatives.

    Only decisions of policies that learn are planned; all others get one completion.
    """

    episodes: int = 1
    """Episodes of each task, side by side."""
    first: int = 0
    """Index of the first of them. What an episode draws follows from its index."""
    width: int = 1
    """K: candidates of a prompt that gets several."""
    branch: str = "best"
    """The candidate to continue from: best (ties at random), sample or first."""
    bootstraps: bool = False
    """Whether the record says what would have been asked next where the limit on turns ended an episode."""

    @classmethod
    def of(cls, width: int, branch: str) -> Self:
        """The shape for K = `width`."""
        return cls(width=width, branch=branch)

    def plan(self, move: Move) -> Plan:
        """Says what happens at a decision of a policy that learns; a pure function of `move`."""
        del move
        return Plan()

    def completions(self, count: int) -> int:
        """Completions for one task whose episodes have `count` decisions, all of them planned."""
        return count * self.episodes

    def check(self, env: Any) -> None:
        """Refuses an environment that this shape cannot be played on.

        Raises:
            ConfigError: it would take too many episodes.
        """
        del env


class Episodes(RolloutShape):
    """K episodes of a task, side by side."""

    @classmethod
    def of(cls, width: int, branch: str) -> Self:
        """K is the number of episodes."""
        return cls(episodes=width, branch=branch)


class Tree(RolloutShape):
    """K candidates of every prompt, of which one is continued from (AT-GRPO)."""

    def plan(self, move: Move) -> Plan:
        """K candidates."""
        del move
        return Plan(self.width)

    def completions(self, count: int) -> int:
        """K each."""
        return count * self.width


class LookAheadTree(Tree):
    """A tree in which each other candidate is played to the end, with single completions."""

    def plan(self, move: Move) -> Plan:
        """K candidates, K - 1 probes."""
        del move
        return Plan(self.width, probes=True)

    def completions(self, count: int) -> int:
        """K each, and the rest of the episode for K - 1 of them."""
        # A probe takes the decisions that are left of the episode. Summed over where it may leave,
        # that is half of count times count - 1.
        ahead = (self.width - 1) * count * (count - 1) // 2
        return count * self.width + ahead


class ForkOnFirst(RolloutShape):
    """Episodes that share their first prompt: K candidates of it are all continued from."""

    def plan(self, move: Move) -> Plan:
        """Forks at the first decision."""
        return Plan(self.width, forks=True) if move.depth == 0 else Plan()

    def completions(self, count: int) -> int:
        """Completions of K whole episodes."""
        return count * self.width


class RoundRobin(ForkOnFirst):
    """Episodes that part at one decision of the first round, at another agent's in each task.

    Completions are counted for a task that parts at its first decision, which has the most.
    """

    def plan(self, move: Move) -> Plan:
        """Forks at the task's own place."""
        # By the task's name, so that all episodes of a task part at the same decision.
        at = random.Random(f"{move.task} forks").randrange(max(1, move.agents))
        return Plan(self.width, forks=True) if move.depth == at else Plan()


class Full(Tree):
    """Every candidate of every prompt is continued from: K to the power of the decisions."""

    def plan(self, move: Move) -> Plan:
        """Forks everywhere."""
        del move
        return Plan(self.width, forks=True)

    def completions(self, count: int) -> int:
        """K + K^2 + ... + K^count."""
        return int(sum(self.width**depth for depth in range(1, count + 1)))

    def check(self, env: Any) -> None:
        """Refuses long episodes.

        Raises:
            ConfigError: the longest episode would make more than `MOST_LEAVES` of a task, or the
                environment does not say how long one can be.
        """
        turns = getattr(env.unwrapped, "max_turns", None)
        count = None if turns is None else turns * len(env.possible_agents)
        if count is None or self.width**count > MOST_LEAVES:
            shown = "unknown" if count is None else f"{self.width}^{count}"
            raise ConfigError(
                f"shape full continues from every candidate: {shown} episodes of a task, and "
                f"{MOST_LEAVES:,} are the most; lower num_generations or the environment's max_turns"
            )


class Verdicts(Episodes):
    """K episodes, with `width` verdicts of the judge on each reply."""

    def plan(self, move: Move) -> Plan:
        """One completion, or so many verdicts."""
        return Plan(self.width) if move.agent == JUDGE else Plan()

    def completions(self, count: int) -> int:
        """Every other decision is a verdict."""
        return self.episodes * (count + count // 2 * (self.width - 1))


class Blanked(Episodes):
    """K episodes, each with copies in which one agent's replies are blank: what is it without the agent?

    Only agents that learn have a copy. It leaves its episode at the agent's first decision and draws
    with the same seeds: where nobody reads the agent, the copy ends as the episode does.
    """

    def plan(self, move: Move) -> Plan:
        """One completion, and a copy without the agent."""
        return Plan(blanks=not move.blanked)

    def completions(self, count: int) -> int:
        """K episodes; in the copies, at the most one for each agent before a decision."""
        return self.episodes * (count + count * (count - 1) // 2)

    def check(self, env: Any) -> None:
        """Refuses an agent that is alone.

        Raises:
            ConfigError: the environment has one agent.
        """
        if len(env.possible_agents) < 2:
            raise ConfigError(
                f"this method plays episodes without one of the agents, and {env} has one agent; "
                "use a team"
            )


class Coalitions(Blanked):
    """K episodes, each with copies in which the replies of every set of agents are blank."""

    def plan(self, move: Move) -> Plan:
        """One completion, and a copy without the agent, in copies without others as well."""
        del move
        return Plan(blanks=True)

    def completions(self, count: int) -> int:
        """K episodes; in the copies, at the most one for each set of agents before a decision."""
        most = 2 ** (MOST_AGENTS - 1)
        return int(self.episodes * sum(min(2**depth, most) for depth in range(count)))

    def check(self, env: Any) -> None:
        """Refuses teams with too many sets of agents.

        Raises:
            ConfigError: the environment has one agent, or more than `MOST_AGENTS`.
        """
        super().check(env)
        if (count := len(env.possible_agents)) > MOST_AGENTS:
            raise ConfigError(
                f"shape coalitions plays every set of agents, and {env} has {count} agents; "
                f"{MOST_AGENTS} are the most, and shape blanked (ccpo) takes any number"
            )
