"""# Read.

A finder copies the one sentence that matters, and an answerer, who sees no notes, names its city.

| | |
|---|---|
| Creation | `read_v0.env()`, `pettingzoo.make("aec", "pettingllms/read-v0")` |
| Agents | `finder_0`, then `answerer_0` |
| Action | `FreeText`: a sentence of the notes (finder), a city (answerer) |
| Observation | `Dict(text: FreeText, turn: Discrete)` |
| Turns | 1 |

The task is made for small pretrained models, which follow one short instruction and no format. The finder sees three sentences such as
"Karl lives in Rome." and the name of a person, and replies with that person's sentence. The answerer sees the first 60 characters of
that reply and says the city. The team succeeds if the reply is the city alone, with or without a full stop. Neither role
can do the other's part: the answerer does not know who was asked for, and the finder's sentence is not a city.

People and cities of the splits are disjoint: those of `val` and `test` are in no task of `train`.

# Rewards

`reward = alpha * team + local`, both in `infos`. The team's reward is 1 for success, paid with the answerer's reply.

| scheme | local reward of the finder | local reward of the answerer |
|---|---|---|
| `"dense"` (default) | 1 for exactly the sentence; 0.5 for at most eight words with the right city and no other; else 0 | 0.3 for at most two words with the right city and no other, unless the team's reward is paid; else 0 |
| `"sparse"` | 0 | 0 |

The partial rewards give the groups of a model a slope where its exact answers are rare. Neither grows with what else a reply
contains: a list of all cities earns nothing, and so does a whole sentence of the answerer. An empty reply is unreadable and changes
nothing.

`max_turns` is 1 by default; more turns have no use, because the answerer's reply ends the episode. A subclass may set `sentence`, `question`, `request`,
`subjects`, and `answers`, and then has other notes.

# Version History

* v0: first version (0.2.0)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

from pettingllms.envs import arguments
from pettingllms.envs.base import Outcome, TextEnv, metadata_of
from pettingllms.errors import ConfigError


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE: Mapping[str, tuple[str, ...]] = {
    "train": _names("Anna Boris Clara David Elena Frank Greta Hugo Ivan Julia Karl Laura"),
    "val": _names("Adam Betty Carlos Diana Emma Felix"),
    "test": _names("Mark Nina Oscar Paula Robert Sara Victor Wanda"),
}
"""Split -> people of its tasks."""
CITIES: Mapping[str, tuple[str, ...]] = {
    "train": _names("Paris Rome Oslo Cairo Lima Delhi Tokyo Quito Berlin Madrid Vienna Dublin"),
    "val": _names("Sydney Warsaw Boston Geneva Bogota Munich"),
    "test": _names("London Moscow Athens Lisbon Prague Chicago Havana Nairobi"),
}
"""Split -> cities of its tasks."""
MOST_SHOWN = 60
"""Characters of the finder's reply that the answerer is shown."""
SILENCE = "No note."
PARTLY_FOUND, PARTLY_SAID = 0.5, 0.3
"""Local rewards of replies with the right city that are not what was asked for."""


@dataclass(frozen=True, slots=True)
class ReadState:
    """State of an episode: notes, the person asked for, and both replies."""

    notes: tuple[tuple[str, str], ...]
    """Person and city of each sentence."""
    asked: int
    quote: str = SILENCE
    said: str | None = None


class raw_env(TextEnv):
    """The reading environment; the module's docstring is its manual.

    Args:
        sentences: number of sentences that the finder sees; 2 to 6.
        rewards: "dense", or "sparse" for the outcome alone.
        kwargs: as in `TextEnv`.

    Raises:
        ConfigError: an argument that cannot be used.
    """

    metadata = metadata_of("read_v0")
    default_turns = 1
    embedded_model = "smollm2"
    smollm2_training = {
        "max_completion_length": 12,
        "max_steps": 40,
        "eval_steps": 0,
    }
    schemes = ("dense", "sparse")
    sentence = "{} lives in {}"
    question = "Where does {} live?"
    request = "Say the last word of: {}"
    """What the answerer is asked about the finder's reply."""
    subjects: ClassVar[Mapping[str, Sequence[str]]] = PEOPLE
    answers: ClassVar[Mapping[str, Sequence[str]]] = CITIES

    def __init__(
        self,
        *,
        sentences: int = 3,
        rewards: str = "dense",
        **kwargs: Unpack[arguments.TextArguments],
    ) -> None:
        super().__init__(roles=("finder", "answerer"), **kwargs)
        # True is an integer, too.
        if isinstance(sentences, bool) or not isinstance(sentences, int) or not 2 <= sentences <= 6:
            raise ConfigError(f"sentences must be a whole number from 2 to 6, got {sentences!r}")
        self.sentences = sentences
        self.rewards_scheme = arguments.one_of("rewards", rewards, self.schemes)

    def _start(self, seed: int, options: dict[str, Any]) -> ReadState:  # noqa: ARG002 - none
        draw = self._random(seed)
        subjects = draw.sample(self.subjects[self.split], self.sentences)
        answers = draw.sample(self.answers[self.split], self.sentences)
        return ReadState(tuple(zip(subjects, answers, strict=True)), draw.randrange(self.sentences))

    def _text(self, state: ReadState, agent: str) -> str:
        if agent == "answerer_0":
            return self.request.format(state.quote)
        told = " ".join(f"{self.sentence.format(*note)}." for note in state.notes)
        question = self.question.format(state.notes[state.asked][0])
        return f"{told} {question} Reply with the sentence that says it."

    def _privileged(self, state: ReadState, agent: str) -> str:
        who, city = state.notes[state.asked]
        return city if agent == "answerer_0" else self.sentence.format(who, city)

    def _hears(self, agent: str) -> Collection[str]:
        """Returns nobody: a finder's thought would name the city, also where `show_thinking` is set."""
        del agent
        return ()

    def _act(self, state: ReadState, agent: str, text: str) -> Outcome:
        who, city = state.notes[state.asked]
        reply = " ".join(text.split()).rstrip(".")
        if not reply:
            return Outcome(
                state, team=0.0, local=0.0, success=False, parse_error="the reply is empty"
            )
        others = [other for _, other in state.notes if other != city]
        named = city in reply and not any(other in reply for other in others)
        words = len(reply.split())
        if agent == "finder_0":
            right = reply == self.sentence.format(who, city)
            local = 1.0 if right else PARTLY_FOUND * (named and words <= 8)
            after = replace(state, quote=reply[:MOST_SHOWN])
            return self._paid(after, local, right=right, success=False)
        right = reply == city
        local = 0.0 if right else PARTLY_SAID * (named and words <= 2)
        after = replace(state, said=reply[:MOST_SHOWN])
        return self._paid(after, local, right=right, success=right)

    def _paid(self, state: ReadState, local: float, *, right: bool, success: bool) -> Outcome:
        return Outcome(
            state,
            team=float(success),
            local=local if self.rewards_scheme == "dense" else 0.0,
            success=success,
            done=state.said is not None,
            info={"right": right},
        )

    def _view(self, state: ReadState) -> str:
        notes = "\n".join(f"{person}: {city}" for person, city in state.notes)
        asked, answer = state.notes[state.asked][0], state.said or "-"
        return f"{notes}\nasked: {asked}\nfound: {state.quote}\nsaid: {answer}"


env = raw_env
"""The environment as PettingZoo users make it."""
