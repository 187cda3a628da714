"""`BoardEnv`: what Sokoban, Sudoku and Plan-Path have in common: a tool proposes, a planner decides.

Each turn the tool answers first. Its answer is played on a copy of the board, is scored there,
and is shown to the planner. Then the planner answers, and only its answer changes the board
(arXiv 2510.11062, the game and planning tasks). With `agents="single"` the planner is alone.
An answer is a whole list: of moves, or of cells to fill. A game is a subclass that deals boards,
reads answers, plays them and describes the result; everything here is the same for all of them.

# Rewards

`reward = alpha * team + local`, both in `infos`.

| scheme | team | local |
|---|---|---|
| `"paper"` (default) | 1 if the planner's answer leaves the board solved, or if the tool's is the first proposal that would | how much nearer to the solution the answer comes, less `ILLEGAL_COST` times the share of its parts that the rules refuse |
| `"sparse"` | the same | 0 |

Nearness is a potential between 0 (the board as dealt) and 1 (solved), of which half is kept for being solved.
The planner earns the difference that it makes, so that walking to and fro earns nothing; the tool
earns what its proposal has over the best board that was reached or proposed before, so that repeating one earns nothing.
A reply without a readable answer changes nothing and costs `FORMAT_PENALTY` ("paper").
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from pettingllms.envs import arguments, board_text
from pettingllms.envs.base import Outcome
from pettingllms.envs.board_text import NOTHING, Turn
from pettingllms.envs.coding_text import parse_program
from pettingllms.envs.lists import ParseError
from pettingllms.envs.team_env import Agents, TeamEnv
from pettingllms.sandbox import Case, Limits

FORMAT_PENALTY = 0.1
ILLEGAL_COST = 0.25
LIMITS = Limits(cpu_s=2.0, wall_s=10.0, memory_mib=256)

Tool = Literal["moves", "python"]
Picture = npt.NDArray[np.uint8]


class Played(NamedTuple):
    """What an answer leads to on a board."""

    position: Any
    solved: bool
    note: str
    """What happened, in a sentence for the agents."""
    parts: int = 0
    """Moves or fills of the answer that were looked at."""
    illegal: int = 0
    """Those of them that the rules refused."""
    lost: bool = False
    """Whether the board can no longer be solved, which ends the episode."""
    info: Mapping[str, Any] = {}
    """More entries for `infos[agent]`."""


@dataclass(frozen=True, slots=True)
class Play:
    """All that an episode knows."""

    level: Any
    """What does not change: walls, goals, clues, the optimum."""
    position: Any
    """What does."""
    nearness: float = 0.0
    """Potential of `position`."""
    best: float = 0.0
    """The greatest potential that was reached or proposed so far."""
    solved: bool = False
    proposal: str | None = None
    """The tool's answer of this turn; None where there is none or it could not be read."""
    history: tuple[Turn, ...] = field(default=())


class BoardEnv(TeamEnv):
    """Base of the board games; a game writes the methods below.

    Args:
        agents: "team" (tool, then planner) or "single" (the planner alone).
        tool: "moves", or "python": the tool may also answer with a fenced Python program, which
            reads the board from standard input; what it prints is read as its answer.
        kwargs: as in `TeamEnv`. Compact prompts have coordinates in few tokens, without rules
            and without the turns before.

    Raises:
        ConfigError: an argument that cannot be used.
    """

    embedded: ClassVar[Mapping[str, Any]] = {"prompt": "compact"}
    word: ClassVar[str]
    """The first word of a compact prompt."""
    rules: str
    """The rules of the game and the form of an answer, for full prompts."""

    def __init__(
        self,
        *,
        agents: Agents = "team",
        tool: Tool = "moves",
        **kwargs: Any,
    ) -> None:
        arguments.one_of("agents", agents, get_args(Agents))
        team = agents == "team"
        super().__init__(roles=("tool", "planner") if team else ("planner",), **kwargs)
        self.tool = arguments.one_of("tool", tool, get_args(Tool))
        self._team = team

    # ------------------------------------------------------------- what a game writes

    def _deal(self, seed: int, options: dict[str, Any]) -> tuple[Any, Any]:
        """Level and first position of task `seed`; immutable and picklable."""
        raise NotImplementedError

    def _read(self, level: Any, text: str) -> Any | ParseError:
        """The answer in a reply; raises for no text whatsoever."""
        raise NotImplementedError

    def _play(self, level: Any, position: Any, answer: Any) -> Played:
        """What an answer leads to; pure."""
        raise NotImplementedError

    def _progress(self, level: Any, position: Any) -> float:
        """How much of the way is done: 0 for the board as dealt, 1 for solved; may be negative."""
        raise NotImplementedError

    def _written(self, level: Any, position: Any, answer: Any) -> str:
        """An answer to this board as it is shown to agents, in the form that `_read` reads."""
        raise NotImplementedError

    def _board(self, level: Any, position: Any) -> str:
        """The board for a full prompt, for `render` and for a tool's program."""
        raise NotImplementedError

    def _coordinates(self, level: Any, position: Any) -> str:
        """The board for a compact prompt, in one line."""
        raise NotImplementedError

    def _picture(self, state: Play) -> Picture:
        """The board as an image of height x width x 3."""
        raise NotImplementedError

    def _local(self, played: Played, gain: float) -> float:
        """The local reward of a readable answer, under a scheme of the game's own."""
        raise NotImplementedError

    def _paint(self, board: str) -> str:
        """The board for a terminal that shows colours."""
        return board

    # ------------------------------------------------------------- what they share

    def _start(self, seed: int, options: dict[str, Any]) -> Play:
        return Play(*self._deal(seed, options))

    def _act(self, state: Play, agent: str, text: str) -> Outcome:
        if agent == "planner_0":
            return self._decide(state, text)
        return self._propose(state, *self._printed(state, [text]))

    def _act_all(self, state: Play, agent: str, texts: Sequence[str]) -> list[Outcome]:
        if agent == "tool_0":
            return [self._propose(state, text) for text in self._printed(state, texts)]
        return [self._decide(state, text) for text in texts]

    def _propose(self, state: Play, text: str | ParseError) -> Outcome:
        answer = text if isinstance(text, ParseError) else self._read(state.level, text)
        if isinstance(answer, ParseError):
            return self._unread(state, answer)
        played = self._play(state.level, state.position, answer)
        nearness = self._nearness(state, played)
        written = self._written(state.level, state.position, answer)
        following = Play(
            level=state.level,
            position=state.position,
            nearness=state.nearness,
            best=max(state.best, nearness),
            solved=state.solved,
            proposal=written,
            history=state.history,
        )
        first = played.solved and state.best < 1.0
        gain = max(0.0, nearness - state.best)
        return self._outcome(following, played, team=float(first), gain=gain)

    def _decide(self, state: Play, text: str) -> Outcome:
        answer = self._read(state.level, text)
        if isinstance(answer, ParseError):
            turn = Turn(state.proposal, None, f"not readable: {answer.why}")
            after = replace(state, proposal=None, history=(*state.history, turn))
            return self._unread(after, answer)
        played = self._play(state.level, state.position, answer)
        nearness = self._nearness(state, played)
        written = self._written(state.level, state.position, answer)
        turn = Turn(state.proposal, written, played.note)
        following = Play(
            level=state.level,
            position=played.position,
            nearness=nearness,
            best=max(state.best, nearness),
            solved=played.solved,
            history=(*state.history, turn),
        )
        gain = nearness - state.nearness
        done = played.solved or played.lost
        return self._outcome(following, played, team=float(played.solved), gain=gain, done=done)

    def _nearness(self, state: Play, played: Played) -> float:
        return 1.0 if played.solved else 0.5 * self._progress(state.level, played.position)

    def _outcome(
        self, state: Play, played: Played, *, team: float, gain: float, done: bool = False
    ) -> Outcome:
        if self.rewards_scheme == "paper":
            local = gain - ILLEGAL_COST * played.illegal / max(1, played.parts)
        elif self.rewards_scheme == "sparse":
            local = 0.0
        else:
            local = self._local(played, gain)
        info = {"answer_solves": played.solved, "illegal": played.illegal, **played.info}
        return Outcome(state, team, local, success=state.solved, done=done, info=info)

    def _unread(self, state: Play, error: ParseError) -> Outcome:
        local = 0.0 if self.rewards_scheme == "sparse" else -FORMAT_PENALTY
        # Said of every reply, or games that begin with an unreadable one would count nowhere.
        grade = getattr(state.level, "difficulty", None)
        info = {} if grade is None else {"difficulty": grade}
        return Outcome(state, 0.0, local, success=state.solved, parse_error=error.why, info=info)

    def _printed(self, state: Play, texts: Sequence[str]) -> Sequence[str | ParseError]:
        """The replies, with each program replaced by what it prints."""
        if self.tool == "moves":
            return texts
        programs = [parse_program(text) for text in texts]
        board = self._board(state.level, state.position)
        return [
            text if isinstance(program, ParseError) else self._run(program, board)
            for text, program in zip(texts, programs, strict=True)
        ]

    def _run(self, program: str, board: str) -> str | ParseError:
        ((result,),) = self.sandbox.run([program], [Case(stdin=board)], limits=LIMITS)
        if result.status != "ok":
            last = result.stderr.strip().splitlines()[-1:] or [""]
            return ParseError(f"the program failed: {result.status} {last[0]}".strip()[:200])
        return result.stdout

    # ------------------------------------------------------------- what agents and people see

    def _text(self, state: Play, agent: str) -> str:
        role = agent.removesuffix("_0")
        if self.prompt == "compact":
            parts = [self.word, role, self._coordinates(state.level, state.position)]
            if self._team and role == "planner":
                parts.append(f"proposal {state.proposal or 'none'}")
            return " ".join(parts)
        shown = None if role == "tool" or not self._team else state.proposal or NOTHING
        task = board_text.task(role, team=self._team, program=self.tool == "python")
        board = self._board(state.level, state.position)
        return board_text.full_prompt(task, self.rules, state.history, board, shown)

    def _view(self, state: Play) -> str:
        board = self._board(state.level, state.position)
        return self._paint(board) if sys.stdout.isatty() else board
