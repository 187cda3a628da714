"""An inference engine of another package: every completion is the same tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pettingllms.samplers.base import (
    SampledTokens,
    SamplerSettings,
    SamplingParams,
    ServedPolicies,
)
from pettingllms.types import Request


class Parrot:
    """Completes every prompt with its own tokens."""

    continuous = False

    def __init__(self) -> None:
        self.versions: Mapping[str, int] = {}
        self.closed = False

    def publish(self, policy: str, version: int) -> None:
        self.versions = {**self.versions, policy: version}

    def sample(
        self, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> list[list[SampledTokens]]:
        return [[self._one(request, params)] * n for request in requests]

    def _one(self, request: Request, params: SamplingParams) -> SampledTokens:
        ids = request.prompt_ids[: params.max_new_tokens]
        return SampledTokens(ids, (-1.0,) * len(ids), truncated=True)

    def close(self) -> None:
        self.closed = True


def open_engine(served: ServedPolicies, settings: SamplerSettings) -> Parrot:
    assert settings.name == "tests.own_engine:open_engine"
    assert served.lora_rank == 2
    return Parrot()
