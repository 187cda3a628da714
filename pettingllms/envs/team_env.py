"""`TeamEnv`: the arguments that all environments of this package share."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

from pettingllms.envs import arguments
from pettingllms.envs.base import TextEnv
from pettingllms.sandbox import BACKENDS, Sandbox, shared_sandbox

Agents = Literal["team", "single"]
Prompt = Literal["full", "compact"]


class TeamEnv(TextEnv):
    """A `TextEnv` with schemes of rewards, two kinds of prompts, and programs that run.

    Args:
        rewards: one of `schemes`.
        prompt: "full" for real language models, "compact" for the embedded one.
        sandbox: where programs of agents run: "embedded" or "docker", shared by all
            environments of the process, or a `Sandbox` of your own.
        kwargs: as in `TextEnv`.

    Raises:
        ConfigError: an argument that cannot be used.
    """

    schemes: ClassVar[tuple[str, ...]] = ("paper", "sparse")

    def __init__(
        self,
        *,
        rewards: str = "paper",
        prompt: Prompt = "full",
        sandbox: Sandbox | str = "embedded",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rewards_scheme = arguments.one_of("rewards", rewards, self.schemes)
        self.prompt = arguments.one_of("prompt", prompt, get_args(Prompt))
        if isinstance(sandbox, str):
            arguments.one_of("sandbox", sandbox, BACKENDS)
        self._sandbox = sandbox

    @property
    def sandbox(self) -> Sandbox:
        """Where programs run: the given sandbox, or the process's shared one of that back end."""
        given = self._sandbox
        return shared_sandbox(given) if isinstance(given, str) else given
