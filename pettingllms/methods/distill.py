"""On-policy distillation: students learn from what a teacher thinks of every token that they write.

Reverse KL on the student's own completions, as in GKD (Agarwal et al. 2023, https://arxiv.org/abs/2306.13649) with its share
of own samples at 1, and MiniLLM (Gu et al. 2023, https://arxiv.org/abs/2306.08543), whose single-step term this is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pettingllms.errors import ConfigError
from pettingllms.names import BASE, model_path
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.sources import adapter_folders, is_adapter, located_adapters
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import Attached, Method, argument
from pettingllms.trainers.settings import base_model
from pettingllms.types import Advantage, Candidate, Group, Sample


class Distill(Method):
    """Every token is worth what a teacher's log-probability of it is above the student's.

        A_t = log pi_teacher(y_t | o, y_<t) - log pi_student(y_t | o, y_<t)

    Its expectation is minus the reverse KL divergence at the token, whose gradient for that token it gives.
    Rewards play no part, and a prompt needs one completion only. The teacher sees what the student saw, at the
    temperature of the run, and stays in memory beside the students, on the same device.

    Args:
        teacher: adapters, in the forms of the setting `adapters`: a run of a team, whose roles teach the
            same roles of this one, or one adapter for all; may be left out if `teacher_model` is given.
        teacher_model: the teacher's model, of the same vocabulary; the run's model if empty.
    """

    source = "arXiv 2306.13649"
    shapes = ("episodes", "tree")
    least = 1
    teacher: str = argument("")
    teacher_model: str = argument("")
    teachers: PolicySet = Attached()  # type: ignore[assignment]  # what instances get

    def __init__(self, config: ResolvedConfig, **arguments: object) -> None:
        super().__init__(config, **arguments)
        if not (self.teacher or self.teacher_model):
            raise ConfigError(
                f"method {config.method} needs a teacher: a run with --method-args.teacher RUN, a larger "
                "model with --method-args.teacher_model MODEL, or both"
            )
        self._adapters = located_adapters(self.teacher) if self.teacher else None

    def attach(self, env: Any, policies: PolicySet) -> None:
        """Loads the teacher, which needs an adapter for each role and the students' vocabulary."""
        super().attach(env, policies)
        roles = policies.roles_to_policies
        teaching = self._teaching(roles)
        adapters = adapter_folders(self._adapters, teaching)
        model = self.teacher_model or base_model(self.config)
        self.teachers = load_readers(self.config, model, teaching, adapters)
        for role, policy in roles.items():
            ours = policies.chat_for(policy).tokenizer.get_vocab()
            theirs = self.teachers.chat_for(teaching[role]).tokenizer.get_vocab()
            if theirs != ours:
                raise ConfigError(
                    f"the teacher of {role} has another vocabulary ({len(theirs)} tokens, the student "
                    f"{len(ours)}); distill from a model of the same family"
                )

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """One number for each token of each candidate."""
        config, teachers = self.config, self.teachers
        rows = [
            (teachers.policy_for(group.key.role), read(group.prompt_ids, candidate))
            for group in groups
            for candidate in group.candidates
        ]
        says = teachers.sample_logprobs(rows, config.tokens_per_batch, config.temperature)
        return [
            tuple(t - s for t, s in zip(says[row].tolist(), row[1].logprobs, strict=True))
            for row in rows
        ]

    def _teaching(self, roles: Mapping[str, str]) -> dict[str, str]:
        """Role -> the teacher's policy; a run with one shared policy teaches all roles with it."""
        if self._adapters is None:
            return dict.fromkeys(roles, BASE)
        if (Path(self._adapters) / "shared").is_dir() and not is_adapter(self._adapters):
            return dict.fromkeys(roles, "shared")
        return {role: role for role in roles}


def read(prompt_ids: tuple[int, ...], candidate: Candidate) -> Sample:
    """The candidate behind a prompt, to be scored."""
    completion = candidate.completion
    return Sample(prompt_ids, completion.token_ids, completion.logprobs, advantage=0.0)


def load_readers(
    config: ResolvedConfig, model: str, roles: Mapping[str, str], adapters: Mapping[str, Path]
) -> PolicySet:
    """Policies beside those of the run, in its precision and on its device, which read and do not learn."""
    dtype, device = (None if name == "auto" else name for name in (config.dtype, config.device))
    return load_policies(
        model_path(model), roles, dtype=dtype, device=device, merge=False, adapters=adapters
    )
