r"""# Math.

A tool writes a program that really runs, and a reasoner works in words and decides.

Teams of up to seven, with several of each and a judge, are a matter of arguments.

| | |
|---|---|
| Creation | `math_v0.env()`, `pettingzoo.make("aec", "pettingllms/math-v0")` |
| Agents | `tool_0`, then `reasoner_0`; in larger teams all tools, all reasoners, `judge_0` |
| Action | `FreeText`: a reply with a fenced program (tool) or with `\boxed{...}` (reasoner, judge) |
| Observation | `Dict(text: FreeText, turn: Discrete)` |
| Turns | 4 by default, then truncation |

In each turn every agent acts once. The tool answers with one fenced Python program; the last line
that it prints is its answer. Reasoner and judge end with `\boxed{...}`. An agent is shown the
problem, its own earlier replies, and those of the agents that it sees: of this turn where they have
acted already, and of all earlier turns. A reply that cannot be read leaves the agent's answer as it
is and says why in `infos[agent]["parse_error"]`. A traceback is never an answer. The episode ends at the end of a turn in which all agents' answers agree. That is not success: success
is that the team's final answer, the judge's or else the last reasoner's, equals the reference.

# Rewards

`reward = alpha * team + local`, both in `infos`. Both are *differences of scores* (`pettingllms.envs.team_env`), so that
a team that has the answer and does not agree earns no more than one that agrees at once. The team is paid for the
final answer by the reply that gives it, whatever a tool proposes.

| scheme | score of the team | score of a reasoner's or judge's reply | score of a tool's reply |
|---|---|---|---|
| `"paper"` (default) | 1 if the final answer is right, else 0 | 1 if its own answer is right, else 0 | 1 right, 0 wrong, -1 if its program fails or prints nothing |
| `"sparse"` | the same | 0 | 0 |

Without a readable answer, or with a reply that is too long, reasoner and judge score `-FORMAT_PENALTY` in the paper's
scheme. A tool without a program scores -1, or writing none would pay more than one that fails.

A step is a function of state and reply alone, as far as programs are: one that asks for the time or the system's entropy,
or that needs about as much CPU time as it may use, can differ from one run to the next.

`infos[agent]` of a reply: `right`, `statuses` of its program, `difficulty` of the problem. Of reasoner
and judge, about the last program of this turn that they were shown: `tool_right`, `follows_right` (it is right and
the agent gives its answer), `follows_wrong`; `follows_right` over `tool_right` is how often the tool is
trusted when it should be.

# Other calls

`reset(options={"question": text})` plays a problem without a reference, for which nothing is paid; `answer()` is the
team's answer.

# Version History

* v0: first version (0.1.0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast, get_args

from pettingllms.data import arithmetic
from pettingllms.data.math import PREFIX, MathProblem, ReasoningGym, load_problems
from pettingllms.data.rows import Source
from pettingllms.data.splits import Split
from pettingllms.envs import arguments
from pettingllms.envs.base import Outcome, metadata_of
from pettingllms.envs.math_text import (
    SOLVER,
    Message,
    Reply,
    compact_prompt,
    failure,
    full_prompt,
    parse_reply,
    printed_answer,
    shown_message,
    small_prompt,
)
from pettingllms.envs.parsing import ParseError
from pettingllms.envs.recorded_peers import RecordedTask, check_prompt, read_peers
from pettingllms.envs.team_env import (
    FORMAT_PENALTY,
    SMALL_STEPS,
    Agents,
    Scores,
    TeamArguments,
    TeamEnv,
)
from pettingllms.errors import ConfigError
from pettingllms.grading import same
from pettingllms.names import role_of
from pettingllms.sandbox import Case, Limits, RunResult

TOPOLOGIES = ("mesh", "star", "chain")
MOST_AGENTS = 7


@dataclass(frozen=True, slots=True)
class MathState:
    """State of an episode: the problem, and every readable reply in order."""

    problem: MathProblem
    messages: tuple[Message, ...] = ()
    scores: Scores = field(default_factory=Scores)

    @property
    def current(self) -> dict[str, Message]:
        """The last message of each agent that has given any."""
        return {message.agent: message for message in self.messages}


class raw_env(TeamEnv):
    r"""The math environment; the module's docstring is its manual.

    Args:
        dataset: None for generated word problems (`pettingllms.data.arithmetic`), "reasoning_gym:NAME", or
            a data set's name, hub id or path (`pettingllms.data.math`), or its rows.
        depth: fewest and most steps of a generated problem.
        largest: largest number of a generated problem.
        agents: "team", or "single" for one `solver_0`, who may write a program, `\boxed{...}` or both in
            each reply, and is done when the two agree or it repeats its answer.
        reasoners: members of the team that work in words.
        tools: members of the team that write programs.
        judge: whether the team has a judge.
        topology: "mesh" (all see all), "star" (the judge sees all, others themselves), or "chain" (each
            sees the one before it).
        peers: a file of recorded replies (`pettingllms-data peers`): the judge alone acts, after one
            recorded reply of every other member, and learns to use them.
        kwargs: as in `TeamEnv`.

    Raises:
        ConfigError: an unknown word, a team or topology that is impossible, sizes out of range.
        DatasetError: the data set has a bad row, or no problem of `split`.
    """

    # Hardly two prompts of a task are equal after the first turn.
    metadata = metadata_of("math_v0", states_recur=False, judged_replies=True)
    divides_datasets = True
    embedded = {"prompt": "compact"}
    smollm2 = {"prompt": "small", "depth": (2, 2), "largest": 10}
    embedded_training = SMALL_STEPS

    reset_options = ("question",)
    default_limits = Limits(cpu_s=5.0, wall_s=20.0, memory_mib=512)

    def __init__(
        self,
        *,
        dataset: Source | None = None,
        depth: tuple[int, int] = arithmetic.DEPTH,
        largest: int = arithmetic.LARGEST,
        agents: Agents = "team",
        reasoners: int = 1,
        tools: int = 1,
        judge: bool = False,
        topology: str = "mesh",
        peers: str | Path | None = None,
        **kwargs: Unpack[TeamArguments],
    ) -> None:
        arguments.one_of("agents", agents, get_args(Agents))
        if agents == "single":
            if (reasoners, tools, judge, topology) != (1, 1, False, "mesh"):
                raise ConfigError("agents='single' has no team; leave out its members and topology")
            roles: tuple[str, ...] = (SOLVER,)
        else:
            roles = roles_of_team(reasoners=reasoners, tools=tools, judge=judge)
        # Recorded peers answered apart, and only in a star does nobody but the judge see others.
        if peers is not None and not (judge and topology == "star"):
            raise ConfigError("peers are for a judge; give judge=True and topology='star', too")
        acting = roles if peers is None else roles[-1:]
        super().__init__(roles=acting, **kwargs)
        members = arguments.agent_names(roles)
        self.sees = seen_by(topology, members)
        self._problem, self.num_tasks = _problems(dataset, self.split, tuple(depth), largest)
        self._peers: tuple[RecordedTask, ...] | None = None
        if peers is not None:
            self._peers_file = peers
            self._peers = read_peers(peers, self.split, members[:-1])
            draws = max(len(p.replies) for task in self._peers for p in task.peers.values())
            self.num_tasks = len(self._peers) * draws

    def _start(self, seed: int, options: dict[str, Any]) -> MathState:
        if "question" in options:  # nobody knows its answer
            return MathState(MathProblem(str(options["question"]), (), id="question"))
        if self._peers is None:
            return MathState(self._problem(seed))
        # Seeds go through all tasks before one of them comes again, with other replies.
        draw, place = divmod(seed, len(self._peers))
        return self._told(self._peers[place], draw)

    def _told(self, task: RecordedTask, draw: int) -> MathState:
        """A recorded task, after one reply of each peer."""
        state = MathState(self._problem(task.seed))
        drawn = task.drawn(draw)
        for agent in drawn:
            check_prompt(self._peers_file, agent, task, self._prompt(state.problem, agent, (), ()))
        small = self.prompt == "small"
        replies = {a: parse_reply(role_of(a), text, small=small) for a, text in drawn.items()}
        read = {a: r for a, r in replies.items() if isinstance(r, Reply)}
        ran = self._ran((r.program for r in read.values() if r.program), Case())
        messages = tuple(self._message(state, 0, a, reply, ran) for a, reply in read.items())
        return replace(state, messages=messages)

    def _text(self, state: MathState, agent: str) -> str:
        shown = [m for m in state.messages if m.agent == agent or m.agent in self.sees[agent]]
        earlier = [message for message in shown if message.turn < self.turn]
        # `_text` may be asked of any agent at any time, also of one that has acted in this turn.
        now = [m for m in shown if m.turn == self.turn and m.agent != agent]
        return self._prompt(state.problem, agent, earlier, now)

    def _privileged(self, state: MathState, agent: str) -> str:  # noqa: ARG002 - the same for all
        return ", ".join(state.problem.answers)

    def _prompt(
        self, problem: MathProblem, agent: str, earlier: Sequence[Message], now: Sequence[Message]
    ) -> str:
        if self.prompt == "compact":
            return compact_prompt(role_of(agent), problem.question, earlier, now)
        if self.prompt == "small":
            return small_prompt(role_of(agent), problem.question, now)
        return full_prompt(role_of(agent), problem, earlier, now)

    def _act_all(self, state: MathState, agent: str, texts: Sequence[str]) -> list[Outcome]:
        small = self.prompt == "small"
        replies = [parse_reply(role_of(agent), text, small=small) for text in texts]
        programs = (r.program for r in replies if isinstance(r, Reply) and r.program is not None)
        ran = self._ran(programs, Case())
        return [self._judge(state, agent, reply, ran) for reply in replies]

    def _judge(
        self, state: MathState, agent: str, reply: Reply | ParseError, ran: Mapping[str, RunResult]
    ) -> Outcome:
        info: dict[str, Any] = {"right": False}
        if state.problem.difficulty is not None:
            info["difficulty"] = state.problem.difficulty
        if isinstance(reply, ParseError):
            # As much as a program that fails: otherwise writing none would pay more.
            local = -1.0 if role_of(agent) == "tool" else -FORMAT_PENALTY
            return self._outcome(state, agent, local, parse_error=reply.why, info=info)
        if reply.program is not None:
            info["statuses"] = [ran[reply.program].status]
        message = self._message(state, self.turn, agent, reply, ran)
        answer, right = message.answer, message.right
        after = replace(state, messages=(*state.messages, message))
        info |= {"right": right, **self._trust(state, agent, message)}
        # Only a program can leave no answer, by failing: without either, a reply is unreadable.
        local = -1.0 if answer is None else float(right)
        done = self._agree(after, agent, reply)
        return self._outcome(after, agent, local, done=done, info=info)

    @staticmethod
    def _message(
        state: MathState, turn: int, agent: str, reply: Reply, ran: Mapping[str, RunResult]
    ) -> Message:
        printed, failed = None, ""
        if reply.program is not None:
            result = ran[reply.program]
            printed, failed = printed_answer(result), failure(result)
        answer = printed if reply.answer is None else reply.answer
        right = answer is not None and same(state.problem.answers, answer)
        return Message(turn, agent, reply.said, answer, right, failed, printed)

    def _unread(self, state: MathState, agent: str, reason: str) -> Outcome:
        return self._judge(state, agent, ParseError(reason), {})

    def _hears(self, agent: str) -> frozenset[str]:
        return self.sees[agent]

    def _trust(self, state: MathState, agent: str, message: Message) -> dict[str, float]:
        """Compares an answer with that of the last tool of this turn that its author sees."""
        now = [m for m in state.messages if m.turn == self.turn and m.agent in self.sees[agent]]
        tools = [m for m in now if role_of(m.agent) == "tool"]
        if role_of(agent) == "tool" or not tools:
            return {}
        tool = tools[-1]
        follows = _same_answer(tool, message)
        return {
            "tool_right": float(tool.right),
            "follows_right": float(follows and tool.right),
            "follows_wrong": float(follows and not tool.right),
        }

    def _agree(self, state: MathState, agent: str, reply: Reply) -> bool:
        """Returns whether the last agent of a turn has just given the answer of all others."""
        if role_of(agent) == SOLVER:
            return self._alone(state.messages, reply)
        if agent != self.possible_agents[-1] or reply.answer is None:
            return False
        current = state.current
        answer = current[agent]
        return all(
            other in current and _same_answer(current[other], answer)
            for other in self.possible_agents
        )

    def _alone(self, messages: Sequence[Message], reply: Reply) -> bool:
        """Returns whether a solver's answer is its last program's output or last turn's answer."""
        *earlier, now = messages
        if earlier and earlier[-1].turn == now.turn - 1 and _same_answer(earlier[-1], now):
            return True
        # A program that failed counts, too: it is the last one, and it confirms nothing.
        ran = [m.printed for m in messages if m.failure or m.printed is not None]
        if reply.answer is None or not ran or ran[-1] is None:
            return False
        return same(ran[-1], reply.answer)

    def _outcome(self, state: MathState, agent: str, local: float, **rest: Any) -> Outcome:
        final = state.current.get(self.possible_agents[-1])
        success = final is not None and final.right
        notes = {} if final is None else {"answer": final.answer}
        return self._paid(state, agent, local, success=success, notes=notes, **rest)

    def _situation(self, state: MathState) -> str | None:
        return state.problem.difficulty

    def _answer(self, state: MathState) -> str | None:
        final = state.current.get(self.possible_agents[-1])
        return None if final is None or final.answer is None else rf"\boxed{{{final.answer}}}"

    def _view(self, state: MathState) -> str:
        return "\n".join(
            [
                state.problem.question,
                *(f"turn {m.turn}, {m.agent}: {shown_message(m)}" for m in state.messages),
                f"reference: {', '.join(state.problem.answers)}",
            ]
        )


def _same_answer(left: Message, right: Message) -> bool:
    if left.answer is None or right.answer is None or left.right != right.right:
        return False
    # Two right answers are equal: both equal the reference, so nothing has to be compared again.
    return left.right or same(left.answer, right.answer)


def _problems(
    dataset: Source | None, split: str, depth: tuple[int, ...], largest: int
) -> tuple[Callable[[int], MathProblem], int | None]:
    """Function from a task seed to its problem, and the number of problems; None for a generator."""
    split_name = cast(Split, split)
    if dataset is None:
        if len(depth) != 2:
            raise ConfigError(f"depth must be two numbers, fewest and most steps, got {depth}")
        size = (depth[0], depth[1])
        arithmetic.check_size(size, largest)
        return partial(arithmetic.problem, split=split_name, depth=size, largest=largest), None
    if isinstance(dataset, str) and dataset.startswith(PREFIX):
        tasks = ReasoningGym(dataset.removeprefix(PREFIX))
        return partial(tasks.problem, split=split_name), None
    records = load_problems(dataset, split).records
    return partial(_row, records), len(records)


def _row(records: Sequence[MathProblem], seed: int) -> MathProblem:
    return records[seed % len(records)]


# Who is in a team, and who sees whom.


def roles_of_team(*, reasoners: int, tools: int, judge: bool) -> tuple[str, ...]:
    """The roles of a team in the order of their turns: tools, reasoners, judge.

    Raises:
        ConfigError: no agent could give the final answer, or the team is too small or too large.
    """
    members = reasoners + tools
    if (
        min(reasoners, tools) < 0
        or not 0 < members <= MOST_AGENTS - judge
        or reasoners + judge == 0
    ):
        raise ConfigError(
            f"a team has up to {MOST_AGENTS} agents: reasoners or tools, and a reasoner or judge=True for the "
            f"final answer; got reasoners={reasoners}, tools={tools}, judge={judge}"
        )
    return ("tool",) * tools + ("reasoner",) * reasoners + ("judge",) * judge


def seen_by(topology: str, agents: Sequence[str]) -> Mapping[str, frozenset[str]]:
    """Agent -> the agents whose replies it sees beside its own: of this turn, where they came before it, and of all earlier ones.

    Raises:
        ConfigError: an unknown name, or a star without a judge.
    """
    arguments.one_of("topology", topology, TOPOLOGIES)
    if topology == "mesh":
        return {agent: frozenset(agents) - {agent} for agent in agents}
    if topology == "chain":
        return {agent: frozenset(agents[max(0, n - 1) : n]) for n, agent in enumerate(agents)}
    if "judge_0" not in agents:
        raise ConfigError("topology 'star' has a judge at its center; give judge=True, or 'mesh'")
    return {agent: frozenset(agents[:-1] if agent == "judge_0" else ()) for agent in agents}


env = raw_env
"""The environment as PettingZoo users make it."""
