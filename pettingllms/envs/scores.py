"""`Scores`: pays an episode for where it stands, once, however many turns it took to get there.

A team is scored after each reply, and so is the reply itself. If every reply were paid those scores
outright, an episode would earn more the longer it lasts: a team that has succeeded and then refuses to
agree would collect its success again each turn. So a reply is paid differences: the team's score less
the team's score before, and its own score less the score of its author's previous reply (0 before the
first). The sums telescope: the return of an episode holds the team's last score once and each
agent's last score once, and so does every part of it that begins with the episode.

Candidates for one decision share what is subtracted, so that comparing them, as AT-GRPO does, gives
the advantages of the scores themselves. It is the shaping of Ng, Harada, Russell (1999) without discount.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Scores:
    """What an episode has been paid for so far. Kept in the state; never changed in place."""

    team: float = 0.0
    local: Mapping[str, float] = field(default_factory=dict)
    """Agent -> the score of its last reply."""

    def after(self, agent: str, *, team: float, local: float) -> Paid:
        """What a reply of `agent` earns that leaves the team at `team` and is itself worth `local`."""
        return Paid(
            Scores(team, {**self.local, agent: local}),
            team - self.team,
            local - self.local.get(agent, 0.0),
        )


class Paid(NamedTuple):
    """The scores after a reply, and the two differences that the reply is paid."""

    scores: Scores
    team: float
    local: float
