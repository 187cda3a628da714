"""Branching episodes: probes that look ahead, and forks that continue from other candidates."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pettingllms.rollout.trajectory import returns_of
from pettingllms.types import Candidate, Group, Later

if TYPE_CHECKING:
    from pettingllms.rollout.episode import Branch, Episode

Rewards = Mapping[str, float]
"""Rewards by agent at one decision."""


@dataclass(eq=False)
class Branching:
    """The probes and forks that left an episode, and what its candidates led to."""

    episode: Episode
    before: dict[str, float] = field(default_factory=dict)
    """Agent -> rewards on the way to where the episode itself left another one."""
    _compares: bool = False
    """Whether the record says what each candidate led to."""
    _probes: dict[tuple[int, str], Episode] = field(default_factory=dict)
    """Index of a decision, and text of a candidate that was not continued from -> its probe."""
    _forks: dict[tuple[int, int], Episode] = field(default_factory=dict)
    """Index of a decision, and of its candidate -> the episode that continues from it."""

    def look_ahead(self, branches: Sequence[Branch], chosen: int) -> list[Episode]:
        """Starts a probe from each other text among the candidates of the pending decision."""
        self._compares = True
        at = len(self.episode.groups)
        for k, branch in enumerate(branches):
            place = at, branch.completion.text
            # Equal texts lead to equal states.
            if branch.completion.text != branches[chosen].completion.text and (
                place not in self._probes
            ):
                self._probes[place] = self.episode.leaving(branch, k)
                self._probes[place].probe = True
        return [probe for (index, _), probe in self._probes.items() if index == at]

    def fork(self, branches: Sequence[Branch], chosen: int) -> list[Episode]:
        """Starts an episode from each other candidate of the pending decision.

        Equal texts are continued from as often as they were sampled.
        """
        self._compares = True
        episode, agent = self.episode, self.episode.agent or ""
        earlier = returns_of(episode.groups, episode.early)
        forks = {k: episode.leaving(b, k) for k, b in enumerate(branches) if k != chosen}
        for k, fork in forks.items():
            # The fork's record begins after the candidate that it leaves from, but its return
            # includes the rewards up to there.
            before = defaultdict(float, earlier)
            for name, reward in self.before.items():
                before[name] += reward
            before[agent] += branches[k].result.reward
            fork.branching.before = before
            fork.cooperative |= branches[k].result.cooperative
            self._forks[len(episode.groups), k] = fork
        return list(forks.values())

    def in_order(self) -> list[tuple[int, int, Episode]]:
        """Depth, candidate, and episode of the forks, in that order."""
        start = self.episode.depth - len(self.episode.groups)
        return [(start + at, k, fork) for (at, k), fork in sorted(self._forks.items())]

    def compared(self) -> list[Group]:
        """The episode's decisions, annotated with what each candidate led to if that was played."""
        return self._following()[0] if self._compares else self.episode.groups

    def _following(self) -> tuple[list[Group], list[Rewards]]:
        """Returns the decisions annotated with candidate returns, and the rewards per decision."""
        episode = self.episode
        groups: list[Group] = []
        ahead: list[Rewards] = []  # from the next decision on
        # From the end, because what a decision led to is a mean over what its candidates led to.
        for at, group in reversed(list(enumerate(episode.groups))):
            agent, later = group.key.agent, []
            # A late reward was paid after the decision, so that it belongs to what followed.
            ahead = _with(ahead, {agent: group.late_reward})
            for k, candidate in enumerate(group.candidates):
                left = self._forks.get((at, k)) or self._probes.get((at, candidate.completion.text))
                later.append(ahead if left is None else left.branching._ahead())
            groups.append(replace(group, candidates=self._with_later(at, group, later)))
            mean = sum(candidate.reward for candidate in group.candidates) / len(later)
            ahead = [{agent: mean}, *_mean(later)]
        return groups[::-1], ahead

    def _ahead(self) -> list[Rewards]:
        """Returns the mean rewards by decision, over the candidates of each."""
        return _with(self._following()[1], self.episode.early)

    def _with_later(
        self, at: int, group: Group, later: Sequence[Sequence[Rewards]]
    ) -> tuple[Candidate, ...]:
        spent: dict[str, int] = {}
        for (index, text), probe in self._probes.items():
            if index == at:
                spent[text] = sum(
                    len(c.completion.token_ids) for g in probe.groups for c in g.candidates
                )
        agent, shared = group.key.agent, self.episode.cooperative
        return tuple(
            replace(
                candidate,
                later=Later(
                    tuple(sum(r.values()) if shared else r.get(agent, 0.0) for r in rewards),
                    # Equal texts share one probe, whose tokens count once: `pop` leaves 0 to the
                    # others.
                    spent.pop(candidate.completion.text, 0),
                ),
            )
            for candidate, rewards in zip(group.candidates, later, strict=True)
        )


def _with(ahead: Sequence[Rewards], more: Rewards) -> list[Rewards]:
    """Adds `more` to the rewards of the first decision of `ahead`."""
    if not any(more.values()):
        return list(ahead)
    first, rest = (ahead[0], ahead[1:]) if ahead else ({}, ())
    names = dict.fromkeys([*first, *more])
    return [{name: first.get(name, 0.0) + more.get(name, 0.0) for name in names}, *rest]


def _mean(several: Sequence[Sequence[Rewards]]) -> list[Rewards]:
    """The mean by decision and agent; episodes that ended before the others count 0."""
    means: list[Rewards] = []
    for decision in itertools.zip_longest(*several, fillvalue={}):
        names = dict.fromkeys(name for rewards in decision for name in rewards)
        means.append({n: sum(r.get(n, 0.0) for r in decision) / len(decision) for n in names})
    return means
