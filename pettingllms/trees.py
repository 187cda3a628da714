"""Rows of trees.jsonl: every group of a step, with all that decided about its candidates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pettingllms.trainers.advantages import advantages
from pettingllms.trainers.at_grpo import ATGRPOTrainer
from pettingllms.types import Group


def rows(step: int, groups: Sequence[Group], trainer: ATGRPOTrainer) -> Iterator[dict[str, Any]]:
    """One row a group.

    `prompt` is what the policy read, control tokens included. A candidate's `logprob` is the sum
    over its `tokens`; its `advantage` is 0 where it carried no signal.
    """
    decode = trainer.policies.chat.tokenizer.decode
    for group, values in zip(groups, advantages_of(trainer, groups), strict=True):
        yield {
            "step": step,
            **group.key._asdict(),
            "policy": group.policy,
            "version": group.candidates[0].reply.version,
            "prompt": decode(list(group.prompt_ids)),
            "prompt_ids": list(group.prompt_ids),
            "candidates": [
                {
                    "text": candidate.reply.text,
                    "tokens": len(candidate.reply.token_ids),
                    "finished": candidate.reply.finished,
                    "logprob": sum(candidate.reply.logprobs),
                    "reward": candidate.reward,
                    "team_reward": candidate.team_reward,
                    "local_reward": candidate.local_reward,
                    "advantage": value,
                    "chosen": candidate.chosen,
                    "info": dict(candidate.info),
                }
                for candidate, value in zip(group.candidates, values, strict=True)
            ],
        }


def advantages_of(trainer: ATGRPOTrainer, groups: Sequence[Group]) -> list[list[float]]:
    """The advantage of each candidate, as the trainer computes it; 0 where it has no signal."""
    compared = [not trainer.tree or group.policy in trainer.trained for group in groups]
    config = trainer.config
    values = iter(
        advantages(
            [group for group, is_in in zip(groups, compared, strict=True) if is_in],
            config.estimator,
            config.scale_rewards,
        ).tolist()
    )
    return [
        [next(values) if is_in else 0.0 for _ in group.candidates]
        for group, is_in in zip(groups, compared, strict=True)
    ]


def success_of(groups: Sequence[Group]) -> float | None:
    """Share of games whose last executed reply left the task solved; None where nobody says.

    Where the best of K is executed at every move, this is above what single replies reach:
    `success/<role>` and the validations say that.
    """
    last: dict[tuple[str, int], bool | None] = {}
    for group in groups:
        for candidate in group.candidates:
            if candidate.chosen:
                last[group.key.task, group.key.episode] = candidate.info.get("success")
    known = [bool(success) for success in last.values() if success is not None]
    return sum(known) / len(known) if known else None
