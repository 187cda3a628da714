"""`TeamEnv`: the arguments that all environments of this package share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Unpack, get_args

from pettingllms.envs import arguments
from pettingllms.envs.base import TextEnv
from pettingllms.sandbox import Limits, Sandbox, SandboxSettings, shared_sandbox

Agents = Literal["team", "single"]
Prompt = Literal["full", "compact"]


class TeamArguments(arguments.TextArguments, total=False):
    """The arguments that every subclass of `TeamEnv` passes on, as `TextArguments`."""

    rewards: str
    prompt: Prompt
    sandbox: Sandbox | SandboxSettings | Mapping[str, Any] | str


class TeamEnv(TextEnv):
    """A `TextEnv` with schemes of rewards, two kinds of prompts, and programs that run.

    Args:
        roles: as in `TextEnv`.
        rewards: one of `schemes`.
        prompt: "full" for real language models, "compact" for the embedded one.
        sandbox: where programs of agents run: a back end such as "embedded" or "docker", or
            `SandboxSettings`, whose sandbox all environments of the process share; or an open
            `Sandbox`. Limits of the settings replace those of the environment and the data set.
        kwargs: as in `TextEnv`.

    Raises:
        ConfigError: an argument that cannot be used.
    """

    schemes: ClassVar[tuple[str, ...]] = ("paper", "sparse")
    interchangeable: ClassVar[frozenset[str]] = TextEnv.interchangeable | {"sandbox"}

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
        self._settings = SandboxSettings()
        self._sandbox: Sandbox | None = None
        if isinstance(sandbox, SandboxSettings | Mapping | str):
            self._settings = SandboxSettings.of(sandbox)
        else:
            self._sandbox = sandbox

    @property
    def sandbox(self) -> Sandbox:
        """Where programs run: the given sandbox, or the process's shared one of the settings."""
        return shared_sandbox(self._settings) if self._sandbox is None else self._sandbox

    def _limits(self, default: Limits, own: Iterable[tuple[str, float]] = ()) -> Limits:
        """Limits of a run: the user's over those of the data set (`own`) over `default`."""
        return self._settings.limits_over(default, own)

    def answer(self) -> str | None:
        """What the team answers to a question (`pettingllms.envs.questions`), in the form of a reply.

        None as long as it has no answer that can be read, and where questions make no sense.
        """
        return self._answer(self._state)

    def _answer(self, state: Any) -> str | None:  # noqa: ARG002 - for environments that have one
        """Returns the team's answer in `state`; pure."""
        return None
