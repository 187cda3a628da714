"""LLM-Ens: which of several teams' policies is best in which situation, and who answers.

After the description of https://arxiv.org/abs/2505.15306, whose full text we have not read. Situations s are named once,
by the environment or by the base model. For the policies p of a role a table is made on training tasks:

    table[s][p] = mean r over the decisions of p in s,   p(s) = argmax_p table[s][p]

In a situation that is unknown, or in which no policy has `LEAST` decisions, the policy with the best mean over
all of its decisions answers; ties go to the one that is named first. The baseline is a vote: all policies
answer, and the most frequent reply is played.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from pettingllms.errors import ConfigError
from pettingllms.evaluation.votes import majority
from pettingllms.rollout.engine import Routed
from pettingllms.rollout.episode import Episode
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.samplers.base import Sampler
from pettingllms.types import Completion, Request

LEAST = 20
"""Decisions below which a mean says nothing."""
ROUTED, VOTE = "routed", "vote"
NAMER = "namer"
"""As whom the base model names situations; no environment has such a role."""
_QUESTION = """{prompt}

Which of these situations is this: {names}? Answer with its name alone."""


class Cell(NamedTuple):
    """Mean reward of a policy in a situation."""

    mean: float
    n: int
    """Decisions."""


@dataclass(frozen=True)
class Route:
    """The table of a role.

    Args:
        cells: situation -> policy -> what it earned.
        overall: policy -> what it earned in all situations; in the order in which ties are decided.
        least: decisions below which a cell counts as empty.
    """

    cells: Mapping[str, Mapping[str, Cell]]
    overall: Mapping[str, Cell]
    least: int = LEAST

    @classmethod
    def of(
        cls,
        records: Iterable[tuple[str | None, str, float]],
        policies: Sequence[str],
        least: int = LEAST,
    ) -> Self:
        """The table of records (situation, policy, reward).

        Raises:
            ConfigError: a policy with fewer than `least` decisions in all.
        """
        paid: dict[str | None, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        every: dict[str, list[float]] = {policy: [] for policy in policies}
        for situation, policy, reward in records:
            paid[situation][policy].append(reward)
            every[policy].append(reward)
        for policy, rewards in every.items():
            if len(rewards) < least:
                raise ConfigError(
                    f"{policy} has {len(rewards)} decisions, and a table needs {least} of each; give "
                    "more tasks, --limit"
                )
        cells = {
            situation: {policy: _cell(row[policy]) for policy in policies if row[policy]}
            for situation, row in paid.items()
            if situation is not None
        }
        return cls(cells, {policy: _cell(rewards) for policy, rewards in every.items()}, least)

    def best(self, situation: str | None) -> str:
        """The policy that answers in a situation."""
        row = self.cells.get(situation or "", {})
        known = {p: row[p].mean for p in self.overall if p in row and row[p].n >= self.least}
        means = known or {policy: cell.mean for policy, cell in self.overall.items()}
        return max(means, key=lambda policy: means[policy])  # the first of equals

    def row(self) -> dict[str, Any]:
        """The table as JSON has it, with the policy that answers in each situation."""
        return {
            "best": {situation: self.best(situation) for situation in self.cells},
            "otherwise": self.best(None),
            "least": self.least,
            "overall": {policy: list(cell) for policy, cell in self.overall.items()},
            "situations": {
                situation: {policy: list(cell) for policy, cell in row.items()}
                for situation, row in self.cells.items()
            },
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """The inverse of `row`.

        Raises:
            LookupError, TypeError: it is none.
        """
        cells = {
            situation: {policy: Cell(*cell) for policy, cell in own.items()}
            for situation, own in row["situations"].items()
        }
        return cls(cells, {p: Cell(*cell) for p, cell in row["overall"].items()}, row["least"])


def _cell(rewards: Sequence[float]) -> Cell:
    return Cell(sum(rewards) / len(rewards), len(rewards))


def routes_of(episodes: Mapping[str, Sequence[Trajectory]], least: int = LEAST) -> dict[str, Route]:
    """Role -> its table, of the episodes that each member has played alone.

    Raises:
        ConfigError: too few decisions.
    """
    records: dict[str, list[tuple[str | None, str, float]]] = defaultdict(list)
    for member, own in episodes.items():
        for group in (group for episode in own for group in episode.groups):
            # What other agents' steps paid for this decision is part of its worth.
            paid = group.chosen.reward + group.late_reward
            records[group.key.role].append((group.chosen.info.get("situation"), member, paid))
    return {role: Route.of(found, tuple(episodes), least) for role, found in records.items()}


@dataclass(frozen=True)
class Ensemble:
    """Several teams, and the rule that decides which of them answers.

    Args:
        policies: member -> policy of the first member -> its own in that place.
        who: a member, which answers always; `routed`, by `routes`; or `vote`.
        routes: role -> its table.
        situations: names that the base model chooses from where the environment names no situation.
    """

    policies: Mapping[str, Mapping[str, str]]
    who: str
    routes: Mapping[str, Route] = field(default_factory=dict)
    situations: tuple[str, ...] = ()

    def described(self) -> dict[str, Any]:
        """Returns the rule, the tables and the situations as JSON has them."""
        return {
            "who": self.who,
            "routes": {role: route.row() for role, route in self.routes.items()},
            "situations": list(self.situations),
        }

    def sampler(self, policies: Sampler) -> Sampler:
        """Returns the sampler that completes the prompts: `policies`, or a vote among them."""
        if self.who != VOTE:
            return policies
        return Voting(policies, [dict(own) for own in self.policies.values()])

    def router(self, policies: Sampler) -> Callable[[Episode, str], Routed]:
        """Returns a function for `RolloutEngine.route` that names the policy that answers."""

        def route(episode: Episode, policy: str) -> Routed:
            situation = self._situation(episode, policies)
            member = self.who
            if self.who == ROUTED:
                member = self.routes[episode.role].best(situation)
            # A vote is asked for as the first member's.
            found = policy if self.who == VOTE else self.policies[member][policy]
            return Routed(found, {"situation": situation, "member": member})

        return route

    def _situation(self, episode: Episode, policies: Sampler) -> str | None:
        """Returns the situation of the next decision, named by environment or base model."""
        agent, env = episode.agent or "", episode.env
        named = env.infos.get(agent, {}).get("situation")
        if named is None and callable(own := getattr(env.unwrapped, "situation", None)):
            named = own(agent)
        if named is not None or not self.situations:
            return None if named is None else str(named)
        text = _QUESTION.format(prompt=episode.prompt(), names=", ".join(self.situations))
        ids = policies.prompt_ids(NAMER, text)
        request = Request(policies.policy_for(NAMER), ids, episode.seed("situation"))
        # Greedy, so that a situation has one name however often it is met.
        [[said]] = policies.sample([request], 1, max_new_tokens=16, greedy=True)
        return named_in(said.text, self.situations)


def named_in(text: str, situations: Sequence[str]) -> str | None:
    """The situation that a text names first, in any case; None for none."""
    found = {name: text.lower().find(name.lower()) for name in situations}
    named = [name for name in situations if found[name] >= 0]
    # At equal places the longer name: it contains the shorter one.
    return min(named, key=lambda name: (found[name], -len(name)), default=None)


class Voting:
    """A sampler in which all members answer, and the most frequent text is played.

    The record of an episode has the reply that was played, and not those of the others.

    Args:
        policies: completes the prompts.
        members: for each, policy of the first member -> its own in that place.
    """

    def __init__(self, policies: Sampler, members: Sequence[Mapping[str, str]]) -> None:
        self._policies, self._members = policies, members

    @property
    def continuous(self) -> bool:
        """The same as for the policies."""
        return self._policies.continuous

    def policy_for(self, role: str) -> str:
        """Returns what the policies return."""
        return self._policies.policy_for(role)

    def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
        """Returns what the policies return."""
        return self._policies.prompt_ids(role, text)

    def sample(
        self, requests: Sequence[Request], n: int, **settings: Any
    ) -> list[list[Completion]]:
        """The completion with most votes for every request, `n` times; ties to the first member."""
        # Members draw apart: with equal numbers, equal policies would always agree.
        asked = [
            replace(request, policy=own[request.policy], seed=(request.seed + at) % (1 << 62))
            for request in requests
            for at, own in enumerate(self._members)
        ]
        answers = self._policies.sample(asked, n, **settings)
        width = len(self._members)
        found = []
        for start in range(0, len(answers), width):
            each = answers[start : start + width]
            votes = [[own[k].text for own in each] for k in range(n)]
            found.append([each[majority(v, operator.eq)][k] for k, v in enumerate(votes)])
        return found
