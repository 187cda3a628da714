"""# Signal.

A scout sees which door hides the prize and may say a word; a mover hears the word and opens a door.

Words mean nothing until scout and mover have agreed on what they mean: no prompt, rule or reward of one role says
what the other's words stand for. It is the signaling game of Lewis (*Convention*, 1969).

| | |
|---|---|
| Creation | `signal_v0.env()`; in a checkout also `--env signal` |
| Agents | `scout_0`, `mover_0`; with `agents="single"` the mover alone, who then hears nothing |
| Action | `FreeText`: a reply with `<say>...</say>` (scout) or `<open>...</open>` (mover) |
| Observation | `Dict(text: FreeText, turn: Discrete)` |
| Turns | 1 by default, then truncation |

The scout is shown the color of the right door and the words that it may use, not which other doors there are. The mover
is shown the doors and what was said. Only listed words count; a reply with any other word, or with more than `length`,
cannot be read, and the mover then hears nothing. The first door that is opened ends the episode. A mover whose reply
cannot be read opens no door; with `max_turns` above 1 another round begins. `infos[agent]["parse_error"]` has the reason,
`infos[agent]["message"]` what was said.

What can be reached is known. With n doors, whoever opens a door without a message is right in 1 of n episodes. With
M messages (`words` + `words`^2 + ... up to `length`) a team can be right in min(1, (M + 1) / n) of them: saying nothing that can be
read is one message more, which costs. `signal_v0.chance` and `signal_v0.optimum` are these two numbers. Of n consecutive seeds
(from a multiple of n) each door is right in one, so that neither is a matter of luck.

# Rewards

`reward = alpha * team + local`, both in `infos`. The scout earns nothing by its own step: what its word was worth shows when the
mover has acted.

| scheme | scout | mover |
|---|---|---|
| `"dense"` (default) | local: -0.1 for a reply that cannot be read | team: 1 for the right door; local: as the scout |
| `"sparse"` | 0 | team: the same |

A compact reply is a line that may repeat what its author was shown before the answer. The embedded model was not primed on this environment: `python -m benchmarks.priming.protocol` makes a base that was.

# Version History

* v0: first version (0.1.0)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack, get_args

from pettingllms.envs import arguments
from pettingllms.envs.base import Outcome
from pettingllms.envs.parsing import ParseError
from pettingllms.envs.team_env import FORMAT_PENALTY, Agents, Prompt, TeamEnv
from pettingllms.errors import ConfigError
from pettingllms.sandbox import Sandbox, SandboxSettings

DOORS = [
    "red",
    "blue",
    "green",
    "yellow",
    "white",
    "black",
    "brown",
    "gray",
    "pink",
    "orange",
    "purple",
    "gold",
    "silver",
    "cyan",
    "lime",
    "navy",
]
"""Colors of the doors; an environment has the first of them."""
# Made up in the manner of experiments on word learning, such as Berko's wug (1958).
WORDS = [
    "dax",
    "wug",
    "blick",
    "zup",
    "toma",
    "kiv",
    "modi",
    "lorp",
    "gazzer",
    "pim",
    "tupa",
    "nork",
    "seb",
    "dofa",
    "rud",
    "yat",
]
"""Words without a meaning; an environment has the first of them."""
MOST_LENGTH = 4
SILENCE = "nothing"
"""What a mover hears where the scout said nothing that can be read."""
MAX_SAID_CHARS = 200
_TAGS = {"scout": "say", "mover": "open"}
_WORD = re.compile(r"\S+")


class SignalArguments(arguments.TextArguments, total=False):
    """The arguments that the environment passes on: those of `TeamArguments` without `rewards`."""

    prompt: Prompt
    sandbox: Sandbox | SandboxSettings | Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class SignalState:
    """State of an episode: where the prize is, what was said, and which door is open."""

    goal: str
    message: tuple[str, ...] = ()
    """The scout's latest words; none before it spoke, or where it could not be read."""
    opened: str | None = None

    @property
    def success(self) -> bool:
        """True if the open door is the right one."""
        return self.opened == self.goal


def messages(words: int, length: int) -> int:
    """Counts the messages of one to `length` words out of `words`."""
    return sum(words**size for size in range(1, length + 1))


def chance(goals: int) -> float:
    """Returns the success of the best mover that hears nothing."""
    return 1 / goals


def optimum(goals: int, words: int, length: int = 1) -> float:
    """Returns the success of the best team; silence is one message more."""
    return min(1.0, (messages(words, length) + 1) / goals)


def parse_words(
    text: str, role: str, known: Sequence[str], most: int, shown: tuple[str, ...], *, compact: bool
) -> tuple[str, ...] | ParseError:
    """Parses the words of a reply.

    Args:
        text: the reply.
        role: of its author, `scout` or `mover`.
        known: words that count, in lower case.
        most: the most words that it may have.
        shown: what its author was shown, which a compact reply may repeat before the answer.
        compact: whether the last line is the answer, instead of what stands between tags.
    """
    answer = text.strip().rpartition("\n")[2] if compact else _between(text, _TAGS[role])
    if isinstance(answer, ParseError):
        return answer
    if len(answer) > MAX_SAID_CHARS:
        return ParseError(f"the answer is longer than {MAX_SAID_CHARS} characters")
    words = tuple(word.lower() for word in _WORD.findall(answer))
    if compact and words[: len(shown)] == shown:
        words = words[len(shown) :]
    if unknown := next((word for word in words if word not in known), None):
        return ParseError(f"{unknown[:40]!r} is none of {', '.join(known)}")
    if not 1 <= len(words) <= most:
        return ParseError(f"{len(words)} words where {_at_most(most)} is due")
    return words


def _between(text: str, tag: str) -> str | ParseError:
    """Returns the text between the last pair of a tag."""
    before, closing, _ = text.rpartition(f"</{tag}>")
    _, opening, inside = before.rpartition(f"<{tag}>")
    return inside if closing and opening else ParseError(f"no <{tag}>...</{tag}>")


def _at_most(most: int) -> str:
    return "one" if most == 1 else f"one to {most}"


class raw_env(TeamEnv):
    """The signaling game; the module's docstring is its manual.

    Args:
        goals: number of doors, 2 to 16.
        words: number of words that the scout may use, 1 to 16.
        length: the most words of a message, 1 to 4.
        agents: "team", or "single" for a mover without a scout.
        rewards: "dense", or "sparse" for the outcome alone.
        kwargs: as in `TeamEnv`.

    Raises:
        ConfigError: a number out of its range.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - PettingZoo's class attribute
        "name": "signal_v0",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
    }
    default_turns: ClassVar[int] = 1
    embedded: ClassVar[Mapping[str, Any]] = {"prompt": "compact"}
    schemes: ClassVar[tuple[str, ...]] = ("dense", "sparse")

    def __init__(
        self,
        *,
        goals: int = 4,
        words: int = 8,
        length: int = 1,
        agents: Agents = "team",
        rewards: str = "dense",
        **kwargs: Unpack[SignalArguments],
    ) -> None:
        arguments.one_of("agents", agents, get_args(Agents))
        roles = ("scout", "mover") if agents == "team" else ("mover",)
        super().__init__(roles=roles, rewards=rewards, **kwargs)
        self.doors = tuple(DOORS[: _within("goals", goals, 2, len(DOORS))])
        self.words = tuple(WORDS[: _within("words", words, 1, len(WORDS))])
        self.length = _within("length", length, 1, MOST_LENGTH)

    def _start(self, seed: int, options: dict[str, Any]) -> SignalState:  # noqa: ARG002 - none
        # A block of seeds has each door once, so that samples of whole blocks are balanced.
        block, place = divmod(seed, len(self.doors))
        order = self._random(block).sample(self.doors, len(self.doors))
        return SignalState(order[place])

    def _text(self, state: SignalState, agent: str) -> str:
        compact, scout = self.prompt == "compact", agent == "scout_0"
        heard = " ".join(state.message) or SILENCE
        if compact:
            return f"scout {state.goal}" if scout else f"mover {heard}"
        if scout:
            return (
                f"A prize is behind the {state.goal} door. Your partner has to open the right door, and does not "
                f"know which it is. You may say {_at_most(self.length)} of these words to your partner, and nothing "
                f"else: {', '.join(self.words)}. What they mean is for the two of you to find out.\n\n"
                "End your reply with what you say: <say>...</say>."
            )
        return (
            f"A prize is behind one of these doors: {', '.join(self.doors)}. You may open one. Your partner knows "
            "which is right, and may only use words without a meaning, on which the two of you have to agree.\n\n"
            f"Your partner says: {heard}.\n\n"
            "End your reply with the color of the door that you open: <open>...</open>."
        )

    def _hears(self, agent: str) -> Collection[str]:
        """Returns nobody: a scout's thought would name the door, also where `show_thinking` is set."""
        del agent
        return ()

    def _act(self, state: SignalState, agent: str, text: str) -> Outcome:
        role, compact = agent.removesuffix("_0"), self.prompt == "compact"
        vocabulary, most = (self.words, self.length) if role == "scout" else (self.doors, 1)
        shown = (state.goal,) if role == "scout" else state.message or (SILENCE,)
        parsed = parse_words(text, role, vocabulary, most, shown, compact=compact)
        return self._judged(state, role, parsed)

    def _unread(self, state: SignalState, agent: str, reason: str) -> Outcome:
        return self._judged(state, agent.removesuffix("_0"), ParseError(reason))

    def _judged(
        self, state: SignalState, role: str, parsed: tuple[str, ...] | ParseError
    ) -> Outcome:
        why = parsed.why if isinstance(parsed, ParseError) else None
        words = () if isinstance(parsed, ParseError) else parsed
        if role == "scout":
            after = replace(state, message=words)
        else:
            # What was said counts for one round only.
            after = replace(state, opened=words[0]) if words else replace(state, message=())
        unreadable = why is not None and self.rewards_scheme == "dense"
        return Outcome(
            after,
            team=float(after.success),
            local=-FORMAT_PENALTY if unreadable else 0.0,
            success=after.success,
            done=after.opened is not None,
            parse_error=why,
            info={"message": " ".join(state.message if role == "mover" else words)},
        )

    def _answer(self, state: SignalState) -> str | None:
        return None if state.opened is None else f"<open>{state.opened}</open>"

    def _view(self, state: SignalState) -> str:
        message = " ".join(state.message) or "-"
        return f"prize: {state.goal}\nsaid: {message}\nopen: {state.opened or '-'}"


def _within(name: str, value: int, least: int, most: int) -> int:
    # `True` is an integer, too.
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}, got {value!r}")
    return value


env = raw_env
"""The environment as PettingZoo users make it."""
