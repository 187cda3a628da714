"""On-policy distillation: students learn from what a teacher thinks of every token that they write.

Reverse KL on the student's own completions, as in GKD (Agarwal et al. 2023,
https://arxiv.org/abs/2306.13649) with its share of own samples at 1, and MiniLLM (Gu et al. 2023,
https://arxiv.org/abs/2306.08543), whose single-step term this is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pettingllms.errors import ConfigError
from pettingllms.models import model_path
from pettingllms.policies.loading import load_policies
from pettingllms.policies.policy_set import PolicySet
from pettingllms.policies.roles import BASE
from pettingllms.policies.sources import adapter_folders, is_adapter, is_folder, located_adapters
from pettingllms.trainers.config import ResolvedConfig
from pettingllms.trainers.method import Attached, Method, argument
from pettingllms.trainers.settings import base_model
from pettingllms.types import Advantage, Group, Sample


class Distill(Method):
    """Every token is worth what a teacher's log-probability of it is above the student's.

        A_t = log pi_teacher(y_t | o, y_<t) - log pi_student(y_t | o, y_<t)

    Its expectation is minus the reverse KL divergence at the token, whose gradient for that token it gives.
    Rewards play no part, and a prompt needs one completion only. The teacher sees what the student saw, at the
    temperature of the run, and stays in memory beside the students, on the same device.

    Args:
        config: resolved settings of the run.
        teacher: adapters, in the forms of the setting `adapters`: a run of a team, whose roles teach the
            same roles of this one, or one adapter for all.
        teacher_model: the teacher's model, of the same vocabulary; the run's model if empty.

    Raises:
        ConfigError: neither is given, or there are no such adapters.
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
        """Loads the teacher.

        Raises:
            ConfigError: it cannot be loaded, has no adapter for a role, or has another vocabulary.
        """
        super().attach(env, policies)
        self.teachers = self._loaded(policies)

    def advantages(self, groups: Sequence[Group]) -> list[Advantage]:
        """One number for each token of each candidate.

        Raises:
            ConfigError: no trainer has attached policies.
        """
        config, teachers = self.config, self.teachers
        rows = [
            (
                teachers.policy_for(group.key.role),
                Sample(group.prompt_ids, reply.token_ids, reply.logprobs, 0.0),
            )
            for group in groups
            for reply in (candidate.completion for candidate in group.candidates)
        ]
        says = teachers.sample_logprobs(rows, config.tokens_per_batch, config.temperature)
        return [
            tuple(t - s for t, s in zip(says[row].tolist(), row[1].logprobs, strict=True))
            for row in rows
        ]

    def _loaded(self, students: PolicySet) -> PolicySet:
        config, roles = self.config, students.roles_to_policies
        teachers = load_policies(
            model_path(self.teacher_model or base_model(config)),
            self._teaching(roles),
            dtype=None if config.dtype == "auto" else config.dtype,
            device=None if config.device == "auto" else config.device,
            merge=False,
            adapters=adapter_folders(self._adapters, self._teaching(roles)),
        )
        for role, policy in roles.items():
            theirs, ours = (
                chat.tokenizer.get_vocab()
                for chat in (
                    teachers.chat_for(teachers.policy_for(role)),
                    students.chat_for(policy),
                )
            )
            if theirs != ours:
                raise ConfigError(
                    f"the teacher of {role} has another vocabulary ({len(theirs)} tokens, the student "
                    f"{len(ours)}); distill from a model of the same family"
                )
        return teachers

    def _teaching(self, roles: Mapping[str, str]) -> dict[str, str]:
        """Role -> the teacher's policy; a run with one shared policy teaches all roles with it."""
        if self._adapters is None:
            return dict.fromkeys(roles, BASE)
        shared = is_folder(self._adapters) and not is_adapter(self._adapters)
        if shared and (Path(self._adapters) / "shared").is_dir():
            return dict.fromkeys(roles, "shared")
        return {role: role for role in roles}
