"""Measures the success of constant answers: replies that are the same for every task.

An environment that can be solved without reading the task measures nothing. `blind_baseline` replies
with fixed texts, one for each turn, and reports their success and returns; `ANSWERS` has, for
each environment here, the best ones that a search on training tasks found (`python -m
benchmarks.blind`). Stronger ones may exist: the figures are lower bounds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pettingllms.envs.aec import AnyEnv, short_name
from pettingllms.envs.base import next_agent
from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.names import role_of

_CELLS = tuple(f"{row}{column}" for row in "abcd" for column in range(1, 5))
# A Latin square: over the four turns of an episode each number is tried first once in every cell.
_ORDERS = ("1234", "4321", "2413", "3142")

# The answer comes last: an answerer's last tag counts. It is the most frequent one of training questions.
_SEARCH = "<verify>{word}</verify><search>first friend</search><answer>otter10</answer>"

Answers = Sequence[str]
"""Replies of every agent: the text of the first turn, of the second, and so on; the last one repeats."""


class Blind(NamedTuple):
    """Success and returns of constant answers."""

    answers: tuple[str, ...]
    success: float
    """Share of episodes."""
    returns: Mapping[str, float]
    """Sum of the rewards of an episode by role, the mean over episodes."""


# The seed is fixed: shipped baselines must be the same texts everywhere.
def _walks(number: int, length: int) -> tuple[str, ...]:
    rng = random.Random(0)
    return tuple(f"[{''.join(rng.choices('UDLR', k=length))}]" for _ in range(number))


ANSWERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "plan_path": (
        (
            "[LUUUURRRURRDLURDDUDLDLDRURRULDRRUUULLRRD]",
            "[LLRLLULURLLLDRRUDDULUUDLRDURUDDRULRLRUL]",
            "[DDDDDLLLLRURLULRUURURRDURLUULLDULDDDURD]",
            "[RRRRRUUDUUUUDULRDUDDRLURRDRRURDDRDUDURDL]",
        ),
        (
            "[DLRLRDLRDRRDLRDLRULDRRUULURLDUDLULDRUUUR]",
            "[UUDUUUUUDDUDUUUUDRDULRLDRRULRUULUDDLUUR]",
            "[RDRLDDRDRDUURURDRLRLDRDRDLLRURULLLULRUDL]",
            "[LLLLUULDDDUUDRUULURDLURDLLDLLLURUDDRLRUU]",
        ),
        # For the eight turns of the base with parts.
        (
            *("[RLRRLRRU]", "[DDDUDDLR]", "[URRRR]", "[DLUULDLUULD]", "[LLRUR]"),
            *("[UUUULLUDLRULLL]", "[RRRRLRRR]", "[DDLUDLUUDUDLLDRUULLDDRUL]"),
        ),
        # More than 200 are not read (`parsing.MAX_MOVES`).
        _walks(4, 200),
    ),
    "sokoban": (
        (
            "[DDUDLUDDRRULLDDLLLRLDRULRDLRULRDDRDDRDLD]",
            "[RRRRLRLRRURLULULDULDRUUDLDLDLRRDRULRUDDU]",
            "[UDUURLDULURDURLLLDUDDRLURDRRLDUDRUDL]",
            "[LLLLUUUUUDRRRRRLLULLLDDDDDRRRDDDDDDDDUDD]",
        ),
        _walks(4, 200),
    ),
    "sudoku": (
        (
            "[1234341221434321]",
            "[2143431234211234]",
            "[3412123443212143]",
            "[4321214334121234]",
        ),
        tuple(
            f"[{' '.join(f'{cell}={n}' for cell in _CELLS for n in _ORDERS[t])}]" for t in range(4)
        ),
    ),
    "math": (
        ("\\boxed{1}\n```python\nprint(1)\n```",),
        ("\\boxed{12}\n```python\nprint(12)\n```",),
    ),
    "search": (
        (_SEARCH.format(word="yes"),),
        (_SEARCH.format(word="no"),),
    ),
    "read": (
        ("London",),
        ("Athens lives in London",),
    ),
    "crew": (
        ("<answer>Anna</answer><result>Anna</result>",),
        ("<call>clerk: Anna</call><result>Anna works for Karl</result>", "<answer>Karl</answer>"),
    ),
    "duet": (("red",), ("blue",)),
    "signal": (
        ("<say>dax</say><open>red</open>",),
        ("<say>wug</say><open>blue</open>",),
    ),
    "coding": (
        ("```python\nprint(input())\n```\n```input\n1\n```\n```output\n1\n```",),
        ("```python\nprint(0)\n```\n```input\n0\n```\n```output\n0\n```",),
    ),
    "debugging": (
        ("```python\nprint(input())\n```\n```report\nright\n```",),
        ("```python\nprint(0)\n```\n```debug\nright?\n```\n```report\nright\n```",),
    ),
}
"""Constant answers by environment, given by every role: the best found for its default tasks.

On boards: one found by a hill climb for each size, and random walks, which solve most small boards where
refused moves are skipped; for Sudoku complete grids, and every number tried in every cell.
"""


def blind_baseline(
    env: AnyEnv, answers: Sequence[Answers] = (), *, episodes: int = 300, seed: int = 0
) -> list[Blind]:
    """Measures each of the answers on the same tasks; the most successful comes first.

    Args:
        env: a PettingZoo AEC environment; give it the split to be measured.
        answers: constant answers; by default those of `ANSWERS` for this environment.
        episodes: tasks, with the seeds from `seed` on.
        seed: the first of them.

    Raises:
        ConfigError: no episodes, or answers without a text.
        UnknownNameError: no answers are given, and `ANSWERS` has none for this environment.
    """
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    if not answers:
        name = short_name(str(env.metadata["name"]))
        if name not in ANSWERS:
            raise UnknownNameError(
                f"no constant answers are known for {name!r}; {did_you_mean(name, ANSWERS)} "
                "Give answers=[(text of turn 1, text of turn 2, ...), ...]"
            )
        answers = ANSWERS[name]
    baselines = [_measured(env, tuple(texts), range(seed, seed + episodes)) for texts in answers]
    return sorted(baselines, key=lambda blind: -blind.success)


def _measured(env: AnyEnv, answers: tuple[str, ...], seeds: range) -> Blind:
    if not answers:
        raise ConfigError("constant answers need at least one text, got none")
    solved = 0
    earned = dict.fromkeys(map(role_of, env.possible_agents), 0.0)
    reset: Callable[..., object] = env.reset
    for seed in seeds:
        reset(seed=seed)
        acts: Counter[str] = Counter()
        success = False
        while (agent := next_agent(env)) is not None:
            # All roles give the same text, so that an answer need not know which of them decides.
            env.step(answers[min(acts[agent], len(answers) - 1)])
            acts[agent] += 1
            # The last one counts: a team may lose what it had solved.
            success = bool(env.infos.get(agent, {}).get("success", False))
            # Of all agents: environments that are no `TextEnv` also pay those who did not act.
            for other, reward in env.rewards.items():
                earned[role_of(other)] += float(reward)
        solved += success
    returns = {role: total / len(seeds) for role, total in earned.items()}
    return Blind(answers, solved / len(seeds), returns)
