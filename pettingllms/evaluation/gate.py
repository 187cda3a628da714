"""ReAd: a reply whose advantage is below a threshold is refused, and its agent is asked again.

After the abstract and the project page of Zhang et al., https://arxiv.org/abs/2405.14314; we have not read the full text.

    A(o, a) = Q(o, a) - Q(o, WAIT),   played: the first a with A >= threshold, else the best of those asked

A team's agents act one after the other, and o holds what was said before, so the A of a turn add up to the joint
advantage. WAIT is an empty reply. Q is learned as in the paper, by regression on the returns of recorded play.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pettingllms.data.rows import digest
from pettingllms.errors import ConfigError
from pettingllms.evaluation.compare import read_side
from pettingllms.evaluation.config import EvalConfig
from pettingllms.evaluation.ensembles import Wrapper
from pettingllms.methods.critic import Critics
from pettingllms.names import is_partner
from pettingllms.rollout.engine import longest_prompts
from pettingllms.rollout.files import TRAJECTORIES
from pettingllms.rollout.trajectory import Trajectory, in_order
from pettingllms.samplers.base import Sampler
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.types import Completion, Request, with_text

if TYPE_CHECKING:
    from pettingllms.evaluation.run import EvalPlan

REFUSED = (
    "\n\nYour earlier answers were refused, because their advantage was too low:\n{}\n"
    "Give an answer with a higher advantage."
)
OPTIONS = ("gate", "gate_replies", "gate_threshold", "gate_feedback")
Tried = list[tuple[Completion, float]]
"""Replies to a prompt with their advantages."""


class Gated(Wrapper):
    """A team whose replies may be refused: has the hooks of `Ensemble`, and is the sampler that asks again.

    Critics learn from `record`. Records of play have the prompt as it was first asked, and the refused replies in the
    info of the one that was played.
    """

    seats, route = dict[str, str](), None

    def __init__(
        self, options: EvalConfig, config: ResolvedConfig, record: Sequence[Trajectory]
    ) -> None:
        self._options, self._config, self._record = options, config, record
        self.replies, self.threshold = options.gate_replies, options.gate_threshold
        self._texts: dict[tuple[str, tuple[int, ...]], tuple[str, str]] = {}
        """Policy and prompt tokens -> the role, and what the tokens are of."""

    def described(self) -> dict[str, Any]:
        """Returns the options as JSON has them, with a digest of what the critics learn from."""
        record = digest(Path(str(self._options.gate)) / TRAJECTORIES)
        return {name: getattr(self._options, name) for name in OPTIONS} | {"record": record}

    def sampler(self, policies: Sampler) -> Sampler:
        """Returns this gate before `policies`, which its critics have learned to read."""
        if getattr(self, "_policies", None) is not policies:
            super().__init__(policies)
            self.learn(policies)
        return self

    def learn(self, policies: Any) -> None:
        """Regression of Q on what each recorded reply earned and what followed it.

        Play has no empty replies. WAIT changes nothing, so Q(o, WAIT) is the mean of what followed in o.
        """
        self.critics = Critics(self._config, by_policy=True, learning_rate=1e-3, epochs=30)
        groups = in_order(self._record)
        rows = [
            (policies.policy_for(group.key.agent), [group.prompt_ids, group.prompt_ids + ids])
            for group in groups
            for ids in (group.chosen.completion.token_ids[:-1], ())
        ]
        returns_N = torch.tensor([group.episode_return - group.earlier for group in groups])
        self.critics.fit(self.critics.features(policies, rows), returns_N.repeat_interleave(2))

    def advantages(
        self, policies: Any, requests: Sequence[Request], replies: Sequence[Completion]
    ) -> list[float]:
        """A of the reply to each request, which the critics read with `policies`."""
        waiting = [(request.policy, request.prompt_ids, ()) for request in requests]
        # The last token of a reply ends the turn.
        said = [(*w[:2], a.token_ids[:-1]) for w, a in zip(waiting, replies, strict=True)]
        rows = {text: row for row, text in enumerate(dict.fromkeys([*said, *waiting]))}
        texts = [(p, [prompt, prompt + ids]) for p, prompt, ids in rows]
        q = self.critics.values(self.critics.features(policies, texts)).tolist()
        return [q[rows[text]] - q[rows[wait]] for text, wait in zip(said, waiting, strict=True)]

    def prompt_ids(self, role: str, text: str) -> tuple[int, ...]:
        """Returns what the policies return, and remembers the text."""
        ids = super().prompt_ids(role, text)
        self._texts[self.policy_for(role), ids] = role, text
        return ids

    def sample(
        self, requests: Sequence[Request], n: int, **settings: Any
    ) -> list[list[Completion]]:
        """The reply that is played for every request; `n` is 1 in evaluations."""
        unsettled = decisions = [(request, Tried()) for request in requests]
        while unsettled and len(unsettled[0][1]) < self.replies:
            asked = [self._again(*decision, settings["max_new_tokens"]) for decision in unsettled]
            replies = [reply for [reply] in self._policies.sample(asked, n, **settings)]
            advantages = self.advantages(self._policies, [r for r, _ in unsettled], replies)
            for (_, tried), reply, advantage in zip(unsettled, replies, advantages, strict=True):
                tried.append((reply, advantage))
            unsettled = [decision for decision in unsettled if decision[1][-1][1] < self.threshold]
        return [[_played(*decision)] for decision in decisions]

    def _again(self, request: Request, refused: Tried, max_new_tokens: int) -> Request:
        if not refused:
            return request
        policy, ids = request.policy, request.prompt_ids
        if self._options.gate_feedback:
            role, prompt = self._texts[policy, ids]
            tried = "\n".join(f"{a:+.2f}: {reply.text.strip()}" for reply, a in refused)
            told = super().prompt_ids(role, with_text(prompt, behind=REFUSED.format(tried)))
            longest = longest_prompts(self._policies, max_new_tokens).get(policy, len(told))
            ids = told if len(told) <= longest else ids
        # Replies draw apart: with equal numbers, equal prompts would have equal ones.
        return Request(policy, ids, (request.seed + len(refused)) % (1 << 62))


def _played(request: Request, tried: Tried) -> Completion:
    """The best reply, the first of equals: one that passes is better than all before it."""
    best, advantage = max(tried, key=lambda rated: rated[1])
    others = [{"completion": o.text, "advantage": a} for o, a in tried if o is not best]
    tokens = sum(len(reply.token_ids) for reply, _ in tried)
    notes = {"gate_advantage": advantage, "gate_tokens": tokens, "gate_refused": others}
    return replace(best, prompt_ids=request.prompt_ids, notes=notes)


def with_gate(plan: EvalPlan, options: EvalConfig) -> EvalPlan:
    """The plan, with the gated team after the others if the settings ask for it.

    Raises:
        ConfigError: settings of a gate without one, what no critic can read, or a record of other tasks or models.
        RunFolderError, UnknownNameError: no finished evaluation there, or without the team.
    """
    if options.gate is None:
        for name in OPTIONS:
            if getattr(options, name) != getattr(EvalConfig, name):
                raise ConfigError(f"{name} is for a gate; name what its critic learns from: --gate")
        return plan
    config, team = plan.config, plan.teams[-1]
    if config.workers or config.full or any(map(is_partner, plan.roles_to_policies.values())):
        raise ConfigError(
            "gate needs a single process, a frozen base, and local models; leave out --workers, --full, and "
            "models behind an API"
        )
    record, ours = read_side(f"{options.gate}:{team.title}"), plan.settings()
    env, model, split = (record.settings.get(name) for name in ("env", "model", "split"))
    if (env, model) != (ours["env"], ours["model"]) or split == plan.split:
        raise ConfigError(
            f"gate {options.gate} is a record of {env} by {model} on the split {split}; a critic of this team needs "
            f"one of {ours['env']} by {ours['model']} on another split than {plan.split}: --split train"
        )
    gated = Gated(options, config, record.episodes[team.title])
    return replace(plan, teams=[*plan.teams, team._replace(title="gated", ensemble=gated)])
