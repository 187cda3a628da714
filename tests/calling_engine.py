"""An inference engine whose model would call tools: it chooses replies by rules, with the policy's log-probabilities.

The embedded model was never shown a tool. Here every second completion of a request is what a capable model
would reply, so that handoffs and tools run; the others are the number 0, which earns nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoTokenizer

from pettingllms.models import EMBEDDED
from pettingllms.samplers.base import (
    SampledTokens,
    SamplerSettings,
    SamplingParams,
    ServedPolicies,
)
from pettingllms.samplers.transformers import BatchGenerator, TransformersEngine
from pettingllms.types import Request

_TOKENIZER = AutoTokenizer.from_pretrained(EMBEDDED)


def _call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def _reply(prompt: str) -> str:
    """Adds with the first tool that is there for it, then says what came out."""
    tools, _, turns = prompt.rpartition("</tools>")
    latest = turns.rpartition("<|im_start|>")[0].rpartition("<|im_start|>")[2]
    handoff = "{"  # of the Agents SDK's result
    if latest.startswith(("tool\n", "user\nObservation:")) and handoff not in latest:
        return _call("final_answer", answer="5") if '"final_answer"' in tools else "5"
    right: dict[str, dict[str, Any]] = {
        "add": {"a": 2, "b": 3},
        "transfer_to_solver": {},
        "solver": {"task": "What is 2 + 3?"},
    }
    for name, arguments in right.items():
        if f'"name": "{name}"' in tools:
            return _call(name, **arguments)
    return "5"


class Calling(TransformersEngine):
    """Scores replies that follow from the prompt."""

    @torch.no_grad()
    def sample(
        self, requests: Sequence[Request], n: int, params: SamplingParams
    ) -> list[list[SampledTokens]]:
        return [
            [self._scored(request, right=(request.seed + k) % 2 == 0) for k in range(n)]
            for request in requests
        ]

    def _scored(self, request: Request, *, right: bool) -> SampledTokens:
        text = _reply(str(_TOKENIZER.decode(list(request.prompt_ids)))) if right else "0"
        reply = _TOKENIZER.encode(f"{text}{_TOKENIZER.eos_token}")
        ids = torch.tensor([[*request.prompt_ids, *reply]])
        logits = self._weights.sampling_module(request.policy)(ids).logits[0, -len(reply) - 1 : -1]
        logprobs = logits.float().log_softmax(-1)[range(len(reply)), reply]
        return SampledTokens(tuple(reply), tuple(logprobs.tolist()), truncated=False)


def open_engine(served: ServedPolicies, settings: SamplerSettings) -> Calling:
    generator = BatchGenerator(served.end_ids, served.pad_id, settings.tokens_per_batch)
    return Calling(served.weights, generator)
