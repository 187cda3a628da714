"""Metrics logged for a step, under TRL's names where TRL has one.

Of the rollout: `reward`, `reward_std` (mean over groups), `reward/<role>`, `team_reward/<role>`,
`local_reward/<role>`, `first_local_reward/<role>` (of all candidates of its first turn; see `gaps`), `return` (what an episode earned the team) or, without a team reward,
`return/<agent>`, `success/<role>` (share of replies after which the team has succeeded),
`parse_error/<role>` (share), `completions/mean_length`, `completions/clipped_ratio` (share cut at
the limit), `num_tokens` (generated), `turns` (mean decisions of an episode),
`overlong` (share of episodes that a prompt without room in the model's context ended; absent if none),
`conversation/continued` (decisions whose messages go on from an earlier decision of their policy; absent if none) and
`conversation/broken` (those of them whose tokens do not, because the template or the program rewrote the reply; they
share no row with it in the update).

Of each policy's update, as `<policy>/<name>`: `loss` (mean of the optimizer steps), `grad_norm` (before clipping) and
`learning_rate` (both of the last one), `entropy` (nats a token), `kl` (to base, where beta > 0), `clip_ratio/low_mean`, `.../high_mean`,
`.../region_mean` (share of tokens), `groups`, `frac_reward_zero_std` (share of groups without variance, 1 if there is no group; also of all policies, without a prefix), `dropped_truncated` (replies),
`sampling/sampling_logp_difference/mean` and `/max` (nats between the sampler's log-probabilities and the trainer's on the
same tokens and weights), `sampling/kl` (of the trainer from the sampler, nats a token; a sampler that differs is seen here).

Of time: `time/sample`, `time/score` (environment and sandbox), `time/update`, `time/step` in seconds and
`tokens_per_second` (generated, over the whole step). Of programs `time/replay`, which is in `time/score`: the sum over
replays, of which several run side by side; absent with `--workers`.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from pettingllms.errors import NonFiniteError
from pettingllms.rollout.trajectory import Trajectory, in_order
from pettingllms.types import Candidate, Conversation, Group

if TYPE_CHECKING:
    from pettingllms.policies.packing import Batch

Metrics = dict[str, float]
"""Name -> value, as in metrics.jsonl."""


class Clock:
    """Wall seconds of the parts of a step."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._spent: Metrics = defaultdict(float)

    @contextlib.contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the time of the block to `part`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(part, time.perf_counter() - started)

    def add(self, part: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere to `part`."""
        self._spent[part] += seconds

    def metrics(self, tokens: int) -> Metrics:
        """Seconds by part, and tokens a second of the `tokens` that were generated."""
        total = time.perf_counter() - self._started
        parts = {f"time/{phase}": seconds for phase, seconds in self._spent.items()}
        return parts | {"time/step": total, "tokens_per_second": tokens / total}


def generated_tokens(groups: Sequence[Group]) -> int:
    """Tokens sampled for all candidates of all groups, and for looking ahead from them."""
    candidates = [candidate for group in groups for candidate in group.candidates]
    ahead = sum(candidate.later.tokens for candidate in candidates if candidate.later)
    return ahead + sum(len(candidate.completion.token_ids) for candidate in candidates)


def rollout_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Rewards, successes, errors and lengths of a rollout."""
    groups = in_order(trajectories)
    by_role: dict[str, list[Candidate]] = defaultdict(list)
    for group in groups:
        by_role[group.key.role] += group.candidates
    everything = [candidate for candidates in by_role.values() for candidate in candidates]
    # What a model behind an API wrote has no tokens of ours.
    lengths = [n for c in everything if (n := len(c.completion.token_ids))]
    # Also those of copies in which agents were blanked.
    tokens = generated_tokens(groups) + sum(w.tokens for t in trajectories for w in t.without)
    metrics = {
        "reward": mean([c.reward for c in everything]),
        "reward_std": mean([_deviation(group) for group in groups]),
        "completions/mean_length": mean(lengths),
        "completions/clipped_ratio": mean([c.completion.truncated for c in everything]),
        "num_tokens": float(tokens),
        "turns": len(groups) / len(trajectories),
    }
    if any(trajectory.overlong is not None for trajectory in trajectories):
        metrics["overlong"] = mean([trajectory.overlong is not None for trajectory in trajectories])
    metrics |= _conversations(trajectories)
    returns: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.cooperative:
            returns["return"].append(sum(trajectory.returns.values()))
        else:
            for agent, value in trajectory.returns.items():
                returns[f"return/{agent}"].append(value)
    metrics |= {name: mean(values) for name, values in returns.items()}
    first: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        if group.key.turn == 0:
            first[group.key.role] += [c.local_reward for c in group.candidates]
    metrics |= {f"first_local_reward/{role}": mean(values) for role, values in first.items()}
    for role, candidates in by_role.items():
        metrics[f"reward/{role}"] = mean([c.reward for c in candidates])
        metrics[f"team_reward/{role}"] = mean([c.team_reward for c in candidates])
        metrics[f"local_reward/{role}"] = mean([c.local_reward for c in candidates])
        metrics[f"success/{role}"] = mean([bool(c.info.get("success")) for c in candidates])
        metrics[f"parse_error/{role}"] = mean(
            [c.info.get("parse_error") is not None for c in candidates]
        )
    return metrics


def _conversations(trajectories: Sequence[Trajectory]) -> Metrics:
    """Counts the decisions that continue a conversation, and those whose tokens do not."""
    continued = broken = 0
    for trajectory in trajectories:
        for number, group in enumerate(trajectory.groups):
            prompt = group.prompt
            if not isinstance(prompt, Conversation):
                continue
            for earlier in reversed(trajectory.groups[:number]):
                if earlier.policy == group.policy and prompt.continues(earlier.prompt):
                    turn = earlier.prompt_ids + earlier.chosen.completion.token_ids
                    continued += 1
                    broken += group.prompt_ids[: len(turn)] != turn
                    break
    if not continued:
        return {}
    return {"conversation/continued": float(continued), "conversation/broken": float(broken)}


def gaps(rows: Sequence[Mapping[str, object]], scores: Mapping[str, float]) -> Metrics:
    """Returns as `gap/<role>` how much more first replies earned in training than in validation.

    Training continues from one of K candidates, so that a role may be shown what its teammates say
    at their best. A policy that learns to rely on that earns more here than where nothing is chosen: a gap
    that grows while the validation falls is such a leak.
    """
    by_role = {}
    for name, value in scores.items():
        role = name.removesuffix("/first_local_reward")
        train = [row[key] for row in rows if (key := f"first_local_reward/{role}") in row]
        earned = [reward for reward in train if isinstance(reward, float)]
        if role != name and earned:
            by_role[f"gap/{role}"] = mean(earned) - value
    return by_role


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0 of nothing."""
    return float(sum(values) / len(values)) if values else 0.0


def _deviation(group: Group) -> float:
    rewards = torch.tensor([candidate.reward for candidate in group.candidates])
    # PyTorch's deviation of a single number is NaN.
    return rewards.std().item() if len(rewards) > 1 else 0.0


class LossMeter:
    """Adds up what the micro-batches of one policy's update report."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.on_policy = True
        """Whether the weights are still those that sampled: only then do log-probabilities agree."""
        self._sums: dict[str, torch.Tensor] = {}
        self._tokens = 0.0
        self._worst = 0.0
        self._steps = 0

    def add(
        self,
        bounds: tuple[float, float],
        batch: Batch,
        logp_BT: torch.Tensor,
        ratio_BT: torch.Tensor,
        entropy_BT: torch.Tensor | None,
        kl_BT: torch.Tensor | None,
        loss: torch.Tensor,
    ) -> None:
        """Take note of one micro-batch; every token counts as often as its reply was drawn.

        `bounds` are the ratios beyond which the loss cuts a gradient.
        """
        low, high = bounds
        weight_BT = batch.mask_BT * batch.counts_B[:, None]
        low_BT = (ratio_BT < low) & (batch.advantages_BT < 0)
        high_BT = (ratio_BT > high) & (batch.advantages_BT > 0)
        gap_BT = (logp_BT - batch.old_logprobs_BT).abs() * batch.mask_BT
        sums = {
            "clip_ratio/low_mean": low_BT * weight_BT,
            "clip_ratio/high_mean": high_BT * weight_BT,
            "clip_ratio/region_mean": (low_BT | high_BT) * weight_BT,
        }
        # After the first of several optimizer steps the two differ because the weights do, which
        # says nothing about the sampler.
        if self.on_policy:
            apart_BT = (logp_BT - batch.old_logprobs_BT) * batch.mask_BT
            kl_gap_BT = torch.expm1(apart_BT) - apart_BT  # the estimator that the loss has for beta
            sums |= {
                "gap": gap_BT * weight_BT,
                "gap_kl": kl_gap_BT * weight_BT,
                # Its own count: `_tokens` has the tokens of later optimizer steps, too.
                "gap_tokens": weight_BT,
            }
            self._worst = max(self._worst, gap_BT.detach().max().item())
        if entropy_BT is not None:
            sums["entropy"] = entropy_BT * weight_BT
        if kl_BT is not None:
            sums["kl"] = kl_BT * weight_BT
        for name, value in sums.items():
            # Detached, so that the meter does not keep the micro-batch's graph in memory.
            self._sums[name] = self._sums.get(name, torch.zeros(())) + value.detach().sum().cpu()
        self._sums["loss"] = self._sums.get("loss", torch.zeros(())) + loss.detach().cpu()
        self._tokens += weight_BT.sum().item()

    def stepped(self) -> None:
        """Takes note of an optimizer step: what follows is of other weights."""
        self.on_policy = False
        self._steps += 1

    def take_over(self, other: LossMeter) -> None:
        """Adds what a meter of another rank's micro-batches saw."""
        for name, value in other._sums.items():
            self._sums[name] = self._sums.get(name, torch.zeros(())) + value
        self._tokens += other._tokens
        self._worst = max(self._worst, other._worst)

    def check_finite(self, what: str, value: torch.Tensor) -> None:
        """Stops before a loss or gradient that is not finite reaches the weights.

        Raises:
            NonFiniteError: it is not finite; names the policy.
        """
        if not torch.isfinite(value):
            cure = "lower learning_rate, or look for extreme rewards in trajectories.jsonl"
            raise NonFiniteError(f"the {what} of policy {self.policy!r} is {value.item()}; {cure}")

    def metrics(self, grad_norm: float, learning_rate: float) -> Metrics:
        """Means over tokens; the loss is the sum of its parts, and the mean over optimizer steps."""
        means = {
            name: total.item() / self._tokens
            for name, total in self._sums.items()
            if name not in _TOTALS
        }
        gap = "sampling/sampling_logp_difference"
        return means | {
            "loss": self._sums["loss"].item() / max(1, self._steps),
            f"{gap}/mean": self._sums["gap"].item() / self._sums["gap_tokens"].item(),
            f"{gap}/max": self._worst,
            "sampling/kl": self._sums["gap_kl"].item() / self._sums["gap_tokens"].item(),
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
        }


_TOTALS = ("loss", "gap", "gap_kl", "gap_tokens")
