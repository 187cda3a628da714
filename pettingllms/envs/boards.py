"""`BoardEnv`: base of Sokoban, Sudoku and Plan-Path: a tool proposes, a planner decides.

Each turn the tool answers first. Its answer is played on a copy of the board, is scored there,
and is shown to the planner. Then the planner answers, and only its answer changes the board
(arXiv 2510.11062, its game and planning tasks). With `agents="single"` the planner is alone.
An answer is a whole list: of moves, or of cells to fill. A subclass deals boards, parses answers,
applies them and describes the result; everything here is the same for all boards.

An answer is played up to its first part that the rules refuse; the rest is dropped
(`refused="stop"`). With `refused="skip"`, as in the paper's published code, refused parts are skipped and the rest
is played. Answers that ignore the board then solve most small boards, because two hundred moves bump along the walls
until they meet the goal (`python -m benchmarks.blind` measures both rules). There is no budget of moves besides
that of the parser, `MAX_MOVES`: where a refused move ends the answer, constant answers end long before it.

# Rewards

`reward = alpha * team + local`, both in `infos`.

| scheme | team | local, planner | local, tool |
|---|---|---|---|
| `"paper"` (default) | 1 if the planner's answer leaves the board solved; 0 for the tool, which changes nothing | nearness of the board after the answer, less that before it | nearness of the board to which the proposal would lead, less that of the proposal before |
| `"sparse"` | the same | 0 | 1 if the proposal would solve the board, less the same of the proposal before |

Nearness is a potential: 0 for the board as dealt, 1 for a solved one, half the progress that the
board defines in between, and at least `WORST` / 2. Both local rewards are differences of potentials, so that over an
episode they add up to the nearness of the last board and of the last proposal: walking to and fro, or proposing the
same again, earns nothing, and no episode is worth more than one that is right at once. A tool
that is right from the second turn on gets in that turn what its first proposal missed.

A refused part costs nothing by itself: the answer keeps what it gained before and loses the rest of its parts.
A reply without a readable answer counts as an empty one and costs `FORMAT_PENALTY` besides (not under "sparse").
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Unpack, cast, get_args

import numpy as np
import numpy.typing as npt

from pettingllms.data import board_files
from pettingllms.data.board_files import TextBoard
from pettingllms.data.dataset import Kind
from pettingllms.data.splits import Split
from pettingllms.envs import arguments, small_text
from pettingllms.envs.base import Outcome
from pettingllms.envs.coding_text import parse_program
from pettingllms.envs.parsing import ParseError, parse_moves
from pettingllms.envs.team_env import FORMAT_PENALTY, SMALL_STEPS, Agents, TeamArguments, TeamEnv
from pettingllms.errors import ConfigError
from pettingllms.sandbox import Case, Limits, RunResult

logger = logging.getLogger(__name__)


class Turn(NamedTuple):
    """A finished turn, as the agents are shown it."""

    proposal: str | None
    answer: str | None
    note: str


_TOOL = "You are the tool of a team of two. You propose an answer; the planner sees it and decides."
_PROGRAM = (
    "Instead of an answer you may give one fenced ```python program. It reads the board, as it is "
    "shown below, from standard input, and what it prints is read as your answer."
)
_PLANNER = (
    "You are the planner of a team of two. The tool proposes an answer, which may be wrong. "
    "Only your answer counts."
)
_SINGLE = "You solve the puzzle below, in as few turns as you can."
_FORM = (
    "Think first if you like. End your reply with the answer after ####; the last list counts. "
    "You have several turns, each of which continues from the board as it then is."
)
REFUSED = {
    "stop": "An answer is played up to its first part that is refused; the rest is dropped.",
    "skip": "A part that is refused is skipped; the rest is played.",
}
NOTHING = "nothing that can be read"


def task_of(role: str, *, team: bool, program: bool) -> str:
    """The task of a role; `program`: whether the tool may write one."""
    if role == "tool":
        return f"{_TOOL}\n{_PROGRAM}" if program else _TOOL
    return _PLANNER if team else _SINGLE


def full_prompt(
    task: str, rules: str, history: Sequence[Turn], board: str, proposal: str | None
) -> str:
    """Prompt of task, rules, earlier turns, the board as it is, and where given the proposal."""
    parts = [task, f"{rules}\n{_FORM}", *map(_turn, range(len(history)), history)]
    parts.append(f"The board now:\n{board}")
    if proposal is not None:
        parts.append(f"The tool proposes: {proposal}")
    return "\n\n".join(parts)


def _turn(number: int, turn: Turn) -> str:
    lines = [f"Turn {number}:"]
    if turn.proposal is not None:
        lines.append(f"the tool proposed {turn.proposal}")
    if turn.answer is not None:
        lines.append(f"the planner answered {turn.answer}")
    return "\n".join([*lines, turn.note])


WORST = -0.5
"""Least progress that counts: no single answer outweighs all others of its group, however far it walks away."""

Tool = Literal["moves", "python"]
Refused = Literal["stop", "skip"]
Picture = npt.NDArray[np.uint8]


class AnswerResult(NamedTuple):
    """Result of an answer on a board."""

    position: Any
    solved: bool
    note: str
    """The result in a sentence, for the agents."""
    illegal: int = 0
    """Moves or fills that the rules refused: at most one where an answer stops there."""
    lost: bool = False
    """Whether the board can no longer be solved, which ends the episode."""
    info: Mapping[str, Any] = {}
    """More entries for `infos[agent]`."""


@dataclass(frozen=True, slots=True)
class BoardState:
    """State of an episode."""

    level: Any
    """The part that does not change: walls, goals, clues, the optimum."""
    position: Any
    """The part that does: where the boxes are, which cells are filled."""
    nearness: float = 0.0
    """Potential of `position`."""
    proposed: float = 0.0
    """Potential of the board to which the tool's last proposal would have led."""
    solved: bool = False
    id: str | None = None
    """The task's id in its data set; None for a generated one."""
    proposal: str | None = None
    """The tool's answer of this turn; None where there is none or it could not be read."""
    history: tuple[Turn, ...] = field(default=())


class BoardArguments(TeamArguments, total=False):
    """The arguments that every board passes on, as `TextArguments`."""

    agents: Agents
    tool: Tool
    refused: Refused


class BoardEnv(TeamEnv):
    """Base of the boards; a subclass writes the methods of the first section.

    Args:
        agents: "team" (tool, then planner) or "single" (the planner alone).
        tool: "moves", or "python": the tool may also answer with a fenced Python program, which
            reads the board from standard input; what it prints is read as its answer.
        refused: effect of a move or fill that the rules refuse: "stop" ends the answer there,
            "skip" continues with its next part.
        kwargs: as in `TeamEnv`. Compact prompts have coordinates in few tokens, without rules
            and without the turns before.

    Raises:
        ConfigError: an argument that cannot be used.
    """

    default_limits = Limits(cpu_s=2.0, wall_s=10.0, memory_mib=256)
    divides_datasets = True
    embedded = {"prompt": "compact"}
    embedded_training = SMALL_STEPS
    word: ClassVar[str]
    """The first word of a compact prompt."""
    rules: str
    """The rules of the board and the form of an answer, for full prompts."""

    def __init__(
        self,
        *,
        agents: Agents = "team",
        tool: Tool = "moves",
        refused: Refused = "stop",
        **kwargs: Unpack[TeamArguments],
    ) -> None:
        arguments.one_of("agents", agents, get_args(Agents))
        team = agents == "team"
        super().__init__(roles=("tool", "planner") if team else ("planner",), **kwargs)
        self.tool = arguments.one_of("tool", tool, get_args(Tool))
        self.refused = arguments.one_of("refused", refused, get_args(Refused))
        self._team = team

    # ------------------------------------------------------------- what a subclass writes

    def _deal(self, seed: int, options: dict[str, Any]) -> tuple[Any, Any, str | None]:
        """Level, first position and the data set's id of task `seed`; immutable and picklable."""
        raise NotImplementedError

    def _generated(self, seed: int) -> Any:
        """Generates the level of task `seed`.

        Raises:
            ConfigError: none was found.
        """
        raise NotImplementedError

    def _parse_answer(self, level: Any, text: str) -> Any | ParseError:
        """Parses the answer in a reply, by default moves; raises for no text whatsoever."""
        del level
        return parse_moves(text)

    def _apply(self, level: Any, position: Any, answer: Any) -> AnswerResult:
        """Applies an answer to a board; pure."""
        raise NotImplementedError

    def _progress(self, level: Any, position: Any) -> float:
        """Share of the way that is done: 0 for the board as dealt, 1 for solved; may be negative."""
        raise NotImplementedError

    def _format_answer(self, level: Any, position: Any, answer: Any) -> str:
        """An answer to this board as it is shown to agents, in the form that `_parse_answer` reads."""
        raise NotImplementedError

    def _board(self, level: Any, position: Any) -> str:
        """The board for a full prompt, for `render` and for a tool's program."""
        raise NotImplementedError

    def _coordinates(self, level: Any, position: Any) -> str:
        """The board for a compact prompt, in one line."""
        raise NotImplementedError

    def _picture(self, state: BoardState) -> Picture:
        """The board as an image of height x width x 3."""
        raise NotImplementedError

    def _local(self, role: str, result: AnswerResult, gain: float) -> float:
        """The local reward of a readable answer, under a scheme of the subclass's own."""
        raise NotImplementedError

    def _ask(self, level: Any, position: Any) -> str:
        """Returns the question of a small prompt."""
        raise NotImplementedError

    def _read_small(self, level: Any, position: Any, text: str) -> Any | ParseError:  # noqa: ARG002 - the same for all
        """Parses the answer to a small prompt; raises for no text whatsoever."""
        return small_text.moves(text)

    # ------------------------------------------------------------- what they share

    def _start(self, seed: int, options: dict[str, Any]) -> BoardState:
        level, position, name = self._deal(seed, options)
        return BoardState(level, position, id=name)

    def _take_boards(self, files: Kind[TextBoard], dataset: str | Path | None) -> None:
        """Plays the boards of a data set in place of generated ones, if one is given."""
        self._boards: tuple[TextBoard, ...] | None = None
        if dataset is not None:
            self._boards = board_files.boards(files, dataset, cast(Split, self.split))
        self.num_tasks = None if self._boards is None else len(self._boards)
        """Boards of the data set: task seeds wrap around here. None for the endless generator."""

    def _dealt(self, seed: int) -> Any:
        """The generated level of a task; where the search for it fails, that of task 0, so that no reset fails."""
        try:
            return self._generated(seed)
        except ConfigError as error:
            logger.warning("task %d has the level of task 0: %s", seed, error)
            # Constructors refuse settings for which it has none.
            return self._generated(0)

    def _act_all(self, state: BoardState, agent: str, texts: Sequence[str]) -> list[Outcome]:
        if agent == "tool_0":
            return [self._propose(state, text) for text in self._run_programs(state, texts)]
        return [self._decide(state, text) for text in texts]

    def _parsed(self, state: BoardState, text: str | ParseError) -> Any | ParseError:
        if isinstance(text, ParseError):
            return text
        if self.prompt == "small":
            return self._read_small(state.level, state.position, text)
        return self._parse_answer(state.level, text)

    def _propose(self, state: BoardState, text: str | ParseError) -> Outcome:
        answer = self._parsed(state, text)
        if isinstance(answer, ParseError):
            # Counts as an empty proposal: otherwise the tool would keep the pay of an earlier one.
            after = replace(state, proposed=state.nearness)
            return self._unreadable(after, answer, gain=self._tool_gain(state, state.nearness))
        result = self._apply(state.level, state.position, answer)
        nearness = self._nearness(state, result)
        # The planner reads the proposal as it was understood, not as it was written: a reply
        # may hold anything, also text meant to steer the planner.
        written = self._format_answer(state.level, state.position, answer)
        after = replace(state, proposed=nearness, proposal=written)
        return self._outcome(after, "tool", result, gain=self._tool_gain(state, nearness))

    def _decide(self, state: BoardState, text: str | ParseError) -> Outcome:
        answer = self._parsed(state, text)
        if isinstance(answer, ParseError):
            turn = Turn(state.proposal, None, f"not readable: {answer.why}")
            after = replace(state, proposal=None, history=(*state.history, turn))
            return self._unreadable(after, answer)
        result = self._apply(state.level, state.position, answer)
        written = self._format_answer(state.level, state.position, answer)
        turn = Turn(state.proposal, written, result.note)
        after = replace(
            state,
            position=result.position,
            nearness=self._nearness(state, result),
            solved=result.solved,
            proposal=None,
            history=(*state.history, turn),
        )
        gain = 0.0 if self.rewards_scheme == "sparse" else after.nearness - state.nearness
        team, done = float(result.solved), result.solved or result.lost
        return self._outcome(after, "planner", result, team=team, gain=gain, done=done)

    # It costs what any unreadable reply does; the base charges nothing.
    def _unread(self, state: BoardState, agent: str, reason: str) -> Outcome:
        play = self._propose if agent == "tool_0" else self._decide
        return play(state, ParseError(reason))

    def _nearness(self, state: BoardState, result: AnswerResult) -> float:
        if result.solved:
            return 1.0
        # Half of the progress, so that solving the board gains at least 0.5 over any other answer.
        return 0.5 * max(WORST, self._progress(state.level, result.position))

    def _tool_gain(self, state: BoardState, nearness: float) -> float:
        """Gain of the tool for a proposal that leads to a board of this nearness."""
        if self.rewards_scheme == "sparse":
            # Only a solved board has nearness 1.
            return float(nearness == 1.0) - float(state.proposed == 1.0)
        return nearness - state.proposed

    def _outcome(
        self,
        state: BoardState,
        role: str,
        result: AnswerResult,
        *,
        gain: float,
        team: float = 0.0,
        done: bool = False,
    ) -> Outcome:
        # Any other scheme is the subclass's, and so is its local reward.
        custom = self.rewards_scheme not in ("paper", "sparse")
        local = self._local(role, result, gain) if custom else gain
        info = {"answer_solves": result.solved, "illegal": result.illegal, **result.info}
        if state.id is not None:
            info["id"] = state.id
        return Outcome(state, team, local, success=state.solved, done=done, info=info)

    def _written(self, state: BoardState, answer: Any) -> str:
        """An answer in the form that replies to the environment's prompts have."""
        written = self._format_answer(state.level, state.position, answer)
        return small_text.spoken(written) if self.prompt == "small" else written

    def _unreadable(self, state: BoardState, error: ParseError, gain: float = 0.0) -> Outcome:
        local = gain if self.rewards_scheme == "sparse" else gain - FORMAT_PENALTY
        # Always included; otherwise episodes whose first reply is unreadable drop out of the
        # scores by difficulty.
        grade = getattr(state.level, "difficulty", None)
        info = {} if grade is None else {"difficulty": grade}
        if state.id is not None:
            info["id"] = state.id
        return Outcome(state, 0.0, local, success=state.solved, parse_error=error.why, info=info)

    def _run_programs(self, state: BoardState, texts: Sequence[str]) -> Sequence[str | ParseError]:
        """The replies, with each program replaced by its output."""
        if self.tool == "moves":
            return texts
        parsed = [parse_program(text) for text in texts]
        case = Case(stdin=self._board(state.level, state.position))
        ran = self._ran((program for program in parsed if isinstance(program, str)), case)
        # A reply without a program is an answer itself.
        return [
            text if isinstance(program, ParseError) else _output(ran[program])
            for text, program in zip(texts, parsed, strict=True)
        ]

    # ------------------------------------------------------------- what agents and people see

    def _text(self, state: BoardState, agent: str) -> str:
        role = agent.removesuffix("_0")
        if self.prompt == "compact":
            parts = [self.word, role, self._coordinates(state.level, state.position)]
            if self._team and role == "planner":
                parts.append(f"proposal {state.proposal or 'none'}")
            return " ".join(parts)
        if self.prompt == "small":
            question = self._ask(state.level, state.position)
            if role == "tool" or not self._team:
                return question
            proposal = small_text.spoken(state.proposal or "")
            return f"The tool says: {proposal}. {question}"
        # The planner must know that a proposal failed, or it could take silence for consent.
        shown = None if role == "tool" or not self._team else state.proposal or NOTHING
        task = task_of(role, team=self._team, program=self.tool == "python")
        board = self._board(state.level, state.position)
        rules = f"{self.rules}\n{REFUSED[self.refused]}"
        return full_prompt(task, rules, state.history, board, shown)

    def _view(self, state: BoardState) -> str:
        return self._board(state.level, state.position)


def _output(result: RunResult) -> str | ParseError:
    if result.status != "ok":
        return ParseError(f"the program failed: {result.failure}"[:200])
    return result.stdout
