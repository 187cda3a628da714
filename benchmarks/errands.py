"""Further tasks for two roles of SmolLM2: one with a classifier, and two as a stranger would write them.

    pettingllms-train --env ./benchmarks/errands.py:Desk --model smollm2 --policies per-role --max-completion-length 10

`Desk` differs in kind from `read`: nothing of the first role's prompt can be copied as its answer. A sorter says to which room
a thing belongs, a register says whose room that is, and a speaker who sees only the register's line says the name.

`Rooms` and `Prices` have the shape of `read`, but the answerer is asked as one would first ask: "Reply with the room only."
They were written before anything was trained on them. `forms` are demonstrations of a reply of one word that
contain none of their words: `python -m benchmarks.errands` writes them, for `pettingllms-data warm-start`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pettingllms.envs import read_v0
from pettingllms.envs.base import Outcome, TextEnv, metadata_of

FORMS = Path(__file__).parent / "out" / "forms.jsonl"
"""Demonstrations of the answerer's form."""
WARM_STEPS = 10
"""Steps of the warm start, with 8 demonstrations each."""
PARTLY_SAID = 0.3
"""Local reward of at most two words with the right name and no other."""
NOTHING = "Nothing was found"


def _things(text: str) -> tuple[str, ...]:
    return tuple(thing.strip() for thing in text.split(","))


THINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "train": {
        "kitchen": _things(
            "fridge, oven, kettle, toaster, stove, frying pan, bread knife, dishwasher"
        ),
        "garden": _things("lawnmower, hose, fence, shovel, rake, greenhouse, hedge, fountain"),
        "bathroom": _things(
            "shower, bathtub, toilet, hairdryer, toothbrush, soap dish, bath mat, shampoo"
        ),
    },
    "val": {
        "kitchen": _things("microwave, coffee maker, cutting board"),
        "garden": _things("flower bed, bird bath, apple tree"),
        "bathroom": _things("towel rack, bath towel, razor"),
    },
    "test": {
        "kitchen": _things("freezer, blender, saucepan, teapot, mixing bowl, rolling pin"),
        "garden": _things("wheelbarrow, sprinkler, rose bush, pond, beehive, compost heap"),
        "bathroom": _things("bidet, toilet seat, sponge, shower curtain, toothpaste, bath tap"),
    },
}
"""Split -> room -> things that belong to it."""
ROOMS = tuple(THINGS["train"])


@dataclass(frozen=True, slots=True)
class DeskState:
    """State of an episode: the thing, its room, whose each room is, and what was found and said."""

    thing: str
    room: str
    register: Mapping[str, str]
    """Room -> whose it is."""
    line: str = NOTHING
    """Line of the register that the sorter's reply opened."""
    answer: str | None = None


class Desk(TextEnv):
    """A sorter names a room, and a speaker, who sees one line of the register, names whose it is.

    The sorter's local reward is 1 for a reply that names the right room and no other. The team's reward is 1 for the name
    alone. A reply of two words with the right name earns the speaker 0.3.
    """

    metadata = metadata_of("desk_v0")
    default_turns: ClassVar[int] = 1

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(roles=("sorter", "speaker"), **kwargs)

    def _start(self, seed: int, options: dict[str, Any]) -> DeskState:  # noqa: ARG002 - none
        # A block of seeds has each room once: the tasks of a step do not favor one.
        block, place = divmod(seed, len(ROOMS))
        room = self._random(block).sample(ROOMS, len(ROOMS))[place]
        draw = self._random(seed)
        owners = draw.sample(read_v0.PEOPLE[self.split], len(ROOMS))
        thing = draw.choice(THINGS[self.split][room])
        return DeskState(thing, room, dict(zip(ROOMS, owners, strict=True)))

    def _text(self, state: DeskState, agent: str) -> str:
        if agent == "sorter_0":
            return f"Say where the {state.thing} is: {', '.join(ROOMS[:-1])} or {ROOMS[-1]}"
        return f"Say the last word of: {state.line}"

    def _hears(self, agent: str) -> Collection[str]:
        """Returns nobody: a sorter's thought would name the room."""
        del agent
        return ()

    def _act(self, state: DeskState, agent: str, text: str) -> Outcome:
        reply = " ".join(text.split()).rstrip(".")
        if agent == "sorter_0":
            rooms = [room for room in ROOMS if room in reply.lower()]
            right = rooms == [state.room]
            if len(rooms) == 1:
                line = f"The {rooms[0]} belongs to {state.register[rooms[0]]}"
                state = replace(state, line=line)
            return Outcome(
                state, team=0.0, local=float(right), success=False, info={"right": right}
            )
        owner = state.register[state.room]
        right = reply == owner
        partly = owner in reply and not right and len(reply.split()) <= 2
        return Outcome(
            replace(state, answer=reply[:60]),
            team=float(right),
            local=PARTLY_SAID * partly,
            success=right,
            done=True,
            info={"right": right},
        )

    def _view(self, state: DeskState) -> str:
        owners = ", ".join(f"{room}: {owner}" for room, owner in state.register.items())
        return f"{owners}\nasked: {state.thing}\nfound: {state.line}\nsaid: {state.answer or '-'}"


class Rooms(read_v0.raw_env):
    """Things and the rooms in which they are."""

    sentence = "The {} is in the {}"
    question = "Where is the {}?"
    request = "{}. Reply with the room only."
    subjects: ClassVar[Mapping[str, Sequence[str]]] = {
        "train": _things(
            "piano, ladder, mirror, suitcase, carpet, guitar, clock, basket, candle, drum"
        ),
        "val": _things("bicycle, globe, vase, camera, pillow, hammer"),
        "test": _things("lamp, trumpet, umbrella, statue, trunk, blanket, sword, violin"),
    }
    answers: ClassVar[Mapping[str, Sequence[str]]] = {
        "train": _things("attic, cellar, kitchen, garage, office, library, hallway, nursery"),
        "val": _things("bedroom, pantry, bathroom, workshop, studio"),
        "test": _things("basement, balcony, laundry, chapel, gallery, lounge"),
    }


class Prices(read_v0.raw_env):
    """Goods and what they cost."""

    sentence = "The {} costs {} dollars"
    question = "How much is the {}?"
    request = "{}. Reply with the number only."
    subjects: ClassVar[Mapping[str, Sequence[str]]] = {
        "train": _things("jacket, hat, scarf, belt, skirt, shirt, glove, boot, coat, sweater"),
        "val": _things("dress, tie, blouse, sandal, vest, cap"),
        "test": _things("suit, sock, raincoat, slipper, apron, uniform, jersey, robe"),
    }
    answers: ClassVar[Mapping[str, Sequence[str]]] = {
        "train": tuple(str(price) for price in range(11, 97, 5)),
        "val": tuple(str(price) for price in range(12, 97, 5)),
        "test": tuple(str(price) for price in range(13, 97, 5)),
    }


FORM_WORDS: Sequence[tuple[str, str, str, Sequence[str], Sequence[str]]] = (
    (
        "{} plays the {}",
        "What does {} play?",
        "instrument",
        _things("Karin, Tomas, Yusuf, Mei, Olga, Pierre, Ravi, Sven"),
        _things("flute, cello, harp, banjo, oboe, tuba"),
    ),
    (
        "The {} eats {}",
        "What does the {} eat?",
        "food",
        _things("horse, rabbit, goat, parrot, badger, donkey, hamster, panda"),
        _things("carrots, clover, seeds, cabbage, bamboo, barley"),
    ),
    (
        "{} was born in {}",
        "When was {} born?",
        "month",
        _things("Karin, Tomas, Yusuf, Mei, Olga, Pierre, Ravi, Sven"),
        _things("January, March, April, July, August, October"),
    ),
    (
        "The {} has {} pages",
        "How long is the {}?",
        "number",
        _things("novel, atlas, diary, manual, comic, report, magazine, thesis"),
        tuple(str(pages) for pages in range(120, 480, 37)),
    ),
)
"""Sentence, question, the word for its answer, subjects, and answers of demonstrations."""


def forms(lines: int = 200) -> list[dict[str, str]]:
    """Returns so many demonstrations of each role's form.

    The finder's prompts have one sentence, so that they show no choice.
    """
    draw, rows = random.Random("forms"), []
    for _ in range(lines):
        sentence, question, word, subjects, answers = draw.choice(FORM_WORDS)
        subject, answer = draw.choice(subjects), draw.choice(answers)
        told = sentence.format(subject, answer)
        asked = f"{told}. {question.format(subject)} Reply with the sentence that says it."
        rows.append({"role": "finder", "prompt": asked, "completion": f"{told}."})
        short = f"{told}. Reply with the {word} only."
        rows.append({"role": "answerer", "prompt": short, "completion": answer})
    return rows


def write(path: Path = FORMS) -> None:
    """Writes the demonstrations, one a line."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in forms()), encoding="utf-8")


def warm_adapters(model: str) -> Path:
    """Returns the adapters of the warm start, which is made once."""
    from pettingllms.trainers.warm_start import read_demonstrations, warm_start

    folder = FORMS.with_name("warm")
    if not folder.exists():
        write()
        warm_start(read_demonstrations(FORMS), model, folder, steps=WARM_STEPS)
    return folder


def main() -> None:
    """Writes the demonstrations."""
    write()


if __name__ == "__main__":
    main()
