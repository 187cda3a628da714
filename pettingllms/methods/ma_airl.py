"""A reward learned from a solver's episodes, by telling its replies from those of the policies.

MA-AIRL (Yu et al. 2019, https://arxiv.org/abs/1907.13220): the adversarial inverse reinforcement learning of Fu et al. 2018
(https://arxiv.org/abs/1710.11248) with a discriminator for each agent. AT-GRPO needs no critic, so its attention critic is not built.

Shapes: `_N` replies, `_F` features of a reply: of o, of (o, a), of o', gamma (0 where o' is not there), and log pi.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from pettingllms.envs.base import next_agent
from pettingllms.errors import ConfigError
from pettingllms.methods.critic import Critic, CriticMethod, Critics, Network
from pettingllms.rollout.episode import Episode, PlayedEnv, tasks_of_step
from pettingllms.rollout.trajectory import Trajectory
from pettingllms.trainers.at_grpo import AtGrpo
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import argument, repaid
from pettingllms.types import Candidate, Group, GroupKey, Sample

LIMIT = 10.0
"""Bound of |f| and |log pi|: without it, a long random reply would earn more than a right one."""


class Reply(NamedTuple):
    """Token ids of a prompt o, a reply a, and the prompt o' of the agent that acts next."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    next_ids: tuple[int, ...]
    """Empty at the end of an episode, and where the policy's context has no room for it."""


class Discriminator(torch.nn.Module):
    """Predicts r, of which D is the sigmoid; g and h start at 0."""

    def __init__(self, size: int, seed: int) -> None:
        super().__init__()
        self.size = size
        self.g, self.h = Network(size // 3, seed), Network(size // 3, seed + 1)

    def forward(self, features_NF: torch.Tensor) -> torch.Tensor:
        """Returns r, `_N`."""
        o, oa, after = features_NF[:, :-2].chunk(3, dim=1)
        gamma_N, logp_N = features_NF[:, -2], features_NF[:, -1]
        f_N: torch.Tensor = self.g(oa) + gamma_N * self.h(after) - self.h(o)
        return f_N.clamp(-LIMIT, LIMIT) - logp_N.clamp(-LIMIT, 0.0)


class Discriminators(Critics):
    """One discriminator for each role and policy."""

    def _new(self, name: str, size: int) -> Critic:
        seed = random.Random(f"{self._config.seed} {name}").getrandbits(31)
        return Critic(Discriminator(size, seed), str(seed), **self._settings)


class MaAirl(CriticMethod, AtGrpo):
    """AT-GRPO on a reward learned from a solver's episodes instead of the environment's.

        f(o, a, o') = g(o, a) + gamma h(o') - h(o)
        D = exp f / (exp f + pi(a | o))         learns to be 1 for the solver's replies and 0 for those of a step
        r = log D - log(1 - D) = f - log pi     once D has learned

    Each role has g and h, for each policy that plays it; they read hidden states of the base model: at the end of o and
    o', and the mean over a. o' is what the agent who acts next is shown; after the end h is 0. f and log pi are
    kept between -10 and 10, and a reply that cannot be read earns -10, less than any other; neither is the paper's.

    Args:
        gamma: gamma of the formula.
        episodes: of the solver, on the first training tasks.
        learning_rate: of g and h.
        epochs: of g and h over the replies of a step and as many of the solver.
    """

    source = "arXiv 1907.13220"
    # "best" would choose by the environment's reward; and the scale of a learned one says nothing.
    settings = {"branch": "sample", "scale_rewards": "batch"}
    shapes = ("tree",)
    needs = ("demonstrations",)
    credits = "reward"
    kind = Discriminators
    gamma: float = argument(0.99, at_least=0, at_most=1)
    episodes: int = argument(200, at_least=1, whole=True)

    def __init__(self, config: ResolvedConfig, **arguments: object) -> None:
        super().__init__(config, **arguments)
        self._solved = cache(self._played_by_solver)

    def credit(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The records with learned rewards; 0 for partners behind an API, which learn nothing.

        Raises:
            ConfigError: the solver never plays a role, or says more than a completion may.
        """
        played = defaultdict[tuple[str, str], list[tuple[Group, Candidate, Reply]]](list)
        for group, candidate, reply in chain.from_iterable(map(self._replayed, trajectories)):
            played[group.key.role, group.policy].append((group, candidate, reply))
        rewards: dict[tuple[GroupKey, tuple[int, ...]], float] = {}
        for (role, policy), decisions in played.items():
            r = self._rewards(role, policy, [(c, reply) for _, c, reply in decisions])
            # Equal replies to a prompt have one place, and earn exactly the same.
            places = [(group.key, reply.token_ids) for group, _, reply in decisions]
            rewards.update(zip(places, r, strict=True))

        def reward_of(group: Group, candidate: Candidate) -> float:
            if candidate.info.get("parse_error") is not None:
                return -LIMIT
            return rewards.get((group.key, candidate.completion.token_ids), 0.0)

        return [repaid(trajectory, reward_of) for trajectory in trajectories]

    def _rewards(
        self, role: str, policy: str, played: Sequence[tuple[Candidate, Reply]]
    ) -> list[float]:
        """The r of replies, after their discriminator has learned from them and as many of the solver."""
        config, solved = self.config, self._solved(policy)
        if role not in solved:
            raise ConfigError(
                f"method {config.method}: the solver of {self.env} never plays {role}"
            )
        solver, solver_MF = solved[role]
        logp_N = torch.tensor([sum(c.completion.logprobs) for c, _ in played])
        features_NF = self._features(policy, [reply for _, reply in played])
        own_NF = torch.column_stack([features_NF, logp_N])
        discriminator = self.critics.critic(f"{role} {policy}", own_NF.shape[1])
        rng = random.Random(f"{config.seed} {role} {discriminator.fits}")
        drawn = rng.choices(range(len(solver)), k=len(played))
        samples = [(policy, Sample(*solver[row][:2], (), 0.0)) for row in drawn]
        says = self.policies.sample_logprobs(samples, config.tokens_per_batch, config.temperature)
        logp_N = torch.stack([says[sample].sum() for sample in samples])
        expert_NF = torch.column_stack([solver_MF[drawn], logp_N])
        labels_N = torch.tensor([0.0, 1.0]).repeat_interleave(len(played))
        both_NF = torch.cat([own_NF, expert_NF])
        discriminator.fit(both_NF, labels_N, binary_cross_entropy_with_logits)
        return discriminator.values(own_NF).tolist()

    def _replayed(self, trajectory: Trajectory) -> Iterator[tuple[Group, Candidate, Reply]]:
        """Steps the environment again, since no record has what would have followed a candidate."""
        env: PlayedEnv = Episode(self.env, trajectory.task, 0).env
        for group in trajectory.groups:
            ids_of = {c.completion.text: c.completion.token_ids for c in group.candidates}
            branches: Sequence[PlayedEnv] = env.branch([*ids_of], [*ids_of.values()])
            after = dict(zip(ids_of, branches, strict=True))
            for candidate in group.candidates if group.policy in self.policies.names else ():
                completion = candidate.completion
                next_ids = self._shown(group.policy, after[completion.text])
                yield group, candidate, Reply(group.prompt_ids, completion.token_ids, next_ids)
            env = after[group.chosen.completion.text]

    def _shown(self, policy: str, env: PlayedEnv) -> tuple[int, ...]:
        """What the agent to act is shown, in the policy's tokens."""
        agent = next_agent(env)
        ids = self.policies.chat_for(policy).prompt_ids(env.text_for(agent)) if agent else ()
        return ids if len(ids) < self.policies.contexts[policy] else ()

    def _played_by_solver(self, policy: str) -> dict[str, tuple[list[Reply], torch.Tensor]]:
        """Role -> the solver's replies in the policy's tokens, and their features."""
        config, replies = self.config, defaultdict[str, list[Reply]](list)
        for task in tasks_of_step(self.env, config.env, 0, self.episodes, config.seed):
            episode = Episode(self.env, task, 0)
            while episode.agent is not None:
                role, prompt_ids = episode.role, self._shown(policy, episode.env)
                text = episode.demonstration()
                token_ids = self.policies.chat_for(policy).completion_ids(text)
                if len(token_ids) > config.max_completion_length:
                    raise ConfigError(
                        f"method {config.method}: the solver's reply {text!r:.80} has {len(token_ids)} tokens, and "
                        f"max_completion_length is {config.max_completion_length}; raise it, or take smaller tasks"
                    )
                episode.env.step(text)
                if prompt_ids:
                    next_ids = self._shown(policy, episode.env)
                    replies[role].append(Reply(prompt_ids, token_ids, next_ids))
        return {role: (of, self._features(policy, of)) for role, of in replies.items()}

    def _features(self, policy: str, replies: Sequence[Reply]) -> torch.Tensor:
        base, length = self.policies.base_of(policy), self.config.tokens_per_batch
        shown = base.features([ids for o, _, after in replies for ids in (o, after) if ids], length)
        # The last token says only that the turn ends, and hardly knows what the reply was.
        over = {o + a: max(1, len(a)) for o, a, _ in replies}
        replied = base.features([*over], length, over)
        texts = [torch.cat([shown[o], replied[o + a], shown[n or o]]) for o, a, n in replies]
        gamma_N = torch.tensor([self.gamma if after else 0.0 for *_, after in replies])
        return torch.column_stack([torch.stack(texts), gamma_N])
