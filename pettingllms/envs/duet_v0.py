"""# Duet.

Two roles see a made-up phrase and reply with one word; dials decide how much their right answers disagree.

| | |
|---|---|
| Creation | `duet_v0.env()`, `pettingzoo.make("aec", "pettingllms/duet-v0")` |
| Agents | `left_0`, `right_0` |
| Action | `FreeText`: one of the words |
| Observation | `Dict(text: FreeText, turn: Discrete)` |
| Turns | `mass` by default; `right` acts in the first one only |

The environment measures when roles can share one policy. Each phrase has a right answer for `left`, a fixed function of the phrase
that has to be learned from rewards. The right answer of `right` is another word for a share `rho` of the phrases, and the same word for the others. A
share `q` of the prompts does not name the role, so that a shared policy cannot tell whom it answers for.

`left` answers `mass` phrases in an episode, one in each turn, and `right` answers the first of them. A phrase whose reply cannot be read
is asked again in the next turn, if there is one. All splits have the same phrases,
because there is nothing to learn about a phrase that was never shown; seeds decide which phrases an episode has, and which prompts name the role.

The best that can be reached is known. `best_decisions` is the share of right decisions, the mean of both roles: 1 with a policy for each
role, and `1 - rho q / 2` with a shared policy. Both answers to the first phrase are right in `1 - rho q` of the episodes with a greedy
shared policy, and in `1 - rho (1 - (1 - q / 2) ** 2)` with one that draws its answers.

# Rewards

`reward = alpha * team + local`, both in `infos`. The team's reward is 1 if both answers to the first phrase are right, paid with
the second of them. `infos[agent]["right"]` tells whether the agent's answer was right.

| scheme | local reward |
|---|---|
| `"dense"` (default) | 1 for the agent's right answer; -0.1 for a reply that is none of the words |
| `"sparse"` | 0 |

With `agreement` below 1, the local reward of `right` is less to be trusted: it is a fixed number for each answer to a phrase, whose
correlation with "this is the right answer" over all answers is `agreement`, at an equal mean and deviation. At -1 the right answer earns least.

The embedded model was not primed on this environment: `python -m benchmarks.priming.duet` makes a base that was.

# Version History

* v0: first version (0.2.0)
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, Unpack

from pettingllms.envs import arguments
from pettingllms.envs.base import Outcome, metadata_of
from pettingllms.envs.team_env import FORMAT_PENALTY, PromptArguments, TeamEnv
from pettingllms.errors import ConfigError
from pettingllms.registry import names_in

FIRST = names_in("dax wug blick zup toma kiv modi lorp")
SECOND = names_in("gazzer pim tupa nork seb dofa rud yat")
"""A phrase is one of the first words and one of the second ones."""
ANSWERS = names_in(
    "red blue green yellow white black brown gray pink orange purple gold silver cyan lime navy"
)
"""Words that count as a reply; an environment has the first of them."""
MOST_TURNS = 8


def right_answers(rho: float, key: int, inputs: int, answers: int) -> dict[str, list[int]]:
    """Returns by role the number of the right answer to each phrase; for `left`, each is right equally often."""
    rng = random.Random(f"duet/{key}")
    left = [number % answers for number in range(inputs)]
    rng.shuffle(left)
    right = list(left)
    for number in rng.sample(range(inputs), round(rho * inputs)):
        right[number] = (left[number] + rng.randrange(1, answers)) % answers
    return {"left": left, "right": right}


def local_rewards(right: int, agreement: float, answers: int, rng: random.Random) -> list[float]:
    """Returns a reward for each answer, whose correlation with being right is `agreement`.

    Mean and deviation are those of 1 for the right answer and 0 for the others.
    """
    noise = [rng.gauss(0, 1) for _ in range(answers)]
    # Without correlation: the right answer gets the mean, and what the others get adds up to 0.
    noise[right] = 0.0
    middle = sum(noise) / (answers - 1)
    noise = [0.0 if number == right else value - middle for number, value in enumerate(noise)]
    length = math.hypot(*noise)
    size = math.sqrt((1 - agreement**2) * (1 - 1 / answers)) / length
    return [
        1 / answers + agreement * ((number == right) - 1 / answers) + size * value
        for number, value in enumerate(noise)
    ]


def best_decisions(rho: float, q: float, *, shared: bool) -> float:
    """Returns the largest share of right decisions, the mean of both roles."""
    # Without the role's name, a phrase with two right answers is answered for one role only.
    return 1 - rho * q / 2 if shared else 1.0


def phrase(number: int) -> str:
    """Returns a phrase such as `dax pim`."""
    return f"{FIRST[number % len(FIRST)]} {SECOND[number // len(FIRST)]}"


@dataclass(frozen=True, slots=True)
class DuetState:
    """State of an episode: its phrases, which prompts name the role, and what was right so far."""

    inputs: tuple[int, ...]
    """The phrase of each turn."""
    left_named: tuple[bool, ...]
    """Whether the prompt of `left` names the role, by turn."""
    right_named: bool
    left: tuple[bool, ...] = ()
    """Whether each answer of `left` so far was right."""
    right: bool | None = None
    """Whether the answer of `right` was; None before it."""

    @property
    def success(self) -> bool:
        """True if both answers to the first phrase are right."""
        return self.left[:1] == (True,) and self.right is True


class raw_env(TeamEnv):
    """The environment with dials; the module's docstring is its manual.

    Args:
        rho: share of phrases whose right answer depends on the role, 0 to 1; rounded to whole phrases.
        q: share of prompts that do not name the role, 0 to 1.
        agreement: correlation of the local rewards of `right` with being right, -1 to 1.
        mass: phrases that `left` answers in an episode, for each one of `right`; 1 to 8.
        key: seed of the right answers.
        inputs: number of phrases, 2 to 64.
        answers: number of words that a reply may be, 2 to 16.
        rewards: "dense", or "sparse" for the team's reward alone.
        kwargs: as in `TeamEnv`.

    Raises:
        ConfigError: an argument that cannot be used.
    """

    metadata = metadata_of("duet_v0", judged_replies=True)
    embedded = {"prompt": "compact"}
    schemes = ("dense", "sparse")

    def __init__(
        self,
        *,
        rho: float = 0.5,
        q: float = 0.5,
        agreement: float = 1.0,
        mass: int = 1,
        key: int = 0,
        inputs: int = 32,
        answers: int = 8,
        rewards: str = "dense",
        **kwargs: Unpack[PromptArguments],
    ) -> None:
        most = _whole("mass", mass, 1, MOST_TURNS)
        if kwargs.get("max_turns") is None and kwargs.get("max_cycles") is None:
            kwargs["max_turns"] = most
        super().__init__(roles=("left", "right"), rewards=rewards, **kwargs)
        self.mass, self.q = most, _within("q", q, 0, 1)
        inputs = _whole("inputs", inputs, 2, len(FIRST) * len(SECOND))
        self.answers = ANSWERS[: _whole("answers", answers, 2, len(ANSWERS))]
        rho, key = _within("rho", rho, 0, 1), _whole("key", key, 0, 2**32)
        self.right = right_answers(rho, key, inputs, len(self.answers))
        self.locals: list[list[float]] | None = None
        """Local rewards of `right` by phrase and answer; None: 1 for the right answer."""
        if _within("agreement", agreement, -1, 1) < 1:
            # Of two answers, one is right: no reward could be unrelated to that.
            _whole("answers", answers, 3, len(ANSWERS))
            rng = random.Random(f"duet/{key}/local")
            self.locals = [
                local_rewards(answer, float(agreement), len(self.answers), rng)
                for answer in self.right["right"]
            ]

    def _start(self, seed: int, options: dict[str, Any]) -> DuetState:  # noqa: ARG002 - none
        rng = self._random(seed)
        inputs = tuple(rng.randrange(len(self.right["left"])) for _ in range(self.mass))
        named = tuple(rng.random() >= self.q for _ in range(self.mass))
        return DuetState(inputs, named, rng.random() >= self.q)

    def _next_agent(self, state: DuetState, agent: str | None) -> str:
        turn_of_right = agent == "left_0" or len(state.left) == self.mass
        return "right_0" if state.right is None and turn_of_right else "left_0"

    def _asked(self, state: DuetState, agent: str) -> tuple[int, bool]:
        """The phrase that an agent answers next, or answered last, and whether its prompt names the role."""
        if agent == "right_0":
            return state.inputs[0], state.right_named
        turn = min(len(state.left), self.mass - 1)
        return state.inputs[turn], state.left_named[turn]

    def _text(self, state: DuetState, agent: str) -> str:
        number, named = self._asked(state, agent)
        role = agent.removesuffix("_0")
        if self.prompt == "compact":
            return f"{role} {phrase(number)}" if named else phrase(number)
        who = f"You are {role}. " if named else ""
        return (
            f"{who}What is the color of {phrase(number)}? Reply with one of these words and nothing else: "
            f"{', '.join(self.answers)}."
        )

    def _act(self, state: DuetState, agent: str, text: str) -> Outcome:
        reply = text.strip().removesuffix(".").lower()
        if reply not in self.answers:
            return self._unread(state, agent, f"{reply[:40]!r} is none of the words")
        number, _ = self._asked(state, agent)
        answer = self.answers.index(reply)
        correct = answer == self.right[agent.removesuffix("_0")][number]
        local = float(correct)
        if agent == "right_0" and self.locals is not None:
            local = self.locals[number][answer]
        if agent == "left_0":
            after = replace(state, left=(*state.left, correct))
        else:
            after = replace(state, right=correct)
        return Outcome(
            after,
            team=float(after.success and not state.success),
            local=local if self.rewards_scheme == "dense" else 0.0,
            success=after.success,
            done=len(after.left) == self.mass and after.right is not None,
            info={"right": correct},
        )

    def _unread(self, state: DuetState, agent: str, reason: str) -> Outcome:  # noqa: ARG002 - alike
        local = -FORMAT_PENALTY if self.rewards_scheme == "dense" else 0.0
        return Outcome(state, 0.0, local, state.success, parse_error=reason, info={"right": False})

    def _view(self, state: DuetState) -> str:
        number = state.inputs[max(len(state.left) - 1, 0)]
        words = (self.answers[right[number]] for right in self.right.values())
        return f"phrase: {phrase(number)}\nright: {' and '.join(words)}\nboth: {state.success}"


def _within(name: str, value: float, least: int, most: int) -> float:
    if isinstance(value, bool) or not least <= arguments.finite(name, value) <= most:
        raise ConfigError(f"{name} must be a number from {least} to {most}, got {value!r}")
    return float(value)


def _whole(name: str, value: int, least: int, most: int) -> int:
    # `True` is an integer, too.
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}, got {value!r}")
    return value


env = raw_env
"""The environment as PettingZoo users make it."""
