"""The samples that one policy trains on in a step, and the divisors of its loss."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.per_policy import own_settings
from pettingllms.types import Advantage, Candidate, Group, Sample


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """Completions of one policy, equal ones of a prompt once, with their advantages."""

    samples: tuple[Sample, ...]
    """What the update computes."""
    replies: int
    """What a mean over completions is divided by: completions, or with `loss_norm` roots episodes."""
    tokens: int
    """What a mean over tokens is divided by."""
    groups: int = 0
    silent: int = 0
    """Groups in which all advantages are 0."""
    truncated: int = 0
    """Completions that were cut at the limit and left out."""

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> PolicyBatch:
        """A batch in which every completion counts."""
        replies = sum(sample.count for sample in samples)
        tokens = sum(sample.count * len(sample.token_ids) for sample in samples)
        return cls(tuple(samples), replies, tokens)

    @staticmethod
    def silent_share(batches: Collection[PolicyBatch]) -> float:
        """Share of groups without variance; 1 without any group: there is nothing to learn from either."""
        groups = sum(batch.groups for batch in batches)
        return sum(batch.silent for batch in batches) / groups if groups else 1.0

    @property
    def metrics(self) -> dict[str, float]:
        """The logged numbers of groups compared and completions left out."""
        return {
            "groups": float(self.groups),
            "frac_reward_zero_std": self.silent_share([self]),
            "dropped_truncated": float(self.truncated),
        }


def policy_batches(
    config: ResolvedConfig, policies: Iterable[str], groups: Sequence[Group]
) -> dict[str, PolicyBatch]:
    """Sorts completions with advantages by policy.

    A group whose advantages are all 0 moves nothing by itself. With `silent_groups="drop"` it is
    left out, also of what the loss is divided by. With "count" it counts as it does in TRL: in the
    means, and in the KL and entropy terms if there are any; only then is it computed.

    A completion left out because it was cut at the limit has no tokens in the means over tokens; in
    means over completions it counts with "count", as in TRL, and not with "drop".

    With `loss_norm` roots a mean over completions is divided by the step's episodes instead: one
    with more calls weighs more, and one without any counts for the workers as well.
    """
    keep = config.silent_groups == "count"
    roots = len({(g.key.task, g.key.episode) for g in groups if keep or not _quiet(g)})
    batches = {}
    for policy in policies:
        settings = own_settings(config, policy)
        needed = keep and (settings.beta != 0 or settings.entropy_coef != 0)
        batches[policy] = _batch(config, policy, groups, keep, needed, roots)
    return batches


def _batch(
    config: ResolvedConfig,
    policy: str,
    groups: Sequence[Group],
    keep: bool,
    needed: bool,
    roots: int,
) -> PolicyBatch:
    samples: list[Sample] = []
    replies = tokens = silent = cut = 0
    masked = config.mask_truncated_completions
    turns = config.turns
    played = [g for g in groups if g.policy == policy and (turns is None or g.key.turn in turns)]
    for group in played:
        quiet = _quiet(group)
        silent += quiet
        if quiet and not keep:
            continue
        counted = [c for c in group.candidates if not (masked and c.completion.truncated)]
        left_out = len(group.candidates) - len(counted)
        cut += left_out
        # Candidates are counted before equal ones are merged: each was drawn, and each is in the
        # mean.
        replies += len(counted) + (left_out if keep else 0)
        tokens += sum(len(candidate.completion.token_ids) for candidate in counted)
        if needed or not quiet:
            samples += _merged(group, counted)
    if config.loss_norm == "roots":
        replies = roots
    return PolicyBatch(tuple(samples), replies, tokens, len(played), silent, cut)


def _quiet(group: Group) -> bool:
    # An advantage may be a number or one for each token, and `np.any` reads both.
    return not any(np.any(candidate.advantage or 0.0) for candidate in group.candidates)


def _merged(group: Group, candidates: Sequence[Candidate]) -> Iterable[Sample]:
    """One sample for equal completions, which earned the same: computed once, and counted."""
    merged: dict[tuple[tuple[int, ...], Advantage], Sample] = {}
    for candidate in candidates:
        completion, advantage = candidate.completion, candidate.advantage or 0.0
        ids = completion.token_ids
        # In a forest the same text is continued several times, and each time may earn something
        # else.
        same = (ids, advantage)
        count = merged[same].count + 1 if same in merged else 1
        merged[same] = Sample(
            group.prompt_ids, ids, completion.logprobs, advantage, count, group.key.role
        )
    return merged.values()
