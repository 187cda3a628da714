"""`TeamEnv`: what all environments of this package share: arguments, a sandbox, and how teams are paid.

A team is scored after each reply, and so is the reply itself. If every reply were paid those scores
outright, an episode would earn more the longer it lasts: a team that has succeeded and then refuses to
agree would collect its success again each turn. `Scores` therefore pays differences: the team's score
less the team's score before, and a reply's own score less the score of its author's previous reply
(0 before the first). The sums telescope: the return of an episode holds the team's last score once and
each agent's last score once, and so does every part of it that begins with the episode.

Candidates for one decision share what is subtracted, so that comparing them, as AT-GRPO does, gives
the advantages of the scores themselves. It is the shaping of Ng, Harada, Russell (1999) without discount.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Unpack, get_args

from pettingllms.envs import arguments
from pettingllms.envs.base import Outcome, TextEnv
from pettingllms.sandbox import Case, Limits, RunResult, Sandbox, SandboxSettings, shared_sandbox

Agents = Literal["team", "single"]
Prompt = Literal["full", "small", "compact"]

SMALL_STEPS: Mapping[str, Any] = {
    "learning_rate": 5e-4,
    "num_generations": 16,
    "tasks_per_step": 8,
}
"""Training of the embedded model where it answers after a long working-out, which larger steps destroy."""
FORMAT_PENALTY = 0.1
"""Cost, in local reward, of a reply that cannot be read."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores for which an episode has been paid so far. Kept in the state; never changed in place."""

    team: float = 0.0
    local: Mapping[str, float] = field(default_factory=dict)
    """Agent -> the score of its last reply."""

    def after(self, agent: str, *, team: float, local: float) -> Paid:
        """Pays a reply of `agent` that leaves the team at `team` and is itself worth `local`."""
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


class PromptArguments(arguments.TextArguments, total=False):
    """The arguments that a subclass of `TeamEnv` with `rewards` of its own passes on."""

    prompt: Prompt
    sandbox: Sandbox | SandboxSettings | Mapping[str, Any] | str


class TeamArguments(PromptArguments, total=False):
    """The arguments that every other subclass of `TeamEnv` passes on, as `TextArguments`."""

    rewards: str


class TeamEnv(TextEnv):
    """A `TextEnv` with schemes of rewards, three kinds of prompts, and programs that run.

    Args:
        roles: as in `TextEnv`.
        rewards: one of `schemes`.
        prompt: "full" for language models that follow a format, "small" for pretrained models of up
            to 0.5B parameters (one short instruction, lenient reading), "compact" for the embedded one.
        sandbox: where programs of agents run: a back end such as "embedded" or "docker", or
            `SandboxSettings`, whose sandbox all environments of the process share; or an open
            `Sandbox`. Limits of the settings replace those of the environment and the data set.
        kwargs: as in `TextEnv`.

    Raises:
        ConfigError: an argument that cannot be used.
    """

    schemes: ClassVar[tuple[str, ...]] = ("paper", "sparse")
    default_limits: ClassVar[Limits] = Limits()
    """Of a run, where neither the user nor the data set says another."""
    # Where programs run does not change what they do: an episode may continue with another
    # sandbox.
    interchangeable = TextEnv.interchangeable | {"sandbox"}

    def __init__(
        self,
        *,
        roles: Sequence[str],
        rewards: str = "paper",
        prompt: Prompt = "full",
        sandbox: Sandbox | SandboxSettings | Mapping[str, Any] | str = "embedded",
        **kwargs: Unpack[arguments.TextArguments],
    ) -> None:
        super().__init__(roles=roles, **kwargs)
        self.rewards_scheme = arguments.one_of("rewards", rewards, self.schemes)
        self.prompt = arguments.one_of("prompt", prompt, get_args(Prompt))
        # An open sandbox brings no limits, so that those of the environment remain.
        self._settings = SandboxSettings()
        self._sandbox_is_given = not isinstance(sandbox, SandboxSettings | Mapping | str)
        if isinstance(sandbox, SandboxSettings | Mapping | str):
            self._settings = SandboxSettings.of(sandbox)
        else:
            # Takes the place of the cached property.
            self.sandbox = sandbox
        self.limits = self._settings.limits_over(self.default_limits)
        """Of a run: the user's over those of the environment."""

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out a sandbox that the settings opened: another process opens its own."""
        state = dict(self.__dict__)
        if not self._sandbox_is_given:
            state.pop("sandbox", None)
        return state

    @cached_property
    def sandbox(self) -> Sandbox:
        """The given sandbox, or the process's shared one of the settings."""
        # At the first use, not in the constructor: an environment whose programs never run
        # needs no machine that can isolate them.
        return shared_sandbox(self._settings)

    def _ran(self, programs: Iterable[str], case: Case) -> dict[str, RunResult]:
        """Runs each different program on a case: in one request, each in a process of its own."""
        distinct = list(dict.fromkeys(programs))
        rows = self.sandbox.run(distinct, [case], limits=self.limits) if distinct else []
        return {program: row[0] for program, row in zip(distinct, rows, strict=True)}

    def _paid(self, state: Any, agent: str, local: float, *, success: bool, **rest: Any) -> Outcome:
        """Pays a reply worth `local` by the scheme; `state` is what follows it, with its `scores` before it.

        `rest` are further fields of the outcome.
        """
        # Under "sparse" the team's reward alone remains.
        scored = local if self.rewards_scheme == "paper" else 0.0
        paid = state.scores.after(agent, team=float(success), local=scored)
        after = replace(state, scores=paid.scores)
        return Outcome(state=after, team=paid.team, local=paid.local, success=success, **rest)

    def situation(self, agent: str) -> str | None:  # noqa: ARG002 - the same for all of ours
        """Names the kind of state that an agent is about to act in; None where there are no kinds.

        What it says follows from what the team can see. A router of policies asks
        (`pettingllms.evaluation.ensembles`).
        """
        return self._situation(self._state)

    def _situation(self, state: Any) -> str | None:  # noqa: ARG002 - for environments with kinds
        """Returns the kind of `state`; pure."""
        return None

    def answer(self) -> str | None:
        """Returns what the team answers to a question, in the form of a reply.

        See `pettingllms.envs.questions`. None as long as it has no answer that can be read, and
        where questions make no sense.
        """
        return self._answer(self._state)

    def _answer(self, state: Any) -> str | None:  # noqa: ARG002 - for environments that have one
        """Returns the team's answer in `state`; pure."""
        return None
