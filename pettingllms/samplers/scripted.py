"""Completions from a script in place of a model: for tests, tutorials and fixed opponents.

A `ScriptedSampler` works wherever a rollout or an evaluation takes a sampler, without loading a
model. Tokens are UTF-8 bytes, every log-probability is 0, and a policy is named after its role.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Unpack

from pettingllms.errors import ConfigError, UnknownNameError, did_you_mean
from pettingllms.names import role_of
from pettingllms.samplers.base import SampleSettings
from pettingllms.types import Completion, Request

END = 256
"""Ends a completion that is not truncated; the first token id that is not a byte."""
Script = Callable[[str, str, int], str] | Mapping[str, Sequence[str]]


class ScriptedSampler:
    """Completes prompts with given texts.

    Args:
        script: a function of the policy, the prompt's text and the candidate's seed, or a mapping
            from each role to its texts. Texts are used in the order of the requests, and start over
            at the end of the list. Only a function gives results that do not depend on how a
            rollout forms its batches.
        continuous: let a rollout form batches from whatever is ready.

    Raises:
        ConfigError: a role without texts.
    """

    def __init__(self, script: Script, *, continuous: bool = False) -> None:
        if not callable(script):
            for role, texts in script.items():
                if isinstance(texts, str) or not texts:
                    raise ConfigError(
                        f"the script of role {role!r} must be a list of at least one text, "
                        f"got {texts!r}"
                    )
        self.continuous = continuous
        self._script = script
        self._used: dict[str, int] = {}

    def policy_for(self, role: str) -> str:
        """The name of the role, also for one of its agents.

        Raises:
            UnknownNameError: the script is a mapping without this role.
        """
        role = role_of(role)
        if not callable(self._script) and role not in self._script:
            raise UnknownNameError(
                f"the script has no role {role!r}; {did_you_mean(role, self._script)}"
            )
        return role

    def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
        """The bytes of an observation."""
        self.policy_for(role)
        return tuple(text.encode("utf-8", "surrogatepass"))

    def sample(
        self, requests: Sequence[Request], n: int, **settings: Unpack[SampleSettings]
    ) -> list[list[Completion]]:
        """The next `n` texts for every request; candidate k has the request's seed plus k.

        Texts longer than `max_new_tokens` bytes are truncated. The other settings have no effect:
        a script is not a distribution.
        """
        most = settings["max_new_tokens"]
        return [
            [self._completion(request, request.seed + k, most) for k in range(n)]
            for request in requests
        ]

    def _completion(self, request: Request, seed: int, max_new_tokens: int) -> Completion:
        # surrogatepass, because tests script texts that are no UTF-8, as models may write them.
        token_ids = (*self._text(request, seed).encode("utf-8", "surrogatepass"), END)
        truncated = len(token_ids) > max_new_tokens
        if truncated:
            token_ids = token_ids[:max_new_tokens]
        text = bytes(token for token in token_ids if token != END)
        return Completion(
            prompt_ids=request.prompt_ids,
            token_ids=token_ids,
            logprobs=(0.0,) * len(token_ids),
            # A cut inside a character leaves bytes that are not a text.
            text=text.decode("utf-8", "replace" if truncated else "surrogatepass"),
            truncated=truncated,
            version=0,
        )

    def _text(self, request: Request, seed: int) -> str:
        if callable(self._script):
            prompt = bytes(request.prompt_ids).decode("utf-8", "surrogatepass")
            return self._script(request.policy, prompt, seed)
        texts = self._script[request.policy]
        used = self._used.get(request.policy, 0)
        self._used[request.policy] = used + 1
        return texts[used % len(texts)]
