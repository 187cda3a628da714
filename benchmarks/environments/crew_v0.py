"""# Crew.

A conductor calls workers of a pool by name, as many as it needs, and answers; each call has a price.

A question needs the notes of no worker, of one, or of two one after the other: the conductor has to learn whom to ask and when to stop.

| | |
|---|---|
| Creation | `crew_v0.env()`; in a checkout also `--env crew` |
| Agents | `conductor_0` and the pool: `clerk_0`, `courier_0`, `vet_0`; with four workers `tailor_0` |
| Action | `FreeText`: `<call>clerk: Anna</call>` or `<answer>...</answer>` (conductor), `<result>...</result>` (workers) |
| Observation | `Dict(text: FreeText, turn: Discrete)` |
| Turns | 6 of the conductor by default, then truncation |

The conductor sees the question, two notes, and the reports so far; a worker sees its own notes and what it is asked. The called worker replies, and the
conductor is next. In its last turn an answer is due, so an episode has one call less than turns.
The first readable answer ends the episode for all, including workers that were never called. The team succeeds if it is right
up to case, punctuation, and articles. A reply that cannot be read uses up the turn, and a worker's counts as an empty report; the reason is in
`infos[agent]["parse_error"]` and in the conductor's next full prompt. Nobody sees another's thinking.

# Rewards

`reward = alpha * team + local`, both in `infos`. The team earns 1 for the right answer, and loses `call_price` with each call and each unreadable reply of the conductor.

| scheme | local reward of the conductor | local reward of a worker |
|---|---|---|
| `"dense"` (default) | 0.5 / n for the first call that asks the right worker for one of the n missing facts; -0.1 for an unreadable reply | -0.5 for a wrong report; -0.6 for an unreadable one |
| `"sparse"` | 0 | 0 |

A report is right if it names what the notes say of the person named last in its task, and nothing else of the notes. The default method compares
immediate rewards, so it learns to make needed calls if `call_price` is below 0.5 / n.

`infos[agent]`: `right` (every reply), `calls` (so far), `difficulty` (`2 look-ups`); after a report `expert`, 1 if it is right.

What notes can say differs between splits. The embedded model was not primed on this environment: `python -m benchmarks.priming.crew`
makes a base that was.

# Version History

* v0: first version (0.2.0)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Unpack

from pettingllms.envs import arguments
from pettingllms.envs.base import Outcome, metadata_of
from pettingllms.envs.parsing import ParseError
from pettingllms.envs.read_v0 import CITIES, PEOPLE
from pettingllms.envs.search_text import SearchReply, tagged
from pettingllms.envs.team_env import FORMAT_PENALTY, PromptArguments, TeamEnv
from pettingllms.errors import ConfigError
from pettingllms.grading.short_answers import normal

ANSWER, CONDUCTOR = "answer", "conductor_0"
PERSONS, NOTES = 4, 2
"""People of a task, and notes that the conductor sees."""
ASKED, WRONG_REPORT = 0.5, 0.5
"""Local reward of all needed calls together, and cost of a wrong report."""
MOST_CHARS = 200
"""Characters of a task or an answer; a longer report is cut."""
_ANIMALS = ("cat dog horse goat parrot rabbit hamster turtle", "pony canary lizard mouse", "duck hen sheep frog")  # fmt: skip
_COLORS = ("red blue green white black pink", "brown gray gold silver", "yellow purple cyan navy")


def _by_split(texts: Sequence[str]) -> Mapping[str, Sequence[str]]:
    return dict(zip(("train", "val", "test"), map(str.split, texts), strict=True))


class Job(NamedTuple):
    """What a worker's notes are about: a word for it, phrases, a question, and possible values."""

    word: str
    about: str
    sentence: str
    question: str
    values: Mapping[str, Sequence[str]]


JOBS: Mapping[str, Job] = {
    "clerk": Job("boss", "who works for whom", "{} works for {}", "Whom does {} work for?", PEOPLE),
    "courier": Job("city", "who lives where", "{} lives in {}", "Where does {} live?", CITIES),
    "vet": Job("animal", "who has which animal", "{} has a {}", "Which animal does {} have?", _by_split(_ANIMALS)),
    "tailor": Job("color", "who wears which color", "{} wears {}", "Which color does {} wear?", _by_split(_COLORS)),
}  # fmt: skip
"""Role -> its job; a pool has the first of them."""

Fact = tuple[str, str]
"""The role whose notes say it, and the person whom it is about."""


class Errand(NamedTuple):
    """A call; its report is None until the worker has replied."""

    role: str
    task: str
    report: str | None = None


@dataclass(frozen=True, slots=True)
class CrewState:
    """State of an episode: the facts, the question, and what was asked and said."""

    facts: Mapping[str, Mapping[str, str]]
    """Role -> person -> what the role's note says."""
    chain: tuple[Fact, ...]
    """Facts that lead to the answer, each about the person that the one before it names."""
    notes: tuple[Fact, ...]
    missing: int
    """Number of facts at the end of `chain` that are not among `notes`."""
    told: int = 0
    """Missing facts that workers have told."""
    asked: int = 0
    """Missing facts for which a call was rewarded."""
    turns: int = 0
    errands: tuple[Errand, ...] = ()
    refused: str | None = None
    """Why the conductor's latest reply could not be read."""
    answer: str | None = None

    def value(self, fact: Fact) -> str:
        """What a note says of its person; empty if there is none."""
        return self.facts[fact[0]].get(fact[1], "")

    def fact(self, errand: Errand) -> Fact:
        """The fact that a call asks for, about the person named last in it."""
        people = {person.lower(): person for person in self.facts["clerk"]}
        named = [people[word] for word in _words(errand.task) if word in people]
        return errand.role, named[-1] if named else ""

    def needs(self, fact: Fact) -> bool:
        """Returns whether a fact is the next one to ask for."""
        place = len(self.chain) - self.missing + self.told
        return self.chain[place : place + 1] == (fact,)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def parse_lead(text: str, prompt: str, pool: Sequence[str]) -> SearchReply | ParseError:
    """Parses a conductor's reply: the last tag, the first line (small), or the last line (compact).

    Its kind is a role of the pool, or `answer`.
    """
    names, line, mark = (*pool, ANSWER), text.strip(), " " if prompt == "compact" else ":"
    if prompt == "full":
        reply = tagged(("call", ANSWER), text)
        if isinstance(reply, ParseError):
            return reply
        names, line = (*pool,) if reply.kind == "call" else (), reply.said
    else:
        line = line.rpartition("\n")[2] if prompt == "compact" else line.partition("\n")[0]
    name, _, task = line.partition(mark) if names else (ANSWER, "", line)
    name = name[:MOST_CHARS].strip().lower()
    if names and name not in names:
        return ParseError(f"there is no worker {name[:40]!r}; the crew is {', '.join(pool)}")
    if len(task) > MOST_CHARS or not normal(task):
        return ParseError(f"what is asked or answered has 1 to {MOST_CHARS} characters")
    return SearchReply(name, " ".join(task.split()))


class raw_env(TeamEnv):
    """The environment of a conductor and a pool of workers; the module's docstring is its manual.

    Args:
        call_price: cost of a call, in team reward; 0 to 1.
        workers: size of the pool; 2 to 4.
        lookups: fewest and most facts that the conductor has to ask for, 0 to 2, equally likely.
        rewards: "dense", or "sparse" for success and the price of calls alone.
        kwargs: as in `TeamEnv`.

    Raises:
        ConfigError: an argument that cannot be used.
    """

    metadata = metadata_of("crew_v0", caller=CONDUCTOR, judged_replies=True)
    default_turns = 6
    embedded: ClassVar[Mapping[str, Any]] = {"prompt": "compact"}
    smollm2: ClassVar[Mapping[str, Any]] = {"prompt": "small"}
    schemes = ("dense", "sparse")

    def __init__(
        self,
        *,
        call_price: float = 0.05,
        workers: int = 3,
        lookups: tuple[int, int] = (0, 2),
        rewards: str = "dense",
        **kwargs: Unpack[PromptArguments],
    ) -> None:
        # True is an integer, too.
        if isinstance(workers, bool) or not (isinstance(workers, int) and 2 <= workers <= 4):
            raise ConfigError(f"workers must be a whole number from 2 to 4, got {workers!r}")
        self.pool = tuple(JOBS)[:workers]
        super().__init__(roles=("conductor", *self.pool), rewards=rewards, **kwargs)
        self.call_price = arguments.finite("call_price", call_price)
        if not 0 <= self.call_price <= 1:
            raise ConfigError(f"call_price must be from 0 to 1, got {call_price!r}")
        ranges = [(fewest, most) for most in range(3) for fewest in range(most + 1)]
        if not isinstance(lookups, Sequence) or tuple(lookups) not in ranges:
            raise ConfigError(
                f"lookups must be fewest and most, two whole numbers from 0 to 2, got {lookups!r}"
            )
        self.kinds = range(int(lookups[0]), int(lookups[1]) + 1)

    def _start(self, seed: int, options: dict[str, Any]) -> CrewState:  # noqa: ARG002 - none
        # A block of seeds has each number of look-ups once.
        block, place = divmod(seed, len(self.kinds))
        missing = self._random(block).sample(self.kinds, len(self.kinds))[place]
        draw = self._random(seed)
        people = draw.sample(PEOPLE[self.split], PERSONS)
        values_of = {
            role: draw.sample(JOBS[role].values[self.split], PERSONS) for role in self.pool
        }
        values_of["clerk"] = [*people[1:], people[0]]
        facts = {role: dict(zip(people, values, strict=True)) for role, values in values_of.items()}
        # Only the clerk's notes lead to others, and nobody is asked twice.
        hops = draw.randint(max(1, missing), 2)
        last = draw.choice(self.pool[hops - 1 :])
        chain = (*[("clerk", people[0])][: hops - 1], (last, people[hops - 1]))
        # The other notes are about people that do not matter.
        shown = chain[: hops - missing]
        others = [(draw.choice(self.pool), person) for person in people[2 + len(shown) :]]
        return CrewState(facts, chain, tuple(draw.sample([*shown, *others], NOTES)), missing)

    def _next_agent(self, state: CrewState, agent: str | None) -> str:  # noqa: ARG002 - state says
        due = state.errands[-1:] and state.errands[-1].report is None
        return f"{state.errands[-1].role}_0" if due else CONDUCTOR

    def _hears(self, agent: str) -> Collection[str]:
        """Returns nobody: a thought may hold all notes, also where `show_thinking` is set."""
        del agent
        return ()

    def _told(self, state: CrewState, facts: Collection[Fact]) -> str:
        """Facts as text: words on a line each (compact), or sentences."""
        if self.prompt == "compact":
            return "\n".join(f"{JOBS[f[0]].word} {f[1]} {state.value(f)}" for f in facts)
        sentences = (JOBS[f[0]].sentence.format(f[1], state.value(f)) for f in facts)
        return " ".join(f"{sentence}." for sentence in sentences)

    def _text(self, state: CrewState, agent: str) -> str:
        if agent == CONDUCTOR:
            return self._lead_text(state)
        role = agent.removesuffix("_0")
        notes = self._told(state, [(role, person) for person in state.facts[role]])
        task = next((e.task for e in reversed(state.errands) if e.role == role), "")
        return {
            "compact": f"{role} {task}\n{notes}",
            "small": f"{notes} {task} Reply with the sentence that says it.",
            "full": f"You are the {role} of a crew. Your notes: {notes}\n\nYou are asked: {task}\n\n"
            "Report the note that answers, and nothing else: <result>...</result>.",
        }[self.prompt]

    def _lead_text(self, state: CrewState) -> str:
        notes, (role, person) = self._told(state, state.notes), state.chain[-1]
        made = [errand for errand in state.errands if errand.report is not None]
        if self.prompt == "compact":
            asked = ["conductor", JOBS[role].word, *["boss"][: len(state.chain) - 1]]
            lines = [" ".join([*asked, state.chain[0][1]]), notes, *(e.report or "-" for e in made)]
            return "\n".join(lines)
        person = "the boss of " * (len(state.chain) - 1) + state.chain[0][1]
        question = JOBS[role].question.format(person)
        reports = [f"The {e.role} says of {e.task}: {e.report or 'nothing'}" for e in made]
        if self.prompt == "small":
            crew = ", ".join(f"`{name}: NAME` ({JOBS[name].about})" for name in self.pool)
            ask = f"Reply with one of {crew}, or with `answer: WORD`:"
            return " ".join([notes, *reports, question, ask])
        crew = "\n".join(f"- {name}: {JOBS[name].about}" for name in self.pool)
        parts = [
            f"You lead a crew and answer a question. Your notes: {notes}",
            f"Question: {question}",
            f"Each worker has notes that you do not see:\n{crew}",
            *reports,
            f"Your last reply could not be read: {state.refused}." if state.refused else "",
            f"Calls left: {self.max_turns - 1 - state.turns}. Each costs {self.call_price:g}. End your reply with a call, "
            "<call>worker: name of a person</call>, or with your answer, <answer>one word</answer>.",
        ]
        return "\n\n".join(filter(None, parts))

    def _act(self, state: CrewState, agent: str, text: str) -> Outcome:
        if agent == CONDUCTOR:
            return self._led(state, parse_lead(text, self.prompt, self.pool))
        line = text.strip().partition("\n")[0]
        return self._reported(
            state, tagged(("result",), text) if self.prompt == "full" else SearchReply("", line)
        )

    def _unread(self, state: CrewState, agent: str, reason: str) -> Outcome:
        take = self._led if agent == CONDUCTOR else self._reported
        return take(state, ParseError(reason))

    def _led(self, state: CrewState, reply: SearchReply | ParseError) -> Outcome:
        last = state.turns + 1 >= self.max_turns
        after = replace(state, turns=state.turns + 1, refused=None)
        if last and isinstance(reply, SearchReply) and reply.kind != ANSWER:
            reply = ParseError("no call is left; an answer is due")
        if isinstance(reply, ParseError):
            after = replace(after, refused=reply.why)
            return self._outcome(after, -self.call_price, -FORMAT_PENALTY, parse_error=reply.why)
        if reply.kind == ANSWER:
            right = normal(reply.said) == normal(state.value(state.chain[-1]))
            after = replace(after, answer=reply.said)
            return self._outcome(after, float(right), right=right, success=right, done=True)
        errand = Errand(reply.kind, reply.said)
        right = state.needs(state.fact(errand))
        # A fact is asked for again if the worker did not tell it.
        first = right and state.asked == state.told
        after = replace(after, errands=(*state.errands, errand), asked=state.asked + first)
        local = ASKED / state.missing if first else 0.0
        return self._outcome(after, -self.call_price, local, right=right)

    def _reported(self, state: CrewState, reply: SearchReply | ParseError) -> Outcome:
        *earlier, errand = state.errands
        report = "" if isinstance(reply, ParseError) else " ".join(reply.said[:MOST_CHARS].split())
        why = reply.why if isinstance(reply, ParseError) else None
        why = why or (None if report else "the report is empty")
        fact = state.fact(errand)
        right = why is None and _tells(state, fact, report)
        errands = (*earlier, errand._replace(report=report))
        after = replace(state, errands=errands, told=state.told + (right and state.needs(fact)))
        local = -WRONG_REPORT * (not right) - FORMAT_PENALTY * (why is not None)
        return self._outcome(after, 0.0, local, right=right, parse_error=why)

    def _outcome(
        self, after: CrewState, team: float, local: float = 0.0, *, right: bool = False, **rest: Any
    ) -> Outcome:
        info: dict[str, Any] = {"right": right, "expert": float(right)}
        info |= {"calls": len(after.errands), "difficulty": self._situation(after)}
        local = local if self.rewards_scheme == "dense" else 0.0
        return Outcome(after, team, local, info=info, **{"success": False, **rest})

    def _situation(self, state: CrewState) -> str:
        return f"{state.missing} look-ups"

    def _view(self, state: CrewState) -> str:
        right = state.value(state.chain[-1])
        return f"{self._lead_text(state)}\nanswer: {state.answer or '-'}\nreference: {right}"


def _tells(state: CrewState, fact: Fact, report: str) -> bool:
    """Returns whether a report ends with what the note says, and names nothing else of the worker's notes."""
    role, person = fact[0], fact[1].lower()
    telling = {person, *(value.lower() for value in state.facts[role].values())}
    named = [word for word in _words(report) if word in telling]
    if not person:
        return not named
    value = state.value(fact).lower()
    return named[-1:] == [value] and {*named} <= {person, value}


env = raw_env
"""The environment as PettingZoo users make it."""
