"""Turns are scored in hindsight: a reply is good if knowing the solution makes it more likely.

The turn score of SWEET-RL (Zhou et al. 2025, https://arxiv.org/abs/2503.15478), by the policy itself or a critic (`benchmarks/sweet.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from pettingllms.errors import ConfigError
from pettingllms.methods.distill import load_readers, read
from pettingllms.names import BASE
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.sources import check_base, located_adapters
from pettingllms.trainers.at_grpo import AtGrpo
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import Attached, argument
from pettingllms.trainers.settings import base_model
from pettingllms.types import Advantage, Group, Sample, with_text

KNOWN = "What is known of the solution:\n{}\n\n"
"""Comes before the prompt, with c."""
CRITIC = "critic"


class Hindsight(AtGrpo):
    """A reply is worth how much more likely it is to someone who knows the solution.

        s_k = mean_t (log pi(y_t | c, o, y_<t) - log pi(y_t | o, y_<t))
        A_k = (1 - w) A + w (s_k - mean s) / (std s + epsilon)      among the replies to one prompt o

    A is the advantage of AT-GRPO, whose settings also scale s. c is what the environment knows and the agent is
    not told (`TextEnv._privileged`); pi is the policy before the update. Without c, or room for it, s is 0.
    A critic reads c in place of pi, and the base model that it was trained from reads o; both stay in memory.

    Args:
        weight: w.
        critic: folder of an adapter on the run's model, which no role plays.
    """

    source = "arXiv 2503.15478"
    # Not `early_rewards`: the score tells replies apart where only the end of an episode is paid.
    needs = ("privileged",)
    weight: float = argument(0.5, at_least=0, at_most=1)
    critic: str = argument("")
    readers: PolicySet = Attached()  # type: ignore[assignment]  # what instances get
    """Those that score replies: the policies themselves, or the critic and its base model."""

    def __init__(self, config: ResolvedConfig, **arguments: object) -> None:
        super().__init__(config, **arguments)
        if self.critic:
            self._adapter = Path(located_adapters(self.critic))
            check_base(self._adapter, base_model(config))

    def attach(self, env: Any, policies: PolicySet) -> None:
        """Takes the policies, which score their own replies; loads a critic, which must be on their model."""
        super().attach(env, policies)
        self.readers = policies
        if self.critic:
            roles = {"informed": CRITIC, "uninformed": BASE}
            model, adapters = base_model(self.config), {CRITIC: self._adapter}
            self.readers = load_readers(self.config, model, roles, adapters)
            if {*policies.digests.values()} != {*self.readers.digests.values()}:
                raise ConfigError(
                    f"method_args: critic {self.critic} is on {self.readers.base}, and policies are on other "
                    "models; leave critic out"
                )

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """The advantage of AT-GRPO mixed with the score above its group's mean."""
        outcome, weight = super().advantages(groups), self.weight
        if not weight:
            return outcome
        scores = self.compared(groups, self.scores(groups))
        pairs = zip(cast("list[float]", outcome), scores, strict=True)
        return [(1 - weight) * earned + weight * scored for earned, scored in pairs]

    def scores(self, groups: Sequence[Group]) -> list[float]:
        """Returns s of every candidate in order; 0 for all of a group that is not scored."""
        config, policies, rows = self.config, self.readers, list[list[tuple[str, Sample]]]()
        for group in groups:
            knows, reads = (CRITIC, BASE) if self.critic else (group.policy, group.policy)
            told = informed(group, policies, knows)
            # Both anew: what a sampler wrote down may be rounded otherwise, or of weights a step old.
            prompts = [] if told is None else [(knows, told), (reads, group.prompt_ids)]
            for candidate in group.candidates:
                rows.append([(policy, read(ids, candidate)) for policy, ids in prompts])
        asked = (one for pair in rows for one in pair)
        says = policies.sample_logprobs(asked, config.tokens_per_batch, config.temperature)
        # The mean and not the sum: a reply must not be worth more, or less, for being long.
        means = {one: logp_T.double().mean().item() for one, logp_T in says.items()}
        return [means[pair[0]] - means[pair[1]] if pair else 0.0 for pair in rows]


def informed(group: Group, policies: PolicySet, policy: str) -> tuple[int, ...] | None:
    """The prompt behind c in the tokens of a policy; None where there is no c, or no room for a candidate with it."""
    if not group.privileged:
        return None
    told = with_text(group.prompt, before=KNOWN.format(group.privileged))
    prompt_ids = policies.chat_for(policy).prompt_ids(told)
    longest = max(len(candidate.completion.token_ids) for candidate in group.candidates)
    return prompt_ids if len(prompt_ids) + longest <= policies.contexts[policy] else None
