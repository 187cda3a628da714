"""What the transformers sampler keeps of a conversation between its turns.

The next prompt of a conversation begins with the one before. Its keys and values are computed from where they
part: the reply, which one pass computes in a fraction of the time that drawing it took, and what is new.

A memory lives in an episode, so that what it has kept depends on the decisions of that episode, on the room of its
batches and on nothing else: a rollout has the same bytes in one process, on workers, and in a resumed run. Against
computing a prompt anew, log-probabilities differ by the rounding of batched matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    States = Mapping[int, tuple[torch.Tensor, torch.Tensor]]
    """Layer -> keys and values of a text, `_1hPD`."""


class Memory:
    """The latest prompt of a conversation, with its keys and values once it has been sampled from."""

    def __init__(self) -> None:
        self._owner: Any = None
        self.prompt_ids: tuple[int, ...] = ()
        self.states: States | None = None

    def of(self, owner: Any) -> Memory:
        """This memory, without what other weights than those of `owner` have computed."""
        if owner != self._owner:
            self._owner = owner
            self.keep((), None)
        return self

    def beginning(self, prompt_ids: tuple[int, ...]) -> States | None:
        """What is known of a longer prompt, None unless it begins with the one kept."""
        kept = self.prompt_ids
        begins = len(kept) < len(prompt_ids) and prompt_ids[: len(kept)] == kept
        return self.states if begins else None

    def keep(self, prompt_ids: tuple[int, ...], states: States | None) -> None:
        """Takes a prompt in place of the one before."""
        self.prompt_ids, self.states = prompt_ids, states
